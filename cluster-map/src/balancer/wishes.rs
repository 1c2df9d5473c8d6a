//! What people asked for goes before load: drained ranks, pins, spreads.

use std::collections::BTreeMap;

use pando_proto::{Rank, SubtreeId};

use super::{Cause, Plan};
use crate::map::ClusterMap;

/// Where a subtree is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Anywhere.
    Free,
    /// At the rank to which it, or the nearest subtree above it that has one, is pinned.
    Pinned(Rank),
    /// One of those that are dealt over the ranks, of this parent.
    Dealt(SubtreeId),
}

/// The wish that holds for a subtree: the nearest one, going up.
pub(super) fn wish(map: &ClusterMap, id: SubtreeId) -> Wish {
    let mut at = id;
    for _ in 0..=map.subtrees.len() {
        let Some(subtree) = map.subtrees.get(&at) else { break };
        if let Some(pin) = subtree.pin {
            return Wish::Pinned(pin);
        }
        let Some((parent_id, parent)) = subtree.parent.and_then(|id| Some((id, map.subtrees.get(&id)?))) else { break };
        if parent.spread && subtree.parent_dir == Some(parent.root) {
            return if at == id { Wish::Dealt(parent_id) } else { Wish::Free };
        }
        at = parent_id;
    }
    Wish::Free
}

/// The rank to which a subtree, or the nearest one above it that has a wish, is pinned.
pub fn pinned_to(map: &ClusterMap, id: SubtreeId) -> Option<Rank> {
    match wish(map, id) {
        Wish::Pinned(rank) => Some(rank),
        Wish::Free | Wish::Dealt(_) => None,
    }
}

impl Plan<'_> {
    /// Empties ranks that drain.
    pub(super) fn drain(&mut self, reasons: &mut Vec<String>) {
        let drains = |rank: Rank| self.map.ranks.get(&rank).is_some_and(|info| info.draining);
        let leaving =
            self.map.subtrees.iter().filter(|(id, subtree)| drains(subtree.owner) && self.is_still(**id, subtree));
        // The heaviest first, so that the others even out what it makes uneven.
        let mut leaving: Vec<_> = leaving.map(|(id, subtree)| (*id, subtree.owner)).collect();
        leaving.sort_by(|(a, _), (b, _)| self.weight(*b).total_cmp(&self.weight(*a)).then(a.cmp(b)));
        let mut stuck = false;
        for (id, from) in leaving.into_iter().take(self.policy.max_moves) {
            let pinned = match wish(self.map, id) {
                Wish::Pinned(rank) => Some(rank).filter(|rank| self.is_target(*rank)),
                _ => None,
            };
            let Some(to) = pinned.or_else(|| self.coldest()) else {
                stuck = true;
                continue;
            };
            self.go(id, to, Cause::Drain, format!("{from} is being drained"));
        }
        if stuck {
            reasons.push("a rank is being drained, but no other rank can take its subtrees".to_owned());
        } else if self.moves.iter().any(|one| one.cause == Cause::Drain) {
            reasons.push("a rank is being drained".to_owned());
        }
    }

    /// Brings pinned subtrees to their ranks.
    pub(super) fn pins(&mut self, reasons: &mut Vec<String>) {
        let mut stuck = false;
        for (id, subtree) in &self.map.subtrees {
            let Wish::Pinned(rank) = wish(self.map, *id) else { continue };
            if self.placed.get(id) == Some(&rank) || !self.is_still(*id, subtree) {
                continue;
            }
            if self.is_target(rank) {
                self.go(*id, rank, Cause::Pin, format!("pinned to {rank}"));
            } else {
                stuck = true;
            }
        }
        if self.moves.iter().any(|one| one.cause == Cause::Pin) {
            reasons.push("pinned subtrees go to their ranks".to_owned());
        }
        if stuck {
            reasons.push("a subtree is pinned to a rank that is down or being drained".to_owned());
        }
    }

    /// Deals the child directories of spread roots evenly over the ranks. Their owners make them subtrees.
    pub(super) fn spreads(&mut self, reasons: &mut Vec<String>) {
        let spread = self.map.subtrees.iter().filter(|(_, subtree)| subtree.spread);
        for (parent, _) in spread {
            self.deal(*parent);
        }
        if self.moves.iter().any(|one| one.cause == Cause::Spread) {
            reasons.push("child directories are spread over the ranks".to_owned());
        }
    }

    fn deal(&mut self, parent: SubtreeId) {
        let dealt = self.map.children(parent).map(|(id, _)| id);
        let dealt: Vec<_> = dealt.filter(|id| wish(self.map, *id) == Wish::Dealt(parent)).collect();
        // Each step makes the counts more even; no more steps than children are needed.
        for _ in 0..dealt.len().min(self.policy.max_moves) {
            let mut counts: BTreeMap<Rank, usize> = self.targets().map(|rank| (rank, 0)).collect();
            for id in &dealt {
                if let Some(rank) = self.placed.get(id) {
                    *counts.entry(*rank).or_default() += 1;
                }
            }
            let fewest =
                counts.iter().filter(|(rank, _)| self.is_target(**rank)).min_by_key(|(rank, count)| (**count, **rank));
            let Some((to, few)) = fewest.map(|(rank, count)| (*rank, *count)) else { return };
            let surplus = |id: &&SubtreeId| {
                let many = self.placed.get(id).and_then(|rank| counts.get(rank)).copied().unwrap_or(0);
                many > few + 1 && self.map.subtrees.get(id).is_some_and(|subtree| self.is_still(**id, subtree))
            };
            let most = |id: &&SubtreeId| self.placed.get(id).and_then(|rank| counts.get(rank)).copied();
            let best = dealt.iter().filter(surplus).max_by_key(|id| (most(id), std::cmp::Reverse(**id)));
            let Some(id) = best.copied() else { return };
            self.go(id, to, Cause::Spread, format!("child directory of {parent}, which is spread"));
        }
    }
}
