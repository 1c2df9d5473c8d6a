//! The commands of the map, their results, and both as bytes: commands in the Raft log, results between mons.
//!
//! An encoded command is a format byte and a protobuf message. Fields are only ever added; a mon that meets a
//! command it does not know refuses it in the same way as every other mon of its version would.
//!
//! One file for each thing that commands are about, as in `apply/`.

mod client;
mod create;
mod error;
mod inos;
mod osd;
mod pg;
mod rank;
mod result;
mod setting;
mod subtree;
mod transaction;

pub use client::{EndSession, RegisterClient};
pub use create::{CreateCluster, PoolSpec};
pub use error::CommandError;
pub use inos::AllocateInos;
pub use osd::{DaemonState, RegisterOsd, RemoveDaemon};
pub use pg::ConfirmMember;
pub use rank::{Assignment, DrainRank, RankDown, RegisterRank};
pub use result::{CommandResult, CommandValue};
pub use setting::{ForgetLongerLease, SetMon, SetSetting};
pub use subtree::{
    CancelMove, CommitMove, MergeSubtree, PinSubtree, RaiseRoutes, RenewSubtree, SplitSubtree, SpreadSubtree, StartMove,
};
pub use transaction::{DecideTransaction, FinishTransactions, Participant, Reparent, TransactionName};

/// First byte of an encoded command or result.
const FORMAT: u8 = 1;
/// Longest encoded command or result.
const MAX_BYTES: usize = 64 << 10;

/// A change of the map.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Command {
    /// Makes the cluster. Once.
    #[prost(message, tag = "1")]
    CreateCluster(CreateCluster),
    /// An OSD process has started.
    #[prost(message, tag = "2")]
    RegisterOsd(RegisterOsd),
    /// An MDS process has started.
    #[prost(message, tag = "3")]
    RegisterRank(RegisterRank),
    /// A client asks for its id (R9).
    #[prost(message, tag = "4")]
    RegisterClient(RegisterClient),
    /// A session ends.
    #[prost(message, tag = "5")]
    EndSession(EndSession),
    /// An OSD's lease has ended.
    #[prost(message, tag = "6")]
    OsdDown(DaemonState),
    /// The same process of an OSD was heard of again.
    #[prost(message, tag = "7")]
    OsdUp(DaemonState),
    /// An OSD stayed away for long: others take its places.
    #[prost(message, tag = "8")]
    OsdOut(DaemonState),
    /// A rank's lease has ended; its subtrees go to others.
    #[prost(message, tag = "9")]
    RankDown(RankDown),
    /// The same process of a rank was heard of again.
    #[prost(message, tag = "10")]
    RankUp(DaemonState),
    /// A joiner holds all (R26).
    #[prost(message, tag = "11")]
    ConfirmMember(ConfirmMember),
    /// A range of inos (R20).
    #[prost(message, tag = "12")]
    AllocateInos(AllocateInos),
    /// Changes a setting.
    #[prost(message, tag = "13")]
    SetSetting(SetSetting),
    /// A mon has another address.
    #[prost(message, tag = "14")]
    SetMon(SetMon),
    /// An OSD is gone for good.
    #[prost(message, tag = "15")]
    RemoveOsd(RemoveDaemon),
    /// A rank is needed no more.
    #[prost(message, tag = "16")]
    RemoveRank(RemoveDaemon),
    /// A member does not hold all that was acknowledged, or is about to be overwritten: it joins anew (R26).
    #[prost(message, tag = "17")]
    DemoteMember(ConfirmMember),
    /// A directory becomes a subtree (R11).
    #[prost(message, tag = "18")]
    SplitSubtree(SplitSubtree),
    /// A subtree becomes part of its parent again (R11).
    #[prost(message, tag = "19")]
    MergeSubtree(MergeSubtree),
    /// A migration begins (R12).
    #[prost(message, tag = "20")]
    StartMove(StartMove),
    /// The source of a migration hands over (R12).
    #[prost(message, tag = "21")]
    CommitMove(CommitMove),
    /// A migration is given up (R12).
    #[prost(message, tag = "22")]
    CancelMove(CancelMove),
    /// The way to subtrees changes (R16).
    #[prost(message, tag = "23")]
    RaiseRoutes(RaiseRoutes),
    /// A person says where a subtree is to be.
    #[prost(message, tag = "24")]
    PinSubtree(PinSubtree),
    /// A person wants the child directories of a subtree's root spread over the ranks, or no longer.
    #[prost(message, tag = "25")]
    SpreadSubtree(SpreadSubtree),
    /// A person wants a rank empty, or no longer.
    #[prost(message, tag = "26")]
    DrainRank(DrainRank),
    /// Decides a transaction between subtrees (R18). The answer is the decision that stands.
    #[prost(message, tag = "27")]
    DecideTransaction(DecideTransaction),
    /// A participant has done what was decided.
    #[prost(message, tag = "28")]
    FinishTransactions(FinishTransactions),
    /// A person makes one copy of a PG the one that counts (R26).
    #[prost(message, tag = "29")]
    OverridePg(ConfirmMember),
    /// The longest lease of before `lease_millis` was lowered has ended, whoever held it (R13).
    #[prost(message, tag = "30")]
    ForgetLongerLease(ForgetLongerLease),
    /// Whoever has a subtree goes on under another epoch: nothing that was proposed under this one is applied any more
    /// (R11), and nothing that was told to an actor which ended counts for the next one (R19). A move under way is given
    /// up.
    #[prost(message, tag = "31")]
    RenewSubtree(RenewSubtree),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(
        oneof = "Command",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31"
    )]
    command: Option<Command>,
}

impl Command {
    /// The form in the log.
    pub fn to_bytes(&self) -> Vec<u8> {
        seal(&Envelope { command: Some(self.clone()) })
    }

    /// Refuses what must not even enter the log.
    ///
    /// Errors: a command that is too long.
    pub fn check_size(&self) -> Result<(), CommandError> {
        if self.to_bytes().len() > MAX_BYTES {
            return Err(CommandError::Invalid(format!("the request is longer than {MAX_BYTES} bytes")));
        }
        Ok(())
    }

    /// Reads the form in the log.
    ///
    /// Errors: a newer format, bytes that are no command, a command of a newer version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CommandError> {
        let envelope: Envelope = open(bytes)?;
        envelope.command.ok_or(CommandError::Unreadable)
    }
}

fn seal(message: &impl prost::Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + message.encoded_len());
    bytes.push(FORMAT);
    message.encode_raw(&mut bytes);
    bytes
}

fn open<T: prost::Message + Default>(bytes: &[u8]) -> Result<T, CommandError> {
    match bytes.split_first() {
        Some((&FORMAT, body)) if body.len() <= MAX_BYTES => T::decode(body).map_err(|_| CommandError::Unreadable),
        _ => Err(CommandError::Unreadable),
    }
}

#[cfg(test)]
mod tests;
