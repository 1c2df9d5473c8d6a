//! A subtree's part in a transaction with others (R15, R17, R18): names go here, and come there; an inode goes with
//! its name, or learns at its home that one of its names has changed.
//!
//! What is decided elsewhere is kept as *what happens* (`x/`), not as records: counts and times are found out when it
//! happens, from the state of then. What that builds on is locked until then.

mod check;
mod happen;

use bytes::{Bytes, BytesMut};
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::{
    Caller, LinkChange, NameComes, NameGoes, OperationResult, RenameResponse, Reparenting, TransactionRecord,
};
use pando_proto::{ClientId, Epoch, Errno, Error, Ino, SubtreeId};
use smallvec::SmallVec;

use crate::Namespace;
use crate::api::{BatchId, Change, Context, Crossings, Fetch, Outcome, Reads, Write};
use crate::inode::encode;
use crate::records::Key;
use crate::stop::Stop;
use crate::view::View;

pub(crate) use check::{change, replace};

/// An operation that concerns more than the records of this subtree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Across {
    /// What the client gets when it has happened; `None`: it is a step that has to be made before the operation,
    /// which then runs again.
    pub reply: Option<Reply>,
    /// On whose behalf.
    pub caller: Option<Caller>,
    /// Names that go from here.
    pub goes: SmallVec<[NameGoes; 1]>,
    /// Names that come here.
    pub comes: SmallVec<[NameComes; 1]>,
    /// Inodes of this subtree of which names change.
    pub links: SmallVec<[LinkChange; 1]>,
    /// The name in another subtree.
    pub there: Option<There>,
    /// What the homes of inodes have to do, other than this subtree and that of `there`.
    pub wanted: SmallVec<[Wanted; 1]>,
    /// Roots of subtrees that get other names; their routes are not known yet.
    pub roots: SmallVec<[Reparenting; 1]>,
    /// Batches that changed what others read from the pool, not yet settled.
    pub unsettled: SmallVec<[BatchId; 2]>,
    /// What goes to another subtree is a directory.
    pub directory: Directory,
    /// It is refused with this, unless what is checked before that is wrong at the other subtree.
    pub refusal: Option<Refusal>,
}

/// A name in another subtree.
#[derive(Clone, Debug, PartialEq)]
pub struct There {
    /// Where it is.
    pub subtree: SubtreeId,
    /// How it gets there.
    pub how: How,
    /// A slash followed the name: only a directory will do.
    pub slash: bool,
    /// The name, and what it stands for then.
    pub comes: NameComes,
    /// Inodes at home there of which names change.
    pub links: SmallVec<[LinkChange; 1]>,
}

/// How a name comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// In the place of what is there.
    Replace,
    /// The name must not be there.
    NoReplace,
    /// What is there goes to where this comes from.
    Exchange,
    /// As by link(2).
    Link,
    /// It is there already.
    Adopt,
}

/// What the home of an inode has to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The home.
    pub subtree: SubtreeId,
    /// Names of the inode change.
    pub change: LinkChange,
}

/// What goes is a directory, or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Directory {
    /// No directory.
    #[default]
    None,
    /// It has to become a subtree first.
    Plain(Ino),
    /// It is the root of this subtree.
    Root(SubtreeId),
}

/// See [`Across::refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub errno: Errno,
    /// What of the other side's checks comes before it.
    pub after: Checked,
}

/// The checks at the new name, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checked {
    /// The way to the directory.
    Way,
    /// Whether the name may be there, and the directory is not removed.
    Name,
    /// The slash behind the name.
    Slash,
    /// The permission to write to the directory.
    Permission,
}

impl Checked {
    /// All, in order.
    pub const ALL: [Self; 4] = [Self::Way, Self::Name, Self::Slash, Self::Permission];
}

/// What another subtree wants to happen here.
#[derive(Clone, Debug)]
pub struct Coming {
    /// The name, and what it stands for; `None`: only names of inodes change.
    pub comes: Option<NameComes>,
    /// How it comes.
    pub how: How,
    /// Of an exchange: the directory and name to which what is there goes.
    pub from: (Ino, Bytes),
    /// Inodes of this subtree of which names change.
    pub links: Vec<LinkChange>,
    /// On whose behalf.
    pub caller: Option<Caller>,
    /// A slash followed the name.
    pub slash: bool,
    /// The other subtree refuses it.
    pub refusal: Option<Refusal>,
}

/// Whether something can come.
#[derive(Debug)]
pub enum Welcome {
    /// Records that are not in memory: fetch, install, ask again.
    Missing(SmallVec<[Fetch; 2]>),
    /// Locked by another transaction, or busy.
    Busy,
    /// The directory, or the inode, is in another subtree.
    Cross(Crossings),
    /// No; to be said when the batches are durable.
    Refused(Error, Reads),
    /// It is so already; to be said when the batches are durable.
    Unchanged(Reads),
    /// What it replaces is the root of this subtree, which has to be merged first if it is empty.
    Merge(SubtreeId),
    /// A step has to be made first.
    First(Box<Across>),
    /// Yes.
    Ready(Box<Ready>),
}

/// What happens here then.
#[derive(Clone, Debug, Default)]
pub struct Ready {
    /// The name that comes, with what it replaces.
    pub comes: Option<NameComes>,
    /// What goes from here, of an exchange.
    pub goes: Option<NameGoes>,
    /// Inodes of this subtree of which names change.
    pub links: Vec<LinkChange>,
    /// What the homes of others have to do.
    pub wanted: SmallVec<[Wanted; 1]>,
    /// The record of what goes, if it goes with its name.
    pub inode: Bytes,
    /// What goes is a directory.
    pub directory: Directory,
    /// Batches that changed what goes, not yet settled.
    pub unsettled: SmallVec<[BatchId; 2]>,
    /// What all this builds on.
    pub reads: Reads,
}

/// An open handle, as it is handed over with its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// Whose.
    pub client: ClientId,
    /// Its number.
    pub handle: u64,
    /// Sum of OpenFlag.
    pub flags: u32,
    /// May have written objects.
    pub granted: bool,
    /// Opened by root.
    pub privileged: bool,
}

/// All that is known of the open handles of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The handles.
    pub handles: Vec<HandOver>,
    /// End of what was reserved for appends to objects, and whether that is all.
    pub append: (u64, bool),
}

/// All names that go by a record.
pub fn all_goes(record: &TransactionRecord) -> impl Iterator<Item = &NameGoes> {
    record.goes.iter().chain(&record.more_goes)
}

/// All names that come by a record.
pub fn all_comes(record: &TransactionRecord) -> impl Iterator<Item = &NameComes> {
    record.comes.iter().chain(&record.more_comes)
}

/// All roots that get other names by a record.
pub fn all_reparenting(record: &TransactionRecord) -> impl Iterator<Item = &Reparenting> {
    record.reparenting.iter().chain(&record.more_reparenting)
}

impl Namespace {
    /// Whether a name may come here, and names of inodes change. Changes nothing.
    pub fn welcome(&mut self, coming: &Coming, ctx: &Context) -> Welcome {
        let mut view = View::new(self, ctx);
        let step = check::check(&mut view, coming);
        if !matches!(step, Err(Stop::Missing)) {
            view.forget_foreign();
        }
        let name = coming.comes.as_ref().map(|comes| comes.name.clone()).unwrap_or_default();
        match step {
            Ok(Some(ready)) => Welcome::Ready(Box::new(Ready { reads: view.reads, ..ready })),
            Ok(None) => Welcome::Unchanged(view.reads),
            Err(Stop::Missing) => Welcome::Missing(view.missing),
            Err(Stop::Cross) => Welcome::Cross(view.crossings),
            Err(Stop::NeedMerge(child)) => Welcome::Merge(child),
            Err(Stop::Across(first)) => Welcome::First(first),
            Err(Stop::Posix(errno)) => Welcome::Refused(Error::posix(errno).at(name.as_ref()), view.reads),
            Err(Stop::Error(error)) => Welcome::Refused(*error, view.reads),
            Err(_) => Welcome::Busy,
        }
    }

    /// From now on whoever meets what the transaction builds on waits. May be called again when it grew.
    pub fn lock(&mut self, record: &TransactionRecord) {
        self.locks.lock(record);
    }

    /// It is over. Yields the inodes for which somebody may wait. What was handed on by a participant stays locked
    /// until [`handed_on`](Self::handed_on).
    pub fn unlock(&mut self, record: &TransactionRecord, committed: bool) -> SmallVec<[Ino; 4]> {
        self.locks.unlock(record, committed)
    }

    /// All that it did is in the pool, where others find it: what was handed on is theirs. Yields it.
    pub fn handed_on(&mut self, record: &TransactionRecord) -> SmallVec<[Ino; 1]> {
        let inos: SmallVec<[Ino; 1]> = all_goes(record).filter(|goes| hands_on(goes)).map(|it| Ino(it.ino)).collect();
        for ino in &inos {
            self.locks.unlock_inode(*ino);
            self.give(*ino);
        }
        inos
    }

    /// The record that keeps it over a restart.
    pub fn remember(&self, record: &TransactionRecord) -> Change {
        let writes = vec![Write { key: self.key_of(record), value: Some(encode(record)) }];
        Change { writes, memory: crate::Memory::default(), follow_up: SmallVec::new() }
    }

    fn key_of(&self, record: &TransactionRecord) -> Key {
        let (home, own) = (self.config.root.shard(), self.config.subtree);
        Key::Transaction(home, own, SubtreeId(record.coordinator), Epoch(record.epoch), record.number)
    }

    /// What was decided happens, and is no longer remembered. Repeat it on `Missing` as an operation; unlock it when
    /// its change is committed.
    pub fn conclude(
        &mut self,
        record: &TransactionRecord,
        committed: bool,
        holders: &Holders,
        ctx: &Context,
    ) -> Outcome {
        let key = self.key_of(record);
        let mut view = View::new(self, ctx);
        view.past_locks = true;
        let step = if committed { happen::happen(&mut view, record, holders) } else { Ok(()) };
        view.put_record(key, None);
        let reply = OperationResult { result: Some(Reply::Rename(RenameResponse {})) };
        view.finish(step.map(|()| reply), &Bytes::new())
    }

    /// Who has a file open that is to be given away.
    pub fn holders(&self, ino: Ino) -> Holders {
        self.handles.holders(ino)
    }

    /// Sessions with open handles.
    pub fn holding_sessions(&self) -> Vec<ClientId> {
        self.handles.sessions()
    }

    /// The root of this subtree has this name now, in another subtree: its inode follows, for the time when it is the
    /// root of one no more. An outcome without a change: it has it already. Repeat it on `Missing` as an operation.
    pub fn rename_root(&mut self, dir: Ino, name: &Bytes, ctx: &Context) -> Outcome {
        let mut view = View::new(self, ctx);
        let step = happen::rename_root(&mut view, dir, name);
        let reply = OperationResult { result: Some(Reply::Rename(RenameResponse {})) };
        view.finish(step.map(|()| reply), &Bytes::new())
    }
}

/// The giver is no coordinator: it ends before the one who gets the inode, and writes down whose it is.
pub(crate) fn hands_on(goes: &NameGoes) -> bool {
    goes.gives && goes.to_dir != 0
}

/// The name of a crossing, without the slash that may follow it.
pub(crate) fn name_and_slash(path: &Bytes) -> (Bytes, bool) {
    let length = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    (Bytes::from(BytesMut::from(&path[..length])), length < path.len())
}
