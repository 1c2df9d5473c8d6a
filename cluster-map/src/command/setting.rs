//! Settings, and where the mons are.

/// See [`Command::SetSetting`](super::Command::SetSetting).
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetSetting {
    /// One of [`settings`](crate::settings).
    #[prost(string, tag = "1")]
    pub name: String,
    /// A number in its range.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// See [`Command::ForgetLongerLease`](super::Command::ForgetLongerLease).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ForgetLongerLease {
    /// The map's epoch since which it was not granted any more; if the map names another one, nothing is forgotten.
    #[prost(uint64, tag = "1")]
    pub since: u64,
}

/// See [`Command::SetMon`](super::Command::SetMon).
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetMon {
    /// Member of the Raft group.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// `host:port`.
    #[prost(string, tag = "2")]
    pub address: String,
}
