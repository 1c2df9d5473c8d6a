//! Ranks.

/// See [`Command::RegisterRank`](super::Command::RegisterRank).
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRank {
    /// The slot.
    #[prost(uint32, tag = "1")]
    pub rank: u32,
    /// Of this process start.
    #[prost(bytes = "vec", tag = "2")]
    pub boot_id: Vec<u8>,
    /// `host:port`.
    #[prost(string, tag = "3")]
    pub address: String,
}

/// See [`Command::RankDown`](super::Command::RankDown).
#[derive(Clone, PartialEq, prost::Message)]
pub struct RankDown {
    /// The rank.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Of the process meant; another one is refused.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Who gets its subtrees. Those that are not named, or whose new owner is not up, go to the rank with the fewest.
    #[prost(message, repeated, tag = "3")]
    pub assignments: Vec<Assignment>,
}

/// A subtree's new owner.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Assignment {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// Its new owner.
    #[prost(uint32, tag = "2")]
    pub rank: u32,
}

/// See [`Command::DrainRank`](super::Command::DrainRank).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DrainRank {
    /// The rank.
    #[prost(uint32, tag = "1")]
    pub rank: u32,
    /// Whether to drain.
    #[prost(bool, tag = "2")]
    pub draining: bool,
}
