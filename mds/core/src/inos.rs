//! Inode numbers: ranges from the mon, runs of neighbours for directories (R20).

use pando_proto::{Ino, ShardId};
use rustc_hash::FxHashMap;

use crate::cache::Run;

/// Inos a directory takes at a time, so that its inodes are neighbours on disk.
const RUN: u64 = 64;
/// Leftover ranges kept per shard; more are abandoned.
const MAX_LEFTOVERS: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Inos {
    shards: FxHashMap<ShardId, Vec<Run>>,
}

/// An ino about to be used, and what is left of the run it came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub ino: Ino,
    /// The directory's run afterwards; `None` if the ino came straight from the shard's range.
    pub run: Option<(Ino, Run)>,
    /// How many the shard's range gives away.
    pub from_shard: u64,
}

impl Inos {
    pub fn add(&mut self, first: Ino, count: u64) {
        if count == 0 || !first.is_valid() {
            return;
        }
        let ranges = self.shards.entry(first.shard()).or_default();
        ranges.push(Run { next: first.0, end: first.0 + count });
    }

    pub fn give_back(&mut self, run: Run) {
        let ranges = self.shards.entry(Ino(run.next).shard()).or_default();
        if ranges.len() < MAX_LEFTOVERS {
            // Below the current range, which is the last: used when that is empty.
            ranges.insert(0, run);
        }
    }

    /// Takes over what another has left.
    pub fn take_over(&mut self, other: Self) {
        let mut left: Vec<Run> = Vec::new();
        for (_, runs) in other.shards {
            left.extend(runs);
        }
        left.sort_unstable_by_key(|run| run.next);
        left.into_iter().for_each(|run| self.give_back(run));
    }

    /// The ino that a new inode of `dir` in `shard` will get; nothing is taken yet.
    pub fn peek(&self, dir: Ino, run: Run, shard: ShardId) -> Option<Taken> {
        let home = dir.shard() == shard;
        if home && run.next < run.end {
            let run = Run { next: run.next + 1, end: run.end };
            return Some(Taken { ino: Ino(run.next - 1), run: Some((dir, run)), from_shard: 0 });
        }
        let range = self.shards.get(&shard)?.last()?;
        if !home {
            return Some(Taken { ino: Ino(range.next), run: None, from_shard: 1 });
        }
        let count = RUN.min(range.end - range.next);
        let run = Run { next: range.next + 1, end: range.next + count };
        Some(Taken { ino: Ino(range.next), run: Some((dir, run)), from_shard: count })
    }

    /// Takes what `peek` showed.
    pub fn take(&mut self, taken: &Taken) {
        if taken.from_shard == 0 {
            return;
        }
        let Some(ranges) = self.shards.get_mut(&taken.ino.shard()) else { return };
        if let Some(range) = ranges.last_mut() {
            range.next += taken.from_shard;
            if range.next >= range.end {
                ranges.pop();
            }
        }
    }

    /// Inos left in a shard, without the runs of directories.
    pub fn left(&self, shard: ShardId) -> u64 {
        self.shards.get(&shard).map_or(0, |ranges| ranges.iter().map(|range| range.end - range.next).sum())
    }
}
