//! One operation's view of the namespace: what is there, overlaid with what the
//! operation is about to change. Reads note the batches they depend on (R6).

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use pando_proto::mds::{FileKind, OperationResult, OrphanRecord};
use pando_proto::{Errno, Error, Ino, Reason, ShardId, SubtreeId};
use smallvec::SmallVec;

use crate::Namespace;
use crate::api::{BatchId, Change, Context, Crossings, Done, Fetch, FollowUp, Outcome, Reads, Write};
use crate::busy::Busy;
use crate::cache::names::{Lookup, Page};
use crate::cache::{Run, Slot};
use crate::handles::{Handle, HandleChange};
use crate::inode::{self, Dentry, Inode, encode};
use crate::inos::Taken;
use crate::records::Key;
use crate::stop::{Step, Stop, corrupt};

/// What a change does in memory.
#[derive(Debug, Default)]
pub struct Memory {
    pub(crate) inodes: SmallVec<[StagedInode; 3]>,
    pub(crate) names: SmallVec<[(Ino, Bytes, Option<Dentry>); 2]>,
    pub(crate) links: SmallVec<[(Ino, Bytes, Option<Dentry>); 1]>,
    pub(crate) bodies: SmallVec<[(Ino, Option<Bytes>); 1]>,
    pub(crate) handles: SmallVec<[HandleChange; 1]>,
    pub(crate) busy: SmallVec<[(Ino, Option<Busy>); 1]>,
    pub(crate) taken: Option<Taken>,
    pub(crate) deferred: SmallVec<[Ino; 1]>,
    /// Inodes that go to another subtree.
    pub(crate) given: SmallVec<[Ino; 1]>,
}

#[derive(Debug)]
pub(crate) struct StagedInode {
    pub ino: Ino,
    pub inode: Option<Arc<Inode>>,
    pub born_empty: bool,
}

/// Fetches that one round may ask for at once.
pub(crate) const MAX_FETCHES: usize = 1024;
/// Entries up to which a directory is fetched whole.
pub(crate) const SMALL_DIRECTORY: u64 = 1024;
/// A whole small directory fits, with names that undurable changes have removed.
const WHOLE_DIRECTORY_LIMIT: u32 = 2 * SMALL_DIRECTORY as u32;
const LINKS_PAGE: u32 = 64;
/// Directories are not this deep: records that say so contradict each other.
pub(crate) const MAX_DEPTH: u32 = 100_000;

pub(crate) struct View<'a> {
    pub ns: &'a mut Namespace,
    pub ctx: &'a Context,
    pub missing: SmallVec<[Fetch; 2]>,
    /// Which target of the request is being resolved.
    pub target: u32,
    /// Targets that go on elsewhere.
    pub crossings: Crossings,
    /// Inodes in memory that were found to belong to others.
    pub foreign: SmallVec<[Ino; 4]>,
    /// Subtrees whose routes have to be raised.
    pub routes: SmallVec<[SubtreeId; 2]>,
    pub reads: Reads,
    /// It is the transaction that holds the locks.
    pub past_locks: bool,
    memory: Memory,
    records: SmallVec<[(Key, Option<Bytes>); 1]>,
    follow_up: SmallVec<[FollowUp; 1]>,
}

impl<'a> View<'a> {
    pub fn new(ns: &'a mut Namespace, ctx: &'a Context) -> Self {
        Self {
            ns,
            ctx,
            missing: SmallVec::new(),
            target: 0,
            crossings: SmallVec::new(),
            foreign: SmallVec::new(),
            routes: SmallVec::new(),
            reads: Reads::new(),
            past_locks: false,
            memory: Memory::default(),
            records: SmallVec::new(),
            follow_up: SmallVec::new(),
        }
    }

    pub fn now(&self) -> i64 {
        self.ctx.now
    }

    pub fn root(&self) -> Ino {
        self.ns.config.root
    }

    fn depends(reads: &mut Reads, batch: Option<BatchId>) {
        if let Some(batch) = batch
            && !reads.contains(&batch)
        {
            reads.push(batch);
        }
    }

    /// Notes that a record is needed; the caller stops, or goes on to find what else is missing.
    pub fn want(&mut self, fetch: Fetch) -> Stop {
        if self.missing.len() < MAX_FETCHES && !self.missing.contains(&fetch) {
            self.missing.push(fetch);
        }
        Stop::Missing
    }

    /// Notes an inode or body as missing, without a search for duplicates.
    fn want_unique(&mut self, key: Key) -> Stop {
        if self.missing.len() < MAX_FETCHES {
            self.missing.push(Fetch::Record(key));
        }
        Stop::Missing
    }

    /// An inode, `None` if there is none.
    pub fn try_inode(&mut self, ino: Ino) -> Step<Option<Arc<Inode>>> {
        if let Some(staged) = self.memory.inodes.iter().find(|staged| staged.ino == ino) {
            return Ok(staged.inode.clone());
        }
        if self.heeds_locks() && self.ns.locks.has_inode(ino) {
            return Err(Stop::Wait(ino));
        }
        match self.ns.cache.node(ino) {
            Some(node) => match &node.inode {
                Slot::Present(inode) => {
                    Self::depends(&mut self.reads, node.stamp.batch);
                    Ok(Some(Arc::clone(inode)))
                }
                Slot::Absent => {
                    Self::depends(&mut self.reads, node.stamp.batch);
                    Ok(None)
                }
                Slot::Unknown => Err(self.want_unique(Key::Inode(ino))),
            },
            None => Err(self.want_unique(Key::Inode(ino))),
        }
    }

    /// An inode that a client named by number: ESTALE if there is none.
    pub fn inode(&mut self, ino: Ino) -> Step<Arc<Inode>> {
        if !ino.is_valid() {
            return Err(Errno::ESTALE.into());
        }
        self.try_inode(ino)?.ok_or(Stop::Posix(Errno::ESTALE))
    }

    /// An inode that a dentry names: it must exist.
    pub fn child(&mut self, ino: Ino) -> Step<Arc<Inode>> {
        self.try_inode(ino)?.ok_or_else(|| corrupt("dentry without inode: record", ino).into())
    }

    /// Whether what a transaction holds is to be waited for.
    fn heeds_locks(&self) -> bool {
        !self.past_locks && !self.ns.locks.is_empty()
    }

    /// The inode is not on its way to another subtree.
    pub fn check_stays(&self, ino: Ino) -> Step<()> {
        if self.heeds_locks() && self.ns.locks.has_inode(ino) { Err(Stop::Wait(ino)) } else { Ok(()) }
    }

    /// No name in the directory is held by a transaction.
    pub fn check_unlocked(&self, dir: Ino) -> Step<()> {
        if self.heeds_locks() && self.ns.locks.is_in(dir) { Err(Stop::Wait(dir)) } else { Ok(()) }
    }

    /// The inode goes to another subtree, with its body and handles. Its records stay where they are.
    pub fn give(&mut self, ino: Ino) {
        self.memory.given.push(ino);
        self.change_handle(HandleChange::Given(ino));
    }

    /// What a name in a directory points to.
    pub fn lookup(&mut self, dir: Ino, inode: &Inode, name: &Bytes) -> Step<Option<Dentry>> {
        let mut staged = self.memory.names.iter();
        if let Some((.., value)) = staged.find(|(of, staged, _)| *of == dir && staged == name) {
            return Ok(*value);
        }
        if self.heeds_locks() && self.ns.locks.has_name(dir, name) {
            return Err(Stop::Wait(dir));
        }
        let (mut found, mut scanned) = (Lookup::Unknown, false);
        if let Some(names) = self.ns.cache.node(dir).and_then(|node| node.names.as_mut()) {
            found = names.lookup(name);
            scanned = names.scanned;
        } else if inode.entries == 0 {
            // The removals that made it empty are in the batch of its inode, noted when that was read.
            self.ns.cache.complete_if_empty(dir);
            found = Lookup::Absent(None);
        }
        match found {
            Lookup::Present(dentry, batch) => {
                Self::depends(&mut self.reads, batch);
                Ok(Some(dentry))
            }
            Lookup::Absent(batch) => {
                Self::depends(&mut self.reads, batch);
                Ok(None)
            }
            Lookup::Unknown if !scanned && inode.entries <= SMALL_DIRECTORY => {
                Err(self.want(Fetch::Dentries { dir, after: Bytes::new(), limit: WHOLE_DIRECTORY_LIMIT }))
            }
            Lookup::Unknown => Err(self.want(Fetch::Record(Key::Dentry(dir, Bytes::copy_from_slice(name))))),
        }
    }

    /// A page of a directory. Not for directories that this operation changed.
    pub fn page(&mut self, dir: Ino, inode: &Inode, after: &Bytes, limit: usize) -> Step<Page> {
        self.check_unlocked(dir)?;
        let mut page = Page { unknown_after: Some(after.clone()), ..Page::default() };
        if let Some(names) = self.ns.cache.node(dir).and_then(|node| node.names.as_ref()) {
            page = names.page(after, limit);
            // Presence and absence alike: all that touched the directory (R6).
            Self::depends(&mut self.reads, names.last_batch);
        } else if inode.entries == 0 {
            return Ok(Page { end: true, ..Page::default() });
        }
        match page.unknown_after {
            Some(after) if page.entries.is_empty() => {
                let limit = u32::try_from(limit).unwrap_or(u32::MAX).max(16);
                Err(self.want(Fetch::Dentries { dir, after, limit }))
            }
            _ => Ok(page),
        }
    }

    /// The content of an inline file.
    pub fn body(&mut self, ino: Ino, inode: &Inode) -> Step<Bytes> {
        if let Some((_, staged)) = self.memory.bodies.iter().find(|(of, _)| *of == ino) {
            return Ok(staged.clone().unwrap_or_default());
        }
        if inode.size == 0 {
            return Ok(Bytes::new());
        }
        let data = match self.ns.cache.body(ino) {
            Some(body) => match &body.data {
                Slot::Present(data) => {
                    let data = data.clone();
                    Self::depends(&mut self.reads, body.stamp.batch);
                    data
                }
                Slot::Absent => return Err(corrupt("missing body", ino).into()),
                Slot::Unknown => return Err(self.want_unique(Key::Body(ino))),
            },
            None => return Err(self.want_unique(Key::Body(ino))),
        };
        // I10: never other bytes than those the inode speaks of.
        if data.len() as u64 == inode.size { Ok(data) } else { Err(corrupt("body of the wrong length", ino).into()) }
    }

    /// Some remaining back link of an inode, as (subtree, directory, name): in a directory of this subtree (`None`)
    /// if there is one.
    pub fn some_link(&mut self, ino: Ino) -> Step<Option<(Option<SubtreeId>, Ino, Bytes)>> {
        let (mut after, mut elsewhere) = (Bytes::new(), None);
        loop {
            let page = self.ns.cache.node(ino).and_then(|node| node.links.as_ref()).map(|links| {
                let page = links.page(&after, LINKS_PAGE as usize);
                (page, links.last_batch)
            });
            let Some((page, batch)) = page else {
                return Err(self.want(Fetch::BackLinks { ino, after, limit: LINKS_PAGE }));
            };
            Self::depends(&mut self.reads, batch);
            for (link, _) in &page.entries {
                let staged = self.memory.links.iter().find(|(of, name, _)| *of == ino && name == link);
                if staged.is_some_and(|(.., value)| value.is_none()) {
                    continue;
                }
                let (dir, name) = split_link(link);
                match self.owner(dir)? {
                    None => return Ok(Some((None, dir, name))),
                    found => elsewhere = elsewhere.or(Some((found, dir, name))),
                }
            }
            if let Some(after) = page.unknown_after {
                return Err(self.want(Fetch::BackLinks { ino, after, limit: LINKS_PAGE }));
            }
            if page.end {
                return Ok(elsewhere);
            }
            after = page.entries.last().map(|(link, _)| link.clone()).unwrap_or_default();
        }
    }

    /// An open handle. `ino` is the client's word for its inode, 0 if it has none: it helps to say who may know
    /// a handle that is not known here (R15).
    pub fn handle(&mut self, number: u64, ino: u64) -> Step<Handle> {
        if let Some(handle) = self.ns.handles.get(self.ctx.client, number) {
            self.ns.heat.at = handle.ino;
            return Ok(handle);
        }
        if self.ctx.awaited {
            let message = "this session's handles are not known here yet: reclaim them, then repeat the request";
            return Err(Error::new(Reason::ReclaimFirst, message).into());
        }
        if ino == 0 || self.alone() {
            return Err(Errno::EBADF.into());
        }
        match self.owner(Ino(ino)) {
            Ok(Some(subtree)) => Err(self.cross_to_inode(subtree, Ino(ino))),
            Ok(None) | Err(Stop::Posix(_)) => Err(Errno::EBADF.into()),
            Err(stop) => Err(stop),
        }
    }

    /// An ino for a new inode of `dir`.
    pub fn take_ino(&mut self, dir: Ino, shard: ShardId) -> Step<Ino> {
        let run = self.ns.cache.peek(dir).map_or(Run::default(), |node| node.run);
        let taken = self.ns.inos.peek(dir, run, shard).ok_or(Stop::NeedInos(shard))?;
        self.memory.taken = Some(taken);
        Ok(taken.ino)
    }

    pub fn put_inode(&mut self, ino: Ino, inode: Arc<Inode>) {
        self.stage_inode(ino, Some(inode), false);
    }

    /// A new directory: nothing is in it, and that is known.
    pub fn put_new_dir(&mut self, ino: Ino, inode: Arc<Inode>) {
        self.stage_inode(ino, Some(inode), true);
    }

    pub fn delete_inode(&mut self, ino: Ino) {
        self.stage_inode(ino, None, false);
    }

    fn stage_inode(&mut self, ino: Ino, inode: Option<Arc<Inode>>, born_empty: bool) {
        match self.memory.inodes.iter_mut().find(|staged| staged.ino == ino) {
            Some(staged) => staged.inode = inode,
            None => self.memory.inodes.push(StagedInode { ino, inode, born_empty }),
        }
    }

    pub fn put_name(&mut self, dir: Ino, name: &Bytes, value: Option<Dentry>) {
        match self.memory.names.iter_mut().find(|(of, staged, _)| *of == dir && staged == name) {
            Some((.., staged)) => *staged = value,
            // Copied, so that it does not keep the request's buffer alive (I8).
            None => self.memory.names.push((dir, Bytes::copy_from_slice(name), value)),
        }
    }

    pub fn put_link(&mut self, ino: Ino, dir: Ino, name: &Bytes, present: bool) {
        let link = join_link(dir, name);
        let value = present.then_some(Dentry { ino, kind: FileKind::File, remote: false });
        match self.memory.links.iter_mut().find(|(of, staged, _)| *of == ino && *staged == link) {
            Some((.., staged)) => *staged = value,
            None => self.memory.links.push((ino, link, value)),
        }
    }

    pub fn put_body(&mut self, ino: Ino, data: Option<Bytes>) {
        match self.memory.bodies.iter_mut().find(|(of, _)| *of == ino) {
            Some((_, staged)) => *staged = data,
            None => self.memory.bodies.push((ino, data)),
        }
    }

    /// A record that the cache does not hold (`o/`, `p/`).
    pub fn put_record(&mut self, key: Key, value: Option<Bytes>) {
        match self.records.iter_mut().find(|(staged, _)| *staged == key) {
            Some((_, staged)) => *staged = value,
            None => self.records.push((key, value)),
        }
    }

    pub fn put_orphan(&mut self, ino: Ino) {
        self.put_record(
            Key::Orphan(ino),
            Some(encode(&OrphanRecord { since: self.ctx.now, subtree: self.ns.config.tag() })),
        );
    }

    pub fn change_handle(&mut self, change: HandleChange) {
        self.memory.handles.push(change);
    }

    pub fn set_busy(&mut self, ino: Ino, busy: Option<Busy>) {
        self.memory.busy.push((ino, busy));
    }

    /// To be reaped when grace ends (R19).
    pub fn defer_reap(&mut self, ino: Ino) {
        self.memory.deferred.push(ino);
    }

    pub fn follow_up(&mut self, follow_up: FollowUp) {
        self.follow_up.push(follow_up);
    }

    /// The change that was staged; `None` if there is none.
    pub fn take_change(&mut self) -> Option<Change> {
        let mut memory = std::mem::take(&mut self.memory);
        let mut writes = Vec::with_capacity(
            memory.inodes.len() + memory.names.len() + memory.bodies.len() + memory.links.len() + self.records.len(),
        );
        for staged in &memory.inodes {
            writes.push(Write { key: Key::Inode(staged.ino), value: staged.inode.as_deref().map(encode) });
        }
        for (dir, name, value) in &memory.names {
            writes.push(Write { key: Key::Dentry(*dir, name.clone()), value: value.map(inode::encode_dentry) });
        }
        for (ino, link, value) in &memory.links {
            let (dir, name) = split_link(link);
            let value = value.map(|_| encode(&pando_proto::mds::BackLinkRecord {}));
            writes.push(Write { key: Key::BackLink(*ino, dir, name), value });
        }
        for (ino, data) in &mut memory.bodies {
            let inode = memory.inodes.iter().find(|staged| staged.ino == *ino).and_then(|staged| staged.inode.as_ref());
            let version = inode.map_or(0, |inode| inode.inline_version);
            let value = data.take().map(|content| {
                let (record, content) = inode::encode_body(version, content);
                *data = Some(content);
                record
            });
            writes.push(Write { key: Key::Body(*ino), value });
        }
        writes.extend(self.records.drain(..).map(|(key, value)| Write { key, value }));
        let follow_up = std::mem::take(&mut self.follow_up);
        let idle = writes.is_empty() && memory.handles.is_empty() && memory.busy.is_empty() && follow_up.is_empty();
        (!idle).then_some(Change { writes, memory, follow_up })
    }

    /// Instead of what was staged: the cut that has to come first. In a batch of its own, as the operation, once
    /// remembered in `q/`, would be answered after a restart before the cut is done again.
    fn cut_first(self, ino: Ino) -> Outcome {
        let mut view = View::new(self.ns, self.ctx);
        let step = crate::data::cut_unreported(&mut view, ino);
        match (step, view.take_change()) {
            (Ok(()), Some(change)) => Outcome::CutFirst(ino, change),
            (Err(Stop::Error(error)), _) => {
                Outcome::Done(Done { result: Err(*error), reads: view.reads, change: None })
            }
            (Err(Stop::Missing), _) => Outcome::Missing(view.missing),
            _ => Outcome::Wait(ino),
        }
    }

    /// The outcome of an operation.
    pub fn finish(mut self, step: Step<OperationResult>, path: &Bytes) -> Outcome {
        if !self.foreign.is_empty() && !matches!(step, Err(Stop::Missing)) {
            self.forget_foreign();
        }
        let result = match step {
            Ok(result) => {
                let change = self.take_change();
                return Outcome::Done(Done { result: Ok(result), reads: self.reads, change });
            }
            Err(Stop::Missing) => return Outcome::Missing(self.missing),
            Err(Stop::Wait(ino)) => return Outcome::Wait(ino),
            Err(Stop::NeedInos(shard)) => return Outcome::NeedInos(shard),
            Err(Stop::NeedSpill(ino)) => return Outcome::NeedSpill(ino),
            Err(Stop::CutFirst(ino)) => return self.cut_first(ino),
            Err(Stop::Cross) => return Outcome::Cross { crossings: self.crossings, reads: self.reads },
            Err(Stop::NeedRoutes) => return Outcome::NeedRoutes(self.routes),
            Err(Stop::NeedMerge(child)) => return Outcome::NeedMerge(child),
            Err(Stop::Across(across)) => return Outcome::Across(across, self.reads),
            Err(Stop::Posix(errno)) => Error::posix(errno).at(path.as_ref()),
            Err(Stop::Error(error)) => *error,
        };
        Outcome::Done(Done { result: Err(result), reads: self.reads, change: None })
    }
}

/// Back links sort by directory, then name, as their keys do.
fn join_link(dir: Ino, name: &[u8]) -> Bytes {
    let mut link = BytesMut::with_capacity(8 + name.len());
    link.put_u64(dir.0);
    link.put_slice(name);
    link.freeze()
}

fn split_link(link: &Bytes) -> (Ino, Bytes) {
    let mut dir = [0; 8];
    dir.copy_from_slice(&link[..8]);
    (Ino(u64::from_be_bytes(dir)), link.slice(8..))
}
