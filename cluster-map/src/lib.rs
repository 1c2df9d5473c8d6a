//! The cluster map: who is a member and who owns what.
//!
//! A core: no I/O, no clock, no dice. The mon applies [`Command`]s from its
//! Raft log; everyone else reads [`ClusterMap`].

#![forbid(unsafe_code)]

mod map;
pub mod settings;

pub use map::{ClusterMap, Lineage, Osd, Pg, Pool, RankInfo, Session, Subtree};
