//! What kind of cluster to run.

use std::path::PathBuf;

use pando_cluster_map::settings;
use pando_osd::engine::EngineKind;
use pando_proto::{Error, Reason};

/// Less than that leaves a rank no room for the records of one operation.
pub const MIN_MDS_CACHE_BYTES: u64 = 1 << 20;

/// Ranks that one process carries at most.
pub const MAX_MDS: u32 = 64;

/// Choices for a [`LocalCluster`](crate::LocalCluster).
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the data lives; `None` takes a temporary directory that is removed at the end.
    pub data: Option<PathBuf>,
    /// Members of the Raft group: 1, 3 or 5.
    pub mons: u32,
    /// Object storage daemons.
    pub osds: u32,
    /// Metadata servers (ranks); 0 leaves them to others, and nothing is served until one comes.
    pub mds: u32,
    /// Copies of every record and object, 1 to 3.
    pub replicas: u32,
    /// Engine of the OSDs.
    pub engine: EngineKind,
    /// Cache budget of each rank in bytes, at least [`MIN_MDS_CACHE_BYTES`].
    pub mds_cache_bytes: u64,
    /// Port of the first mon, the others follow; 0 takes free ones (kept for later starts on the same data).
    pub mon_port: u16,
    /// Sets `inline_limit` (bytes) once the cluster runs; `None` leaves it.
    pub inline_limit: Option<u64>,
    /// Sets `lease_millis` once the cluster runs; `None` leaves it.
    pub lease_millis: Option<u64>,
    /// Placement groups of the metadata pool, fixed when the cluster is made.
    pub metadata_pgs: u32,
    /// Placement groups of the data pool, fixed when the cluster is made.
    pub data_pgs: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            data: None,
            mons: 1,
            osds: 3,
            mds: 1,
            replicas: 3,
            engine: EngineKind::Fjall,
            mds_cache_bytes: 256 << 20,
            mon_port: 0,
            inline_limit: None,
            lease_millis: None,
            metadata_pgs: 16,
            data_pgs: 32,
        }
    }
}

impl Options {
    /// The same with OSDs that keep everything in memory: for tests.
    #[must_use]
    pub fn memory(mut self) -> Self {
        self.engine = EngineKind::Memory;
        self
    }

    /// Errors: numbers that make no cluster; the message says what is possible.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::new(Reason::InvalidRequest, text));
        if ![1, 3, 5].contains(&self.mons) {
            return refuse(format!("{} mons: use 1, 3 or 5", self.mons));
        }
        if !(1..=64).contains(&self.osds) {
            return refuse(format!("{} OSDs in one process: use 1 to 64", self.osds));
        }
        if self.mds > MAX_MDS {
            return refuse(format!("{} ranks in one process: use 1 to {MAX_MDS}", self.mds));
        }
        if !(1..=3).contains(&self.replicas) || self.replicas > self.osds {
            let most = self.osds.min(3);
            return refuse(format!("{} replicas on {} OSDs: use 1 to {most}", self.replicas, self.osds));
        }
        if !(1..=1024).contains(&self.metadata_pgs) || !(1..=1024).contains(&self.data_pgs) {
            return refuse("placement groups: use 1 to 1024 in each pool".into());
        }
        if self.mds_cache_bytes < MIN_MDS_CACHE_BYTES {
            let given = self.mds_cache_bytes;
            return refuse(format!("{given} bytes of cache for a rank: use at least {MIN_MDS_CACHE_BYTES} (1M)"));
        }
        // The mons would refuse these too, but only once everything stands.
        check_setting(settings::INLINE_LIMIT, self.inline_limit)?;
        check_setting(settings::LEASE_MILLIS, self.lease_millis)
    }
}

fn check_setting(name: &str, value: Option<u64>) -> Result<(), Error> {
    let (Some(value), Some(known)) = (value, settings::find(name)) else { return Ok(()) };
    if (known.min..=known.max).contains(&value) {
        return Ok(());
    }
    let text = format!("{name} {value}: use {} to {} ({})", known.min, known.max, known.help);
    Err(Error::new(Reason::InvalidRequest, text))
}
