//! The life of an OSD: opens its engine, registers, serves, gives its lease back.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_mon_client::{Daemon, MonClient};
use pando_proto::mon::RegisterOsdRequest;
use pando_proto::{Error, OsdId, Reason};
use pando_rpc::{Env, Lease};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::config::{Config, Storage};
use crate::engine::commit::StatsReader;
use crate::engine::{self, Directory, Engine, EngineError, GroupCommit, ReadPool};
use crate::links::Links;
use crate::pg::MapView;
use crate::pgs::{Osd, ROOM_KIB};
use crate::services;

/// How often the disk is asked for its space.
const USAGE_EVERY: Duration = Duration::from_secs(1);
/// How long giving the lease back may take.
const RELEASE: Duration = Duration::from_secs(2);

/// A running OSD.
pub struct Handle {
    address: SocketAddr,
    id: OsdId,
    failure: Arc<OnceLock<Error>>,
    commit_stats: StatsReader,
    stopped: JoinHandle<()>,
}

impl Handle {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its id in the map.
    pub fn id(&self) -> OsdId {
        self.id
    }

    /// Why it stopped by itself; empty if it did not. Lives on after [`join`](Self::join).
    pub fn failure(&self) -> Arc<OnceLock<Error>> {
        Arc::clone(&self.failure)
    }

    /// Its commits to the engine, for measurements.
    pub fn commit_stats(&self) -> StatsReader {
        self.commit_stats.clone()
    }

    /// Ends when the OSD has stopped: after `env.shutdown`, or after a failure of its disk.
    pub async fn join(self) {
        let _ = self.stopped.await;
    }
}

fn storage_error(error: EngineError) -> Error {
    let reason = match &error {
        EngineError::Directory(directory) => match directory {
            engine::DirectoryError::OtherCluster { .. } => Reason::WrongCluster,
            engine::DirectoryError::NewerFormat { .. } => Reason::NewerFormat,
            engine::DirectoryError::DamagedJournal { .. } => Reason::Corrupt,
            _ => Reason::Storage,
        },
        EngineError::Corrupt { .. } => Reason::Corrupt,
        EngineError::Full => Reason::NoSpace,
        EngineError::Invalid(_) => Reason::InvalidRequest,
        EngineError::Io(_) => Reason::Storage,
    };
    Error::new(reason, error.to_string())
}

fn open(storage: &Storage) -> Result<(Arc<dyn Engine>, Directory), Error> {
    match storage {
        Storage::Directory { path, engine, options } => engine::open(*engine, path, options).map_err(storage_error),
        Storage::Engine { engine, uuid } => Ok((Arc::clone(engine), Directory::in_memory_as(*uuid))),
    }
}

/// Space of the disk, as last seen.
#[derive(Default)]
struct Space {
    total: AtomicU64,
    used: AtomicU64,
}

/// Starts an OSD. It serves when this returns, and refuses requests until the mon has given it a lease.
///
/// # Errors
/// The data directory is not usable, the address is taken, or no mon answers.
pub async fn start(config: Config, env: Env) -> Result<Handle, Error> {
    let (engine, directory) = open(&config.storage)?;
    let listener = pando_rpc::bind(&env.net, config.listen)
        .await
        .map_err(|error| Error::new(Reason::Unavailable, error.to_string()))?;
    let address = listener.local;
    let commits = if config.inline_io {
        GroupCommit::inline(Arc::clone(&engine), config.inline_sync)
    } else {
        GroupCommit::threaded(Arc::clone(&engine), engine::commit::Limits::default()).map_err(storage_error)?
    };
    let commit_stats = commits.stats_reader();
    let reads = if config.inline_io {
        ReadPool::inline(Arc::clone(&engine))
    } else {
        ReadPool::threaded(&engine, config.read_threads).map_err(storage_error)?
    };
    let usage = engine.usage().map_err(storage_error)?;
    let space = Arc::new(Space::default());
    space.total.store(usage.total_bytes, Ordering::Relaxed);
    space.used.store(usage.used_bytes, Ordering::Relaxed);

    let mon = MonClient::new(Arc::clone(&env.net), config.mons.clone())?;
    let advertised = config.advertise.clone().unwrap_or_else(|| address.to_string());
    let registered = mon.register_osd(registration(&config, &directory, advertised, usage.total_bytes)).await?;
    bind_to_cluster(&directory, &registered.cluster_id)?;
    let map = registered.map.as_ref().ok_or_else(|| Error::new(Reason::Internal, "the mon sent no map"))?;
    let map = Arc::new(ClusterMap::from_proto(map)?);
    let me = OsdId(registered.osd_id);
    let lease = Arc::new(Lease::new(Arc::clone(&env.clock)));

    let osd = Arc::new(Osd {
        me,
        commits,
        reads,
        lease: Arc::clone(&lease),
        full: Arc::new(AtomicBool::new(false)),
        map: mon.watch(Arc::clone(&map), env.shutdown.clone()),
        mon: mon.clone(),
        links: Links::new(Arc::clone(&env.net)),
        shutdown: env.shutdown.clone(),
        header_cache: config.header_cache,
        room: Arc::new(Semaphore::new(ROOM_KIB)),
        failure: Arc::default(),
        pgs: dashmap::DashMap::default(),
        view: Mutex::new(MapView::new(Arc::clone(&map))),
    });
    let stored = osd.reads.run(|engine| engine.pgs()).await.map_err(storage_error)?;
    // Also those that have no place here any more: what is left of them is to go.
    stored.into_iter().for_each(|pg| drop(osd.open(pg)));
    osd.map_changed(MapView::new(map)).await;
    let told = Arc::clone(&space);
    let usage = move || (told.total.load(Ordering::Relaxed), told.used.load(Ordering::Relaxed));
    mon.heartbeat(Daemon::Osd(me), registered.incarnation, lease, &env, Arc::new(usage));

    let routes = services::routes(&osd).await;
    let failure = Arc::clone(&osd.failure);
    let full_ratio = config.full_ratio_percent;
    let stopped = tokio::spawn(async move {
        let serving = tokio::spawn(pando_rpc::serve(listener, routes, env.shutdown.clone()));
        let following = tokio::spawn(follow_map(Arc::clone(&osd)));
        let watching = tokio::spawn(watch_space(Arc::clone(&osd), space, full_ratio));
        env.shutdown.stopped().await;
        // Refuse everything from here on, before anybody else may be told that the lease is free (R13).
        osd.lease.give_up();
        let release = osd.mon.release_lease(Daemon::Osd(osd.me), registered.incarnation);
        if let Ok(Err(error)) = tokio::time::timeout(RELEASE, release).await {
            tracing::debug!(%error, "the lease was not given back: the mon waits for its end");
        }
        osd.links.close();
        for task in [following, watching] {
            let _ = task.await;
        }
        if let Ok(Err(error)) = serving.await {
            tracing::warn!(%error, "the listener failed");
        }
        osd.commits.close().await;
        osd.reads.close().await;
        drop(directory);
    });
    Ok(Handle { address, id: me, failure, commit_stats, stopped })
}

fn registration(config: &Config, directory: &Directory, address: String, total_bytes: u64) -> RegisterOsdRequest {
    RegisterOsdRequest {
        cluster_id: directory.cluster().map(|id| Bytes::copy_from_slice(&id)).unwrap_or_default(),
        uuid: Bytes::copy_from_slice(&directory.uuid()),
        boot_id: Bytes::copy_from_slice(uuid::Uuid::new_v4().as_bytes()),
        address,
        host: config.host.clone(),
        weight: config.weight,
        total_bytes,
    }
}

fn bind_to_cluster(directory: &Directory, cluster: &Bytes) -> Result<(), Error> {
    let cluster: [u8; 16] = cluster
        .as_ref()
        .try_into()
        .map_err(|_| Error::new(Reason::Internal, "the mon sent a cluster id that is none"))?;
    directory.set_cluster(cluster).map_err(|error| storage_error(error.into()))
}

async fn follow_map(osd: Arc<Osd>) {
    let stopped = osd.shutdown.clone();
    let mut map = osd.map.clone();
    // What came before this task began.
    osd.map_changed(MapView::new(map.current())).await;
    let following = async {
        loop {
            let newer = map.changed().await;
            osd.map_changed(MapView::new(newer)).await;
        }
    };
    tokio::select! {
        () = stopped.stopped() => {}
        () = following => {}
    }
}

/// Keeps `space` fresh, and says when the disk is full (I9).
async fn watch_space(osd: Arc<Osd>, space: Arc<Space>, full_ratio: u8) {
    let stopped = osd.shutdown.clone();
    let watching = async {
        loop {
            match osd.reads.run(|engine| engine.usage()).await {
                Ok(usage) => {
                    space.total.store(usage.total_bytes, Ordering::Relaxed);
                    space.used.store(usage.used_bytes, Ordering::Relaxed);
                    let percent = usage.used_bytes.saturating_mul(100).checked_div(usage.total_bytes).unwrap_or(0);
                    let full = percent >= u64::from(full_ratio);
                    if osd.full.swap(full, Ordering::Relaxed) != full {
                        tracing::warn!(osd = %osd.me, percent, full, "crossed the full threshold");
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot ask the disk for its space"),
            }
            tokio::time::sleep(USAGE_EVERY).await;
        }
    };
    tokio::select! {
        () = stopped.stopped() => {}
        () = watching => {}
    }
}
