//! The border between the namespace and the shell that drives it.
//!
//! A turn of the shell, for one operation:
//! 1. [`Namespace::apply`](crate::Namespace::apply) decides. It changes nothing.
//! 2. `Missing`: the shell fetches, installs, and applies again. `Wait`: it
//!    parks the operation until the ino is unblocked. `NeedInos`, `NeedSpill`,
//!    `NeedRoutes`: it brings what is needed, then applies again. `Cross`: another
//!    subtree goes on; the answer waits for `reads` as any other. `Across`: see [`crate::transaction`].
//! 3. `Done` with writes: the commit order ([`crate::pipeline`]) names the batch
//!    that takes them, and [`Namespace::commit`](crate::Namespace::commit) makes
//!    them visible to later operations, marked as not yet durable.
//! 4. The reply leaves when the batch and all `reads` are durable (I2, R6).
//! 5. [`Namespace::durable`](crate::Namespace::durable) tells the namespace, and
//!    only then may what the batch touched be evicted (R8).
//!
//! Steps 1 and 3 happen in one turn, with nothing between them.

use bytes::Bytes;
use pando_proto::mds::{OperationResult, PurgeRecord};
use pando_proto::{ClientId, Error, Ino, ShardId, SubtreeId};
use smallvec::SmallVec;

use crate::records::Key;
use crate::transaction::Across;

/// A batch of this subtree and epoch. Numbers rise; a batch depends only on lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// On whose behalf, and when, an operation runs.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Wall clock, nanoseconds since the Unix epoch; for the times of files.
    pub now: i64,
    /// The session; 0 for callers without one (no handles for them).
    pub client: ClientId,
    /// Subtrees whose routes were raised for this operation, and are blocked until it is done (R16).
    pub routes: SmallVec<[SubtreeId; 2]>,
    /// The session has not said yet which handles it has (R19): one that is not known is answered RECLAIM_FIRST.
    pub awaited: bool,
}

/// A record to write (`Some`) or delete (`None`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Which.
    pub key: Key,
    /// The encoded record, format byte included.
    pub value: Option<Bytes>,
}

/// Batches whose state an operation saw. Its reply waits for all of them (R6).
pub type Reads = SmallVec<[BatchId; 4]>;

/// A target that goes on in another subtree (R15, R16).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// Which target of the request: 0 the first (`target`, `from`, `existing`), 1 the second (`to`, `link`). Of an
    /// operation on a handle it is 0, and `base` the inode of the handle.
    pub target: u32,
    /// Where it goes on. Of a request with two targets this may be the answering subtree itself: then the
    /// target was resolved up to its last name, for the subtree of the other target to see that it is not there.
    pub subtree: SubtreeId,
    /// From here.
    pub base: Ino,
    /// What is left of the path.
    pub path: Bytes,
    /// Bytes of the target's path that lead from its base to `base` by plain directories alone; 0 if there was
    /// anything else.
    pub consumed: u32,
}

/// Crossings of one request, at most one for each target. The client changes these targets and goes on
/// in the subtree of the *first* of them.
pub type Crossings = SmallVec<[Crossing; 1]>;

/// What [`Namespace::locate`](crate::Namespace::locate) found.
#[derive(Debug)]
pub enum Located {
    /// Records that are not in memory: fetch, install, ask again.
    Missing(SmallVec<[Fetch; 2]>),
    /// It is in another subtree, or the root of one.
    Cross(Crossings),
    /// It cannot be a subtree; the error says why.
    Refused(Error),
    /// A directory that may be split off.
    Directory {
        /// The directory.
        ino: Ino,
        /// Where its name is.
        parent_dir: Ino,
        /// Its name.
        name: Bytes,
        /// Its path from the root of this subtree, for people; empty if not all of it is in memory.
        path_hint: Bytes,
        /// Batches that are not durable yet.
        reads: Reads,
    },
}

/// What [`Namespace::apply`](crate::Namespace::apply) found.
#[derive(Debug)]
// `Done` is the common one and passed on at once: a box would cost an allocation per operation.
#[allow(clippy::large_enum_variant)]
pub enum Outcome {
    /// Records that are not in memory; nothing was done.
    Missing(SmallVec<[Fetch; 2]>),
    /// A data operation on an ino that is blocked by a spill, truncation or purge (R24); nothing was done.
    Wait(Ino),
    /// No ino number left for this shard; nothing was done.
    NeedInos(ShardId),
    /// The file outgrows its inline limit and has to move to objects first (R24); nothing was done.
    NeedSpill(Ino),
    /// What somebody was granted above the file's size and never reported has to go first (R23). The change does
    /// that, in a batch of its own: commit it, do its follow-up, wait as for `Wait`, apply the operation again.
    CutFirst(Ino, Change),
    /// Not done here: other subtrees go on. To be answered when `reads` are durable.
    Cross {
        /// In order of the targets.
        crossings: Crossings,
        /// Not yet durable batches that this reveals.
        reads: Reads,
    },
    /// The way to these subtrees changes with the operation: their routes are raised first, then it is applied
    /// again with them in [`Context::routes`] (R16). Nothing was done.
    NeedRoutes(SmallVec<[SubtreeId; 2]>),
    /// The root of this child subtree is to be removed (R21). If it is empty the child is merged back, and the
    /// operation applied again; else it fails with ENOTEMPTY. Nothing was done.
    NeedMerge(SubtreeId),
    /// It concerns more than the records of this subtree: it is to become a transaction (R18). Nothing was done.
    Across(Box<Across>, Reads),
    /// Decided.
    Done(Done),
}

/// A decision: the reply, and what makes it true.
#[derive(Debug)]
pub struct Done {
    /// What the client gets.
    pub result: Result<OperationResult, Error>,
    /// Not yet durable batches that the result reveals.
    pub reads: Reads,
    /// The change, to be handed to [`Namespace::commit`](crate::Namespace::commit); `None` for a pure read or an error.
    pub change: Option<Change>,
}

/// A change that was decided and not yet committed.
#[derive(Debug)]
pub struct Change {
    /// Records, each key at most once.
    pub writes: Vec<Write>,
    /// What else changes in memory, private to the namespace.
    pub(crate) memory: crate::Memory,
    /// What the shell has to do once the batch is durable.
    pub follow_up: SmallVec<[FollowUp; 1]>,
}

/// Work after a batch is durable.
#[derive(Clone, Debug, PartialEq)]
pub enum FollowUp {
    /// Delete or cut objects as the purge record says, then commit its removal
    /// ([`Namespace::purge_done`](crate::Namespace::purge_done)). With `from > 0` the ino stays blocked for data
    /// operations until then, and the reply waits for it as well.
    /// With `from == 0` all objects go: the reply need not wait. If the ino lives on, it is empty or inline, and
    /// what would make objects visible (grants, extension, spill, a next purge) waits.
    Purge(Ino, PurgeRecord),
}

/// Something to read from the metadata pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fetch {
    /// One record, or the knowledge that it is absent.
    Record(Key),
    /// Dentries of a directory after a name (empty: from the start), up to the shell's page size.
    /// If the answer reaches the end and began at the start, the directory is complete in memory.
    Dentries {
        /// The directory.
        dir: Ino,
        /// Names after this one.
        after: Bytes,
        /// Most entries wanted.
        limit: u32,
    },
    /// Back links (`l/<ino>/…`) of an inode after a link (empty: from the start), up to the shell's page size.
    BackLinks {
        /// The inode.
        ino: Ino,
        /// Links after this one: eight bytes of directory ino, big-endian, then the name.
        after: Bytes,
        /// Most links wanted.
        limit: u32,
    },
}

/// What a fetch brought. Handed to [`Namespace::install`](crate::Namespace::install) with the token of its start.
#[derive(Clone, Debug)]
pub enum Fetched {
    /// The encoded value, or `None` for an absent record.
    Record(Key, Option<Bytes>),
    /// A page of dentries.
    Dentries {
        /// As asked.
        dir: Ino,
        /// As asked.
        after: Bytes,
        /// (name, encoded dentry record), in order.
        entries: Vec<(Bytes, Bytes)>,
        /// Whether the directory ends here.
        end: bool,
    },
    /// A page of back links.
    BackLinks {
        /// As asked.
        ino: Ino,
        /// As asked.
        after: Bytes,
        /// The parts of their keys after the inode's number (directory ino, name), in order.
        links: Vec<Bytes>,
        /// Whether they end here.
        end: bool,
    },
}

/// Marks the moment a fetch began (R8). Must be handed back by `install` or `abandon_fetch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchToken(pub u64);

/// Bytes in the cache, counted with their structures (I8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUsage {
    /// Inodes and dentries.
    pub meta_bytes: u64,
    /// Inline bodies.
    pub body_bytes: u64,
    /// Of both, not evictable now: not durable, pinned or open.
    pub pinned_bytes: u64,
    /// Inodes in memory.
    pub inodes: u64,
    /// Bodies in memory.
    pub bodies: u64,
}
