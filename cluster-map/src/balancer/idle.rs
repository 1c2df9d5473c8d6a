//! Subtrees that nobody needs any more go back into their parents, a few at a time.

use std::collections::BTreeSet;

use pando_proto::SubtreeId;

use super::wishes::{Wish, wish};
use super::{Cause, Plan};
use crate::map::Subtree;

/// How much longer a subtree has to be idle before it is brought to its parent's rank.
const FAR: u64 = 4;

impl<'a> Plan<'a> {
    pub(super) fn merge_idle(&mut self, reasons: &mut Vec<String>) {
        let parents: BTreeSet<SubtreeId> = self.map.subtrees.values().filter_map(|subtree| subtree.parent).collect();
        let mut merging = BTreeSet::new();
        for (id, subtree) in self.map.subtrees.iter().filter(|(id, _)| !parents.contains(id)) {
            let Some((parent_id, parent)) = self.can_go(*id, subtree) else { continue };
            let near = subtree.owner == parent.owner;
            let rounds = if near { self.policy.idle } else { self.policy.idle.saturating_mul(FAR) };
            if !self.history.is_idle(*id, rounds) {
                continue;
            }
            if near && self.merges.len() < self.policy.max_merges {
                // Its parent is opened anew by each.
                if merging.insert(parent_id)
                    && !self.history.was_asked_to_merge(*id)
                    && !self.splits.iter().any(|split| split.subtree == parent_id)
                {
                    self.merges.push(*id);
                }
            } else if !near && self.moves.is_empty() && self.has_leisure() && self.is_target(parent.owner) {
                let reason = format!("idle, and goes to {parent_id}, into which it can be merged then");
                self.go(*id, parent.owner, Cause::Load, reason);
                reasons.push("an idle subtree goes to its parent's rank".to_owned());
            }
        }
        if !self.merges.is_empty() {
            reasons.push("a subtree that was split off for load is idle: it goes back into its parent".to_owned());
        }
    }

    /// Its parent, if the subtree is not wanted by a person and stands still.
    fn can_go(&self, id: SubtreeId, subtree: &Subtree) -> Option<(SubtreeId, &'a Subtree)> {
        let parent_id = subtree.parent?;
        let parent = self.map.subtrees.get(&parent_id)?;
        let unwanted = subtree.automatic && !subtree.spread && wish(self.map, id) == Wish::Free;
        let still = self.is_still(id, subtree) && self.is_still(parent_id, parent);
        (unwanted && still).then_some((parent_id, parent))
    }

    /// No rank has much to do.
    fn has_leisure(&self) -> bool {
        self.busy.values().all(|busy| *busy < f64::from(self.policy.saturation) / 2.0)
    }
}
