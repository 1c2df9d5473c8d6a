//! Sessions as the rank sees them: who spoke when (R9, R19).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use pando_cluster_map::ClusterMap;
use pando_proto::mds::{EchoItem, OperationResult, Reply, ServerFrame};
use pando_proto::{ClientId, Epoch, Error, Reason, SubtreeId};
use pando_rpc::queue;
use tokio::sync::Notify;

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
}

impl Drop for Meter {
    fn drop(&mut self) {
        // What was never sent is gone with the stream.
        self.all.fetch_sub(*self.own.get_mut(), Ordering::Relaxed);
    }
}

/// What is known of one session.
#[derive(Default)]
struct Known {
    /// When it was last heard of.
    heard: Duration,
    /// Its latest stream.
    stream: Weak<Connection>,
}

/// When each session was last heard of, and its stream.
#[derive(Clone, Default)]
pub(crate) struct Sessions(Arc<Mutex<BTreeMap<ClientId, Known>>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClientId, Known>> {
        // Nothing that can panic runs under the lock.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn heard(&self, client: ClientId, now: Duration) {
        self.lock().entry(client).or_default().heard = now;
    }

    /// A stream begins: those before it end. The client may have given this one up and opened a later one, which is
    /// replaced then; that one ends as well, and the client comes again.
    pub fn attach(&self, connection: &Arc<Connection>, now: Duration) {
        let known = Known { heard: now, stream: Arc::downgrade(connection) };
        let before = self.lock().insert(connection.client, known);
        if let Some(before) = before.and_then(|known| known.stream.upgrade()) {
            before.replace();
        }
    }

    /// Nobody was silent so far: there was nobody to hear them.
    pub fn forget_silence(&self, now: Duration) {
        self.lock().values_mut().for_each(|known| known.heard = now);
    }

    pub fn is_silent(&self, client: ClientId, now: Duration, timeout: Duration) -> bool {
        self.lock().get(&client).is_none_or(|known| now.saturating_sub(known.heard) >= timeout)
    }

    /// Sessions of the map that are silent for `timeout`. Those never heard of count from the first sweep on:
    /// they may hold handles of the time before the takeover (R19).
    pub fn sweep(&self, map: &ClusterMap, now: Duration, timeout: Duration) -> Vec<ClientId> {
        let mut sessions = self.lock();
        sessions.retain(|client, _| map.session_is_live(*client));
        let clients = map.sessions.iter().filter(|(_, session)| !session.is_of_rank());
        let mut silent = Vec::new();
        for (client, _) in clients {
            let known = sessions.entry(*client).or_insert_with(|| Known { heard: now, ..Known::default() });
            if now.saturating_sub(known.heard) >= timeout {
                silent.push(*client);
            }
        }
        silent
    }
}

/// Clients that may have handles of a subtree that is being opened (R19): those that are older than its epoch, for
/// earlier owners served nobody any more when it began; and all if it was open here in this epoch before.
pub(crate) fn awaited(map: &ClusterMap, subtree: SubtreeId, again: bool) -> impl Iterator<Item = ClientId> {
    let since = map.subtrees.get(&subtree).map_or(Epoch(0), |subtree| subtree.since);
    let clients = map.sessions.iter().filter(|(_, session)| !session.is_of_rank());
    let older = clients.filter(move |(_, session)| again || since == Epoch(0) || session.since < since);
    older.map(|(client, _)| *client)
}

pub(crate) fn stale_session() -> Error {
    Error::new(Reason::StaleSession, "this session has ended or was evicted: connect anew")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_cluster_map::{Session, Subtree};
    use pando_proto::Rank;

    #[test]
    fn r19_only_those_are_awaited_who_may_have_met_an_earlier_owner() {
        let mut map = ClusterMap::default();
        for (client, born, rank) in [(1, 7, None), (2, 8, None), (3, 9, None), (4, 1, Some(Rank(0)))] {
            let session = Session { since: Epoch(born), rank, ..Session::default() };
            map.sessions.insert(ClientId(client), session);
        }
        map.subtrees.insert(SubtreeId(5), Subtree { since: Epoch(8), ..Subtree::default() });
        map.subtrees.insert(SubtreeId(6), Subtree::default());
        let of = |subtree, again| awaited(&map, SubtreeId(subtree), again).map(|client| client.0).collect::<Vec<_>>();
        assert_eq!(of(5, false), [1]);
        assert_eq!(of(5, true), [1, 2, 3], "opened again: the actor before it has met the young ones too");
        assert_eq!(of(6, false), [1, 2, 3], "of a map that does not say since when");
    }

    #[test]
    fn only_silent_clients_are_swept() {
        let sessions = Sessions::default();
        let mut map = ClusterMap::default();
        for (client, rank) in [(1, None), (2, None), (3, Some(Rank(0)))] {
            map.sessions.insert(ClientId(client), Session { rank, ..Session::default() });
        }
        let (at, timeout) = (Duration::from_secs, Duration::from_secs(10));
        assert_eq!(sessions.sweep(&map, at(0), timeout), []);
        sessions.heard(ClientId(2), at(5));
        assert_eq!(sessions.sweep(&map, at(10), timeout), [ClientId(1)]);
        assert_eq!(sessions.sweep(&map, at(15), timeout), [ClientId(1), ClientId(2)]);
    }
}
