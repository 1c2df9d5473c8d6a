//! Recent entries of the log, and those that are not decided yet.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::message::Entry;
use crate::{Change, Position};

/// Decided entries that are kept for members that return soon.
const KEEP_ENTRIES: usize = 1024;
const KEEP_BYTES: usize = 1 << 20;
/// Larger pieces are most of the frame that they came in, and do not stay long.
const DETACH_UP_TO: usize = 256 << 10;

/// A run of entries, each following the one before.
#[derive(Default)]
pub(crate) struct Log {
    entries: VecDeque<(Entry, usize)>,
    bytes: usize,
}

impl Log {
    pub(crate) fn push(&mut self, entry: Entry) {
        if self.entries.back().is_some_and(|(last, _)| last.position != entry.previous) {
            self.clear();
        }
        let entry = detached(entry);
        let weight = entry.changes.iter().map(weight).sum::<usize>() + 64;
        self.bytes += weight;
        self.entries.push_back((entry, weight));
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets old entries; `decided` is the last that all members hold.
    pub(crate) fn trim(&mut self, decided: u64) {
        while self.entries.len() > KEEP_ENTRIES || self.bytes > KEEP_BYTES {
            match self.entries.front() {
                Some((entry, weight)) if entry.position.seq <= decided => {
                    self.bytes -= weight;
                    self.entries.pop_front();
                }
                _ => return,
            }
        }
    }

    /// Entries after `position`, which must be the end or a place in the run.
    pub(crate) fn after(&self, position: Position) -> Option<Vec<Entry>> {
        let start = self.entries.iter().position(|(entry, _)| entry.previous == position)?;
        Some(self.entries.iter().skip(start).map(|(entry, _)| entry.clone()).collect())
    }

    /// Whether no entry above `seq` was forgotten; `tail` is the last number given.
    pub(crate) fn reaches_back_to(&self, seq: u64, tail: u64) -> bool {
        tail <= seq || self.entries.front().is_some_and(|(first, _)| first.position.seq <= seq + 1)
    }

    /// Entries with a number above `seq`.
    pub(crate) fn above(&self, seq: u64) -> impl Iterator<Item = &Entry> {
        let start = self.entries.partition_point(|(entry, _)| entry.position.seq <= seq);
        self.entries.range(start..).map(|(entry, _)| entry)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }
}

/// The same with buffers of its own. What comes from the network is a slice of the frame it came in, and a frame may
/// be megabytes: a few bytes kept here would keep all of it.
fn detached(entry: Entry) -> Entry {
    let own = |bytes: &Bytes| if bytes.len() <= DETACH_UP_TO { Bytes::copy_from_slice(bytes) } else { bytes.clone() };
    let changes = entry.changes.iter().map(|change| match change {
        Change::Put { key, value } => Change::Put { key: own(key), value: own(value) },
        Change::Delete { key } => Change::Delete { key: own(key) },
        Change::DeleteRange { start, end } => Change::DeleteRange { start: own(start), end: own(end) },
        Change::Write { object, offset, data } => Change::Write { object: *object, offset: *offset, data: own(data) },
        other => other.clone(),
    });
    Entry { changes: Arc::new(changes.collect()), ..entry }
}

fn weight(change: &Change) -> usize {
    32 + match change {
        Change::Put { key, value } => key.len() + value.len(),
        Change::Delete { key } => key.len(),
        Change::DeleteRange { start, end } => start.len() + end.len(),
        Change::Write { data, .. } => data.len(),
        _ => 0,
    }
}
