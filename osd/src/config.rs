//! What an OSD is started with.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Engine, EngineKind, EngineOptions};

/// Where an OSD keeps its bytes.
#[derive(Clone)]
pub enum Storage {
    /// In a data directory, which is made if need be.
    Directory {
        /// Its path.
        path: PathBuf,
        /// Its back end.
        engine: EngineKind,
        /// How to open it.
        options: EngineOptions,
    },
    /// In an engine that the caller has opened (tests, simulation).
    Engine {
        /// The engine.
        engine: Arc<dyn Engine>,
        /// Identity of its disk (R26).
        uuid: [u8; 16],
    },
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { path, engine, .. } => write!(f, "{engine} in {}", path.display()),
            Self::Engine { .. } => f.write_str("a given engine"),
        }
    }
}

/// Everything an OSD needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses of mons, `host:port`.
    pub mons: Vec<String>,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `host:port` that others reach it by, if it is not the address it listens on.
    pub advertise: Option<String>,
    /// Where the bytes go.
    pub storage: Storage,
    /// Failure domain: replicas are spread over hosts.
    pub host: String,
    /// Relative share of data; 1000 is usual.
    pub weight: u32,
    /// No threads: engine calls run on the runtime, each commit after `inline_sync`. For simulation.
    pub inline_io: bool,
    /// How long a simulated sync takes.
    pub inline_sync: Duration,
    /// Threads that read from the engine.
    pub read_threads: usize,
    /// Object headers kept in memory for each placement group.
    pub header_cache: usize,
    /// Percent of the disk in use from which on only deletes are accepted (I9).
    pub full_ratio_percent: u8,
}

impl Config {
    /// Sensible values for everything but these.
    pub fn new(mons: Vec<String>, listen: SocketAddr, storage: Storage) -> Self {
        Self {
            mons,
            listen,
            advertise: None,
            storage,
            host: "localhost".to_owned(),
            weight: 1000,
            inline_io: false,
            inline_sync: Duration::from_micros(200),
            read_threads: 2,
            header_cache: 4096,
            full_ratio_percent: 95,
        }
    }
}
