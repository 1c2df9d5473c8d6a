//! The metadata server: one rank, one thread.
//!
//! | room | what is in it |
//! |---|---|
//! | [`rank`] | the life of a rank: registration, lease, taking over and losing subtrees |
//! | `takeover` | fences, redo records, what a new owner loads (R3, R5) |
//! | `subtree` | the actor that owns a subtree: turns, fetches, commits, held replies, spill, purge |
//! | `session`, `stream`, `unary` | clients: sessions, the stream of operations, unary methods |
//! | [`io`] | records, objects and mons behind small traits |
//!
//! What an operation means is decided in `pando-mds-core`; nothing here knows.
//!
//! A rank runs on one current-thread runtime: [`start`] must be called inside a
//! `tokio::task::LocalSet` of such a runtime, and everything of the rank stays
//! on that thread (a hop to another costs more than most operations).

#![forbid(unsafe_code)]

pub mod config;
pub mod io;
pub mod rank;
mod session;
mod stream;
mod subtree;
mod takeover;
mod unary;

pub use config::Config;
pub use rank::{Handle, Parts, serve, start};
