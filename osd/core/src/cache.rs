//! A bounded cache whose entries may be pinned by writes in flight.

use std::hash::Hash;

use lru::LruCache;

/// Least recently used entries go first, but never one with a write that is not settled: durable here for those whose
/// state is needed, on all members for those whose last write is waited for too.
pub(crate) struct Cache<K: Hash + Eq, V> {
    entries: LruCache<K, (V, u64)>,
    capacity: usize,
}

impl<K: Hash + Eq + Clone, V> Cache<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: LruCache::unbounded(), capacity }
    }

    /// The state after all writes submitted so far, and the number of the last of them.
    pub(crate) fn get(&mut self, key: &K) -> Option<&(V, u64)> {
        self.entries.get(key)
    }

    /// Sets the state as of write `sequence`; all up to `settled` may leave.
    pub(crate) fn put(&mut self, key: K, value: V, sequence: u64, settled: u64) {
        self.entries.put(key, (value, sequence));
        while self.entries.len() > self.capacity {
            match self.entries.peek_lru() {
                Some((_, (_, last))) if *last <= settled => drop(self.entries.pop_lru()),
                _ => return,
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}
