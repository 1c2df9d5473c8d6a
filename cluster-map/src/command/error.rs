//! Why a command changed nothing.

use std::time::Duration;

use pando_proto::{Error, Reason};

/// Before the next try of what a move stands in the way of.
const MOVE_PAUSE: Duration = Duration::from_millis(200);

/// Why a command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No command, or one of a newer version.
    #[error("the command cannot be read: it is damaged or from a newer version of pando-mon; update this mon")]
    Unreadable,
    /// The cluster was not made yet.
    #[error("the cluster is not ready yet: its first mon has not created it")]
    NoCluster,
    /// It was made already, as another one.
    #[error("the cluster exists already")]
    ClusterExists,
    /// A field makes no sense; says which and what would.
    #[error("{0}")]
    Invalid(String),
    /// An id that the map does not know.
    #[error("the cluster map knows no {0}")]
    Unknown(String),
    /// Another process, configuration or state than the map's.
    #[error("{what} is {have} by now, not {given}")]
    Stale {
        /// Of what.
        what: String,
        /// In the map.
        have: u64,
        /// In the command.
        given: u64,
    },
    /// A subtree that moves can be neither split nor merged.
    #[error("{message}: try again when it has arrived")]
    Moving {
        /// Which, and where to.
        message: String,
        /// Its epoch.
        epoch: u64,
    },
    /// All 48-bit numbers of a shard were handed out.
    #[error("shard {0} has no inode numbers left")]
    NoInosLeft(u32),
    /// What is to be removed is needed; says by whom.
    #[error("{0}")]
    InUse(String),
    /// No room for more of these.
    #[error("the cluster has {0} already, which is the limit")]
    TooMany(&'static str),
}

impl From<CommandError> for Error {
    fn from(error: CommandError) -> Self {
        let reason = match &error {
            CommandError::Unreadable | CommandError::Invalid(_) => Reason::InvalidRequest,
            CommandError::NoCluster => Reason::Unavailable,
            CommandError::ClusterExists => Reason::WrongCluster,
            CommandError::Unknown(_) => Reason::UnknownId,
            // Not `Unavailable`: whoever asks holds the subtree frozen, and must not wait in a loop of repetitions.
            CommandError::Stale { .. } | CommandError::Moving { .. } => Reason::StaleEpoch,
            CommandError::NoInosLeft(_) => Reason::NoSpace,
            CommandError::InUse(_) => Reason::InUse,
            CommandError::TooMany(_) => Reason::Overloaded,
        };
        let (epoch, retry_after) = match &error {
            CommandError::Stale { have, .. } => (Some(*have), None),
            CommandError::Moving { epoch, .. } => (Some(*epoch), Some(MOVE_PAUSE)),
            _ => (None, None),
        };
        Self { epoch, retry_after, ..Self::new(reason, error.to_string()) }
    }
}
