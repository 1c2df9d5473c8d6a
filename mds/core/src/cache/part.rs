//! Dividing a cache between a subtree and one that is split off it (R11).
//!
//! Both lists are turned once around, item by item, so that the order of use is kept on both sides and a
//! slice may end anywhere (R27).

use pando_proto::Ino;
use rustc_hash::FxHashMap;

use super::evict::GIANT_SHARE;
use super::{Cache, Node, Run, Slot};
use crate::inode::is_dir;

/// Where an inode belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Stays,
    Goes,
    /// Memory does not say: it is forgotten, as a copy on the wrong side would be an old one some day.
    Unknown,
}

/// A division under way.
#[derive(Debug)]
pub(crate) struct Parting {
    /// Roots of what stays and what goes.
    roots: (Ino, Ino),
    nodes: usize,
    bodies: usize,
    /// Of directories.
    sides: FxHashMap<Ino, Side>,
}

impl Cache {
    /// Begins to part what is below `goes` from what is below `stays`; it goes to `other`, which is empty.
    pub fn begin_part(&mut self, stays: Ino, goes: Ino, other: &mut Self) -> Parting {
        other.sequence = self.sequence;
        Parting {
            roots: (stays, goes),
            nodes: self.nodes.len(),
            bodies: self.bodies.len(),
            sides: FxHashMap::default(),
        }
    }

    /// Looks at up to `max_items`; true: there are more. Leftover inos of what is forgotten go to `leftover`.
    pub fn part(&mut self, parting: &mut Parting, other: &mut Self, max_items: usize, leftover: &mut Vec<Run>) -> bool {
        for _ in 0..max_items.max(1) {
            if parting.nodes > 0 {
                parting.nodes -= 1;
                self.part_node(parting, other, leftover);
            } else if parting.bodies > 0 {
                parting.bodies -= 1;
                self.part_body(other);
            } else {
                return false;
            }
        }
        true
    }

    fn part_node(&mut self, parting: &mut Parting, other: &mut Self, leftover: &mut Vec<Run>) {
        let Some(ino) = self.nodes.peek_lru().map(|(ino, _)| *ino) else { return };
        match self.side(parting, ino) {
            Side::Stays => {
                self.nodes.promote(&ino);
            }
            Side::Goes => {
                if let Some(node) = self.remove_node(ino) {
                    other.take_in(ino, node);
                }
            }
            Side::Unknown => {
                leftover.extend(self.remove_node(ino).map(|node| node.run).filter(|run| run.next < run.end))
            }
        }
    }

    fn part_body(&mut self, other: &mut Self) {
        let Some(ino) = self.bodies.peek_lru().map(|(ino, _)| *ino) else { return };
        if self.nodes.contains(&ino) {
            self.bodies.promote(&ino);
        } else if other.nodes.contains(&ino) {
            let Some(body) = self.bodies.pop(&ino) else { return };
            let (bytes, dirty) = body.costs();
            self.body_bytes -= bytes;
            self.dirty_bytes -= dirty;
            other.body_bytes += bytes;
            other.dirty_bytes += dirty;
            other.bodies.push(ino, body);
        } else {
            self.remove_body(ino);
        }
    }

    pub(super) fn take_in(&mut self, ino: Ino, node: Node) {
        let (bytes, dirty) = node.costs();
        self.meta_bytes += bytes;
        self.dirty_bytes += dirty;
        if node.names.as_ref().is_some_and(|names| names.bytes > self.budget / GIANT_SHARE) {
            self.giants.insert(ino);
        }
        self.nodes.push(ino, node);
    }

    /// Climbs to either root. Directories that were passed on are remembered, as they are not here any more.
    fn side(&self, parting: &mut Parting, ino: Ino) -> Side {
        let (mut at, mut passed, (stays, goes)) = (ino, Vec::new(), parting.roots);
        let side = loop {
            if at == goes {
                break Side::Goes;
            }
            if at == stays {
                break Side::Stays;
            }
            if let Some(side) = parting.sides.get(&at) {
                break *side;
            }
            let known = self.nodes.peek(&at).map(|node| &node.inode);
            let Some(Slot::Present(inode)) = known else { break Side::Unknown };
            // An orphan is where it was; a cycle is nowhere.
            if inode.dead || passed.len() > self.nodes.len() {
                break Side::Unknown;
            }
            if is_dir(inode) {
                passed.push(at);
            }
            at = Ino(inode.parent);
        };
        parting.sides.extend(passed.into_iter().map(|dir| (dir, side)));
        side
    }
}
