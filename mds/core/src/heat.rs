//! Where in the subtree the operations are: counted by sampling, for the balancer.

use std::collections::BTreeMap;

use bytes::Bytes;
use pando_proto::Ino;

use crate::Namespace;
use crate::cache::Slot;

/// Of so many operations one is counted.
const SAMPLE: u32 = 8;
/// Directories that are told apart between two calls.
const MAX_DIRECTORIES: usize = 4096;
/// Steps from an inode to the root.
const MAX_CLIMB: u32 = 256;

#[derive(Debug, Default)]
pub(crate) struct Heat {
    /// Where the operation that runs is: the last directory of its path, or the inode of its handle.
    pub at: Ino,
    skipped: u32,
    counts: BTreeMap<Ino, f64>,
}

impl Namespace {
    /// Child directories of the root (ino, name) with the operations in and below them since the last call. A name
    /// that is not in memory is empty.
    pub fn heat(&mut self) -> Vec<(Ino, Bytes, f64)> {
        let counts = std::mem::take(&mut self.heat.counts);
        let name = |ino| match self.cache.peek(ino).map(|node| &node.inode) {
            Some(Slot::Present(inode)) => inode.name.clone(),
            _ => Bytes::new(),
        };
        counts.into_iter().map(|(ino, count)| (ino, name(ino), count)).collect()
    }

    /// An operation was decided.
    pub(crate) fn count_heat(&mut self) {
        self.heat.skipped += 1;
        if self.heat.skipped < SAMPLE {
            return;
        }
        self.heat.skipped = 0;
        if let Some(dir) = self.below_root(self.heat.at)
            && (self.heat.counts.len() < MAX_DIRECTORIES || self.heat.counts.contains_key(&dir))
        {
            *self.heat.counts.entry(dir).or_default() += f64::from(SAMPLE);
        }
    }

    /// The child directory of the root that leads to an inode, as far as memory knows.
    fn below_root(&self, mut at: Ino) -> Option<Ino> {
        for _ in 0..MAX_CLIMB {
            let Slot::Present(inode) = &self.cache.peek(at)?.inode else { return None };
            let above = Ino(inode.parent);
            if above == self.config.root {
                return (at != above && crate::inode::is_dir(inode)).then_some(at);
            }
            at = above;
        }
        None
    }
}
