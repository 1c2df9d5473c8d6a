//! Many objects of a file are deleted at once: those that this PG holds from one on, however many there could be.
//!
//! R22, R23: no late write brings one of them back, and none is left. First the file's *floor* goes into the log, the
//! tombstone that stands for all objects of the file that do not exist. From there on a write of a lower generation
//! makes no object here; so what a list shows that was read after that, and has all writes before, is all there is to
//! delete. Writes to objects that still live are taken as before: they go with their object. Objects of the same or a
//! higher generation were made by those who came after the purge, and stay: a late copy of it does them no harm.
//!
//! A purge takes one transaction at a time, and what it has done shows in what is left: a repeated one, here or at the
//! next primary, goes on from there. It costs one tombstone, which goes as all do: when no session lives that is older.

use std::collections::BTreeSet;

use pando_proto::Error;

use super::unreadable::{Reading, Unreadable};
use super::{Pg, Primary, Waiter};
use crate::message::change_object;
use crate::request::{Action, Listed, Load, Mutation, MutationKind, Purge, Reply, Request, Token};
use crate::{Change, ObjectHeader, ObjectKey, keys, object, session};

/// A purge for which objects are being listed.
pub(super) struct Listing {
    pub token: Token,
    purge: Box<Purge>,
    reading: Reading,
}

impl Pg {
    pub(super) fn run_purge(&mut self, token: Token, mut purge: Box<Purge>) {
        let (session, sequence) = (purge.mutation.session, purge.mutation.sequence);
        if !self.sessions.live.contains(&session) {
            return self.reply(token, Err(super::requests::stale_session(session)));
        }
        let Some(primary) = self.primary() else { return };
        let (window, last) = primary.window(session);
        match window.admit(sequence) {
            session::Entry::Done => return self.reply_after(last, token, Reply::Trimmed),
            session::Entry::Full => return self.reply(token, Err(super::requests::window_full())),
            session::Entry::Apply => {}
        }
        if !purge.floored {
            return self.set_floor(token, purge);
        }
        match purge.listed.take() {
            Some(listed) => self.delete_listed(token, purge, listed),
            None => self.list(token, purge),
        }
    }

    fn set_floor(&mut self, token: Token, mut purge: Box<Purge>) {
        let (durable, next_client_id) = (self.durable, self.sessions.next_client_id);
        let floor = ObjectKey::floor(purge.mutation.object.ino);
        let Some(primary) = self.primary() else { return };
        let Some((before, _)) = primary.headers.get(&floor).copied() else {
            return self.load(Load::Header(floor), token, Request::Purge(purge));
        };
        // A lower generation than the floor's: all this was done before, and what lives belongs to what came after.
        let plan = match object::plan(Mutation { object: floor, ..purge.mutation.clone() }, before, next_client_id) {
            Ok(plan) => plan,
            Err(error) => return self.reply(token, Err(error)),
        };
        let seq = self.submit(plan.changes, None);
        purge.floored = true;
        let Some(primary) = self.primary() else { return };
        primary.headers.put(floor, plan.header, seq, durable);
        primary.tombstones.insert(floor, next_client_id);
        primary.waiting.entry(seq).or_default().push(Waiter::Purge(token, purge));
    }

    /// The floor is decided, so all writes before it are durable here: the engine shows what they made.
    fn list(&mut self, token: Token, mut purge: Box<Purge>) {
        let (ticket, durable) = (self.ticket(), self.durable);
        let Some(primary) = self.primary() else { return };
        let after = purge.after;
        purge.listed_at = durable;
        primary.purges.insert(ticket, Listing { token, purge, reading: Reading::new(ticket) });
        self.actions.push(Action::ListObjects { ticket, after });
    }

    /// Objects with their headers, as they were at some moment since [`Action::ListObjects`]. `more`: they do not end
    /// there.
    pub fn objects_listed(&mut self, ticket: u64, listed: Result<(Vec<(ObjectKey, ObjectHeader)>, bool), Error>) {
        let (objects, more) = match listed {
            Ok(listed) => listed,
            Err(error) => return self.not_listed(ticket, &error),
        };
        let Some(Listing { token, mut purge, .. }) = self.primary().and_then(|primary| primary.purges.remove(&ticket))
        else {
            return;
        };
        let ino = purge.mutation.object.ino;
        let of_file = |(object, _): &(ObjectKey, ObjectHeader)| object.ino == ino && !object.is_floor();
        let more = more && objects.last().is_some_and(of_file);
        purge.listed = Some(Listed { objects: objects.into_iter().filter(of_file).collect(), more });
        self.run_loaded(token, Request::Purge(purge));
    }

    /// I10: the rank repeats a purge until it is done, so an error that another member does not have is no answer.
    fn not_listed(&mut self, ticket: u64, error: &Error) {
        let asked = |primary: &mut Primary| primary.purges.get(&ticket).map(|listing| listing.reading);
        let Some(mut reading) = self.primary().and_then(asked) else { return };
        let hopeless = self.is_hopeless(error, Unreadable::Bytes, &mut reading);
        let Some(primary) = self.primary() else { return };
        if !hopeless {
            if let Some(listing) = primary.purges.get_mut(&ticket) {
                listing.reading = reading;
            }
        } else if let Some(Listing { token, .. }) = primary.purges.remove(&ticket) {
            self.reply(token, Err(error.clone()));
        }
    }

    /// A tick: lists again what could not be listed.
    pub(super) fn list_again(&mut self) {
        let durable = self.durable;
        let Some(primary) = self.primary() else { return };
        let waiting = primary.purges.values_mut().filter_map(|Listing { purge, reading, .. }| {
            let ticket = reading.begin()?;
            // What the new list shows is as new; the log may not tell of all since the first.
            purge.listed_at = durable;
            Some(Action::ListObjects { ticket, after: purge.after })
        });
        let lists: Vec<_> = waiting.collect();
        self.actions.extend(lists);
    }

    fn delete_listed(&mut self, token: Token, mut purge: Box<Purge>, listed: Listed) {
        let generation = purge.mutation.generation;
        let Some(changed) = self.changed_since(purge.listed_at) else { return self.list(token, purge) };
        let Some(primary) = self.primary() else { return };
        let (mut doomed, mut unknown) = (Vec::new(), false);
        for (object, header) in &listed.objects {
            match primary.header_now(*object, *header, &changed) {
                Some(header) if header.is_some_and(|header| is_below(header, generation)) => doomed.push(*object),
                Some(_) => {}
                None => unknown = true,
            }
        }
        if !unknown {
            purge.after = listed.objects.last().map(|(object, _)| *object).or(purge.after);
        }
        let last = !unknown && !listed.more;
        if doomed.is_empty() && !last {
            return self.list(token, purge);
        }
        self.delete(token, purge, doomed, last);
    }

    /// `last`: nothing is left then, and the purge is answered.
    fn delete(&mut self, token: Token, purge: Box<Purge>, doomed: Vec<ObjectKey>, last: bool) {
        let durable = self.durable;
        let mut changes: Vec<_> = doomed.iter().map(|object| Change::Forget { object: *object }).collect();
        let Mutation { session, sequence, low_water, .. } = purge.mutation;
        let Some(primary) = self.primary() else { return };
        let mut window = primary.window(session).0.clone();
        if last {
            window.note(sequence, low_water);
            changes.push(Change::Put { key: keys::session(session), value: window.encode() });
        }
        let seq = self.submit(changes, last.then_some((token, Reply::Trimmed)));
        let Some(primary) = self.primary() else { return };
        for object in doomed {
            primary.headers.put(object, None, seq, durable);
            primary.tombstones.remove(&object);
        }
        if last {
            primary.set_window(session, window, seq);
        } else {
            primary.waiting.entry(seq).or_default().push(Waiter::Purge(token, purge));
        }
    }

    /// The floor is asked for together with the first header of a file: what needs both has them at about the same time,
    /// however many others there are that the cache has to hold.
    pub(super) fn load_header(&mut self, unknown: ObjectKey, token: Token, mutation: Mutation) {
        let floor = ObjectKey::floor(unknown.ino);
        self.load(Load::Header(unknown), token, Request::Mutate(mutation));
        let Some(primary) = self.primary() else { return };
        if primary.headers.get(&floor).is_none() && !primary.loading.contains_key(&Load::Header(floor)) {
            // One that nobody needs any more goes at this opportunity.
            self.load(Load::Header(floor), 0, Request::Reap(floor));
        }
    }

    /// Objects that were changed by writes above this number, if the log still tells.
    fn changed_since(&self, seq: u64) -> Option<BTreeSet<ObjectKey>> {
        let changes = self.log.above(seq).flat_map(|entry| entry.changes.iter());
        let known = self.log.reaches_back_to(seq, self.stored.position.seq);
        known.then(|| changes.filter_map(change_object).collect())
    }
}

/// Nobody writes at the generation of a purge, so what has it and lives is not there; a tombstone of it is of the same
/// purge, and the floor takes its place.
fn is_below(header: ObjectHeader, generation: u64) -> bool {
    header.generation < generation || header.deleted && header.generation == generation
}

impl Primary {
    /// The header of an object after all writes so far, given that of a list; `None`: it is not known now.
    fn header_now(
        &mut self,
        object: ObjectKey,
        listed: ObjectHeader,
        changed: &BTreeSet<ObjectKey>,
    ) -> Option<Option<ObjectHeader>> {
        if self.loading.contains_key(&Load::Header(object)) {
            // What comes would be taken for newer than a deletion now.
            return None;
        }
        match changed.contains(&object) {
            true => self.headers.get(&object).map(|(header, _)| *header),
            false => Some(Some(listed)),
        }
    }

    /// What decides on a mutation: the header of its object or, for one that does not live and may be made, that of the
    /// file's floor if that is the later one. An error names what has to be loaded first.
    pub(super) fn header_for(&mut self, mutation: &Mutation) -> Result<Option<ObjectHeader>, ObjectKey> {
        let object = mutation.object;
        let own = self.headers.get(&object).ok_or(object)?.0;
        if own.is_some_and(|header| !header.deleted) || matches!(mutation.kind, MutationKind::Zero { .. }) {
            return Ok(own);
        }
        let floor = ObjectKey::floor(object.ino);
        let floor = self.headers.get(&floor).ok_or(floor)?.0;
        Ok(object::later(own, floor))
    }
}
