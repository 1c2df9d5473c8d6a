//! What can keep a mon from starting or going on.

use std::path::PathBuf;

use pando_proto::Reason;

/// Errors of a mon.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration that makes no sense.
    #[error("{0}")]
    Config(String),
    /// The listening socket.
    #[error("{0}")]
    Listen(std::io::Error),
    /// The data directory cannot be used.
    #[error("cannot use the data directory {path}: {source}; check that it exists on a writable disk")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process has it open.
    #[error(
        "the data directory is in use by another pando-mon: stop that one, or give this mon a directory of its own"
    )]
    InUse,
    /// It belongs to another cluster.
    #[error(
        "the data directory belongs to cluster {found}, not {wanted}: give this mon the directory of its own cluster, or an empty one"
    )]
    WrongCluster {
        /// In the directory.
        found: String,
        /// In the configuration.
        wanted: String,
    },
    /// It belongs to another mon.
    #[error("the data directory belongs to mon {found}, but this is mon {wanted}: give each mon its own directory")]
    WrongMon {
        /// In the directory.
        found: u64,
        /// In the configuration.
        wanted: u64,
    },
    /// It was made with other members.
    #[error(
        "the group was made of mons {found:?}, but the configuration names {wanted:?}: name the same mons as before"
    )]
    OtherMembers {
        /// In the directory.
        found: Vec<u64>,
        /// In the configuration.
        wanted: Vec<u64>,
    },
    /// A newer program wrote it.
    #[error(
        "the data directory has format {found}, this pando-mon knows formats up to {known}: use a pando-mon at least as new as the one that wrote it"
    )]
    NewerFormat {
        /// In the directory.
        found: u32,
        /// Highest known here.
        known: u32,
    },
    /// It is no mon's, or damaged.
    #[error(
        "the data directory is damaged or no mon's: {0}; restore it, or replace this mon by one with a new id and an empty directory"
    )]
    Damaged(String),
    /// The disk.
    #[error("the mon's disk failed: {0}")]
    Disk(#[from] redb::Error),
    /// The Raft library.
    #[error("raft: {0}")]
    Raft(#[from] raft::Error),
}

impl From<Error> for pando_proto::Error {
    fn from(error: Error) -> Self {
        let reason = match &error {
            Error::Config(_) | Error::OtherMembers { .. } | Error::WrongMon { .. } => Reason::InvalidRequest,
            Error::Listen(_) | Error::InUse => Reason::Unavailable,
            Error::WrongCluster { .. } => Reason::WrongCluster,
            Error::NewerFormat { .. } => Reason::NewerFormat,
            Error::Damaged(_) => Reason::Corrupt,
            Error::Directory { .. } | Error::Disk(_) => Reason::Storage,
            Error::Raft(_) => Reason::Internal,
        };
        Self::new(reason, error.to_string())
    }
}

macro_rules! disk {
    ($($kind:ty),*) => {
        $(impl From<$kind> for Error {
            fn from(error: $kind) -> Self {
                Self::Disk(error.into())
            }
        })*
    };
}
disk!(redb::StorageError, redb::TableError, redb::TransactionError, redb::CommitError, redb::SetDurabilityError);
