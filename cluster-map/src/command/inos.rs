//! Ranges of inos.

/// See [`Command::AllocateInos`](super::Command::AllocateInos).
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateInos {
    /// The shard whose numbers are wanted.
    #[prost(uint32, tag = "1")]
    pub shard: u32,
    /// Who asks.
    #[prost(uint32, tag = "2")]
    pub rank: u32,
    /// Which process of it.
    #[prost(uint64, tag = "3")]
    pub incarnation: u64,
    /// How many.
    #[prost(uint64, tag = "4")]
    pub count: u64,
    /// Of the call.
    #[prost(bytes = "vec", tag = "5")]
    pub nonce: Vec<u8>,
}
