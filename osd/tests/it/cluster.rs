//! The cluster under test: a real mon, and OSDs that can be killed.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_mon_client::{ClusterStamp, MapWatch, MonClient};
use pando_osd::engine::memory::MemoryEngine;
use pando_osd::engine::{Engine, EngineKind, EngineOptions, ObjectHeader, ObjectKey};
use pando_osd::{Config, Storage};
use pando_osd_client::{ObjectClient, RecordClient};
use pando_proto::osd::{CommitRequest, Record};
use pando_proto::{ClientId, PgId};
use pando_rpc::{Env, Net, TcpNet};
use tokio::sync::oneshot;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

/// Everything a test waits for happens within this, or it fails.
pub const DEADLINE: Duration = Duration::from_secs(30);

pub type OsdChannel = InterceptedService<Channel, ClusterStamp>;

/// An OSD on a thread of its own.
pub struct Node {
    pub address: String,
    env: Env,
    kill: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    pub async fn start(mut config: Config) -> Self {
        let env = Env::system();
        let (ready, started) = oneshot::channel();
        let (kill, killed) = oneshot::channel();
        let inner = env.clone();
        config.full_ratio_percent = config.full_ratio_percent.max(1);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let life = async {
                    let handle = pando_osd::start(config, inner).await.unwrap();
                    ready.send(handle.address().to_string()).unwrap();
                    handle.join().await;
                };
                tokio::select! {
                    () = life => {}
                    _ = killed => {}
                }
            });
            runtime.shutdown_background();
        });
        let address = started.await.expect("the OSD starts");
        Self { address, env, kill: Some(kill), thread: Some(thread) }
    }

    /// As kill -9 would: nothing is given back.
    pub fn kill(mut self) {
        drop(self.kill.take());
        self.thread.take().unwrap().join().unwrap();
    }

    /// Waits until it has stopped by itself.
    pub fn joined(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    pub fn stop(mut self) {
        self.env.shutdown.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.env.shutdown.stop();
    }
}

pub struct Cluster {
    pub mons: Vec<String>,
    pub mon: MonClient,
    pub net: Arc<dyn Net>,
    pub env: Env,
    pub map: MapWatch,
    pub client: ClientId,
    pub engines: Vec<Arc<dyn Engine>>,
    pub nodes: Vec<Option<Node>>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.env.shutdown.stop();
    }
}

fn listen() -> std::net::SocketAddr {
    std::net::SocketAddr::from(([127, 0, 0, 1], 0))
}

impl Cluster {
    /// `osds` OSDs on memory engines, every pool with `size` replicas in 2 PGs.
    pub async fn new(osds: usize, size: u32) -> Self {
        let engines = (0..osds).map(|_| Arc::new(MemoryEngine::new(1 << 30)) as Arc<dyn Engine>).collect();
        Self::with_engines(engines, size).await
    }

    pub async fn with_engines(engines: Vec<Arc<dyn Engine>>, size: u32) -> Self {
        let (mon, env, mons) = start_mon(engines.len(), size).await;
        let (client, map) = mon.register_client("test").await.unwrap();
        let map = mon.watch(map, env.shutdown.clone());
        let mut cluster = Self {
            mons,
            mon,
            net: Arc::new(TcpNet),
            env,
            map,
            client,
            nodes: engines.iter().map(|_| None).collect(),
            engines,
        };
        for number in 0..cluster.nodes.len() {
            cluster.start(number).await;
        }
        cluster.placed(size as usize).await;
        cluster
    }

    pub fn config(&self, number: usize) -> Config {
        let storage = Storage::Engine { engine: Arc::clone(&self.engines[number]), uuid: [number as u8 + 1; 16] };
        let mut config = Config::new(self.mons.clone(), listen(), storage);
        config.host = format!("host{number}");
        config
    }

    pub async fn start(&mut self, number: usize) {
        self.nodes[number] = Some(Node::start(self.config(number)).await);
    }

    pub fn kill(&mut self, number: usize) {
        self.nodes[number].take().unwrap().kill();
    }

    /// The first map of which `check` says yes.
    pub async fn map_with(&self, what: &str, check: impl Fn(&ClusterMap) -> bool) -> Arc<ClusterMap> {
        let mut watch = self.map.clone();
        let waiting = async {
            loop {
                let map = watch.current();
                if check(&map) {
                    return map;
                }
                watch.changed().await;
            }
        };
        match tokio::time::timeout(DEADLINE, waiting).await {
            Ok(map) => map,
            Err(_) => panic!("{what} did not come; the PGs are {:?}", self.map.current().pgs),
        }
    }

    /// All PGs have so many members and nobody joins.
    pub async fn placed(&self, size: usize) -> Arc<ClusterMap> {
        let placed = |map: &ClusterMap| {
            !map.pgs.is_empty() && map.pgs.values().all(|pg| pg.members.len() == size && pg.joining.is_empty())
        };
        self.map_with("full placement", placed).await
    }

    pub fn records(&self) -> RecordClient {
        RecordClient::new(Arc::clone(&self.net), self.map.clone(), self.env.shutdown.clone())
    }

    pub fn objects(&self) -> ObjectClient {
        ObjectClient::new(Arc::clone(&self.net), self.map.clone(), self.client, self.env.shutdown.clone())
    }

    /// To an OSD, with the name of this cluster or another.
    pub fn channel_of(&self, address: &str, cluster: &[u8; 16]) -> OsdChannel {
        let stamp = ClusterStamp::default();
        stamp.bind(cluster);
        InterceptedService::new(pando_rpc::channel(&self.net, address).unwrap(), stamp)
    }

    /// To an OSD, as a part of this cluster.
    pub fn channel(&self, address: &str) -> OsdChannel {
        self.channel_of(address, &self.map.current().cluster_id)
    }

    fn engine_of(&self, map: &ClusterMap, osd: pando_proto::OsdId) -> &dyn Engine {
        &*self.engines[map.osds[&osd].uuid[0] as usize - 1]
    }

    /// Engines of the members of each PG hold the same.
    pub fn assert_members_equal(&self, map: &ClusterMap) {
        for (pg, found) in &map.pgs {
            let mut contents = found.members.iter().map(|osd| (osd, content(self.engine_of(map, *osd), *pg)));
            let (first, expected) = contents.next().expect("a PG has members");
            for (osd, found) in contents {
                assert_eq!(found, expected, "{osd} differs from {first} in {pg}");
            }
        }
    }

    /// No engine has content of a PG that is not its own.
    pub fn has_no_leftovers(&self, map: &ClusterMap) -> bool {
        map.pgs.iter().all(|(pg, found)| {
            let others = map.osds.keys().filter(|osd| !found.members.contains(osd));
            others
                .map(|osd| content(self.engine_of(map, *osd), *pg))
                .all(|(records, objects)| records.is_empty() && objects.is_empty())
        })
    }
}

async fn start_mon(osds: usize, size: u32) -> (MonClient, Env, Vec<String>) {
    let env = Env::system();
    let backend = redb::backends::InMemoryBackend::new();
    let mut config = pando_mon::Config::new(1, listen(), pando_mon::Storage::Backend(Box::new(backend)));
    config.expected_osds = osds as u32;
    config.metadata_pool = pando_mon::PoolSpec::new(size, 2);
    config.data_pool = pando_mon::PoolSpec::new(size, 2);
    let handle = pando_mon::start(config, env.clone()).await.unwrap();
    let mons = vec![handle.address().to_string()];
    tokio::spawn(handle.join());
    let mon = MonClient::new(Arc::new(TcpNet), mons.clone()).unwrap();
    mon.admin().set_setting("lease_millis", "600").await.unwrap();
    (mon, env, mons)
}

/// All replicated content of a PG.
#[allow(clippy::type_complexity)]
pub fn content(engine: &dyn Engine, pg: PgId) -> (Vec<(Bytes, Bytes)>, Vec<(ObjectKey, ObjectHeader, Bytes)>) {
    let page = engine.scan(pg, &[1], &[], usize::MAX, usize::MAX).unwrap();
    assert_eq!(page.next, None);
    let objects = engine.list_objects(pg, None, usize::MAX).unwrap();
    let read = |object| engine.read(pg, object, 0, 8 << 20).unwrap();
    (page.records, objects.into_iter().map(|(object, header)| (object, header, read(object))).collect())
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A batch of subtree 1 that puts `key = value` pairs.
pub fn batch(shard: u32, epoch: u64, number: u64, puts: &[(&str, &str)]) -> CommitRequest {
    CommitRequest {
        shard,
        subtree: 1,
        epoch,
        batch: number,
        puts: puts.iter().map(|(key, value)| Record { key: bytes(key), value: bytes(value) }).collect(),
        deletes: Vec::new(),
        map_epoch: 0,
        uses_reserve: false,
    }
}

/// Runs a test over a memory and a fjall engine.
pub fn engines() -> Vec<(Arc<dyn Engine>, Option<tempfile::TempDir>)> {
    let memory: Arc<dyn Engine> = Arc::new(MemoryEngine::new(1 << 30));
    let dir = tempfile::tempdir().unwrap();
    let (fjall, directory) =
        pando_osd::engine::open(EngineKind::Fjall, &dir.path().join("osd"), &EngineOptions::default()).unwrap();
    // The lock lives as long as the test.
    std::mem::forget(directory);
    vec![(memory, None), (fjall, Some(dir))]
}
