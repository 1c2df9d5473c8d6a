//! Three OSDs, a mon and clients in one thread: everything that may happen in another order, does.

mod clients;
mod faults;
mod mon;
mod nodes;
mod purges;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use pando_osd_core::{
    Action, Batch, Change, Concerned, Configuration, Load, Loaded, Message, Mutation, MutationKind, ObjectKey,
    PageQuery, Pg, Purge, Reads, Reply, Request, Sessions, Token, Verdict, keys,
};
use pando_proto::ids::METADATA_POOL;
use pando_proto::{ClientId, Epoch, Error, Ino, OsdId, PgId, Reason, ShardId, SubtreeId};

use crate::disk::Disk;

pub const NODES: usize = 3;
const PG: PgId = PgId { pool: METADATA_POOL, index: 0 };
/// Clients; each has a shard, and an object, of its own.
const CLIENTS: usize = 4;
/// Earlier states that a disk may fall back to.
const HISTORY: usize = 64;

/// splitmix64: dice from a seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// What the mon holds.
#[derive(Clone)]
struct Map {
    epoch: u64,
    config: u64,
    members: Vec<OsdId>,
    joining: Vec<OsdId>,
}

struct Node {
    alive: bool,
    /// Serves, as far as its lease goes.
    lease: bool,
    pg: Pg,
    disk: Disk,
    /// Earlier states of it, oldest first.
    history: VecDeque<Disk>,
    /// Submitted, not durable.
    unsynced: VecDeque<Vec<Change>>,
    /// Reads of own state under way.
    jobs: Vec<Job>,
    open: BTreeMap<Token, Open>,
    next_token: Token,
    map_epoch: u64,
}

enum Job {
    Fetch(Token),
    Load(u64, Load),
    Sessions(u64),
    Tombstones(u64, Option<ObjectKey>),
    Objects(u64, Option<ObjectKey>),
    Page(u64, PageQuery),
}

#[derive(Clone, Copy)]
struct Open {
    client: usize,
    operation: Operation,
    /// What the client had acknowledged when it asked.
    floor: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Commit(u64),
    Write(u64),
    ReadRecord,
    ReadObject,
    Fill { generation: u64, index: u64 },
    Purge { generation: u64 },
}

#[derive(Default, Clone)]
struct Client {
    sent: u64,
    acked: u64,
    written: u64,
    write_acked: u64,
    waiting_commit: bool,
    waiting_write: bool,
    file: purges::File,
}

pub struct World {
    pub dice: Dice,
    nodes: Vec<Node>,
    map: Map,
    /// (from, to, whose stream) -> messages in order.
    streams: BTreeMap<(usize, usize, bool), VecDeque<Message>>,
    /// Streams that are open, by (primary's side, other side).
    open: BTreeMap<(usize, usize), bool>,
    isolated: Vec<bool>,
    clients: Vec<Client>,
    pub faults: bool,
    /// A disk lost what it had acknowledged, and the others have not repaired that yet: one such fault at a time.
    lost: bool,
    /// How often that happened.
    pub losses: u64,
    /// Clients begin nothing new.
    ending: bool,
    pub acknowledged: u64,
    /// Purges that were.
    pub purged: u64,
}

fn id(node: usize) -> OsdId {
    OsdId(node as u32)
}

fn object(client: usize) -> ObjectKey {
    ObjectKey { ino: Ino(100 + client as u64), index: 0 }
}

fn shard(client: usize) -> ShardId {
    ShardId(client as u16)
}

fn number(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_be_bytes())
}

impl World {
    pub fn new(seed: u64) -> Self {
        let node = |number| Node {
            alive: true,
            lease: true,
            pg: Pg::new(PG, id(number), Default::default(), 2),
            disk: Disk::default(),
            history: VecDeque::new(),
            unsynced: VecDeque::new(),
            jobs: Vec::new(),
            open: BTreeMap::new(),
            next_token: 0,
            map_epoch: 0,
        };
        Self {
            dice: Dice(seed),
            nodes: (0..NODES).map(node).collect(),
            map: Map { epoch: 1, config: 1, members: (0..NODES).map(id).collect(), joining: Vec::new() },
            streams: BTreeMap::new(),
            open: BTreeMap::new(),
            isolated: vec![false; NODES],
            clients: vec![Client::default(); CLIENTS],
            faults: true,
            lost: false,
            losses: 0,
            ending: false,
            acknowledged: 0,
            purged: 0,
        }
    }

    /// One thing happens.
    pub fn step(&mut self) {
        let primary = self.nodes[self.map.members[0].0 as usize].pg.status();
        self.lost &= !(primary.active && primary.config == self.map.config);
        match self.dice.below(12) {
            0..=2 => self.deliver(),
            3..=4 => self.sync(),
            5..=6 => self.job(),
            7 => self.learn(),
            8 => self.connect(),
            9..=10 => self.client(),
            _ if self.faults && self.dice.one_in(12) => self.fault(),
            _ if self.dice.one_in(4) => self.mon(),
            _ => {
                let node = self.dice.below(NODES);
                if self.nodes[node].alive && self.dice.one_in(8) {
                    self.nodes[node].pg.tick();
                    self.act(node);
                }
            }
        }
    }

    /// All faults end; everything goes on until all is acknowledged and all three are members.
    pub fn settle(&mut self) {
        self.faults = false;
        self.ending = true;
        for node in 0..NODES {
            self.heal(node);
            self.nodes[node].pg.set_full(false);
            self.act(node);
        }
        for round in 0.. {
            assert!(round < 200_000, "it does not settle: {}", self.describe());
            self.step();
            let all_in = self.map.members.len() == NODES;
            let waits = |client: &Client| client.waiting_commit || client.waiting_write || client.file.purging;
            let answered = !self.clients.iter().any(waits);
            if all_in && answered && self.is_quiet() {
                return;
            }
        }
    }

    fn is_quiet(&self) -> bool {
        let active = self.nodes.iter().filter(|node| node.pg.status().active).count() == 1;
        let done = self.nodes.iter().all(|node| node.unsynced.is_empty() && node.map_epoch == self.map.epoch);
        let primary = &self.nodes[self.map.members[0].0 as usize];
        active
            && done
            && self.streams.values().all(VecDeque::is_empty)
            && primary.open.is_empty()
            && primary.jobs.is_empty()
    }

    fn describe(&self) -> String {
        let nodes: Vec<_> =
            self.nodes.iter().map(|node| (node.pg.status(), node.unsynced.len(), node.jobs.len())).collect();
        let queues: Vec<_> = self.streams.iter().map(|(key, queue)| (key, queue.len())).collect();
        let open: Vec<_> = self.nodes.iter().map(|node| node.open.len()).collect();
        let waiting: Vec<_> = self.clients.iter().map(|client| (client.waiting_commit, client.waiting_write)).collect();
        format!(
            "open {open:?} waiting {waiting:?} members {:?} joining {:?}; {nodes:?}; {queues:?}",
            self.map.members, self.map.joining
        )
    }

    /// All copies are equal and hold what was acknowledged.
    pub fn check(&self) {
        let first = &self.nodes[0].disk;
        for node in &self.nodes {
            assert_eq!(node.disk.replicated(), first.replicated());
            assert_eq!(node.disk.stored().position, first.stored().position);
            assert!(!node.disk.stored().incomplete);
        }
        self.check_files(first);
        for (number, client) in self.clients.iter().enumerate() {
            let value = |bytes: &[u8]| u64::from_be_bytes(bytes[..8].try_into().unwrap());
            let record = first.records.get(&keys::record(shard(number), b"k")).map_or(0, |bytes| value(bytes));
            assert!(record >= client.acked, "I1: batch {} of client {number} is lost: {record}", client.acked);
            for batch in 1..=client.acked {
                let key = keys::record(shard(number), &batch.to_be_bytes());
                let there = first.records.contains_key(&key);
                assert_eq!(there, batch + 2 > record, "batch {batch} of client {number} of {record}");
            }
            let bytes = first.objects.get(&object(number)).map_or(0, |(_, bytes)| value(bytes));
            assert!(bytes >= client.write_acked, "I1: write {} is lost: {bytes}", client.write_acked);
        }
    }
}
