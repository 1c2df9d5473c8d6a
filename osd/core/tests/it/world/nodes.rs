//! What the copies do: messages, disks, maps, streams.

use super::*;

impl World {
    pub(super) fn deliver(&mut self) {
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
    pub(super) fn sync(&mut self) {
        let node = self.dice.below(NODES);
        let waiting = self.nodes[node].unsynced.len();
        if waiting > 0 && self.nodes[node].alive {
            let count = 1 + self.dice.below(waiting);
            self.sync_some(node, count);
            self.nodes[node].pg.committed(count);
            self.act(node);
        }
    }

    pub(super) fn sync_some(&mut self, node: usize, count: usize) {
        let node = &mut self.nodes[node];
        for changes in node.unsynced.drain(..count) {
            node.history.push_back(node.disk.clone());
            node.disk.apply(&changes);
        }
        while node.history.len() > HISTORY {
            node.history.pop_front();
        }
    }

    pub(super) fn job(&mut self) {
        let at = self.dice.below(NODES);
        if self.nodes[at].jobs.is_empty() || !self.nodes[at].alive {
            return;
        }
        let which = self.dice.below(self.nodes[at].jobs.len());
        let job = self.nodes[at].jobs.swap_remove(which);
        if let Some(error) = self.read_error() {
            self.cannot_read(at, job, error);
            return self.act(at);
        }
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
            Job::Objects(ticket, after) => {
                let later = node.disk.objects.iter().filter(|(object, _)| after.is_none_or(|after| **object > after));
                let page: Vec<_> = later.take(2).map(|(object, (header, _))| (*object, *header)).collect();
                let more = page.len() == 2;
                node.pg.objects_listed(ticket, Ok((page, more)));
            }
            Job::Page(ticket, query) => {
                // What another write changes meanwhile may or may not be seen: here it is not.
                let page = node.disk.page(&query);
                if self.dice.one_in(3) {
                    self.sync();
                }
                self.nodes[at].pg.page(ticket, Some(page));
            }
        }
        self.act(at);
    }

    pub(super) fn fetch(&mut self, at: usize, token: Token) {
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
    pub(super) fn learn(&mut self) {
        let node = self.dice.below(NODES);
        self.learn_at(node);
    }

    pub(super) fn learn_at(&mut self, node: usize) {
        if !self.nodes[node].alive || self.isolated[node] || self.nodes[node].map_epoch == self.map.epoch {
            return;
        }
        self.nodes[node].map_epoch = self.map.epoch;
        // R13, R14: a lease is granted to those who have the map of its time.
        self.nodes[node].lease = true;
        let sessions = Sessions {
            epoch: Epoch(self.map.epoch),
            live: (1..=2 * CLIENTS as u64).map(ClientId).collect(),
            next_client_id: 2 * CLIENTS as u64 + 1,
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
    pub(super) fn connect(&mut self) {
        let (from, to) = (self.dice.below(NODES), self.dice.below(NODES));
        if from == to || !self.can_talk(from, to) || self.open.get(&(from, to)) == Some(&true) {
            return;
        }
        self.open.insert((from, to), true);
        self.nodes[from].pg.peer_connected(id(to));
        self.act(from);
    }

    pub(super) fn can_talk(&self, a: usize, b: usize) -> bool {
        self.nodes[a].alive && self.nodes[b].alive && !self.isolated[a] && !self.isolated[b]
    }

    pub(super) fn break_streams(&mut self, node: usize) {
        for other in 0..NODES {
            for (a, b) in [(node, other), (other, node)] {
                self.break_stream(a, b);
            }
        }
    }

    /// The stream that `a` opened to `b` breaks: messages on it are lost.
    pub(super) fn break_stream(&mut self, a: usize, b: usize) {
        self.streams.remove(&(a, b, true));
        self.streams.remove(&(b, a, false));
        if self.open.insert((a, b), false) == Some(true) && self.nodes[a].alive {
            self.nodes[a].pg.peer_disconnected(id(b));
            self.act(a);
        }
    }

    /// Does what a core wants.
    pub(super) fn act(&mut self, at: usize) {
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
                    Action::ListObjects { ticket, after } => node.jobs.push(Job::Objects(ticket, after)),
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

    pub(super) fn send(&mut self, from: usize, to: usize, message: Message) {
        let forward = message.body.is_from_primary();
        let stream = if forward { (from, to) } else { (to, from) };
        if self.open.get(&stream) == Some(&true) {
            self.streams.entry((from, to, forward)).or_default().push_back(message);
        }
    }
}
