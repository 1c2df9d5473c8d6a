//! A client's relation to the ranks: numbers, streams, open handles.

mod handles;
mod link;
mod outgoing;
mod place;
mod reclaim;
mod routes;
mod ticket;
mod window;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::Subtree;
use pando_mon_client::{MapWatch, MonClient};
use pando_osd_client::ObjectClient;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::Operation;
use pando_proto::{ClientId, Epoch, Error, Rank, Reason, SubtreeId};
use pando_rpc::{Clock, Net, Shutdown};
use tokio::sync::Notify;

use handles::{Handles, not_in_the_map};
use link::{Link, Live, Reply};
use outgoing::Message;
use routes::Routes;
use ticket::Ticket;
pub(crate) use ticket::{Answered, Found, To};
use window::Window;

/// What all clones of a client, and its background tasks, share.
pub(crate) struct Core {
    pub client: ClientId,
    pub net: Arc<dyn Net>,
    pub clock: Arc<dyn Clock>,
    pub map: MapWatch,
    pub objects: ObjectClient,
    /// Absent in tests without a mon.
    pub mon: Option<MonClient>,
    pub shutdown: Shutdown,
    window: Arc<Window>,
    links: Mutex<BTreeMap<Rank, Arc<Link>>>,
    handles: Mutex<Handles>,
    routes: Routes,
    /// A rank has said something that may call for reclaims.
    news: Notify,
    next_handle: AtomicU64,
    /// Why the session is over, if a rank said so.
    ended: OnceLock<Error>,
}

/// Who answers for a subtree.
struct Serving {
    /// The one that was asked for, or what it was merged into.
    subtree: SubtreeId,
    epoch: Epoch,
    rank: Rank,
    live: Live,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub fn new(
        client: ClientId,
        net: Arc<dyn Net>,
        clock: Arc<dyn Clock>,
        map: MapWatch,
        mon: Option<MonClient>,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            client,
            objects: ObjectClient::new(Arc::clone(&net), map.clone(), client, shutdown.clone()),
            net,
            clock,
            map,
            mon,
            shutdown,
            window: Arc::new(Window::new()),
            links: Mutex::default(),
            handles: Mutex::default(),
            routes: Routes::default(),
            news: Notify::new(),
            next_handle: AtomicU64::new(1),
            ended: OnceLock::new(),
        }
    }

    /// Runs one operation until its outcome is known or `limit` has passed.
    pub async fn run(self: &Arc<Self>, operation: Operation, to: To, limit: Duration) -> crate::Result<Answered> {
        let mut ticket = Ticket::new(Arc::clone(self), operation, to);
        let outcome = tokio::time::timeout(limit, ticket.drive()).await;
        outcome.unwrap_or_else(|_| Err(ticket.timed_out(limit)))
    }

    /// The same, and where the path ended.
    pub async fn run_and_find(self: &Arc<Self>, operation: Operation, limit: Duration) -> crate::Result<Found> {
        let mut ticket = Ticket::new(Arc::clone(self), operation, To::Path(ROOT_SUBTREE));
        let outcome = tokio::time::timeout(limit, ticket.drive()).await;
        let answered = outcome.unwrap_or_else(|_| Err(ticket.timed_out(limit)))?;
        Ok(ticket.found(answered))
    }

    /// Has a rank send `payload` back, without any work: that of the root, or any other.
    pub async fn echo(self: &Arc<Self>, payload: Bytes, limit: Duration) -> crate::Result<Bytes> {
        let echoing = async {
            let number = self.window.take().await;
            // The root subtree has the lowest number.
            let any = self.map.current().subtrees.keys().next().copied();
            let serving = self.serving(any.unwrap_or(ROOT_SUBTREE)).await?;
            match serving.live.pipe.call(number.id(), Message::Echo(payload)).await? {
                Reply::Echo(payload) => Ok(payload),
                Reply::Result(_) => Err(crate::Error::protocol("a result for an echo")),
            }
        };
        let outcome = tokio::time::timeout(limit, echoing).await;
        outcome.unwrap_or_else(|_| Err(crate::Error::timeout(limit, false, None)))
    }

    /// A number for a handle that is about to be opened.
    pub fn new_handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// How many reclaims have begun at a subtree.
    fn generation(&self, subtree: SubtreeId) -> u64 {
        lock(&self.handles).generation(subtree)
    }

    pub fn start_closing(&self, handle: u64) {
        lock(&self.handles).start_closing(handle);
    }

    pub fn forget_handle(&self, handle: u64) {
        lock(&self.handles).forget(handle);
    }

    /// A rank's process has welcomed us. If it is another than before, or has lost our handles, it is to hear of them.
    fn welcomed(&self, rank: Rank, incarnation: u64) {
        if lock(&self.handles).welcome(rank, incarnation) {
            self.news.notify_one();
        }
    }

    fn link(self: &Arc<Self>, rank: Rank) -> Arc<Link> {
        let mut links = lock(&self.links);
        Arc::clone(links.entry(rank).or_insert_with(|| Link::start(Arc::clone(self), rank)))
    }

    /// The rank that answers for a subtree, once there is a stream to it.
    ///
    /// Errors: Unavailable if the map shows neither the subtree nor what it was merged into.
    async fn serving(self: &Arc<Self>, subtree: SubtreeId) -> Result<Serving, Error> {
        if self.shutdown.is_stopping() {
            return Err(self.over());
        }
        let map = self.map.current();
        let found = map.successor(subtree).and_then(|id| map.subtrees.get(&id).map(|found| (id, found)));
        let Some((id, Subtree { owner: rank, epoch, .. })) = found else {
            drop(map);
            self.map_changed_within(Duration::from_millis(200)).await;
            return Err(not_in_the_map(subtree));
        };
        let (rank, epoch) = (*rank, *epoch);
        // The epoch in the map may be behind, the rank may just be restarting: the link finds out.
        let link = self.link(rank);
        let live = tokio::select! {
            biased;
            live = link.live() => live?,
            // It may never be reached any more.
            () = self.moved_from(id, rank) => return Err(not_its_owner(rank)),
        };
        Ok(Serving { subtree: id, epoch, rank, live })
    }

    /// Ends when the map shows another owner of a subtree, or none.
    async fn moved_from(&self, subtree: SubtreeId, rank: Rank) {
        let mut map = self.map.clone();
        while map.current().subtrees.get(&subtree).is_some_and(|subtree| subtree.owner == rank) {
            map.changed().await;
        }
    }

    /// From now on: keeps a stream to every rank that owns a subtree, also while nobody calls, for its keep-alives
    /// keep the session alive there; and answers changes of owners by reclaims (R19).
    pub fn stay(self: &Arc<Self>) {
        let core = Arc::clone(self);
        tokio::spawn(async move {
            let mut map = core.map.clone();
            let staying = async {
                loop {
                    let current = map.current();
                    for subtree in current.subtrees.values() {
                        if current.ranks.get(&subtree.owner).is_some_and(|rank| rank.up) {
                            core.link(subtree.owner);
                        }
                    }
                    drop(current);
                    core.reclaim_changed();
                    tokio::select! {
                        _ = map.changed() => {}
                        () = core.news.notified() => {}
                    }
                }
            };
            tokio::select! {
                () = core.shutdown.stopped() => {}
                () = staying => {}
            }
        });
    }

    /// The cluster has ended the session: every call fails from now on, also those that wait.
    fn end(&self, error: Error) {
        let _ = self.ended.set(error);
        self.shutdown.stop();
    }

    fn over(&self) -> Error {
        let closed = || Error::new(Reason::StaleSession, "the client is closed: connect again");
        self.ended.get().cloned().or_else(|| self.map.lost()).unwrap_or_else(closed)
    }

    /// Waits for a newer map, but not longer than this.
    async fn map_changed_within(&self, limit: Duration) {
        let mut map = self.map.clone();
        let known = map.current().epoch;
        // A clone may first be handed a map that is known already.
        let newer = async { while map.changed().await.epoch <= known {} };
        let _ = tokio::time::timeout(limit, newer).await;
    }

    /// Why the owner of a subtree cannot be reached at the moment.
    fn trouble(&self, subtree: SubtreeId) -> Option<Error> {
        let map = self.map.current();
        let Some(found) = map.successor(subtree).and_then(|id| map.subtrees.get(&id)) else {
            return Some(Error::new(Reason::Unavailable, format!("no MDS rank serves {subtree} yet")));
        };
        lock(&self.links).get(&found.owner).and_then(|link| link.last_error())
    }
}

fn not_its_owner(rank: Rank) -> Error {
    Error::new(Reason::NotOwner, format!("{rank} does not own the subtree any more"))
}
