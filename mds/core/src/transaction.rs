//! A subtree's part in a transaction with another one (R15, R17, R18): a name goes here, and comes there.
//!
//! What is decided elsewhere is kept as *what happens* (`x/`), not as records: counts and times are found out when it
//! happens, from the state of then. What that builds on is locked until then.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::{
    Caller, FileKind, NameComes, NameGoes, OperationResult, RenameResponse, Target, TransactionRecord,
};
use pando_proto::{ClientId, Epoch, Errno, Error, Ino, SubtreeId};
use smallvec::SmallVec;

use crate::Namespace;
use crate::api::{BatchId, Change, Context, Crossings, Fetch, Outcome, Reads, Write};
use crate::handles::{Handle, HandleChange};
use crate::inode::{Dentry, decode_inode, encode, is_dir, modified, touch};
use crate::ops::remove::{drop_directory, drop_link};
use crate::permission::{EXECUTE, WRITE, Who};
use crate::records::Key;
use crate::resolve::{Entry, entry};
use crate::stop::{Step, Stop, corrupt};
use crate::view::View;

/// A rename that concerns more than the records of this subtree.
#[derive(Clone, Debug, PartialEq)]
pub struct Across {
    /// What goes from here.
    pub goes: NameGoes,
    /// Its encoded inode; empty for a directory, which takes its inode nowhere.
    pub inode: Bytes,
    /// Batches that changed the inode or its body, not yet settled: the other subtree reads them from the pool.
    pub unsettled: SmallVec<[BatchId; 2]>,
    /// Where it goes: perhaps to this same subtree.
    pub to: SubtreeId,
    /// The directory there.
    pub dir: Ino,
    /// The name there.
    pub name: Bytes,
    /// A slash followed the name: only a directory will do.
    pub slash: bool,
    /// What it replaces here, if it goes to this subtree.
    pub replaces: Ino,
    /// What to do about a directory.
    pub directory: Directory,
    /// It is refused with this, unless what is checked before that is wrong at the other subtree.
    pub refusal: Option<Refusal>,
}

/// What goes is a directory, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// No directory.
    None,
    /// It has to become a subtree first.
    Plain,
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

/// The checks of a rename at its new name, in their order.
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

/// What another subtree wants to come here.
#[derive(Clone, Debug)]
pub struct Coming {
    /// The name, and what it stands for.
    pub comes: NameComes,
    /// On whose behalf.
    pub caller: Option<Caller>,
    /// The name must not be there.
    pub no_replace: bool,
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
    /// The directory is in another subtree.
    Cross(Crossings),
    /// No; to be said when the batches are durable.
    Refused(Error, Reads),
    /// Yes. What it replaces (0: nothing), and what that builds on.
    Ready(Ino, Reads),
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

impl Namespace {
    /// Whether a name may come here. Changes nothing.
    pub fn welcome(&mut self, coming: &Coming, ctx: &Context) -> Welcome {
        let mut view = View::new(self, ctx);
        let step = check_coming(&mut view, coming);
        if !matches!(step, Err(Stop::Missing)) {
            view.forget_foreign();
        }
        match step {
            Ok(replaces) => Welcome::Ready(replaces, view.reads),
            Err(Stop::Missing) => Welcome::Missing(view.missing),
            Err(Stop::Cross) => Welcome::Cross(view.crossings),
            Err(Stop::Posix(errno)) => Welcome::Refused(Error::posix(errno).at(coming.comes.name.as_ref()), view.reads),
            Err(Stop::Error(error)) => Welcome::Refused(*error, view.reads),
            Err(_) => Welcome::Busy,
        }
    }

    /// From now on whoever meets what the transaction builds on waits.
    pub fn lock(&mut self, record: &TransactionRecord) {
        self.locks.lock(record);
    }

    /// It is over. Yields the inodes for which somebody may wait.
    pub fn unlock(&mut self, record: &TransactionRecord) -> SmallVec<[Ino; 4]> {
        self.locks.unlock(record)
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
        let step = if committed { happen(&mut view, record, holders) } else { Ok(()) };
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
        let step = rename_root(&mut view, dir, name);
        let reply = OperationResult { result: Some(Reply::Rename(RenameResponse {})) };
        view.finish(step.map(|()| reply), &Bytes::new())
    }
}

fn rename_root(view: &mut View<'_>, dir: Ino, name: &Bytes) -> Step<()> {
    let root = view.root();
    let inode = view.inode(root)?;
    if inode.parent == dir.0 && inode.name == *name {
        return Ok(());
    }
    let mut renamed = (*inode).clone();
    touch(&mut renamed, view.now());
    renamed.parent = dir.0;
    renamed.name = Bytes::copy_from_slice(name);
    view.put_inode(root, Arc::new(renamed));
    Ok(())
}

/// In the order of a rename within one subtree.
fn check_coming(view: &mut View<'_>, coming: &Coming) -> Step<Ino> {
    let NameComes { dir, name, kind, .. } = &coming.comes;
    let who = Who::new(coming.caller.as_ref());
    let path = if coming.slash { [&name[..], b"/"].concat().into() } else { name.clone() };
    let target = Target { base: *dir, path };
    let entry = entry(view, who, Some(&target), |_| Errno::EBUSY)?;
    refuse(coming, Checked::Way)?;
    if entry.found.is_some() && coming.no_replace {
        return Err(Errno::EEXIST.into());
    }
    if entry.dir_inode.dead {
        return Err(Errno::ENOENT.into());
    }
    refuse(coming, Checked::Name)?;
    let directory = *kind == FileKind::Directory as i32;
    if entry.slash && !directory {
        return Err(Errno::ENOTDIR.into());
    }
    refuse(coming, Checked::Slash)?;
    who.check(&entry.dir_inode, WRITE | EXECUTE)?;
    refuse(coming, Checked::Permission)?;
    let replaces = entry.found.map_or(Ino(0), |dentry| dentry.ino);
    come(view, who, &coming.comes, &entry)?;
    Ok(replaces)
}

fn refuse(coming: &Coming, after: Checked) -> Step<()> {
    match coming.refusal {
        Some(refusal) if refusal.after == after => Err(refusal.errno.into()),
        _ => Ok(()),
    }
}

/// All of it happens.
fn happen(view: &mut View<'_>, record: &TransactionRecord, holders: &Holders) -> Step<()> {
    if let Some(goes) = &record.goes {
        go(view, goes)?;
    }
    let Some(comes) = &record.comes else { return Ok(()) };
    let dir = Ino(comes.dir);
    let dir_inode = view.child(dir)?;
    let found = view.lookup(dir, &dir_inode, &comes.name)?;
    let entry = Entry { dir, dir_inode, name: comes.name.clone(), found, slash: false };
    // Who may do it was asked before.
    come(view, Who::new(None), comes, &entry)?;
    receive(view, Ino(comes.ino), holders);
    Ok(())
}

/// A name goes.
fn go(view: &mut View<'_>, goes: &NameGoes) -> Step<()> {
    let (dir, now) = (Ino(goes.dir), view.now());
    let mut inode = (*view.child(dir)?).clone();
    view.put_name(dir, &goes.name, None);
    inode.entries = inode.entries.saturating_sub(1);
    inode.nlink = inode.nlink.saturating_sub(u32::from(goes.kind == FileKind::Directory as i32));
    modified(&mut inode, now);
    view.put_inode(dir, Arc::new(inode));
    if goes.gives {
        view.give(Ino(goes.ino));
    }
    Ok(())
}

/// A name comes, in the place of what has it.
pub(crate) fn come(view: &mut View<'_>, who: Who<'_>, comes: &NameComes, entry: &Entry) -> Step<()> {
    let (ino, now) = (Ino(comes.ino), view.now());
    let kind = FileKind::try_from(comes.kind).unwrap_or(FileKind::Unspecified);
    if kind == FileKind::Unspecified || !ino.is_valid() {
        return Err(corrupt("name", ino).into());
    }
    let directory = kind == FileKind::Directory;
    if let Some(other) = entry.found {
        replace(view, who, directory, entry, other)?;
    }
    view.put_name(entry.dir, &entry.name, Some(Dentry { ino, kind, remote: false }));
    if !comes.inode.is_empty() {
        let mut inode = decode_inode(ino, &comes.inode)?;
        touch(&mut inode, now);
        inode.parent = entry.dir.0;
        inode.name = Bytes::copy_from_slice(&entry.name);
        view.put_inode(ino, Arc::new(inode));
    }
    // As it is staged: the name may have gone from this very directory.
    let mut dir = (*view.child(entry.dir)?).clone();
    let links = u32::from(directory);
    dir.entries += u64::from(entry.found.is_none());
    dir.nlink = (dir.nlink + links).saturating_sub(if entry.found.is_some() { links } else { 0 });
    modified(&mut dir, now);
    view.put_inode(entry.dir, Arc::new(dir));
    Ok(())
}

fn replace(view: &mut View<'_>, who: Who<'_>, directory: bool, entry: &Entry, other: Dentry) -> Step<()> {
    if let Some(subtree) = view.foreign_root(other.ino) {
        return Err(if directory { view.root_stays(subtree) } else { Errno::EISDIR.into() });
    }
    let victim = view.child(other.ino)?;
    who.check_delete(&entry.dir_inode, &victim)?;
    match (directory, is_dir(&victim)) {
        (true, false) => Err(Errno::ENOTDIR.into()),
        (false, true) => Err(Errno::EISDIR.into()),
        (true, true) => drop_directory(view, other.ino, &victim),
        (false, false) => {
            if crate::resolve::home_elsewhere(view, entry.dir, &entry.name, other.ino, &victim)?.is_some() {
                return Err(view.between_subtrees());
            }
            crate::data::check_idle(view, other.ino)?;
            drop_link(view, entry.dir, &entry.name, other.ino, &victim)
        }
    }
}

/// The handles come with the inode.
fn receive(view: &mut View<'_>, ino: Ino, holders: &Holders) {
    for one in &holders.handles {
        if view.ns.handles.get(one.client, one.handle).is_none() {
            let handle = Handle { ino, flags: one.flags, granted: one.granted, privileged: one.privileged };
            view.change_handle(HandleChange::Open(one.client, one.handle, handle));
        }
    }
    if let (false, (end, true)) = (holders.handles.is_empty(), holders.append) {
        view.change_handle(HandleChange::Append(ino, end));
    }
}

/// The name of a crossing, without the slash that may follow it.
pub(crate) fn name_and_slash(path: &Bytes) -> (Bytes, bool) {
    let length = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    (Bytes::from(BytesMut::from(&path[..length])), length < path.len())
}
