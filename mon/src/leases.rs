//! Who may hold a lease, as the leader knows it. In memory only: a new leader assumes that every member holds a
//! full lease from its election on (R13). That longer ones may still be held is in the map.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pando_cluster_map::{
    ClusterMap, Command, DaemonState, ForgetLongerLease, LongerLease, RankDown, placement, settings,
};
use pando_mon_client::Daemon;
use pando_proto::{OsdId, Rank};

/// Clocks of two machines differ in speed by less than this part.
const DRIFT_PERCENT: u32 = 5;
/// For the time between the mon's look at its clock and what follows from it.
const MARGIN: Duration = Duration::from_millis(100);
/// Before it is proposed again to forget a longer lease.
const FORGET_AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Grant {
    /// The heartbeat's arrival: not before its sending, from which the holder counts.
    from: Duration,
    length: Duration,
}

impl Grant {
    /// When the holder has stopped for sure.
    fn over(self) -> Duration {
        self.from + self.length + self.length * DRIFT_PERCENT / 100 + MARGIN
    }
}

/// A length of leases that was lowered, as the map tells of it.
#[derive(Clone, Copy, Debug)]
struct Longer {
    told: LongerLease,
    /// As if it was granted when this mon learnt of the change. Every true one was before: the leader of that time was the
    /// first to apply it. A mon that starts learns of it anew.
    grant: Grant,
    /// When this mon proposed to forget it.
    proposed: Option<Duration>,
}

/// The leader's table. Times are boottime.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    elected: Duration,
    grants: BTreeMap<Daemon, Grant>,
    /// A command is under way that takes the lease as ended: nothing is granted meanwhile.
    frozen: BTreeSet<Daemon>,
    usage: BTreeMap<OsdId, (u64, u64)>,
    down_since: BTreeMap<OsdId, Duration>,
    longer: Option<Longer>,
    last_look: Duration,
}

fn length(map: &ClusterMap) -> Duration {
    Duration::from_millis(map.setting_u64(settings::LEASE_MILLIS))
}

impl Leases {
    /// This mon was elected. What its predecessors had under way is in the log before its own first entry.
    pub(crate) fn elected(&mut self, now: Duration) {
        self.frozen.clear();
        self.down_since.clear();
        self.assume_all_held(now);
    }

    fn assume_all_held(&mut self, now: Duration) {
        self.elected = now;
        self.grants.clear();
        self.last_look = now;
    }

    /// Looks whether the map tells of another longer lease than before. To be called with each map, also while others
    /// lead: from then on its end is waited for.
    pub(crate) fn learn(&mut self, map: &ClusterMap, now: Duration) {
        if map.longer_lease == self.longer.map(|longer| longer.told) {
            return;
        }
        self.longer = map.longer_lease.map(|told| {
            let grant = Grant { from: now, length: Duration::from_millis(told.millis) };
            Longer { told, grant, proposed: None }
        });
    }

    /// The command that forgets the longer lease once nobody can hold it any more. For the leader, on each tick.
    pub(crate) fn forget_longer(&mut self, now: Duration) -> Option<Command> {
        let longer = self.longer.as_mut()?;
        let waits = longer.proposed.is_some_and(|before| now.saturating_sub(before) < FORGET_AGAIN);
        if waits || longer.grant.over() > now {
            return None;
        }
        longer.proposed = Some(now);
        Some(Command::ForgetLongerLease(ForgetLongerLease { since: longer.told.since.0 }))
    }

    fn grant_of(&self, daemon: Daemon, map: &ClusterMap) -> Grant {
        self.grants.get(&daemon).copied().unwrap_or_else(|| {
            let full = Grant { from: self.elected, length: length(map) };
            let longer = self.longer.map(|longer| longer.grant).filter(|longer| longer.over() > full.over());
            longer.unwrap_or(full)
        })
    }

    /// Extends a lease whose heartbeat arrived at `from`. Returns its length.
    pub(crate) fn grant(&mut self, daemon: Daemon, from: Duration, map: &ClusterMap) -> Duration {
        let new = Grant { from, length: length(map) };
        let old = self.grant_of(daemon, map);
        // A shorter one than before does not end the former.
        let kept = if new.over() >= old.over() { new } else { old };
        self.grants.insert(daemon, kept);
        new.length
    }

    /// How long the daemon's process may still hold its lease; `None` if it has ended for sure.
    pub(crate) fn remaining(&self, daemon: Daemon, now: Duration, map: &ClusterMap) -> Option<Duration> {
        self.grant_of(daemon, map).over().checked_sub(now).filter(|left| !left.is_zero())
    }

    pub(crate) fn freeze(&mut self, daemon: Daemon) {
        self.frozen.insert(daemon);
    }

    pub(crate) fn thaw(&mut self, daemon: Daemon) {
        self.frozen.remove(&daemon);
    }

    pub(crate) fn is_frozen(&self, daemon: Daemon) -> bool {
        self.frozen.contains(&daemon)
    }

    pub(crate) fn report_usage(&mut self, osd: OsdId, total: u64, used: u64) {
        self.usage.insert(osd, (total, used));
    }

    pub(crate) fn usage(&self) -> &BTreeMap<OsdId, (u64, u64)> {
        &self.usage
    }

    /// What follows from the time: daemons that are down, OSDs that are out. To be called on each tick.
    pub(crate) fn due(&mut self, now: Duration, map: &ClusterMap) -> Vec<(Daemon, Command)> {
        // This process was stopped for a while (a suspended machine, a stalled disk): heartbeats may wait unread.
        if now.saturating_sub(self.last_look) > length(map) / 2 {
            tracing::warn!("this mon was stalled: all leases are assumed to be held anew");
            self.assume_all_held(now);
        }
        self.last_look = now;
        let mut due = Vec::new();
        for (id, osd) in map.osds.iter().filter(|(_, osd)| osd.up) {
            self.down_since.remove(id);
            let state = DaemonState { id: id.0, incarnation: osd.incarnation };
            self.add_if_over(&mut due, Daemon::Osd(*id), Command::OsdDown(state), now, map);
        }
        for (id, rank) in map.ranks.iter().filter(|(_, rank)| rank.up) {
            let down = RankDown { id: id.0, incarnation: rank.incarnation, assignments: Vec::new() };
            self.add_if_over(&mut due, Daemon::Rank(*id), Command::RankDown(down), now, map);
        }
        self.add_outs(&mut due, now, map);
        due
    }

    fn add_if_over(
        &self,
        due: &mut Vec<(Daemon, Command)>,
        daemon: Daemon,
        command: Command,
        now: Duration,
        map: &ClusterMap,
    ) {
        if !self.is_frozen(daemon) && self.remaining(daemon, now, map).is_none() {
            due.push((daemon, command));
        }
    }

    fn add_outs(&mut self, due: &mut Vec<(Daemon, Command)>, now: Duration, map: &ClusterMap) {
        let limit = Duration::from_millis(map.setting_u64(settings::DOWN_OUT_MILLIS));
        for (id, osd) in map.osds.iter().filter(|(_, osd)| !osd.up) {
            let since = *self.down_since.entry(*id).or_insert(now);
            let daemon = Daemon::Osd(*id);
            let waited = now.saturating_sub(since) >= limit;
            if waited && !self.frozen.contains(&daemon) && placement::can_replace(map, *id) {
                let state = DaemonState { id: id.0, incarnation: osd.incarnation };
                due.push((daemon, Command::OsdOut(state)));
            }
        }
    }
}

/// Whose lease a command takes as ended, if any.
pub(crate) fn ends_lease_of(command: &Command) -> Option<Daemon> {
    match command {
        Command::OsdDown(state) | Command::OsdOut(state) | Command::OsdUp(state) => Some(Daemon::Osd(OsdId(state.id))),
        Command::RankDown(down) => Some(Daemon::Rank(Rank(down.id))),
        Command::RankUp(state) => Some(Daemon::Rank(Rank(state.id))),
        Command::RegisterRank(command) => Some(Daemon::Rank(Rank(command.rank))),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
