//! Proposals, reads and heartbeats.

use std::time::Duration;

use pando_cluster_map::{ClusterMap, Command, CommandResult, DaemonState, RankDown};
use pando_mon_client::Daemon;
use pando_proto::{Error, OsdId, Rank, Reason};

use super::{Beat, Granted, MAX_PENDING, Node, Pending, Reply, Waiter};
use crate::balancer::Hints;
use crate::leases;

/// Retry hint while a command about the same daemon is under way.
const SOON: Duration = Duration::from_millis(20);

impl Node {
    pub(super) fn on_propose(&mut self, command: &Command, reply: Reply<CommandResult>) {
        if let Err(error) = self.admit(command) {
            let _ = reply.send(Err(error));
            return;
        }
        let command = self.with_assignments(command.clone());
        self.propose(&command, Some(reply));
    }

    /// Names those who get the subtrees of a rank that goes, spread by load.
    pub(super) fn with_assignments(&self, command: Command) -> Command {
        match command {
            Command::RankDown(down) if down.assignments.is_empty() => {
                let assignments = self.balancer.assignments(&self.map, Rank(down.id));
                Command::RankDown(RankDown { assignments, ..down })
            }
            other => other,
        }
    }

    fn admit(&self, command: &Command) -> Result<(), Error> {
        if !self.is_leader() {
            return Err(self.not_leader());
        }
        if !self.is_ready_leader() {
            let error = Error::new(Reason::Unavailable, "this mon was elected a moment ago and is catching up");
            return Err(error.retry_after(SOON));
        }
        if self.pending.len() >= MAX_PENDING {
            return Err(Error::new(Reason::Overloaded, "too many changes of the cluster map at once").retry_after(SOON));
        }
        if let Some(daemon) = leases::ends_lease_of(command).filter(|daemon| self.leases.is_frozen(*daemon)) {
            let error = Error::new(Reason::Unavailable, format!("another change of {daemon} is under way"));
            return Err(error.retry_after(SOON));
        }
        let Command::RegisterRank(register) = command else { return Ok(()) };
        let rank = Rank(register.rank);
        let others = self.map.ranks.get(&rank).filter(|info| info.up && info.boot_id != register.boot_id);
        let remaining = self.leases.remaining(Daemon::Rank(rank), self.clock.boottime(), &self.map);
        match (others, remaining) {
            (Some(info), Some(remaining)) => {
                let message = format!("another process (at {}) may still hold the lease of {rank}", info.address);
                Err(Error::new(Reason::Unavailable, message).retry_after(remaining))
            }
            _ => Ok(()),
        }
    }

    /// Appends a command to the log. The caller knows that this mon leads.
    pub(super) fn propose(&mut self, command: &Command, reply: Option<Reply<CommandResult>>) {
        self.next_proposal += 1;
        let number = self.next_proposal;
        let context = [self.boot.to_be_bytes(), number.to_be_bytes()].concat();
        if let Err(error) = self.raw.propose(context, command.to_bytes()) {
            tracing::debug!(%error, "raft dropped a proposal");
            if let Some(reply) = reply {
                let error = Error::new(Reason::Overloaded, "too many changes of the cluster map at once");
                let _ = reply.send(Err(error.retry_after(SOON)));
            }
            return;
        }
        let frozen = leases::ends_lease_of(command);
        if let Some(daemon) = frozen {
            self.leases.freeze(daemon);
        }
        self.pending.insert(number, Pending { reply, frozen });
    }

    pub(super) fn wait_for_read(&mut self, waiter: Waiter) {
        if matches!(waiter, Waiter::Heartbeat(..)) && !self.is_leader() {
            waiter.refuse(self.not_leader());
            return;
        }
        if let Err(waiter) = self.reads.push(waiter) {
            waiter.refuse(Error::new(Reason::Overloaded, "too many reads of the cluster map at once"));
        }
    }

    /// Asks Raft to confirm the leadership for the reads that came in.
    pub(super) fn ask_reads(&mut self) {
        // Raft would drop the question without a word.
        let has_leader = if self.is_leader() { self.is_ready_leader() } else { self.raw.raft.leader_id != 0 };
        if has_leader && let Some(context) = self.reads.ask() {
            self.raw.read_index(context);
        }
    }

    /// Answers the reads whose index has been applied.
    pub(super) fn answer_reads(&mut self) {
        for waiter in self.reads.ready(self.applied.index) {
            match waiter {
                Waiter::Map(reply) => drop(reply.send(Ok(self.map.clone()))),
                Waiter::Heartbeat(beat, reply) => {
                    let answer = self.grant(beat);
                    let _ = reply.send(answer);
                }
            }
        }
    }

    /// R13: a quorum has confirmed this mon's leadership since the heartbeat arrived.
    fn grant(&mut self, beat: Beat) -> Result<Granted, Error> {
        if !self.is_ready_leader() {
            return Err(self.not_leader());
        }
        let up = check_incarnation(&self.map, &beat)?;
        if self.leases.is_frozen(beat.daemon) {
            let error = Error::new(Reason::Unavailable, format!("a change of {} is under way", beat.daemon));
            return Err(error.retry_after(SOON));
        }
        if !up {
            // The same process was silent for too long and is back.
            self.propose(&up_command(&beat), None);
            let error = Error::new(Reason::Unavailable, format!("{} was down and is coming back", beat.daemon));
            return Err(error.retry_after(SOON));
        }
        let lease = self.leases.grant(beat.daemon, beat.arrived, &self.map);
        let hints = match beat.daemon {
            Daemon::Osd(osd) => {
                self.leases.report_usage(osd, beat.total_bytes, beat.used_bytes);
                Hints::default()
            }
            Daemon::Rank(rank) => {
                if let Some(load) = beat.load {
                    self.balancer.report(rank, *load, beat.arrived);
                }
                self.balancer.take_hints(rank)
            }
        };
        Ok(Granted { lease, epoch: self.map.epoch.0, hints })
    }
}

/// Whether the daemon is up.
fn check_incarnation(map: &ClusterMap, beat: &Beat) -> Result<bool, Error> {
    let known = match beat.daemon {
        Daemon::Osd(osd) => map.osds.get(&osd).map(|osd| (osd.up, osd.incarnation)),
        Daemon::Rank(rank) => map.ranks.get(&rank).map(|rank| (rank.up, rank.incarnation)),
    };
    let daemon = beat.daemon;
    let Some((up, incarnation)) = known else {
        return Err(Error::new(Reason::UnknownId, format!("the cluster map knows no {daemon}: register first")));
    };
    if incarnation != beat.incarnation {
        let message = format!("a newer process of {daemon} has registered: this one has to stop");
        return Err(Error::new(Reason::StaleEpoch, message).with_epoch(incarnation));
    }
    Ok(up)
}

fn up_command(beat: &Beat) -> Command {
    match beat.daemon {
        Daemon::Osd(OsdId(id)) => Command::OsdUp(DaemonState { id, incarnation: beat.incarnation }),
        Daemon::Rank(Rank(id)) => Command::RankUp(DaemonState { id, incarnation: beat.incarnation }),
    }
}
