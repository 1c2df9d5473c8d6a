//! Members of PGs.

/// See [`Command::ConfirmMember`](super::Command::ConfirmMember),
/// [`Command::DemoteMember`](super::Command::DemoteMember) and [`Command::OverridePg`](super::Command::OverridePg).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ConfirmMember {
    /// Pool of the PG.
    #[prost(uint32, tag = "1")]
    pub pool: u32,
    /// Index of the PG.
    #[prost(uint32, tag = "2")]
    pub index: u32,
    /// Configuration in which the joiner caught up, or the member was found wanting; or that a person saw.
    #[prost(uint64, tag = "3")]
    pub config: u64,
    /// The joiner, or the member; or who holds the copy.
    #[prost(uint32, tag = "4")]
    pub osd_id: u32,
}
