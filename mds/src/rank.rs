//! The life of a rank: it registers, keeps its lease, takes its subtrees over
//! and loses them, and ends.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use actix::Addr;
use pando_cluster_map::{ClusterMap, settings};
use pando_mds_core::api::CacheUsage;
use pando_mon_client::{Daemon, MapWatch, MonClient};
use pando_osd_client::{ObjectClient, RecordClient};
use pando_proto::mds::OperationResult;
use pando_proto::mon::RegisterRankRequest;
use pando_proto::{ClientId, Error, Rank, Reason, SubtreeId};
use pando_rpc::{Clock, Env, Lease, Listener, Shutdown};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::service::interceptor::InterceptedService;

use crate::Config;
use crate::asking::follow_hints;
use crate::io::{Outside, RankMons, RankPeers};
use crate::load::Loads;
use crate::lobby::{Lobby, PATIENCE};
use crate::memory::Memory;
use crate::moving::Imports;
use crate::owner::{Control, own_all, ownership};
use crate::session::Sessions;
use crate::spread::spread_all;
use crate::stream::refuse;
use crate::subtree::{MapChanged, Submit, Subtree, error_result, redirect};

/// When to come again while a subtree is served nowhere.
const RETRY: Duration = Duration::from_millis(100);
/// How often silent sessions are looked for.
const SWEEP: Duration = Duration::from_secs(2);
/// Calls to the mons on the way out.
const FAREWELL: Duration = Duration::from_secs(1);

/// A running rank.
pub struct Handle {
    address: SocketAddr,
    usage: watch::Receiver<CacheUsage>,
    broken: Arc<OnceLock<Error>>,
    sessions: Sessions,
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

    /// In how many of its subtrees requests of a session are remembered (R9): none where it has all answers.
    pub fn remembered_in(&self, client: ClientId) -> usize {
        self.sessions.tables_of(client)
    }

    /// Ends when the rank was asked to stop and everything of it is down.
    pub async fn join(self) {
        let _ = self.outcome().await;
    }

    /// The same.
    ///
    /// Errors: it stopped by itself, for something in it is broken; another incarnation is needed.
    pub async fn outcome(self) -> Result<(), Error> {
        for task in self.tasks {
            let _ = task.await;
        }
        self.broken.get().cloned().map_or(Ok(()), Err)
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
    /// Told with the heartbeats.
    pub loads: Arc<Loads>,
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
    /// Memory of all caches, for imports.
    pub cache_bytes: u64,
    pub imports: Imports,
    /// Why it stops by itself.
    broken: Arc<OnceLock<Error>>,
    lobby: Lobby,
    served: Mutex<BTreeMap<SubtreeId, Served>>,
}

/// A subtree that this rank serves.
#[derive(Clone)]
pub(crate) struct Served {
    pub address: Addr<Subtree>,
    /// To the task that looks after it.
    pub control: mpsc::Sender<Control>,
}

impl Shared {
    /// Something here cannot go on, and must not be tried again by this process: the rank stops, and others take over
    /// what it had.
    pub fn break_down(&self, message: String) {
        tracing::error!(rank = %self.rank, incarnation = self.incarnation, "{message}: the rank stops");
        self.broken.get_or_init(|| Error::new(Reason::Internal, message));
        self.shutdown.stop();
    }

    /// A subtree, if this rank serves it now; or what it was merged into, which answers for it (R10).
    pub fn served(&self, subtree: SubtreeId) -> Option<Served> {
        if let Some(served) = self.lock().get(&subtree) {
            return Some(served.clone());
        }
        let successor = self.map.current().successor(subtree)?;
        self.lock().get(&successor).cloned()
    }

    /// All that it serves.
    pub fn all_served(&self) -> Vec<(SubtreeId, Served)> {
        self.lock().iter().map(|(subtree, served)| (*subtree, served.clone())).collect()
    }

    /// How many requests wait until a subtree is opened.
    pub fn crowd(&self, subtree: SubtreeId) -> usize {
        self.lobby.crowd(subtree)
    }

    pub fn serves_nothing(&self) -> bool {
        self.lock().is_empty()
    }

    /// From now on its requests go there; `None`: nowhere.
    #[expect(clippy::disallowed_methods, reason = "no more than the lobby holds: it need not fit into the mailbox")]
    pub(crate) fn serve(&self, subtree: SubtreeId, served: Option<Served>) {
        let Some(served) = served else {
            self.lock().remove(&subtree);
            return;
        };
        let address = served.address.clone();
        self.lock().insert(subtree, served);
        // R14: they came by maps that may be newer than the one it was opened with.
        address.do_send(MapChanged(self.map.current()));
        self.lobby.leave(subtree).into_iter().for_each(|submit| address.do_send(submit));
    }

    /// Requests for a subtree that is served by nobody here. If it is about to be, they wait for that.
    pub(crate) fn submit_absent(self: &Arc<Self>, subtree: SubtreeId, submit: Submit) {
        let map = self.map.current();
        let successor = map.successor(subtree).unwrap_or(subtree);
        let ours = ownership(&map, successor, self.rank, self.incarnation).is_some();
        if !ours || self.shutdown.is_stopping() {
            return self.refuse(subtree, submit);
        }
        match self.lobby.enter(successor, submit) {
            Ok(None) => {}
            Ok(Some(number)) => {
                let shared = Arc::clone(self);
                tokio::spawn(async move {
                    tokio::time::sleep(PATIENCE).await;
                    let waiting = shared.lobby.give_up(successor, number);
                    waiting.into_iter().for_each(|submit| shared.refuse(successor, submit));
                });
            }
            Err(submit) => self.refuse(subtree, submit),
        }
    }

    /// It is not going to be served here: nobody waits for it any more.
    pub(crate) fn turn_out(&self, subtree: SubtreeId) {
        self.lobby.leave(subtree).into_iter().for_each(|submit| self.refuse(subtree, submit));
    }

    fn refuse(&self, subtree: SubtreeId, submit: Submit) {
        if !submit.requests.is_empty() {
            refuse(&submit.connection, &submit.requests, &self.absent(subtree));
        }
    }

    /// What to answer while this rank does not serve a subtree: who does, as far as the map knows, or when to come
    /// again.
    pub fn absent(&self, subtree: SubtreeId) -> OperationResult {
        let map = self.map.current();
        redirect(&map, subtree, self.rank).unwrap_or_else(|| {
            let mut error = match map.subtrees.get(&subtree) {
                Some(found) if found.owner == self.rank => {
                    Error::new(Reason::Unavailable, "this rank is taking the subtree over").retry_after(RETRY)
                }
                Some(found) => {
                    let message = format!("{subtree} waits for {}, which is down", found.owner);
                    Error::new(Reason::Unavailable, message).retry_after(RETRY)
                }
                None => Error::new(Reason::NotOwner, format!("there is no {subtree} in map {}", map.epoch))
                    .retry_after(RETRY),
            };
            error.rank = Some(self.rank.0);
            error_result(&error)
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<SubtreeId, Served>> {
        // Nothing that can panic runs under the lock.
        self.served.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Starts a rank and returns once it answers; the subtree is taken over from then on.
///
/// Must be called inside a `tokio::task::LocalSet` of a current-thread runtime that lives as long as the rank.
///
/// Errors: no mon answers, another process holds the rank, the address is taken.
pub async fn start(config: Config, env: Env) -> Result<Handle, Error> {
    start_with(config, env, |outside| outside).await
}

/// The same, with something between the rank and what it needs from outside: a simulation repeats requests there.
///
/// Errors: as [`start`].
pub async fn start_with(config: Config, env: Env, between: impl FnOnce(Outside) -> Outside) -> Result<Handle, Error> {
    let rank = Rank(config.rank);
    let mons = MonClient::new(Arc::clone(&env.net), config.mons.clone())?;
    let listener = pando_rpc::bind(&env.net, config.listen).await.map_err(cannot_listen)?;
    let address = match config.advertise.as_str() {
        "" => listener.local.to_string(),
        advertised => advertised.to_owned(),
    };
    let (cluster_id, boot_id) = (config.cluster()?, config.boot_id().into());
    let request = RegisterRankRequest { cluster_id, rank: rank.0, boot_id, address };
    let registered = mons.register_rank(request).await?;
    let incarnation = registered.incarnation;
    let (session, map) = mons.register_rank_session(rank, incarnation).await?;
    let lease = Arc::new(Lease::new(Arc::clone(&env.clock)));
    // In a simulated run no real time may show.
    let runtime = config.boot_seed.is_none().then(tokio::runtime::Handle::current);
    let loads = Arc::new(Loads::new(Arc::clone(&env.clock), runtime));
    let (hinted, hints) = mpsc::unbounded_channel();
    let told = Arc::clone(&loads);
    mons.heartbeat_rank(
        rank,
        incarnation,
        Arc::clone(&lease),
        &env,
        Arc::new(move || told.report()),
        // Nobody listens only at the very end.
        Arc::new(move |splits, merges| drop(hinted.send((splits, merges)))),
    );
    end_former_sessions(&mons, &map, session, rank).await?;
    let watch = mons.watch(map, env.shutdown.clone());
    let outside = Outside {
        records: Rc::new(RecordClient::new(Arc::clone(&env.net), watch.clone(), env.shutdown.clone())),
        objects: Rc::new(ObjectClient::new(Arc::clone(&env.net), watch.clone(), session, env.shutdown.clone())),
        mons: Rc::new(RankMons { client: mons.clone(), rank, incarnation }),
        peers: Rc::new(RankPeers::new(Arc::clone(&env.net), &watch.current().cluster_id)),
    };
    let parts = Parts {
        rank,
        incarnation,
        map: watch,
        lease: Arc::clone(&lease),
        outside: between(outside),
        cache_bytes: config.cache_bytes,
        loads,
    };
    let (mut handle, shared) = serve_shared(parts, listener, env.clone()).await;
    handle.tasks.push(spawn_watched(&shared, "what follows hints", follow_hints(Arc::clone(&shared), hints)));
    handle.tasks.push(spawn_watched(&shared, "what spreads directories", spread_all(Arc::clone(&shared))));
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
async fn end_former_sessions(mons: &MonClient, map: &ClusterMap, own: ClientId, rank: Rank) -> Result<(), Error> {
    for (client, session) in &map.sessions {
        if *client != own && session.rank == Some(rank) {
            mons.end_session(*client, true).await?;
        }
    }
    Ok(())
}

/// Serves with given parts on a bound listener; see [`start`] for where it may be called.
pub async fn serve(parts: Parts, listener: Listener, env: Env) -> Handle {
    serve_shared(parts, listener, env).await.0
}

async fn serve_shared(parts: Parts, listener: Listener, env: Env) -> (Handle, Arc<Shared>) {
    let address = listener.local;
    let shared = Arc::new(Shared {
        rank: parts.rank,
        incarnation: parts.incarnation,
        map: parts.map.clone(),
        clock: Arc::clone(&env.clock),
        sessions: Sessions::default(),
        queued_bytes: Arc::default(),
        shutdown: env.shutdown.clone(),
        cache_bytes: parts.cache_bytes,
        imports: Imports::default(),
        broken: Arc::default(),
        lobby: Lobby::default(),
        served: Mutex::default(),
    });
    let (memory, usage) = Memory::new(parts.cache_bytes, shared.imports.bytes());
    let routes = pando_rpc::standard_routes("pando.mds.v1").await;
    let routes = routes
        .add_service(crate::stream::service(&shared))
        .add_service(InterceptedService::new(crate::unary::service(&shared), crate::stream::check_cluster(&shared)))
        .add_service(InterceptedService::new(
            crate::administration::service(&shared),
            crate::stream::check_cluster(&shared),
        ));
    let shutdown = env.shutdown.clone();
    let serving = spawn_watched(&shared, "its server", async move {
        if let Err(error) = pando_rpc::serve(listener, routes, shutdown).await {
            tracing::error!(%error, "the server ended");
        }
    });
    let sweep = sweep(Arc::clone(&shared), parts.outside.clone(), Arc::clone(&parts.lease));
    let sweeping = spawn_watched(&shared, "what sweeps sessions", sweep);
    let owning = spawn_watched(&shared, "what owns subtrees", own_all(Arc::clone(&shared), parts, memory));
    let broken = Arc::clone(&shared.broken);
    let sessions = shared.sessions.clone();
    (Handle { address, usage, broken, sessions, tasks: vec![serving, sweeping, owning] }, shared)
}

/// A rank of which a part is missing does not go on.
fn spawn_watched(
    shared: &Arc<Shared>,
    what: &'static str,
    work: impl Future<Output = ()> + 'static,
) -> tokio::task::JoinHandle<()> {
    let shared = Arc::clone(shared);
    tokio::task::spawn_local(async move {
        if let Err(error) = tokio::task::spawn_local(work).await
            && error.is_panic()
        {
            shared.break_down(format!("{what} has panicked"));
        }
    })
}

/// Evicts sessions that are silent for too long (R9); the map then tells everyone. A rank that was cut off, or served
/// nothing, has heard nobody: silence counts from the moment when it is back.
async fn sweep(shared: Arc<Shared>, outside: Outside, lease: Arc<Lease>) {
    let mut deaf = true;
    loop {
        tokio::select! {
            () = tokio::time::sleep(SWEEP) => {}
            () = shared.shutdown.stopped() => return,
        }
        let map = shared.map.current();
        if !lease.is_valid() || shared.serves_nothing() {
            deaf = true;
            continue;
        }
        if std::mem::take(&mut deaf) {
            shared.sessions.forget_silence(shared.clock.boottime());
        }
        let timeout = Duration::from_millis(map.setting_u64(settings::SESSION_TIMEOUT_MILLIS));
        for client in shared.sessions.sweep(&map, shared.clock.boottime(), timeout) {
            let silent = shared.sessions.is_silent(client, shared.clock.boottime(), timeout);
            if !lease.is_valid() || !silent {
                continue;
            }
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
