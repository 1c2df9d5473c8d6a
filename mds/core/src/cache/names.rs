//! The names of a directory (or the back links of an inode) as far as they are known.
//!
//! Each entry also says whether the gap before it is known to hold no other
//! name. A directory is complete when it has no unknown gap: a new one is so
//! from birth, and stays so through changes and eviction of absences.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};

use bytes::Bytes;

use crate::api::BatchId;
use crate::inode::Dentry;

/// When an item last changed, or became durable.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamp {
    /// Sequence number of that moment; compared with the start of fetches (R8).
    pub changed: u64,
    /// The batch that is to make it durable; `None` when it is.
    pub batch: Option<BatchId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Present(Dentry),
    Absent,
    /// Only a mark between a known and an unknown gap.
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub state: State,
    pub stamp: Stamp,
    /// No name exists between the entry before and this one.
    gap_known: bool,
    /// Looked up since the clock hand passed.
    used: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Unknown,
    Absent(Option<BatchId>),
    Present(Dentry, Option<BatchId>),
}

/// A page of a listing.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub entries: Vec<(Bytes, Dentry)>,
    pub end: bool,
    /// Nothing is known right after this name.
    pub unknown_after: Option<Bytes>,
}

#[derive(Debug, Default)]
pub(crate) struct Names {
    map: BTreeMap<Bytes, Name>,
    end_known: bool,
    /// Unknown gaps, the last one included.
    gaps: usize,
    /// A page was installed: whoever still misses a name looks it up alone, so that each round makes progress.
    pub scanned: bool,
    /// Latest batch that touched an entry; a listing waits for it. Batches of a shard become durable in order.
    pub last_batch: Option<BatchId>,
    pub bytes: usize,
    pub dirty_bytes: usize,
    hand: Bytes,
}

/// Bytes of an entry: a B-tree slot at two thirds fill, the name, its allocation and its shared counter.
fn cost(name: &[u8]) -> usize {
    (size_of::<Bytes>() + size_of::<Name>()) * 3 / 2 + name.len() + 56
}

impl Names {
    pub fn unknown() -> Self {
        Self { gaps: 1, ..Self::default() }
    }

    /// No names at all, and that is certain.
    pub fn complete() -> Self {
        Self { end_known: true, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    fn gap_known_at(&self, name: &[u8]) -> bool {
        if self.gaps == 0 {
            return true;
        }
        let next = self.map.range::<[u8], _>((Excluded(name), Unbounded)).next();
        next.map_or(self.end_known, |(_, entry)| entry.gap_known)
    }

    pub fn lookup(&mut self, name: &[u8]) -> Lookup {
        if let Some(entry) = self.map.get_mut(name) {
            entry.used = true;
            return match entry.state {
                State::Present(dentry) => Lookup::Present(dentry, entry.stamp.batch),
                State::Absent => Lookup::Absent(entry.stamp.batch),
                State::Unknown => Lookup::Unknown,
            };
        }
        if self.gap_known_at(name) { Lookup::Absent(None) } else { Lookup::Unknown }
    }

    /// The same of an entry that is there, without any mark of use.
    pub fn known(&self, name: &[u8]) -> Option<State> {
        self.map.get(name).map(|entry| entry.state)
    }

    /// Changes a name; true if the batch had not touched it before.
    pub fn set(&mut self, name: &Bytes, value: Option<Dentry>, stamp: Stamp) -> bool {
        let state = value.map_or(State::Absent, State::Present);
        self.last_batch = self.last_batch.max(stamp.batch);
        if let Some(entry) = self.map.get_mut(name) {
            let first = entry.stamp.batch != stamp.batch;
            if entry.stamp.batch.is_none() {
                self.dirty_bytes += cost(name);
            }
            entry.state = state;
            entry.stamp = stamp;
            return first;
        }
        self.insert(name.clone(), state, stamp);
        self.dirty_bytes += cost(name);
        true
    }

    fn insert(&mut self, name: Bytes, state: State, stamp: Stamp) {
        let gap_known = self.gap_known_at(&name);
        self.gaps += usize::from(!gap_known);
        self.bytes += cost(&name);
        self.map.insert(name, Name { state, stamp, gap_known, used: true });
    }

    /// The batch is durable: what it touched last is clean. `droppable`: no fetch is in flight that
    /// could bring the old state back, so an absence inside known gaps can go.
    pub fn clean(&mut self, name: &Bytes, batch: BatchId, changed: u64, droppable: bool) {
        if self.last_batch == Some(batch) {
            self.last_batch = None;
        }
        let Some(entry) = self.map.get_mut(name) else { return };
        if entry.stamp.batch != Some(batch) {
            return;
        }
        entry.stamp = Stamp { changed, batch: None };
        self.dirty_bytes -= cost(name);
        if droppable && entry.state == State::Absent && entry.gap_known {
            self.remove(name);
        }
    }

    /// Forgets a name; the gap it leaves is known only if its absence and both sides were.
    fn remove(&mut self, name: &[u8]) {
        let Some((key, entry)) = self.map.remove_entry(name) else { return };
        self.bytes -= cost(&key);
        let next = self.map.range_mut::<[u8], _>((Excluded(name), Unbounded)).next();
        let after = next.map_or(&mut self.end_known, |(_, next)| &mut next.gap_known);
        let before = usize::from(!entry.gap_known) + usize::from(!*after);
        *after = *after && entry.gap_known && entry.state == State::Absent;
        self.gaps = self.gaps + usize::from(!*after) - before;
    }

    /// One looked-up name. Memory wins (R8): an entry, and also a name missing inside a known gap.
    pub fn install_one(&mut self, name: &[u8], value: Option<Dentry>) {
        let state = value.map_or(State::Absent, State::Present);
        if let Some(entry) = self.map.get_mut(name) {
            if entry.state == State::Unknown {
                entry.state = state;
            }
        } else if !self.gap_known_at(name) {
            self.insert(Bytes::copy_from_slice(name), state, Stamp::default());
        }
    }

    /// A page of names, all there are from `after` to the last one or, with `end`, to the end.
    pub fn install_page(&mut self, after: &[u8], entries: &[(Bytes, Dentry)], end: bool) {
        self.scanned = true;
        if !after.is_empty() && !self.map.contains_key(after) && !self.gap_known_at(after) {
            self.insert(Bytes::copy_from_slice(after), State::Unknown, Stamp::default());
        }
        for (name, dentry) in entries {
            self.install_one(name, Some(*dentry));
        }
        let from = if after.is_empty() { Unbounded } else { Excluded(after) };
        let to = match entries.last() {
            _ if end => Unbounded,
            Some((last, _)) => Included(last.as_ref()),
            None => return,
        };
        if matches!((from, to), (Excluded(from), Included(to)) if from >= to) {
            return;
        }
        for (_, entry) in self.map.range_mut::<[u8], _>((from, to)) {
            self.gaps -= usize::from(!entry.gap_known);
            entry.gap_known = true;
            // What the page does not name is not there.
            if entry.state == State::Unknown {
                entry.state = State::Absent;
            }
        }
        if end && !self.end_known {
            self.end_known = true;
            self.gaps -= 1;
        }
    }

    /// Names after `after`, as far as known, at most `limit`.
    pub fn page(&self, after: &[u8], limit: usize) -> Page {
        let from = if after.is_empty() { Unbounded } else { Excluded(after) };
        let mut page = Page::default();
        let mut last: Option<&Bytes> = None;
        for (name, entry) in self.map.range::<[u8], _>((from, Unbounded)) {
            if page.entries.len() == limit {
                return page;
            }
            if !entry.gap_known {
                page.unknown_after = Some(last.cloned().unwrap_or_else(|| Bytes::copy_from_slice(after)));
                return page;
            }
            match entry.state {
                State::Present(dentry) => page.entries.push((name.clone(), dentry)),
                State::Absent => {}
                State::Unknown => {
                    page.unknown_after = Some(last.cloned().unwrap_or_else(|| Bytes::copy_from_slice(after)));
                    return page;
                }
            }
            last = Some(name);
        }
        page.end = self.end_known;
        if !page.end {
            page.unknown_after = Some(last.cloned().unwrap_or_else(|| Bytes::copy_from_slice(after)));
        }
        page
    }

    /// The batch that is to make the last change of a name durable.
    pub fn batch_of(&self, name: &[u8]) -> Option<BatchId> {
        self.map.get(name).and_then(|entry| entry.stamp.batch)
    }

    /// Whether every name is known.
    pub fn is_complete(&self) -> bool {
        self.gaps == 0
    }

    /// Up to `limit` entries after `after`, whatever is known of them.
    pub fn entries_after(&self, after: &[u8], limit: usize) -> impl Iterator<Item = (&Bytes, &Name)> {
        let from = if after.is_empty() { Unbounded } else { Excluded(after) };
        self.map.range::<[u8], _>((from, Unbounded)).take(limit)
    }

    /// What a name is now, at the place from which the directory was copied; `None`: not known there any more.
    pub fn correct(&mut self, name: &[u8], value: Option<Option<Dentry>>) {
        let state = match value {
            Some(Some(dentry)) => State::Present(dentry),
            Some(None) => State::Absent,
            None => State::Unknown,
        };
        match self.map.get_mut(name) {
            Some(entry) => entry.state = state,
            None => self.insert(Bytes::copy_from_slice(name), state, Stamp::default()),
        }
        if state == State::Absent && self.map.get(name).is_some_and(|entry| entry.gap_known) {
            self.remove(name);
        }
    }

    /// There are no other names than those that are known.
    pub fn set_complete(&mut self) {
        self.map.values_mut().for_each(|entry| entry.gap_known = true);
        self.end_known = true;
        self.gaps = 0;
    }

    /// The `count`-th name after `after`; `None` if there are fewer.
    pub fn nth_after(&self, after: &[u8], count: usize) -> Option<&Bytes> {
        let from = if after.is_empty() { Unbounded } else { Excluded(after) };
        self.map.range::<[u8], _>((from, Unbounded)).nth(count).map(|(name, _)| name)
    }

    /// Looks at up to `slice` entries from the clock hand on and forgets those that `may_go`; with
    /// `second_chance` not those that were used since the hand last came by. Returns how many went.
    pub fn evict(&mut self, slice: usize, second_chance: bool, may_go: impl Fn(&Bytes, &Name) -> bool) -> usize {
        let hand = std::mem::take(&mut self.hand);
        let mut victims = Vec::new();
        let from_hand = self.map.range_mut::<[u8], _>((Included(hand.as_ref()), Unbounded));
        for (seen, (name, entry)) in from_hand.enumerate() {
            if seen == slice {
                self.hand = name.clone();
                break;
            }
            let spared = second_chance && std::mem::take(&mut entry.used);
            if !spared && entry.stamp.batch.is_none() && may_go(name, entry) {
                victims.push(name.clone());
            }
        }
        for name in &victims {
            self.remove(name);
        }
        if self.map.is_empty() && self.gaps > 0 {
            self.scanned = false;
        }
        victims.len()
    }

    #[cfg(test)]
    pub fn check(&self) {
        let gaps = self.map.values().filter(|entry| !entry.gap_known).count() + usize::from(!self.end_known);
        assert_eq!(gaps, self.gaps, "gaps are counted");
        assert_eq!(self.map.keys().map(|name| cost(name)).sum::<usize>(), self.bytes, "I8: names are counted");
        let dirty = self.map.iter().filter(|(_, entry)| entry.stamp.batch.is_some());
        assert_eq!(dirty.map(|(name, _)| cost(name)).sum::<usize>(), self.dirty_bytes, "I8: dirty names are counted");
    }
}

#[cfg(test)]
mod tests;
