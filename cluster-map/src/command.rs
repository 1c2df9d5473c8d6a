//! The commands of the map, their results, and both as bytes: commands in the Raft log, results between mons.
//!
//! An encoded command is a format byte and a protobuf message. Fields are only ever added; a mon that meets a
//! command it does not know refuses it in the same way as every other mon of its version would.

use std::time::Duration;

use pando_proto::{ClientId, Epoch, Error, Ino, OsdId, Reason, SubtreeId};

use crate::map::{Decision, TransactionId};

/// First byte of an encoded command or result.
const FORMAT: u8 = 1;
/// Before the next try of what a move stands in the way of.
const MOVE_PAUSE: Duration = Duration::from_millis(200);
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
}

/// See [`Command::CreateCluster`].
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

/// See [`Command::RegisterOsd`].
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

/// See [`Command::RegisterRank`].
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

/// See [`Command::RegisterClient`].
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

/// See [`Command::EndSession`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EndSession {
    /// Whose.
    #[prost(uint64, tag = "1")]
    pub client_id: u64,
}

/// See [`Command::RankDown`].
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

/// See [`Command::SplitSubtree`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct SplitSubtree {
    /// The subtree that holds the directory.
    #[prost(uint64, tag = "1")]
    pub parent: u64,
    /// Its epoch; another one is refused.
    #[prost(uint64, tag = "2")]
    pub parent_epoch: u64,
    /// The directory.
    #[prost(uint64, tag = "3")]
    pub root: u64,
    /// Directory that holds its dentry.
    #[prost(uint64, tag = "4")]
    pub parent_dir: u64,
    /// Its name there.
    #[prost(bytes = "vec", tag = "5")]
    pub name: Vec<u8>,
    /// For people; the end of a long one is kept.
    #[prost(bytes = "vec", tag = "6")]
    pub path_hint: Vec<u8>,
    /// Child subtrees of the parent that lie below the new root.
    #[prost(uint64, repeated, tag = "7")]
    pub adopted: Vec<u64>,
    /// Not asked for by a person: it may be merged back when it is idle.
    #[prost(bool, tag = "8")]
    pub automatic: bool,
}

/// See [`Command::MergeSubtree`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MergeSubtree {
    /// The subtree that goes.
    #[prost(uint64, tag = "1")]
    pub child: u64,
    /// Its epoch; another one is refused.
    #[prost(uint64, tag = "2")]
    pub child_epoch: u64,
    /// Of its parent; another one is refused.
    #[prost(uint64, tag = "3")]
    pub parent_epoch: u64,
}

/// See [`Command::StartMove`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StartMove {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// The rank that is to become its owner.
    #[prost(uint32, tag = "2")]
    pub to: u32,
    /// It is to be merged into its parent there: no pin keeps it any longer.
    #[prost(bool, tag = "3")]
    pub to_merge: bool,
}

/// See [`Command::CommitMove`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CommitMove {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// Its owner up to now; another one is refused.
    #[prost(uint32, tag = "2")]
    pub from: u32,
    /// Its epoch up to now; another one is refused.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// The migration; another one is refused.
    #[prost(uint64, tag = "4")]
    pub move_id: u64,
}

/// See [`Command::CancelMove`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CancelMove {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// The migration.
    #[prost(uint64, tag = "2")]
    pub move_id: u64,
}

/// See [`Command::RaiseRoutes`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct RaiseRoutes {
    /// These, and all subtrees below them.
    #[prost(uint64, repeated, tag = "1")]
    pub subtrees: Vec<u64>,
}

/// See [`Command::PinSubtree`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PinSubtree {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// Where it is to be; nowhere in particular when absent.
    #[prost(uint32, optional, tag = "2")]
    pub rank: Option<u32>,
}

/// See [`Command::SpreadSubtree`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SpreadSubtree {
    /// The subtree.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// Whether to spread.
    #[prost(bool, tag = "2")]
    pub spread: bool,
}

/// See [`Command::DrainRank`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DrainRank {
    /// The rank.
    #[prost(uint32, tag = "1")]
    pub rank: u32,
    /// Whether to drain.
    #[prost(bool, tag = "2")]
    pub draining: bool,
}

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

/// See [`Command::DecideTransaction`].
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

/// See [`Command::FinishTransactions`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct FinishTransactions {
    /// The participant.
    #[prost(uint64, tag = "1")]
    pub subtree: u64,
    /// Those that it has done, durably.
    #[prost(message, repeated, tag = "2")]
    pub transactions: Vec<TransactionName>,
}

/// A daemon's process, for [`Command::OsdDown`] and the like.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DaemonState {
    /// OSD id or rank.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Of the process meant; another one is refused.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
}

/// See [`Command::ConfirmMember`], [`Command::DemoteMember`] and [`Command::OverridePg`].
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

/// See [`Command::AllocateInos`].
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

/// See [`Command::SetSetting`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetSetting {
    /// One of [`settings`](crate::settings).
    #[prost(string, tag = "1")]
    pub name: String,
    /// A number in its range.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// See [`Command::ForgetLongerLease`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ForgetLongerLease {
    /// The map's epoch since which it was not granted any more; if the map names another one, nothing is forgotten.
    #[prost(uint64, tag = "1")]
    pub since: u64,
}

/// See [`Command::SetMon`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetMon {
    /// Member of the Raft group.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// `host:port`.
    #[prost(string, tag = "2")]
    pub address: String,
}

/// See [`Command::RemoveOsd`] and [`Command::RemoveRank`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RemoveDaemon {
    /// OSD id or rank.
    #[prost(uint32, tag = "1")]
    pub id: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(
        oneof = "Command",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30"
    )]
    command: Option<Command>,
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

/// What a command did. The epoch is that of the first map in which it holds, or a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandResult {
    /// Of the map after it.
    pub epoch: Epoch,
    /// What else.
    pub value: CommandValue,
}

/// See [`CommandResult`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandValue {
    /// Nothing else to say.
    Done,
    /// An OSD's id and the incarnation of its process.
    Osd(OsdId, u64),
    /// The incarnation of a rank's process.
    Rank(u64),
    /// A client's id.
    Client(ClientId),
    /// First and length of a range.
    Inos(Ino, u64),
    /// A new subtree's id.
    Subtree(SubtreeId),
    /// The id of a migration; 0 when there is nothing to move.
    Move(u64),
    /// What was decided, by this command or an earlier one.
    Decided(Decision),
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct ResultMessage {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(uint32, tag = "2")]
    kind: u32,
    #[prost(uint64, tag = "3")]
    first: u64,
    #[prost(uint64, tag = "4")]
    second: u64,
}

impl CommandResult {
    /// The form between mons.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, first, second) = match self.value {
            CommandValue::Done => (0, 0, 0),
            CommandValue::Osd(id, incarnation) => (1, u64::from(id.0), incarnation),
            CommandValue::Rank(incarnation) => (2, incarnation, 0),
            CommandValue::Client(id) => (3, id.0, 0),
            CommandValue::Inos(first, count) => (4, first.0, count),
            CommandValue::Subtree(id) => (5, id.0, 0),
            CommandValue::Move(id) => (6, id, 0),
            CommandValue::Decided(decision) => (7, decision.number(), 0),
        };
        seal(&ResultMessage { epoch: self.epoch.0, kind, first, second })
    }

    /// Reads the form between mons.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CommandError> {
        let message: ResultMessage = open(bytes)?;
        let value = match message.kind {
            0 => CommandValue::Done,
            1 => {
                let id = u32::try_from(message.first).map_err(|_| CommandError::Unreadable)?;
                CommandValue::Osd(OsdId(id), message.second)
            }
            2 => CommandValue::Rank(message.first),
            3 => CommandValue::Client(ClientId(message.first)),
            4 => CommandValue::Inos(Ino(message.first), message.second),
            5 => CommandValue::Subtree(SubtreeId(message.first)),
            6 => CommandValue::Move(message.first),
            7 => CommandValue::Decided(Decision::from_number(message.first).ok_or(CommandError::Unreadable)?),
            _ => return Err(CommandError::Unreadable),
        };
        Ok(Self { epoch: Epoch(message.epoch), value })
    }
}

/// Why a command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No command, or one of a newer version.
    #[error("the command cannot be read: it is damaged or from a newer version of pando-mon; update this mon")]
    Unreadable,
    /// The cluster was not made yet.
    #[error("the cluster is not ready yet: its first mon has not created it")]
    NoCluster,
    /// It was made already, as another one.
    #[error("the cluster exists already")]
    ClusterExists,
    /// A field makes no sense; says which and what would.
    #[error("{0}")]
    Invalid(String),
    /// An id that the map does not know.
    #[error("the cluster map knows no {0}")]
    Unknown(String),
    /// Another process, configuration or state than the map's.
    #[error("{what} is {have} by now, not {given}")]
    Stale {
        /// Of what.
        what: String,
        /// In the map.
        have: u64,
        /// In the command.
        given: u64,
    },
    /// A subtree that moves can be neither split nor merged.
    #[error("{message}: try again when it has arrived")]
    Moving {
        /// Which, and where to.
        message: String,
        /// Its epoch.
        epoch: u64,
    },
    /// All 48-bit numbers of a shard were handed out.
    #[error("shard {0} has no inode numbers left")]
    NoInosLeft(u32),
    /// What is to be removed is needed; says by whom.
    #[error("{0}")]
    InUse(String),
    /// No room for more of these.
    #[error("the cluster has {0} already, which is the limit")]
    TooMany(&'static str),
}

impl From<CommandError> for Error {
    fn from(error: CommandError) -> Self {
        let reason = match &error {
            CommandError::Unreadable | CommandError::Invalid(_) => Reason::InvalidRequest,
            CommandError::NoCluster => Reason::Unavailable,
            CommandError::ClusterExists => Reason::WrongCluster,
            CommandError::Unknown(_) => Reason::UnknownId,
            // Not `Unavailable`: whoever asks holds the subtree frozen, and must not wait in a loop of repetitions.
            CommandError::Stale { .. } | CommandError::Moving { .. } => Reason::StaleEpoch,
            CommandError::NoInosLeft(_) => Reason::NoSpace,
            CommandError::InUse(_) => Reason::InUse,
            CommandError::TooMany(_) => Reason::Overloaded,
        };
        let (epoch, retry_after) = match &error {
            CommandError::Stale { have, .. } => (Some(*have), None),
            CommandError::Moving { epoch, .. } => (Some(*epoch), Some(MOVE_PAUSE)),
            _ => (None, None),
        };
        Self { epoch, retry_after, ..Self::new(reason, error.to_string()) }
    }
}

#[cfg(test)]
mod tests;
