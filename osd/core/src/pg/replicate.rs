//! The log at the primary: submitting writes, and deciding them when all members hold them.

use std::sync::Arc;

use super::{Pg, Role, Stage, Then, Waiter};
use crate::message::{Entry, change_object};
use crate::position::Position;
use crate::request::{Action, Reply, Request, Token};
use crate::{Body, Change, Message};

impl Pg {
    /// Puts a write into the log: here, and to all that follow. Its reply leaves when it is decided.
    pub(super) fn submit(&mut self, changes: Vec<Change>, reply: Option<(Token, Reply)>) -> u64 {
        let previous = self.stored.position;
        let position = Position { config: self.configuration.number, seq: previous.seq + 1 };
        self.stored.position = position;
        let mut all = Vec::with_capacity(changes.len() + 1);
        all.extend(changes.iter().cloned());
        all.push(self.stored.to_change());
        let entry = Entry { position, previous, changes: Arc::new(changes) };
        let (config, known) = (self.configuration.number, self.stored.decided);
        let Role::Primary(primary) = &mut self.role else { return position.seq };
        primary.touch(&entry);
        if let Some((token, reply)) = reply {
            primary.waiting.entry(position.seq).or_default().push(Waiter::Reply(token, reply));
        }
        for (osd, peer) in &mut primary.peers {
            if peer.follows() {
                let message = Message { config, body: Body::Append(entry.clone(), known) };
                self.actions.push(Action::Send(*osd, message));
            }
        }
        self.log.push(entry);
        self.commit(all, Then::Written(position));
        position.seq
    }

    /// Decides what all members, and joiners that count, hold.
    pub(super) fn advance(&mut self) {
        let durable = self.durable;
        let Role::Primary(primary) = &mut self.role else { return };
        if primary.stage == Stage::Peering {
            self.check_agreed();
            // What was taken over from a member is durable only now.
            return self.resume_syncs();
        }
        if primary.stage != Stage::Active {
            return;
        }
        let holding = primary.peers.values().filter(|peer| peer.counts()).map(|peer| peer.acked).min();
        let decided = holding.map_or(durable, |others| others.min(durable));
        if decided > primary.decided {
            primary.decided = decided;
            self.decide(decided);
            self.run_held();
        }
        self.confirm_joiners();
        self.resume_syncs();
    }

    /// All up to `decided` is on all members: answer, and wake reads that waited for it.
    pub(super) fn decide(&mut self, decided: u64) {
        let Role::Primary(primary) = &mut self.role else { return };
        for entry in self.log.above(primary.released) {
            if entry.position.seq > decided {
                break;
            }
            primary.released = entry.position.seq;
            self.stored.decided = entry.position;
            let seq = entry.position.seq;
            for change in entry.changes.iter() {
                match change {
                    Change::Put { key, .. } | Change::Delete { key } => {
                        if primary.records.get(key) == Some(&seq) {
                            primary.records.remove(key);
                        }
                    }
                    _ => {
                        if let Some(object) = change_object(change)
                            && primary.objects.get(&object) == Some(&seq)
                        {
                            primary.objects.remove(&object);
                        }
                    }
                }
            }
        }
        self.log.trim(decided);
        let mut purges = Vec::new();
        while let Some(entry) = primary.waiting.first_entry() {
            if *entry.key() > decided {
                break;
            }
            for waiter in entry.remove() {
                match waiter {
                    Waiter::Reply(token, reply) => self.actions.push(Action::Reply(token, Ok(reply))),
                    Waiter::Read(token) => primary.woken.push(token),
                    Waiter::Purge(token, purge) => purges.push((token, purge)),
                }
            }
        }
        for token in std::mem::take(&mut primary.woken) {
            self.try_read(token);
        }
        for (token, purge) in purges {
            self.run_loaded(token, Request::Purge(purge));
        }
    }
}

impl super::Primary {
    /// Notes what a write touches: reads wait for it, and those under way are repeated.
    fn touch(&mut self, entry: &Entry) {
        let seq = entry.position.seq;
        for change in entry.changes.iter() {
            match change {
                Change::Put { key, .. } | Change::Delete { key } => {
                    self.records.insert(key.clone(), seq);
                }
                _ => {
                    if let Some(object) = change_object(change) {
                        self.objects.insert(object, seq);
                    }
                }
            }
        }
        for token in &self.executing {
            if let Some(read) = self.reads.get_mut(token)
                && entry.changes.iter().any(|change| read.reads.are_touched_by(change))
            {
                read.dirty = true;
            }
        }
    }
}
