//! What parked operations fetched, kept until they ran (R8). Admission bounds their number.

use bytes::Bytes;
use pando_proto::Ino;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::api::Fetch;
use crate::records::Key;

type Pages = SmallVec<[(Bytes, u32); 2]>;

#[derive(Debug, Default)]
pub(crate) struct Pins {
    waiters: FxHashMap<u64, Vec<Fetch>>,
    records: FxHashMap<Key, u32>,
    /// (directory or inode, links) -> pages (after, limit).
    pages: FxHashMap<(Ino, bool), Pages>,
    count: usize,
}

impl Pins {
    pub fn pin(&mut self, waiter: u64, fetch: &Fetch) {
        match fetch {
            Fetch::Record(key) => *self.records.entry(key.clone()).or_default() += 1,
            Fetch::Dentries { dir, after, limit } => {
                self.pages.entry((*dir, false)).or_default().push((after.clone(), *limit));
            }
            Fetch::BackLinks { ino, after, limit } => {
                self.pages.entry((*ino, true)).or_default().push((after.clone(), *limit));
            }
        }
        self.count += 1;
        self.waiters.entry(waiter).or_default().push(fetch.clone());
    }

    pub fn unpin(&mut self, waiter: u64) {
        for fetch in self.waiters.remove(&waiter).unwrap_or_default() {
            self.count -= 1;
            match fetch {
                Fetch::Record(key) => {
                    if let Some(count) = self.records.get_mut(&key) {
                        *count -= 1;
                        if *count == 0 {
                            self.records.remove(&key);
                        }
                    }
                }
                Fetch::Dentries { dir, after, limit } => self.unpin_page((dir, false), &after, limit),
                Fetch::BackLinks { ino, after, limit } => self.unpin_page((ino, true), &after, limit),
            }
        }
    }

    fn unpin_page(&mut self, of: (Ino, bool), after: &Bytes, limit: u32) {
        let Some(pages) = self.pages.get_mut(&of) else { return };
        if let Some(at) = pages.iter().position(|page| page.0 == *after && page.1 == limit) {
            pages.swap_remove(at);
        }
        if pages.is_empty() {
            self.pages.remove(&of);
        }
    }

    pub fn has(&self, key: &Key) -> bool {
        !self.records.is_empty() && self.records.contains_key(key)
    }

    pub fn has_records(&self) -> bool {
        !self.records.is_empty()
    }

    pub fn pages(&self, of: Ino, links: bool) -> &[(Bytes, u32)] {
        self.pages.get(&(of, links)).map_or(&[], |pages| pages)
    }

    pub fn bytes(&self) -> usize {
        self.count * (size_of::<Fetch>() * 2 + 64)
    }
}
