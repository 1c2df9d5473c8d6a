//! What is in memory: inodes with their names, and bodies, each in an LRU list.
//!
//! All bytes are counted where they change (I8). An item that a batch touched
//! carries that batch until it is durable, and is not evicted before (R8).

pub(crate) mod copy;
mod evict;
mod install;
pub(crate) mod join;
pub(crate) mod names;
pub(crate) mod noted;
pub(crate) mod part;
mod pins;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use lru::LruCache;
use pando_proto::Ino;
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::api::{BatchId, CacheUsage};
use crate::inode::{self, Dentry, Inode};
use names::{Names, Stamp};
use noted::{Note, Noted};
use pins::Pins;

/// What is known of a record.
#[derive(Clone, Debug)]
pub(crate) enum Slot<T> {
    Unknown,
    Absent,
    Present(T),
}

/// Consecutive inos for the files of one directory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    pub next: u64,
    pub end: u64,
}

/// An inode with what hangs on it.
#[derive(Debug)]
pub(crate) struct Node {
    pub inode: Slot<Arc<Inode>>,
    pub stamp: Stamp,
    /// Names of a directory.
    pub names: Option<Box<Names>>,
    /// Back links, as (directory, name).
    pub links: Option<Box<Names>>,
    pub run: Run,
    /// Known to belong to this subtree (R15): written here, or found on the way from such a one to the root.
    pub own: bool,
    used: u64,
}

#[derive(Debug)]
pub(crate) struct Body {
    pub data: Slot<Bytes>,
    pub stamp: Stamp,
    used: u64,
}

/// Hash table slot at half fill, boxed list entry, allocation header.
const NODE_BYTES: usize = 48 + size_of::<Node>() + 40;
const BODY_BYTES: usize = 48 + size_of::<Body>() + 40;
/// Allocation and shared counter of a body's bytes, and the head of its record.
const BODY_HEAP_BYTES: usize = 64;
const NAMES_BYTES: usize = size_of::<Names>() + 16;

/// What a batch touched, to be found again when it is durable.
#[derive(Debug)]
enum Touched {
    Inode(Ino),
    Name(Ino, Bytes),
    Link(Ino, Bytes),
    Body(Ino),
}

#[derive(Debug)]
pub(crate) struct Cache {
    nodes: LruCache<Ino, Node, FxBuildHasher>,
    bodies: LruCache<Ino, Body, FxBuildHasher>,
    /// Rises with each change, durability and start of a fetch (R8).
    sequence: u64,
    /// Starts of the fetches in flight.
    fetches: BTreeSet<u64>,
    pins: Pins,
    touched: FxHashMap<BatchId, Vec<Touched>>,
    touched_bytes: usize,
    meta_bytes: usize,
    body_bytes: usize,
    dirty_bytes: usize,
    budget: usize,
    /// Directories that hold more than their share of the budget; evicted by clock, whether hot or not.
    giants: BTreeSet<Ino>,
    /// Items looked at in vain since the last eviction.
    futile: usize,
    /// What changed since a copy of the cache began.
    pub noted: Noted,
    /// Inodes that were given to another subtree while fetches were under way: these bring nothing of them.
    given: FxHashMap<Ino, u64>,
    /// Something was evicted, or not taken in: of a directory that is copied in here parts may be missing.
    partial: bool,
}

impl Node {
    fn new() -> Self {
        Self {
            inode: Slot::Unknown,
            stamp: Stamp::default(),
            names: None,
            links: None,
            run: Run::default(),
            own: false,
            used: 0,
        }
    }

    fn own_cost(&self) -> usize {
        NODE_BYTES + if let Slot::Present(inode) = &self.inode { inode::cost(inode) } else { 0 }
    }

    fn costs(&self) -> (usize, usize) {
        let own = self.own_cost();
        let mut all = own;
        let mut dirty = if self.stamp.batch.is_some() { own } else { 0 };
        for names in [&self.names, &self.links].into_iter().flatten() {
            all += NAMES_BYTES + names.bytes;
            dirty += names.dirty_bytes;
        }
        (all, dirty)
    }

    /// Nothing in it is worth a place.
    fn is_hollow(&self) -> bool {
        !matches!(self.inode, Slot::Present(_))
            && self.stamp.batch.is_none()
            && self.names.as_ref().is_none_or(|names| names.is_empty())
            && self.links.as_ref().is_none_or(|names| names.is_empty())
    }
}

impl Body {
    fn costs(&self) -> (usize, usize) {
        let data = if let Slot::Present(data) = &self.data { data.len() + BODY_HEAP_BYTES } else { 0 };
        let all = BODY_BYTES + data;
        (all, if self.stamp.batch.is_some() { all } else { 0 })
    }
}

impl Cache {
    pub fn new(budget_bytes: u64) -> Self {
        Self {
            nodes: LruCache::unbounded_with_hasher(FxBuildHasher),
            bodies: LruCache::unbounded_with_hasher(FxBuildHasher),
            sequence: 0,
            fetches: BTreeSet::new(),
            pins: Pins::default(),
            touched: FxHashMap::default(),
            touched_bytes: 0,
            meta_bytes: 0,
            body_bytes: 0,
            dirty_bytes: 0,
            budget: usize::try_from(budget_bytes).unwrap_or(usize::MAX),
            giants: BTreeSet::new(),
            futile: 0,
            noted: Noted::default(),
            given: FxHashMap::default(),
            partial: false,
        }
    }

    pub fn set_budget(&mut self, bytes: u64) {
        self.budget = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.futile = 0;
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// A node, made the most recent one.
    pub fn node(&mut self, ino: Ino) -> Option<&mut Node> {
        self.sequence += 1;
        let node = self.nodes.get_mut(&ino)?;
        node.used = self.sequence;
        Some(node)
    }

    /// A node, where it is in the list.
    pub fn peek(&self, ino: Ino) -> Option<&Node> {
        self.nodes.peek(&ino)
    }

    /// A body, where it is in the list.
    pub fn peek_body(&self, ino: Ino) -> Option<&Body> {
        self.bodies.peek(&ino)
    }

    /// A body, made the most recent one.
    pub fn body(&mut self, ino: Ino) -> Option<&Body> {
        self.sequence += 1;
        let body = self.bodies.get_mut(&ino)?;
        body.used = self.sequence;
        Some(body)
    }

    /// Changes a node and counts what that costs. Made if it is not there.
    fn update<R>(&mut self, ino: Ino, change: impl FnOnce(&mut Node) -> R) -> R {
        self.sequence += 1;
        let used = self.sequence;
        let (meta, dirty, budget) = (&mut self.meta_bytes, &mut self.dirty_bytes, self.budget);
        let mut made = false;
        let node = self.nodes.get_or_insert_mut(ino, || {
            made = true;
            Node::new()
        });
        let (bytes_before, dirty_before) = if made { (0, 0) } else { node.costs() };
        node.used = used;
        let result = change(node);
        let (bytes_after, dirty_after) = node.costs();
        *meta = *meta + bytes_after - bytes_before;
        *dirty = *dirty + dirty_after - dirty_before;
        if node.names.as_ref().is_some_and(|names| names.bytes > budget / evict::GIANT_SHARE) {
            self.giants.insert(ino);
        }
        result
    }

    fn update_body<R>(&mut self, ino: Ino, change: impl FnOnce(&mut Body) -> R) -> R {
        self.sequence += 1;
        let used = self.sequence;
        let mut made = false;
        let body = self.bodies.get_or_insert_mut(ino, || {
            made = true;
            Body { data: Slot::Unknown, stamp: Stamp::default(), used }
        });
        let (bytes_before, dirty_before) = if made { (0, 0) } else { body.costs() };
        body.used = used;
        let result = change(body);
        let (bytes_after, dirty_after) = body.costs();
        self.body_bytes = self.body_bytes + bytes_after - bytes_before;
        self.dirty_bytes = self.dirty_bytes + dirty_after - dirty_before;
        result
    }

    /// Takes a node out, if it is there.
    fn remove_node(&mut self, ino: Ino) -> Option<Node> {
        let node = self.nodes.pop(&ino)?;
        let (bytes, dirty) = node.costs();
        self.meta_bytes -= bytes;
        self.dirty_bytes -= dirty;
        self.giants.remove(&ino);
        if node.names.is_some() {
            self.noted.cut(ino);
        }
        Some(node)
    }

    fn remove_body(&mut self, ino: Ino) {
        let Some(body) = self.bodies.pop(&ino) else { return };
        let (bytes, dirty) = body.costs();
        self.body_bytes -= bytes;
        self.dirty_bytes -= dirty;
    }

    fn stamp(&mut self, batch: BatchId) -> Stamp {
        Stamp { changed: self.next_sequence(), batch: Some(batch) }
    }

    fn touch(&mut self, batch: BatchId, touched: Touched) {
        self.touched_bytes += size_of::<Touched>() * 2;
        self.touched.entry(batch).or_default().push(touched);
    }

    /// A new, changed or (`None`) deleted inode. `born_empty`: a new directory, complete from birth.
    pub fn set_inode(&mut self, ino: Ino, inode: Option<Arc<Inode>>, born_empty: bool, batch: BatchId) {
        self.noted.note(|| Note::Inode(ino));
        let stamp = self.stamp(batch);
        let first = self.update(ino, |node| {
            let first = node.stamp.batch != stamp.batch;
            node.inode = inode.map_or(Slot::Absent, Slot::Present);
            node.stamp = stamp;
            node.own = true;
            if born_empty {
                node.names = Some(Box::new(Names::complete()));
            }
            first
        });
        if first {
            self.touch(batch, Touched::Inode(ino));
        }
    }

    pub fn set_name(&mut self, dir: Ino, name: &Bytes, value: Option<Dentry>, batch: BatchId) {
        self.noted.note(|| Note::Name(dir, name.clone()));
        let stamp = self.stamp(batch);
        let first = self.update(dir, |node| names_of(node).set(name, value, stamp));
        if first {
            self.touch(batch, Touched::Name(dir, name.clone()));
        }
    }

    pub fn set_link(&mut self, ino: Ino, link: &Bytes, value: Option<Dentry>, batch: BatchId) {
        let stamp = self.stamp(batch);
        let first = self
            .update(ino, |node| node.links.get_or_insert_with(|| Box::new(Names::unknown())).set(link, value, stamp));
        if first {
            self.touch(batch, Touched::Link(ino, link.clone()));
        }
    }

    pub fn set_body(&mut self, ino: Ino, data: Option<Bytes>, batch: BatchId) {
        self.noted.note(|| Note::Body(ino));
        let stamp = self.stamp(batch);
        let first = self.update_body(ino, |body| {
            let first = body.stamp.batch != stamp.batch;
            body.data = data.map_or(Slot::Absent, Slot::Present);
            body.stamp = stamp;
            first
        });
        if first {
            self.touch(batch, Touched::Body(ino));
        }
    }

    /// A directory whose inode says that it has no entries, and of whose names nothing is in memory, is complete.
    pub fn complete_if_empty(&mut self, dir: Ino) {
        self.update(dir, |node| {
            if node.names.is_none() && matches!(&node.inode, Slot::Present(inode) if inode.entries == 0) {
                node.names = Some(Box::new(Names::complete()));
            }
        });
    }

    /// It was found to belong to this subtree.
    pub fn mark_own(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.peek_mut(&ino) {
            node.own = true;
        }
    }

    /// It was found to belong to another subtree: what is known of it may be old by now.
    pub fn forget_foreign(&mut self, ino: Ino) {
        let foreign = self.nodes.peek(&ino).is_some_and(|node| !node.own && node.costs().1 == 0);
        if foreign && self.nodes.peek(&ino).is_some_and(|node| self.settled(node.stamp.changed)) {
            self.remove_node(ino);
        }
    }

    /// It belongs to another subtree from now on: nothing is known of it.
    pub fn give(&mut self, ino: Ino) {
        self.noted.note(|| Note::Inode(ino));
        self.noted.note(|| Note::Body(ino));
        self.remove_node(ino);
        self.remove_body(ino);
        if !self.fetches.is_empty() {
            let now = self.next_sequence();
            self.given.insert(ino, now);
        }
    }

    pub fn set_run(&mut self, dir: Ino, run: Run) {
        self.update(dir, |node| node.run = run);
    }

    /// What the batch touched last is clean.
    pub fn durable(&mut self, batch: BatchId) {
        let Some(touched) = self.touched.remove(&batch) else { return };
        self.touched_bytes -= touched.len() * size_of::<Touched>() * 2;
        // Counted as a change: a fetch under way may have read the state before (R8).
        let changed = self.next_sequence();
        let droppable = self.fetches.is_empty();
        let clean = Stamp { changed, batch: None };
        for item in touched {
            match item {
                Touched::Inode(ino) => {
                    self.clean_node(ino, |node| {
                        if node.stamp.batch == Some(batch) {
                            node.stamp = clean;
                        }
                    });
                    let gone = self.nodes.peek(&ino).is_some_and(|node| {
                        matches!(node.inode, Slot::Absent) && node.is_hollow() && node.stamp.changed == changed
                    });
                    if gone && droppable {
                        self.remove_node(ino);
                    }
                }
                Touched::Name(dir, name) => self.clean_node(dir, |node| {
                    if let Some(names) = &mut node.names {
                        names.clean(&name, batch, changed, droppable);
                    }
                }),
                Touched::Link(ino, link) => self.clean_node(ino, |node| {
                    if let Some(links) = &mut node.links {
                        links.clean(&link, batch, changed, droppable);
                    }
                }),
                Touched::Body(ino) => self.clean_body(ino, batch, clean, droppable),
            }
        }
        self.futile = 0;
    }

    /// Like `update`, without making the node or moving it in the list.
    fn clean_node(&mut self, ino: Ino, change: impl FnOnce(&mut Node)) {
        let Some(node) = self.nodes.peek_mut(&ino) else { return };
        let (bytes_before, dirty_before) = node.costs();
        change(node);
        let (bytes_after, dirty_after) = node.costs();
        self.meta_bytes = self.meta_bytes + bytes_after - bytes_before;
        self.dirty_bytes = self.dirty_bytes + dirty_after - dirty_before;
    }

    fn clean_body(&mut self, ino: Ino, batch: BatchId, clean: Stamp, droppable: bool) {
        let Some(body) = self.bodies.peek_mut(&ino) else { return };
        if body.stamp.batch != Some(batch) {
            return;
        }
        self.dirty_bytes -= body.costs().1;
        body.stamp = clean;
        if droppable && matches!(body.data, Slot::Absent) {
            self.remove_body(ino);
        }
    }

    /// Nobody waits for anything, and no copy is under way.
    pub fn begin_epoch(&mut self) {
        self.pins = Pins::default();
        self.fetches.clear();
        self.noted.end();
        self.futile = 0;
    }

    /// All that was changed is durable.
    pub fn is_clean(&self) -> bool {
        self.touched.is_empty() && self.dirty_bytes == 0
    }

    pub fn usage(&self, handle_bytes: usize) -> CacheUsage {
        let fixed = self.touched_bytes + handle_bytes + self.noted.bytes() + self.pins.bytes();
        CacheUsage {
            meta_bytes: (self.meta_bytes + fixed) as u64,
            body_bytes: self.body_bytes as u64,
            pinned_bytes: (self.dirty_bytes + fixed) as u64,
            inodes: self.nodes.len() as u64,
            bodies: self.bodies.len() as u64,
        }
    }
}

/// The names of a directory's node, made if need be.
fn names_of(node: &mut Node) -> &mut Names {
    let empty = matches!(&node.inode, Slot::Present(inode) if inode.entries == 0);
    node.names.get_or_insert_with(|| Box::new(if empty { Names::complete() } else { Names::unknown() }))
}
