//! What open transactions between subtrees hold (R18). Whoever meets it waits, so that nobody sees half of one.

use bytes::Bytes;
use pando_proto::Ino;
use pando_proto::mds::TransactionRecord;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::transaction::{all_comes, all_goes, hands_on};

#[derive(Debug, Default)]
pub(crate) struct Locks {
    names: FxHashSet<(Ino, Bytes)>,
    inodes: FxHashSet<Ino>,
    /// Directories of the names, with their number.
    dirs: FxHashMap<Ino, u32>,
}

impl Locks {
    pub fn is_empty(&self) -> bool {
        self.dirs.is_empty() && self.inodes.is_empty()
    }

    pub fn has_name(&self, dir: Ino, name: &Bytes) -> bool {
        self.dirs.contains_key(&dir) && self.names.contains(&(dir, name.clone()))
    }

    pub fn has_inode(&self, ino: Ino) -> bool {
        self.inodes.contains(&ino)
    }

    /// A name in it is locked.
    pub fn is_in(&self, dir: Ino) -> bool {
        self.dirs.contains_key(&dir)
    }

    pub fn lock(&mut self, record: &TransactionRecord) {
        for (dir, name) in names(record) {
            if self.names.insert((dir, name)) {
                *self.dirs.entry(dir).or_default() += 1;
            }
        }
        self.inodes.extend(inodes(record));
    }

    /// Yields what somebody may wait for. `committed`: what a participant hands on stays locked.
    pub fn unlock(&mut self, record: &TransactionRecord, committed: bool) -> SmallVec<[Ino; 4]> {
        let mut freed = SmallVec::new();
        for (dir, name) in names(record) {
            if self.names.remove(&(dir, name))
                && let Some(count) = self.dirs.get_mut(&dir)
            {
                *count -= 1;
                if *count == 0 {
                    self.dirs.remove(&dir);
                }
            }
            freed.push(dir);
        }
        for ino in inodes(record) {
            if !(committed && all_goes(record).any(|goes| hands_on(goes) && goes.ino == ino.0)) {
                self.inodes.remove(&ino);
                freed.push(ino);
            }
        }
        freed
    }

    pub fn unlock_inode(&mut self, ino: Ino) {
        self.inodes.remove(&ino);
    }
}

fn names(record: &TransactionRecord) -> SmallVec<[(Ino, Bytes); 2]> {
    // Copied, so that they do not keep a message's buffer alive (I8).
    let copied = |dir: u64, name: &Bytes| (Ino(dir), Bytes::copy_from_slice(name));
    let goes = all_goes(record).map(|goes| copied(goes.dir, &goes.name));
    goes.chain(all_comes(record).map(|comes| copied(comes.dir, &comes.name))).collect()
}

/// What goes, what comes with its record, what is replaced, and of what names change.
fn inodes(record: &TransactionRecord) -> SmallVec<[Ino; 4]> {
    let given = all_goes(record).filter(|goes| goes.gives).map(|goes| Ino(goes.ino));
    let got = all_comes(record).filter(|comes| !comes.inode.is_empty()).map(|comes| Ino(comes.ino));
    let replaced = all_comes(record).filter(|comes| comes.replaces != 0 && !comes.leaves);
    let replaced = replaced.map(|comes| Ino(comes.replaces));
    given.chain(got).chain(replaced).chain(record.links.iter().map(|change| Ino(change.ino))).collect()
}
