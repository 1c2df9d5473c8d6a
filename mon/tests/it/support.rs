//! Starting and stopping mons, and waiting with a deadline.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_mon::{Config, Handle, PoolSpec, Storage};
use pando_mon_client::{MapWatch, MonClient};
use pando_proto::mon::{RegisterOsdRequest, RegisterRankRequest};
use pando_rpc::{Env, Shutdown};

/// Long enough for a loaded machine; nothing waits for its end when all is well.
pub const LIMIT: Duration = Duration::from_secs(60);

pub struct TestMon {
    pub env: Env,
    handle: Handle,
}

impl TestMon {
    pub async fn start(config: Config) -> Self {
        let env = Env::system();
        let handle = pando_mon::start(config, env.clone()).await.unwrap();
        Self { env, handle }
    }

    pub fn address(&self) -> String {
        self.handle.address().to_string()
    }

    pub fn client(&self) -> MonClient {
        client(vec![self.address()])
    }

    pub async fn stop(self) {
        self.env.shutdown.stop();
        within(self.handle.join()).await;
    }
}

pub fn client(mons: Vec<String>) -> MonClient {
    MonClient::new(Env::system().net, mons).unwrap().with_limit(LIMIT)
}

pub fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

pub fn single(dir: &Path) -> Config {
    let mut config = Config::new(1, any_port(), Storage::Dir(dir.to_owned()));
    config.expected_osds = 3;
    config.metadata_pool = PoolSpec::new(3, 4);
    config.data_pool = PoolSpec::new(2, 8);
    config
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("this takes too long")
}

/// A loopback address that nobody else uses. The ports of a group have to stay free while a mon is stopped, and on
/// 127.0.0.1 any connection of any process may be given one of them meanwhile.
fn own_host() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high & 63, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Three mons on free ports.
pub struct Group {
    dir: tempfile::TempDir,
    peers: BTreeMap<u64, String>,
    pub mons: BTreeMap<u64, TestMon>,
    pub compact_every: u64,
}

impl Group {
    pub async fn start(compact_every: u64) -> Self {
        // All are held until all are known, so that they differ.
        let host = own_host();
        let held: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind((host, 0)).unwrap()).collect();
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let peers: BTreeMap<u64, String> = (1..).zip(held.iter().map(address)).collect();
        drop(held);
        let dir = tempfile::tempdir().unwrap();
        let mut group = Self { dir, peers, mons: BTreeMap::new(), compact_every };
        for id in 1..=3 {
            group.start_mon(id).await;
        }
        group
    }

    pub async fn start_mon(&mut self, id: u64) {
        let mut config = single(&self.dir.path().join(id.to_string()));
        config.id = id;
        config.listen = self.peers[&id].parse().unwrap();
        config.peers = self.peers.clone();
        config.compact_every = self.compact_every;
        self.mons.insert(id, TestMon::start(config).await);
    }

    pub async fn stop_mon(&mut self, id: u64) {
        self.mons.remove(&id).unwrap().stop().await;
    }

    /// Its disk is lost.
    pub fn wipe(&self, id: u64) {
        std::fs::remove_dir_all(self.dir.path().join(id.to_string())).unwrap();
    }

    pub fn client(&self) -> MonClient {
        client(self.peers.values().cloned().collect())
    }

    pub async fn stop(mut self) {
        for (_, mon) in std::mem::take(&mut self.mons) {
            mon.stop().await;
        }
    }
}

pub fn osd(number: u8, boot: u8) -> RegisterOsdRequest {
    RegisterOsdRequest {
        cluster_id: Bytes::new(),
        uuid: vec![number; 16].into(),
        boot_id: vec![boot; 16].into(),
        address: format!("127.0.0.1:{}", 9000 + u16::from(number)),
        host: format!("host{number}"),
        weight: 1000,
        total_bytes: 1 << 40,
    }
}

pub fn rank(boot: u8) -> RegisterRankRequest {
    RegisterRankRequest {
        cluster_id: Bytes::new(),
        rank: 0,
        boot_id: vec![boot; 16].into(),
        address: "127.0.0.1:9100".into(),
    }
}

/// Follows the map until it is as wanted.
pub async fn map_when(watch: &mut MapWatch, wanted: impl Fn(&ClusterMap) -> bool) -> Arc<ClusterMap> {
    let seen = watch.clone();
    let waiting = async {
        let mut map = watch.current();
        while !wanted(&map) {
            map = watch.changed().await;
        }
        map
    };
    tokio::time::timeout(LIMIT, waiting).await.unwrap_or_else(|_| panic!("no such map came: {:#?}", seen.current()))
}

/// A watch that ends with the test.
pub async fn watch(client: &MonClient) -> (MapWatch, Shutdown) {
    let shutdown = Shutdown::default();
    let map = client.get_map(pando_proto::Epoch(1)).await.unwrap();
    (client.watch(map, shutdown.clone()), shutdown)
}
