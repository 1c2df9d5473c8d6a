//! A small shell: fetches from a map, commits to it late, spills at once, purges at once or late.

mod objects;
mod ops;
mod speaking;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use pando_mds_core::api::{BatchId, Change, Context, Fetch, FetchToken, Fetched, FollowUp, Outcome, Write};
use pando_mds_core::records::Key;
use pando_mds_core::{Config, Namespace};
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;
use pando_proto::{ClientId, Errno, Error, Ino, ShardId};

use crate::model::Model;
pub use objects::Objects;
pub use ops::*;

pub const INLINE_LIMIT: u64 = 64;
pub const OBJECT_SIZE: u64 = 32;

pub fn config() -> Config {
    Config { inline_limit: INLINE_LIMIT, object_size: OBJECT_SIZE, budget_bytes: 64 << 20, ..Config::default() }
}

/// A batch that is not durable yet, with the state of the model after it.
pub struct Pending {
    pub batch: BatchId,
    pub writes: Vec<Write>,
    follow_up: Vec<FollowUp>,
    pub after: Model,
}

pub type Store = BTreeMap<Bytes, Bytes>;

pub struct Rig {
    pub ns: Namespace,
    pub store: Store,
    pub pending: VecDeque<Pending>,
    pub objects: Objects,
    /// Purges that are due; done at once unless `late_purges`.
    pub purges: VecDeque<(Ino, PurgeRecord)>,
    pub late_purges: bool,
    pub model: Model,
    /// The model as of the last durable batch.
    pub durable_model: Model,
    pub now: i64,
    pub page: usize,
    /// Fetches that were begun and read the store, not yet installed (R8).
    pub late: Vec<(FetchToken, Fetched)>,
    pub fetches: u64,
    next_batch: u64,
    next_number: BTreeMap<ShardId, u64>,
    waiters: u64,
    /// Reads of the last operation.
    pub reads: Vec<BatchId>,
    pub changed: bool,
}

pub fn read_store(store: &Store, page: usize, fetch: &Fetch) -> Fetched {
    match fetch {
        Fetch::Record(key) => Fetched::Record(key.clone(), store.get(&key.encode()).cloned()),
        Fetch::Dentries { dir, after, limit } => {
            let (start, stop) = Key::dentries_after(*dir, after);
            let take = page.min(*limit as usize);
            let mut entries: Vec<_> = store.range(start..stop).take(take + 1).collect();
            let end = entries.len() <= take;
            entries.truncate(take);
            let entries = entries.into_iter().map(|(key, value)| (key.slice(9..), value.clone())).collect();
            Fetched::Dentries { dir: *dir, after: after.clone(), entries, end }
        }
        Fetch::BackLinks { ino, after, limit } => {
            let (start, stop) = Key::back_links_after(*ino, after);
            let take = page.min(*limit as usize);
            let mut links: Vec<_> = store.range(start..stop).take(take + 1).map(|(key, _)| key.slice(9..)).collect();
            let end = links.len() <= take;
            links.truncate(take);
            Fetched::BackLinks { ino: *ino, after: after.clone(), links, end }
        }
    }
}

pub fn write(store: &mut Store, write: &Write) {
    match &write.value {
        Some(value) => store.insert(write.key.encode(), value.clone()),
        None => store.remove(&write.key.encode()),
    };
}

impl Rig {
    pub fn new(config: Config) -> Self {
        let mut rig = Self {
            ns: Namespace::new(config),
            store: Store::new(),
            pending: VecDeque::new(),
            objects: Objects::default(),
            purges: VecDeque::new(),
            late_purges: false,
            model: Model::new(),
            durable_model: Model::new(),
            now: 0,
            page: 1000,
            late: Vec::new(),
            fetches: 0,
            next_batch: 1,
            next_number: BTreeMap::new(),
            waiters: 0,
            reads: Vec::new(),
            changed: false,
        };
        let root = rig.ns.make_root(&rig.context(ClientId(0))).unwrap();
        rig.commit(root);
        rig.flush();
        rig
    }

    fn context(&self, client: ClientId) -> Context {
        Context { now: self.now, client, ..Context::default() }
    }

    pub fn commit(&mut self, change: Change) {
        let mut keys: Vec<_> = change.writes.iter().map(|write| write.key.clone()).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), change.writes.len(), "each key at most once");
        if change.writes.is_empty() {
            assert!(change.follow_up.is_empty());
            return self.ns.commit_memory(change);
        }
        let batch = BatchId(self.next_batch);
        self.next_batch += 1;
        let (writes, follow_up) = (change.writes.clone(), change.follow_up.to_vec());
        self.ns.commit(change, batch);
        self.pending.push_back(Pending { batch, writes, follow_up, after: self.model.clone() });
    }

    /// The oldest batch becomes durable, and its purges are due.
    pub fn durable(&mut self) {
        let Some(pending) = self.pending.pop_front() else { return };
        for one in &pending.writes {
            write(&mut self.store, one);
        }
        self.ns.durable(pending.batch);
        self.durable_model = pending.after;
        for FollowUp::Purge(ino, record) in pending.follow_up {
            self.purge_later(ino, record);
        }
    }

    fn purge_later(&mut self, ino: Ino, record: PurgeRecord) {
        self.purges.push_back((ino, record));
        if !self.late_purges {
            self.purge();
        }
    }

    /// Does the purges that are due.
    pub fn purge(&mut self) {
        while let Some((ino, record)) = self.purges.pop_front() {
            self.purge_one(ino, &record);
        }
    }

    pub fn purge_one(&mut self, ino: Ino, record: &PurgeRecord) {
        let (size, from) = (record.object_size, record.from);
        let bytes = self.objects.file(ino).1;
        assert!(bytes.len() as u64 <= record.max_size, "R23: objects lie below max_size");
        if !from.is_multiple_of(size) {
            self.objects.trim(ino, from / size, record.generation, Some((from % size) as usize));
        }
        for index in from.div_ceil(size)..record.max_size.div_ceil(size) {
            self.objects.trim(ino, index, record.generation, None);
        }
        let done = self.ns.purge_done(ino);
        self.commit(done);
    }

    pub fn flush(&mut self) {
        while !self.pending.is_empty() {
            self.durable();
        }
    }

    pub fn add_inos(&mut self, shard: ShardId) {
        let next = self.next_number.entry(shard).or_insert(2);
        self.ns.add_inos(Ino::new(shard, *next).unwrap(), 100);
        *next += 100;
    }

    /// Runs an operation to its end.
    pub fn run_as(&mut self, client: ClientId, op: Op) -> Result<Reply, Error> {
        let operation = Operation { op: Some(op) };
        self.waiters += 1;
        let waiter = self.waiters;
        self.changed = false;
        for _round in 0..5000 {
            let context = self.context(client);
            match self.ns.apply(&operation, &context) {
                Outcome::Done(done) => {
                    self.ns.unpin(waiter);
                    self.reads = done.reads.to_vec();
                    if let Some(change) = done.change {
                        self.changed = !change.writes.is_empty();
                        self.commit(change);
                    }
                    return done.result.map(|result| result.result.unwrap());
                }
                Outcome::Missing(fetches) => self.fetch(waiter, &fetches),
                Outcome::Wait(ino) => {
                    assert!(self.ns.is_blocked(ino), "Wait names a blocked ino");
                    self.unblock(ino);
                }
                Outcome::CutFirst(ino, change) => {
                    self.commit(change);
                    self.unblock(ino);
                }
                Outcome::NeedInos(shard) => self.add_inos(shard),
                Outcome::NeedSpill(ino) => self.spill(ino),
                other => panic!("one subtree alone: {other:?}"),
            }
        }
        panic!("no progress: {operation:?}");
    }

    fn unblock(&mut self, ino: Ino) {
        self.flush();
        self.purge();
        assert!(!self.ns.is_blocked(ino), "the purge ended the blocking");
    }

    fn fetch(&mut self, waiter: u64, fetches: &[Fetch]) {
        assert!(!fetches.is_empty());
        for fetch in fetches {
            self.fetches += 1;
            let token = self.ns.begin_fetch(fetch);
            self.ns.pin(waiter, fetch);
            let fetched = read_store(&self.store, self.page, fetch);
            // Whatever else is evicted, what this operation needs stays (R8).
            self.ns.install(token, fetched).unwrap();
            self.ns.evict(20);
        }
    }

    pub fn spill(&mut self, ino: Ino) {
        if self.ns.is_blocked(ino) {
            return self.unblock(ino);
        }
        let context = self.context(ClientId(0));
        let (intent, body) = self.ns.spill_intent(ino, 1000, &context).unwrap();
        self.commit(intent);
        self.flush();
        let placement = self.inode(ino).unwrap();
        self.put_objects(ino, placement.spill_generation, 0, &body);
        self.ns.evict(1000);
        let finish = self.ns.spill_finish(ino).unwrap();
        self.commit(finish);
    }

    /// The durable record.
    pub fn inode(&self, ino: Ino) -> Option<InodeRecord> {
        let value = self.store.get(&Key::Inode(ino).encode())?;
        Some(prost::Message::decode(&value[1..]).unwrap())
    }

    /// The process dies: what is not durable is lost, with all sessions.
    pub fn restart(&mut self, config: Config) {
        self.model = self.durable_model.clone();
        self.model.close_all(None);
        self.pending.clear();
        self.late.clear();
        self.purges.clear();
        self.ns = Namespace::new(config);
        let purges: Vec<(Ino, PurgeRecord)> = self
            .store
            .range(Bytes::from_static(b"p")..Bytes::from_static(b"q"))
            .map(|(key, value)| (ino_of(key), prost::Message::decode(&value[1..]).unwrap()))
            .collect();
        for (ino, record) in purges {
            let FollowUp::Purge(ino, record) = self.ns.recover(ino, &record);
            self.purge_later(ino, record);
        }
        for ino in self.orphans() {
            self.reap(ino);
        }
    }

    pub fn orphans(&self) -> Vec<Ino> {
        self.store.range(Bytes::from_static(b"o")..Bytes::from_static(b"p")).map(|(key, _)| ino_of(key)).collect()
    }

    pub fn reap(&mut self, ino: Ino) {
        self.waiters += 1;
        let waiter = self.waiters;
        loop {
            let context = self.context(ClientId(0));
            match self.ns.reap_orphan(ino, &context) {
                Outcome::Done(done) => {
                    self.ns.unpin(waiter);
                    done.result.unwrap();
                    if let Some(change) = done.change {
                        self.commit(change);
                    }
                    return;
                }
                Outcome::Missing(fetches) => self.fetch(waiter, &fetches),
                Outcome::Wait(ino) => self.unblock(ino),
                other => panic!("{other:?}"),
            }
        }
    }

    /// A fetch begins and reads the store; what it read is installed later.
    pub fn begin_late(&mut self, fetch: &Fetch) {
        let token = self.ns.begin_fetch(fetch);
        self.late.push((token, read_store(&self.store, self.page, fetch)));
    }

    pub fn end_late(&mut self) {
        if !self.late.is_empty() {
            let (token, fetched) = self.late.remove(0);
            self.ns.install(token, fetched).unwrap();
        }
    }

    /// The model has followed: the youngest batch ends in its present state.
    pub fn model_followed(&mut self) {
        match self.pending.back_mut() {
            Some(pending) => pending.after = self.model.clone(),
            None => self.durable_model = self.model.clone(),
        }
    }

    /// A page that memory cut short is as right as the whole one: compared only if it ends the directory.
    pub fn check_revealed_if_whole(&self, config: Config, op: &Op, hot: &Result<Reply, Error>) {
        if matches!(hot, Ok(Reply::Readdir(page)) if page.end) {
            self.check_revealed(config, op, hot);
        }
    }

    /// I2: the answer to an operation that changed nothing is what a cold namespace gives over the durable
    /// records and the batches that the answer waits for.
    pub fn check_revealed(&self, config: Config, op: &Op, hot: &Result<Reply, Error>) {
        let last = self.reads.iter().max().copied();
        let mut store = self.store.clone();
        for pending in self.pending.iter().filter(|pending| last.is_some_and(|last| pending.batch <= last)) {
            for one in &pending.writes {
                write(&mut store, one);
            }
        }
        let mut cold = Namespace::new(config);
        let operation = Operation { op: Some(op.clone()) };
        let context = self.context(ClientId(1));
        let result = loop {
            match cold.apply(&operation, &context) {
                Outcome::Missing(fetches) => {
                    for fetch in &fetches {
                        let token = cold.begin_fetch(fetch);
                        cold.install(token, read_store(&store, 1000, fetch)).unwrap();
                    }
                }
                Outcome::Done(done) => break done.result.map(|result| result.result.unwrap()),
                other => panic!("I2: {operation:?} was answered {hot:?}, from what is durable it is {other:?}"),
            }
        };
        assert_eq!(format!("{result:?}"), format!("{hot:?}"), "I2: {operation:?} revealed what could be lost");
    }
}

pub fn ino_of(key: &[u8]) -> Ino {
    Ino(u64::from_be_bytes(key[1..9].try_into().unwrap()))
}
