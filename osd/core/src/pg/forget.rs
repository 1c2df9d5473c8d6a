//! What need not be remembered any more: windows of sessions that ended, and tombstones that no living session can
//! be late for (R22).

use super::{Pg, Walk};
use crate::request::{Action, Load, Request};
use crate::{Change, ObjectKey, keys};
use pando_proto::ClientId;

/// Windows and tombstones forgotten at one time.
const AT_ONCE: usize = 256;
/// Tombstones known at one time; the walk waits beyond that.
const MAX_KNOWN: usize = 64 << 10;

impl Pg {
    pub(super) fn forget_ended_sessions(&mut self) {
        if !self.may_write() || !self.status().active {
            return;
        }
        self.forget_windows();
        for object in self.dead() {
            self.request(0, Request::Reap(object));
        }
    }

    fn forget_windows(&mut self) {
        let sessions = self.sessions.clone();
        let Some(primary) = self.primary() else { return };
        let Some(windows) = &mut primary.windows else { return };
        let ended = |client: &ClientId| client.0 < sessions.next_client_id && !sessions.live.contains(client);
        let gone: Vec<_> = windows.keys().copied().filter(ended).take(AT_ONCE).collect();
        if gone.is_empty() {
            return;
        }
        for client in &gone {
            windows.remove(client);
        }
        self.submit(gone.into_iter().map(|client| Change::Delete { key: keys::session(client) }).collect(), None);
    }

    /// All sessions with a lower id have ended.
    fn oldest_session(&self) -> u64 {
        self.sessions.live.first().map_or(self.sessions.next_client_id, |client| client.0)
    }

    fn dead(&mut self) -> Vec<ObjectKey> {
        let oldest = self.oldest_session();
        let Some(primary) = self.primary() else { return Vec::new() };
        let dead = primary.tombstones.iter().filter(|(_, before)| **before <= oldest);
        let dead: Vec<_> = dead.map(|(object, _)| *object).take(AT_ONCE).collect();
        for object in &dead {
            primary.tombstones.remove(object);
        }
        dead
    }

    pub(super) fn run_reap(&mut self, object: ObjectKey) {
        let (oldest, durable) = (self.oldest_session(), self.durable);
        let Some(primary) = self.primary() else { return };
        let Some((header, _)) = primary.headers.get(&object).copied() else {
            return self.load(Load::Header(object), 0, Request::Reap(object));
        };
        // A write may have brought it to life meanwhile.
        if header.is_none_or(|header| !header.deleted || header.sessions_before > oldest) {
            return;
        }
        let seq = self.submit(vec![Change::Forget { object }], None);
        if let Some(primary) = self.primary() {
            primary.headers.put(object, None, seq, durable);
        }
    }

    /// Looks for tombstones of earlier times, a page at a tick.
    pub(super) fn walk_on(&mut self) {
        if !self.status().active {
            return;
        }
        let ticket = self.ticket();
        let Some(primary) = self.primary() else { return };
        if let Walk::At(after) = primary.walk
            && primary.tombstones.len() < MAX_KNOWN
        {
            primary.walk = Walk::Reading(ticket);
            self.actions.push(Action::ListTombstones { ticket, after });
        }
    }

    /// A page of objects was listed: its tombstones with [`sessions_before`](crate::ObjectHeader::sessions_before),
    /// and where to go on, if not at the end.
    pub fn tombstones_listed(&mut self, ticket: u64, found: Vec<(ObjectKey, u64)>, next: Option<ObjectKey>) {
        let Some(primary) = self.primary() else { return };
        if !matches!(primary.walk, Walk::Reading(asked) if asked == ticket) {
            return;
        }
        primary.walk = next.map_or(Walk::Done, |next| Walk::At(Some(next)));
        for (object, before) in found {
            // What is known already is newer.
            primary.tombstones.entry(object).or_insert(before);
        }
    }
}
