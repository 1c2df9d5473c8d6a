//! Sessions as the rank sees them: who spoke when, and which of its actors have to hear of it (R9, R19).

mod interest;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use pando_cluster_map::ClusterMap;
use pando_proto::mds::{EchoItem, OperationResult, Reply, ServerFrame};
use pando_proto::{ClientId, Epoch, Error, Reason, SubtreeId};
use pando_rpc::queue;
use tokio::sync::Notify;

pub(crate) use interest::{Concerned, Interest};

/// Requests of a session that may be unanswered, or answered and not yet confirmed (R9).
pub(crate) const WINDOW: usize = 1024;
/// Messages that may wait to be sent to a client. One that does not read loses its connection.
pub(crate) const OUTGOING: usize = 8 * WINDOW;
/// Bytes of replies that may wait for one client before its requests are refused.
const MAX_QUEUED_BYTES: usize = 8 << 20;
/// The same for all clients together (I8).
const MAX_QUEUED_BYTES_OF_ALL: usize = 32 << 20;

/// Something to send to a client.
pub(crate) enum Out {
    /// With its encoded size.
    Reply(Reply, usize),
    Echo(EchoItem),
    Frame(ServerFrame),
}

/// One stream of a session.
pub(crate) struct Connection {
    pub client: ClientId,
    out: queue::Sender<Out>,
    meter: Arc<Meter>,
    /// A reply did not fit any more: the stream has to end, so that the client asks again.
    lost: AtomicBool,
    /// A later stream of the session has taken its place.
    replaced: AtomicBool,
    ends: Notify,
}

impl Connection {
    pub fn new(client: ClientId, out: queue::Sender<Out>, meter: Arc<Meter>) -> Self {
        let (lost, replaced) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { client, out, meter, lost, replaced, ends: Notify::new() }
    }

    fn replace(&self) {
        self.replaced.store(true, Ordering::Relaxed);
        self.ends.notify_one();
    }

    /// What came by it and has not begun must not begin any more (R10): its client has asked again, or will.
    pub fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Ends when a later stream takes its place.
    pub async fn replaced(&self) {
        while !self.is_replaced() {
            self.ends.notified().await;
        }
    }

    /// Queues a reply. One that cannot be queued is lost, as on a broken stream: the client repeats the request.
    pub fn reply(&self, id: u64, result: OperationResult, bytes: usize) {
        if self.send(Out::Reply(Reply { id, result: Some(result) }, bytes)) {
            self.meter.add(bytes);
        } else {
            self.lost.store(true, Ordering::Relaxed);
        }
    }

    /// So much waits for this client, or for all, that it has to take replies before it asks again (I8).
    pub fn is_congested(&self) -> bool {
        self.meter.own.load(Ordering::Relaxed) > MAX_QUEUED_BYTES
            || self.meter.all.load(Ordering::Relaxed) > MAX_QUEUED_BYTES_OF_ALL
    }

    pub fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// False if the client is gone or does not read.
    pub fn send(&self, out: Out) -> bool {
        self.out.push(out).is_ok()
    }

    pub fn is_closed(&self) -> bool {
        self.out.is_closed()
    }
}

/// Bytes that wait to be sent, on one connection and on all.
pub(crate) struct Meter {
    own: AtomicUsize,
    all: Arc<AtomicUsize>,
}

impl Meter {
    pub fn new(all: Arc<AtomicUsize>) -> Self {
        Self { own: AtomicUsize::new(0), all }
    }

    fn add(&self, bytes: usize) {
        self.own.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes are on their way.
    pub fn sent(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        self.all.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The stream has ended, and what was never sent is gone with it. Nothing is queued any more, but operations under
    /// way may know the connection for long (I8).
    pub fn ended(&self) {
        self.all.fetch_sub(self.own.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// What is known of one session.
#[derive(Default)]
struct Known {
    /// When it was last heard of; nothing before the first time, or the first sweep.
    heard: Option<Duration>,
    /// Its latest stream.
    stream: Weak<Connection>,
    /// As its keep-alives say, it has the answers to all its requests below (R9).
    lowest: u64,
    /// Subtrees whose actors remember requests of it, each with the `lowest` of which it was told last.
    remembered: BTreeMap<SubtreeId, u64>,
    /// Subtrees that wait for its reclaims (R19).
    awaited: BTreeSet<SubtreeId>,
}

/// When each session was last heard of, its stream, and how far it is. Actors read it when they need it: a keep-alive
/// costs nothing in those to which it means nothing.
#[derive(Clone, Default)]
pub(crate) struct Sessions(Arc<Mutex<BTreeMap<ClientId, Known>>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClientId, Known>> {
        // Nothing that can panic runs under the lock.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn heard(&self, client: ClientId, now: Duration) {
        self.lock().entry(client).or_default().heard = Some(now);
    }

    /// A stream begins: those before it end. The client may have given this one up and opened a later one, which is
    /// replaced then; that one ends as well, and the client comes again.
    pub fn attach(&self, connection: &Arc<Connection>, now: Duration) {
        let before = {
            let mut sessions = self.lock();
            let known = sessions.entry(connection.client).or_default();
            known.heard = Some(now);
            std::mem::replace(&mut known.stream, Arc::downgrade(connection))
        };
        if let Some(before) = before.upgrade() {
            before.replace();
        }
    }

    /// Nobody was silent so far: there was nobody to hear them.
    pub fn forget_silence(&self, now: Duration) {
        self.lock().values_mut().for_each(|known| known.heard = Some(now));
    }

    pub fn is_silent(&self, client: ClientId, now: Duration, timeout: Duration) -> bool {
        let heard = self.lock().get(&client).and_then(|known| known.heard);
        heard.is_none_or(|heard| now.saturating_sub(heard) >= timeout)
    }

    /// Sessions of the map that are silent for `timeout`. Those never heard of count from the first sweep on:
    /// they may hold handles of the time before the takeover (R19).
    pub fn sweep(&self, map: &ClusterMap, now: Duration, timeout: Duration) -> Vec<ClientId> {
        let mut sessions = self.lock();
        sessions.retain(|client, _| map.session_is_live(*client));
        let clients = map.sessions.iter().filter(|(_, session)| !session.is_of_rank());
        let mut silent = Vec::new();
        for (client, _) in clients {
            let heard = *sessions.entry(*client).or_default().heard.get_or_insert(now);
            if now.saturating_sub(heard) >= timeout {
                silent.push(*client);
            }
        }
        silent
    }
}

/// Clients that may have handles of a subtree that is being opened (R19): those that are older than its epoch, for
/// earlier owners served nobody any more when it began.
pub(crate) fn awaited(map: &ClusterMap, subtree: SubtreeId) -> impl Iterator<Item = ClientId> {
    let since = map.subtrees.get(&subtree).map_or(Epoch(0), |subtree| subtree.since);
    let clients = map.sessions.iter().filter(|(_, session)| !session.is_of_rank());
    let older = clients.filter(move |(_, session)| since == Epoch(0) || session.since < since);
    older.map(|(client, _)| *client)
}

pub(crate) fn stale_session() -> Error {
    Error::new(Reason::StaleSession, "this session has ended or was evicted: connect anew")
}

#[cfg(test)]
mod tests;
