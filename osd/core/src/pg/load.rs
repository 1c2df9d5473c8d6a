//! State that the primary reads from its engine before it can decide: fences, headers, the windows of sessions.

use std::collections::BTreeMap;

use bytes::Bytes;
use pando_proto::{ClientId, Error, Reason};

use super::unreadable::{Reading, Unreadable};
use super::{Pg, Primary, Stage};
use crate::fence::Fence;
use crate::request::{Action, Load, Loaded, Request, Token};
use crate::session::Window;
use crate::{ObjectHeader, keys};

impl Pg {
    pub(super) fn load(&mut self, load: Load, token: Token, request: Request) {
        let ticket = self.ticket();
        let Some(primary) = self.primary() else { return };
        let (_, waiting) = primary.loading.entry(load).or_insert((Reading::new(ticket), Vec::new()));
        waiting.push((token, request));
        if waiting.len() == 1 {
            self.actions.push(Action::Load { ticket, load });
        }
    }

    /// State came from the engine. What was asked for before this copy became primary again is of no use.
    pub fn loaded(&mut self, ticket: u64, load: Load, result: Result<Loaded, Error>) {
        let asked = |primary: &mut Primary| primary.loading.get(&load).map(|(reading, _)| *reading);
        let Some(mut reading) = self.primary().and_then(asked).filter(|reading| reading.ticket == ticket) else {
            return;
        };
        let read = result.map_err(|error| (error, Unreadable::Bytes));
        let understood = read.and_then(|loaded| understand(load, loaded).map_err(|error| (error, Unreadable::Meaning)));
        if let Err((error, wrong)) = &understood
            && !self.is_hopeless(error, *wrong, &mut reading)
        {
            if let Some((entry, _)) = self.primary().and_then(|primary| primary.loading.get_mut(&load)) {
                *entry = reading;
            }
            return;
        }
        let Some((_, waiting)) = self.primary().and_then(|primary| primary.loading.remove(&load)) else { return };
        match understood {
            Ok(state) => {
                self.remember(load, state);
                waiting.into_iter().for_each(|(token, request)| self.run_loaded(token, request));
            }
            Err((error, _)) => waiting.into_iter().for_each(|(token, _)| self.reply(token, Err(error.clone()))),
        }
    }

    fn remember(&mut self, load: Load, state: State) {
        let durable = self.durable;
        let Some(primary) = self.primary() else { return };
        match (load, state) {
            (Load::Fence(shard, subtree), State::Fence(fence)) => {
                // R25: what a fence tells must be on all members: one that was loaded is, for it left when it was.
                let decided = primary.decided;
                primary.fences.put((shard, subtree), fence, 0, decided);
            }
            (Load::Header(object), State::Header(header)) => primary.headers.put(object, header, 0, durable),
            _ => {}
        }
    }

    pub(super) fn run_loaded(&mut self, token: Token, request: Request) {
        // The stage may have changed meanwhile, and writes may be kept out.
        if self.may_write() && self.status().active {
            self.run(token, request);
        } else if let Some(primary) = self.primary() {
            primary.held.push_back((token, request));
        }
    }

    /// The sessions' windows came from the engine.
    pub fn sessions_loaded(&mut self, ticket: u64, result: Result<Vec<(Bytes, Bytes)>, Error>) {
        let Some(primary) = self.primary() else { return };
        if primary.stage != Stage::Loading || primary.sessions.ticket != ticket {
            return;
        }
        let mut reading = primary.sessions;
        let read = result.map_err(|error| (error, Unreadable::Bytes));
        let windows = read.and_then(|records| windows(records).map_err(|error| (error, Unreadable::Meaning)));
        let (error, wrong) = match windows {
            Ok(windows) => {
                primary.windows = Some(windows);
                return self.serve();
            }
            Err(error) => error,
        };
        let hopeless = self.is_hopeless(&error, wrong, &mut reading);
        let Some(primary) = self.primary() else { return };
        primary.sessions = reading;
        if hopeless {
            // An engine that fails may recover; what rotted does not.
            match error.reason {
                Reason::Corrupt => primary.stage = Stage::Broken,
                _ => primary.sessions.wait(),
            }
            self.refuse_held(&error);
        }
    }
}

/// What was loaded, understood.
enum State {
    Fence(Fence),
    Header(Option<ObjectHeader>),
}

fn understand(load: Load, loaded: Loaded) -> Result<State, Error> {
    match (load, loaded) {
        (Load::Fence(shard, subtree), Loaded::Fence(value)) => {
            let message = || format!("the fence of {subtree} in {shard} has an unknown format");
            let fence = Fence::decode(value.as_deref());
            fence.map(State::Fence).ok_or_else(|| Error::new(Reason::Corrupt, message()))
        }
        (Load::Header(_), Loaded::Header(header)) => Ok(State::Header(header)),
        _ => Err(Error::new(Reason::Internal, "another thing was loaded than was asked for")),
    }
}

/// No write is under way on them yet.
fn windows(records: Vec<(Bytes, Bytes)>) -> Result<BTreeMap<ClientId, (Window, u64)>, Error> {
    let window = |(key, value): (Bytes, Bytes)| {
        let (session, window) = (keys::parse_session(&key), Window::decode(value));
        let both = session.zip(window).map(|(session, window)| (session, (window, 0)));
        both.ok_or_else(|| Error::new(Reason::Corrupt, "the window of a session has an unknown format"))
    };
    records.into_iter().map(window).collect()
}
