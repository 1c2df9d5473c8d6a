//! Sessions of clients and ranks.

use super::osd::DaemonState;

/// See [`Command::RegisterClient`](super::Command::RegisterClient).
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterClient {
    /// Of the client incarnation.
    #[prost(bytes = "vec", tag = "1")]
    pub nonce: Vec<u8>,
    /// For people.
    #[prost(string, tag = "2")]
    pub description: String,
    /// Not a rank. Commands of a time when the description told that have neither this nor `of_rank`.
    #[prost(bool, tag = "3")]
    pub is_client: bool,
    /// A rank: the process that asks; another one than the map's is refused.
    #[prost(message, optional, tag = "4")]
    pub of_rank: Option<DaemonState>,
}

/// See [`Command::EndSession`](super::Command::EndSession).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EndSession {
    /// Whose.
    #[prost(uint64, tag = "1")]
    pub client_id: u64,
}
