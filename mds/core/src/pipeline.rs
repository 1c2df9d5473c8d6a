//! The commit order of a subtree (R2 to R7): which batch takes a change, and
//! which commits may be sent now.
//!
//! Batches of one (subtree, epoch) share one row of numbers, given at opening,
//! and obey:
//! - a shard has at most one open batch and at most one commit in flight;
//!   batches enter a shard in the order of their numbers (R2);
//! - a batch depends on lower numbers only: an operation that would make an open
//!   batch depend on a higher one closes it first (R6). Hence no cycles, and the
//!   lowest unsettled batch can always go on;
//! - a batch is sent when all it depends on is durable (R6), and when all its
//!   shards are listed in the home shard and fenced (R3);
//! - a batch over several shards commits its first part together with a redo
//!   record of the other parts. From then on it is *durable*: replies may leave.
//!   It is *settled* when every part is in its shard; only then may what it
//!   touched be read from the pool again (R5, R8).

mod batch;
mod completed;
pub mod redo;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use pando_proto::mds::{Completed, ShardListRecord};
use pando_proto::osd::Record;
use pando_proto::{Epoch, ShardId, SubtreeId};
use smallvec::SmallVec;

use crate::api::{BatchId, Reads, Write};
use crate::records::Key;
pub use batch::makes_room;
use batch::{Batch, Stage};
use completed::CompletedIndex;
pub use completed::CompletedRef;

/// Deletes of `q/` and `r/` that ride in one commit.
const MAX_TRIMS_PER_COMMIT: usize = 256;

/// Bytes of batches whose first part was sent and whose part in one shard was not, beyond which no other batch over
/// several shards begins there. A new owner applies in one commit all that a shard lacks (R5), and a commit has a largest
/// size.
const MAX_OWED: usize = 2 << 20;

/// When an open batch takes no more.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of keys, values and results.
    pub bytes: usize,
    /// Changes.
    pub operations: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 1 << 20, operations: 1024 }
    }
}

/// A commit to send: one part of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Commit {
    /// Where.
    pub shard: ShardId,
    /// Under which number.
    pub batch: BatchId,
    /// Records to write.
    pub puts: Vec<Record>,
    /// Keys to delete.
    pub deletes: Vec<Bytes>,
    /// It may use the space that pools keep in reserve: an operation of it makes room (I9), or it is a later part,
    /// which cannot be refused any more (R5). What is trimmed along with it does not count: each commit trims something.
    pub uses_reserve: bool,
}

/// What the end of a commit brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Replies that wait for this batch may leave.
    pub durable: Option<BatchId>,
    /// All parts of this batch are in their shards: the namespace may be told.
    pub settled: Option<BatchId>,
}

#[derive(Debug, Default)]
struct Shard {
    /// Stands durably in `s/` (R3).
    listed: bool,
    /// The batch that lists it.
    listing: Option<BatchId>,
    fenced: bool,
    open: Option<BatchId>,
    /// Batches with a part that is not in the shard yet, in order.
    queue: VecDeque<BatchId>,
    in_flight: bool,
    /// Bytes of batches that have begun elsewhere and have a part for this shard (see [`MAX_OWED`]).
    owed: usize,
    /// Keys whose delete rides in the next commit.
    trims: VecDeque<Bytes>,
}

impl Shard {
    fn is_ready(&self) -> bool {
        self.listed && self.fenced
    }

    /// Whether one more batch may begin elsewhere that has a part for this shard. What is owed behind it cannot come
    /// before it.
    fn may_owe(&self, batch: BatchId) -> bool {
        self.owed < MAX_OWED || self.queue.front() == Some(&batch)
    }
}

/// The commit order. See the module's text.
#[derive(Debug)]
pub struct Pipeline {
    subtree: SubtreeId,
    epoch: Epoch,
    home: ShardId,
    limits: Limits,
    next: u64,
    /// Not settled yet.
    batches: BTreeMap<BatchId, Batch>,
    shards: BTreeMap<ShardId, Shard>,
    /// Shards with something in their queue.
    busy: BTreeSet<ShardId>,
    completed: CompletedIndex,
    fences_wanted: Vec<ShardId>,
    pending_bytes: usize,
}

impl Pipeline {
    /// For a subtree whose `home` and `listed` shards are fenced for `epoch`. `next` is above every
    /// batch number that was used in this epoch.
    pub fn new(
        subtree: SubtreeId,
        epoch: Epoch,
        home: ShardId,
        listed: impl IntoIterator<Item = ShardId>,
        next: u64,
        limits: Limits,
    ) -> Self {
        let ready = || Shard { listed: true, fenced: true, ..Shard::default() };
        let mut shards: BTreeMap<_, _> = listed.into_iter().map(|shard| (shard, ready())).collect();
        shards.entry(home).or_insert_with(ready);
        Self {
            subtree,
            epoch,
            home,
            limits,
            next: next.max(1),
            batches: BTreeMap::new(),
            shards,
            busy: BTreeSet::new(),
            completed: CompletedIndex::default(),
            fences_wanted: Vec::new(),
            pending_bytes: 0,
        }
    }

    /// Takes a change that saw the state of `reads`; says which batch carries it. `completed` is the
    /// request it answers, to be remembered in the same commit (R9). `writes` must not be empty.
    pub fn admit(&mut self, writes: &[Write], reads: &[BatchId], completed: Option<Completed>) -> BatchId {
        debug_assert!(!writes.is_empty(), "a change without records needs no batch");
        let mut shards: SmallVec<[ShardId; 4]> = SmallVec::new();
        for write in writes {
            let shard = write.key.shard();
            if !shards.contains(&shard) {
                shards.push(shard);
            }
        }
        shards.sort_unstable();
        let mut needs: Reads = reads.iter().copied().filter(|batch| !self.is_durable(*batch)).collect();
        for shard in &shards {
            needs.extend(self.list(*shard));
        }
        let id = self.batch_for(&shards, &needs);
        let batch = self.batches.get_mut(&id).expect("R2: the open batch exists");
        let grown = batch.add(id, writes, &needs, completed);
        if grown.remembers {
            self.completed.add(CompletedRef { subtree: self.subtree, epoch: self.epoch, batch: id }, batch.first);
        }
        self.pending_bytes += grown.bytes;
        id
    }

    /// The commits that may be sent now. Each must be answered by [`committed`](Self::committed).
    pub fn next_commits(&mut self) -> Vec<Commit> {
        let mut commits = Vec::new();
        let busy: SmallVec<[ShardId; 8]> = self.busy.iter().copied().collect();
        for shard in busy {
            commits.extend(self.next_commit(shard));
        }
        commits
    }

    /// A commit of this part is durable.
    pub fn committed(&mut self, shard: ShardId, id: BatchId) -> Progress {
        let state = self.shards.get_mut(&shard).expect("R3: commits go to known shards");
        assert_eq!(state.queue.pop_front(), Some(id), "R2: batches enter a shard in order");
        state.in_flight = false;
        if state.queue.is_empty() {
            self.busy.remove(&shard);
        }
        let batch = self.batches.get_mut(&id).expect("R5: a batch is known until it is settled");
        if shard != batch.first {
            state.owed -= batch.bytes;
        }
        let mut progress = Progress::default();
        if shard == batch.first {
            batch.stage = Stage::Durable;
            progress.durable = Some(id);
            let reference = CompletedRef { subtree: self.subtree, epoch: self.epoch, batch: id };
            if let Some(first) = self.completed.durable(reference) {
                self.trim(first, completed_key(first, reference));
            }
        }
        if self.part_done(id) {
            progress.settled = Some(id);
            self.settle(id);
        }
        progress
    }

    /// Whether replies that saw this batch may leave.
    pub fn is_durable(&self, batch: BatchId) -> bool {
        self.batches.get(&batch).is_none_or(|batch| batch.stage == Stage::Durable)
    }

    /// The first of `reads` that is not durable.
    pub fn first_undurable(&self, reads: &[BatchId]) -> Option<BatchId> {
        if self.batches.is_empty() {
            return None;
        }
        reads.iter().copied().find(|batch| !self.is_durable(*batch))
    }

    /// Whether every batch is settled.
    pub fn is_idle(&self) -> bool {
        self.batches.is_empty()
    }

    /// Bytes in batches that are not settled.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Whether the fence of this epoch stands in the shard; before that nothing may be read there (R3).
    pub fn is_fenced(&self, shard: ShardId) -> bool {
        self.shards.get(&shard).is_some_and(|shard| shard.fenced)
    }

    /// Shards whose fence is to be raised, each named once; answer by [`fence_raised`](Self::fence_raised).
    pub fn take_fences_wanted(&mut self) -> Vec<ShardId> {
        std::mem::take(&mut self.fences_wanted)
    }

    /// Makes the shard known and its fence wanted.
    pub fn touch(&mut self, shard: ShardId) {
        if let Entry::Vacant(unknown) = self.shards.entry(shard) {
            unknown.insert(Shard::default());
            self.fences_wanted.push(shard);
        }
    }

    /// The shard's fence stands.
    pub fn fence_raised(&mut self, shard: ShardId) {
        self.touch(shard);
        self.fences_wanted.retain(|wanted| *wanted != shard);
        if let Some(state) = self.shards.get_mut(&shard) {
            state.fenced = true;
        }
    }

    /// Shards in the durable list, the home shard included.
    pub fn listed(&self) -> impl Iterator<Item = ShardId> {
        self.shards.iter().filter(|(_, state)| state.listed).map(|(shard, _)| *shard)
    }

    /// Takes over the record of an earlier epoch, or of a subtree that was merged into this one, which remembers
    /// `live` requests that may still be repeated.
    pub fn adopt_completed(&mut self, shard: ShardId, reference: CompletedRef, live: u32) {
        self.touch(shard);
        if live == 0 {
            self.trim(shard, completed_key(shard, reference));
        } else {
            self.completed.adopt(reference, shard, live);
        }
    }

    /// Takes over a redo record, of this subtree or one that was merged into it, whose parts are all in their
    /// shards: it is deleted lazily (R5).
    pub fn adopt_resolved(&mut self, shard: ShardId, subtree: SubtreeId, epoch: Epoch, batch: u64) {
        self.touch(shard);
        self.trim(shard, Key::Redo(shard, subtree, epoch, batch).encode());
    }

    /// One request of this record can never be repeated (R9). When none is left the record goes.
    pub fn forget(&mut self, reference: CompletedRef) {
        if let Some(shard) = self.completed.forget(reference) {
            self.trim(shard, completed_key(shard, reference));
        }
    }

    fn trim(&mut self, shard: ShardId, key: Bytes) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.trims.push_back(key);
        }
    }

    /// Sees to it that a shard gets listed; the batch that does it, if it is not yet (R3).
    fn list(&mut self, shard: ShardId) -> Option<BatchId> {
        self.touch(shard);
        let state = self.shards.get(&shard)?;
        if state.listed || state.listing.is_some() {
            return state.listing;
        }
        let known = |state: &Shard| state.listed || state.listing.is_some();
        let mut shards: Vec<u32> =
            self.shards.iter().filter(|(_, state)| known(state)).map(|(shard, _)| u32::from(shard.0)).collect();
        shards.push(u32::from(shard.0));
        shards.sort_unstable();
        let record = ShardListRecord { shards };
        let key = Key::ShardList(self.home, self.subtree);
        let batch = self.admit(&[Write { key, value: Some(batch::encode(&record)) }], &[], None);
        self.shards.get_mut(&shard)?.listing = Some(batch);
        Some(batch)
    }

    /// The open batch that may take writes to `shards` while it depends on `needs`; a new one if there is none.
    fn batch_for(&mut self, shards: &[ShardId], needs: &[BatchId]) -> BatchId {
        let open = |shard: &ShardId| self.shards.get(shard).and_then(|state| state.open);
        let candidate = shards.first().and_then(open);
        if let Some(id) = candidate
            && shards.iter().all(|shard| open(shard) == Some(id))
            && needs.iter().all(|need| *need <= id)
            && self.batches.get(&id).is_some_and(|batch| !batch.is_full(&self.limits))
        {
            return id;
        }
        for shard in shards {
            if let Some(id) = self.shards.get(shard).and_then(|state| state.open) {
                self.close(id);
            }
        }
        self.open(shards)
    }

    fn open(&mut self, shards: &[ShardId]) -> BatchId {
        let id = BatchId(self.next);
        self.next += 1;
        for shard in shards {
            let state = self.shards.entry(*shard).or_default();
            state.open = Some(id);
            state.queue.push_back(id);
            self.busy.insert(*shard);
        }
        self.batches.insert(id, Batch::new(shards));
        id
    }

    fn close(&mut self, id: BatchId) {
        let Some(batch) = self.batches.get_mut(&id) else { return };
        if batch.stage == Stage::Open {
            batch.stage = Stage::Closed;
        }
        for shard in batch.shards() {
            if let Some(state) = self.shards.get_mut(&shard)
                && state.open == Some(id)
            {
                state.open = None;
            }
        }
    }

    fn next_commit(&mut self, shard: ShardId) -> Option<Commit> {
        let state = self.shards.get(&shard)?;
        let id = *state.queue.front().filter(|_| !state.in_flight)?;
        let batch = self.batches.get(&id)?;
        let commit = match batch.stage {
            Stage::Open | Stage::Closed if shard == batch.first && self.may_start(id, batch) => {
                self.first_part(shard, id)
            }
            Stage::Durable => self.later_part(shard, id)?,
            Stage::Open | Stage::Closed | Stage::Sent => return None,
        };
        self.shards.get_mut(&shard)?.in_flight = true;
        Some(commit)
    }

    fn may_start(&self, id: BatchId, batch: &Batch) -> bool {
        batch.needs.iter().all(|need| self.is_durable(*need))
            && batch.shards().all(|shard| {
                let state = self.shards.get(&shard);
                state.is_some_and(|state| state.is_ready() && (shard == batch.first || state.may_owe(id)))
            })
    }

    /// Part one: its records, `q/`, `r/` with the other parts, and what is to be trimmed here.
    fn first_part(&mut self, shard: ShardId, id: BatchId) -> Commit {
        self.close(id);
        let (mut puts, mut deletes, mut uses_reserve) = (Vec::new(), Vec::new(), false);
        if let Some(batch) = self.batches.get_mut(&id) {
            batch.stage = Stage::Sent;
            uses_reserve = batch.makes_room;
            (puts, deletes) = batch.take_part(shard);
            for other in batch.shards().filter(|other| *other != shard) {
                if let Some(state) = self.shards.get_mut(&other) {
                    state.owed += batch.bytes;
                }
            }
            if let Some(value) = batch.redo_record() {
                puts.push(Record { key: Key::Redo(shard, self.subtree, self.epoch, id.0).encode(), value });
            }
            if let Some(value) = batch.completed_record() {
                puts.push(Record { key: Key::Completed(shard, self.subtree, self.epoch, id.0).encode(), value });
            }
        }
        if let Some(state) = self.shards.get_mut(&shard) {
            let count = state.trims.len().min(MAX_TRIMS_PER_COMMIT);
            deletes.extend(state.trims.drain(..count));
        }
        Commit { shard, batch: id, puts, deletes, uses_reserve }
    }

    fn later_part(&mut self, shard: ShardId, id: BatchId) -> Option<Commit> {
        let (puts, deletes) = self.batches.get_mut(&id)?.take_part(shard);
        Some(Commit { shard, batch: id, puts, deletes, uses_reserve: true })
    }

    /// Counts a part as applied; true if it was the last.
    fn part_done(&mut self, id: BatchId) -> bool {
        self.batches.get_mut(&id).is_some_and(|batch| {
            batch.outstanding -= 1;
            batch.outstanding == 0
        })
    }

    fn settle(&mut self, id: BatchId) {
        let Some(batch) = self.batches.remove(&id) else { return };
        self.pending_bytes -= batch.bytes;
        if batch.is_multi() {
            let key = Key::Redo(batch.first, self.subtree, self.epoch, id.0).encode();
            self.trim(batch.first, key);
        }
        // Only now: a list that is still in a redo record would be overlooked by a new owner.
        for state in self.shards.values_mut().filter(|state| state.listing == Some(id)) {
            state.listing = None;
            state.listed = true;
        }
    }
}

/// Records of merged subtrees keep their own keys.
fn completed_key(shard: ShardId, reference: CompletedRef) -> Bytes {
    Key::Completed(shard, reference.subtree, reference.epoch, reference.batch.0).encode()
}

#[cfg(test)]
mod tests;
