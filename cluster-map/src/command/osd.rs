//! OSDs, and what they have in common with ranks.

/// See [`Command::RegisterOsd`](super::Command::RegisterOsd).
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterOsd {
    /// 16 bytes of its data directory.
    #[prost(bytes = "vec", tag = "1")]
    pub uuid: Vec<u8>,
    /// Of this process start.
    #[prost(bytes = "vec", tag = "2")]
    pub boot_id: Vec<u8>,
    /// `host:port`.
    #[prost(string, tag = "3")]
    pub address: String,
    /// Failure domain.
    #[prost(string, tag = "4")]
    pub host: String,
    /// Relative share; 0 means the usual 1000.
    #[prost(uint32, tag = "5")]
    pub weight: u32,
    /// Capacity.
    #[prost(uint64, tag = "6")]
    pub total_bytes: u64,
}

/// A daemon's process, for [`Command::OsdDown`](super::Command::OsdDown) and the like.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DaemonState {
    /// OSD id or rank.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Of the process meant; another one is refused.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
}

/// See [`Command::RemoveOsd`](super::Command::RemoveOsd) and [`Command::RemoveRank`](super::Command::RemoveRank).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RemoveDaemon {
    /// OSD id or rank.
    #[prost(uint32, tag = "1")]
    pub id: u32,
}
