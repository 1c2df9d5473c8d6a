//! The namespace as pure data: operations, cache and commit order.
//!
//! No I/O, no clock, no dice. The shell in `mds/` drives it; see [`api`] for the
//! turn of one operation.

#![forbid(unsafe_code)]

pub mod api;
pub mod pipeline;
pub mod records;

/// What a change does in memory beside its records (placeholder until the namespace lands).
#[derive(Debug, Default)]
pub struct Memory;

/// The namespace of one subtree (placeholder until it lands).
#[derive(Debug, Default)]
pub struct Namespace;
