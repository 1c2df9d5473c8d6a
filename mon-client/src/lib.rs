//! Talking to the mons: registration, leases and the map watch.
//!
//! [`MonClient`] sends each call to the mon that answered last, follows the
//! leader hints of followers and tries the others when one does not answer.
//! [`MapWatch`] always holds the newest map that any mon has sent.

#![forbid(unsafe_code)]

mod address;
mod admin;
mod client;
mod heartbeat;
mod stamp;
mod targets;
mod watch;

pub use address::{check_mons, is_address};
pub use admin::AdminClient;
pub use client::{MonClient, MoveOutcome};
pub use stamp::ClusterStamp;
pub use watch::MapWatch;

/// Who holds a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Daemon {
    /// An object storage daemon.
    Osd(pando_proto::OsdId),
    /// A metadata server.
    Rank(pando_proto::Rank),
}

impl std::fmt::Display for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Osd(osd) => osd.fmt(f),
            Self::Rank(rank) => rank.fmt(f),
        }
    }
}

/// gRPC metadata in which a follower names the leader's address.
pub const LEADER_HINT: &str = "pando-leader";

/// gRPC metadata in which a caller names its cluster, once it knows it. A mon or OSD of another cluster refuses the
/// call.
pub const CLUSTER_HEADER: &str = "pando-cluster-bin";
