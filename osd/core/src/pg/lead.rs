//! A new primary, before it serves: which member's content counts, and how the others get it.
//!
//! What was acknowledged is on every member, unless one lost it: a disk that lied, a log cut where it was damaged.
//! Such a copy is an earlier state of itself. So the member that is furthest holds all that was acknowledged, as long as
//! any does, and no other may become primary: a copy that is behind it and cannot catch up by log makes way (I1, R26).

use pando_proto::{Error, OsdId, Reason};

use super::peers::{Peer, State};
use super::{Pg, Primary, Role, Stage};
use crate::message::Entry;
use crate::position::Position;
use crate::request::Action;
use crate::{Body, Told};

impl Pg {
    /// Decides how each copy whose position is known is brought to the primary's log.
    pub(super) fn reconcile(&mut self) {
        let Some(primary) = self.primary() else { return };
        let stage = primary.stage;
        match stage {
            Stage::Peering if !self.has_all() => return,
            Stage::Peering | Stage::Active => {}
            _ => return,
        }
        let Some(primary) = self.primary() else { return };
        let known: Vec<_> = primary
            .peers
            .iter()
            .filter(|(_, peer)| peer.member || stage == Stage::Active)
            .filter_map(|(osd, peer)| peer.told().map(|told| (*osd, told)))
            .collect();
        let (mine, forgiven) = (self.stored.position, self.configuration.forgiven);
        let missed = |told: &Told| told.decided.config >= forgiven && told.decided.is_missing_at(mine);
        if let Some((osd, _)) = known.iter().find(|(_, told)| missed(told)) {
            return self.missing(*osd);
        }
        for (osd, told) in known {
            self.bring(osd, told);
        }
        self.advance();
    }

    /// In peering: whether this copy holds what any member does. If not, it sees to it that a primary comes to be that
    /// does, once all members are heard of.
    fn has_all(&mut self) -> bool {
        let (mine, incomplete) = (self.stored.position, self.stored.incomplete);
        let Some(primary) = self.primary() else { return false };
        let members = || primary.peers.values().filter(|peer| peer.member);
        let complete = members().any(|peer| peer.told().is_some_and(|told| !told.incomplete));
        let waiting = members().any(|peer| matches!(peer.state, State::Probing(_)));
        if incomplete {
            // No need to wait for the others: the next primary does.
            match (complete, waiting) {
                (true, _) => self.make_way(),
                (false, false) => self.broken(),
                (false, true) => {}
            }
            return false;
        }
        if waiting || primary.pulling.is_some() {
            return false;
        }
        let Some((_, osd)) = primary.furthest().filter(|(position, _)| *position > mine) else { return true };
        if primary.cannot_pull.contains(&osd) {
            self.make_way();
        } else {
            self.pull(osd);
        }
        false
    }

    /// Asks a member that is ahead for what this copy lacks.
    fn pull(&mut self, osd: OsdId) {
        let ticket = self.ticket();
        let after = self.stored.position;
        if let Some(primary) = self.primary() {
            primary.pulling = Some((osd, ticket));
        }
        self.send(osd, Body::Pull { ticket, after });
    }

    /// Entries that a member has beyond this copy's end: they may have been acknowledged, or be about to.
    pub(super) fn pulled(&mut self, from: OsdId, ticket: u64, entries: Vec<Entry>) {
        let mine = self.stored.position;
        let Some(primary) = self.primary() else { return };
        if primary.stage != Stage::Peering || primary.pulling != Some((from, ticket)) {
            return;
        }
        primary.pulling = None;
        let fits = entries.first().is_some_and(|entry| entry.previous == mine)
            && entries.windows(2).all(|pair| pair[0].position == pair[1].previous);
        if !fits {
            // Its log, which is in memory, does not reach back so far.
            primary.cannot_pull.push(from);
        } else {
            // State in memory was that of a shorter log.
            primary.forget_caches();
            for entry in entries {
                let position = entry.position;
                self.adopt(entry, super::Then::Adopted(position));
            }
        }
        self.reconcile();
    }

    /// Another member has to become primary: this copy lacks what that one holds, and must not overwrite it.
    pub(super) fn make_way(&mut self) {
        let me = self.me;
        let Some(primary) = self.primary() else { return };
        if primary.stage == Stage::MakingWay {
            return;
        }
        primary.stage = Stage::MakingWay;
        self.actions.push(Action::Demote(me));
        let error = self.no_complete_copy();
        self.refuse_held(&error);
    }

    /// No member's content is complete.
    pub(super) fn broken(&mut self) {
        let Some(primary) = self.primary() else { return };
        primary.stage = Stage::Broken;
        let error = self.no_complete_copy();
        self.refuse_held(&error);
    }

    /// Another copy knows of a write that was acknowledged, perhaps, and is here no more. What is here must not be
    /// served, and must not overwrite what is there.
    fn missing(&mut self, osd: OsdId) {
        let mut broken = Box::new(Primary::new(self.headers_capacity));
        broken.stage = Stage::Broken;
        broken.missing = Some(osd);
        if let Role::Primary(primary) = std::mem::replace(&mut self.role, Role::Primary(broken)) {
            let error = self.no_complete_copy();
            self.dismiss(*primary, &error);
            self.actions.push(Action::Lost(osd));
        }
    }

    pub(super) fn no_complete_copy(&self) -> Error {
        let (id, me) = (self.id, self.me);
        let state = match &self.role {
            Role::Primary(primary) => (primary.stage, primary.missing),
            _ => (Stage::Broken, None),
        };
        let message = match state {
            (Stage::MakingWay, _) => {
                format!("{me} lost a part of placement group {id}, which another member holds: that one takes over")
            }
            (_, Some(osd)) => {
                format!(
                    "{me} lost acknowledged writes of placement group {id}, of which {osd} knows: nothing is served"
                )
            }
            _ => {
                format!(
                    "placement group {id} has no complete copy: {me} holds a part, start the OSDs that hold the rest"
                )
            }
        };
        Error::new(Reason::Unavailable, message)
    }

    fn bring(&mut self, osd: OsdId, told: Told) {
        let Told { position, incomplete, .. } = told;
        let (tail, decided) = (self.stored.position, self.stored.decided);
        let missing = if incomplete {
            None
        } else if position == tail {
            Some(Vec::new())
        } else {
            self.log.after(position)
        };
        let Some(primary) = self.primary() else { return };
        let stage = primary.stage;
        let Some(peer) = primary.peers.get_mut(&osd) else { return };
        let Some(missing) = missing else {
            if peer.has_to_wait() {
                return;
            }
            // As long as nothing is served a member stays complete while it is synced, which costs memory.
            if peer.member && (incomplete || stage == Stage::Active) {
                return self.demote(osd);
            }
            return self.start_sync(osd, position, incomplete);
        };
        peer.state = State::Following;
        peer.counted = true;
        peer.acked = position.seq;
        for entry in missing {
            self.send(osd, Body::Append(entry, decided));
        }
    }

    /// A member that is, or is about to be, a mixture for a while must not become primary: it leaves the configuration
    /// and is brought everything as a joiner (R26). Also below `min_size`: reads go on then, and they would not while
    /// a member is synced.
    pub(super) fn demote(&mut self, osd: OsdId) {
        let Some(primary) = self.primary() else { return };
        let Some(peer) = primary.peers.get_mut(&osd) else { return };
        peer.state = State::Demoting;
        let asked = std::mem::replace(&mut peer.demoted, true);
        primary.recount_barriers();
        if !asked {
            self.actions.push(Action::Demote(osd));
        }
        self.run_held();
    }

    /// In peering: whether all members hold the whole log by now.
    pub(super) fn check_agreed(&mut self) {
        let (tail, durable) = (self.stored.position.seq, self.durable);
        let Some(primary) = self.primary() else { return };
        let there = |peer: &Peer| !peer.member || (matches!(peer.state, State::Following) && peer.acked >= tail);
        if durable >= tail && primary.peers.values().all(there) {
            self.agreed();
        }
    }
}

impl Peer {
    fn told(&self) -> Option<Told> {
        match self.state {
            State::Known(told) => Some(told),
            _ => None,
        }
    }
}

impl Primary {
    /// The complete member that is furthest, with its position.
    fn furthest(&self) -> Option<(Position, OsdId)> {
        let members = self.peers.iter().filter(|(_, peer)| peer.member);
        let complete = members.filter_map(|(osd, peer)| peer.told().map(|told| (told, *osd)));
        let complete = complete.filter(|(told, _)| !told.incomplete).map(|(told, osd)| (told.position, osd));
        complete.max()
    }
}
