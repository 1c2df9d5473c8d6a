//! Where this subtree ends and others go on (R15, R16).

use std::collections::BTreeMap;

use pando_proto::{Ino, SubtreeId};

use crate::Namespace;

/// The tree of subtrees, as the map has it, seen from one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// This one.
    pub subtree: SubtreeId,
    /// The subtree that has the name of this one's root, and the directory it is in; `None` for the root subtree.
    pub parent: Option<(SubtreeId, Ino)>,
    /// Roots of all other subtrees.
    pub roots: BTreeMap<Ino, SubtreeId>,
    /// Subtrees whose roots have their names here, with the directories these are in.
    pub children: Vec<(SubtreeId, Ino)>,
}

impl Namespace {
    /// The tree of subtrees from now on. What passes to another subtree by it must have left the cache
    /// before ([`begin_split`](Self::begin_split)); what comes from another one was never in it.
    pub fn set_tree(&mut self, tree: Tree) {
        self.tree = tree;
    }
}
