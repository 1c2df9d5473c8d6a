//! Several subtrees over one store, with a client that follows crossings and remembers routes, against the model
//! of one tree: splits, merges and moves at any time change nothing. What concerns names and inodes of several
//! subtrees is a transaction. Nothing is lost.

mod client;
mod random;
mod transaction;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use pando_mds_core::api::{BatchId, Change, Context, Done, Fetch, Located, Outcome, Write};
use pando_mds_core::records::Key;
use pando_mds_core::{Config, Export, Namespace, Tree};
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::{self, CacheItem, Operation, OrphanRecord, Target};
use pando_proto::{ClientId, Errno, Error, Ino, Reason, ShardId, SubtreeId};
use prost::Message as _;

use crate::model::{Id, Model, ROOT};
use crate::rig::{Store, ino_of, read_store, write};
use transaction::Became;

pub const ROOT_SUBTREE: SubtreeId = SubtreeId(1);
const CLIENTS: [u64; 2] = [1, 2];

/// A subtree in the map.
#[derive(Clone, Debug)]
pub struct Entry {
    pub root: Ino,
    /// The same in the model.
    pub id: Id,
    pub parent: Option<(SubtreeId, Ino)>,
    pub route: u64,
}

/// Which caches go on after a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmth {
    None,
    Parent,
    Both,
}

/// A subtree where it is served.
pub struct Served {
    pub ns: Namespace,
    pending: VecDeque<(BatchId, Vec<Write>)>,
    next_batch: u64,
    /// Sessions that have not said what they hold.
    awaited: BTreeSet<u64>,
    pub export: Option<(Export, Vec<CacheItem>)>,
    waiters: u64,
}

pub struct Forest {
    pub config: Config,
    pub store: Store,
    pub map: BTreeMap<SubtreeId, Entry>,
    pub served: BTreeMap<SubtreeId, Served>,
    /// Into what a subtree was merged.
    pub merged: BTreeMap<SubtreeId, SubtreeId>,
    pub model: Model,
    pub now: i64,
    pub page: usize,
    pub client: client::Client,
    next_number: BTreeMap<ShardId, u64>,
    next_subtree: u64,
}

/// What became of an operation at one subtree.
pub enum Answer {
    Done(Result<Reply, Error>),
    Cross(Vec<pando_mds_core::api::Crossing>),
}

impl Served {
    fn new(ns: Namespace) -> Self {
        let (pending, awaited) = (VecDeque::new(), BTreeSet::new());
        Self { ns, pending, next_batch: 1, awaited, export: None, waiters: 0 }
    }
}

impl Forest {
    pub fn new(config: Config) -> Self {
        let entry = Entry { root: Ino::ROOT, id: ROOT, parent: None, route: 1 };
        let mut forest = Self {
            map: BTreeMap::from([(ROOT_SUBTREE, entry)]),
            served: BTreeMap::from([(ROOT_SUBTREE, Served::new(Namespace::new(config.clone())))]),
            config,
            store: Store::new(),
            merged: BTreeMap::new(),
            model: Model::new(),
            now: 0,
            page: 1000,
            client: client::Client::default(),
            next_number: BTreeMap::new(),
            next_subtree: 2,
        };
        let served = forest.at(ROOT_SUBTREE);
        let root = served.ns.make_root(&Context::default()).unwrap();
        commit(served, root);
        forest.flush(ROOT_SUBTREE);
        forest
    }

    pub fn at(&mut self, subtree: SubtreeId) -> &mut Served {
        self.served.get_mut(&subtree).unwrap()
    }

    fn context(&self, subtree: SubtreeId, client: u64) -> Context {
        let awaited = self.served[&subtree].awaited.contains(&client);
        Context { now: self.now, client: ClientId(client), awaited, ..Context::default() }
    }

    /// The oldest batch of a subtree becomes durable.
    pub fn durable(&mut self, subtree: SubtreeId) {
        let served = self.served.get_mut(&subtree).unwrap();
        let Some((batch, writes)) = served.pending.pop_front() else { return };
        writes.iter().for_each(|one| write(&mut self.store, one));
        served.ns.durable(batch);
    }

    pub fn flush(&mut self, subtree: SubtreeId) {
        while !self.served[&subtree].pending.is_empty() {
            self.durable(subtree);
        }
    }

    fn fetch(&mut self, subtree: SubtreeId, fetches: &[Fetch], waiter: Option<u64>) {
        assert!(!fetches.is_empty());
        let served = self.served.get_mut(&subtree).unwrap();
        for fetch in fetches {
            let token = served.ns.begin_fetch(fetch);
            if let Some(waiter) = waiter {
                served.ns.pin(waiter, fetch);
            }
            served.ns.install(token, read_store(&self.store, self.page, fetch)).unwrap();
            served.ns.evict(20);
        }
    }

    /// Somebody at a subtree asks for an inode by its number, and goes away when the first records are there.
    pub fn look_at(&mut self, subtree: SubtreeId, ino: Ino) {
        let target = Some(Target { base: ino.0, path: Default::default() });
        let stat = mds::StatRequest { caller: None, target, follow: true };
        let operation = Operation { op: Some(Op::Stat(stat)) };
        let context = self.context(subtree, 1);
        for _ in 0..2 {
            if let Outcome::Missing(fetches) = self.at(subtree).ns.apply(&operation, &context) {
                self.fetch(subtree, &fetches, None);
            }
        }
    }

    fn add_inos(&mut self, subtree: SubtreeId, shard: ShardId) {
        let next = self.next_number.entry(shard).or_insert(2);
        let first = Ino::new(shard, *next).unwrap();
        *next += 100;
        self.at(subtree).ns.add_inos(first, 100);
    }

    /// Runs an operation at one subtree, to its answer there.
    pub fn run_at(&mut self, subtree: SubtreeId, client: u64, operation: &Operation) -> Answer {
        let mut context = self.context(subtree, client);
        if matches!(operation.op, Some(Op::Rename(_) | Op::Link(_) | Op::Unlink(_) | Op::Rmdir(_))) {
            // Whoever asks has heard that it is done: of inodes of other subtrees the pool knows.
            let others: Vec<_> = self.served.keys().copied().filter(|other| *other != subtree).collect();
            others.into_iter().for_each(|other| self.flush(other));
        }
        let served = self.at(subtree);
        served.waiters += 1;
        let waiter = served.waiters;
        for _ in 0..5000 {
            match self.at(subtree).ns.apply(operation, &context) {
                Outcome::Missing(fetches) => self.fetch(subtree, &fetches, Some(waiter)),
                Outcome::NeedInos(shard) => self.add_inos(subtree, shard),
                Outcome::NeedRoutes(children) => {
                    assert!(!children.is_empty());
                    for child in children {
                        assert!(!context.routes.contains(&child), "R16: {child} is asked for once");
                        assert_eq!(self.map[&child].parent.unwrap().0, subtree, "R16: a child");
                        context.routes.push(child);
                        self.raise(child);
                    }
                }
                Outcome::NeedMerge(child) => {
                    self.at(subtree).ns.unpin(waiter);
                    return match self.merge_if_empty(child) {
                        Ok(()) => self.run_at(subtree, client, operation),
                        Err(error) => Answer::Done(Err(error)),
                    };
                }
                Outcome::Cross { crossings, reads } => {
                    let last = reads.iter().max().copied();
                    let pending = |served: &Served| served.pending.front().map(|(batch, _)| *batch);
                    while last.is_some_and(|last| pending(&self.served[&subtree]).is_some_and(|batch| batch <= last)) {
                        self.durable(subtree);
                    }
                    self.at(subtree).ns.unpin(waiter);
                    return Answer::Cross(crossings.into_vec());
                }
                Outcome::Across(across, _) => {
                    match self.transact(subtree, *across) {
                        Became::Done(result) => {
                            self.at(subtree).ns.unpin(waiter);
                            return Answer::Done(result);
                        }
                        Became::Cross(crossing) => {
                            self.at(subtree).ns.unpin(waiter);
                            return Answer::Cross(vec![crossing]);
                        }
                        Became::Again => {}
                    }
                    context.awaited = self.context(subtree, client).awaited;
                }
                Outcome::Done(Done { result: Err(error), .. }) if error.reason == Reason::Unavailable => {
                    // R19: who has it open is to be known before it is given away.
                    CLIENTS.iter().for_each(|client| self.come_back(*client, true));
                    context.awaited = self.context(subtree, client).awaited;
                }
                Outcome::Done(done) => {
                    let served = self.at(subtree);
                    served.ns.unpin(waiter);
                    if let Some(change) = done.change {
                        commit(served, change);
                    }
                    return Answer::Done(done.result.map(|result| result.result.unwrap()));
                }
                other => panic!("{operation:?}: {other:?}"),
            }
        }
        panic!("no progress: {operation:?}");
    }

    /// R16: the route to a subtree and to all below it.
    fn raise(&mut self, subtree: SubtreeId) {
        let mut raised = vec![subtree];
        while let Some(subtree) = raised.pop() {
            self.map.get_mut(&subtree).unwrap().route += 1;
            let below = |entry: &Entry| entry.parent.is_some_and(|(parent, _)| parent == subtree);
            raised.extend(self.map.iter().filter(|(_, entry)| below(entry)).map(|(id, _)| *id));
        }
    }

    /// Everyone sees the map.
    fn map_changed(&mut self) {
        let roots = self.map.iter().map(|(id, entry)| (entry.root, *id)).collect();
        let forest = Arc::new(pando_mds_core::Forest { roots, merged: self.merged.clone() });
        for (subtree, served) in &mut self.served {
            let children = self.map.iter().filter_map(|(id, entry)| {
                let (parent, dir) = entry.parent?;
                (parent == *subtree).then_some((*id, dir))
            });
            served.ns.set_tree(Tree {
                subtree: *subtree,
                parent: self.map[subtree].parent,
                forest: Arc::clone(&forest),
                children: children.collect(),
            });
        }
    }

    /// A new epoch: the sessions are awaited (R19).
    fn open(&mut self, subtree: SubtreeId, ns: Namespace) {
        let mut served = Served::new(ns);
        served.ns.begin_grace();
        served.awaited = CLIENTS.into();
        self.served.insert(subtree, served);
    }

    /// A session has said what it holds.
    pub fn reclaimed(&mut self, subtree: SubtreeId, client: u64) {
        let served = self.at(subtree);
        if !served.awaited.remove(&client) || !served.awaited.is_empty() {
            return;
        }
        let mut orphans: BTreeSet<Ino> = served.ns.end_grace().into_iter().collect();
        let records = self.store.range(bytes::Bytes::from_static(b"o")..bytes::Bytes::from_static(b"p"));
        for (key, value) in records {
            let tag = OrphanRecord::decode(&value[1..]).unwrap().subtree;
            let mut owner = SubtreeId(tag.max(1));
            while let Some(into) = self.merged.get(&owner) {
                owner = *into;
            }
            if owner == subtree {
                orphans.insert(ino_of(key));
            }
        }
        orphans.into_iter().for_each(|ino| self.reap(subtree, ino));
    }

    pub fn reap(&mut self, subtree: SubtreeId, ino: Ino) {
        let context = self.context(subtree, 0);
        let served = self.at(subtree);
        served.waiters += 1;
        let waiter = served.waiters;
        loop {
            match self.at(subtree).ns.reap_orphan(ino, &context) {
                Outcome::Missing(fetches) => self.fetch(subtree, &fetches, Some(waiter)),
                Outcome::Done(done) => {
                    self.at(subtree).ns.unpin(waiter);
                    done.result.unwrap();
                    if let Some(change) = done.change {
                        commit(self.at(subtree), change);
                    }
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn cancel_export(&mut self, subtree: SubtreeId) {
        let served = self.at(subtree);
        if let Some((export, _)) = served.export.take() {
            served.ns.cancel_export(export);
        }
    }

    /// Finds a directory, wherever it is, and splits it off; false if it cannot be.
    pub fn split(&mut self, path: &str, warm: bool) -> bool {
        let mut target = Target { base: 0, path: path.to_owned().into() };
        let mut subtree = ROOT_SUBTREE;
        for _ in 0..40 {
            let context = self.context(subtree, 0);
            match self.at(subtree).ns.locate(&target, &context) {
                Located::Missing(fetches) => self.fetch(subtree, &fetches, None),
                Located::Cross(crossings) => {
                    let crossing = &crossings[0];
                    subtree = crossing.subtree;
                    target = Target { base: crossing.base.0, path: crossing.path.clone() };
                }
                Located::Refused(_) => return false,
                Located::Directory { ino, parent_dir, .. } => {
                    let id = self.model.find(0, path, true).unwrap();
                    self.split_at(subtree, ino, parent_dir, id, warm);
                    return true;
                }
            }
        }
        false
    }

    fn split_at(&mut self, parent: SubtreeId, root: Ino, parent_dir: Ino, id: Id, warm: bool) {
        // Somebody waits for a fetch that never comes back.
        let fetch = Fetch::Record(Key::Inode(root));
        let ns = &mut self.at(parent).ns;
        ns.begin_fetch(&fetch);
        ns.pin(u64::MAX, &fetch);
        let adopted = loop {
            match self.at(parent).ns.children_below(root) {
                Ok(children) => break children,
                Err(fetches) => self.fetch(parent, &fetches, None),
            }
        };
        self.cancel_export(parent);
        self.flush(parent);
        assert!(self.at(parent).ns.is_quiet());
        let child = SubtreeId(self.next_subtree);
        self.next_subtree += 1;
        self.map.insert(child, Entry { root, id, parent: Some((parent, parent_dir)), route: 1 });
        for adopted in adopted {
            self.map.get_mut(&adopted).unwrap().parent.as_mut().unwrap().0 = child;
        }
        let config = Config { subtree: child, root, ..self.config.clone() };
        let mut old = self.served.remove(&parent).unwrap().ns;
        let (old, new) = if warm {
            let before = old.usage();
            let mut splitting = old.begin_split(root, config);
            while old.split_slice(&mut splitting, 3) {}
            let new = old.end_split(splitting);
            old.begin_epoch();
            let after = old.usage().inodes + new.usage().inodes;
            assert!(after <= before.inodes, "nothing is in both");
            (old, new)
        } else {
            (Namespace::new(old.config().clone()), Namespace::new(config))
        };
        self.open(parent, old);
        self.open(child, new);
        self.map_changed();
    }

    /// As a shell does before the root of a subtree is removed or replaced.
    fn merge_if_empty(&mut self, child: SubtreeId) -> Result<(), Error> {
        let entry = self.map[&child].clone();
        let parents = self.map.values().any(|entry| entry.parent.is_some_and(|(above, _)| above == child));
        if parents || !self.model.node(entry.id).names.is_empty() {
            return Err(Error::posix(Errno::ENOTEMPTY));
        }
        let warm = [Warmth::Both, Warmth::Parent, Warmth::None][self.now as usize % 3];
        self.merge(child, warm);
        Ok(())
    }

    /// Merges a subtree without children into its parent, with the caches of both, of the parent, or of none.
    pub fn merge(&mut self, child: SubtreeId, warm: Warmth) {
        let Some((parent, _)) = self.map[&child].parent else { return };
        if self.map.values().any(|entry| entry.parent.is_some_and(|(above, _)| above == child)) {
            return;
        }
        self.cancel_export(parent);
        self.flush(parent);
        self.flush(child);
        self.rename_root(child);
        self.flush(child);
        self.map.remove(&child);
        let part = self.served.remove(&child).unwrap().ns;
        self.merged.insert(child, parent);
        let mut whole = self.served.remove(&parent).unwrap().ns;
        let part = if warm == Warmth::Both { part } else { Namespace::new(part.config().clone()) };
        if warm == Warmth::None {
            whole = Namespace::new(whole.config().clone());
        } else {
            let before = whole.usage().inodes + part.usage().inodes;
            let mut joining = whole.begin_join(part);
            while whole.join_slice(&mut joining, 3) {}
            whole.end_join(joining);
            whole.begin_epoch();
            assert!(whole.usage().inodes <= before, "nothing is made up");
        }
        self.open(parent, whole);
        self.map_changed();
    }

    /// Starts to copy the cache, or copies on; when all was copied once, sends rounds of what has changed.
    pub fn copy(&mut self, subtree: SubtreeId, max_bytes: usize) {
        let served = self.at(subtree);
        let mut copying = served.export.take().unwrap_or_else(|| (served.ns.begin_export(), Vec::new()));
        let slice = served.ns.export_slice(&mut copying.0, max_bytes);
        let slice = slice.or_else(|| served.ns.export_round(&mut copying.0, max_bytes));
        copying.1.extend(slice.unwrap_or_default());
        served.export = Some(copying);
    }

    /// The subtree moves: with what was copied, with what has changed since.
    pub fn hand_over(&mut self, subtree: SubtreeId, cramped: bool) {
        self.flush(subtree);
        let served = self.at(subtree);
        let (export, mut items) = served.export.take().unwrap_or_else(|| (served.ns.begin_export(), Vec::new()));
        let mut delta = served.ns.export_delta(export);
        while let Some(slice) = delta.next(&mut served.ns, 100) {
            items.extend(slice);
        }
        let budget_bytes = served.ns.config().budget_bytes;
        let mut ns = Namespace::new(served.ns.config().clone());
        if cramped {
            let usage = served.ns.usage();
            ns.set_budget((usage.meta_bytes + usage.body_bytes) / 2);
        }
        for item in items {
            // As it travels.
            let item = CacheItem::decode(item.encode_to_vec().as_slice()).unwrap();
            ns.import(vec![item]).unwrap();
        }
        ns.set_budget(budget_bytes);
        self.open(subtree, ns);
        self.map_changed();
    }

    /// The subtree of a directory of the model.
    pub fn subtree_of(&self, mut id: Id) -> SubtreeId {
        loop {
            if let Some((subtree, _)) = self.map.iter().find(|(_, entry)| entry.id == id) {
                return *subtree;
            }
            id = self.model.node(id).parent;
        }
    }

    /// The subtrees with a name of it.
    pub fn subtrees_with(&self, id: Id) -> BTreeSet<SubtreeId> {
        let dirs = self.model.nodes.iter().filter(|(_, node)| node.names.values().any(|named| *named == id));
        dirs.map(|(dir, _)| self.subtree_of(*dir)).collect()
    }

    pub fn is_root(&self, id: Id) -> bool {
        self.map.values().any(|entry| entry.id == id)
    }

    /// No record is left of what is not in the model.
    pub fn end(mut self) {
        for client in CLIENTS {
            self.close_all(client);
        }
        let subtrees: Vec<_> = self.served.keys().copied().collect();
        for subtree in &subtrees {
            CLIENTS.iter().for_each(|client| self.reclaimed(*subtree, *client));
            self.cancel_export(*subtree);
            self.rename_root(*subtree);
            self.flush(*subtree);
        }
        crate::random::check_store(&self.store, &self.model, &Default::default());
        for subtree in subtrees {
            let ns = &mut self.at(subtree).ns;
            while ns.evict(100) {}
            let usage = ns.usage();
            assert_eq!(usage.pinned_bytes, 0, "nothing is dirty, open or pinned");
            assert!(usage.meta_bytes + usage.body_bytes <= ns.config().budget_bytes, "I8: {usage:?}");
        }
        assert!(!self.store.contains_key(&Key::Orphan(Ino::ROOT).encode()));
    }
}

fn commit(served: &mut Served, change: Change) {
    assert!(change.follow_up.is_empty(), "no objects here");
    if change.writes.is_empty() {
        return served.ns.commit_memory(change);
    }
    let batch = BatchId(served.next_batch);
    served.next_batch += 1;
    let writes = change.writes.clone();
    served.ns.commit(change, batch);
    served.pending.push_back((batch, writes));
}
