//! What goes wrong.

use super::*;

impl World {
    pub(super) fn fault(&mut self) {
        if self.lost {
            return;
        }
        let node = self.dice.below(NODES);
        match self.dice.below(9) {
            8 => {
                let full = self.dice.one_in(2);
                self.nodes[node].pg.set_full(full);
                self.act(node);
            }
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
    pub(super) fn crash(&mut self, node: usize) {
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
    pub(super) fn lose(&mut self, node: usize) {
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
    pub(super) fn rot(&mut self, node: usize) {
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
    pub(super) fn isolate(&mut self, node: usize) {
        self.isolated[node] = true;
        self.nodes[node].lease = false;
        self.break_streams(node);
    }

    pub(super) fn heal(&mut self, node: usize) {
        if !self.nodes[node].alive {
            self.restart(node);
        } else if self.isolated[node] {
            self.isolated[node] = false;
            // It registers anew with the mon before it gets a lease.
            self.returns(node);
        }
    }

    pub(super) fn restart(&mut self, node: usize) {
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

    pub(super) fn returns(&mut self, node: usize) {
        self.map.epoch += 1;
        if !self.map.members.contains(&id(node)) && !self.map.joining.contains(&id(node)) {
            self.map.joining.push(id(node));
        }
    }

    /// What a read of own content fails with. Not while the others repair a disk that lost something: copies of the same
    /// thing that go at the same time are more than is promised.
    pub(super) fn read_error(&mut self) -> Option<Error> {
        if !self.faults || self.lost || !self.dice.one_in(20) {
            return None;
        }
        let reason = if self.dice.one_in(3) { Reason::Corrupt } else { Reason::Storage };
        Some(Error::new(reason, "no such luck"))
    }

    pub(super) fn cannot_read(&mut self, at: usize, job: Job, error: Error) {
        let node = &mut self.nodes[at];
        match job {
            Job::Fetch(token) => {
                if node.pg.unreadable(token, &error) == Verdict::Send {
                    node.open.remove(&token);
                }
            }
            Job::Load(ticket, load) => node.pg.loaded(ticket, load, Err(error)),
            // Of the only copy, it takes another configuration to try this again.
            Job::Sessions(ticket) => {
                let error = Error::new(Reason::Storage, error.message);
                node.pg.sessions_loaded(ticket, Err(error));
            }
            Job::Tombstones(ticket, after) => node.pg.tombstones_listed(ticket, Vec::new(), after),
            Job::Objects(ticket, _) => node.pg.objects_listed(ticket, Err(error)),
            Job::Page(ticket, _) => node.pg.page(ticket, None),
        }
    }
}
