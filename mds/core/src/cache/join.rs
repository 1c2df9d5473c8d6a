//! Joining the cache of a subtree to that of the one which it is merged into (R11).
//!
//! A cache may hold inodes of others for a moment: those on the way from an inode known by its number to a root, whose
//! operation has not come to its end. Once two subtrees are one they would be taken for its own, old as they may be.
//! So first each side keeps what is certain to be its own: written here, or found by a name here.

use pando_proto::Ino;
use rustc_hash::FxHashMap;

use super::names::State;
use super::{Cache, Run, Slot};

/// A look at everything in a cache, under way.
#[derive(Debug)]
pub(crate) struct Sifting {
    nodes: usize,
    bodies: usize,
    /// Whether these belong here.
    known: FxHashMap<Ino, bool>,
}

impl Cache {
    /// Begins to sift what belongs to the subtree of `root`. What is below the `foreign` does not.
    pub fn begin_sift(&self, root: Ino, foreign: impl Iterator<Item = Ino>) -> Sifting {
        let mut known: FxHashMap<Ino, bool> = foreign.map(|ino| (ino, false)).collect();
        known.insert(root, true);
        Sifting { nodes: self.nodes.len(), bodies: self.bodies.len(), known }
    }

    /// Looks at up to `max_items` and forgets those that may be of others; true: there are more. The order of use is
    /// kept. Leftover inos of what is forgotten go to `leftover`.
    pub fn sift(&mut self, sifting: &mut Sifting, max_items: usize, leftover: &mut Vec<Run>) -> bool {
        for _ in 0..max_items.max(1) {
            if sifting.nodes > 0 {
                sifting.nodes -= 1;
                let Some(ino) = self.nodes.peek_lru().map(|(ino, _)| *ino) else { continue };
                if self.is_surely_own(sifting, ino) {
                    self.nodes.promote(&ino);
                } else {
                    leftover.extend(self.remove_node(ino).map(|node| node.run).filter(|run| run.next < run.end));
                }
            } else if sifting.bodies > 0 {
                sifting.bodies -= 1;
                let Some(ino) = self.bodies.peek_lru().map(|(ino, _)| *ino) else { continue };
                if self.nodes.contains(&ino) {
                    self.bodies.promote(&ino);
                } else {
                    self.remove_body(ino);
                }
            } else {
                return false;
            }
        }
        true
    }

    /// By names in memory, up to the root or to what was written here. A name is fetched only of directories that are
    /// known to be of this subtree, and goes when what it names is given away.
    fn is_surely_own(&self, sifting: &mut Sifting, ino: Ino) -> bool {
        let (mut at, mut passed) = (ino, Vec::new());
        let own = loop {
            if let Some(own) = sifting.known.get(&at) {
                break *own;
            }
            let Some(node) = self.nodes.peek(&at) else { break false };
            let Slot::Present(inode) = &node.inode else { break false };
            if node.own {
                break true;
            }
            let above = Ino(inode.parent);
            let names = self.nodes.peek(&above).and_then(|dir| dir.names.as_ref());
            let named = names.and_then(|names| names.known(&inode.name));
            let is_named = matches!(named, Some(State::Present(dentry)) if dentry.ino == at);
            if inode.dead || !is_named || passed.len() > self.nodes.len() {
                break false;
            }
            passed.push(at);
            at = above;
        };
        // Of files nobody asks again.
        sifting.known.extend(passed.into_iter().skip_while(|at| *at == ino).map(|dir| (dir, own)));
        own
    }

    /// Moves up to `max_items` of another cache, which was sifted, here; true: there are more.
    pub fn take_over(&mut self, other: &mut Self, max_items: usize) -> bool {
        self.sequence = self.sequence.max(other.sequence);
        for _ in 0..max_items.max(1) {
            if let Some(ino) = other.nodes.peek_lru().map(|(ino, _)| *ino) {
                if let Some(node) = other.remove_node(ino) {
                    self.remove_node(ino);
                    self.take_in(ino, node);
                }
            } else if let Some((ino, body)) = other.bodies.pop_lru() {
                let (bytes, dirty) = body.costs();
                other.body_bytes -= bytes;
                other.dirty_bytes -= dirty;
                self.remove_body(ino);
                self.body_bytes += bytes;
                self.dirty_bytes += dirty;
                self.bodies.push(ino, body);
            } else {
                return false;
            }
        }
        true
    }
}
