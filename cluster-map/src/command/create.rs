//! The cluster's making.

use super::SetMon;

/// See [`Command::CreateCluster`](super::Command::CreateCluster).
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateCluster {
    /// 16 random bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub cluster_id: Vec<u8>,
    /// PGs get their members when this many OSDs are up.
    #[prost(uint32, tag = "2")]
    pub expected_osds: u32,
    /// The pool of records.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<PoolSpec>,
    /// The pool of objects.
    #[prost(message, optional, tag = "4")]
    pub data: Option<PoolSpec>,
    /// Members of the Raft group.
    #[prost(message, repeated, tag = "5")]
    pub mons: Vec<SetMon>,
}

/// What a pool is to be like.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PoolSpec {
    /// Replicas, 1 to 3.
    #[prost(uint32, tag = "1")]
    pub size: u32,
    /// Members that writes need; 0 for the rule: 2 where size >= 2, else 1.
    #[prost(uint32, tag = "2")]
    pub min_size: u32,
    /// PGs.
    #[prost(uint32, tag = "3")]
    pub pg_count: u32,
}

impl PoolSpec {
    /// `pg_count` PGs of `size` replicas, with the usual `min_size`.
    pub fn new(size: u32, pg_count: u32) -> Self {
        Self { size, min_size: 0, pg_count }
    }
}
