//! Runs the balancer on the leader: keeps what ranks report, asks the planner every interval, starts the moves a few at
//! a time, and remembers what was decided. In memory only; a new leader looks anew before it acts.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pando_cluster_map::balancer::{self, Cause, Decision, History, Load, Mode, Move, Policy};
use pando_cluster_map::{Assignment, CancelMove, ClusterMap, Command, StartMove, settings};
use pando_proto::{Epoch, MAX_NAME_BYTES, Rank, SubtreeId, mon};

/// Migrations under way at once.
const MAX_IN_FLIGHT: usize = 4;
/// A migration that takes longer is given up.
const MOVE_LIMIT: Duration = Duration::from_secs(120);
/// After this long without a trace in the map, a move that was asked for is taken as refused.
const START_LIMIT: Duration = Duration::from_secs(2);
/// Decisions remembered.
const MAX_DECISIONS: usize = 256;
/// Subtrees named in one command; the rest goes where the map sends it.
const MAX_ASSIGNMENTS: usize = 2048;
/// Of a report: sessions, subtrees, and hot directories of each.
const MAX_AWAITED: usize = 1024;
const MAX_SUBTREES: usize = 4096;
const MAX_HOT: usize = 64;

struct Report {
    /// Boottime of its arrival.
    at: Duration,
    raw: mon::RankLoad,
    load: Load,
}

/// What a rank is asked to do with its next heartbeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hints {
    pub(crate) splits: Vec<mon::SplitRequest>,
    pub(crate) merges: Vec<u64>,
}

struct Recorded {
    at: i64,
    last_at: i64,
    epoch: Epoch,
    decision: Decision,
    times: u32,
    /// The last moves that came of it.
    begun: BTreeMap<SubtreeId, u64>,
}

/// See the module. Times are boottime.
#[derive(Default)]
pub(crate) struct Balancer {
    reports: BTreeMap<Rank, Report>,
    history: History,
    next_round: Option<Duration>,
    /// Somebody wants something else than before: not to wait for the next round.
    hurries: bool,
    /// Decided, not started.
    queue: VecDeque<Move>,
    /// Asked for at this time, not in the map yet.
    asked: BTreeMap<SubtreeId, (Rank, Duration)>,
    /// Moves of the map, and when they were first seen.
    under_way: BTreeMap<SubtreeId, (u64, Duration)>,
    hints: BTreeMap<Rank, Hints>,
    decisions: VecDeque<Recorded>,
}

/// Nothing that a rank sends may take much memory.
fn bounded(mut load: mon::RankLoad) -> mon::RankLoad {
    load.awaited.truncate(MAX_AWAITED);
    load.subtrees.truncate(MAX_SUBTREES);
    for subtree in &mut load.subtrees {
        subtree.hot.truncate(MAX_HOT);
        for hot in &mut subtree.hot {
            // A copy: the slice would keep the whole message.
            hot.name = bytes::Bytes::copy_from_slice(&hot.name[..hot.name.len().min(MAX_NAME_BYTES)]);
        }
    }
    load
}

fn interval(map: &ClusterMap) -> Duration {
    Duration::from_millis(map.setting_u64(settings::BALANCER_INTERVAL_MILLIS))
}

impl Balancer {
    /// This mon was elected: what it heard in a former term is old.
    pub(crate) fn elected(&mut self) {
        *self = Self { decisions: std::mem::take(&mut self.decisions), ..Self::default() };
    }

    /// A rank said how busy it is.
    pub(crate) fn report(&mut self, rank: Rank, load: mon::RankLoad, now: Duration) {
        let raw = bounded(load);
        let load = Load::from_proto(&raw);
        self.reports.insert(rank, Report { at: now, raw, load });
    }

    /// What a rank is asked to do. Once: what is lost on the way is asked for again, if it is still wanted.
    pub(crate) fn take_hints(&mut self, rank: Rank) -> Hints {
        self.hints.remove(&rank).unwrap_or_default()
    }

    /// Who is to get the subtrees of a rank that is gone.
    pub(crate) fn assignments(&self, map: &ClusterMap, dead: Rank) -> Vec<Assignment> {
        let loads = self.reports.iter().map(|(rank, report)| (*rank, report.load.clone())).collect();
        let assigned = balancer::assign(map, &loads, dead).into_iter().take(MAX_ASSIGNMENTS);
        assigned.map(|(id, rank)| Assignment { subtree: id.0, rank: rank.0 }).collect()
    }

    /// A pin, a spread or a draining has changed.
    pub(crate) fn hurry(&mut self) {
        self.hurries = true;
    }

    /// What is to be done now. To be called on each tick. `wall` is in nanoseconds.
    pub(crate) fn due(&mut self, now: Duration, wall: i64, map: &ClusterMap) -> Vec<Command> {
        self.reports.retain(|rank, _| map.ranks.contains_key(rank));
        if self.next_round.is_none_or(|at| now >= at) {
            // The first round of a term waits for reports.
            if self.next_round.is_some() {
                self.round(now, wall, map);
            }
            self.next_round = Some(now + interval(map));
        } else if self.hurries {
            self.obey(now, wall, map);
        }
        self.hurries = false;
        self.look_at_moves(now, map);
        let mut commands = self.given_up(now, map);
        commands.extend(self.started(now, map));
        commands
    }

    /// Reports that still say something; older ones are of ranks that are about to be taken down.
    fn fresh(&self, now: Duration, map: &ClusterMap) -> BTreeMap<Rank, Load> {
        let oldest = now.saturating_sub((2 * interval(map)).max(lease(map)));
        let is_fresh =
            |rank: &Rank, report: &Report| report.at >= oldest && map.ranks.get(rank).is_some_and(|info| info.up);
        let fresh = self.reports.iter().filter(|(rank, report)| is_fresh(rank, report));
        fresh.map(|(rank, report)| (*rank, report.load.clone())).collect()
    }

    /// What people want, between two rounds. Load waits for its round: its history counts rounds.
    fn obey(&mut self, now: Duration, wall: i64, map: &ClusterMap) {
        let policy = Policy { confirm_rounds: u64::MAX, max_merges: 0, ..Policy::of(map) };
        let mut history = self.history.clone();
        let mut decision = balancer::plan(map, &self.fresh(now, map), &policy, &mut history);
        decision.moves.retain(|one| one.cause != Cause::Load);
        let wanted: Vec<Move> =
            decision.moves.iter().filter(|one| one.cause.is_allowed(policy.mode)).cloned().collect();
        if wanted.is_empty() {
            return;
        }
        decision.splits.clear();
        self.queue.retain(|queued| !wanted.iter().any(|one| one.subtree == queued.subtree));
        for one in wanted.into_iter().rev() {
            self.queue.push_front(one);
        }
        self.record(wall, map.epoch, decision);
    }

    fn round(&mut self, now: Duration, wall: i64, map: &ClusterMap) {
        if map.ranks.is_empty() {
            return;
        }
        let policy = Policy::of(map);
        let decision = balancer::plan(map, &self.fresh(now, map), &policy, &mut self.history);
        // While the first of a set of moves are under way the planner waits, and the others are as right as before.
        let goes_on = !(self.under_way.is_empty() && self.asked.is_empty());
        if !(decision.moves.is_empty() && goes_on) {
            self.queue = decision.moves.iter().filter(|one| one.cause.is_allowed(policy.mode)).cloned().collect();
        }
        self.hints.clear();
        for split in decision.splits.iter().filter(|split| split.cause.is_allowed(policy.mode)) {
            if let Some(subtree) = map.subtrees.get(&split.subtree) {
                let request = mon::SplitRequest { subtree: split.subtree.0, dir: split.dir.0 };
                self.hints.entry(subtree.owner).or_default().splits.push(request);
            }
        }
        for id in decision.merges.iter().filter(|_| policy.mode == Mode::Auto) {
            if let Some(subtree) = map.subtrees.get(id) {
                self.hints.entry(subtree.owner).or_default().merges.push(id.0);
            }
        }
        self.record(wall, map.epoch, decision);
    }

    fn record(&mut self, at: i64, epoch: Epoch, decision: Decision) {
        let acts = !(decision.moves.is_empty() && decision.splits.is_empty() && decision.merges.is_empty());
        if acts {
            tracing::info!(reason = decision.reason, moves = decision.moves.len(), "the balancer decided");
        }
        if let Some(last) = self.decisions.back_mut()
            && last.decision.is_like(&decision)
        {
            last.times = last.times.saturating_add(1);
            (last.last_at, last.decision.ranks) = (at, decision.ranks);
            return;
        }
        if self.decisions.len() >= MAX_DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Recorded { at, last_at: at, epoch, decision, times: 1, begun: BTreeMap::new() });
    }

    fn look_at_moves(&mut self, now: Duration, map: &ClusterMap) {
        for (id, subtree) in map.subtrees.iter().filter(|(_, subtree)| subtree.move_id != 0) {
            let known = self.under_way.get(id).is_some_and(|(move_id, _)| *move_id == subtree.move_id);
            if !known {
                self.under_way.insert(*id, (subtree.move_id, now));
            }
        }
        let moves = |id: &SubtreeId| map.subtrees.get(id).is_some_and(|subtree| subtree.move_id != 0);
        self.under_way.retain(|id, _| moves(id));
        self.asked.retain(|id, (_, since)| !moves(id) && now.saturating_sub(*since) < START_LIMIT);
    }

    /// A move has begun in the map.
    pub(crate) fn began(&mut self, id: SubtreeId, to: Rank, move_id: u64) {
        // It may be over before the next look.
        if move_id != 0 && self.asked.get(&id).is_some_and(|(asked, _)| *asked == to) {
            self.asked.remove(&id);
            self.note_begun(id, to, move_id);
        }
    }

    /// So that who asks why a subtree is where it is gets the decision that brought it there.
    fn note_begun(&mut self, id: SubtreeId, to: Rank, move_id: u64) {
        let planned = |one: &Move| one.subtree == id && one.to == to;
        let decided = self.decisions.iter_mut().rev().find(|recorded| recorded.decision.moves.iter().any(planned));
        if let Some(recorded) = decided {
            recorded.begun.insert(id, move_id);
        }
    }

    /// Moves that do not get on.
    fn given_up(&mut self, now: Duration, map: &ClusterMap) -> Vec<Command> {
        let mut commands = Vec::new();
        for (id, (move_id, since)) in &mut self.under_way {
            if now.saturating_sub(*since) >= MOVE_LIMIT {
                // Asked again after a while, should this be lost.
                *since = now;
                let to = map.subtrees.get(id).map(|subtree| subtree.moving_to).unwrap_or_default();
                tracing::warn!(subtree = %id, %to, "a move does not get on: it is given up");
                commands.push(Command::CancelMove(CancelMove { subtree: id.0, move_id: *move_id }));
            }
        }
        commands
    }

    /// The next moves, as far as not too many are under way.
    fn started(&mut self, now: Duration, map: &ClusterMap) -> Vec<Command> {
        let mut commands = Vec::new();
        while self.under_way.len() + self.asked.len() < MAX_IN_FLIGHT {
            let Some(next) = self.queue.pop_front() else { break };
            let still = map.subtrees.get(&next.subtree);
            let still = still.is_some_and(|subtree| subtree.owner == next.from && subtree.move_id == 0);
            let may = next.cause == Cause::Drain || next.cause.is_allowed(Policy::of(map).mode);
            if still && may && is_still_wanted(map, &next) && !self.asked.contains_key(&next.subtree) {
                self.asked.insert(next.subtree, (next.to, now));
                let (subtree, to) = (next.subtree.0, next.to.0);
                commands.push(Command::StartMove(StartMove { subtree, to, to_merge: false }));
            }
        }
        commands
    }

    /// The latest decisions, newest first; `limit` 0 for all.
    pub(crate) fn decisions(&self, limit: u32) -> Vec<mon::Decision> {
        let limit = if limit == 0 { MAX_DECISIONS } else { limit as usize };
        let newest = self.decisions.iter().rev().take(limit);
        let told = newest.map(|one| {
            let mut decision = one.decision.to_proto(one.at, one.epoch, one.times);
            decision.last_at = one.last_at;
            for planned in &mut decision.moves {
                planned.move_id = one.begun.get(&SubtreeId(planned.subtree)).copied().unwrap_or_default();
            }
            decision
        });
        told.collect()
    }

    /// What ranks reported last.
    pub(crate) fn loads(&self, now: Duration) -> Vec<mon::RankLoadOf> {
        let report = |(rank, report): (&Rank, &Report)| mon::RankLoadOf {
            rank: rank.0,
            age_millis: u64::try_from(now.saturating_sub(report.at).as_millis()).unwrap_or(u64::MAX),
            load: Some(report.raw.clone()),
        };
        self.reports.iter().map(report).collect()
    }
}

/// Whether what a move was planned for still holds: it may have waited for a while.
fn is_still_wanted(map: &ClusterMap, planned: &Move) -> bool {
    let pin = balancer::pinned_to(map, planned.subtree);
    let drains = |rank: Rank| map.ranks.get(&rank).is_some_and(|rank| rank.draining);
    let can_have_it = map.ranks.get(&planned.to).is_some_and(|to| to.up && !to.draining);
    let cause = match planned.cause {
        Cause::Drain => drains(planned.from),
        Cause::Pin => pin == Some(planned.to),
        Cause::Spread | Cause::Load => pin.is_none(),
    };
    can_have_it && cause
}

fn lease(map: &ClusterMap) -> Duration {
    Duration::from_millis(map.setting_u64(settings::LEASE_MILLIS))
}

#[cfg(test)]
mod tests;
