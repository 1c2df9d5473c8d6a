//! Ino ranges from the mon (R20).

use std::collections::{BTreeMap, BTreeSet};

use pando_proto::{Error, Ino, ShardId};

use super::job::Job;
use super::{Event, Subtree};

/// Inos asked for at a time. A restart abandons the rest of it; 48 bits bear that.
const RANGE: u64 = 16 * 1024;
/// Below this many the next range is asked for, ahead of need.
const LOW_WATER: u64 = RANGE / 4;

/// Shards for which a range is on its way, and who waits for it.
#[derive(Default)]
pub(super) struct Inos {
    asked: BTreeMap<ShardId, Vec<Job>>,
    /// Shards in which inodes are made.
    used: BTreeSet<ShardId>,
}

impl Inos {
    pub fn waiting(&self) -> usize {
        self.asked.values().map(Vec::len).sum()
    }

    pub fn take_waiting(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.asked).into_values().flatten().collect()
    }
}

impl Subtree {
    pub(super) fn need_inos(&mut self, mut job: Job, shard: ShardId) {
        self.track(&mut job);
        self.inos.used.insert(shard);
        self.ask_for_inos(shard);
        self.inos.asked.entry(shard).or_default().push(job);
    }

    /// Asks ahead of need, for a shard in which a directory or file was just made.
    pub(super) fn refill_inos(&mut self, shard: ShardId) {
        if self.inos.used.contains(&shard) && self.namespace.inos_left(shard) < LOW_WATER {
            self.ask_for_inos(shard);
        }
    }

    fn ask_for_inos(&mut self, shard: ShardId) {
        if self.inos.asked.contains_key(&shard) {
            return;
        }
        self.inos.asked.insert(shard, Vec::new());
        let allocating = self.outside.mons.allocate_inos(shard, RANGE);
        self.spawn(async move { Event::Inos(shard, allocating.await) });
    }

    pub(super) fn inos_arrived(&mut self, shard: ShardId, range: Result<(Ino, u64), Error>) {
        let waiting = self.inos.asked.remove(&shard).unwrap_or_default();
        match range {
            Ok((first, count)) => {
                self.namespace.add_inos(first, count);
                self.runnable.extend(waiting);
            }
            Err(error) => {
                for job in waiting {
                    self.fail(job, error.clone());
                }
            }
        }
    }
}
