//! Which `q/` records are there, and how many of their requests may still be repeated (R9).

use pando_proto::{Epoch, ShardId, SubtreeId};
use rustc_hash::FxHashMap;

use crate::api::BatchId;

/// Names the `q/` record that remembers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CompletedRef {
    /// Whose batch it was: this subtree, or one that was merged into it.
    pub subtree: SubtreeId,
    /// Epoch of the batch.
    pub epoch: Epoch,
    /// Its number.
    pub batch: BatchId,
}

#[derive(Debug)]
struct State {
    shard: ShardId,
    live: u32,
    durable: bool,
}

/// Looked up only, never iterated.
#[derive(Debug, Default)]
pub(super) struct CompletedIndex(FxHashMap<CompletedRef, State>);

impl CompletedIndex {
    /// One more request in a record that is not durable yet.
    pub fn add(&mut self, reference: CompletedRef, shard: ShardId) {
        self.0.entry(reference).or_insert(State { shard, live: 0, durable: false }).live += 1;
    }

    /// A durable record of an earlier owner.
    pub fn adopt(&mut self, reference: CompletedRef, shard: ShardId, live: u32) {
        self.0.insert(reference, State { shard, live, durable: true });
    }

    /// The record is in its shard. The shard, if it may be deleted at once.
    pub fn durable(&mut self, reference: CompletedRef) -> Option<ShardId> {
        self.0.get_mut(&reference)?.durable = true;
        self.take_if_dead(reference)
    }

    /// One request less. The shard, if the record may be deleted now. A delete before the put would be in vain,
    /// hence never before the record is durable.
    pub fn forget(&mut self, reference: CompletedRef) -> Option<ShardId> {
        let state = self.0.get_mut(&reference)?;
        state.live = state.live.saturating_sub(1);
        self.take_if_dead(reference)
    }

    fn take_if_dead(&mut self, reference: CompletedRef) -> Option<ShardId> {
        let state = self.0.get(&reference)?;
        let (shard, dead) = (state.shard, state.live == 0 && state.durable);
        dead.then(|| self.0.remove(&reference)).flatten().map(|_| shard)
    }
}
