//! What open transactions between subtrees hold (R18). Whoever meets it waits, so that nobody sees half of one.

use bytes::Bytes;
use pando_proto::Ino;
use pando_proto::mds::TransactionRecord;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

#[derive(Debug, Default)]
pub(crate) struct Locks {
    names: FxHashSet<(Ino, Bytes)>,
    inodes: FxHashSet<Ino>,
    /// Directories of the names, with their number.
    dirs: FxHashMap<Ino, u32>,
}

impl Locks {
    pub fn is_empty(&self) -> bool {
        self.dirs.is_empty()
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

    /// Yields what somebody may wait for.
    pub fn unlock(&mut self, record: &TransactionRecord) -> SmallVec<[Ino; 4]> {
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
            self.inodes.remove(&ino);
            freed.push(ino);
        }
        freed
    }
}

fn names(record: &TransactionRecord) -> SmallVec<[(Ino, Bytes); 2]> {
    // Copied, so that they do not keep a message's buffer alive (I8).
    let copied = |dir: u64, name: &Bytes| (Ino(dir), Bytes::copy_from_slice(name));
    let goes = record.goes.iter().map(|goes| copied(goes.dir, &goes.name));
    goes.chain(record.comes.iter().map(|comes| copied(comes.dir, &comes.name))).collect()
}

fn inodes(record: &TransactionRecord) -> SmallVec<[Ino; 2]> {
    let given = record.goes.iter().filter(|goes| goes.gives).map(|goes| Ino(goes.ino));
    let replaced = record.comes.iter().filter(|comes| comes.replaces != 0).map(|comes| Ino(comes.replaces));
    given.chain(replaced).collect()
}
