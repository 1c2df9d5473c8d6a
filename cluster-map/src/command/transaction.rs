//! Transactions between subtrees.

use pando_proto::{Epoch, SubtreeId};

use crate::map::TransactionId;

/// Names a transaction between subtrees.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TransactionName {
    /// The subtree that began it.
    #[prost(uint64, tag = "1")]
    pub coordinator: u64,
    /// Its epoch then.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Used once in that epoch.
    #[prost(uint64, tag = "3")]
    pub number: u64,
}

/// See [`Command::DecideTransaction`](super::Command::DecideTransaction).
#[derive(Clone, PartialEq, prost::Message)]
pub struct DecideTransaction {
    /// Which.
    #[prost(message, optional, tag = "1")]
    pub id: Option<TransactionName>,
    /// Whom it changes, the coordinator included.
    #[prost(message, repeated, tag = "2")]
    pub participants: Vec<Participant>,
    /// Commit, if every participant still has its epoch; else abort.
    #[prost(bool, tag = "3")]
    pub commit: bool,
    /// The root of a subtree gets another name.
    #[prost(message, optional, tag = "4")]
    pub reparent: Option<Reparent>,
    /// More of them, at once: two roots may exchange their names.
    #[prost(message, repeated, tag = "5")]
    pub more: Vec<Reparent>,
}

impl DecideTransaction {
    /// All roots of subtrees that get other names.
    pub fn reparents(&self) -> impl Iterator<Item = &Reparent> {
        self.reparent.iter().chain(&self.more)
    }
}

/// See [`DecideTransaction`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Participant {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// Its epoch when it prepared. Not looked at in an abort.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
}

/// See [`DecideTransaction`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Reparent {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub child: u64,
    /// Its route; with another one the transaction is aborted.
    #[prost(uint64, tag = "2")]
    pub route: u64,
    /// Its parent up to now; with another one the transaction is aborted.
    #[prost(uint64, tag = "3")]
    pub from: u64,
    /// Its new parent.
    #[prost(uint64, tag = "4")]
    pub parent: u64,
    /// The directory there that gets its name.
    #[prost(uint64, tag = "5")]
    pub parent_dir: u64,
    /// That name.
    #[prost(bytes = "vec", tag = "6")]
    pub name: Vec<u8>,
}

/// See [`Command::FinishTransactions`](super::Command::FinishTransactions).
#[derive(Clone, PartialEq, prost::Message)]
pub struct FinishTransactions {
    /// The participant.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// Those that it has done, durably.
    #[prost(message, repeated, tag = "2")]
    pub transactions: Vec<TransactionName>,
    /// Its epoch; 0 if it does not say.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
}

impl From<TransactionName> for TransactionId {
    fn from(name: TransactionName) -> Self {
        Self { coordinator: SubtreeId(name.coordinator), epoch: Epoch(name.epoch), number: name.number }
    }
}

impl From<TransactionId> for TransactionName {
    fn from(id: TransactionId) -> Self {
        Self { coordinator: id.coordinator.0, epoch: id.epoch.0, number: id.number }
    }
}
