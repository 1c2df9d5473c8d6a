//! Where this subtree ends and others go on (R15, R16).

use std::collections::BTreeMap;
use std::sync::Arc;

use pando_proto::{Errno, Ino, SubtreeId};
use smallvec::SmallVec;

use crate::Namespace;
use crate::api::{Crossing, Fetch};
use crate::inode::{Inode, is_dir};
use crate::records::Key;
use crate::stop::{Step, Stop};
use crate::view::{MAX_DEPTH, View};

/// The tree of subtrees, as the map has it, seen from one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// This one.
    pub subtree: SubtreeId,
    /// The subtree that has the name of this one's root, and the directory it is in; `None` for the root subtree.
    pub parent: Option<(SubtreeId, Ino)>,
    /// What is the same from wherever it is seen.
    pub forest: Arc<Forest>,
    /// Subtrees whose roots have their names here, with the directories these are in.
    pub children: Vec<(SubtreeId, Ino)>,
}

/// All subtrees; those of one rank share it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forest {
    /// Roots of all subtrees.
    pub roots: BTreeMap<Ino, SubtreeId>,
    /// What subtrees that are no more were merged into (perhaps another such one).
    pub merged: BTreeMap<SubtreeId, SubtreeId>,
}

impl Forest {
    /// A subtree, or what it has become part of.
    fn successor(&self, mut subtree: SubtreeId) -> SubtreeId {
        // None is met twice.
        for _ in 0..=self.merged.len() {
            match self.merged.get(&subtree) {
                Some(into) => subtree = *into,
                None => break,
            }
        }
        subtree
    }
}

impl Namespace {
    /// The tree of subtrees from now on. What passes to another subtree by it must have left the cache
    /// before ([`begin_split`](Self::begin_split)); what comes from another one was never in it.
    pub fn set_tree(&mut self, tree: Tree) {
        self.tree = tree;
    }
}

impl View<'_> {
    /// There is no other subtree.
    pub fn alone(&self) -> bool {
        self.ns.tree.forest.roots.len() < 2
    }

    /// The other subtree whose root this is.
    pub fn foreign_root(&self, ino: Ino) -> Option<SubtreeId> {
        if self.alone() {
            return None;
        }
        let tree = &self.ns.tree;
        tree.forest.roots.get(&ino).copied().filter(|subtree| *subtree != tree.subtree)
    }

    /// Notes that a target goes on elsewhere.
    pub fn cross(&mut self, crossing: Crossing) -> Stop {
        self.crossings.push(crossing);
        Stop::Cross
    }

    /// The target is this inode of another subtree.
    pub fn cross_to_inode(&mut self, subtree: SubtreeId, base: Ino) -> Stop {
        self.cross(Crossing { target: self.target, subtree, base, path: Default::default(), consumed: 0 })
    }

    /// The other subtree to which an inode known by its number belongs; `None` if it is of this one (R15). Found by
    /// climbing to a root. What turns out to be another's does not stay in memory beyond the operation.
    ///
    /// A removed inode that is open here, or that a session may come back for, is served where it is asked for:
    /// nothing leads from it to a root any more.
    pub fn owner(&mut self, ino: Ino) -> Step<Option<SubtreeId>> {
        let root = self.root();
        if ino == root || self.alone() {
            return Ok(None);
        }
        let mut climbed: SmallVec<[Ino; 16]> = SmallVec::new();
        let mut at = ino;
        loop {
            if at == root || self.ns.cache.peek(at).is_some_and(|node| node.own) {
                climbed.iter().for_each(|ino| self.ns.cache.mark_own(*ino));
                return Ok(None);
            }
            if let Some(subtree) = self.foreign_root(at) {
                self.foreign.extend(climbed);
                return Ok(Some(subtree));
            }
            let inode = if at.is_valid() { self.try_inode(at)? } else { None };
            let alive = inode.filter(|inode| !inode.dead);
            match alive {
                Some(inode) if climbed.len() < MAX_DEPTH as usize => {
                    climbed.push(at);
                    at = Ino(inode.parent);
                }
                None if at == ino => return self.nobodys(ino),
                // Its owner moves it while it is read: read it again.
                _ => {
                    climbed.iter().chain([&at]).for_each(|ino| self.ns.cache.forget_foreign(*ino));
                    return Err(self.want(Fetch::Record(Key::Inode(ino))));
                }
            }
        }
    }

    /// The operation needs nothing more: what it saw of other subtrees may be old by the next one.
    pub fn forget_foreign(&mut self) {
        for ino in std::mem::take(&mut self.foreign) {
            self.ns.cache.forget_foreign(ino);
        }
    }

    /// Nothing leads from this inode to a root: it is gone, or lives on for handles only.
    /// In the latter case the subtree that removed it is its owner, or what that was merged into.
    fn nobodys(&mut self, ino: Ino) -> Step<Option<SubtreeId>> {
        let held = self.ns.handles.is_open(ino) || self.ns.grace || self.ctx.awaited;
        if let Some(orphan) = self.try_inode(ino)? {
            if let Some(reaper) = self.other_reaper(&orphan) {
                self.foreign.push(ino);
                return Ok(Some(reaper));
            }
            if held {
                return Ok(None);
            }
        }
        self.foreign.push(ino);
        Err(Errno::ESTALE.into())
    }

    /// The other subtree to which a removed inode belongs: the one that removed it, or what that was merged into.
    pub fn other_reaper(&self, orphan: &Inode) -> Option<SubtreeId> {
        let forest = &self.ns.tree.forest;
        let reaper = forest.successor(SubtreeId(orphan.orphan_of));
        (reaper != self.ns.config.subtree && forest.roots.values().any(|other| *other == reaper)).then_some(reaper)
    }

    /// The way to subtrees below these directories is about to change: their routes are raised first (R16).
    pub fn raise_routes(&mut self, dirs: &[(Ino, &Inode)]) -> Step<()> {
        for (dir, inode) in dirs {
            self.note_routes(*dir, inode)?;
        }
        if self.routes.is_empty() { Ok(()) } else { Err(Stop::NeedRoutes) }
    }

    fn note_routes(&mut self, dir: Ino, inode: &Inode) -> Step<()> {
        let (root, count) = (self.root(), self.ns.tree.children.len());
        // Without a directory in it there is no subtree below it either.
        if count == 0 || !is_dir(inode) || inode.nlink <= 2 {
            return Ok(());
        }
        for at in 0..count {
            let (child, parent_dir) = self.ns.tree.children[at];
            if self.ctx.routes.contains(&child) || self.routes.contains(&child) {
                continue;
            }
            if dir == root || self.is_below(dir, parent_dir)? {
                self.routes.push(child);
            }
        }
        Ok(())
    }

    /// Whether `at`, a directory of this subtree, is `dir` or below it.
    pub fn is_below(&mut self, dir: Ino, mut at: Ino) -> Step<bool> {
        let root = self.root();
        for _ in 0..MAX_DEPTH {
            if at == dir {
                return Ok(true);
            }
            if at == root {
                return Ok(false);
            }
            // A map that is older or newer than what is here: nothing of it is below.
            let Some(inode) = self.try_inode(at)? else { return Ok(false) };
            at = Ino(inode.parent);
        }
        Ok(false)
    }
}
