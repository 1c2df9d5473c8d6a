//! Numbers of mutations (R22): unique, and none is given up before its mutation cannot take effect any more.
//!
//! A caller may drop a mutation after it was sent, at its deadline for one. A copy of it may then still be on its
//! way, and land on a later write that was acknowledged: as long as an older number is open the low-water mark does
//! not keep it out. So the number is *called off*: a mutation that changes nothing is sent under the same number,
//! again and again until an OSD has done it, or has refused it in a way that meets the original as well. If the original was applied by then, it was so before
//! any later mutation of the object; if not, the PG has the number among its done ones, and never applies a copy.
//! Until then the number stays open, and later mutations of the same object wait.
//!
//! Without a runtime, nothing can be sent: the number then stays open, and the object closed to mutations, until the
//! next mutation of any object starts the calling off. With the last clone of a client, or the session, it ends too:
//! nobody can then write under this session any more, and the session's end at the cluster bars what is late. What goes
//! on for ever would reach, one day, another cluster in the place of the one that is gone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use pando_mon_client::MapWatch;
use pando_proto::Error;
use pando_proto::osd::ObjectId;
use pando_rpc::Shutdown;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::ObjectClient;
use crate::objects::Shared;
use crate::retry::{Backoff, Stopped, bars_all_copies, is_definite};

/// A mutation that has its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub number: u64,
    pub object: ObjectId,
    pub generation: u64,
}

#[derive(Default)]
struct State {
    last: u64,
    open: BTreeMap<u64, ObjectId>,
    /// How many open numbers of an object were abandoned. Never iterated.
    abandoned: FxHashMap<ObjectId, u32>,
    /// Those of them that nobody calls off yet.
    orphans: Vec<Begun>,
}

/// The numbers of one session.
#[derive(Default)]
pub(crate) struct Sequences {
    state: Mutex<State>,
    /// A number was called off, or nobody does so any more.
    called_off: Notify,
}

impl Sequences {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new number, once nothing abandoned can change `object` any more. `call_off` starts to see to that.
    ///
    /// Errors: nobody does so any more.
    pub async fn begin(&self, object: ObjectId, shutdown: &Shutdown, call_off: impl Fn()) -> Result<u64, Stopped> {
        loop {
            let called_off = self.called_off.notified();
            tokio::pin!(called_off);
            called_off.as_mut().enable();
            call_off();
            if let Some(number) = self.try_begin(object) {
                return Ok(number);
            }
            tokio::select! {
                biased;
                () = shutdown.stopped() => return Err(Stopped),
                () = called_off => {}
            }
        }
    }

    fn try_begin(&self, object: ObjectId) -> Option<u64> {
        let mut state = self.lock();
        if state.abandoned.contains_key(&object) {
            return None;
        }
        state.last += 1;
        let number = state.last;
        state.open.insert(number, object);
        Some(number)
    }

    /// The lowest open number of such an object.
    pub fn lowest_open(&self, such: impl Fn(ObjectId) -> bool) -> Option<u64> {
        self.lock().open.iter().find(|(_, object)| such(**object)).map(|(number, _)| *number)
    }

    fn done(&self, number: u64) {
        self.lock().open.remove(&number);
    }

    fn abandon(&self, begun: Begun) {
        let mut state = self.lock();
        *state.abandoned.entry(begun.object).or_default() += 1;
        state.orphans.push(begun);
    }

    fn called_off(&self, begun: Begun) {
        let mut state = self.lock();
        state.open.remove(&begun.number);
        if let Some(count) = state.abandoned.get_mut(&begun.object) {
            *count -= 1;
            if *count == 0 {
                state.abandoned.remove(&begun.object);
            }
        }
        drop(state);
        self.called_off.notify_waiters();
    }

    pub fn has_orphans(&self) -> bool {
        !self.lock().orphans.is_empty()
    }

    pub fn take_orphans(&self) -> Vec<Begun> {
        std::mem::take(&mut self.lock().orphans)
    }
}

/// A mutation whose caller waits. Dropped before its outcome is certain, it is called off.
pub(crate) struct Pending<'a> {
    client: &'a ObjectClient,
    pub begun: Begun,
    /// How often it was sent.
    sent: AtomicU32,
    settled: bool,
}

impl<'a> Pending<'a> {
    pub fn new(client: &'a ObjectClient, begun: Begun) -> Self {
        Self { client, begun, sent: AtomicU32::new(0), settled: false }
    }

    /// From now on it may take effect.
    pub fn sends(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the outcome. An error for want of space, or for a disk that cannot be read, is definite for that copy only:
    /// another one that was sent before may still arrive, and fare better.
    pub fn settle(&mut self, error: Option<&Error>) {
        let is_only_copy = self.sent.load(Ordering::Relaxed) <= 1;
        self.settled = error.is_none_or(|error| bars_all_copies(error) || is_only_copy && is_definite(error));
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.settled || self.sent.load(Ordering::Relaxed) == 0 {
            return self.client.sequences().done(self.begun.number);
        }
        self.client.sequences().abandon(self.begun);
        self.client.call_off_abandoned();
    }
}

/// Calls one number off. If its task ends before that, with its runtime, the number is an orphan again.
pub(crate) struct CallingOff {
    shared: Weak<Shared>,
    begun: Option<Begun>,
}

impl CallingOff {
    pub fn new(shared: Weak<Shared>, begun: Begun) -> Self {
        Self { shared, begun: Some(begun) }
    }

    pub async fn run(mut self, map: MapWatch, shutdown: Shutdown) {
        let mut backoff = Backoff::new(map, shutdown);
        while let (Some(begun), Some(shared)) = (self.begun, self.shared.upgrade()) {
            let client = ObjectClient(shared);
            match client.attempt_nothing(begun).await {
                Err(error) if !bars_all_copies(&error) => {
                    // Not held meanwhile: the client may go.
                    drop(client);
                    if backoff.wait(&("the end of an abandoned mutation", begun.object), &error).await.is_err() {
                        return;
                    }
                }
                _ => {
                    self.begun = None;
                    client.sequences().called_off(begun);
                }
            }
        }
    }
}

impl Drop for CallingOff {
    fn drop(&mut self) {
        // Not spawned again from here: a runtime that is shutting down would drop it at once, for ever.
        if let (Some(begun), Some(shared)) = (self.begun.take(), self.shared.upgrade()) {
            shared.sequences.lock().orphans.push(begun);
            // Whoever waits in another runtime takes it on.
            shared.sequences.called_off.notify_waiters();
        }
    }
}
