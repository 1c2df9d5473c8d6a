//! Bringing another copy to the primary's content, range by range.
//!
//! A range is read while no write that touches it is under way, and what is sent
//! then stands in the same ordered stream as the writes: so a copy never
//! overwrites a later write. Members are synced while nothing is served, in one
//! transaction at the end, so that they are complete at any time; those that
//! lack too much for that become joiners. Joiners are synced while writes go on,
//! and their content is marked as a mixture until it is complete.

use pando_proto::OsdId;

use super::peers::State;
use super::unreadable::Unreadable;
use super::{Pg, Primary, Role, Stage};
use crate::message::{Cursor, Page, PageQuery, PageRange};
use crate::position::Position;
use crate::request::Action;
use crate::{Body, keys};

/// After so many overtaken reads of a range writes are kept out.
const PATIENCE: u8 = 3;
/// The longest pause, in ticks, until a page that cannot be read is tried again.
const MAX_PAUSE: u8 = 64;
/// The pause after which a page that cannot be read still counts as damaged.
const DAMAGED_PAUSE: u8 = 4;
/// What a member may have to stage in memory; beyond that it has to become a joiner.
const MAX_STAGED: usize = 32 << 20;

/// How far another copy is brought.
pub(super) struct Sync {
    /// Marked as a mixture; gets live writes.
    pub live: bool,
    /// Nothing is there: no use to compare.
    blank: bool,
    cursor: Cursor,
    step: Step,
    tries: u8,
    staged: usize,
    /// Writes above this number were under way when the last read began, or came later.
    read_after: u64,
    pub barrier: bool,
    /// Ticks until a page that cannot be read is tried again, if that fails again.
    pause: u8,
}

enum Step {
    /// Waits until writes under way are durable here, then reads.
    Waiting(PageQuery),
    Reading(u64, PageQuery),
    /// Own content cannot be read: it is tried again after so many ticks.
    Unreadable(PageQuery, u8),
    Asking(u64, PageRange),
    Installing(u64, Cursor),
    Finishing(u64),
}

impl Sync {
    pub(super) fn is_finishing(&self, ticket: u64) -> bool {
        matches!(self.step, Step::Finishing(asked) if asked == ticket)
    }
}

impl Pg {
    pub(super) fn start_sync(&mut self, osd: OsdId, position: Position, incomplete: bool) {
        let tail = self.stored.position;
        let blank = position == Position::default() && !incomplete;
        let Some(primary) = self.primary() else { return };
        // While nothing is served the other copy can change in one step at the end.
        let live = primary.stage == Stage::Active;
        let Some(peer) = primary.peers.get_mut(&osd) else { return };
        let cursor = Cursor::Records(keys::REPLICATED);
        let query = PageQuery::From { cursor: cursor.clone(), content: blank };
        peer.acked = 0;
        peer.counted &= peer.confirming;
        peer.state = State::Syncing(Box::new(Sync {
            live,
            blank,
            cursor,
            step: Step::Waiting(query),
            tries: 0,
            staged: 0,
            read_after: 0,
            barrier: false,
            pause: 1,
        }));
        if live {
            self.send(osd, Body::Begin { position: tail });
        }
        self.resume_syncs();
    }

    /// Starts the reads that waited for earlier writes.
    pub(super) fn resume_syncs(&mut self) {
        let durable = self.durable;
        let mut next_ticket = self.next_ticket;
        let Role::Primary(primary) = &mut self.role else { return };
        for peer in primary.peers.values_mut() {
            if let State::Syncing(sync) = &mut peer.state
                && let Step::Waiting(query) = &sync.step
            {
                let query = query.clone();
                next_ticket += 1;
                sync.read_after = durable;
                sync.step = Step::Reading(next_ticket, query.clone());
                self.actions.push(Action::Page { ticket: next_ticket, query });
            }
        }
        self.next_ticket = next_ticket;
    }

    /// Own content was read. `None`: it cannot be read (corrupt); another copy must not get it.
    pub fn page(&mut self, ticket: u64, page: Option<Page>) {
        match &mut self.role {
            Role::Member(_) => self.member_page(ticket, page),
            Role::Primary(primary) => {
                let reading = |state: &State| match state {
                    State::Syncing(sync) => matches!(sync.step, Step::Reading(asked, _) if asked == ticket),
                    _ => false,
                };
                let found = primary.peers.iter().find(|(_, peer)| reading(&peer.state)).map(|(osd, _)| *osd);
                match (found, page) {
                    (Some(osd), Some(page)) => self.primary_page(osd, page),
                    (Some(osd), None) => self.unreadable_for(osd),
                    (None, _) => {}
                }
            }
            Role::Outsider => {}
        }
    }

    /// Own content that another copy needs cannot be read. Perhaps a write replaces it: writes go on meanwhile. If not,
    /// a member that has it may do better.
    fn unreadable_for(&mut self, osd: OsdId) {
        let Some(primary) = self.primary() else { return };
        let Some(peer) = primary.peers.get_mut(&osd) else { return };
        let State::Syncing(sync) = &mut peer.state else { return };
        let Step::Reading(_, query) = &sync.step else { return };
        let damaged = sync.pause >= DAMAGED_PAUSE;
        sync.step = Step::Unreadable(query.clone(), sync.pause);
        sync.pause = (sync.pause * 2).min(MAX_PAUSE);
        sync.barrier = false;
        primary.recount_barriers();
        if damaged && self.replace_me(Unreadable::Bytes) {
            return;
        }
        self.run_held();
    }

    /// A tick: tries again what could not be read.
    pub(super) fn read_again(&mut self) {
        let Some(primary) = self.primary() else { return };
        let mut waited = false;
        for peer in primary.peers.values_mut() {
            if let State::Syncing(sync) = &mut peer.state
                && let Step::Unreadable(query, ticks) = &mut sync.step
            {
                *ticks = ticks.saturating_sub(1);
                if *ticks == 0 {
                    sync.step = Step::Waiting(query.clone());
                    waited = true;
                }
            }
        }
        if waited {
            self.resume_syncs();
        }
    }

    fn primary_page(&mut self, osd: OsdId, page: Page) {
        let ticket = self.ticket();
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(peer) = primary.peers.get_mut(&osd) else { return };
        let State::Syncing(sync) = &mut peer.state else { return };
        let overtaken = !self.log.reaches_back_to(sync.read_after, self.stored.position.seq)
            || (self.log.above(sync.read_after))
                .any(|entry| entry.changes.iter().any(|change| page.range.is_touched_by(change)));
        if overtaken {
            let content = page.part.is_some();
            sync.step = Step::Waiting(PageQuery::Range { range: page.range, content });
            sync.tries = sync.tries.saturating_add(1);
            sync.barrier |= sync.tries >= PATIENCE;
            primary.recount_barriers();
            return self.resume_when_durable(osd);
        }
        sync.tries = 0;
        sync.pause = 1;
        sync.barrier = false;
        if !sync.live && sync.staged > MAX_STAGED {
            return self.demote(osd);
        }
        let body = match page.part {
            Some(part) => {
                sync.staged += part.weight();
                sync.step = Step::Installing(ticket, page.range.next());
                Body::Install { ticket, part }
            }
            None => {
                sync.step = Step::Asking(ticket, page.range.clone());
                Body::Digest { ticket, range: page.range, digest: page.digest }
            }
        };
        primary.recount_barriers();
        self.send(osd, body);
        self.run_held();
    }

    /// The range is read again by [`resume_syncs`](Self::resume_syncs) when more is durable, or now if all is.
    fn resume_when_durable(&mut self, _osd: OsdId) {
        if self.durable == self.stored.position.seq {
            self.resume_syncs();
        }
    }

    /// The other copy answered a digest or an install.
    pub(super) fn synced(&mut self, from: OsdId, ticket: u64, equal: bool) {
        let new_ticket = self.ticket();
        let position = self.stored.position;
        let Some(primary) = self.primary() else { return };
        let Some(peer) = primary.peers.get_mut(&from) else { return };
        let State::Syncing(sync) = &mut peer.state else { return };
        match &sync.step {
            Step::Asking(asked, range) if *asked == ticket && !equal => {
                let range = range.clone();
                sync.step = Step::Waiting(PageQuery::Range { range, content: true });
                return self.resume_syncs();
            }
            Step::Asking(asked, range) if *asked == ticket => sync.cursor = range.next(),
            Step::Installing(asked, next) if *asked == ticket => sync.cursor = next.clone(),
            _ => return,
        }
        if sync.cursor == Cursor::End {
            sync.step = Step::Finishing(new_ticket);
            return self.send(from, Body::Finish { ticket: new_ticket, position });
        }
        sync.step = Step::Waiting(PageQuery::From { cursor: sync.cursor.clone(), content: sync.blank });
        self.resume_syncs();
    }
}

impl Primary {
    /// Counts again who keeps writes out.
    pub(super) fn recount_barriers(&mut self) {
        let syncing = |state: &State| matches!(state, State::Syncing(sync) if sync.barrier);
        let syncs = self.peers.values().filter(|peer| syncing(&peer.state)).count();
        let reads = self.reads.values().filter(|read| read.barrier).count();
        self.barriers = syncs + reads;
    }

    /// Forgets what it knows of the content.
    pub(super) fn forget_caches(&mut self) {
        self.fences.clear();
        self.headers.clear();
        self.windows = None;
        self.tombstones.clear();
    }
}
