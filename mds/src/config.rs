//! What a rank is told when it starts.

use std::net::SocketAddr;

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
            cache_bytes: DEFAULT_CACHE_BYTES,
            boot_seed: None,
        }
    }
}

impl Config {
    /// The boot id of this process start (idempotent registration).
    pub(crate) fn boot_id(&self) -> Vec<u8> {
        match self.boot_seed {
            Some(seed) => [seed.to_be_bytes(), u64::from(self.rank).to_be_bytes()].concat(),
            None => uuid::Uuid::new_v4().as_bytes().to_vec(),
        }
    }
}
