//! Clients' requests at the primary.

use pando_proto::{ClientId, Error, Reason, ShardId, SubtreeId};

use super::unreadable::Reading;
use super::{MAX_HELD, MAX_IN_FLIGHT, MAX_LOG_BYTES, Pg, Primary, Read, Role, Stage, Waiter};
use crate::fence::{Entry, Fence};
use crate::message::change_object;
use crate::request::{Action, Batch, Load, Mutation, Reads, Reply, Request, Token, Verdict};
use crate::session::{self, Window};
use crate::{Change, keys, object};

/// After so many times overtaken by writes a read keeps them out.
const PATIENCE: u8 = 3;

impl Pg {
    /// Takes a request; it is answered by an action, now or later.
    pub fn request(&mut self, token: Token, request: Request) {
        let error = self.not_owner();
        let Role::Primary(primary) = &mut self.role else {
            return self.reply(token, Err(error));
        };
        match primary.stage {
            Stage::Superseded => return self.reply(token, Err(error)),
            Stage::MakingWay | Stage::Broken => {
                let error = self.no_complete_copy();
                return self.reply(token, Err(error));
            }
            _ => {}
        }
        let is_read = matches!(request, Request::Read(_));
        let in_turn = primary.stage == Stage::Active
            && if is_read { primary.may_read() } else { primary.held.is_empty() && self.may_write() };
        let Role::Primary(primary) = &mut self.role else { return };
        if in_turn {
            self.run(token, request);
        } else if primary.held.len() >= MAX_HELD {
            let message = format!("too many requests wait for placement group {}", self.id);
            self.reply(token, Err(Error::new(Reason::Overloaded, message)));
        } else {
            primary.held.push_back((token, request));
        }
    }

    pub(super) fn may_write(&self) -> bool {
        match &self.role {
            Role::Primary(primary) => {
                primary.barriers == 0
                    && self.stored.position.seq - primary.decided < MAX_IN_FLIGHT
                    && self.log.bytes() < MAX_LOG_BYTES
            }
            _ => false,
        }
    }

    pub(super) fn run_held(&mut self) {
        loop {
            let may_write = self.may_write();
            let Some(primary) = self.primary() else { return };
            if primary.stage != Stage::Active {
                return;
            }
            match primary.held.front() {
                Some((_, Request::Read(_))) if primary.may_read() => {}
                Some((_, Request::Read(_))) => return,
                Some(_) if may_write => {}
                _ => return,
            }
            if let Some((token, request)) = primary.held.pop_front() {
                self.run(token, request);
            }
        }
    }

    pub(super) fn has_too_few_members(&self) -> bool {
        self.configuration.members.len() < self.configuration.min_size
    }

    pub(super) fn too_few_members(&self) -> Error {
        let message = format!(
            "placement group {} has {} of the {} members that writes need: wait for an OSD to come back",
            self.id,
            self.configuration.members.len(),
            self.configuration.min_size
        );
        Error::new(Reason::Unavailable, message)
    }

    pub(super) fn run(&mut self, token: Token, request: Request) {
        if !matches!(request, Request::Read(_)) && self.has_too_few_members() {
            return self.reply(token, Err(self.too_few_members()));
        }
        match request {
            Request::Commit(batch) => self.run_batch(token, batch),
            Request::RaiseFence { shard, subtree, epoch } => self.run_raise(token, shard, subtree, epoch),
            Request::Mutate(mutation) => self.run_mutation(token, mutation),
            Request::Purge(purge) => self.run_purge(token, purge),
            Request::Reap(object) => self.run_reap(object),
            Request::Read(reads) => {
                let Some(primary) = self.primary() else { return };
                primary
                    .reads
                    .insert(token, Read { reads, tries: 0, dirty: false, barrier: false, reading: Reading::default() });
                self.try_read(token);
            }
        }
    }

    fn run_batch(&mut self, token: Token, batch: Batch) {
        let Some((fence, last)) = self.fence(batch.shard, batch.subtree) else {
            let load = Load::Fence(batch.shard, batch.subtree);
            return self.load(load, token, Request::Commit(batch));
        };
        let fence_epoch = fence.epoch;
        match fence.admit(batch.epoch, batch.batch) {
            // What the answer tells must not be lost: it waits for the write that raised the fence, or applied it.
            Entry::Refused => self.reply_after(last, token, Reply::Fenced { fence_epoch }),
            Entry::Done => self.reply_after(last, token, Reply::Committed { fence_epoch }),
            Entry::Apply(_) if needs_space(&batch) && self.is_full() => self.reply(token, Err(no_space())),
            Entry::Apply(after) => {
                let mut changes = batch.changes;
                changes.push(Change::Put { key: keys::fence(batch.shard, batch.subtree), value: after.encode() });
                let seq = self.submit(changes, Some((token, Reply::Committed { fence_epoch: after.epoch })));
                self.set_fence(batch.shard, batch.subtree, after, seq);
            }
        }
    }

    fn run_raise(&mut self, token: Token, shard: ShardId, subtree: SubtreeId, epoch: u64) {
        let Some((fence, last)) = self.fence(shard, subtree) else {
            return self.load(Load::Fence(shard, subtree), token, Request::RaiseFence { shard, subtree, epoch });
        };
        let Some(raised) = fence.raise(epoch) else {
            return self.reply_after(last, token, Reply::Raised(fence));
        };
        let change = Change::Put { key: keys::fence(shard, subtree), value: raised.encode() };
        let seq = self.submit(vec![change], Some((token, Reply::Raised(raised))));
        self.set_fence(shard, subtree, raised, seq);
    }

    fn run_mutation(&mut self, token: Token, mutation: Mutation) {
        if !self.sessions.live.contains(&mutation.session) {
            return self.reply(token, Err(stale_session(mutation.session)));
        }
        let (full, next_client_id) = (self.is_full(), self.sessions.next_client_id);
        let durable = self.durable;
        let Some(primary) = self.primary() else { return };
        let header = match primary.header_for(&mutation) {
            Ok(header) => header,
            Err(unknown) => return self.load_header(unknown, token, mutation),
        };
        let (window, last) = primary.window(mutation.session);
        match window.admit(mutation.sequence) {
            session::Entry::Done => {
                return self.reply_after(last, token, object::repeated(&mutation.kind, header));
            }
            session::Entry::Full => return self.reply(token, Err(window_full())),
            session::Entry::Apply => {}
        }
        if full && matches!(mutation.kind, crate::MutationKind::Write { .. }) {
            return self.reply(token, Err(no_space()));
        }
        let (session, sequence, low_water) = (mutation.session, mutation.sequence, mutation.low_water);
        let key = mutation.object;
        let plan = match object::plan(mutation, header, next_client_id) {
            Ok(plan) => plan,
            Err(error) => return self.reply(token, Err(error)),
        };
        let mut window = window.clone();
        window.note(sequence, low_water);
        let mut changes = plan.changes;
        changes.push(Change::Put { key: keys::session(session), value: window.encode() });
        let seq = self.submit(changes, Some((token, plan.reply)));
        let Some(primary) = self.primary() else { return };
        primary.set_window(session, window, seq);
        primary.headers.put(key, plan.header, seq, durable);
        match plan.header {
            Some(header) if header.deleted => primary.tombstones.insert(key, header.sessions_before),
            _ => primary.tombstones.remove(&key),
        };
    }

    fn fence(&mut self, shard: ShardId, subtree: SubtreeId) -> Option<(Fence, u64)> {
        self.primary()?.fences.get(&(shard, subtree)).copied()
    }

    fn set_fence(&mut self, shard: ShardId, subtree: SubtreeId, fence: Fence, seq: u64) {
        if let Some(primary) = self.primary() {
            let decided = primary.decided;
            primary.fences.put((shard, subtree), fence, seq, decided);
        }
    }

    /// Answers when write `seq` is decided.
    pub(super) fn reply_after(&mut self, seq: u64, token: Token, reply: Reply) {
        let Some(primary) = self.primary() else { return };
        if seq > primary.decided {
            primary.waiting.entry(seq).or_default().push(Waiter::Reply(token, reply));
        } else {
            self.reply(token, Ok(reply));
        }
    }

    /// Evaluates a read as soon as no undecided write overlaps it (R25).
    pub(super) fn try_read(&mut self, token: Token) {
        let Role::Primary(primary) = &mut self.role else { return };
        if primary.stage != Stage::Active || !primary.may_read() {
            if let Some(read) = primary.reads.remove(&token) {
                primary.held.push_back((token, Request::Read(read.reads)));
                primary.recount_barriers();
            }
            return;
        }
        let Some(read) = primary.reads.get(&token) else { return };
        match primary.last_overlap(&read.reads, self.stored.position.seq) {
            Some(seq) => primary.waiting.entry(seq).or_default().push(Waiter::Read(token)),
            None => {
                primary.executing.push(token);
                self.actions.push(Action::Fetch(token));
            }
        }
    }

    /// A read was evaluated: may its result be sent? To be followed by a check of the lease (R13).
    pub fn fetched(&mut self, token: Token) -> Verdict {
        let Some(primary) = self.primary() else { return Verdict::Drop };
        primary.executing.retain(|executing| *executing != token);
        let active = primary.stage == Stage::Active && primary.may_read();
        let Some(read) = primary.reads.get_mut(&token) else { return Verdict::Drop };
        if active && !read.dirty {
            let barrier = read.barrier;
            primary.reads.remove(&token);
            if barrier {
                primary.barriers = primary.barriers.saturating_sub(1);
                self.run_held();
            }
            return Verdict::Send;
        }
        read.dirty = false;
        read.tries = read.tries.saturating_add(1);
        if active && read.tries >= PATIENCE && !read.barrier {
            read.barrier = true;
            primary.barriers += 1;
        }
        self.try_read(token);
        Verdict::Drop
    }
}

impl Primary {
    /// Once the mon was asked to make a joiner a member, the next configuration may have been made, perhaps without
    /// this OSD: nothing is read here before the map tells. Writes wait for the joiner, so they are safe.
    fn may_read(&self) -> bool {
        !self.peers.values().any(|peer| peer.confirming)
    }

    pub(super) fn window(&mut self, session: ClientId) -> (&Window, u64) {
        let (window, last) = self.windows.get_or_insert_default().entry(session).or_default();
        (window, *last)
    }

    pub(super) fn set_window(&mut self, session: ClientId, window: Window, seq: u64) {
        self.windows.get_or_insert_default().insert(session, (window, seq));
    }

    /// The last undecided write that a read would see or miss.
    fn last_overlap(&self, reads: &Reads, tail: u64) -> Option<u64> {
        match reads {
            Reads::Keys(keys) => keys.iter().filter_map(|key| self.records.get(key)).max().copied(),
            Reads::Range { start, end } if end.is_empty() => self.records.range(start.clone()..).map(|(_, s)| *s).max(),
            Reads::Range { start, end } if start < end => {
                self.records.range(start.clone()..end.clone()).map(|(_, seq)| *seq).max()
            }
            Reads::Range { .. } => None,
            Reads::Object(object) => self.objects.get(object).copied(),
            Reads::Objects => (tail > self.decided && !self.objects.is_empty()).then_some(tail),
        }
    }
}

impl Reads {
    pub(super) fn are_touched_by(&self, change: &Change) -> bool {
        match (self, change) {
            (Self::Keys(keys), Change::Put { key, .. } | Change::Delete { key }) => keys.contains(key),
            (Self::Range { start, end }, Change::Put { key, .. } | Change::Delete { key }) => {
                start <= key && (end.is_empty() || key < end)
            }
            (Self::Object(object), change) => change_object(change) == Some(*object),
            (Self::Objects, change) => change_object(change).is_some(),
            _ => false,
        }
    }
}

/// A batch that frees nothing is no way out of a full cluster (I9).
fn needs_space(batch: &Batch) -> bool {
    !batch.uses_reserve && batch.changes.iter().any(|change| matches!(change, Change::Put { .. }))
}

pub(super) fn stale_session(session: ClientId) -> Error {
    Error::new(Reason::StaleSession, format!("session {session} has ended or was evicted"))
}

pub(super) fn window_full() -> Error {
    Error::new(Reason::Overloaded, "the session has too many writes in flight in this placement group")
}

fn no_space() -> Error {
    Error::new(Reason::NoSpace, "the cluster is full: delete something, or add an OSD")
}
