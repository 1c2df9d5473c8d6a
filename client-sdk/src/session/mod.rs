//! A client's relation to the ranks: numbers, streams, open handles.

mod link;
mod outgoing;
mod ticket;
mod window;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pando_mon_client::{MapWatch, MonClient};
use pando_osd_client::ObjectClient;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::{Operation, ReclaimRequest, ReclaimedHandle};
use pando_proto::{ClientId, Error, Rank, Reason};
use pando_rpc::{Clock, Net, Shutdown};

use link::{Link, Reply};
use outgoing::Message;
pub(crate) use ticket::Answered;
use ticket::Ticket;
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
    next_handle: AtomicU64,
    /// Why the session is over, if the cluster ended it.
    ended: OnceLock<Error>,
}

/// Handles that a rank's next process has to hear of (R19).
#[derive(Default)]
struct Handles {
    open: BTreeMap<u64, (Rank, ReclaimedHandle)>,
    incarnations: BTreeMap<Rank, u64>,
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
            objects: ObjectClient::new(Arc::clone(&net), map.clone(), client),
            net,
            clock,
            map,
            mon,
            shutdown,
            window: Arc::new(Window::new()),
            links: Mutex::default(),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            ended: OnceLock::new(),
        }
    }

    /// Runs one operation until its outcome is known or `limit` has passed.
    pub async fn run(self: &Arc<Self>, operation: Operation, limit: Duration) -> crate::Result<Answered> {
        let mut ticket = Ticket::new(Arc::clone(self), operation);
        let outcome = tokio::time::timeout(limit, ticket.drive()).await;
        outcome.unwrap_or_else(|_| Err(ticket.timed_out(limit)))
    }

    /// Has the rank of the root send `payload` back, without any work.
    pub async fn echo(self: &Arc<Self>, payload: Bytes, limit: Duration) -> crate::Result<Bytes> {
        let echoing = async {
            let number = self.window.take().await;
            let (_, live) = self.live_of_root().await?;
            match live.pipe.call(number.id(), Message::Echo(payload)).await? {
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

    /// Remembers an open handle for R19. `answered` tells which process of the
    /// rank knows it: if another one runs by now, that one is told.
    pub async fn keep_handle(self: &Arc<Self>, handle: ReclaimedHandle, answered: &Answered) -> crate::Result<()> {
        let current = {
            let mut handles = lock(&self.handles);
            handles.open.insert(handle.handle, (answered.rank, handle));
            handles.incarnations.get(&answered.rank).copied()
        };
        let known = answered.first_incarnation == Some(answered.incarnation) && current == Some(answered.incarnation);
        if known {
            return Ok(());
        }
        let link = self.link(answered.rank);
        let live = link.live().await?;
        // Nobody waits for this one but its caller, so it can wait for room.
        let number = self.window.take().await;
        let lost = self.reclaim(&live, number, ReclaimRequest { handles: vec![handle] }).await?;
        if lost.contains(&handle.handle) {
            self.forget_handle(handle.handle);
            return Err(crate::Error::posix(pando_proto::Errno::ESTALE));
        }
        Ok(())
    }

    pub fn forget_handle(&self, handle: u64) {
        lock(&self.handles).open.remove(&handle);
    }

    fn open_handles(&self, rank: Rank) -> Vec<ReclaimedHandle> {
        let handles = lock(&self.handles);
        handles.open.values().filter(|(owner, _)| *owner == rank).map(|(_, handle)| *handle).collect()
    }

    fn set_incarnation(&self, rank: Rank, incarnation: u64) {
        lock(&self.handles).incarnations.insert(rank, incarnation);
    }

    fn link(self: &Arc<Self>, rank: Rank) -> Arc<Link> {
        let mut links = lock(&self.links);
        Arc::clone(links.entry(rank).or_insert_with(|| Link::start(Arc::clone(self), rank)))
    }

    /// Id and epoch of the root subtree; requests name them (R10, R16).
    fn root_subtree(&self) -> (u64, u64) {
        let map = self.map.current();
        (ROOT_SUBTREE.0, map.root_subtree().map_or(0, |subtree| subtree.epoch.0))
    }

    async fn live_of_root(self: &Arc<Self>) -> Result<(Rank, link::Live), Error> {
        if self.shutdown.is_stopping() {
            return Err(self.over());
        }
        // The epoch in the map may be behind, the rank may just be restarting: the link finds out.
        let owner = self.map.current().root_subtree().map(|subtree| subtree.owner);
        let Some(rank) = owner else {
            self.map_changed_within(Duration::from_millis(200)).await;
            return Err(Error::new(Reason::Unavailable, "no MDS serves the root yet"));
        };
        let link = self.link(rank);
        tokio::select! {
            biased;
            live = link.live() => Ok((rank, live?)),
            // It may never be reached any more.
            () = self.root_moved_from(rank) => {
                Err(Error::new(Reason::NotOwner, format!("{rank} does not own the subtree any more")))
            }
        }
    }

    /// Ends when the map shows another owner of the root.
    async fn root_moved_from(&self, rank: Rank) {
        let mut map = self.map.clone();
        while map.current().root_subtree().is_some_and(|subtree| subtree.owner == rank) {
            map.changed().await;
        }
    }

    /// Ends when the map shows `rank` as the owner of the root.
    async fn root_moved_to(&self, rank: Rank) {
        let mut map = self.map.clone();
        while map.current().root_subtree().is_none_or(|subtree| subtree.owner != rank) {
            map.changed().await;
        }
    }

    /// Keeps a stream to the owner of the root open from now on, also while nobody calls:
    /// its keep-alives keep the session alive.
    pub fn stay(self: &Arc<Self>) {
        let core = Arc::clone(self);
        tokio::spawn(async move {
            let mut map = core.map.clone();
            let staying = async {
                loop {
                    if let Some(subtree) = map.current().root_subtree() {
                        core.link(subtree.owner);
                    }
                    map.changed().await;
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
        self.ended.get().cloned().unwrap_or_else(closed)
    }

    /// Waits for a newer map, but not longer than this.
    async fn map_changed_within(&self, limit: Duration) {
        let mut map = self.map.clone();
        let known = map.current().epoch;
        // A clone may first be handed a map that is known already.
        let newer = async { while map.changed().await.epoch <= known {} };
        let _ = tokio::time::timeout(limit, newer).await;
    }

    /// Why the rank of the root cannot be reached at the moment.
    fn trouble(&self) -> Option<Error> {
        let map = self.map.current();
        let Some(subtree) = map.root_subtree() else {
            return Some(Error::new(Reason::Unavailable, "no MDS serves the root yet"));
        };
        lock(&self.links).get(&subtree.owner).and_then(|link| link.last_error())
    }
}
