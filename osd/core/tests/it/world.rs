//! Three OSDs, a mon and clients in one thread: everything that may happen in another order, does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use pando_osd_core::{
    Action, Batch, Change, Concerned, Configuration, Load, Loaded, Message, Mutation, MutationKind, ObjectKey,
    PageQuery, Pg, Reads, Reply, Request, Sessions, Token, Verdict, keys,
};
use pando_proto::ids::METADATA_POOL;
use pando_proto::{ClientId, Epoch, Ino, OsdId, PgId, Reason, ShardId, SubtreeId};

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
    Page(u64, PageQuery),
}

#[derive(Clone, Copy)]
struct Open {
    client: usize,
    operation: Operation,
    /// What the client had acknowledged when it asked.
    floor: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Operation {
    Commit(u64),
    Write(u64),
    ReadRecord,
    ReadObject,
}

#[derive(Default, Clone)]
struct Client {
    sent: u64,
    acked: u64,
    written: u64,
    write_acked: u64,
    waiting_commit: bool,
    waiting_write: bool,
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

    fn deliver(&mut self) {
        let full: Vec<_> = self.streams.iter().filter(|(_, queue)| !queue.is_empty()).map(|(key, _)| *key).collect();
        if full.is_empty() {
            return;
        }
        let key = full[self.dice.below(full.len())];
        let Some(message) = self.streams.get_mut(&key).and_then(VecDeque::pop_front) else { return };
        let (from, to, _) = key;
        if self.nodes[to].alive {
            self.nodes[to].pg.message(id(from), message);
            self.act(to);
        }
    }

    /// Some of the submitted transactions become durable.
    fn sync(&mut self) {
        let node = self.dice.below(NODES);
        let waiting = self.nodes[node].unsynced.len();
        if waiting > 0 && self.nodes[node].alive {
            let count = 1 + self.dice.below(waiting);
            self.sync_some(node, count);
            self.nodes[node].pg.committed(count);
            self.act(node);
        }
    }

    fn sync_some(&mut self, node: usize, count: usize) {
        let node = &mut self.nodes[node];
        for changes in node.unsynced.drain(..count) {
            node.history.push_back(node.disk.clone());
            node.disk.apply(&changes);
        }
        while node.history.len() > HISTORY {
            node.history.pop_front();
        }
    }

    fn job(&mut self) {
        let at = self.dice.below(NODES);
        if self.nodes[at].jobs.is_empty() || !self.nodes[at].alive {
            return;
        }
        let which = self.dice.below(self.nodes[at].jobs.len());
        let job = self.nodes[at].jobs.swap_remove(which);
        let node = &mut self.nodes[at];
        match job {
            Job::Fetch(token) => self.fetch(at, token),
            Job::Load(ticket, load) => {
                let loaded = match load {
                    Load::Fence(shard, subtree) => {
                        Loaded::Fence(node.disk.records.get(&keys::fence(shard, subtree)).cloned())
                    }
                    Load::Header(object) => Loaded::Header(node.disk.objects.get(&object).map(|(header, _)| *header)),
                };
                node.pg.loaded(ticket, load, Ok(loaded));
            }
            Job::Sessions(ticket) => node.pg.sessions_loaded(ticket, Ok(node.disk.sessions())),
            Job::Tombstones(ticket, after) => {
                let later = node.disk.objects.iter().filter(|(object, _)| after.is_none_or(|after| **object > after));
                let page: Vec<_> = later.take(2).collect();
                let next = (page.len() == 2).then(|| *page[1].0);
                let dead = page.iter().filter(|(_, (header, _))| header.deleted);
                let dead = dead.map(|(object, (header, _))| (**object, header.sessions_before)).collect();
                node.pg.tombstones_listed(ticket, dead, next);
            }
            Job::Page(ticket, query) => {
                // What another write changes meanwhile may or may not be seen: here it is not.
                let page = node.disk.page(&query);
                if self.dice.one_in(3) {
                    self.sync();
                }
                let readable = !self.faults || !self.dice.one_in(20);
                self.nodes[at].pg.page(ticket, readable.then_some(page));
            }
        }
        self.act(at);
    }

    fn fetch(&mut self, at: usize, token: Token) {
        let node = &mut self.nodes[at];
        let Some(open) = node.open.get(&token).copied() else {
            node.pg.fetched(token);
            return;
        };
        let value = match open.operation {
            Operation::ReadRecord => node.disk.records.get(&keys::record(shard(open.client), b"k")).cloned(),
            _ => {
                let found = node.disk.objects.get(&object(open.client));
                found.map(|(_, bytes)| Bytes::copy_from_slice(bytes)).filter(|bytes| !bytes.is_empty())
            }
        };
        let value = value.map_or(0, |value| u64::from_be_bytes(value[..8].try_into().unwrap()));
        if node.pg.fetched(token) == Verdict::Send {
            node.open.remove(&token);
            if !node.lease {
                return;
            }
            let client = &self.clients[open.client];
            let sent = if open.operation == Operation::ReadRecord { client.sent } else { client.written };
            assert!(value >= open.floor, "I1: {value} was read, {} was acknowledged before", open.floor);
            assert!(value <= sent, "nobody wrote {value}");
            // I2: what was read must never be lost: it counts as acknowledged.
            let client = &mut self.clients[open.client];
            match open.operation {
                Operation::ReadRecord => client.acked = client.acked.max(value),
                _ => client.write_acked = client.write_acked.max(value),
            }
        }
    }

    /// A node hears of the newest map.
    fn learn(&mut self) {
        let node = self.dice.below(NODES);
        self.learn_at(node);
    }

    fn learn_at(&mut self, node: usize) {
        if !self.nodes[node].alive || self.isolated[node] || self.nodes[node].map_epoch == self.map.epoch {
            return;
        }
        self.nodes[node].map_epoch = self.map.epoch;
        // R13, R14: a lease is granted to those who have the map of its time.
        self.nodes[node].lease = true;
        let sessions = Sessions {
            epoch: Epoch(self.map.epoch),
            live: (1..=CLIENTS as u64).map(ClientId).collect(),
            next_client_id: CLIENTS as u64 + 1,
        };
        let configuration = Configuration {
            number: self.map.config,
            members: self.map.members.clone(),
            joining: self.map.joining.clone(),
            min_size: 2,
            forgiven: 0,
        };
        let pg = &mut self.nodes[node].pg;
        pg.set_sessions(Arc::new(sessions));
        pg.configure(configuration);
        self.act(node);
    }

    /// Opens a stream that is not open.
    fn connect(&mut self) {
        let (from, to) = (self.dice.below(NODES), self.dice.below(NODES));
        if from == to || !self.can_talk(from, to) || self.open.get(&(from, to)) == Some(&true) {
            return;
        }
        self.open.insert((from, to), true);
        self.nodes[from].pg.peer_connected(id(to));
        self.act(from);
    }

    fn can_talk(&self, a: usize, b: usize) -> bool {
        self.nodes[a].alive && self.nodes[b].alive && !self.isolated[a] && !self.isolated[b]
    }

    fn break_streams(&mut self, node: usize) {
        for other in 0..NODES {
            for (a, b) in [(node, other), (other, node)] {
                self.break_stream(a, b);
            }
        }
    }

    /// The stream that `a` opened to `b` breaks: messages on it are lost.
    fn break_stream(&mut self, a: usize, b: usize) {
        self.streams.remove(&(a, b, true));
        self.streams.remove(&(b, a, false));
        if self.open.insert((a, b), false) == Some(true) && self.nodes[a].alive {
            self.nodes[a].pg.peer_disconnected(id(b));
            self.act(a);
        }
    }

    fn client(&mut self) {
        let client = self.dice.below(CLIENTS);
        let state = &mut self.clients[client];
        if self.ending && !state.waiting_commit && !state.waiting_write {
            return;
        }
        let operation = match self.dice.below(5) {
            0 | 1 => {
                if !state.waiting_commit && self.ending {
                    return;
                }
                if !state.waiting_commit {
                    state.sent += 1;
                    state.waiting_commit = true;
                }
                // Also a copy of an older batch, late.
                let late = if self.dice.one_in(4) { self.dice.below(3) as u64 } else { 0 };
                Operation::Commit(self.clients[client].sent.saturating_sub(late).max(1))
            }
            2 | 3 => {
                if !state.waiting_write && self.ending {
                    return;
                }
                if !state.waiting_write {
                    state.written += 1;
                    state.waiting_write = true;
                }
                let late = if self.dice.one_in(4) { self.dice.below(3) as u64 } else { 0 };
                Operation::Write(self.clients[client].written.saturating_sub(late).max(1))
            }
            _ if self.dice.one_in(2) => Operation::ReadRecord,
            _ => Operation::ReadObject,
        };
        let primary = self.map.members[0].0 as usize;
        let node = if self.dice.one_in(5) { self.dice.below(NODES) } else { primary };
        self.send_request(node, client, operation);
    }

    fn send_request(&mut self, at: usize, client: usize, operation: Operation) {
        let node = &mut self.nodes[at];
        if !node.alive || !node.lease {
            return;
        }
        let state = &self.clients[client];
        let floor = match operation {
            Operation::ReadRecord => state.acked,
            Operation::ReadObject => state.write_acked,
            _ => 0,
        };
        node.next_token += 1;
        let token = node.next_token;
        node.open.insert(token, Open { client, operation, floor });
        let request = match operation {
            Operation::Commit(batch) => Request::Commit(commit(client, batch)),
            Operation::Write(sequence) => Request::Mutate(Mutation {
                session: ClientId(client as u64 + 1),
                sequence,
                low_water: state.write_acked.min(sequence),
                generation: 0,
                object: object(client),
                kind: MutationKind::Write { offset: 0, data: number(sequence) },
            }),
            Operation::ReadRecord => Request::Read(Reads::Keys(vec![keys::record(shard(client), b"k")])),
            Operation::ReadObject => Request::Read(Reads::Object(object(client))),
        };
        node.pg.request(token, request);
        self.act(at);
    }

    fn replied(&mut self, at: usize, token: Token, result: Result<Reply, pando_proto::Error>) {
        let Some(open) = self.nodes[at].open.remove(&token) else { return };
        let client = &mut self.clients[open.client];
        match (open.operation, result) {
            (Operation::Commit(batch), Ok(reply)) => {
                assert!(matches!(reply, Reply::Committed { .. }), "{reply:?}");
                client.acked = client.acked.max(batch);
                self.acknowledged += 1;
                if batch == client.sent {
                    client.waiting_commit = false;
                }
            }
            (Operation::Write(sequence), Ok(reply)) => {
                assert!(matches!(reply, Reply::Written { .. }), "{reply:?}");
                client.write_acked = client.write_acked.max(sequence);
                self.acknowledged += 1;
                if sequence == client.written {
                    client.waiting_write = false;
                }
            }
            (_, Ok(reply)) => panic!("{reply:?} to a read"),
            (_, Err(error)) => {
                let expected = matches!(error.reason, Reason::NotOwner | Reason::Unavailable);
                assert!(expected, "{error:?}: {}", self.describe());
            }
        }
    }

    /// Does what a core wants.
    fn act(&mut self, at: usize) {
        loop {
            let actions = self.nodes[at].pg.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                let node = &mut self.nodes[at];
                match action {
                    Action::Commit(changes) => node.unsynced.push_back(changes),
                    Action::Send(to, message) => self.send(at, to.0 as usize, message),
                    Action::Reply(token, result) => self.replied(at, token, result),
                    Action::Fetch(token) => node.jobs.push(Job::Fetch(token)),
                    Action::Load { ticket, load } => node.jobs.push(Job::Load(ticket, load)),
                    Action::LoadSessions(ticket) => node.jobs.push(Job::Sessions(ticket)),
                    Action::ListTombstones { ticket, after } => node.jobs.push(Job::Tombstones(ticket, after)),
                    Action::Page { ticket, query } => node.jobs.push(Job::Page(ticket, query)),
                    Action::Confirm(joiner) => {
                        let config = node.pg.status().config;
                        self.confirm(joiner, config);
                    }
                    Action::Lost(osd) => {
                        panic!("osd.{at} is said to have lost what {osd} knows of: {}", self.describe())
                    }
                    Action::Demote(member) => {
                        let config = node.pg.status().config;
                        self.demote(member, config);
                    }
                }
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let forward = message.body.is_from_primary();
        let stream = if forward { (from, to) } else { (to, from) };
        if self.open.get(&stream) == Some(&true) {
            self.streams.entry((from, to, forward)).or_default().push_back(message);
        }
    }

    fn confirm(&mut self, joiner: OsdId, config: u64) {
        if self.map.config != config || !self.map.joining.contains(&joiner) {
            return;
        }
        self.map.joining.retain(|osd| *osd != joiner);
        self.map.members.push(joiner);
        if self.faults && self.map.members.len() > 2 && self.dice.one_in(3) {
            // A move to another OSD: somebody leaves, the primary perhaps, and is there no more until it joins again.
            let leaving = self.dice.below(self.map.members.len() - 1);
            self.map.members.remove(leaving);
        }
        self.map.config += 1;
        self.map.epoch += 1;
    }

    fn demote(&mut self, member: OsdId, config: u64) {
        if self.map.config != config || !self.map.members.contains(&member) || self.map.members.len() < 2 {
            return;
        }
        self.map.members.retain(|osd| *osd != member);
        self.map.joining.push(member);
        self.map.config += 1;
        self.map.epoch += 1;
    }

    fn fault(&mut self) {
        if self.lost {
            return;
        }
        let node = self.dice.below(NODES);
        match self.dice.below(8) {
            6 => self.lose(node),
            7 => {
                // The whole cluster: nobody remembers a log.
                (0..NODES).for_each(|node| self.crash(node));
                (0..NODES).filter(|other| *other != node).for_each(|other| self.restart(other));
                self.lose(node);
            }
            0 => self.crash(node),
            5 => self.rot(node),
            1 => self.isolate(node),
            2 => {
                let other = self.dice.below(NODES);
                if node != other {
                    self.break_stream(node, other);
                }
            }
            _ => self.heal(node),
        }
    }

    /// Dies with some of what it submitted on disk, in order.
    fn crash(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        let survivors = self.dice.below(self.nodes[node].unsynced.len() + 1);
        self.sync_some(node, survivors);
        self.nodes[node].unsynced.clear();
        self.nodes[node].jobs.clear();
        self.nodes[node].open.clear();
        self.nodes[node].alive = false;
        self.nodes[node].lease = false;
        self.break_streams(node);
    }

    /// Restarts with an earlier state of its disk, as if that had lied, while another member lives.
    fn lose(&mut self, node: usize) {
        let another = |osd: &&OsdId| osd.0 as usize != node;
        let mut others = self.map.members.iter().filter(another);
        let safe = others.clone().count() > 0 && others.all(|osd| self.is_up(osd.0 as usize));
        self.crash(node);
        if safe && !self.ending {
            let history = self.nodes[node].history.len();
            self.nodes[node].disk = match history {
                0 => return,
                _ if self.dice.one_in(10) => Disk::default(),
                _ => self.nodes[node].history[self.dice.below(history)].clone(),
            };
            self.nodes[node].history.clear();
            self.lost = self.map.members.contains(&id(node));
            self.losses += u64::from(self.lost);
            self.restart(node);
            // It hears of no other OSD before it has the map of its registration (R25): its promise may be lost too.
            self.learn_at(node);
        }
    }

    /// Some of what the only copy submitted builds on a block that rotted; it goes on.
    fn rot(&mut self, node: usize) {
        if !self.nodes[node].alive || self.nodes[node].unsynced.is_empty() {
            return;
        }
        if !matches!(self.nodes[node].pg.concerned(), Concerned::Request(_)) {
            return;
        }
        let survivors = self.dice.below(self.nodes[node].unsynced.len());
        self.sync_some(node, survivors);
        self.nodes[node].pg.committed(survivors);
        let (stored, id) = (self.nodes[node].disk.stored(), id(node));
        let node = &mut self.nodes[node];
        node.unsynced.clear();
        node.jobs.clear();
        node.open.clear();
        node.pg = Pg::new(PG, id, stored, 2);
        node.map_epoch = 0;
    }

    /// Lives on, alone: its lease ends before anybody acts on that.
    fn isolate(&mut self, node: usize) {
        self.isolated[node] = true;
        self.nodes[node].lease = false;
        self.break_streams(node);
    }

    fn heal(&mut self, node: usize) {
        if !self.nodes[node].alive {
            self.restart(node);
        } else if self.isolated[node] {
            self.isolated[node] = false;
            // It registers anew with the mon before it gets a lease.
            self.returns(node);
        }
    }

    fn restart(&mut self, node: usize) {
        let disk = std::mem::take(&mut self.nodes[node].disk);
        let history = std::mem::take(&mut self.nodes[node].history);
        self.nodes[node] = Node {
            alive: true,
            lease: false,
            pg: Pg::new(PG, id(node), disk.stored(), 2),
            disk,
            history,
            unsynced: VecDeque::new(),
            jobs: Vec::new(),
            open: BTreeMap::new(),
            next_token: 0,
            map_epoch: 0,
        };
        self.isolated[node] = false;
        if self.map.members.contains(&id(node)) || self.map.joining.contains(&id(node)) {
            self.map.config += 1;
        }
        self.returns(node);
    }

    fn returns(&mut self, node: usize) {
        self.map.epoch += 1;
        if !self.map.members.contains(&id(node)) && !self.map.joining.contains(&id(node)) {
            self.map.joining.push(id(node));
        }
    }

    /// Whether the mon hears of it. If not, its lease has ended by the time the mon acts.
    fn is_up(&self, node: usize) -> bool {
        self.nodes[node].alive && !self.isolated[node]
    }

    /// The mon notices who is gone, and gives places to those that have none. The last member stays (R26).
    fn mon(&mut self) {
        for node in 0..NODES {
            if self.is_up(node) {
                let placed = self.map.members.contains(&id(node)) || self.map.joining.contains(&id(node));
                if !placed {
                    self.map.joining.push(id(node));
                    self.map.epoch += 1;
                }
                continue;
            }
            if self.map.joining.contains(&id(node)) {
                self.map.joining.retain(|osd| *osd != id(node));
                self.map.config += 1;
                self.map.epoch += 1;
            }
            let another = self.map.members.iter().any(|osd| self.is_up(osd.0 as usize));
            if self.map.members.contains(&id(node)) && another {
                self.map.members.retain(|osd| *osd != id(node));
                self.map.config += 1;
                self.map.epoch += 1;
            }
        }
    }

    /// All faults end; everything goes on until all is acknowledged and all three are members.
    pub fn settle(&mut self) {
        self.faults = false;
        self.ending = true;
        for node in 0..NODES {
            self.heal(node);
        }
        for round in 0.. {
            assert!(round < 200_000, "it does not settle: {}", self.describe());
            self.step();
            let all_in = self.map.members.len() == NODES;
            let answered = self.clients.iter().all(|client| !client.waiting_commit && !client.waiting_write);
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

/// Batch n sets `k`, makes a record of its own and removes that of batch n - 2.
fn commit(client: usize, batch: u64) -> Batch {
    let shard = shard(client);
    let mut changes = vec![
        Change::Put { key: keys::record(shard, b"k"), value: number(batch) },
        Change::Put { key: keys::record(shard, &batch.to_be_bytes()), value: Bytes::from_static(b"there") },
    ];
    if batch > 2 {
        changes.push(Change::Delete { key: keys::record(shard, &(batch - 2).to_be_bytes()) });
    }
    Batch { shard, subtree: SubtreeId(1), epoch: 1, batch, changes }
}
