//! What a rank is told when it starts.

use std::net::SocketAddr;

use bytes::Bytes;
use pando_proto::ids::parse_cluster_id;
use pando_proto::{Error, Reason};
use serde::Deserialize;

/// Default cache budget in bytes.
pub const DEFAULT_CACHE_BYTES: u64 = 256 << 20;

/// Configuration of one rank; also the form of the TOML file of `pando-mds`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Addresses of mons, `host:port`; any of them will do.
    pub mons: Vec<String>,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `host:port` that others are told; empty for the address it listens on.
    pub advertise: String,
    /// Which rank this process serves.
    pub rank: u32,
    /// The cluster that it belongs to, in 32 hexadecimal digits: mons of any other are refused. Empty for the one of
    /// the mons.
    pub cluster_id: String,
    /// Memory for cached inodes, dentries and bodies, in bytes (I8).
    pub cache_bytes: u64,
    /// Makes the boot id from this number instead of randomness, so that a simulated run can be repeated.
    pub boot_seed: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mons: vec!["127.0.0.1:7100".to_owned()],
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: String::new(),
            rank: 0,
            cluster_id: String::new(),
            cache_bytes: DEFAULT_CACHE_BYTES,
            boot_seed: None,
        }
    }
}

impl Config {
    /// For the registration; empty for any.
    pub(crate) fn cluster(&self) -> Result<Bytes, Error> {
        if self.cluster_id.is_empty() {
            return Ok(Bytes::new());
        }
        let id = parse_cluster_id(&self.cluster_id);
        let message = || format!("cluster_id is {:?}: a cluster id has 32 hexadecimal digits", self.cluster_id);
        id.map(|id| Bytes::copy_from_slice(&id)).ok_or_else(|| Error::new(Reason::InvalidRequest, message()))
    }

    /// The boot id of this process start (idempotent registration).
    pub(crate) fn boot_id(&self) -> Vec<u8> {
        match self.boot_seed {
            Some(seed) => [seed.to_be_bytes(), u64::from(self.rank).to_be_bytes()].concat(),
            None => uuid::Uuid::new_v4().as_bytes().to_vec(),
        }
    }
}
