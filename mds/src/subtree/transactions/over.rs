//! Transactions that came to their end here. No late copy of a request begins one of them anew (R18): the map has
//! forgotten what was decided by then, and would take a late copy of the coordinator's proposal for the first one.
//!
//! In memory only. Who opens the subtree next, be it here, does so under another epoch, under which the map commits
//! nothing that was prepared before.

use std::collections::{BTreeMap, BTreeSet};

use pando_cluster_map::TransactionId;
use pando_proto::{Epoch, SubtreeId};

/// Numbers of one coordinator that are remembered one by one.
const MOST_APART: usize = 256;

/// See the module's text.
#[derive(Default)]
pub(super) struct Over(BTreeMap<SubtreeId, Numbers>);

#[derive(Default)]
struct Numbers {
    epoch: Epoch,
    /// Up to this one none begins any more: what is so much older than others is to be tried under a new number.
    floor: u64,
    above: BTreeSet<u64>,
}

impl Over {
    /// It came to its end.
    pub fn add(&mut self, id: TransactionId) {
        let numbers = self.0.entry(id.coordinator).or_default();
        if id.epoch > numbers.epoch {
            *numbers = Numbers { epoch: id.epoch, ..Numbers::default() };
        }
        if id.epoch == numbers.epoch && id.number > numbers.floor {
            numbers.above.insert(id.number);
        }
        if numbers.above.len() > MOST_APART {
            numbers.floor = numbers.above.pop_first().unwrap_or(numbers.floor);
        }
    }

    /// Those of coordinators that are no more do not commit: the map looks for their epochs.
    pub fn keep(&mut self, is_there: impl Fn(SubtreeId) -> bool) {
        self.0.retain(|coordinator, _| is_there(*coordinator));
    }

    /// Whether it must not begin any more.
    pub fn has(&self, id: TransactionId) -> bool {
        let Some(numbers) = self.0.get(&id.coordinator) else { return false };
        let ended = || id.number <= numbers.floor || numbers.above.contains(&id.number);
        id.epoch < numbers.epoch || id.epoch == numbers.epoch && ended()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(epoch: u64, number: u64) -> TransactionId {
        TransactionId { coordinator: SubtreeId(7), epoch: Epoch(epoch), number }
    }

    #[test]
    fn r18_what_is_over_does_not_begin_anew_and_what_is_late_may_begin() {
        let mut over = Over::default();
        assert!(!over.has(id(2, 5)));
        over.add(id(2, 5));
        assert!(over.has(id(2, 5)) && !over.has(id(2, 4)) && !over.has(id(2, 6)) && !over.has(id(3, 5)));
        for number in 10..10 + MOST_APART as u64 {
            over.add(id(2, number));
        }
        assert!(over.has(id(2, 5)) && over.has(id(2, 4)) && !over.has(id(2, 9)), "bounded: the oldest are all over");
        over.add(id(3, 1));
        assert!(over.has(id(2, 9)) && over.has(id(3, 1)) && !over.has(id(3, 2)), "of an epoch that is no more");
        over.keep(|coordinator| coordinator == SubtreeId(7));
        assert!(over.has(id(3, 1)));
        over.keep(|_| false);
        assert!(over.0.is_empty(), "I8");
    }
}
