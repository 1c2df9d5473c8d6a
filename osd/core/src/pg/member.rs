//! A copy that follows a primary.

use std::collections::VecDeque;

use pando_proto::OsdId;

use super::{Damage, Pg, Role, Then};
use crate::message::{Entry, ObjectCopy, Page, PageQuery, PageRange, Part, Told};
use crate::request::Action;
use crate::{Body, Change, Message, ObjectKey, Position};

/// Messages that may wait behind one that takes long; more are dropped, and the primary probes again.
const MAX_INBOX: usize = 16 << 10;

/// State of a follower.
#[derive(Default)]
pub(super) struct Member {
    /// To whom the promise was given; nobody else orders writes here.
    primary: Option<OsdId>,
    /// Messages behind one that is not done.
    inbox: VecDeque<(OsdId, Message)>,
    /// What the inbox waits for.
    blocked: Option<Blocked>,
    /// Ranges to be installed together with the finish.
    staged: Vec<Change>,
}

impl Member {
    /// Has given its promise to this primary.
    pub(super) fn of(primary: OsdId) -> Self {
        Self { primary: Some(primary), ..Self::default() }
    }
}

enum Blocked {
    /// Earlier commits, before own content is read.
    Draining(OsdId, Message),
    /// Own content.
    Reading { page: u64, from: OsdId, message: Message },
}

impl Pg {
    /// A message of a primary.
    pub(super) fn follow(&mut self, from: OsdId, message: Message) {
        if let Body::Probe { ticket } = message.body {
            return self.promise(from, message.config, ticket);
        }
        if message.config != self.stored.promised {
            let promised = self.stored.promised.max(self.configuration.number);
            if promised > message.config {
                self.answer(from, Body::Refused { promised });
            }
            return;
        }
        let begins = matches!(message.body, Body::Begin { .. });
        if self.damage == Damage::Untold || self.damage == Damage::Told && !begins {
            // It goes on from what was lost here.
            let promised = self.stored.promised;
            return self.answer(from, Body::Refused { promised });
        }
        let Role::Member(member) = &mut self.role else { return };
        if member.primary != Some(from) {
            // It asks for the promise first, as every primary.
            return;
        }
        if member.blocked.is_none() {
            self.take_message(from, message);
        } else if member.inbox.len() < MAX_INBOX {
            member.inbox.push_back((from, message));
        }
    }

    /// Answers a primary, under the configuration that was promised to it.
    pub(super) fn answer(&mut self, to: OsdId, body: Body) {
        let config = self.stored.promised;
        self.actions.push(Action::Send(to, Message { config, body }));
    }

    /// The answer to a primary that asked for the position: to be sent when all submitted up to now is durable.
    pub(super) fn own_position(&self, ticket: u64) -> Message {
        let incomplete = self.stored.incomplete || self.damage != Damage::None;
        let (position, decided) = (self.stored.position, self.stored.decided);
        let told = Told { position, decided, incomplete, full: self.full };
        let body = Body::Position { ticket, told };
        Message { config: self.stored.promised, body }
    }

    /// Tells the primary of a change of the own space at once: as long as it refuses writes there is nothing to
    /// acknowledge (I9).
    pub(super) fn tell_space(&mut self) {
        if let Role::Member(Member { primary: Some(primary), .. }) = self.role {
            let nothing = Position::default();
            self.answer(primary, Body::Ack { position: nothing, full: self.full });
        }
    }

    /// Tells the primary that it cannot count on this copy, until it asks for the position.
    pub(super) fn tell_damage(&mut self) {
        let promised = self.stored.promised;
        let known = promised == self.configuration.number && matches!(self.role, Role::Member(_));
        if let Some(primary) = self.configuration.members.first().copied()
            && known
            && self.damage == Damage::Untold
        {
            self.answer(primary, Body::Refused { promised });
        }
    }

    fn take_message(&mut self, from: OsdId, message: Message) {
        match message.body {
            Body::Append(entry, decided) => {
                self.stored.decided = self.stored.decided.max(decided);
                self.append(from, entry);
            }
            Body::Begin { position } => {
                self.stored.position = position;
                self.stored.incomplete = true;
                // All of it is replaced from here on.
                self.damage = Damage::None;
                self.log.clear();
                let mut changes = self.take_staged();
                changes.push(self.stored.to_change());
                self.commit(changes, Then::Nothing);
            }
            Body::Finish { ticket, position } => {
                if !self.stored.incomplete {
                    self.stored.position = position;
                    self.log.clear();
                }
                self.stored.incomplete = false;
                let mut changes = self.take_staged();
                changes.push(self.stored.to_change());
                let then = Then::Say(from, self.own_position(ticket));
                self.commit(changes, then);
            }
            Body::Pull { ticket, after } => {
                let entries = self.log.after(after).unwrap_or_default();
                self.answer(from, Body::Entries { ticket, entries });
            }
            Body::Digest { .. } | Body::Install { .. } => {
                if let Role::Member(member) = &mut self.role {
                    member.blocked = Some(Blocked::Draining(from, message));
                }
                self.member_drained();
            }
            _ => {}
        }
    }

    fn append(&mut self, from: OsdId, entry: Entry) {
        if entry.previous == self.stored.position && entry.position > entry.previous {
            let position = entry.position;
            self.adopt(entry, Then::Applied(from, position));
        } else if entry.position > self.stored.position {
            let promised = self.stored.promised;
            self.answer(from, Body::Refused { promised });
        }
        // Else it was sent again although it arrived: the acknowledgement is on its way.
    }

    /// Applies an entry of another copy's log.
    pub(super) fn adopt(&mut self, entry: Entry, then: Then) {
        self.stored.position = entry.position;
        let mut all = Vec::with_capacity(entry.changes.len() + 1);
        all.extend(entry.changes.iter().cloned());
        all.push(self.stored.to_change());
        self.log.push(entry);
        // A follower does not know what is decided; the newest entries are what a new primary may ask for.
        self.log.trim(u64::MAX);
        self.commit(all, then);
    }

    fn take_staged(&mut self) -> Vec<Change> {
        match &mut self.role {
            Role::Member(member) => std::mem::take(&mut member.staged),
            _ => Vec::new(),
        }
    }

    /// Commits before a message that reads own content may be done by now.
    pub(super) fn member_drained(&mut self) {
        if !self.pending.is_empty() {
            return;
        }
        let page = self.ticket();
        let Role::Member(member) = &mut self.role else { return };
        let Some(Blocked::Draining(..)) = &member.blocked else { return };
        let Some(Blocked::Draining(from, message)) = member.blocked.take() else { return };
        let range = match &message.body {
            Body::Digest { range, .. } => range.clone(),
            Body::Install { part, .. } => part.range.clone(),
            _ => return,
        };
        if let (Body::Install { .. }, PageRange::Records { .. }) = (&message.body, &range) {
            // Records are replaced without looking at them.
            self.install(from, message, &[]);
            return self.unblock();
        }
        member.blocked = Some(Blocked::Reading { page, from, message });
        self.actions.push(Action::Page { ticket: page, query: PageQuery::Range { range, content: false } });
    }

    /// Own content was read for the message that the inbox waits for.
    pub(super) fn member_page(&mut self, ticket: u64, page: Option<Page>) {
        let Role::Member(member) = &mut self.role else { return };
        match member.blocked.take() {
            Some(Blocked::Reading { page: asked, from, message }) if asked == ticket => {
                match &message.body {
                    Body::Digest { ticket, digest, .. } => {
                        // What cannot be read (corrupt) is replaced.
                        let equal = page.is_some_and(|page| page.digest == *digest);
                        let ticket = *ticket;
                        self.answer(from, Body::Synced { ticket, equal });
                    }
                    _ => match page {
                        Some(page) => self.install(from, message, &page.objects),
                        // R26: what the primary lacks goes, and nobody knows what that is. It is asked for again.
                        None => {
                            let promised = self.stored.promised;
                            self.answer(from, Body::Refused { promised });
                        }
                    },
                }
                self.unblock();
            }
            other => member.blocked = other,
        }
    }

    fn unblock(&mut self) {
        loop {
            let Role::Member(member) = &mut self.role else { return };
            if member.blocked.is_some() {
                return;
            }
            let Some((from, message)) = member.inbox.pop_front() else { return };
            self.take_message(from, message);
        }
    }

    fn install(&mut self, from: OsdId, message: Message, present: &[ObjectKey]) {
        let Body::Install { ticket, part } = message.body else { return };
        let mut changes = install_changes(part, present);
        if self.stored.incomplete {
            changes.push(self.stored.to_change());
            self.commit(changes, Then::Installed(from, ticket));
        } else if let Role::Member(member) = &mut self.role {
            member.staged.append(&mut changes);
            self.answer(from, Body::Synced { ticket, equal: true });
        }
    }
}

/// Replaces a whole range: what the primary lacks is deleted (R26).
fn install_changes(part: Part, present: &[ObjectKey]) -> Vec<Change> {
    let mut changes = Vec::new();
    if let PageRange::Records { start, end } = part.range {
        changes.push(Change::DeleteRange { start, end });
    }
    changes.extend(part.records.into_iter().map(|(key, value)| Change::Put { key, value }));
    changes.extend(present.iter().map(|object| Change::Forget { object: *object }));
    for ObjectCopy { object, header, pieces } in part.objects {
        changes.extend(pieces.into_iter().map(|(offset, data)| Change::Write { object, offset, data }));
        if !header.deleted {
            changes.push(Change::Truncate { object, size: header.size });
        }
        changes.push(Change::SetHeader {
            object,
            generation: header.generation,
            deleted: header.deleted,
            sessions_before: header.sessions_before,
        });
    }
    changes
}
