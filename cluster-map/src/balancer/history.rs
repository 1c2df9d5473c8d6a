//! What was seen in the rounds before. In the leader's memory only: a new leader looks for a while before it acts.

use std::collections::BTreeMap;

use pando_proto::{Epoch, Ino, Rank, SubtreeId};

use super::{Cause, Decision, Load, Policy};
use crate::map::ClusterMap;

/// Operations per second below which a subtree counts as idle.
const IDLE_OPS: f64 = 0.1;
/// Rounds after which a directory that was not split is asked for again.
const ASK_AGAIN: u64 = 3;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct History {
    round: u64,
    /// Rounds in a row in which a rank was near saturation.
    saturated: BTreeMap<Rank, u64>,
    /// Who owned what, under which epoch.
    owners: BTreeMap<SubtreeId, (Rank, Epoch)>,
    /// When a subtree was last seen to have moved, or to be moving.
    moved: BTreeMap<SubtreeId, u64>,
    /// When anything was.
    changed: Option<u64>,
    /// When a subtree was first seen, if there was a round before.
    born: BTreeMap<SubtreeId, u64>,
    /// Since when a subtree has no load.
    idle: BTreeMap<SubtreeId, u64>,
    /// When an owner was asked to split, or to merge.
    asked_split: BTreeMap<Ino, u64>,
    asked_merge: BTreeMap<SubtreeId, u64>,
}

impl History {
    pub(super) fn observe(&mut self, map: &ClusterMap, loads: &BTreeMap<Rank, Load>, policy: &Policy) {
        self.round += 1;
        let round = self.round;
        let is_hot = |rank: &Rank| loads.get(rank).is_some_and(|load| load.busy >= policy.saturation);
        self.saturated.retain(|rank, _| is_hot(rank));
        for rank in loads.keys().filter(|rank| is_hot(rank)) {
            *self.saturated.entry(*rank).or_default() += 1;
        }
        for (id, subtree) in &map.subtrees {
            let before = self.owners.insert(*id, (subtree.owner, subtree.epoch));
            if before.is_none() && round > 1 {
                self.born.insert(*id, round);
            }
            if subtree.move_id != 0 || before.is_some_and(|(owner, _)| owner != subtree.owner) {
                self.moved.insert(*id, round);
                self.changed = Some(round);
            }
            let report = loads.get(&subtree.owner);
            let ops = report.map(|load| load.subtrees.get(id).map_or(0.0, |subtree| subtree.ops));
            if ops.is_some_and(|ops| ops < IDLE_OPS) {
                self.idle.entry(*id).or_insert(round);
            } else {
                self.idle.remove(id);
            }
        }
        self.owners.retain(|id, _| map.subtrees.contains_key(id));
        self.born.retain(|id, at| map.subtrees.contains_key(id) && round - *at < policy.settle);
        self.idle.retain(|id, _| map.subtrees.contains_key(id));
        self.moved.retain(|id, at| map.subtrees.contains_key(id) && round - *at <= policy.cool_down);
        self.asked_split.retain(|_, at| round - *at < ASK_AGAIN);
        self.asked_merge.retain(|_, at| round - *at < ASK_AGAIN);
    }

    pub(super) fn note(&mut self, decision: &Decision, policy: &Policy) {
        for split in decision.splits.iter().filter(|split| split.cause.is_allowed(policy.mode)) {
            self.asked_split.insert(split.dir, self.round);
        }
        if Cause::Load.is_allowed(policy.mode) {
            self.asked_merge.extend(decision.merges.iter().map(|id| (*id, self.round)));
        }
    }

    pub(super) fn is_confirmed(&self, rank: Rank, policy: &Policy) -> bool {
        self.saturated.get(&rank).is_some_and(|rounds| *rounds >= policy.confirm_rounds)
    }

    pub(super) fn has_cooled(&self, id: SubtreeId) -> bool {
        !self.moved.contains_key(&id)
    }

    /// Whether the reports can show what the last move did.
    pub(super) fn has_settled(&self, policy: &Policy) -> bool {
        self.changed.is_none_or(|at| self.round - at >= policy.settle)
    }

    /// Whether the reports of a rank can show each of its subtrees: one that was just split off has no figure yet, and
    /// what it was split from has too high a one.
    pub(super) fn shows_all(&self, map: &ClusterMap, rank: Rank) -> bool {
        !self.born.keys().any(|id| map.subtrees.get(id).is_some_and(|subtree| subtree.owner == rank))
    }

    pub(super) fn is_idle(&self, id: SubtreeId, rounds: u64) -> bool {
        self.idle.get(&id).is_some_and(|since| self.round - since >= rounds)
    }

    pub(super) fn was_asked_to_split(&self, dir: Ino) -> bool {
        self.asked_split.contains_key(&dir)
    }

    pub(super) fn was_asked_to_merge(&self, id: SubtreeId) -> bool {
        self.asked_merge.contains_key(&id)
    }
}
