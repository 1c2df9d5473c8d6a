//! Requests for a subtree that this rank is about to serve: they wait for it here, so that a client that followed a
//! redirect faster than the subtree was opened does not have to come again after a pause.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pando_proto::SubtreeId;

use crate::subtree::Submit;

/// Whoever waited for so long is told to come again: it may be served elsewhere by then.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);
/// Requests that wait, for all subtrees (I8). More are told to come again.
const MAX_REQUESTS: usize = 16 * 1024;
/// Their bytes.
const MAX_BYTES: usize = 16 << 20;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Lobby(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    rooms: BTreeMap<SubtreeId, Room>,
    requests: usize,
    bytes: usize,
    /// Rooms that were opened so far.
    opened: u64,
}

struct Room {
    number: u64,
    submits: Vec<Submit>,
    requests: usize,
    bytes: usize,
}

impl Lobby {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits. Whoever is the first that waits for the subtree gets a number, and calls [`Self::give_up`] with it after
    /// [`PATIENCE`].
    ///
    /// Errors: too many wait.
    pub fn enter(&self, subtree: SubtreeId, submit: Submit) -> Result<Option<u64>, Submit> {
        let requests = submit.requests.len();
        let bytes: usize = submit.requests.iter().map(prost::Message::encoded_len).sum();
        let mut waiting = self.lock();
        if waiting.requests + requests > MAX_REQUESTS || waiting.bytes + bytes > MAX_BYTES {
            return Err(submit);
        }
        waiting.requests += requests;
        waiting.bytes += bytes;
        let number = waiting.opened;
        let mut first = None;
        let room = waiting.rooms.entry(subtree).or_insert_with(|| {
            first = Some(number);
            Room { number, submits: Vec::new(), requests: 0, bytes: 0 }
        });
        room.submits.push(submit);
        room.requests += requests;
        room.bytes += bytes;
        waiting.opened += u64::from(first.is_some());
        Ok(first)
    }

    /// How many requests wait for a subtree.
    pub fn crowd(&self, subtree: SubtreeId) -> usize {
        self.lock().rooms.get(&subtree).map_or(0, |room| room.requests)
    }

    /// All that wait for a subtree, in their order.
    pub fn leave(&self, subtree: SubtreeId) -> Vec<Submit> {
        let mut waiting = self.lock();
        let Some(room) = waiting.rooms.remove(&subtree) else { return Vec::new() };
        waiting.requests -= room.requests;
        waiting.bytes -= room.bytes;
        room.submits
    }

    /// The same, if they still are those that began to wait with this number.
    pub fn give_up(&self, subtree: SubtreeId, number: u64) -> Vec<Submit> {
        let same = self.lock().rooms.get(&subtree).is_some_and(|room| room.number == number);
        if same { self.leave(subtree) } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests;
