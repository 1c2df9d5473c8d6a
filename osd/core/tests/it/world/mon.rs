//! What the mon decides.

use super::*;

impl World {
    pub(super) fn confirm(&mut self, joiner: OsdId, config: u64) {
        if self.map.config != config || !self.map.joining.contains(&joiner) {
            return;
        }
        self.map.joining.retain(|osd| *osd != joiner);
        self.map.members.push(joiner);
        if self.faults && self.map.members.len() > 2 && self.dice.one_in(3) {
            // A move to another OSD: somebody leaves, the primary perhaps, and is there no more until it joins again.
            let leaving = self.dice.below(self.map.members.len() - 1);
            self.map.members.remove(leaving);
        }
        self.map.config += 1;
        self.map.epoch += 1;
    }

    pub(super) fn demote(&mut self, member: OsdId, config: u64) {
        if self.map.config != config || !self.map.members.contains(&member) || self.map.members.len() < 2 {
            return;
        }
        self.map.members.retain(|osd| *osd != member);
        self.map.joining.push(member);
        self.map.config += 1;
        self.map.epoch += 1;
    }

    /// Whether the mon hears of it. If not, its lease has ended by the time the mon acts.
    pub(super) fn is_up(&self, node: usize) -> bool {
        self.nodes[node].alive && !self.isolated[node]
    }

    /// The mon notices who is gone, and gives places to those that have none. The last member stays (R26).
    pub(super) fn mon(&mut self) {
        for node in 0..NODES {
            if self.is_up(node) {
                let placed = self.map.members.contains(&id(node)) || self.map.joining.contains(&id(node));
                if !placed {
                    self.map.joining.push(id(node));
                    self.map.epoch += 1;
                }
                continue;
            }
            if self.map.joining.contains(&id(node)) {
                self.map.joining.retain(|osd| *osd != id(node));
                self.map.config += 1;
                self.map.epoch += 1;
            }
            let another = self.map.members.iter().any(|osd| self.is_up(osd.0 as usize));
            if self.map.members.contains(&id(node)) && another {
                self.map.members.retain(|osd| *osd != id(node));
                self.map.config += 1;
                self.map.epoch += 1;
            }
        }
    }
}
