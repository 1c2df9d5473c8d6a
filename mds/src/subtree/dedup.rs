//! Each request takes effect once (R9, R10): who was answered what, and who waits.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pando_mds_core::pipeline::CompletedRef;
use pando_proto::ClientId;

use crate::session::{Connection, Interest, WINDOW};

/// Requests beyond the window that are taken all the same. After a takeover a session may have a window full of
/// requests that are done and remembered; it reclaims its handles before it asks for their answers (R19).
const BEYOND_WINDOW: usize = 64;

enum Entry {
    /// Under way; the reply goes to the latest connection that asked.
    Running(Arc<Connection>),
    /// Done; the encoded result, and the `q/` record that remembers it.
    Completed(Bytes, Option<CompletedRef>),
}

#[derive(Default)]
struct Table {
    lowest: u64,
    /// The highest number that was let through to be run.
    highest: u64,
    entries: BTreeMap<u64, Entry>,
}

/// What to do with a request.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// New: run it.
    Run,
    /// A copy of it may still wait to be run: judge it again right before it runs.
    RunIfNew,
    /// A copy of it is under way; its reply goes to this connection now.
    Attached,
    /// It was done.
    Answer(Bytes),
    /// Below the window: it was answered and confirmed.
    Stale,
    /// Too many requests are unanswered or unconfirmed.
    Full,
}

impl Table {
    fn confirm(&mut self, lowest: u64) -> Vec<CompletedRef> {
        self.lowest = self.lowest.max(lowest);
        if self.entries.first_key_value().is_none_or(|(first, _)| *first >= self.lowest) {
            return Vec::new();
        }
        let kept = self.entries.split_off(&self.lowest);
        let below = std::mem::replace(&mut self.entries, kept);
        let mut forgotten = Vec::new();
        for (request, entry) in below {
            match entry {
                Entry::Completed(_, reference) => forgotten.extend(reference),
                // Confirmed before it was answered: its client has given it up. What has begun of it ends.
                running @ Entry::Running(_) => drop(self.entries.insert(request, running)),
            }
        }
        forgotten
    }
}

/// The tables of a subtree; sessions iterate in order. A session has one from its first request on, until it is known
/// to have all answers.
#[derive(Default)]
pub(crate) struct Dedup {
    tables: BTreeMap<ClientId, Table>,
    /// Told which sessions have tables; of a subtree that is being opened, nobody yet.
    interest: Option<Rc<Interest>>,
}

impl Dedup {
    /// The subtree is open: from now on it hears of the sessions that have tables.
    pub fn listen(&mut self, interest: &Rc<Interest>) {
        self.tables.keys().for_each(|client| interest.remembers(*client));
        self.interest = Some(Rc::clone(interest));
    }

    fn table(&mut self, client: ClientId) -> &mut Table {
        let interest = self.interest.as_deref();
        self.tables.entry(client).or_insert_with(|| {
            if let Some(interest) = interest {
                interest.remembers(client);
            }
            Table::default()
        })
    }

    fn take_table(&mut self, client: ClientId) -> Option<Table> {
        if let Some(interest) = &self.interest {
            interest.forgets(client);
        }
        self.tables.remove(&client)
    }

    /// A client that asks for something has all answers below `lowest`; the references are to be forgotten.
    pub fn confirm(&mut self, client: ClientId, lowest: u64) -> Vec<CompletedRef> {
        self.table(client).confirm(lowest)
    }

    /// The same of a client that asks for nothing: `lowest` is what the whole rank knows. A table that says no more than
    /// that goes; whatever the client sends from now on is judged by the rank's knowledge.
    pub fn keep_alive(&mut self, client: ClientId, lowest: u64) -> Vec<CompletedRef> {
        let Some(table) = self.tables.get_mut(&client) else { return Vec::new() };
        let forgotten = table.confirm(lowest);
        let gives_up_more = table.entries.first_key_value().is_some_and(|(first, _)| *first < lowest);
        if let (true, Some(interest)) = (gives_up_more, &self.interest) {
            // It still runs: to be told of once more when it has ended.
            interest.remembers(client);
        }
        if table.entries.is_empty() && table.highest < lowest && table.lowest <= lowest {
            self.take_table(client);
        }
        forgotten
    }

    /// Judges a request before anything else looks at it (R10).
    pub fn judge(&mut self, client: ClientId, request: u64, connection: &Arc<Connection>) -> Verdict {
        let table = self.table(client);
        // What was let through and is not done yet has no entry: numbers say how much there may be.
        let beyond = request - request.min(table.lowest) >= (WINDOW + BEYOND_WINDOW) as u64;
        let full = beyond || table.entries.len() >= WINDOW + BEYOND_WINDOW;
        match table.entries.get_mut(&request) {
            Some(Entry::Running(latest)) => {
                *latest = Arc::clone(connection);
                Verdict::Attached
            }
            Some(Entry::Completed(result, _)) => Verdict::Answer(result.clone()),
            None if request < table.lowest => Verdict::Stale,
            None if full => Verdict::Full,
            None if request <= table.highest => Verdict::RunIfNew,
            None => {
                table.highest = request;
                Verdict::Run
            }
        }
    }

    /// Whether its client waits for no answer to it any more.
    pub fn is_given_up(&self, client: ClientId, request: u64) -> bool {
        self.tables.get(&client).is_some_and(|table| request < table.lowest)
    }

    /// The request could not be answered at once.
    pub fn running(&mut self, client: ClientId, request: u64, connection: &Arc<Connection>) {
        let table = self.table(client);
        table.entries.entry(request).or_insert_with(|| Entry::Running(Arc::clone(connection)));
    }

    /// It is answered and to be remembered. The connection that asked last.
    pub fn complete(
        &mut self,
        client: ClientId,
        request: u64,
        result: Bytes,
        reference: Option<CompletedRef>,
    ) -> Option<Arc<Connection>> {
        let table = self.tables.get_mut(&client)?;
        match table.entries.insert(request, Entry::Completed(result, reference)) {
            Some(Entry::Running(connection)) => Some(connection),
            _ => None,
        }
    }

    /// Whether the session has a table; it has none once it is over, or has all answers.
    pub fn knows(&self, client: ClientId) -> bool {
        self.tables.contains_key(&client)
    }

    /// It is answered, and repeating it does no harm. The connection that asked last.
    pub fn finished(&mut self, client: ClientId, request: u64) -> Option<Arc<Connection>> {
        let table = self.tables.get_mut(&client)?;
        match table.entries.get(&request) {
            Some(Entry::Running(_)) => match table.entries.remove(&request) {
                Some(Entry::Running(connection)) => Some(connection),
                _ => None,
            },
            _ => None,
        }
    }

    /// Takes over what an earlier owner remembered.
    pub fn adopt(&mut self, client: ClientId, request: u64, result: Bytes, reference: CompletedRef) {
        let table = self.table(client);
        table.entries.insert(request, Entry::Completed(result, Some(reference)));
    }

    /// The session is over; the references are to be forgotten.
    pub fn session_gone(&mut self, client: ClientId) -> Vec<CompletedRef> {
        let table = self.take_table(client).unwrap_or_default();
        let completed = table.entries.into_values().filter_map(|entry| match entry {
            Entry::Completed(_, reference) => reference,
            Entry::Running(_) => None,
        });
        completed.collect()
    }

    /// Sessions that have tables.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.tables.keys().copied()
    }
}

#[cfg(test)]
mod tests;
