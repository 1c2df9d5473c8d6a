//! A subtree becomes part of the one above it: what is in memory of both is joined.

use crate::Namespace;
use crate::cache::Run;
use crate::cache::join::Sifting;

/// A joining of two caches under way.
#[derive(Debug)]
pub struct Joining {
    child: Namespace,
    own: Sifting,
    childs: Sifting,
}

impl Namespace {
    /// Begins to take in what is in memory of a child that is merged into this subtree. Both stand still until
    /// [`end_join`](Self::end_join), all their batches are durable, and they know the tree as it was before.
    pub fn begin_join(&mut self, child: Self) -> Joining {
        debug_assert!(self.cache.is_clean() && child.cache.is_clean(), "R11: drained before a merge");
        let (above, below) = (self.config.root, child.config.root);
        let own = self.cache.begin_sift(above, self.tree.forest.roots.keys().copied().chain([below]));
        let childs = child.cache.begin_sift(below, child.tree.forest.roots.keys().copied().chain([above]));
        Joining { child, own, childs }
    }

    /// Looks at up to `max_items` items (R27); true: there are more.
    pub fn join_slice(&mut self, joining: &mut Joining, max_items: usize) -> bool {
        let mut leftover: Vec<Run> = Vec::new();
        let Joining { child, own, childs } = joining;
        let more = self.cache.sift(own, max_items, &mut leftover)
            || child.cache.sift(childs, max_items, &mut leftover)
            || self.cache.take_over(&mut child.cache, max_items);
        leftover.into_iter().for_each(|run| self.inos.give_back(run));
        more
    }

    /// Takes in what is left, and the inos that the child had to give out. What both have is one subtree now; the
    /// tree that says so comes with [`set_tree`](Self::set_tree).
    pub fn end_join(&mut self, mut joining: Joining) {
        while self.join_slice(&mut joining, usize::MAX) {}
        self.inos.take_over(joining.child.inos);
    }
}
