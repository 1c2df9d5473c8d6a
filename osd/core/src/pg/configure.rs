//! What a new configuration does to a copy.

use std::sync::Arc;

use pando_proto::Error;

use super::member::Member;
use super::unreadable::Reading;
use super::{Damage, Pg, Primary, Role, Stage, Then, Waiter};
use crate::Body;
use crate::request::{Action, Configuration, Sessions};

impl Pg {
    /// The map's sessions; to be called before [`configure`](Self::configure) with the same map.
    pub fn set_sessions(&mut self, sessions: Arc<Sessions>) {
        self.sessions = sessions;
        self.forget_ended_sessions();
    }

    /// The map's configuration of this PG.
    pub fn configure(&mut self, configuration: Configuration) {
        if configuration.number < self.configuration.number.max(self.stored.promised) {
            // An older map than this copy has acted on (R14, R25).
            return;
        }
        let same = configuration.number == self.configuration.number;
        self.configuration = configuration;
        if same {
            self.update_joiners();
            return;
        }
        let lead = self.configuration.members.first() == Some(&self.me);
        let follow = self.configuration.members.contains(&self.me) || self.configuration.joining.contains(&self.me);
        if follow && matches!(self.role, Role::Member(_)) && self.stored.promised == self.configuration.number {
            // Its primary was faster than the map.
            return;
        }
        match std::mem::replace(&mut self.role, Role::Outsider) {
            Role::Primary(mut primary) if lead => {
                primary.restart();
                self.lead(primary);
            }
            role => {
                if let Role::Primary(primary) = role {
                    let error = self.not_owner();
                    self.dismiss(*primary, &error);
                }
                if lead {
                    self.lead(Box::new(Primary::new(self.headers_capacity)));
                } else if follow {
                    self.role = Role::Member(Member::default());
                }
            }
        }
    }

    fn lead(&mut self, mut primary: Box<Primary>) {
        if self.damage != Damage::None && self.configuration.number <= self.damaged_in {
            self.role = Role::Primary(primary);
            // The others hold all that was acknowledged, as after a crash of this one.
            return if self.configuration.members.len() > 1 { self.make_way() } else { self.broken() };
        }
        if self.damage != Damage::None {
            // Nobody has replaced anything.
            self.senseless = false;
        }
        self.damage = Damage::None;
        primary.missing = None;
        primary.stage = Stage::Promising;
        self.role = Role::Primary(primary);
        self.stored.promised = self.configuration.number;
        self.commit(vec![self.stored.to_change()], Then::PrimaryPromised);
        self.meet_peers();
    }

    /// The promise, and with it every earlier commit, is durable.
    pub(super) fn promised(&mut self) {
        let promised = self.stored.promised;
        if promised != self.configuration.number {
            return;
        }
        let tail = self.stored.position.seq;
        let Some(primary) = self.primary() else { return };
        if primary.stage != Stage::Promising {
            return;
        }
        primary.stage = Stage::Peering;
        self.durable = tail;
        self.reconcile();
    }

    /// All members hold the same log.
    pub(super) fn agreed(&mut self) {
        let position = self.stored.position;
        let tail = position.seq;
        let ticket = self.ticket();
        let Role::Primary(primary) = &mut self.role else { return };
        if primary.stage != Stage::Peering {
            return;
        }
        primary.decided = tail;
        self.stored.decided = position;
        if primary.windows.is_none() {
            primary.stage = Stage::Loading;
            primary.sessions = Reading::new(ticket);
            self.actions.push(Action::LoadSessions(ticket));
        } else {
            self.serve();
        }
    }

    /// Begins to serve: what was under way at the change is on all members now (R25).
    pub(super) fn serve(&mut self) {
        let Some(primary) = self.primary() else { return };
        primary.stage = Stage::Active;
        let tail = primary.decided;
        if self.has_too_few_members() {
            self.refuse_waiting(tail);
        }
        self.decide(tail);
        self.forget_ended_sessions();
        self.run_held();
        self.reconcile();
    }

    /// R26, I1: a write that was under way when members were lost is on all that are left, and these are too few to
    /// acknowledge it. Whoever repeats it is told so once there are enough.
    fn refuse_waiting(&mut self, tail: u64) {
        let error = self.too_few_members();
        let Some(primary) = self.primary() else { return };
        let mut refused = Vec::new();
        for (_, waiters) in primary.waiting.range_mut(..=tail) {
            waiters.retain(|waiter| match waiter {
                Waiter::Reply(token, _) => {
                    refused.push(*token);
                    false
                }
                // It asks anew whether it may write.
                Waiter::Read(_) | Waiter::Purge(..) => true,
            });
        }
        for token in refused {
            self.reply(token, Err(error.clone()));
        }
    }

    /// A member has promised a higher configuration than this primary's.
    pub(super) fn superseded(&mut self, promised: u64) {
        if promised <= self.configuration.number {
            return;
        }
        if let Role::Primary(_) = &self.role
            && let Role::Primary(mut primary) = std::mem::replace(&mut self.role, Role::Outsider)
        {
            primary.stage = Stage::Superseded;
            let error = self.not_owner();
            self.dismiss(*primary, &error);
        }
    }

    /// Nothing of what a primary still has to answer can be answered any more; writes may or may not survive.
    pub(super) fn dismiss(&mut self, primary: Primary, error: &Error) {
        for waiter in primary.waiting.into_values().flatten() {
            if let Waiter::Reply(token, _) | Waiter::Purge(token, _) = waiter {
                self.reply(token, Err(error.clone()));
            }
        }
        let reads = primary.reads.into_keys();
        let mut loading: Vec<_> =
            primary.loading.into_values().flat_map(|(_, waiting)| waiting).map(|(token, _)| token).collect();
        loading.sort_unstable();
        let purges = primary.purges.into_values().map(|listing| listing.token);
        let held = primary.held.into_iter().map(|(token, _)| token);
        for token in reads.chain(loading).chain(purges).chain(held) {
            self.reply(token, Err(error.clone()));
        }
    }

    pub(super) fn refuse_held(&mut self, error: &Error) {
        let Some(primary) = self.primary() else { return };
        for (token, _) in std::mem::take(&mut primary.held) {
            self.reply(token, Err(error.clone()));
        }
    }

    /// A message of a primary asks this copy to follow it in a configuration that may be newer than its map.
    pub(super) fn promise(&mut self, from: pando_proto::OsdId, config: u64, ticket: u64) {
        if config < self.stored.promised || config < self.configuration.number {
            let promised = self.stored.promised.max(self.configuration.number);
            self.answer(from, Body::Refused { promised });
            return;
        }
        if let Role::Primary(_) = &self.role {
            if config == self.configuration.number {
                // Two primaries of one configuration: only a broken peer claims that.
                return;
            }
            self.superseded(config);
        }
        self.role = Role::Member(Member::of(from));
        self.stored.promised = config;
        if self.damage != Damage::None {
            self.damage = Damage::Told;
        }
        let then = Then::Say(from, self.own_position(ticket));
        self.commit(vec![self.stored.to_change()], then);
    }
}

impl Primary {
    /// Forgets what belongs to the configuration before; keeps requests and the state after all writes.
    fn restart(&mut self) {
        self.peers.clear();
        self.pulling = None;
        self.cannot_pull.clear();
        self.barriers = 0;
        for read in self.reads.values_mut() {
            read.barrier = false;
        }
        for token in &self.executing {
            // Evaluated under the old configuration.
            if let Some(read) = self.reads.get_mut(token) {
                read.dirty = true;
            }
        }
    }
}
