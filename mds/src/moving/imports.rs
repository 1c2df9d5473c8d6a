//! Caches that were copied here, until the map says whose they are (R12).

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_cluster_map::ClusterMap;
use pando_mds_core::Namespace;
use pando_proto::mds::ImportFrame;
use pando_proto::{Epoch, Error, Rank, Reason, SubtreeId};

use crate::memory::Imported;
use crate::subtree;
use crate::takeover::Ownership;

/// Copies under way at once.
const MAX_IMPORTS: usize = 16;
/// Share of the rank's memory that copies may take before they are adopted (I8).
const IMPORT_SHARE: u64 = 2;
/// Items of a cache that go in one slice.
const DISCARD_STEPS: usize = 512;

/// By subtree.
#[derive(Default)]
pub(crate) struct Imports {
    copies: Mutex<BTreeMap<SubtreeId, Import>>,
    /// Of all copies.
    bytes: Arc<Imported>,
}

/// The copies; counts their bytes when it is given back.
struct Copies<'a> {
    copies: MutexGuard<'a, BTreeMap<SubtreeId, Import>>,
    bytes: &'a Imported,
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        self.bytes.set(self.copies.values().map(Import::bytes).sum());
    }
}

impl Deref for Copies<'_> {
    type Target = BTreeMap<SubtreeId, Import>;
    fn deref(&self) -> &Self::Target {
        &self.copies
    }
}

impl DerefMut for Copies<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.copies
    }
}

struct Import {
    epoch: Epoch,
    move_id: u64,
    /// Number of the frame that comes next.
    next: u64,
    namespace: Namespace,
    complete: bool,
}

impl Import {
    /// The move that brings it is under way, or has just made the subtree ours.
    fn is_wanted(&self, subtree: SubtreeId, map: &ClusterMap, rank: Rank) -> bool {
        let Some(found) = map.subtrees.get(&subtree) else { return false };
        let under_way = found.move_id == self.move_id && found.moving_to == rank && found.epoch == self.epoch;
        let here = found.last_move == self.move_id && found.owner == rank && found.epoch.0 == self.epoch.0 + 1;
        under_way || here
    }

    /// All that came before this frame is here.
    fn is_followed_by(&self, frame: &ImportFrame) -> bool {
        (self.epoch.0, self.move_id, self.next) == (frame.epoch, frame.move_id, frame.number) && !self.complete
    }

    fn bytes(&self) -> u64 {
        let usage = self.namespace.usage();
        usage.meta_bytes + usage.body_bytes
    }
}

impl Imports {
    /// What was given up meanwhile takes no more memory.
    pub fn forget_missed(&self, map: &ClusterMap, rank: Rank) {
        let mut imports = self.lock();
        let missed = |(subtree, import): (&SubtreeId, &Import)| {
            let missed = !import.is_wanted(*subtree, map, rank);
            missed.then_some(*subtree)
        };
        let missed: Vec<SubtreeId> = imports.iter().filter_map(missed).collect();
        missed.iter().filter_map(|subtree| imports.remove(subtree)).for_each(discard);
    }

    /// Bytes of all copies, to be counted where the rank's memory is (I8).
    pub fn bytes(&self) -> Arc<Imported> {
        Arc::clone(&self.bytes)
    }

    fn lock(&self) -> Copies<'_> {
        // What may panic under the lock is the cache itself, which is dropped then.
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        Copies { copies, bytes: &self.bytes }
    }

    /// A frame has come. True if it was the last. The first of a copy is number 0; whatever came before is dropped
    /// then. The others are taken in their order only: a copy of which a part is missing says what is not so.
    ///
    /// Errors: the map knows no such move to this rank; a frame is missing; the items make no sense.
    pub fn take_frame(
        &self,
        frame: ImportFrame,
        map: &ClusterMap,
        rank: Rank,
        cache_bytes: u64,
    ) -> Result<bool, Error> {
        let subtree = SubtreeId(frame.subtree);
        let known = map.subtrees.get(&subtree).filter(|found| {
            found.move_id == frame.move_id
                && found.moving_to == rank
                && found.epoch.0 == frame.epoch
                && frame.move_id != 0
        });
        let Some(found) = known else {
            let message = format!("map {} knows no move {} of {subtree} to {rank}", map.epoch, frame.move_id);
            return Err(Error::new(Reason::StaleEpoch, message));
        };
        self.forget_missed(map, rank);
        let mut imports = self.lock();
        if frame.number == 0 {
            imports.remove(&subtree).into_iter().for_each(discard);
            if imports.len() >= MAX_IMPORTS {
                return Err(Error::new(Reason::Overloaded, "too many subtrees are on their way to this rank"));
            }
            let own = Ownership { subtree, epoch: Epoch(frame.epoch + 1), root: found.root };
            let namespace = Namespace::new(subtree::config(own, map, 0));
            let (epoch, move_id) = (Epoch(frame.epoch), frame.move_id);
            imports.insert(subtree, Import { epoch, move_id, next: 0, namespace, complete: false });
        }
        let taken: u64 = imports.iter().filter(|(other, _)| **other != subtree).map(|(_, other)| other.bytes()).sum();
        let Some(import) = imports.get_mut(&subtree).filter(|import| import.is_followed_by(&frame)) else {
            let message = format!("frame {} of the copy of {subtree} does not follow", frame.number);
            if imports.get(&subtree).is_some_and(|import| !import.complete) {
                imports.remove(&subtree).into_iter().for_each(discard);
            }
            return Err(Error::new(Reason::StaleEpoch, message));
        };
        // What has no room is left out, and fetched when it is asked for.
        import.namespace.set_budget((cache_bytes / IMPORT_SHARE).saturating_sub(taken));
        import.namespace.import(frame.items)?;
        import.next += 1;
        import.complete = frame.last;
        Ok(frame.last)
    }

    /// A copy that ended early is of no use.
    pub fn abandon(&self, subtree: SubtreeId, move_id: u64) {
        let mut imports = self.lock();
        if imports.get(&subtree).is_some_and(|import| import.move_id == move_id && !import.complete) {
            imports.remove(&subtree).into_iter().for_each(discard);
        }
    }

    /// The cache of a subtree that is ours by this map, if the move that made it so brought all of it (R12).
    pub fn take(&self, subtree: SubtreeId, map: &ClusterMap) -> Option<Namespace> {
        let import = self.lock().remove(&subtree)?;
        let found = map.subtrees.get(&subtree);
        let exact = |found: &pando_cluster_map::Subtree| {
            import.complete && found.last_move == import.move_id && found.epoch.0 == import.epoch.0 + 1
        };
        if found.is_some_and(exact) {
            return Some(import.namespace);
        }
        discard(import);
        None
    }
}

/// A large cache goes in slices (R27).
fn discard(import: Import) {
    let mut namespace = import.namespace;
    tokio::spawn(async move {
        namespace.set_budget(0);
        while namespace.evict(DISCARD_STEPS) {
            tokio::task::yield_now().await;
        }
    });
}

#[cfg(test)]
mod tests;
