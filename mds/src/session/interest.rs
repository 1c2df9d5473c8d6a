//! Which actors of a rank have to hear of a session (R9, R19).

use pando_proto::{ClientId, SubtreeId};

use super::Sessions;

/// Whom a keep-alive concerns.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Concerned {
    /// Subtrees whose actors remember requests of the session, and do not know yet which answers it has by now.
    pub behind: Vec<SubtreeId>,
    /// Subtrees that wait for its reclaims: it is told so.
    pub awaited: Vec<SubtreeId>,
}

impl Sessions {
    /// A keep-alive says that the session has the answers to all its requests below `lowest`. That is so in all subtrees
    /// (R9), but it matters at once only where requests are remembered: the others ask when something comes.
    pub fn confirm(&self, client: ClientId, lowest: u64) -> Concerned {
        let mut sessions = self.lock();
        let known = sessions.entry(client).or_default();
        known.lowest = known.lowest.max(lowest);
        let lowest = known.lowest;
        let mut behind = Vec::new();
        for (subtree, told) in &mut known.remembered {
            if *told < lowest {
                *told = lowest;
                behind.push(*subtree);
            }
        }
        Concerned { behind, awaited: known.awaited.iter().copied().collect() }
    }

    /// In how many subtrees requests of a session are remembered.
    pub fn tables_of(&self, client: ClientId) -> usize {
        self.lock().get(&client).map_or(0, |known| known.remembered.len())
    }
}

/// Of which sessions the actor of one subtree has to hear; of none, once dropped.
pub(crate) struct Interest {
    sessions: Sessions,
    subtree: SubtreeId,
}

impl Interest {
    /// Of none yet.
    pub fn new(sessions: Sessions, subtree: SubtreeId) -> Self {
        Self { sessions, subtree }
    }

    /// A session has the answers to all its requests below.
    pub fn lowest(&self, client: ClientId) -> u64 {
        self.sessions.lock().get(&client).map_or(0, |known| known.lowest)
    }

    /// Requests of a session are remembered from now on.
    pub fn remembers(&self, client: ClientId) {
        self.sessions.lock().entry(client).or_default().remembered.insert(self.subtree, 0);
    }

    /// Nothing is remembered of it any more.
    pub fn forgets(&self, client: ClientId) {
        if let Some(known) = self.sessions.lock().get_mut(&client) {
            known.remembered.remove(&self.subtree);
        }
    }

    /// Reclaims of these are waited for from now on (R19).
    pub fn awaits(&self, clients: impl Iterator<Item = ClientId>) {
        let mut sessions = self.sessions.lock();
        for client in clients {
            sessions.entry(client).or_default().awaited.insert(self.subtree);
        }
    }

    /// It is back, or gone.
    pub fn awaits_no_more(&self, client: ClientId) {
        if let Some(known) = self.sessions.lock().get_mut(&client) {
            known.awaited.remove(&self.subtree);
        }
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        for known in self.sessions.lock().values_mut() {
            known.remembered.remove(&self.subtree);
            known.awaited.remove(&self.subtree);
        }
    }
}
