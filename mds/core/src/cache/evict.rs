//! Keeping the budget (I8).
//!
//! Bodies may take what is free. When the budget is exceeded: a directory that
//! alone holds more than an eighth of it gives names first (by clock, so that
//! the names in use stay); else bodies go while they hold more than half of what is
//! used; else the list whose oldest item was unused for longer.

use pando_proto::Ino;

use super::names::{Name, Names};
use super::{Cache, Node, Run, Slot};
use crate::records::Key;

/// A directory with more than this part of the budget is a giant.
pub(super) const GIANT_SHARE: usize = 8;
/// Names looked at in one step.
const SLICE: usize = 64;

impl Cache {
    /// Evicts until the budget holds or `max_steps` items were looked at.
    /// True if there is more to do and a chance to do it. Leftover inos of evicted directories go to `leftover`.
    pub fn evict(&mut self, fixed: usize, max_steps: usize, leftover: &mut Vec<(Ino, Run)>) -> bool {
        for _ in 0..max_steps {
            let total = self.total(fixed);
            if total <= self.budget {
                self.futile = 0;
                return false;
            }
            self.partial = true;
            // Everything was looked at and nothing may go: wait until something becomes durable or unpinned.
            if self.futile > self.nodes.len() + self.bodies.len() + 1 {
                return false;
            }
            let went = self.evict_giant() || self.evict_coldest(total, leftover);
            self.futile = if went { 0 } else { self.futile + 1 };
        }
        true
    }

    fn total(&self, fixed: usize) -> usize {
        self.meta_bytes + self.body_bytes + fixed + self.touched_bytes + self.noted.bytes() + self.pins.bytes()
    }

    /// No room for what somebody else knew.
    pub(super) fn is_full(&self) -> bool {
        self.total(0) > self.budget
    }

    fn evict_giant(&mut self) -> bool {
        // After as many futile steps as this the clock had its chance; leave it to the lists.
        if self.futile > 2 {
            return false;
        }
        let Some(dir) = self.giants.pop_first() else { return false };
        let went = self.evict_names(dir, false, true) > 0;
        let share = self.budget / GIANT_SHARE;
        if self.nodes.peek(&dir).is_some_and(|node| node.names.as_ref().is_some_and(|names| names.bytes > share)) {
            self.giants.insert(dir);
        }
        went
    }

    fn evict_coldest(&mut self, total: usize, leftover: &mut Vec<(Ino, Run)>) -> bool {
        let node = self.nodes.peek_lru().map(|(ino, node)| (node.used, *ino));
        let body = self.bodies.peek_lru().map(|(ino, body)| (body.used, *ino));
        // If the last steps were futile, alternate: the one list may be all dirty.
        let turn = self.futile > 0 && self.futile.is_multiple_of(2);
        match (node, body) {
            (None, None) => false,
            (Some((_, ino)), None) => self.evict_node(ino, leftover),
            (None, Some((_, ino))) => self.evict_body(ino),
            (Some((node_used, node)), Some((body_used, body))) => {
                let bodies = (self.body_bytes * 2 > total || body_used < node_used) != turn;
                if bodies { self.evict_body(body) } else { self.evict_node(node, leftover) }
            }
        }
    }

    fn evict_body(&mut self, ino: Ino) -> bool {
        let Some(body) = self.bodies.peek(&ino) else { return false };
        if body.stamp.batch.is_some() || !self.settled(body.stamp.changed) || self.pins.has(&Key::Body(ino)) {
            self.bodies.promote(&ino);
            return false;
        }
        self.remove_body(ino);
        true
    }

    fn evict_node(&mut self, ino: Ino, leftover: &mut Vec<(Ino, Run)>) -> bool {
        let went = self.evict_names(ino, false, false) + self.evict_names(ino, true, false);
        let Some(node) = self.nodes.peek(&ino) else { return went > 0 };
        let bare = |names: &Option<Box<Names>>| names.as_ref().is_none_or(|names| names.is_empty());
        if !bare(&node.names) || !bare(&node.links) {
            // More slices to come: it stays the coldest as long as that helps.
            if went == 0 {
                self.nodes.promote(&ino);
            }
            return went > 0;
        }
        let known = !matches!(node.inode, Slot::Unknown);
        let pinned = known && self.pins.has(&Key::Inode(ino));
        let paged = !self.pins.pages(ino, false).is_empty() || !self.pins.pages(ino, true).is_empty();
        if node.stamp.batch.is_some() || !self.settled(node.stamp.changed) || pinned || paged {
            self.nodes.promote(&ino);
            return went > 0;
        }
        if let Some(Node { run, .. }) = self.remove_node(ino)
            && run.next < run.end
        {
            leftover.push((ino, run));
        }
        true
    }

    /// Forgets a slice of names (or links) of an inode.
    fn evict_names(&mut self, ino: Ino, links: bool, second_chance: bool) -> usize {
        let Some(node) = self.nodes.peek_mut(&ino) else { return 0 };
        let slot = if links { &mut node.links } else { &mut node.names };
        let Some(names) = slot.as_mut().filter(|names| !names.is_empty()) else { return 0 };
        let pages: Vec<_> = self
            .pins
            .pages(ino, links)
            .iter()
            .map(|(after, limit)| (after.clone(), names.nth_after(after, *limit as usize).cloned()))
            .collect();
        let (pins, oldest) = (&self.pins, self.fetches.first().copied());
        let may_go = |name: &bytes::Bytes, entry: &Name| {
            oldest.is_none_or(|oldest| entry.stamp.changed < oldest)
                && !pages.iter().any(|(after, to)| name >= after && to.as_ref().is_none_or(|to| name <= to))
                && !(pins.has_records() && pins.has(&Key::Dentry(ino, name.clone())))
        };
        let before = names.bytes;
        let went = names.evict(SLICE, second_chance, may_go);
        self.meta_bytes -= before - names.bytes;
        if went > 0 {
            self.noted.cut(ino);
        }
        went
    }
}
