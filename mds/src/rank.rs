//! The life of a rank: it registers, keeps its lease, takes its subtrees over
//! and loses them, and ends.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::Addr;
use pando_cluster_map::{ClusterMap, settings};
use pando_mds_core::api::CacheUsage;
use pando_mon_client::{Daemon, MapWatch, MonClient};
use pando_osd_client::{ObjectClient, RecordClient};
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::OperationResult;
use pando_proto::mon::RegisterRankRequest;
use pando_proto::{ClientId, Error, Rank, Reason};
use pando_rpc::{Clock, Env, Lease, Listener, Shutdown};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Config;
use crate::io::{Outside, RankMons};
use crate::session::{RANK_SESSION, Sessions};
use crate::subtree::{self, Ended, MapChanged, Stop, Subtree, error_result, redirect};
use crate::takeover::{Ownership, take_over};

/// Wait before a takeover is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// How often silent sessions are looked for.
const SWEEP: Duration = Duration::from_secs(2);
/// Calls to the mons on the way out.
const FAREWELL: Duration = Duration::from_secs(1);

/// A running rank.
pub struct Handle {
    address: SocketAddr,
    usage: watch::Receiver<CacheUsage>,
    tasks: Vec<JoinHandle<()>>,
}

impl Handle {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its cache holds (I8).
    pub fn cache_usage(&self) -> CacheUsage {
        *self.usage.borrow()
    }

    /// Ends when the rank was asked to stop and everything of it is down.
    pub async fn join(self) {
        for task in self.tasks {
            let _ = task.await;
        }
    }
}

/// What a rank is made of; tests put their own in.
pub struct Parts {
    /// Which rank.
    pub rank: Rank,
    /// Its incarnation, from the mon.
    pub incarnation: u64,
    /// The newest map.
    pub map: MapWatch,
    /// Its lease.
    pub lease: Arc<Lease>,
    /// Pools and mons.
    pub outside: Outside,
    /// Memory for the cache, in bytes.
    pub cache_bytes: u64,
}

/// What the services of a rank share.
pub(crate) struct Shared {
    pub rank: Rank,
    pub incarnation: u64,
    pub map: MapWatch,
    pub clock: Arc<dyn Clock>,
    pub sessions: Sessions,
    /// Replies that wait to be sent, on all connections.
    pub queued_bytes: Arc<AtomicUsize>,
    pub shutdown: Shutdown,
    /// How often the subtree was opened anew by this process; written under the lock of `subtree`.
    pub reopened: watch::Sender<u64>,
    subtree: Mutex<Option<Addr<Subtree>>>,
}

/// In the incarnation that a client is told, the times that the subtree was opened anew stand above these bits.
const REOPENED_SHIFT: u32 = 40;

impl Shared {
    /// The actor of the root subtree, if this rank serves it now.
    pub fn subtree(&self) -> Option<Addr<Subtree>> {
        self.lock().clone()
    }

    /// The same for a stream of the time when the subtree had been opened anew so often.
    ///
    /// Errors: it was opened again since, and knows nothing of that stream's handles.
    pub fn subtree_for(&self, reopened: u64) -> Result<Option<Addr<Subtree>>, Error> {
        let subtree = self.lock();
        if *self.reopened.borrow() != reopened {
            return Err(Error::new(Reason::Unavailable, "the subtree was opened anew: connect again"));
        }
        Ok(subtree.clone())
    }

    /// What clients are told as the incarnation: a number that changes whenever handles are lost.
    pub fn incarnation_for(&self, reopened: u64) -> u64 {
        self.incarnation | (reopened << REOPENED_SHIFT)
    }

    /// An actor serves from now on. The handles of one before it are lost: streams of that time end, so that their
    /// clients come again and reclaim (R19).
    fn serve_by(&self, address: &Addr<Subtree>, first: bool) {
        let mut subtree = self.lock();
        *subtree = Some(address.clone());
        if !first {
            self.reopened.send_modify(|reopened| *reopened += 1);
        }
    }

    /// What to answer while it does not: who does, as far as the map knows, or when to come again.
    pub fn absent(&self) -> OperationResult {
        redirect(&self.map.current(), self.rank).unwrap_or_else(|| {
            let mut error = Error::new(Reason::Unavailable, "this rank is taking the subtree over").retry_after(RETRY);
            error.rank = Some(self.rank.0);
            error_result(&error)
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Addr<Subtree>>> {
        // Nothing that can panic runs under the lock.
        self.subtree.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Starts a rank and returns once it answers; the subtree is taken over from then on.
///
/// Must be called inside a `tokio::task::LocalSet` of a current-thread runtime that lives as long as the rank.
///
/// Errors: no mon answers, another process holds the rank, the address is taken.
pub async fn start(config: Config, env: Env) -> Result<Handle, Error> {
    let rank = Rank(config.rank);
    let mons = MonClient::new(Arc::clone(&env.net), config.mons.clone())?;
    let listener = pando_rpc::bind(&env.net, config.listen).await.map_err(cannot_listen)?;
    let address = match config.advertise.as_str() {
        "" => listener.local.to_string(),
        advertised => advertised.to_owned(),
    };
    let request =
        RegisterRankRequest { cluster_id: Default::default(), rank: rank.0, boot_id: config.boot_id().into(), address };
    let registered = mons.register_rank(request).await?;
    let incarnation = registered.incarnation;
    let description = format!("{RANK_SESSION}{}", rank.0);
    let (session, map) = mons.register_client(&description).await?;
    let lease = Arc::new(Lease::new(Arc::clone(&env.clock)));
    mons.heartbeat(Daemon::Rank(rank), incarnation, Arc::clone(&lease), &env, Arc::new(|| (0, 0)));
    end_former_sessions(&mons, &map, session, &description).await?;
    let watch = mons.watch(map, env.shutdown.clone());
    let outside = Outside {
        records: Rc::new(RecordClient::new(Arc::clone(&env.net), watch.clone())),
        objects: Rc::new(ObjectClient::new(Arc::clone(&env.net), watch.clone(), session)),
        mons: Rc::new(RankMons { client: mons.clone(), rank, incarnation }),
    };
    let parts =
        Parts { rank, incarnation, map: watch, lease: Arc::clone(&lease), outside, cache_bytes: config.cache_bytes };
    let mut handle = serve(parts, listener, env.clone()).await;
    let shutdown = env.shutdown.clone();
    handle.tasks.push(tokio::task::spawn_local(async move {
        shutdown.stopped().await;
        lease.give_up();
        let farewell = async {
            let _ = mons.release_lease(Daemon::Rank(rank), incarnation).await;
            let _ = mons.end_session(session, false).await;
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }));
    Ok(handle)
}

/// The sessions of this rank's earlier processes end: what they may still have under way is refused (R22).
async fn end_former_sessions(
    mons: &MonClient,
    map: &ClusterMap,
    own: ClientId,
    description: &str,
) -> Result<(), Error> {
    for (client, session) in &map.sessions {
        if *client != own && session.description == description {
            mons.end_session(*client, true).await?;
        }
    }
    Ok(())
}

/// Serves with given parts on a bound listener; see [`start`] for where it may be called.
pub async fn serve(parts: Parts, listener: Listener, env: Env) -> Handle {
    let address = listener.local;
    let shared = Arc::new(Shared {
        rank: parts.rank,
        incarnation: parts.incarnation,
        map: parts.map.clone(),
        clock: Arc::clone(&env.clock),
        sessions: Sessions::default(),
        queued_bytes: Arc::default(),
        shutdown: env.shutdown.clone(),
        reopened: watch::Sender::new(0),
        subtree: Mutex::new(None),
    });
    let (sender, usage) = watch::channel(CacheUsage::default());
    let routes = pando_rpc::standard_routes("pando.mds.v1").await;
    let routes = routes.add_service(crate::stream::service(&shared)).add_service(crate::unary::service(&shared));
    let shutdown = env.shutdown.clone();
    let serving = tokio::task::spawn_local(async move {
        if let Err(error) = pando_rpc::serve(listener, routes, shutdown).await {
            tracing::error!(%error, "the server ended");
        }
    });
    let sweeping = tokio::task::spawn_local(sweep(Arc::clone(&shared), parts.outside.clone()));
    let owning = tokio::task::spawn_local(own(shared, parts, sender));
    Handle { address, usage, tasks: vec![serving, sweeping, owning] }
}

/// Takes the subtree over whenever the map says that it is ours, until the rank stops.
async fn own(shared: Arc<Shared>, parts: Parts, usage: watch::Sender<CacheUsage>) {
    let mut map = parts.map.clone();
    let mut before: Option<(Ownership, Ended)> = None;
    while !shared.shutdown.is_stopping() {
        let current = map.current();
        let owned = ownership(&current, parts.rank, parts.incarnation).filter(|_| parts.lease.is_valid());
        let Some(own) = owned else {
            tokio::select! {
                _ = map.changed() => {}
                () = tokio::time::sleep(RETRY) => {}
                () = shared.shutdown.stopped() => return,
            }
            continue;
        };
        // Numbers of batches are not used twice in an epoch, not even those that the pool refused.
        let next_batch = before.filter(|(former, _)| *former == own).map_or(0, |(_, ended)| ended.next_batch);
        let records = Rc::clone(&parts.outside.records);
        let taking = take_over(records, own, &current, shared.clock.wall_nanos(), next_batch);
        let opened = tokio::select! {
            opened = taking => opened,
            () = superseded(parts.map.clone(), &parts, own) => continue,
            () = shared.shutdown.stopped() => return,
        };
        match opened {
            Ok(opened) => {
                tracing::info!(subtree = %own.subtree, epoch = %own.epoch, shards = opened.listed.len(), "a subtree is served");
                let launch = subtree::Parts {
                    own,
                    rank: parts.rank,
                    outside: parts.outside.clone(),
                    clock: Arc::clone(&shared.clock),
                    lease: Arc::clone(&parts.lease),
                    // The sessions of this map were known at the takeover (R19); newer maps follow at once.
                    map: Arc::clone(&current),
                    cache_bytes: parts.cache_bytes,
                    usage: usage.clone(),
                };
                let (address, ended) = Subtree::launch(launch, opened);
                shared.serve_by(&address, before.is_none());
                let ended = attend(&shared, &parts, own, &address, ended).await;
                before = Some((own, ended.unwrap_or(Ended { next_batch })));
                *shared.lock() = None;
            }
            Err(error) => {
                tracing::warn!(subtree = %own.subtree, epoch = %own.epoch, %error, "taking over failed; it is tried again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// What the map says this incarnation owns.
fn ownership(map: &ClusterMap, rank: Rank, incarnation: u64) -> Option<Ownership> {
    let ours = map.ranks.get(&rank).is_some_and(|info| info.incarnation == incarnation);
    let root = map.root_subtree().filter(|root| ours && root.owner == rank)?;
    Some(Ownership { subtree: ROOT_SUBTREE, epoch: root.epoch, root: root.root })
}

/// Ends when the map gives the subtree to somebody else, or to us anew.
async fn superseded(mut map: MapWatch, parts: &Parts, own: Ownership) {
    while ownership(&map.current(), parts.rank, parts.incarnation) == Some(own) {
        map.changed().await;
    }
}

/// Hands maps to the actor until it ends, or has to.
async fn attend(
    shared: &Shared,
    parts: &Parts,
    own: Ownership,
    address: &Addr<Subtree>,
    mut ended: tokio::sync::oneshot::Receiver<Ended>,
) -> Option<Ended> {
    let mut map = parts.map.clone();
    loop {
        let current = map.current();
        let reason = if shared.shutdown.is_stopping() {
            Some(Error::new(Reason::Unavailable, "this rank is stopping"))
        } else if ownership(&current, parts.rank, parts.incarnation) != Some(own) {
            Some(Error::new(Reason::NotOwner, "the subtree has another owner or epoch").with_epoch(own.epoch.0))
        } else {
            None
        };
        if let Some(reason) = reason {
            // The newer map says where to redirect what waits.
            let _ = address.send(MapChanged(current)).await;
            let _ = address.send(Stop(reason)).await;
            return ended.await.ok();
        }
        let _ = address.send(MapChanged(current)).await;
        tokio::select! {
            _ = map.changed() => {}
            () = shared.shutdown.stopped() => {}
            ended = &mut ended => return ended.ok(),
        }
    }
}

/// Evicts sessions that are silent for too long (R9); the map then tells everyone.
async fn sweep(shared: Arc<Shared>, outside: Outside) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(SWEEP) => {}
            () = shared.shutdown.stopped() => return,
        }
        if shared.lock().is_none() {
            continue;
        }
        let map = shared.map.current();
        let timeout = Duration::from_millis(map.setting_u64(settings::SESSION_TIMEOUT_MILLIS));
        for client in shared.sessions.sweep(&map, shared.clock.boottime(), timeout) {
            tracing::info!(%client, "a silent session is evicted");
            if let Err(error) = outside.mons.evict(client).await {
                tracing::warn!(%client, %error, "the mons did not evict a silent session; it is tried again");
            }
        }
    }
}

fn cannot_listen(error: std::io::Error) -> Error {
    Error::new(Reason::InvalidRequest, error.to_string())
}
