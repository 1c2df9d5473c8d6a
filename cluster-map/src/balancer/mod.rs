//! Which subtrees are to move, to be split and to be merged: a pure function of the map, of what the ranks say of
//! their load, of the policy, and of what was seen before.
//!
//! | file | what |
//! |---|---|
//! | `load` | what ranks report, checked once |
//! | `history` | what was seen in the rounds before |
//! | `wishes` | what people asked for: drained ranks, pins, spreads |
//! | `even` | load: acts only when a rank is near saturation and another has room |
//! | `idle` | merging what is not needed any more |
//! | `assign` | who gets a dead rank's subtrees |

mod assign;
mod even;
mod history;
mod idle;
mod load;
mod wishes;

use std::collections::{BTreeMap, BTreeSet};

use pando_proto::{Epoch, Ino, Rank, SubtreeId, mon};

use crate::map::{ClusterMap, Subtree};
use crate::settings;

pub use assign::assign;
pub use history::History;
pub use load::{HotDirectory, Load, SubtreeLoad};
pub use wishes::pinned_to;

/// See [`most_automatic_subtrees`].
const MOST_AUTOMATIC_SUBTREES: u64 = 3072;

/// Nothing is split for the sake of load when there are so many subtrees: people and renames may need some more.
pub fn most_automatic_subtrees(map: &ClusterMap) -> usize {
    let most = MOST_AUTOMATIC_SUBTREES.min(map.setting_u64(settings::MAX_SUBTREES).div_ceil(4) * 3);
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// How far the balancer may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Only draining ranks are emptied.
    Off,
    /// Pins and spreads are obeyed too; what load asks for is only said.
    Manual,
    /// All is done.
    Auto,
}

/// When to act, and how much at once.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How far it may go.
    pub mode: Mode,
    /// A rank this busy, in thousandths, is near saturation.
    pub saturation: u32,
    /// A rank has to be near saturation in so many rounds in a row before load moves away from it.
    pub confirm_rounds: u64,
    /// Load has to fall by this part of it at least, in percent, or the move is not worth it.
    pub gain_percent: u32,
    /// Rounds in which load does not move a subtree that has just moved.
    pub cool_down: u64,
    /// Rounds until what the ranks report shows the effect of a move.
    pub settle: u64,
    /// Rounds without load after which a subtree is merged into its parent, if that is at the same rank; after four
    /// times as many it is brought there.
    pub idle: u64,
    /// Moves in one decision.
    pub max_moves: usize,
    /// Splits in one decision.
    pub max_splits: usize,
    /// Merges in one decision.
    pub max_merges: usize,
}

impl Policy {
    /// By the map's settings.
    pub fn of(map: &ClusterMap) -> Self {
        let interval = map.setting_u64(settings::BALANCER_INTERVAL_MILLIS).max(1);
        let rounds = |millis: u64| millis.div_ceil(interval);
        let settle = rounds(2000).max(1);
        Self {
            mode: match map.setting_u64(settings::BALANCER_MODE) {
                settings::BALANCER_OFF => Mode::Off,
                settings::BALANCER_MANUAL => Mode::Manual,
                _ => Mode::Auto,
            },
            saturation: map.setting_u64(settings::BALANCER_SATURATION_PERMILLE).min(1000) as u32,
            confirm_rounds: 2,
            gain_percent: 15,
            cool_down: 3.max(settle + 1),
            settle,
            idle: 12.max(rounds(60_000)),
            max_moves: 64,
            max_splits: 16,
            // The more there are, the faster: a cluster that is full of them refuses renames of directories.
            max_merges: 1 + map.subtrees.len() / 128,
        }
    }
}

/// On whose account something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A rank is to be emptied.
    Drain,
    /// A person pinned the subtree.
    Pin,
    /// A person wants the child directories spread.
    Spread,
    /// A rank has too much to do.
    Load,
}

impl Cause {
    /// Whether it is to be done in a mode.
    pub fn is_allowed(self, mode: Mode) -> bool {
        match self {
            Self::Drain => true,
            Self::Pin | Self::Spread => mode >= Mode::Manual,
            Self::Load => mode == Mode::Auto,
        }
    }
}

/// A subtree is to go elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// Which.
    pub subtree: SubtreeId,
    /// Its owner now.
    pub from: Rank,
    /// Its owner then.
    pub to: Rank,
    /// On whose account.
    pub cause: Cause,
    /// For people.
    pub reason: String,
}

/// A directory is to become a subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The subtree that holds it.
    pub subtree: SubtreeId,
    /// The directory.
    pub dir: Ino,
    /// On whose account.
    pub cause: Cause,
}

/// What one round came to, also when it came to nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// One sentence, without figures, so that equal decisions are equal.
    pub reason: String,
    /// In the order in which they are to start.
    pub moves: Vec<Move>,
    /// Asked of the owners.
    pub splits: Vec<Split>,
    /// Asked of the owners.
    pub merges: Vec<SubtreeId>,
    /// The figures it rests on.
    pub ranks: Vec<Figure>,
}

/// A rank as a decision saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Which.
    pub rank: Rank,
    /// In thousandths.
    pub busy: u32,
    /// Operations per second.
    pub ops: f64,
    /// Subtrees that it owns.
    pub subtrees: u32,
}

impl Decision {
    /// Whether another one comes to the same, whatever its figures.
    pub fn is_like(&self, other: &Self) -> bool {
        let ways = |decision: &Self| -> Vec<_> {
            decision.moves.iter().map(|one| (one.subtree, one.from, one.to, one.cause)).collect()
        };
        self.reason == other.reason
            && self.splits == other.splits
            && self.merges == other.merges
            && ways(self) == ways(other)
    }

    /// The wire form. `at` is wall time in nanoseconds.
    pub fn to_proto(&self, at: i64, map_epoch: Epoch, times: u32) -> mon::Decision {
        let planned = |one: &Move| mon::PlannedMove {
            subtree: one.subtree.0,
            from: one.from.0,
            to: one.to.0,
            reason: one.reason.clone(),
            move_id: 0,
        };
        let figure = |figure: &Figure| mon::RankFigure {
            rank: figure.rank.0,
            busy_permille: figure.busy,
            ops_per_s: figure.ops,
            subtrees: figure.subtrees,
        };
        let split = |split: &Split| mon::SplitRequest { subtree: split.subtree.0, dir: split.dir.0 };
        mon::Decision {
            at,
            map_epoch: map_epoch.0,
            reason: self.reason.clone(),
            moves: self.moves.iter().map(planned).collect(),
            splits: self.splits.iter().map(split).collect(),
            merges: self.merges.iter().map(|id| id.0).collect(),
            ranks: self.ranks.iter().map(figure).collect(),
            times,
            last_at: at,
        }
    }
}

/// One round: looks, and decides. `loads` holds what ranks that are up reported lately.
pub fn plan(map: &ClusterMap, loads: &BTreeMap<Rank, Load>, policy: &Policy, history: &mut History) -> Decision {
    history.observe(map, loads, policy);
    let mut plan = Plan::new(map, loads, policy, history);
    let mut reasons = Vec::new();
    plan.drain(&mut reasons);
    if policy.mode >= Mode::Manual {
        plan.pins(&mut reasons);
        plan.spreads(&mut reasons);
        reasons.push(plan.even());
        plan.merge_idle(&mut reasons);
    } else {
        reasons.push("the balancer is off (balancer_mode 0)".to_owned());
    }
    let decision = plan.decide(&reasons);
    history.note(&decision, policy);
    decision
}

/// A decision in the making: the loads as they will be.
struct Plan<'a> {
    map: &'a ClusterMap,
    loads: &'a BTreeMap<Rank, Load>,
    policy: &'a Policy,
    history: &'a History,
    /// Of ranks that reported, in thousandths.
    busy: BTreeMap<Rank, f64>,
    /// Where each subtree will be.
    placed: BTreeMap<SubtreeId, Rank>,
    /// What each takes of its rank's time.
    weights: BTreeMap<SubtreeId, f64>,
    moves: Vec<Move>,
    splits: Vec<Split>,
    merges: Vec<SubtreeId>,
}

impl<'a> Plan<'a> {
    fn new(map: &'a ClusterMap, loads: &'a BTreeMap<Rank, Load>, policy: &'a Policy, history: &'a History) -> Self {
        let is_up = |rank: &Rank| map.ranks.get(rank).is_some_and(|info| info.up);
        let reported = loads.iter().filter(|(rank, _)| is_up(rank));
        let busy = reported.map(|(rank, load)| (*rank, f64::from(load.busy))).collect();
        let placed = map.subtrees.iter().map(|(id, subtree)| (*id, subtree.owner)).collect();
        let weights = load::weights(map, loads);
        let (moves, splits, merges) = (Vec::new(), Vec::new(), Vec::new());
        let mut plan = Self { map, loads, policy, history, busy, placed, weights, moves, splits, merges };
        for (id, subtree) in map.subtrees.iter().filter(|(_, subtree)| subtree.move_id != 0) {
            plan.shift(*id, subtree.moving_to);
        }
        plan
    }

    /// Ranks that may get subtrees.
    fn targets(&self) -> impl Iterator<Item = Rank> {
        self.map.ranks.iter().filter(|(_, info)| info.up && !info.draining).map(|(rank, _)| *rank)
    }

    fn is_target(&self, rank: Rank) -> bool {
        self.map.ranks.get(&rank).is_some_and(|info| info.up && !info.draining)
    }

    fn busy(&self, rank: Rank) -> f64 {
        self.busy.get(&rank).copied().unwrap_or(0.0)
    }

    fn weight(&self, id: SubtreeId) -> f64 {
        self.weights.get(&id).copied().unwrap_or(0.0)
    }

    fn count(&self, rank: Rank) -> usize {
        self.placed.values().filter(|owner| **owner == rank).count()
    }

    /// The target with the most room; of those that have nothing to do, the one that owns the least.
    fn coldest(&self) -> Option<Rank> {
        let key = |rank: &Rank| self.busy(*rank) + self.count(*rank) as f64;
        self.targets().min_by(|a, b| key(a).total_cmp(&key(b)).then(a.cmp(b)))
    }

    /// Whether a move of it can be started now.
    fn is_still(&self, id: SubtreeId, subtree: &Subtree) -> bool {
        let owner_is_up = self.map.ranks.get(&subtree.owner).is_some_and(|info| info.up);
        subtree.move_id == 0 && owner_is_up && self.placed.get(&id) == Some(&subtree.owner)
    }

    /// Takes a subtree's load to another rank.
    fn shift(&mut self, id: SubtreeId, to: Rank) {
        let weight = self.weight(id);
        if let Some(from) = self.placed.insert(id, to)
            && let Some(busy) = self.busy.get_mut(&from)
        {
            *busy = (*busy - weight).max(0.0);
        }
        if let Some(busy) = self.busy.get_mut(&to) {
            *busy += weight;
        }
    }

    fn go(&mut self, id: SubtreeId, to: Rank, cause: Cause, reason: String) {
        let Some(from) = self.placed.get(&id).copied() else { return };
        self.shift(id, to);
        self.moves.push(Move { subtree: id, from, to, cause, reason });
    }

    /// Whether another directory may be split off.
    fn has_room_for_splits(&self) -> bool {
        self.splits.len() < self.policy.max_splits
            && self.map.subtrees.len() + self.splits.len() < most_automatic_subtrees(self.map)
    }

    /// Directories that are roots of subtrees.
    fn roots(&self) -> BTreeSet<Ino> {
        self.map.subtrees.values().map(|subtree| subtree.root).collect()
    }

    fn decide(mut self, reasons: &[String]) -> Decision {
        // Drained ranks first, then what people asked for.
        self.moves.sort_by_key(|one| one.cause);
        self.moves.truncate(self.policy.max_moves);
        let figure = |(rank, load): (&Rank, &Load)| Figure {
            rank: *rank,
            busy: load.busy,
            ops: load.ops,
            subtrees: self.map.subtrees.values().filter(|subtree| subtree.owner == *rank).count() as u32,
        };
        let ranks = self.loads.iter().map(figure).collect();
        Decision { reason: reasons.join("; "), moves: self.moves, splits: self.splits, merges: self.merges, ranks }
    }
}

#[cfg(test)]
mod tests;
