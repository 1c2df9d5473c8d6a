//! The running cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pando_mon_client::MonClient;
use pando_osd::engine::commit::Stats as CommitStats;
use pando_proto::{Epoch, Error, Reason};
use pando_rpc::TcpNet;

use crate::Options;
use crate::daemon::Daemon;
use crate::layout::{Layout, mon_ports};
use crate::lock::Lock;
use crate::start;

/// Where the daemons' directories are, and who removes them.
enum Data {
    Kept { dir: PathBuf, layout: Box<Layout>, _lock: Lock },
    Temporary(tempfile::TempDir),
}

/// A cluster whose daemons run on threads of this process. Dropping it asks them to stop;
/// [`shutdown`](Self::shutdown) also waits.
pub struct LocalCluster {
    options: Options,
    data: Data,
    mons: BTreeMap<u32, Daemon>,
    osds: BTreeMap<u32, Daemon>,
    mds: BTreeMap<u32, Daemon>,
    peers: Vec<SocketAddr>,
    admin: MonClient,
    osd_stats: start::OsdStats,
}

impl LocalCluster {
    /// Starts everything, and returns once all ranks serve what is theirs.
    ///
    /// Errors: options that make no cluster, an occupied port, a data directory that another process uses, of
    /// something else, of other numbers or of a newer format, or in which a mon's directory is missing or one is of
    /// another cluster.
    pub async fn start(options: Options) -> Result<Self, Error> {
        options.check()?;
        let (data, ports) = open_data(&options)?;
        let peers: Vec<SocketAddr> = ports.into_iter().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        let addresses = peers.iter().map(ToString::to_string).collect();
        let admin = MonClient::new(Arc::new(TcpNet), addresses)?;
        let (mons, osds, mds) = Default::default();
        let osd_stats = start::OsdStats::default();
        let mut cluster = Self { options, data, mons, osds, mds, peers, admin, osd_stats };
        match cluster.start_all().await {
            Ok(()) => Ok(cluster),
            Err(error) => {
                cluster.stop_all().await;
                Err(error)
            }
        }
    }

    async fn start_all(&mut self) -> Result<(), Error> {
        // A group elects its leader while its members start: all at once.
        let starting: Vec<_> = (0..self.options.mons).map(|mon| self.mon(mon)).collect();
        for (mon, started) in (0..).zip(join(starting).await) {
            let started = started.map_err(|error| in_directory(&self.dir(&format!("mon.{mon}")), error))?;
            self.mons.insert(mon, started);
        }
        self.learn_id().await?;
        let starting: Vec<_> = (0..self.options.osds).map(|osd| self.osd(osd)).collect();
        for (osd, started) in (0..).zip(join(starting).await) {
            let started = started.map_err(|error| in_directory(&self.dir(&format!("osd.{osd}")), error))?;
            self.osds.insert(osd, started);
        }
        if let Some(limit) = self.options.inline_limit {
            self.admin.admin().set_setting("inline_limit", &limit.to_string()).await?;
        }
        if let Some(millis) = self.options.lease_millis {
            self.admin.admin().set_setting("lease_millis", &millis.to_string()).await?;
        }
        for rank in 0..self.options.mds {
            let started = self.rank(rank).await?;
            self.mds.insert(rank, started);
        }
        Ok(())
    }

    /// Before there is data whose cluster could not be told any more.
    async fn learn_id(&mut self) -> Result<(), Error> {
        let Data::Kept { dir, layout, .. } = &mut self.data else { return Ok(()) };
        let map = self.admin.get_map(Epoch(1)).await?;
        layout.learn_id(dir, map.cluster_id)
    }

    fn mon(&self, mon: u32) -> start::Starting {
        let known = match &self.data {
            Data::Kept { layout, .. } => layout.id(),
            Data::Temporary(_) => Ok(None),
        };
        match known {
            Ok(id) => start::mon(mon, &self.peers, self.dir(&format!("mon.{mon}")), &self.options, id),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn osd(&self, osd: u32) -> start::Starting {
        let (dir, stats) = (self.dir(&format!("osd.{osd}")), self.osd_stats.clone());
        start::osd(osd, &self.mon_addresses(), dir, &self.options, stats)
    }

    fn rank(&self, rank: u32) -> start::Starting {
        start::mds(rank, &self.mon_addresses(), &self.options)
    }

    fn dir(&self, name: &str) -> PathBuf {
        match &self.data {
            Data::Kept { dir, .. } => dir.join(name),
            Data::Temporary(dir) => dir.path().join(name),
        }
    }

    /// `host:port` of the mons: what clients connect to.
    pub fn mon_addresses(&self) -> Vec<String> {
        self.peers.iter().map(ToString::to_string).collect()
    }

    /// Address of rank 0.
    pub fn mds_address(&self) -> Option<SocketAddr> {
        self.mds.get(&0).map(|rank| rank.address)
    }

    /// Addresses of the ranks that run here, by number.
    pub fn rank_addresses(&self) -> BTreeMap<u32, SocketAddr> {
        self.mds.iter().map(|(rank, daemon)| (*rank, daemon.address)).collect()
    }

    /// Addresses of the OSDs, by their number in this cluster.
    pub fn osd_addresses(&self) -> BTreeMap<u32, SocketAddr> {
        self.osds.iter().map(|(osd, daemon)| (*osd, daemon.address)).collect()
    }

    /// What an OSD has committed to its engine so far, for measurements.
    pub fn commit_stats(&self, osd: u32) -> Option<CommitStats> {
        self.osd_stats.lock().ok()?.get(&osd).map(|stats| stats.read())
    }

    /// A client of the mons, for administration.
    pub fn admin(&self) -> &MonClient {
        &self.admin
    }

    /// Names of daemons that have ended by themselves; their logs say why.
    pub fn dead_daemons(&self) -> Vec<String> {
        let named = |kind: &'static str, daemons: &BTreeMap<u32, Daemon>| {
            let dead = daemons.iter().filter(|(_, daemon)| !daemon.is_alive());
            dead.map(|(number, _)| format!("{kind}.{number}")).collect::<Vec<_>>()
        };
        [named("mon", &self.mons), named("osd", &self.osds), named("mds", &self.mds)].concat()
    }

    /// Ends an OSD as a crash would: it gives nothing back.
    ///
    /// Errors: no such OSD runs.
    pub async fn kill_osd(&mut self, osd: u32) -> Result<(), Error> {
        kill(&mut self.osds, osd, "osd").await
    }

    /// Starts an OSD again on its directory.
    ///
    /// Errors: those of its start.
    pub async fn restart_osd(&mut self, osd: u32) -> Result<(), Error> {
        let started = self.osd(osd).await?;
        self.osds.insert(osd, started);
        Ok(())
    }

    /// Ends a rank as a crash would.
    ///
    /// Errors: no such rank runs.
    pub async fn kill_mds(&mut self, rank: u32) -> Result<(), Error> {
        kill(&mut self.mds, rank, "mds").await
    }

    /// Stops a rank cleanly: its subtrees go to other ranks, if there are any, and its lease is given back.
    ///
    /// Errors: no such rank runs.
    pub async fn stop_mds(&mut self, rank: u32) -> Result<(), Error> {
        let daemon = take(&mut self.mds, rank, "mds")?;
        daemon.stop();
        daemon.wait().await;
        Ok(())
    }

    /// Starts one more rank.
    ///
    /// Errors: it runs already; those of its start.
    pub async fn start_mds(&mut self, rank: u32) -> Result<(), Error> {
        if self.mds.get(&rank).is_some_and(Daemon::is_alive) {
            return Err(Error::new(Reason::InUse, format!("mds.{rank} runs in this cluster already")));
        }
        self.restart_mds(rank).await
    }

    /// Starts a rank again; returns once it serves, which is after the lease of its former process has ended.
    ///
    /// Errors: those of its start.
    pub async fn restart_mds(&mut self, rank: u32) -> Result<(), Error> {
        let started = self.rank(rank).await?;
        self.mds.insert(rank, started);
        Ok(())
    }

    /// Stops everything cleanly, in the order ranks, OSDs, mons, and waits for it.
    pub async fn shutdown(mut self) {
        self.stop_all().await;
    }

    async fn stop_all(&mut self) {
        for daemons in [&mut self.mds, &mut self.osds, &mut self.mons] {
            let stopping = std::mem::take(daemons);
            stopping.values().for_each(Daemon::stop);
            for daemon in stopping.into_values() {
                daemon.wait().await;
            }
        }
    }
}

async fn kill(daemons: &mut BTreeMap<u32, Daemon>, number: u32, kind: &str) -> Result<(), Error> {
    let mut daemon = take(daemons, number, kind)?;
    daemon.kill();
    daemon.wait().await;
    Ok(())
}

fn take(daemons: &mut BTreeMap<u32, Daemon>, number: u32, kind: &str) -> Result<Daemon, Error> {
    let unknown = || Error::new(Reason::UnknownId, format!("no {kind}.{number} runs in this cluster"));
    daemons.remove(&number).ok_or_else(unknown)
}

/// Runs all at once and gives their results in order.
async fn join(starting: Vec<start::Starting>) -> Vec<Result<Daemon, Error>> {
    let running: Vec<_> = starting.into_iter().map(tokio::spawn).collect();
    let mut results = Vec::with_capacity(running.len());
    for task in running {
        results.push(task.await.unwrap_or_else(|error| Err(Error::new(Reason::Internal, error.to_string()))));
    }
    results
}

/// Says which directory is meant where a daemon refused its own. What is only busy is none of the directory's.
fn in_directory(dir: &Path, error: Error) -> Error {
    if error.is_retryable() || error.message.contains(&*dir.to_string_lossy()) {
        return error;
    }
    Error { message: format!("{}: {}", dir.display(), error.message), ..error }
}

fn open_data(options: &Options) -> Result<(Data, Vec<u16>), Error> {
    if let Some(dir) = &options.data {
        let (layout, lock) = Layout::open(dir, options)?;
        let ports = layout.mon_ports.clone();
        return Ok((Data::Kept { dir: dir.clone(), layout: Box::new(layout), _lock: lock }, ports));
    }
    let dir = tempfile::Builder::new().prefix("pando-").tempdir();
    let dir = dir.map_err(|error| Error::new(Reason::Storage, format!("no temporary directory: {error}")))?;
    Ok((Data::Temporary(dir), mon_ports(options)?))
}
