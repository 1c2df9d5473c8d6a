//! Client library of the Pando file system, in the manner of [`tokio::fs`].
//!
//! ```
//! # use pando_local_cluster::{LocalCluster, Options};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let options = Options { osds: 1, replicas: 1, ..Options::default() };
//! # let cluster = LocalCluster::start(options.memory()).await?;
//! # let mons = cluster.mon_addresses();
//! // `mons` is "host:port", several separated by commas, or a list.
//! let client = pando_client::Client::connect(&mons).await?;
//! client.create_dir_all("/photos/2026").await?;
//! client.write("/photos/2026/note.txt", "forty-seven thousand trunks, one root").await?;
//! let note = client.read("/photos/2026/note.txt").await?;
//! assert_eq!(&note[..6], b"forty-");
//! client.close().await?;
//! # cluster.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! Every call is durable when it returns, takes effect exactly once although
//! it may be sent several times, and fails with an [`Error`] that carries a
//! POSIX errno, the path and what to do. Paths start at the root of the file
//! system; they are bytes, not necessarily UTF-8.
//!
//! The calls may be made from any tokio runtime, current-thread or
//! multi-thread. A [`Client`] is cheap to clone; clones share one session.
//!
//! Where things are: [`Client`] has the calls on paths (`ops/`, one file per
//! kind), [`Dir`] those on names in one directory, [`File`] those on open files (`file/`); `session/` gets a request to
//! the rank that owns its subtree and its answer back.

#![forbid(unsafe_code)]

mod builder;
mod client;
mod error;
mod file;
mod ops;
mod path;
mod running;
mod session;
mod stripe;
mod types;

pub use builder::ClientBuilder;
pub use client::Client;
pub use error::{Error, Result};
pub use file::{File, OpenOptions};
pub use ops::{Dir, ReadDir, ReadDirOptions};
pub use pando_proto::{Epoch, Errno, Ino, Rank, Reason, SubtreeId};
pub use types::{DirEntry, FileKind, FsStats, Location, Metadata, SetTime, XattrMode};

#[cfg(test)]
mod tests;
