//! A directory becomes a subtree: what is in memory of it parts from the rest.

use pando_proto::Ino;

use crate::cache::Run;
use crate::cache::part::Parting;
use crate::{Config, Namespace};

/// A split of the cache under way.
#[derive(Debug)]
pub struct Splitting {
    namespace: Namespace,
    parting: Parting,
}

impl Namespace {
    /// Begins to move what is in memory of the directory `root` and below to a namespace of its own, with
    /// `config` (whose root is `root`). Nothing runs here until [`end_split`](Self::end_split), and all batches are
    /// durable.
    pub fn begin_split(&mut self, root: Ino, config: Config) -> Splitting {
        debug_assert!(self.cache.is_clean(), "R11: drained before a split");
        let mut namespace = Namespace::new(Config { root, ..config });
        let parting = self.cache.begin_part(self.config.root, root, &mut namespace.cache);
        Splitting { namespace, parting }
    }

    /// Looks at up to `max_items` items (R27); true: there are more.
    pub fn split_slice(&mut self, splitting: &mut Splitting, max_items: usize) -> bool {
        let mut leftover: Vec<Run> = Vec::new();
        let other = &mut splitting.namespace.cache;
        let more = self.cache.part(&mut splitting.parting, other, max_items, &mut leftover);
        leftover.into_iter().for_each(|run| self.inos.give_back(run));
        more
    }

    /// Moves what is left and returns the namespace of the new subtree. It knows no tree yet, and has no
    /// inos but those that its directories took before.
    pub fn end_split(&mut self, mut splitting: Splitting) -> Namespace {
        while self.split_slice(&mut splitting, usize::MAX) {}
        splitting.namespace
    }
}
