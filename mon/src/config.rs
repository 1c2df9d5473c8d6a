//! How a mon is set up.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use pando_cluster_map::PoolSpec;

use crate::Error;

/// Where a mon keeps its state.
#[derive(Debug)]
pub enum Storage {
    /// A directory of its own.
    Dir(PathBuf),
    /// A simulated disk.
    Backend(Box<dyn redb::StorageBackend>),
}

/// A mon's configuration.
#[derive(Debug)]
pub struct Config {
    /// Its number in the group, not 0.
    pub id: u64,
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The address that others reach it at; by default its entry in `peers`, else the listening one.
    pub advertise: Option<String>,
    /// Its state.
    pub data: Storage,
    /// All members of the group (1, 3 or 5), this one included: id and `host:port`. May be empty for a single mon.
    pub peers: BTreeMap<u64, String>,
    /// If given, a data directory of another cluster is refused.
    pub cluster_id: Option<[u8; 16]>,
    /// For the first start of a cluster: PGs get their members when so many OSDs are up.
    pub expected_osds: u32,
    /// For the first start of a cluster: the pool of records.
    pub metadata_pool: PoolSpec,
    /// For the first start of a cluster: the pool of objects.
    pub data_pool: PoolSpec,
    /// Raft's clock; an election takes 10 to 20 ticks.
    pub tick: Duration,
    /// Log entries between snapshots.
    pub compact_every: u64,
    /// For a simulation: replaces the dice of elections and ids.
    pub election_seed: Option<u64>,
}

impl Config {
    /// A single mon with the defaults of everything else.
    pub fn new(id: u64, listen: SocketAddr, data: Storage) -> Self {
        Self {
            id,
            listen,
            advertise: None,
            data,
            peers: BTreeMap::new(),
            cluster_id: None,
            expected_osds: 1,
            metadata_pool: PoolSpec::new(1, 16),
            data_pool: PoolSpec::new(1, 32),
            tick: Duration::from_millis(50),
            compact_every: 1000,
            election_seed: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |message: &str| Err(Error::Config(message.to_owned()));
        if self.id == 0 {
            return refuse("a mon's id must not be 0");
        }
        if !self.peers.is_empty() && !self.peers.contains_key(&self.id) {
            return Err(Error::Config(format!(
                "mon {} is not among its own peers: name all mons, this one too",
                self.id
            )));
        }
        if !matches!(self.peers.len(), 0 | 1 | 3 | 5) {
            return refuse("a cluster has 1, 3 or 5 mons");
        }
        if self.cluster_id == Some([0; 16]) {
            return refuse("a cluster id must not be zero");
        }
        if self.tick < Duration::from_millis(1) || self.tick > Duration::from_secs(1) {
            return refuse("tick has to be 1 ms to 1 s");
        }
        if self.compact_every == 0 {
            return refuse("compact_every must not be 0");
        }
        Ok(())
    }

    /// Ids of the group.
    pub(crate) fn members(&self) -> Vec<u64> {
        if self.peers.is_empty() { vec![self.id] } else { self.peers.keys().copied().collect() }
    }

    /// Whether this mon makes the cluster.
    pub(crate) fn is_first(&self) -> bool {
        self.members().first() == Some(&self.id)
    }
}
