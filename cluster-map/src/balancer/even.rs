//! Load. Subtrees leave a rank only when it was near saturation more than once, and when that helps: what is not near
//! saturation is served well where it is, and each move costs its clients something.

use std::collections::BTreeSet;

use pando_proto::{Rank, SubtreeId};

use super::wishes::{Wish, wish};
use super::{Cause, Plan, Split};

/// A subtree below this part of its rank's load is not worth a move.
const DUST: f64 = 0.005;
/// Ranks that differ by less than this part are even.
const EVEN: f64 = 0.1;
/// A child directory below this part of its subtree's load is not worth a split.
const SMALL_CHILD: f64 = 0.02;

impl Plan<'_> {
    /// Plans what load asks for. Returns what to say of it.
    pub(super) fn even(&mut self) -> String {
        match self.try_even() {
            Ok(text) if self.policy.mode == super::Mode::Manual => {
                format!("{text} (balancer_mode 1: not done)")
            }
            Ok(text) | Err(text) => text,
        }
    }

    fn try_even(&mut self) -> Result<String, String> {
        let sources: Vec<Rank> = self.busy.keys().copied().collect();
        if self.targets().count() < 2 {
            let any = self.targets().next().is_some();
            return Err(if any { "there is only one rank to serve" } else { "no rank is up to serve" }.to_owned());
        }
        let saturation = f64::from(self.policy.saturation);
        if !sources.iter().any(|rank| self.busy(*rank) >= saturation) {
            return Err("no rank is near saturation".to_owned());
        }
        let confirmed = |rank: &&Rank| self.history.is_confirmed(**rank, self.policy) && self.is_target(**rank);
        let mut hot: Vec<Rank> = sources.iter().filter(confirmed).copied().collect();
        if hot.is_empty() {
            return Err("a rank is near saturation, but was not in the round before".to_owned());
        }
        if !self.history.has_settled(self.policy) || !self.moves.is_empty() {
            return Err("the loads do not show yet what the last moves did".to_owned());
        }
        hot.retain(|rank| self.history.shows_all(self.map, *rank));
        if hot.is_empty() {
            return Err("the loads do not show yet what the last splits did".to_owned());
        }
        self.relieve(&hot)
    }

    fn relieve(&mut self, hot: &[Rank]) -> Result<String, String> {
        let before = self.busy.clone();
        let was = |rank: Rank| before.get(&rank).copied().unwrap_or(0.0);
        let gain = f64::from(self.policy.gain_percent) / 100.0;
        let mut stuck = BTreeSet::new();
        while self.moves.len() < self.policy.max_moves {
            let open = hot.iter().copied().filter(|rank| !stuck.contains(rank));
            let Some(from) = open.max_by(|a, b| self.busy(*a).total_cmp(&self.busy(*b)).then(b.cmp(a))) else { break };
            if !self.move_one(from, was(from)) {
                stuck.insert(from);
            }
        }
        for rank in hot {
            if self.busy(*rank) > was(*rank) * (1.0 - gain) {
                self.undo(*rank);
            }
        }
        let mut waits = false;
        for rank in hot {
            waits |= self.split_hot(*rank, was(*rank) * gain);
        }
        let splits = self.splits.iter().any(|split| split.cause == Cause::Load);
        match (self.moves.is_empty(), splits) {
            (false, _) => Ok("a rank is near saturation, and another has room: the load is evened out".to_owned()),
            (true, true) => {
                Ok("a rank is near saturation by few subtrees: they are split where they are hot".to_owned())
            }
            (true, false) if waits => Err("a rank is near saturation: hot directories are being split off".to_owned()),
            (true, false) => Err("a rank is near saturation, but no move and no split would help much".to_owned()),
        }
    }

    /// The rank with the most room that says how busy it is.
    fn coolest(&self) -> Option<Rank> {
        let reported = self.targets().filter(|rank| self.busy.contains_key(rank));
        reported.min_by(|a, b| {
            let busy = self.busy(*a).total_cmp(&self.busy(*b));
            busy.then(self.count(*a).cmp(&self.count(*b))).then(a.cmp(b))
        })
    }

    /// Whether taking `weight` from one rank to another makes them more even, and does not only swap them.
    fn helps(&self, from: Rank, to: Rank, weight: f64) -> bool {
        let gain = self.busy(from) * f64::from(self.policy.gain_percent) / 100.0;
        self.busy(to) + weight <= self.busy(from) - gain.min(weight / 2.0)
    }

    /// Plans the move that evens out best. False if there is none.
    fn move_one(&mut self, from: Rank, before: f64) -> bool {
        let Some(to) = self.coolest().filter(|to| *to != from) else { return false };
        let (hot, cool) = (self.busy(from), self.busy(to));
        if hot - cool <= before * EVEN {
            return false;
        }
        let peak = |weight: f64| (hot - weight).max(cool + weight);
        let mut best: Option<(f64, SubtreeId)> = None;
        for (id, subtree) in self.map.subtrees.iter().filter(|(_, subtree)| subtree.owner == from) {
            let weight = self.weight(*id);
            let worth = weight >= before * DUST && self.helps(from, to, weight);
            let may = self.is_still(*id, subtree) && self.history.has_cooled(*id);
            if worth && may && wish(self.map, *id) == Wish::Free && best.is_none_or(|(least, _)| peak(weight) < least) {
                best = Some((peak(weight), *id));
            }
        }
        let Some((_, id)) = best else { return false };
        let share = self.weight(id) / 10.0;
        let reason =
            format!("it takes {share:.0} % of a rank; {from} is at {:.0} %, {to} at {:.0} %", hot / 10.0, cool / 10.0);
        self.go(id, to, Cause::Load, reason);
        true
    }

    /// Takes back the moves away from a rank: they help too little.
    fn undo(&mut self, from: Rank) {
        let (back, kept) =
            std::mem::take(&mut self.moves).into_iter().partition(|one| one.cause == Cause::Load && one.from == from);
        self.moves = kept;
        let back: Vec<super::Move> = back;
        for one in back {
            self.shift(one.subtree, from);
        }
    }

    /// Where a rank is still too busy because a subtree is too heavy to move, splits it at the children that carry the
    /// load. True if such splits were asked for already.
    fn split_hot(&mut self, rank: Rank, least: f64) -> bool {
        let Some(to) = self.coolest().filter(|to| *to != rank) else { return false };
        // What is below saturation after the moves will say so if it is not enough.
        if self.busy(rank) - self.busy(to) <= least || self.busy(rank) < f64::from(self.policy.saturation) {
            return false;
        }
        let heavy = |id: &SubtreeId| {
            let weight = self.weight(*id);
            weight > least && !self.helps(rank, to, weight) && !matches!(wish(self.map, *id), Wish::Pinned(_))
        };
        let own =
            self.map.subtrees.iter().filter(|(id, subtree)| subtree.owner == rank && self.is_still(**id, subtree));
        let mut heavy: Vec<SubtreeId> = own.map(|(id, _)| *id).filter(heavy).collect();
        heavy.sort_by(|a, b| self.weight(*b).total_cmp(&self.weight(*a)).then(a.cmp(b)));
        let mut waits = false;
        for id in heavy {
            waits |= self.split_one(rank, id);
        }
        waits
    }

    fn split_one(&mut self, rank: Rank, id: SubtreeId) -> bool {
        let Some(load) = self.loads.get(&rank).and_then(|load| load.subtrees.get(&id)) else { return false };
        let all: f64 = load.hot.iter().map(|hot| hot.ops).sum();
        let all = all.max(load.ops);
        let ranks = self.targets().count() as f64;
        // So much has to be able to leave, and a bit more, so that there is a choice.
        let wanted = all * ranks / (ranks + 1.0);
        let (mut taken, mut waits) = (0.0, false);
        let roots = self.roots();
        for hot in load.hot.iter().filter(|hot| hot.ops >= all * SMALL_CHILD && !roots.contains(&hot.dir)) {
            if taken >= wanted {
                break;
            }
            taken += hot.ops;
            if self.history.was_asked_to_split(hot.dir) {
                waits = true;
            } else if self.has_room_for_splits() {
                self.splits.push(Split { subtree: id, dir: hot.dir, cause: Cause::Load });
            }
        }
        waits
    }
}
