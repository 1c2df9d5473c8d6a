//! The tree of subtrees as the map has it, made once for all subtrees of a rank.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use pando_cluster_map::ClusterMap;
use pando_mds_core::{Forest, Tree};
use pando_proto::{Ino, SubtreeId};

/// The tree of the newest map that a subtree of this rank has seen.
#[derive(Clone, Default)]
pub(crate) struct Trees(Rc<RefCell<Option<Newest>>>);

type Newest = (Arc<ClusterMap>, Rc<Shape>);

/// How subtrees lie to each other. Two maps between which that has not changed have the very same.
#[derive(Debug)]
pub(crate) struct Shape {
    forest: Arc<Forest>,
    children: BTreeMap<SubtreeId, Vec<(SubtreeId, Ino)>>,
}

impl Trees {
    pub fn of(&self, map: &Arc<ClusterMap>) -> Rc<Shape> {
        let mut known = self.0.borrow_mut();
        let shape = match &*known {
            Some((before, shape)) if same_shape(before, map) => Rc::clone(shape),
            _ => Rc::new(Shape::new(map)),
        };
        if known.as_ref().is_none_or(|(before, _)| before.epoch < map.epoch) {
            *known = Some((Arc::clone(map), Rc::clone(&shape)));
        }
        shape
    }
}

impl Shape {
    fn new(map: &ClusterMap) -> Self {
        let merges = map.lineage.iter().filter(|lineage| lineage.merged);
        let forest = Forest {
            roots: map.subtrees.iter().map(|(id, subtree)| (subtree.root, *id)).collect(),
            merged: merges.map(|lineage| (lineage.child, lineage.parent)).collect(),
        };
        let mut children: BTreeMap<SubtreeId, Vec<(SubtreeId, Ino)>> = BTreeMap::new();
        for (id, subtree) in &map.subtrees {
            if let Some((parent, dir)) = subtree.parent.zip(subtree.parent_dir) {
                children.entry(parent).or_default().push((*id, dir));
            }
        }
        Self { forest: Arc::new(forest), children }
    }

    /// As it is seen from a subtree; `map` is the one that this is of.
    pub fn seen_from(&self, subtree: SubtreeId, map: &ClusterMap) -> Tree {
        Tree {
            subtree,
            parent: map.subtrees.get(&subtree).and_then(|subtree| subtree.parent.zip(subtree.parent_dir)),
            forest: Arc::clone(&self.forest),
            children: self.children.get(&subtree).cloned().unwrap_or_default(),
        }
    }
}

/// Whether the subtrees lie to each other as before.
fn same_shape(one: &Arc<ClusterMap>, other: &Arc<ClusterMap>) -> bool {
    Arc::ptr_eq(one, other)
        || one.subtrees.len() == other.subtrees.len()
            && one.subtrees.iter().zip(&other.subtrees).all(|((one_id, one), (other_id, other))| {
                (one_id, one.root, one.parent, one.parent_dir) == (other_id, other.root, other.parent, other.parent_dir)
            })
}

#[cfg(test)]
mod tests {
    use pando_cluster_map::Subtree;
    use pando_proto::Epoch;

    use super::*;

    const DIR: Ino = Ino(7 << 40);

    fn map(epoch: u64, child_of: u64) -> Arc<ClusterMap> {
        let mut map = ClusterMap { epoch: Epoch(epoch), ..ClusterMap::default() };
        for id in 1..4_u64 {
            let parent = match id {
                1 => None,
                3 => Some(SubtreeId(child_of)),
                _ => Some(SubtreeId(1)),
            };
            let root = Ino(id << 40);
            let subtree = Subtree { root, parent, parent_dir: parent.map(|_| DIR), ..Subtree::default() };
            map.subtrees.insert(SubtreeId(id), subtree);
        }
        Arc::new(map)
    }

    #[test]
    fn i8_all_subtrees_of_a_rank_share_one_forest() {
        let trees = Trees::default();
        let first = trees.of(&map(1, 1));
        let (one, two) = (first.seen_from(SubtreeId(1), &map(1, 1)), first.seen_from(SubtreeId(2), &map(1, 1)));
        assert!(Arc::ptr_eq(&one.forest, &two.forest));
        assert_eq!(one.forest.roots.len(), 3);
        assert_eq!((one.children, one.parent), (vec![(SubtreeId(2), DIR), (SubtreeId(3), DIR)], None));
        assert_eq!((two.children, two.parent), (vec![], Some((SubtreeId(1), DIR))));
        // A map that changes something else changes nothing here.
        assert!(Rc::ptr_eq(&first, &trees.of(&map(2, 1))));
        let moved = trees.of(&map(3, 2));
        assert_eq!(moved.seen_from(SubtreeId(2), &map(3, 2)).children, [(SubtreeId(3), DIR)]);
        // Somebody is still at an older map: it is not taken for the newest one.
        let late = trees.of(&map(2, 1));
        assert_eq!(late.seen_from(SubtreeId(2), &map(2, 1)).children, []);
        assert!(Rc::ptr_eq(&moved, &trees.of(&map(4, 2))));
    }
}
