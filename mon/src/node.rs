//! The one task that owns the Raft node, the map and the leases. Everyone else talks to it by [`Input`]s.
//!
//! Only the leader proposes, and only here: Raft never forwards a proposal, so that what was decided under one
//! leadership (a lease that has ended) cannot enter the log under another.

mod apply;
mod request;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pando_cluster_map::{ClusterMap, Command, CommandResult};
use pando_mon_client::Daemon;
use pando_proto::mon::{Decision, RankLoad, RankLoadOf};
use pando_proto::{Error, OsdId, Reason};
use pando_rpc::{Clock, Shutdown};
use raft::eraftpb::{Message, MessageType};
use raft::{RawNode, SnapshotStatus, StateRole};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;

use crate::balancer::{Balancer, Hints};
use crate::leases::Leases;
use crate::peers::Peers;
use crate::reads::Reads;
use crate::storage::{Position, RaftStorage};

/// Inputs that may wait for the node.
pub(crate) const INPUTS: usize = 4096;
/// Inputs handled between two writes to the disk.
const TURN: usize = 512;
/// Proposals that may wait for their commit.
const MAX_PENDING: usize = 4096;
const ELECTION_TICKS: usize = 10;
const HEARTBEAT_TICKS: usize = 2;

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// A heartbeat as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Beat {
    pub(crate) daemon: Daemon,
    pub(crate) incarnation: u64,
    /// Boottime of its arrival.
    pub(crate) arrived: Duration,
    pub(crate) total_bytes: u64,
    pub(crate) used_bytes: u64,
    /// Of a rank.
    pub(crate) load: Option<Box<RankLoad>>,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) lease: Duration,
    pub(crate) epoch: u64,
    /// What the balancer asks of a rank.
    pub(crate) hints: Hints,
}

/// What the leader knows beside the map.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) usage: BTreeMap<OsdId, (u64, u64)>,
    pub(crate) unreachable_mons: Vec<u64>,
}

/// What the node is asked.
pub(crate) enum Input {
    Message(Message),
    Propose { command: Command, reply: Reply<CommandResult> },
    Read { reply: Reply<Arc<ClusterMap>> },
    Heartbeat { beat: Beat, reply: Reply<Granted> },
    Status { reply: oneshot::Sender<Status> },
    Decisions { limit: u32, reply: oneshot::Sender<Vec<Decision>> },
    Loads { reply: oneshot::Sender<Vec<RankLoadOf>> },
    Unreachable(u64),
    SnapshotSent { to: u64, arrived: bool },
}

/// Who waits for a confirmed read.
pub(crate) enum Waiter {
    Map(Reply<Arc<ClusterMap>>),
    Heartbeat(Beat, Reply<Granted>),
}

impl Waiter {
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Map(reply) => reply.is_closed(),
            Self::Heartbeat(_, reply) => reply.is_closed(),
        }
    }

    fn refuse(self, error: Error) {
        match self {
            Self::Map(reply) => drop(reply.send(Err(error))),
            Self::Heartbeat(_, reply) => drop(reply.send(Err(error))),
        }
    }
}

/// Who leads, as this mon knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leadership {
    /// 0 while there is none.
    pub(crate) leader: u64,
    pub(crate) term: u64,
}

struct Pending {
    reply: Option<Reply<CommandResult>>,
    frozen: Option<Daemon>,
}

/// What the node is made of.
pub(crate) struct Parts {
    pub(crate) id: u64,
    pub(crate) tick: Duration,
    pub(crate) compact_every: u64,
    pub(crate) election_seed: Option<u64>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) storage: RaftStorage,
    pub(crate) peers: Peers,
    pub(crate) map: watch::Sender<Arc<ClusterMap>>,
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) cluster: watch::Sender<[u8; 16]>,
}

pub(crate) struct Node {
    id: u64,
    tick: Duration,
    compact_every: u64,
    election_seed: Option<u64>,
    clock: Arc<dyn Clock>,
    peers: Peers,
    published: watch::Sender<Arc<ClusterMap>>,
    leadership: watch::Sender<Leadership>,
    cluster: watch::Sender<[u8; 16]>,
    raw: RawNode<RaftStorage>,
    map: Arc<ClusterMap>,
    applied: Position,
    /// Tells this process's proposals from those of its former ones.
    boot: u64,
    next_proposal: u64,
    pending: BTreeMap<u64, Pending>,
    reads: Reads,
    leases: Leases,
    balancer: Balancer,
    /// The term in which this mon leads.
    leading: Option<u64>,
}

fn raft_config(id: u64, applied: u64) -> raft::Config {
    raft::Config {
        id,
        election_tick: ELECTION_TICKS,
        heartbeat_tick: HEARTBEAT_TICKS,
        applied,
        max_size_per_msg: 1 << 20,
        max_inflight_msgs: 256,
        check_quorum: true,
        pre_vote: true,
        max_uncommitted_size: 64 << 20,
        max_committed_size_per_ready: 16 << 20,
        ..raft::Config::default()
    }
}

impl Node {
    pub(crate) fn new(parts: Parts) -> Result<Self, crate::Error> {
        let (applied, map) = parts.storage.applied();
        let config = raft_config(parts.id, applied.index);
        let raw = RawNode::new(&config, parts.storage, &crate::logger::logger())?;
        let boot = parts.clock.boottime().as_nanos() as u64 ^ (parts.clock.wall_nanos() as u64).rotate_left(32);
        let mut node = Self {
            id: parts.id,
            tick: parts.tick,
            compact_every: parts.compact_every,
            election_seed: parts.election_seed,
            clock: parts.clock,
            peers: parts.peers,
            published: parts.map,
            leadership: parts.leadership,
            cluster: parts.cluster,
            raw,
            map,
            applied,
            boot,
            next_proposal: 0,
            pending: BTreeMap::new(),
            reads: Reads::new(parts.id, boot),
            leases: Leases::default(),
            balancer: Balancer::default(),
            leading: None,
        };
        node.leases.learn(&node.map, node.clock.boottime());
        node.seed_elections();
        if node.raw.raft.prs().conf().voters().ids().len() == 1 {
            // Nobody to wait for.
            node.raw.campaign()?;
        }
        node.pump()?;
        Ok(node)
    }

    /// Runs until `shutdown`, or until the disk fails or turns out to have lost something.
    pub(crate) async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        shutdown: Shutdown,
    ) -> Result<(), crate::Error> {
        let mut ticker = tokio::time::interval(self.tick);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = shutdown.stopped() => return Ok(()),
                _ = ticker.tick() => self.on_tick(),
                input = inputs.recv() => {
                    let Some(input) = input else { return Ok(()) };
                    self.handle(input)?;
                    for _ in 1..TURN {
                        let Ok(input) = inputs.try_recv() else { break };
                        self.handle(input)?;
                    }
                }
            }
            self.pump()?;
        }
    }

    fn on_tick(&mut self) {
        let now = self.clock.boottime();
        self.raw.tick();
        self.seed_elections();
        self.reads.tick();
        if self.is_ready_leader() {
            for (daemon, command) in self.leases.due(now, &self.map) {
                let command = self.with_assignments(command);
                tracing::warn!(%daemon, "its lease has ended");
                self.propose(&command, None);
            }
            if let Some(command) = self.leases.forget_longer(now) {
                self.propose(&command, None);
            }
            for command in self.balancer.due(now, self.clock.wall_nanos(), &self.map) {
                self.propose(&command, None);
            }
        }
    }

    fn handle(&mut self, input: Input) -> Result<(), crate::Error> {
        match input {
            Input::Message(message) => self.step(message)?,
            Input::Propose { command, reply } => self.on_propose(&command, reply),
            Input::Read { reply } => self.wait_for_read(Waiter::Map(reply)),
            Input::Heartbeat { beat, reply } => self.wait_for_read(Waiter::Heartbeat(beat, reply)),
            Input::Status { reply } => {
                let usage = self.leases.usage().clone();
                let _ = reply.send(Status { usage, unreachable_mons: self.peers.unreachable() });
            }
            Input::Decisions { limit, reply } => drop(reply.send(self.balancer.decisions(limit))),
            Input::Loads { reply } => drop(reply.send(self.balancer.loads(self.clock.boottime()))),
            Input::Unreachable(peer) => self.raw.report_unreachable(peer),
            Input::SnapshotSent { to, arrived } => {
                let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
                self.raw.report_snapshot(to, status);
            }
        }
        Ok(())
    }

    /// Errors: this mon must not vote or confirm anything any more, what waits to be sent included.
    fn step(&mut self, message: Message) -> Result<(), crate::Error> {
        let known = self.raw.raft.prs().get(message.from).is_some();
        if !known || message.to != self.id || message.from == self.id {
            tracing::warn!(from = message.from, to = message.to, "a message of the group that is not for this mon");
            return Ok(());
        }
        // Proposals come by `Propose`, where their conditions are checked; the rest is never sent.
        if matches!(message.get_msg_type(), MessageType::MsgPropose | MessageType::MsgTransferLeader) {
            tracing::warn!(from = message.from, "a message of a kind that mons do not send each other");
            return Ok(());
        }
        let last = self.raw.raft.raft_log.last_index();
        if message.get_msg_type() == MessageType::MsgHeartbeat && message.commit > last {
            return Err(crate::Error::LostLog { confirmed: message.commit, last });
        }
        if let Err(error) = self.raw.step(message) {
            tracing::debug!(%error, "raft refused a message");
        }
        self.seed_elections();
        Ok(())
    }

    /// In a simulation elections must not roll real dice.
    fn seed_elections(&mut self) {
        let Some(seed) = self.election_seed else { return };
        let mut x = seed ^ self.id.rotate_left(40) ^ self.raw.raft.term.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let spread = ((x ^ (x >> 31)) % ELECTION_TICKS as u64) as usize;
        self.raw.raft.set_randomized_election_timeout(ELECTION_TICKS + spread);
    }

    fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Leads and has applied an entry of its own term, and thus all that was committed before.
    fn is_ready_leader(&self) -> bool {
        self.is_leader() && self.applied.term == self.raw.raft.term
    }

    fn not_leader(&self) -> Error {
        let leader = self.raw.raft.leader_id;
        if leader == 0 || leader == self.id {
            let error = Error::new(Reason::Unavailable, "the mons have no leader at the moment");
            return error.retry_after(self.tick * 2);
        }
        Error::new(Reason::NotOwner, format!("mon {leader} leads, not this one"))
    }
}

#[cfg(test)]
mod tests;
