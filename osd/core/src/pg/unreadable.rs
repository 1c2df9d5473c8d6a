//! Own content that the primary needs and cannot read: it is tried again where that may help, and where it does not,
//! a member that holds the same becomes primary and replaces this copy (I10).

use pando_proto::{Error, Reason};

use super::peers::State;
use super::{Damage, Pg, Primary, Role, Stage};
use crate::request::{Action, Load, Token, Verdict};

/// What the engine failed to read is read so often again, a tick apart, before this copy counts as damaged.
const TRIES: u8 = 3;

/// Something that is read from the engine, and again if that fails.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// The read that counts.
    pub ticket: u64,
    /// How often it failed.
    failed: u8,
    /// To be read again at the next tick.
    waits: bool,
}

/// What is wrong with what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// The bytes: those of other copies are others.
    Bytes,
    /// What they mean. They are what was written, so most likely other copies hold the same.
    Meaning,
}

/// What becomes of those who need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It is read again at the next tick.
    Again,
    /// Another member takes over; they were told to ask that one.
    Gone,
    /// Nobody can do better.
    Refuse,
}

impl Reading {
    pub(super) fn new(ticket: u64) -> Self {
        Self { ticket, ..Self::default() }
    }

    /// Until the next tick.
    pub(super) fn wait(&mut self) {
        self.waits = true;
    }

    /// The ticket, if it is to be read again: now.
    pub(super) fn begin(&mut self) -> Option<u64> {
        std::mem::take(&mut self.waits).then_some(self.ticket)
    }
}

impl Pg {
    /// Something cannot be read: whether those who need it are to be told so now.
    pub(super) fn is_hopeless(&mut self, error: &Error, wrong: Unreadable, reading: &mut Reading) -> bool {
        let outcome = self.give_way(error, wrong, reading.failed);
        reading.failed = reading.failed.saturating_add(1);
        reading.waits = outcome == Outcome::Again;
        outcome == Outcome::Refuse
    }

    /// Own content that a read needs cannot be read. `Send`: nobody else holds it, so the error is the answer.
    pub fn unreadable(&mut self, token: Token, error: &Error) -> Verdict {
        let Some(primary) = self.primary() else { return Verdict::Drop };
        primary.executing.retain(|executing| *executing != token);
        let Some(read) = primary.reads.get_mut(&token) else { return Verdict::Drop };
        read.dirty = false;
        // Perhaps a write replaces it meanwhile.
        read.barrier = false;
        let mut reading = read.reading;
        let hopeless = self.is_hopeless(error, Unreadable::Bytes, &mut reading);
        let Some(primary) = self.primary() else { return Verdict::Drop };
        if hopeless {
            primary.reads.remove(&token);
        } else if let Some(read) = primary.reads.get_mut(&token) {
            read.reading = reading;
        }
        primary.recount_barriers();
        self.run_held();
        if hopeless { Verdict::Send } else { Verdict::Drop }
    }

    /// A tick: reads again what could not be read.
    pub(super) fn try_again(&mut self) {
        let Some(primary) = self.primary() else { return };
        if primary.stage == Stage::Loading
            && let Some(ticket) = primary.sessions.begin()
        {
            self.actions.push(Action::LoadSessions(ticket));
        }
        let Some(primary) = self.primary() else { return };
        let loading = primary.loading.iter_mut();
        let waiting = loading.filter_map(|(load, (reading, _))| reading.begin().map(|ticket| (ticket, *load)));
        let mut loads: Vec<(u64, Load)> = waiting.collect();
        loads.sort_unstable_by_key(|(ticket, _)| *ticket);
        let reads = primary.reads.iter_mut();
        let reads: Vec<Token> = reads.filter_map(|(token, read)| read.reading.begin().map(|_| *token)).collect();
        self.actions.extend(loads.into_iter().map(|(ticket, load)| Action::Load { ticket, load }));
        for token in reads {
            self.try_read(token);
        }
        self.list_again();
    }

    /// Lets another member take over, if one is known to hold all that was acknowledged (I1).
    fn give_way(&mut self, error: &Error, wrong: Unreadable, failed: u8) -> Outcome {
        let alone = self.configuration.members.len() < 2 || wrong == Unreadable::Meaning && self.senseless;
        let Some(primary) = self.primary() else { return Outcome::Refuse };
        match primary.stage {
            Stage::Loading | Stage::Active => {}
            // It is not known yet who holds what.
            Stage::Promising | Stage::Peering => return Outcome::Again,
            Stage::Superseded | Stage::MakingWay | Stage::Broken => return Outcome::Refuse,
        }
        if error.reason != Reason::Corrupt && failed < TRIES {
            return Outcome::Again;
        }
        if alone {
            return Outcome::Refuse;
        }
        // If nobody is at hand, it shows soon who leaves the configuration.
        if self.replace_me(wrong) { Outcome::Gone } else { Outcome::Again }
    }

    /// Has a member that holds all become primary instead of this copy, whose content is not to be trusted any more:
    /// it is brought everything anew. False if no such member is at hand.
    pub(super) fn replace_me(&mut self, wrong: Unreadable) -> bool {
        let (me, config, headers) = (self.me, self.configuration.number, self.headers_capacity);
        let Some(primary) = self.primary() else { return false };
        if !matches!(primary.stage, Stage::Loading | Stage::Active) || !primary.has_another() {
            return false;
        }
        self.damage = Damage::Untold;
        self.damaged_in = config;
        self.senseless |= wrong == Unreadable::Meaning;
        let mut gone = Box::new(Primary::new(headers));
        gone.stage = Stage::MakingWay;
        if let Role::Primary(primary) = std::mem::replace(&mut self.role, Role::Primary(gone)) {
            let error = self.no_complete_copy();
            self.dismiss(*primary, &error);
        }
        self.actions.push(Action::Demote(me));
        true
    }
}

impl Primary {
    /// Whether a member follows that holds all that may have been acknowledged.
    fn has_another(&self) -> bool {
        let decided = self.decided;
        self.peers.values().any(|peer| peer.member && matches!(peer.state, State::Following) && peer.acked >= decided)
    }
}
