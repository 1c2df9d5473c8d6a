//! Putting a mon together.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pando_cluster_map::{ClusterMap, Command, CreateCluster, PoolSpec, SetMon};
use pando_rpc::{Env, Listener, Shutdown};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::mon::Mon;
use crate::node::{INPUTS, Leadership, Node, Parts};
use crate::peers::{Peers, Senders};
use crate::storage::RaftStorage;
use crate::{Config, Error, Storage, service};

/// Before the next try of what a mon tells the group about itself.
const PAUSE: Duration = Duration::from_millis(100);

/// A mon that runs.
pub struct Handle {
    address: SocketAddr,
    tasks: JoinSet<()>,
}

impl Handle {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends when the mon was asked to stop (by its [`Env`]) and has done so.
    pub async fn join(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Starts a mon. Returns once it serves; the group may still be electing a leader then.
///
/// Errors: a configuration that makes no sense, an address in use, a data directory of another mon, cluster or
/// newer format.
pub async fn start(mut config: Config, env: Env) -> Result<Handle, Error> {
    config.check()?;
    let listener = pando_rpc::bind(&env.net, config.listen).await.map_err(Error::Listen)?;
    let address = listener.local;
    let advertised = advertised(&config, address)?;
    let mut addresses = config.peers.clone();
    addresses.insert(config.id, advertised);
    check_creation(&config, &addresses)?;
    let seed = config.election_seed;
    let data = std::mem::replace(&mut config.data, Storage::Dir(std::path::PathBuf::new()));
    let storage = RaftStorage::open(&config, data, || new_cluster_id(seed))?;
    let mut tasks = JoinSet::new();
    let (mon, node, inputs) = assemble(&config, storage, addresses, &env, &mut tasks)?;
    let stop = StopAtEnd(env.shutdown.clone());
    tasks.spawn(async move {
        if let Err(error) = node.run(inputs, stop.0.clone()).await {
            tracing::error!(%error, "this mon cannot go on");
        }
    });
    spawn_introduction(&config, &mon, &mut tasks);
    spawn_server(listener, &mon, &env, &mut tasks).await;
    Ok(Handle { address, tasks })
}

/// Without its node, ended by an error or a broken invariant, a mon must not seem to be alive.
struct StopAtEnd(Shutdown);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn advertised(config: &Config, bound: SocketAddr) -> Result<String, Error> {
    let named = config.advertise.as_ref().or_else(|| config.peers.get(&config.id));
    match named {
        Some(address) => Ok(address.clone()),
        None if bound.ip().is_unspecified() => {
            Err(Error::Config(format!("{bound} means all addresses: name one that others can connect to (advertise)")))
        }
        None => Ok(bound.to_string()),
    }
}

fn new_cluster_id(seed: Option<u64>) -> [u8; 16] {
    match seed {
        None => *uuid::Uuid::new_v4().as_bytes(),
        Some(seed) => (u128::from(seed) << 64 | 0x7061_6e64_6f00_0001).to_be_bytes(),
    }
}

type Assembled = (Arc<Mon>, Node, mpsc::Receiver<crate::node::Input>);

fn assemble(
    config: &Config,
    storage: RaftStorage,
    addresses: BTreeMap<u64, String>,
    env: &Env,
    tasks: &mut JoinSet<()>,
) -> Result<Assembled, Error> {
    let (inputs, receiver) = mpsc::channel(INPUTS);
    let (_, stored) = storage.applied();
    let (map_sender, map) = watch::channel::<Arc<ClusterMap>>(stored);
    let (leadership_sender, leadership) = watch::channel(Leadership::default());
    let (cluster_sender, cluster) = watch::channel(storage.cluster_id().unwrap_or_default());
    let others = addresses.iter().filter(|(id, _)| **id != config.id);
    let connect = |(id, address): (&u64, &String)| pando_rpc::channel(&env.net, address).map(|channel| (*id, channel));
    let channels = others.map(connect).collect::<Result<BTreeMap<_, _>, _>>();
    let channels = Arc::new(channels.map_err(|error| Error::Config(error.to_string()))?);
    let senders = Senders {
        channels: Arc::clone(&channels),
        cluster: cluster.clone(),
        inputs: inputs.clone(),
        shutdown: env.shutdown.clone(),
    };
    let parts = Parts {
        id: config.id,
        tick: config.tick,
        compact_every: config.compact_every,
        election_seed: config.election_seed,
        clock: Arc::clone(&env.clock),
        storage,
        peers: Peers::spawn(&senders, tasks),
        map: map_sender,
        leadership: leadership_sender,
        cluster: cluster_sender,
    };
    let node = Node::new(parts)?;
    let mon = Mon {
        id: config.id,
        inputs,
        map,
        leadership,
        cluster,
        channels,
        addresses,
        clock: Arc::clone(&env.clock),
        shutdown: env.shutdown.clone(),
    };
    Ok((Arc::new(mon), node, receiver))
}

/// The first mon makes the cluster; each mon sees to it that the map has its address.
fn spawn_introduction(config: &Config, mon: &Arc<Mon>, tasks: &mut JoinSet<()>) {
    let mon = Arc::clone(mon);
    let shutdown = mon.shutdown.clone();
    let first = config.is_first();
    let settings = (config.expected_osds, config.metadata_pool, config.data_pool);
    let introduction = async move {
        loop {
            let Ok(map) = mon.read().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let command = if map.exists() {
                if map.mons.get(&mon.id) == mon.addresses.get(&mon.id) {
                    return;
                }
                Command::SetMon(SetMon { id: mon.id, address: mon.addresses[&mon.id].clone() })
            } else if first {
                create(mon.cluster_id_bytes().to_vec(), settings, &mon.addresses)
            } else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            match mon.propose(command).await {
                Err(error) if !error.is_retryable() => {
                    tracing::error!(%error, "the mons refused this mon's introduction");
                    return;
                }
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    tasks.spawn(async move {
        tokio::select! {
            () = shutdown.stopped() => {}
            () = introduction => {}
        }
    });
}

/// Asks an empty map beforehand: the group would refuse these settings only when this mon serves already.
fn check_creation(config: &Config, addresses: &BTreeMap<u64, String>) -> Result<(), Error> {
    let settings = (config.expected_osds, config.metadata_pool, config.data_pool);
    let made = ClusterMap::default().apply(&create(vec![1; 16], settings, addresses));
    made.map(drop).map_err(|error| Error::Config(format!("no cluster can be made with these settings: {error}")))
}

fn create(
    cluster_id: Vec<u8>,
    (expected_osds, metadata, data): (u32, PoolSpec, PoolSpec),
    addresses: &BTreeMap<u64, String>,
) -> Command {
    Command::CreateCluster(CreateCluster {
        cluster_id,
        expected_osds,
        metadata: Some(metadata),
        data: Some(data),
        mons: addresses.iter().map(|(id, address)| SetMon { id: *id, address: address.clone() }).collect(),
    })
}

async fn spawn_server(listener: Listener, mon: &Arc<Mon>, env: &Env, tasks: &mut JoinSet<()>) {
    let routes = service::routes(mon).await;
    let shutdown = env.shutdown.clone();
    tasks.spawn(async move {
        if let Err(error) = pando_rpc::serve(listener, routes, shutdown).await {
            tracing::error!(%error, "the mon's server ended");
        }
    });
}
