//! The metadata server: one rank, one thread.
//!
//! | room | what is in it |
//! |---|---|
//! | [`rank`] | the life of a rank: registration, lease, taking over and losing subtrees |
//! | `owner`, `moving` | the task that looks after a subtree; its splits, merges and moves (R11, R12) |
//! | `takeover` | fences, redo records, what a new owner loads (R3, R5) |
//! | `subtree` | the actor that owns a subtree: turns, fetches, commits, held replies, spill, purge |
//! | `session`, `stream`, `unary` | clients: sessions, the stream of operations, unary methods |
//! | `administration` | what administrators and other ranks ask |
//! | `lobby` | requests that wait until their subtree is opened |
//! | `asking`, `spread` | what the rank wants of its own subtrees: hints of the balancer, child directories to be spread |
//! | [`load`] | how busy the rank is, for the balancer |
//! | `full` | which placement groups have refused changes for want of space |
//! | `memory` | one budget for the caches of all subtrees |
//! | [`io`] | records, objects and mons behind small traits |
//!
//! What an operation means is decided in `pando-mds-core`; nothing here knows.
//!
//! A rank runs on one current-thread runtime: [`start`] must be called inside a
//! `tokio::task::LocalSet` of such a runtime, and everything of the rank stays
//! on that thread (a hop to another costs more than most operations).

#![forbid(unsafe_code)]

mod administration;
mod asking;
pub mod config;
mod doors;
mod full;
pub mod io;
pub mod load;
mod lobby;
mod memory;
mod moving;
mod owner;
pub mod rank;
mod session;
mod spread;
mod stream;
mod subtree;
mod takeover;
mod trees;
mod unary;

pub use config::Config;
pub use rank::{Handle, Parts, serve, start};
