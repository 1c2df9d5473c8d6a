//! Why an operation ends before its result.

use pando_proto::{Errno, Error, Ino, Reason, ShardId, SubtreeId};

use crate::transaction::Across;

/// What an operation returns upwards instead of a result.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Records are missing; the view has the list.
    Missing,
    /// The ino is blocked.
    Wait(Ino),
    /// No ino left in the shard.
    NeedInos(ShardId),
    /// The file has to move to objects first.
    NeedSpill(Ino),
    /// What was granted above the file's size and never reported has to be cut first (R23).
    CutFirst(Ino),
    /// Other subtrees go on; the view has the list.
    Cross,
    /// Ways to subtrees change; the view has the list.
    NeedRoutes,
    /// A child subtree is to become part of this one first, if its root is empty.
    NeedMerge(SubtreeId),
    /// It is to become a transaction (R18).
    Across(Box<Across>),
    /// Fails with this errno; the path is added at the end.
    Posix(Errno),
    /// Fails with a longer story.
    Error(Box<Error>),
}

pub(crate) type Step<T> = Result<T, Stop>;

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Posix(errno)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(Box::new(error))
    }
}

/// A record that contradicts another, or does not decode (I10: an error, never silently other bytes).
pub(crate) fn corrupt(what: &str, ino: Ino) -> Error {
    Error::new(Reason::Corrupt, format!("{what} of inode {ino}: run a scrub of the metadata pool"))
}

pub(crate) fn invalid(message: &str) -> Stop {
    Error::new(Reason::InvalidRequest, message).into()
}
