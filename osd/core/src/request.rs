//! What comes into a PG from clients and from the map, and what it wants done.

use std::collections::BTreeSet;

use bytes::Bytes;
use pando_proto::{ClientId, Epoch, Error, OsdId, ShardId, SubtreeId};

use crate::fence::Fence;
use crate::message::{Message, PageQuery};
use crate::{Change, ObjectHeader, ObjectKey};

/// Names a request until it is answered. 0 is the machine itself.
pub type Token = u64;

/// Membership of a PG, from the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Rises with each change of members and each restart of one.
    pub number: u64,
    /// The first is the primary.
    pub members: Vec<OsdId>,
    /// To be brought up to date.
    pub joining: Vec<OsdId>,
    /// Members that writes need.
    pub min_size: usize,
    /// What was acknowledged before this configuration, and is not here, was given up (R26).
    pub forgiven: u64,
}

/// Sessions, from the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    /// The map's epoch.
    pub epoch: Epoch,
    /// Those that live.
    pub live: BTreeSet<ClientId>,
    /// Next one to be handed out.
    pub next_client_id: u64,
}

/// A client's request, checked for form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A batch of a subtree.
    Commit(Batch),
    /// Refuses batches of lower epochs from now on.
    RaiseFence {
        /// Where.
        shard: ShardId,
        /// Whose batches.
        subtree: SubtreeId,
        /// Lowest epoch let in.
        epoch: u64,
    },
    /// A change of an object.
    Mutate(Mutation),
    /// A deletion of an object and of all behind it of its file.
    Purge(Box<Purge>),
    /// A read; answered by [`Action::Fetch`].
    Read(Reads),
    /// The machine's own: forgets a tombstone, if it still is one. Not answered.
    Reap(ObjectKey),
}

/// One atomic batch of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Shard of all its keys.
    pub shard: ShardId,
    /// Its subtree.
    pub subtree: SubtreeId,
    /// The subtree's epoch.
    pub epoch: u64,
    /// Its number.
    pub batch: u64,
    /// Puts and deletes under engine keys.
    pub changes: Vec<Change>,
    /// It may use the space that is kept in reserve (I9).
    pub uses_reserve: bool,
}

/// A change of an object, with what makes it exactly once (R22).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// Who.
    pub session: ClientId,
    /// Its number.
    pub sequence: u64,
    /// All of the session's numbers below were answered.
    pub low_water: u64,
    /// Data generation of the ino.
    pub generation: u64,
    /// The object.
    pub object: ObjectKey,
    /// What to do.
    pub kind: MutationKind,
}

/// What a mutation does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MutationKind {
    Write { offset: u64, data: Bytes },
    Zero { offset: u64, length: u64 },
    Truncate { size: u64 },
    Delete,
}

/// A deletion of many objects, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// Deletes the first of them.
    pub(crate) mutation: Mutation,
    /// The file's floor is in the log.
    pub(crate) floored: bool,
    /// All objects up to this one were looked at.
    pub(crate) after: Option<ObjectKey>,
    /// Writes up to this number are seen in a list.
    pub(crate) listed_at: u64,
    /// Those that come next.
    pub(crate) listed: Option<Listed>,
}

impl Purge {
    /// What `mutation`, a [`MutationKind::Delete`], does to its object is done to all behind it of its file, too.
    pub fn new(mutation: Mutation) -> Self {
        let after = mutation.object.previous();
        Self { mutation, floored: false, after, listed_at: 0, listed: None }
    }
}

/// Some objects of a file, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub objects: Vec<(ObjectKey, ObjectHeader)>,
    /// There may be others behind them.
    pub more: bool,
}

/// What a read looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reads {
    /// These engine keys.
    Keys(Vec<Bytes>),
    /// Engine keys from `start` to `end`.
    Range {
        /// First.
        start: Bytes,
        /// First beyond.
        end: Bytes,
    },
    /// An object and its header.
    Object(ObjectKey),
    /// The list of objects.
    Objects,
}

/// The answer to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reply {
    Committed { fence_epoch: u64 },
    Fenced { fence_epoch: u64 },
    Raised(Fence),
    Written { size: u64 },
    Trimmed,
}

/// State that the machine needs to know before it can decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    /// A fence record.
    Fence(ShardId, SubtreeId),
    /// An object's header.
    Header(ObjectKey),
}

/// State as the engine has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Value of the record.
    Fence(Option<Bytes>),
    /// The header.
    Header(Option<ObjectHeader>),
}

/// What the shell is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make these changes durable as one transaction, in order with all others of the PG. Answered by
    /// [`Pg::committed`](crate::Pg::committed).
    Commit(Vec<Change>),
    /// Send to another OSD; may be lost, but what arrives keeps its order.
    Send(OsdId, Message),
    /// Answer a write, or refuse any request.
    Reply(Token, Result<Reply, Error>),
    /// Evaluate a read now, then ask [`Pg::fetched`](crate::Pg::fetched).
    Fetch(Token),
    /// Read from the engine, then call [`Pg::loaded`](crate::Pg::loaded).
    Load {
        /// To be given back.
        ticket: u64,
        /// What.
        load: Load,
    },
    /// Read all records from [`keys::REPLICATED`](crate::keys::REPLICATED) to
    /// [`keys::SESSIONS_END`](crate::keys::SESSIONS_END), then call [`Pg::sessions_loaded`](crate::Pg::sessions_loaded) with the ticket.
    LoadSessions(u64),
    /// List objects after this one, then call [`Pg::tombstones_listed`](crate::Pg::tombstones_listed).
    ListTombstones {
        /// To be given back.
        ticket: u64,
        /// `None`: from the first on.
        after: Option<ObjectKey>,
    },
    /// List some objects after this one, then call [`Pg::objects_listed`](crate::Pg::objects_listed).
    ListObjects {
        /// To be given back.
        ticket: u64,
        /// `None`: from the first on.
        after: Option<ObjectKey>,
    },
    /// Read own content, then call [`Pg::page`](crate::Pg::page).
    Page {
        /// To be given back.
        ticket: u64,
        /// What.
        query: PageQuery,
    },
    /// Tell the mon that this OSD caught up, until it is done or the configuration changed.
    Confirm(OsdId),
    /// Have the mon take a member out of the configuration and let it join anew, until it is done or the configuration
    /// changed. This OSD itself: it lacks what another member holds, and makes way for that one.
    Demote(OsdId),
    /// For people: this primary's copy lacks what was acknowledged, of which this OSD knows; nothing is served.
    Lost(OsdId),
}

/// What to do with the result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it, if the lease still holds (R13).
    Send,
    /// Throw it away: a write came in between, or it was refused; an action follows or has come already.
    Drop,
}
