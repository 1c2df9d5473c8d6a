//! The cluster map: who is a member and who owns what.
//!
//! A core: no I/O, no clock, no dice. The mon applies [`Command`]s from its
//! Raft log; everyone else reads [`ClusterMap`].
//!
//! | file | what |
//! |---|---|
//! | `map` | the map and what readers ask it |
//! | `convert` | the wire form and its checks |
//! | `command` | commands, their results and their log format |
//! | `apply/` | what each command does |
//! | `placement` | which OSDs hold a PG |
//! | `invariants` | what holds after every command |
//! | `settings` | names, defaults and ranges |

#![forbid(unsafe_code)]

mod convert;
mod map;
pub mod settings;

pub use convert::MapError;
pub use map::{ClusterMap, InoGrant, Lineage, Osd, Pg, Pool, RankInfo, Session, Subtree};
