//! The namespace as pure data: operations, cache and commit order.
//!
//! No I/O, no clock, no dice. The shell in `mds/` drives it; see [`api`] for the
//! turn of one operation.
//!
//! | room | what is in it |
//! |---|---|
//! | `ops/` | the operations, one file a verb |
//! | `view` | what an operation sees and stages |
//! | `resolve`, `permission`, `data` | rules that operations share |
//! | `cache/` | inodes, names and bodies under one budget; fetch and eviction |
//! | `handles`, `inos`, `busy` | open files, ino numbers, blocked inos |
//! | `tree`, `locate` | where this subtree ends, and others go on |
//! | `split`, `migrate`, `heat` | subtrees on the move |
//! | `transaction`, `locks` | what changes two subtrees at once |
//! | `records` | keys on disk |
//!
//! Access times change only when a client sets them: a read never writes, so that it can be answered at once.

#![forbid(unsafe_code)]

pub mod api;
mod busy;
mod cache;
mod config;
mod data;
mod handles;
mod heat;
mod inode;
mod inos;
mod join;
mod locate;
mod locks;
mod migrate;
mod namespace;
mod ops;
mod permission;
pub mod pipeline;
pub mod records;
mod resolve;
mod spill;
mod split;
mod stop;
pub mod transaction;
mod tree;
mod view;

pub use config::Config;
pub use join::Joining;
pub use migrate::{DeltaSlices, Export};
pub use namespace::Namespace;
pub use split::Splitting;
pub use tree::{Forest, Tree};
pub use view::Memory;
