//! The primary's view of the other copies.

use pando_proto::OsdId;

use super::sync::Sync;
use super::{Pg, Role};
use crate::position::Position;
use crate::request::Action;
use crate::{Body, Message, Told};

/// What the primary knows of another copy.
pub(super) struct Peer {
    /// A member, or one that joins.
    pub member: bool,
    pub state: State,
    /// All up to this number is durable there.
    pub acked: u64,
    /// A joiner that has caught up: writes wait for it before the mon counts it (R26).
    pub counted: bool,
    /// The mon was asked to make it a member: until the map tells, it must be counted.
    pub confirming: bool,
    /// The mon was asked to let it join anew.
    pub demoted: bool,
    /// Its disk is full, as it said last.
    pub full: bool,
}

pub(super) enum State {
    /// Asked for its position, by this ticket.
    Probing(u64),
    /// What it said of itself.
    Known(Told),
    /// Brought to the primary's content range by range.
    Syncing(Box<Sync>),
    /// Holds a prefix of the log and gets the rest as it comes.
    Following,
    /// A member that has to be brought everything anew: the mon was asked to let it join instead.
    Demoting,
}

impl Peer {
    fn new(member: bool, ticket: u64) -> Self {
        Self {
            member,
            state: State::Probing(ticket),
            acked: 0,
            counted: false,
            confirming: false,
            demoted: false,
            full: false,
        }
    }

    /// Whether new writes are to be sent there.
    pub(super) fn follows(&self) -> bool {
        match &self.state {
            State::Following => true,
            State::Syncing(sync) => sync.live,
            _ => false,
        }
    }

    /// A joiner without space that would have to be brought everything: it would be filled until its OSD stops. Not once
    /// the mon may have made it a member. One that the log can serve follows all the same: else one that was away for a
    /// moment would get no delete any more, and never have space again (I9).
    pub(super) fn has_to_wait(&self) -> bool {
        self.full && !self.member && !self.confirming
    }

    /// Whether writes wait for it.
    pub(super) fn counts(&self) -> bool {
        self.member || self.counted
    }
}

impl Pg {
    /// Greets all other copies of the configuration.
    pub(super) fn meet_peers(&mut self) {
        let members = self.configuration.members.iter().map(|osd| (*osd, true));
        let joiners = self.configuration.joining.iter().map(|osd| (*osd, false));
        let others: Vec<_> = members.chain(joiners).filter(|(osd, _)| *osd != self.me).collect();
        for (osd, member) in others {
            let ticket = self.ticket();
            if let Some(primary) = self.primary() {
                primary.peers.insert(osd, Peer::new(member, ticket));
            }
            self.send(osd, Body::Probe { ticket });
        }
    }

    /// The list of joiners changed within a configuration.
    pub(super) fn update_joiners(&mut self) {
        let joining = self.configuration.joining.clone();
        let Some(primary) = self.primary() else { return };
        primary.peers.retain(|osd, peer| peer.member || joining.contains(osd));
        primary.recount_barriers();
        let new: Vec<_> = joining.into_iter().filter(|osd| !primary.peers.contains_key(osd)).collect();
        for osd in new {
            let ticket = self.ticket();
            if let Some(primary) = self.primary() {
                primary.peers.insert(osd, Peer::new(false, ticket));
            }
            self.send(osd, Body::Probe { ticket });
        }
        self.advance();
        self.run_held();
    }

    /// A stream to another OSD was opened: what was sent before may be lost.
    pub fn peer_connected(&mut self, osd: OsdId) {
        self.probe(osd);
    }

    /// The stream to another OSD broke. A joiner does not hold writes up any longer.
    pub fn peer_disconnected(&mut self, osd: OsdId) {
        let ticket = self.ticket();
        let Some(primary) = self.primary() else { return };
        primary.pulling = primary.pulling.filter(|(asked, _)| *asked != osd);
        let Some(peer) = primary.peers.get_mut(&osd) else { return };
        peer.state = State::Probing(ticket);
        peer.counted &= peer.confirming;
        primary.recount_barriers();
        self.advance();
        self.run_held();
    }

    /// From time to time: asks again where an answer to a probe is missing.
    pub fn tick(&mut self) {
        self.tell_damage();
        let Some(primary) = self.primary() else { return };
        let probing = |peer: &Peer| match peer.state {
            State::Probing(ticket) => Some(ticket),
            _ => None,
        };
        let silent: Vec<_> =
            primary.peers.iter().filter_map(|(osd, peer)| probing(peer).map(|ticket| (*osd, ticket))).collect();
        for (osd, ticket) in silent {
            self.send(osd, Body::Probe { ticket });
        }
        self.read_again();
        self.try_again();
        self.forget_ended_sessions();
        self.walk_on();
    }

    fn probe(&mut self, osd: OsdId) {
        let ticket = self.ticket();
        let Some(primary) = self.primary() else { return };
        // Its answer may be lost.
        primary.pulling = primary.pulling.filter(|(asked, _)| *asked != osd);
        let Some(peer) = primary.peers.get_mut(&osd) else { return };
        peer.state = State::Probing(ticket);
        primary.recount_barriers();
        self.send(osd, Body::Probe { ticket });
        self.run_held();
    }

    pub(super) fn send(&mut self, to: OsdId, body: Body) {
        let config = self.configuration.number;
        self.actions.push(Action::Send(to, Message { config, body }));
    }

    /// A message from another OSD. What belongs to another configuration is refused or ignored.
    pub fn message(&mut self, from: OsdId, message: Message) {
        if message.body.is_from_primary() {
            return self.follow(from, message);
        }
        if self.primary().is_none_or(|primary| !primary.peers.contains_key(&from)) {
            // Nobody asked it.
            return;
        }
        match message.body {
            Body::Refused { promised } if promised > self.configuration.number => return self.superseded(promised),
            _ if message.config != self.configuration.number => return,
            _ => {}
        }
        match message.body {
            Body::Position { ticket, told } => self.peer_position(from, ticket, told),
            Body::Ack { position, full } => {
                self.peer_acked(from, position);
                self.peer_space(from, full);
            }
            Body::Synced { ticket, equal } => self.synced(from, ticket, equal),
            Body::Refused { .. } => {
                // An append did not fit there: something before it was lost. Or that copy is damaged.
                let asked = |peer: &Peer| matches!(peer.state, State::Probing(_));
                let peer = self.primary().and_then(|primary| primary.peers.get(&from));
                if peer.is_some_and(|peer| !asked(peer)) {
                    self.probe(from);
                }
            }
            Body::Entries { ticket, entries } => self.pulled(from, ticket, entries),
            _ => {}
        }
    }

    fn peer_position(&mut self, from: OsdId, ticket: u64, told: Told) {
        let Some(primary) = self.primary() else { return };
        let Some(peer) = primary.peers.get_mut(&from) else { return };
        match &peer.state {
            State::Probing(asked) if *asked == ticket => {
                peer.full = told.full;
                peer.state = State::Known(told);
                self.reconcile();
            }
            State::Syncing(sync) if sync.is_finishing(ticket) && !told.incomplete => {
                peer.state = State::Following;
                peer.counted = true;
                peer.acked = peer.acked.max(told.position.seq);
                self.advance();
            }
            _ => {}
        }
    }

    fn peer_acked(&mut self, from: OsdId, position: Position) {
        let Some(primary) = self.primary() else { return };
        let Some(peer) = primary.peers.get_mut(&from) else { return };
        if peer.follows() {
            peer.acked = peer.acked.max(position.seq);
            self.advance();
        }
    }

    /// The disk of another copy is full, or has room again.
    fn peer_space(&mut self, from: OsdId, full: bool) {
        let Some(primary) = self.primary() else { return };
        let Some(peer) = primary.peers.get_mut(&from) else { return };
        if std::mem::replace(&mut peer.full, full) == full {
            return;
        }
        match &peer.state {
            State::Known(_) => self.reconcile(),
            State::Syncing(_) if peer.has_to_wait() => {
                // Writes are not to be sent there, nor refused for its sake.
                peer.counted = false;
                self.probe(from);
                self.advance();
            }
            _ => {}
        }
    }

    /// Whether a copy that a write would go to has no space for it (I9).
    pub(super) fn is_full(&self) -> bool {
        let Role::Primary(primary) = &self.role else { return self.full };
        self.full || primary.peers.values().any(|peer| peer.full && (peer.counts() || peer.follows()))
    }

    /// Joiners that hold all that is decided, and for whose acknowledgement writes wait, may become members (R26).
    pub(super) fn confirm_joiners(&mut self) {
        let Role::Primary(primary) = &mut self.role else { return };
        let decided = primary.decided;
        for (osd, peer) in &mut primary.peers {
            let ready = !peer.member && peer.counted && !peer.confirming && peer.acked >= decided;
            if ready && matches!(peer.state, State::Following) {
                peer.confirming = true;
                self.actions.push(Action::Confirm(*osd));
            }
        }
    }
}
