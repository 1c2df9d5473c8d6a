//! What can keep a mon from starting or going on.

use std::path::PathBuf;

use pando_proto::Reason;

/// What an operator can do: the members of the group are fixed. A leader that was elected, and has committed something,
/// without this mon has all that was ever committed on a majority without it, and expects nothing of it.
const AFTER_A_LOSS: &str = "If that is lost, leave this mon stopped (a majority of mons goes on without it), restart the \
    mon that leads, wait until the others have elected a leader and answer `pando status`, and only then start this one \
    with an empty directory and the cluster's id (--cluster-id)";

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
        "the data directory is damaged or no mon's: {0}; give this mon its own newest directory back. {after}",
        after = AFTER_A_LOSS
    )]
    Damaged(String),
    /// The leader knows that this mon confirmed what it does not have.
    #[error(
        "the leader says that this mon confirmed the log up to entry {confirmed}, but its log ends at {last}: its disk was lost or set back, and its votes could undo what the mons have agreed on; give it its own newest directory back. {after}",
        after = AFTER_A_LOSS
    )]
    LostLog {
        /// By this mon, as the leader knows it.
        confirmed: u64,
        /// Entry in the log here.
        last: u64,
    },
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
            Error::Damaged(_) | Error::LostLog { .. } => Reason::Corrupt,
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
