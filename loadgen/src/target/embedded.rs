//! A whole cluster within this process, for targets that need one of their own.

use anyhow::Context as _;
use pando_local_cluster::{LocalCluster, Options};
use tokio::runtime::Runtime;

use crate::leftovers::Scratch;

/// A running cluster; dropping it shuts it down and removes its data.
pub struct Embedded {
    runtime: Runtime,
    cluster: Option<LocalCluster>,
    _scratch: Scratch,
}

impl Embedded {
    /// Starts a new one, in a directory of its own that is made in `options.data`, or else among the temporary ones.
    pub fn start(options: Options) -> anyhow::Result<Self> {
        let scratch = Scratch::new(options.data.as_deref())?;
        let options = Options { data: Some(scratch.path().join("cluster")), ..options };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("cluster")
            .enable_all()
            .build()
            .context("cannot start a runtime")?;
        let cluster = runtime.block_on(LocalCluster::start(options)).context("cannot start a cluster")?;
        Ok(Self { runtime, cluster: Some(cluster), _scratch: scratch })
    }

    /// Its mons, as `HOST:PORT,HOST:PORT`.
    pub fn mons(&self) -> String {
        self.cluster.as_ref().map(|cluster| cluster.mon_addresses().join(",")).unwrap_or_default()
    }

    /// Syncs of the first OSD's engine so far.
    pub fn syncs(&self) -> u64 {
        self.cluster.as_ref().and_then(|cluster| cluster.commit_stats(0)).map_or(0, |stats| stats.commits)
    }

    /// Kills the metadata server and starts it again, with nothing in memory.
    pub fn restart_mds(&mut self) -> anyhow::Result<()> {
        self.kill_rank(0)?;
        self.start_rank(0)
    }

    /// Ends a rank as a crash would.
    pub fn kill_rank(&mut self, rank: u32) -> anyhow::Result<()> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        Ok(self.runtime.block_on(cluster.kill_mds(rank))?)
    }

    /// Starts a rank that does not run.
    pub fn start_rank(&mut self, rank: u32) -> anyhow::Result<()> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        Ok(self.runtime.block_on(cluster.start_mds(rank))?)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.take() {
            self.runtime.block_on(cluster.shutdown());
        }
    }
}
