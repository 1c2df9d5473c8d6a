//! Pools and mons in memory that keep the rules of the real ones (R2), and obey the test.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::{ClusterMap, Decision, TransactionId};
use pando_mds::io::{Io, Mons, Objects, Page, Peers, Records};
use pando_mds_core::records::Key;
use pando_proto::mds::{ImportFrame, ImportResponse, InodeRecord, PrepareRequest, PrepareResponse};
use pando_proto::mon::{CommitMoveRequest, DecideTransactionRequest, MergeSubtreeRequest, SplitSubtreeRequest};
use pando_proto::osd::{CommitOutcome, CommitRequest, CommitResponse, ObjectId, RaiseFenceResponse, TrimKind};
use pando_proto::{ClientId, Epoch, Error, Ino, Reason, ShardId, SubtreeId};
use prost::Message as _;
use tokio::sync::watch;

use crate::harness::change;

/// Which commits wait for the test.
#[derive(Clone, Debug, Default)]
pub enum Gate {
    #[default]
    Open,
    /// All wait.
    Closed,
    /// Those of these shards wait.
    Shards(BTreeSet<ShardId>),
}

impl Gate {
    fn lets(&self, shard: ShardId) -> bool {
        match self {
            Self::Open => true,
            Self::Closed => false,
            Self::Shards(shards) => !shards.contains(&shard),
        }
    }
}

#[derive(Default)]
struct Store {
    records: BTreeMap<(ShardId, Bytes), Bytes>,
    /// (fence, applied epoch, applied batch)
    fences: BTreeMap<(ShardId, u64), (u64, u64, u64)>,
    refuse: Option<Error>,
    /// Whoever sends the next commit panics.
    broken: bool,
    /// Refuses what only puts, as an OSD that is full.
    full: bool,
    /// (epoch, batch) of what was refused.
    refused: BTreeSet<(u64, u64)>,
}

/// The metadata pool.
#[derive(Clone)]
pub struct FakeRecords {
    store: Rc<RefCell<Store>>,
    gate: Rc<watch::Sender<Gate>>,
    /// Commits that wait at the gate.
    waiting: Rc<watch::Sender<usize>>,
    commits: Rc<watch::Sender<usize>>,
    gets: Rc<watch::Sender<usize>>,
    read_delay: Duration,
    reads_wait: Rc<watch::Sender<bool>>,
    reads_to_fail: Rc<Cell<usize>>,
}

impl Default for FakeRecords {
    fn default() -> Self {
        Self {
            store: Rc::default(),
            gate: Rc::new(watch::channel(Gate::Open).0),
            waiting: Rc::new(watch::channel(0).0),
            commits: Rc::new(watch::channel(0).0),
            gets: Rc::new(watch::channel(0).0),
            read_delay: Duration::ZERO,
            reads_wait: Rc::new(watch::channel(false).0),
            reads_to_fail: Rc::default(),
        }
    }
}

impl FakeRecords {
    pub fn set_gate(&self, gate: Gate) {
        self.gate.send_replace(gate);
    }

    pub fn with_read_delay(mut self, delay: Duration) -> Self {
        self.read_delay = delay;
        self
    }

    /// Reads wait for the test.
    pub fn hold_reads(&self, held: bool) {
        self.reads_wait.send_replace(held);
    }

    /// So many reads from now on fail.
    pub fn fail_reads(&self, count: usize) {
        self.reads_to_fail.set(count);
    }

    async fn may_read(&self) -> Result<(), Error> {
        tokio::time::sleep(self.read_delay).await;
        self.reads_wait.subscribe().wait_for(|held| !held).await.expect("never closed");
        let failing = self.reads_to_fail.get();
        self.reads_to_fail.set(failing.saturating_sub(1));
        let error = (failing > 0).then(|| Error::new(Reason::Timeout, "the placement group did not answer"));
        error.map_or(Ok(()), Err)
    }

    /// Refuses the next commit with this error.
    pub fn refuse_next(&self, error: Error) {
        self.store.borrow_mut().refuse = Some(error);
    }

    /// Whoever sends the next commit panics.
    pub fn break_next(&self) {
        self.store.borrow_mut().broken = true;
    }

    /// How many batches were refused.
    pub fn refusals(&self) -> usize {
        self.store.borrow().refused.len()
    }

    pub fn set_full(&self, full: bool) {
        self.store.borrow_mut().full = full;
    }

    /// Ends when so many commits wait at the gate.
    pub async fn commits_wait(&self, count: usize) {
        let mut waiting = self.waiting.subscribe();
        waiting.wait_for(|waiting| *waiting >= count).await.unwrap();
    }

    /// Commits that wait at the gate.
    pub fn waiting(&self) -> usize {
        *self.waiting.borrow()
    }

    pub fn commits(&self) -> usize {
        *self.commits.borrow()
    }

    pub fn gets(&self) -> usize {
        *self.gets.borrow()
    }

    pub fn raise(&self, shard: ShardId, subtree: SubtreeId, epoch: u64) {
        let mut store = self.store.borrow_mut();
        let fence = store.fences.entry((shard, subtree.0)).or_default();
        fence.0 = fence.0.max(epoch);
    }

    /// The fence of a subtree in a shard.
    pub fn fence(&self, shard: ShardId, subtree: SubtreeId) -> u64 {
        self.store.borrow().fences.get(&(shard, subtree.0)).map_or(0, |fence| fence.0)
    }

    /// Somebody else changes an inode.
    pub fn change_inode(&self, ino: Ino, change: impl FnOnce(&mut InodeRecord)) {
        let key = Key::Inode(ino).encode();
        let mut store = self.store.borrow_mut();
        let value = store.records.get_mut(&(ino.shard(), key)).expect("an inode");
        let mut record = InodeRecord::decode(&value[1..]).unwrap();
        change(&mut record);
        *value = [&value[..1], &record.encode_to_vec()].concat().into();
    }

    /// Keys of one kind, in all shards.
    /// A record that somebody left.
    pub fn put(&self, key: &Key, value: Bytes) {
        self.store.borrow_mut().records.insert((key.shard(), key.encode()), value);
    }

    pub fn value(&self, key: &Key) -> Option<Bytes> {
        self.store.borrow().records.get(&(key.shard(), key.encode())).cloned()
    }

    pub fn keys(&self, of: impl Fn(&Key) -> bool) -> Vec<Key> {
        let store = self.store.borrow();
        let keys = store.records.keys().filter_map(|(shard, key)| Key::decode(*shard, key));
        keys.filter(|key| of(key)).collect()
    }

    fn apply(&self, request: &CommitRequest) -> Result<CommitResponse, Error> {
        let mut store = self.store.borrow_mut();
        let number = (request.epoch, request.batch);
        assert!(!store.refused.contains(&number), "R4: a refused number is not used again");
        let full = store.full && !request.puts.is_empty() && !request.uses_reserve;
        let full = full.then(|| Error::new(Reason::NoSpace, "full"));
        if let Some(error) = store.refuse.take().or(full) {
            store.refused.insert(number);
            return Err(error);
        }
        let shard = ShardId(request.shard as u16);
        let fence = store.fences.entry((shard, request.subtree)).or_default();
        let fence_epoch = fence.0;
        let answer = |outcome: CommitOutcome| Ok(CommitResponse { outcome: outcome.into(), fence_epoch });
        if request.epoch < fence.0 {
            return answer(CommitOutcome::Fenced);
        }
        assert_eq!(request.epoch, fence.0, "R3: the fence of the epoch is raised before the first commit");
        if (request.epoch, request.batch) <= (fence.1, fence.2) {
            return answer(CommitOutcome::Done);
        }
        (fence.1, fence.2) = (request.epoch, request.batch);
        for put in &request.puts {
            store.records.insert((shard, put.key.clone()), put.value.clone());
        }
        for key in &request.deletes {
            store.records.remove(&(shard, key.clone()));
        }
        answer(CommitOutcome::Done)
    }
}

impl Records for FakeRecords {
    fn commit(&self, request: CommitRequest) -> Io<CommitResponse> {
        let this = self.clone();
        assert!(!std::mem::take(&mut this.store.borrow_mut().broken), "meant to be");
        Box::pin(async move {
            let shard = ShardId(request.shard as u16);
            let mut gate = this.gate.subscribe();
            this.waiting.send_modify(|waiting| *waiting += 1);
            let passed = gate.wait_for(|gate| gate.lets(shard)).await.is_ok();
            this.waiting.send_modify(|waiting| *waiting -= 1);
            assert!(passed);
            this.commits.send_modify(|commits| *commits += 1);
            this.apply(&request)
        })
    }

    fn raise_fence(&self, shard: ShardId, subtree: SubtreeId, epoch: Epoch) -> Io<RaiseFenceResponse> {
        self.raise(shard, subtree, epoch.0);
        let fence = self.store.borrow().fences[&(shard, subtree.0)];
        let response = RaiseFenceResponse { fence_epoch: fence.0, applied_epoch: fence.1, applied_batch: fence.2 };
        Box::pin(async move { Ok(response) })
    }

    fn get(&self, shard: ShardId, keys: Vec<Bytes>) -> Io<Vec<Option<Bytes>>> {
        let this = self.clone();
        Box::pin(async move {
            this.gets.send_modify(|gets| *gets += 1);
            this.may_read().await?;
            let store = this.store.borrow();
            Ok(keys.into_iter().map(|key| store.records.get(&(shard, key)).cloned()).collect())
        })
    }

    fn scan(&self, shard: ShardId, start: Bytes, end: Bytes, limit: u32) -> Io<Page> {
        let this = self.clone();
        Box::pin(async move {
            this.may_read().await?;
            let store = this.store.borrow();
            let inside = |key: &Bytes| end.is_empty() || *key < end;
            let from = store.records.range((shard, start)..);
            let mut found = from
                .take_while(|((of, key), _)| *of == shard && inside(key))
                .map(|((_, key), value)| (key.clone(), value.clone()));
            let limit = if limit == 0 { 1000 } else { limit as usize };
            let page: Vec<_> = found.by_ref().take(limit).collect();
            let next = found.next().map(|(key, _)| key);
            Ok((page, next))
        })
    }
}

/// (ino, index) to (generation, bytes).
type Written = BTreeMap<(u64, u64), (u64, Bytes)>;
/// Placement groups; an object's is the remainder of its index.
const GROUPS: u64 = 8;
type Trim = (ObjectId, u64, TrimKind, u64);

/// The data pool.
#[derive(Clone, Default)]
pub struct FakeObjects {
    written: Rc<RefCell<Written>>,
    trims: Rc<RefCell<Vec<Trim>>>,
    trims_to_fail: Rc<RefCell<usize>>,
    /// Files whose trims fail.
    stuck: Rc<RefCell<BTreeSet<u64>>>,
    full: Rc<RefCell<bool>>,
}

impl FakeObjects {
    /// (generation, bytes) of an object.
    pub fn object(&self, ino: u64, index: u64) -> Option<(u64, Bytes)> {
        self.written.borrow().get(&(ino, index)).cloned()
    }

    pub fn count(&self) -> usize {
        self.written.borrow().len()
    }

    pub fn put(&self, ino: u64, index: u64, generation: u64, data: &'static [u8]) {
        self.written.borrow_mut().insert((ino, index), (generation, Bytes::from_static(data)));
    }

    /// How many trims were done.
    pub fn trims(&self) -> usize {
        self.trims.borrow().len()
    }

    pub fn stick(&self, ino: u64) {
        self.stuck.borrow_mut().insert(ino);
    }

    pub fn fail_trims(&self, count: usize) {
        *self.trims_to_fail.borrow_mut() = count;
    }

    pub fn set_full(&self, full: bool) {
        *self.full.borrow_mut() = full;
    }
}

impl Objects for FakeObjects {
    fn write(&self, object: ObjectId, generation: u64, offset: u64, data: Bytes) -> Io<()> {
        let this = self.clone();
        Box::pin(async move {
            if *this.full.borrow() {
                return Err(Error::new(Reason::NoSpace, "the pool is full"));
            }
            assert_eq!(offset, 0);
            this.written.borrow_mut().insert((object.ino, object.index), (generation, data));
            Ok(())
        })
    }

    fn trim(&self, object: ObjectId, generation: u64, kind: TrimKind, offset: u64) -> Io<()> {
        let this = self.clone();
        Box::pin(async move {
            let failing = std::mem::replace(&mut *this.trims_to_fail.borrow_mut(), 0);
            if failing > 0 {
                *this.trims_to_fail.borrow_mut() = failing - 1;
                return Err(Error::new(Reason::Unavailable, "not now"));
            }
            if this.stuck.borrow().contains(&object.ino) {
                return Err(Error::new(Reason::Unavailable, "not now"));
            }
            let key = (object.ino, object.index);
            let mut written = this.written.borrow_mut();
            let later = |(made, _): &(u64, Bytes)| *made > generation;
            if kind != TrimKind::DeleteFrom && written.get(&key).is_some_and(later) {
                return Err(Error::new(Reason::StaleGeneration, "the object is of a later generation"));
            }
            match kind {
                TrimKind::Delete => drop(written.remove(&key)),
                TrimKind::DeleteFrom => written.retain(|(ino, index), (made, _)| {
                    let group = |index: u64| index % GROUPS;
                    (*ino, group(*index)) != (key.0, group(key.1)) || *index < key.1 || *made > generation
                }),
                TrimKind::Truncate => {
                    if let Some((_, data)) = written.get_mut(&key) {
                        data.truncate(offset as usize);
                    }
                }
                _ => {}
            }
            this.trims.borrow_mut().push((object, generation, kind, offset));
            Ok(())
        })
    }

    fn firsts(&self, _pool: u32, _ino: Ino, indexes: Range<u64>) -> Option<Vec<u64>> {
        (indexes.end.saturating_sub(indexes.start) > GROUPS).then(|| indexes.take(GROUPS as usize).collect())
    }
}

/// The mons.
#[derive(Clone, Default)]
pub struct FakeMons {
    cursors: Rc<RefCell<BTreeMap<ShardId, u64>>>,
    pub evicted: Rc<RefCell<Vec<ClientId>>>,
    /// What the mons say to the proposal of a handover.
    pub handover: Rc<RefCell<Option<Error>>>,
    handovers: Rc<watch::Sender<usize>>,
    /// What they say of transactions.
    pub decided: Rc<RefCell<Option<Decision>>>,
    /// Who said of transactions that they have ended there. They do not answer.
    pub told: Rc<watch::Sender<Vec<Told>>>,
    /// What they do and say when a split is proposed.
    pub splitting: Rc<RefCell<Option<Splitting>>>,
    /// What they do and say when a merge is proposed.
    pub merging: Rc<RefCell<Option<Merging>>>,
    /// What they do and say when the epoch of a subtree is to end.
    pub renewing: Rc<RefCell<Option<Renewing>>>,
    /// Of the rank that runs.
    pub map: Rc<RefCell<Option<watch::Sender<Arc<ClusterMap>>>>>,
}

type Told = (SubtreeId, Epoch, Vec<TransactionId>);
type Splitting = Box<dyn FnMut(SplitSubtreeRequest) -> Result<(SubtreeId, Epoch), Error>>;
type Renewing = Box<dyn FnMut(SubtreeId, Epoch) -> Result<Epoch, Error>>;
type Merging = Box<dyn FnMut(MergeSubtreeRequest) -> Result<Epoch, Error>>;

impl FakeMons {
    /// Proposals of handovers so far.
    pub fn handovers(&self) -> usize {
        *self.handovers.borrow()
    }

    /// Ends when so many handovers were proposed.
    pub async fn are_asked(&self, count: usize) {
        self.handovers.subscribe().wait_for(|handovers| *handovers >= count).await.unwrap();
    }
}

impl Mons for FakeMons {
    fn allocate_inos(&self, shard: ShardId, count: u64) -> Io<(Ino, u64)> {
        let mut cursors = self.cursors.borrow_mut();
        let next = cursors.entry(shard).or_insert(2);
        let first = Ino::new(shard, *next).unwrap();
        *next += count;
        Box::pin(async move { Ok((first, count)) })
    }

    fn usage(&self) -> Io<(u64, u64)> {
        Box::pin(async { Ok((1 << 40, 1 << 30)) })
    }

    fn evict(&self, client: ClientId) -> Io<()> {
        self.evicted.borrow_mut().push(client);
        Box::pin(async { Ok(()) })
    }

    fn split(&self, request: SplitSubtreeRequest) -> Io<(SubtreeId, Epoch)> {
        match self.splitting.borrow_mut().as_mut() {
            Some(splitting) => {
                let answer = splitting(request);
                Box::pin(async move { answer })
            }
            None => alone(),
        }
    }

    fn renew(&self, subtree: SubtreeId, epoch: Epoch) -> Io<Epoch> {
        let answer = match (self.renewing.borrow_mut().as_mut(), self.map.borrow().as_ref()) {
            (Some(renewing), _) => renewing(subtree, epoch),
            (None, Some(map)) => {
                change(map, |map| map.subtrees.get_mut(&subtree).unwrap().epoch.0 = epoch.0 + 1);
                Ok(map.borrow().epoch)
            }
            (None, None) => return alone(),
        };
        Box::pin(async move { answer })
    }

    fn merge(&self, request: MergeSubtreeRequest) -> Io<Epoch> {
        match self.merging.borrow_mut().as_mut() {
            Some(merging) => {
                let answer = merging(request);
                Box::pin(async move { answer })
            }
            None => alone(),
        }
    }

    fn commit_move(&self, _: CommitMoveRequest) -> Io<Epoch> {
        self.handovers.send_modify(|handovers| *handovers += 1);
        match self.handover.borrow().clone() {
            Some(error) => Box::pin(async move { Err(error) }),
            None => alone(),
        }
    }

    fn cancel_move(&self, _: SubtreeId, _: u64) -> Io<Epoch> {
        alone()
    }

    fn raise_routes(&self, _: Vec<SubtreeId>) -> Io<Epoch> {
        alone()
    }

    fn decide(&self, _: DecideTransactionRequest) -> Io<(Decision, Epoch)> {
        match *self.decided.borrow() {
            Some(decision) => Box::pin(async move { Ok((decision, Epoch(0))) }),
            None => alone(),
        }
    }

    fn finish(&self, subtree: SubtreeId, epoch: Epoch, transactions: Vec<TransactionId>) -> Io<Epoch> {
        self.told.send_modify(|told| told.push((subtree, epoch, transactions)));
        alone()
    }
}

/// There is one subtree in these tests.
fn alone<T: 'static>() -> Io<T> {
    Box::pin(async { Err(Error::new(Reason::InvalidRequest, "there is one subtree only")) })
}

/// Other ranks, which take every copy.
#[derive(Clone, Default)]
pub struct Takers {
    /// Parts of copies that were begun, and taken.
    parts: Rc<watch::Sender<(usize, usize)>>,
    /// Parts from this one on are refused.
    pub refuse_from: Rc<Cell<Option<usize>>>,
    /// Parts up to this one are taken; others wait.
    allowed: Rc<watch::Sender<Option<usize>>>,
    /// Numbers of the frames that came, and whether they were the last.
    pub frames: Rc<RefCell<Vec<(u64, bool)>>>,
    /// What they were asked to prepare.
    pub asked: Rc<RefCell<Vec<PrepareRequest>>>,
}

impl Takers {
    /// So many parts of copies have begun.
    pub async fn have_begun(&self, parts: usize) {
        self.parts.subscribe().wait_for(|(begun, _)| *begun >= parts).await.expect("never closed");
    }

    pub fn begun(&self) -> usize {
        self.parts.borrow().0
    }

    /// Parts beyond so many wait.
    pub fn allow(&self, parts: Option<usize>) {
        self.allowed.send_replace(parts);
    }
}

impl Peers for Takers {
    fn import(&self, _: String, mut frames: tokio::sync::mpsc::Receiver<ImportFrame>) -> Io<ImportResponse> {
        let this = self.clone();
        Box::pin(async move {
            this.parts.send_modify(|(begun, _)| *begun += 1);
            let number = this.begun();
            if this.refuse_from.get().is_some_and(|from| number >= from) {
                return Err(Error::new(Reason::Unavailable, "this rank has just died"));
            }
            let mut allowed = this.allowed.subscribe();
            allowed.wait_for(|most| most.is_none_or(|most| number <= most)).await.expect("never closed");
            while let Some(frame) = frames.recv().await {
                this.frames.borrow_mut().push((frame.number, frame.last));
                if frame.last {
                    break;
                }
            }
            this.parts.send_modify(|(_, taken)| *taken += 1);
            Ok(ImportResponse::default())
        })
    }

    fn await_map(&self, _: String, _: Epoch) -> Io<()> {
        alone()
    }

    fn prepare(&self, _: String, request: PrepareRequest) -> Io<PrepareResponse> {
        self.asked.borrow_mut().push(request);
        alone()
    }
}
