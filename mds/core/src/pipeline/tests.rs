//! The pipeline against a store that applies, acknowledges, repeats and crashes at will.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pando_proto::mds::{Completed, CompletedRecord, ShardListRecord};
use pando_proto::{Epoch, Ino, ShardId, SubtreeId};
use proptest::prelude::*;

use super::redo::{self, Redo};
use super::*;

const SUBTREE: SubtreeId = SubtreeId(1);
const EPOCH: Epoch = Epoch(3);
const SHARDS: u16 = 4;

/// A shard that keeps R2: a position, refusing nothing above it, ignoring all at or below it.
#[derive(Clone, Default)]
struct Store {
    records: BTreeMap<(ShardId, Bytes), Bytes>,
    positions: BTreeMap<ShardId, u64>,
}

impl Store {
    fn apply(&mut self, commit: &Commit) {
        let position = self.positions.entry(commit.shard).or_default();
        if commit.batch.0 <= *position {
            return;
        }
        *position = commit.batch.0;
        self.write(commit.shard, &commit.puts, &commit.deletes);
    }

    fn write(&mut self, shard: ShardId, puts: &[Record], deletes: &[Bytes]) {
        for put in puts {
            self.records.insert((shard, put.key.clone()), put.value.clone());
        }
        for key in deletes {
            self.records.remove(&(shard, key.clone()));
        }
    }

    fn listed(&self) -> BTreeSet<ShardId> {
        let key = (ShardId(0), Key::ShardList(ShardId(0), SUBTREE).encode());
        let list = self.records.get(&key).map(|value| redo::decode_record::<ShardListRecord>(value).unwrap());
        let listed = list.unwrap_or_default().shards.into_iter().map(|shard| ShardId(shard as u16));
        listed.chain([ShardId(0)]).collect()
    }

    /// What a new owner does (R3, R5), from what is listed and stored alone.
    fn take_over(&mut self) {
        let listed = self.listed();
        for (shard, _) in self.records.keys() {
            assert!(listed.contains(shard), "R3: {shard} holds records and is not listed");
        }
        let mut redos = Vec::new();
        for ((shard, key), value) in &self.records {
            if let Some(Key::Redo(_, _, epoch, batch)) = Key::decode(*shard, key) {
                let parts = redo::decode(value).unwrap();
                redos.push(Redo { shard: *shard, position: (epoch, batch), parts });
            }
        }
        let positions =
            listed.iter().map(|shard| (*shard, (EPOCH, self.positions.get(shard).copied().unwrap_or(0)))).collect();
        for (shard, repair) in redo::plan(&positions, redos) {
            assert!(listed.contains(&shard), "R3: a redo part for a shard that is not listed");
            self.write(shard, &repair.puts, &repair.deletes);
        }
    }

    fn get(&self, shard: ShardId, key: &Key) -> Option<u64> {
        let value = self.records.get(&(shard, key.encode()))?;
        Some(u64::from_be_bytes(value[..].try_into().unwrap()))
    }

    fn completed(&self) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        for ((shard, key), value) in &self.records {
            if let Some(Key::Completed(..)) = Key::decode(*shard, key) {
                let record: CompletedRecord = redo::decode_record(value).unwrap();
                found.extend(record.completed.iter().map(|completed| completed.request));
            }
        }
        found
    }
}

fn own_key(shard: ShardId, op: u64) -> Key {
    Key::Inode(Ino::new(shard, 1000 + op).unwrap())
}

fn shared_key(shard: ShardId, slot: u64) -> Key {
    Key::Body(Ino::new(shard, 1 + slot).unwrap())
}

struct Op {
    shards: Vec<ShardId>,
    slot: u64,
    /// Operations whose state it saw.
    saw: Vec<u64>,
    batch: BatchId,
}

/// The pipeline, its store and all that was ever sent.
struct World {
    pipeline: Pipeline,
    store: Store,
    ops: Vec<Op>,
    /// Sent and not answered; whether the store has it.
    in_flight: Vec<(Commit, bool)>,
    history: Vec<Commit>,
    last_writer: BTreeMap<(ShardId, u64), u64>,
    settled: BTreeSet<BatchId>,
    forgotten: BTreeSet<u64>,
    fences: Vec<ShardId>,
}

impl World {
    fn new(limits: Limits) -> Self {
        Self {
            pipeline: Pipeline::new(SUBTREE, EPOCH, ShardId(0), [], 1, limits),
            store: Store::default(),
            ops: Vec::new(),
            in_flight: Vec::new(),
            history: Vec::new(),
            last_writer: BTreeMap::new(),
            settled: BTreeSet::new(),
            forgotten: BTreeSet::new(),
            fences: Vec::new(),
        }
    }

    fn operate(&mut self, shards: BTreeSet<u16>, slot: u64, looks: &[prop::sample::Index]) {
        let id = self.ops.len() as u64;
        let shards: Vec<_> = shards.into_iter().map(ShardId).collect();
        let mut saw: Vec<u64> = Vec::new();
        if !self.ops.is_empty() {
            saw.extend(looks.iter().map(|look| look.index(self.ops.len()) as u64));
        }
        saw.extend(shards.iter().filter_map(|shard| self.last_writer.get(&(*shard, slot)).copied()));
        // As the namespace says it: batches that it was not told to be settled.
        let reads: Vec<_> =
            saw.iter().map(|op| self.ops[*op as usize].batch).filter(|batch| !self.settled.contains(batch)).collect();
        let value = Some(Bytes::copy_from_slice(&id.to_be_bytes()));
        let mut writes = Vec::new();
        for shard in &shards {
            writes.push(Write { key: own_key(*shard, id), value: value.clone() });
            writes.push(Write { key: shared_key(*shard, slot), value: value.clone() });
            self.last_writer.insert((*shard, slot), id);
        }
        let completed = Completed { client_id: 1, request: id, result: Bytes::from_static(b"done") };
        let batch = self.pipeline.admit(&writes, &reads, Some(completed));
        self.ops.push(Op { shards, slot, saw, batch });
    }

    fn send(&mut self) {
        self.fences.extend(self.pipeline.take_fences_wanted());
        for commit in self.pipeline.next_commits() {
            assert!(
                self.in_flight.iter().all(|(other, _)| other.shard != commit.shard),
                "one commit in flight for each shard"
            );
            self.history.push(commit.clone());
            self.in_flight.push((commit, false));
        }
    }

    fn apply(&mut self, index: usize) {
        if let Some((commit, applied)) = self.in_flight.get_mut(index) {
            let position = self.store.positions.get(&commit.shard).copied().unwrap_or(0);
            assert!(*applied || position < commit.batch.0, "R2: numbers rise in each shard");
            self.store.apply(commit);
            *applied = true;
        }
    }

    fn acknowledge(&mut self, index: usize) {
        self.apply(index);
        if index < self.in_flight.len() {
            let (commit, _) = self.in_flight.remove(index);
            let progress = self.pipeline.committed(commit.shard, commit.batch);
            self.settled.extend(progress.settled);
        }
    }

    fn forget(&mut self, op: u64) {
        let batch = self.ops[op as usize].batch;
        if self.pipeline.is_durable(batch) && self.forgotten.insert(op) {
            self.pipeline.forget(CompletedRef { subtree: SUBTREE, epoch: EPOCH, batch });
        }
    }

    fn raise_fence(&mut self, pick: usize) {
        if !self.fences.is_empty() {
            let shard = self.fences.swap_remove(pick % self.fences.len());
            self.pipeline.fence_raised(shard);
        }
    }

    /// Runs everything to its end.
    fn drain(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "the pipeline is stuck");
            while !self.fences.is_empty() {
                self.raise_fence(0);
            }
            self.send();
            if self.in_flight.is_empty() && self.fences.is_empty() {
                break;
            }
            if !self.in_flight.is_empty() {
                self.acknowledge(0);
            }
        }
        assert!(self.pipeline.is_idle());
        assert_eq!(self.pipeline.pending_bytes(), 0);
    }

    /// A crash now, a delayed duplicate of anything, a new owner: what is left?
    fn check_crash(&self, duplicates: &[prop::sample::Index]) {
        let mut store = self.store.clone();
        for duplicate in duplicates.iter().filter(|_| !self.history.is_empty()) {
            let commit = duplicate.get(&self.history);
            if !self.in_flight.iter().any(|(other, applied)| other == commit && !applied) {
                store.apply(commit);
            }
        }
        store.take_over();
        let completed = store.completed();
        let mut effective = BTreeSet::new();
        for (id, op) in self.ops.iter().enumerate() {
            let id = id as u64;
            let there = op.shards.iter().filter(|shard| store.get(**shard, &own_key(**shard, id)).is_some()).count();
            assert!(there == 0 || there == op.shards.len(), "R5: operation {id} happened in part");
            if there > 0 {
                effective.insert(id);
                assert!(op.saw.iter().all(|seen| effective.contains(seen)), "R6: {id} without what it saw");
            }
            let durable = self.pipeline.is_durable(op.batch);
            assert!(!durable || there > 0, "I2: operation {id} was called durable and is lost");
            let remembered = completed.contains(&id);
            assert!(!remembered || there > 0, "R9: {id} is remembered and did not happen");
            assert!(there == 0 || remembered || self.forgotten.contains(&id), "R9: {id} happened, nobody remembers");
        }
        for (shard, slot) in self.last_writer.keys() {
            let wrote = |op: &u64| {
                let op = &self.ops[*op as usize];
                op.slot == *slot && op.shards.contains(shard)
            };
            let last = effective.iter().copied().filter(wrote).max();
            assert_eq!(store.get(*shard, &shared_key(*shard, *slot)), last, "the last effective write stands");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Operate(BTreeSet<u16>, u64, Vec<prop::sample::Index>),
    Send,
    Apply(usize),
    Acknowledge(usize),
    Fence(usize),
    Forget(prop::sample::Index),
    Crash(Vec<prop::sample::Index>),
}

fn step() -> impl Strategy<Value = Step> {
    let shards = prop_oneof![
        4 => (0..SHARDS).prop_map(|shard| BTreeSet::from([shard])),
        2 => prop::collection::btree_set(0..SHARDS, 1..=3),
    ];
    let index = any::<prop::sample::Index>();
    prop_oneof![
        6 => (shards, 0..3_u64, prop::collection::vec(index, 0..3)).prop_map(|(a, b, c)| Step::Operate(a, b, c)),
        5 => Just(Step::Send),
        2 => (0..4_usize).prop_map(Step::Apply),
        5 => (0..4_usize).prop_map(Step::Acknowledge),
        2 => (0..4_usize).prop_map(Step::Fence),
        1 => any::<prop::sample::Index>().prop_map(Step::Forget),
        2 => prop::collection::vec(any::<prop::sample::Index>(), 0..4).prop_map(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn a_crash_at_any_moment_leaves_what_was_durable_and_nothing_by_halves(
        steps in prop::collection::vec(step(), 1..120),
        operations in 1..6_usize,
    ) {
        let mut world = World::new(Limits { bytes: 1 << 20, operations });
        for step in steps {
            match step {
                Step::Operate(shards, slot, looks) => world.operate(shards, slot, &looks),
                Step::Send => world.send(),
                Step::Apply(index) => world.apply(index),
                Step::Acknowledge(index) => world.acknowledge(index),
                Step::Fence(pick) => world.raise_fence(pick),
                Step::Forget(pick) if !world.ops.is_empty() => world.forget(pick.index(world.ops.len()) as u64),
                Step::Forget(_) => {}
                Step::Crash(duplicates) => world.check_crash(&duplicates),
            }
        }
        world.check_crash(&[]);
        world.drain();
        world.check_crash(&[]);
        let all = world.ops.len() as u64;
        for op in 0..all {
            world.forget(op);
        }
        // The deletes of q/ and r/ ride in the next batch of each shard.
        for shard in 0..SHARDS {
            world.operate(BTreeSet::from([shard]), 0, &[]);
        }
        world.drain();
        prop_assert!(world.store.completed().iter().all(|op| *op >= all), "R9: forgotten requests are trimmed");
        let left = world.store.records.keys().filter(|(shard, key)| {
            matches!(Key::decode(*shard, key), Some(Key::Redo(..)))
        }).count();
        prop_assert_eq!(left, 0, "R5: redo records go once all parts are durable");
    }
}

fn write(shard: u16, number: u64) -> Write {
    Write { key: own_key(ShardId(shard), number), value: Some(Bytes::from_static(b"v")) }
}

fn ready_pipeline() -> Pipeline {
    Pipeline::new(SUBTREE, EPOCH, ShardId(0), [ShardId(1), ShardId(2)], 1, Limits::default())
}

#[test]
fn changes_of_one_shard_share_the_open_batch_and_wait_for_the_one_in_flight() {
    let mut pipeline = ready_pipeline();
    let first = pipeline.admit(&[write(0, 1)], &[], None);
    assert_eq!(pipeline.admit(&[write(0, 2)], &[first], None), first);
    let commits = pipeline.next_commits();
    assert_eq!(commits.len(), 1);
    assert_eq!(commits[0].puts.len(), 2);
    let second = pipeline.admit(&[write(0, 3)], &[first], None);
    assert!(second > first && pipeline.next_commits().is_empty());
    let progress = pipeline.committed(ShardId(0), first);
    assert_eq!(progress, Progress { durable: Some(first), settled: Some(first) });
    assert_eq!(pipeline.next_commits()[0].batch, second);
}

#[test]
fn a_batch_waits_for_what_it_saw_in_another_shard() {
    let mut pipeline = ready_pipeline();
    let first = pipeline.admit(&[write(0, 1)], &[], None);
    let second = pipeline.admit(&[write(1, 2)], &[first], None);
    let commits = pipeline.next_commits();
    assert_eq!(commits.iter().map(|commit| commit.batch).collect::<Vec<_>>(), [first], "R6");
    pipeline.committed(ShardId(0), first);
    assert_eq!(pipeline.next_commits()[0].batch, second);
}

#[test]
fn two_open_batches_never_depend_on_each_other() {
    let mut pipeline = ready_pipeline();
    let zero = pipeline.admit(&[write(0, 1)], &[], None);
    let one = pipeline.admit(&[write(1, 2)], &[zero], None);
    let closed = pipeline.admit(&[write(0, 3)], &[one], None);
    assert!(closed > one, "R6: the older batch was closed");
}

#[test]
fn a_batch_over_two_shards_is_durable_with_its_first_part_and_settled_with_its_last() {
    let mut pipeline = ready_pipeline();
    let both = pipeline.admit(&[write(0, 1), write(1, 2)], &[], None);
    let later = pipeline.admit(&[write(1, 3)], &[], None);
    assert_eq!(later, both, "a change of one of its shards joins");
    let first = pipeline.next_commits();
    assert_eq!(first.len(), 1, "R5: the first part goes alone");
    let next = pipeline.admit(&[write(1, 4)], &[], None);
    assert!(next > both);
    assert_eq!(pipeline.committed(ShardId(0), both), Progress { durable: Some(both), settled: None });
    let second = pipeline.next_commits();
    assert_eq!((second.len(), second[0].shard, second[0].batch), (1, ShardId(1), both), "R5: in order");
    assert!(second[0].uses_reserve, "R5: it cannot be refused for want of space any more");
    assert!(!first[0].uses_reserve, "I9: it only adds");
    assert_eq!(pipeline.committed(ShardId(1), both).settled, Some(both));
    assert_eq!(pipeline.next_commits()[0].batch, next);
    // r/ is deleted with the next batch of the first shard.
    pipeline.admit(&[write(0, 5)], &[], None);
    assert_eq!(pipeline.next_commits()[0].deletes, [Key::Redo(ShardId(0), SUBTREE, EPOCH, both.0).encode()]);
}

#[test]
fn a_new_shard_is_listed_and_fenced_before_its_first_commit() {
    let mut pipeline = ready_pipeline();
    let batch = pipeline.admit(&[write(9, 1)], &[], None);
    assert_eq!(pipeline.take_fences_wanted(), [ShardId(9)]);
    let listing = pipeline.next_commits();
    assert_eq!((listing.len(), listing[0].shard), (1, ShardId(0)), "R3: the list first");
    pipeline.committed(ShardId(0), listing[0].batch);
    assert!(pipeline.next_commits().is_empty(), "R3: not before the fence");
    pipeline.fence_raised(ShardId(9));
    assert_eq!(pipeline.next_commits()[0].batch, batch);
}

#[test]
fn a_record_of_completed_requests_goes_when_its_last_request_is_forgotten() {
    let mut pipeline = ready_pipeline();
    let completed = |request| Some(Completed { client_id: 7, request, result: Bytes::new() });
    let batch = pipeline.admit(&[write(0, 1)], &[], completed(1));
    pipeline.admit(&[write(0, 2)], &[], completed(2));
    pipeline.next_commits();
    pipeline.committed(ShardId(0), batch);
    let reference = CompletedRef { subtree: SUBTREE, epoch: EPOCH, batch };
    pipeline.forget(reference);
    pipeline.admit(&[write(0, 3)], &[], None);
    let kept = pipeline.next_commits();
    assert!(kept[0].deletes.is_empty(), "R9: request 2 may still be repeated");
    pipeline.committed(ShardId(0), kept[0].batch);
    pipeline.forget(reference);
    pipeline.admit(&[write(0, 4)], &[], None);
    assert_eq!(pipeline.next_commits()[0].deletes.len(), 1);
}

#[test]
fn what_merged_subtrees_left_is_trimmed_under_their_own_keys() {
    let mut pipeline = ready_pipeline();
    let child = SubtreeId(9);
    let reference = CompletedRef { subtree: child, epoch: Epoch(3), batch: BatchId(5) };
    let own = CompletedRef { subtree: SUBTREE, ..reference };
    pipeline.adopt_completed(ShardId(0), reference, 1);
    pipeline.adopt_completed(ShardId(0), own, 2);
    pipeline.adopt_resolved(ShardId(0), child, Epoch(3), 4);
    pipeline.forget(reference);
    pipeline.forget(own);
    let batch = pipeline.admit(&[write(0, 1)], &[], None);
    let gone = pipeline.next_commits().remove(0).deletes;
    let key = |key: Key| key.encode();
    assert_eq!(
        gone,
        [key(Key::Redo(ShardId(0), child, Epoch(3), 4)), key(Key::Completed(ShardId(0), child, Epoch(3), 5))]
    );
    pipeline.committed(ShardId(0), batch);
    // Also in a shard where this subtree has written nothing yet.
    pipeline.adopt_completed(ShardId(7), CompletedRef { batch: BatchId(6), ..reference }, 0);
    assert_eq!(pipeline.take_fences_wanted(), [ShardId(7)]);
    pipeline.fence_raised(ShardId(7));
    let batch = pipeline.admit(&[write(7, 2)], &[], None);
    let list = pipeline.next_commits().remove(0);
    pipeline.committed(list.shard, list.batch);
    let commit = pipeline.next_commits().remove(0);
    assert_eq!((commit.batch, commit.deletes), (batch, vec![key(Key::Completed(ShardId(7), child, Epoch(3), 6))]));
}

#[test]
fn i9_what_only_adds_does_not_use_the_reserve_whatever_is_trimmed_along_with_it() {
    let mut pipeline = ready_pipeline();
    let completed = Completed { client_id: 1, request: 1, result: "done".into() };
    let first = pipeline.admit(&[write(0, 1)], &[], Some(completed));
    assert!(!pipeline.next_commits()[0].uses_reserve);
    pipeline.committed(ShardId(0), first);
    pipeline.forget(CompletedRef { subtree: SUBTREE, epoch: EPOCH, batch: first });
    let second = pipeline.admit(&[write(0, 2)], &[], None);
    let commit = pipeline.next_commits().remove(0);
    assert_eq!((commit.deletes.len(), commit.uses_reserve), (1, false), "q/ goes with each commit");
    pipeline.committed(ShardId(0), second);
    // The count of links in one shard, the name in another.
    pipeline.admit(&[write(0, 3), Write { value: None, ..write(1, 2) }], &[], None);
    let first = pipeline.next_commits().remove(0);
    assert!(first.uses_reserve && first.shard == ShardId(0), "something is removed");
}

/// The listing of a shard, and what is to happen in several subtrees, come before what is removed.
#[test]
fn i9_what_a_removal_needs_first_uses_the_reserve() {
    let mut pipeline = ready_pipeline();
    pipeline.admit(&[Write { value: None, ..write(3, 1) }], &[], None);
    pipeline.fence_raised(ShardId(3));
    let listing = pipeline.next_commits().remove(0);
    assert_eq!(listing.puts[0].key, Key::ShardList(ShardId(0), SUBTREE).encode());
    assert!(listing.uses_reserve && listing.deletes.is_empty());
    pipeline.committed(ShardId(0), listing.batch);
    let transaction = Key::Transaction(ShardId(0), SUBTREE, SubtreeId(2), EPOCH, 1);
    pipeline.admit(&[Write { key: transaction, value: Some("x".into()) }], &[], None);
    assert!(pipeline.next_commits().iter().all(|commit| commit.uses_reserve));
}

/// The shard of the later parts takes nothing for a while.
#[test]
fn r5_what_one_shard_lacks_stays_small_enough_for_one_commit() {
    let mut pipeline = ready_pipeline();
    let big = |shard: u16, number: u64| Write { value: Some(vec![7; 300 << 10].into()), ..write(shard, number) };
    let later = ShardId(2);
    let (mut begun, mut held) = (Vec::new(), Vec::new());
    for round in 0..40 {
        let shard = round as u16 % 2;
        pipeline.admit(&[big(shard, 10 * round), big(2, 10 * round + 1)], &[], None);
        for commit in pipeline.next_commits() {
            if commit.shard == later {
                held.push(commit);
            } else {
                begun.push(commit.batch);
                pipeline.committed(commit.shard, commit.batch);
            }
        }
    }
    assert!((2..=5).contains(&begun.len()), "{begun:?}");
    assert!(pipeline.shards[&later].owed <= MAX_OWED + (2 << 20), "{}", pipeline.shards[&later].owed);
    // It takes them again: all comes to its end.
    while let Some(commit) = held.pop().or_else(|| pipeline.next_commits().pop()) {
        pipeline.committed(commit.shard, commit.batch);
        held.extend(pipeline.next_commits());
    }
    assert!(pipeline.is_idle());
    assert!(pipeline.shards.values().all(|shard| shard.owed == 0));
}
