//! A whole cluster in one process: for `pando up`, tests and loadgen.
//!
//! Every daemon is what it is as a process of its own (a thread with a runtime,
//! sockets on loopback, its own data directory); only the process is shared.
//! [`process`] starts them as processes of their own instead, for tests that kill them.

#![forbid(unsafe_code)]

mod cluster;
mod daemon;
mod layout;
mod lock;
mod options;
pub mod process;
mod start;

pub use cluster::LocalCluster;
pub use options::{MAX_MDS, MIN_MDS_CACHE_BYTES, Options};
pub use pando_osd::engine::EngineKind;
