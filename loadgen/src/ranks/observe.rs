//! What the ranks do over time: their load as they tell the mons, and who became the owner of what by the map.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pando_cluster_map::ClusterMap;
use pando_mon_client::{AdminClient, MonClient};
use pando_proto::{Epoch, Rank, SubtreeId, mon};
use pando_rpc::{Shutdown, TcpNet};
use serde::{Deserialize, Serialize};

const EVERY: Duration = Duration::from_secs(1);
/// A mon that does not answer within this is not worth waiting for: there will be another sample.
const LIMIT: Duration = Duration::from_secs(3);

/// A rank at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Since the start, in seconds.
    pub second: f64,
    /// Operations since the sample before, per second.
    pub ops_per_s: f64,
    /// Share of the time in which its thread had work, in thousandths.
    pub busy_permille: u32,
    /// CPU since the sample before, in percent of one.
    pub cpu_percent: f64,
}

/// A rank over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankSeries {
    /// Its number.
    pub rank: u32,
    /// In all.
    pub operations: u64,
    /// In all, as it told the mons.
    pub cpu_seconds: f64,
    /// In order.
    pub series: Vec<Sample>,
}

/// A subtree has got another owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Migration {
    /// Since the start, in seconds.
    pub second: f64,
    /// Which.
    pub subtree: u64,
    /// Where its root was when last seen.
    pub path: String,
    /// Former owner.
    pub from: u32,
    /// New owner.
    pub to: u32,
    /// Of the map that says so.
    pub map_epoch: u64,
    /// Why, where the balancer or the map tells; else null: somebody asked for it.
    pub reason: Option<String>,
    /// Its owner went down.
    #[serde(default)]
    pub failure: bool,
}

/// All that was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// By number.
    pub ranks: Vec<RankSeries>,
    /// In order.
    pub migrations: Vec<Migration>,
    /// Subtrees that came.
    pub splits: u64,
    /// Subtrees that went.
    pub merges: u64,
}

impl Observed {
    /// CPU of each rank in all, as they told.
    pub fn cpu_seconds(&self) -> BTreeMap<u32, f64> {
        self.ranks.iter().map(|rank| (rank.rank, rank.cpu_seconds)).collect()
    }
}

/// Watches a cluster until it is [finished](Self::finish).
pub struct Observer {
    shutdown: Shutdown,
    thread: JoinHandle<Observed>,
}

impl Observer {
    /// Watches the cluster of these mons on a thread of its own. Times count from now.
    pub fn start(mons: &str) -> anyhow::Result<Self> {
        let mons = mons.split(',').map(str::to_owned).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mon, map) = runtime.block_on(async {
            let mon = MonClient::new(Arc::new(TcpNet), mons)?.with_limit(LIMIT);
            let map = mon.get_map(Epoch(0)).await?;
            Ok::<_, pando_proto::Error>((mon, map))
        })?;
        let shutdown = Shutdown::default();
        let stop = shutdown.clone();
        let watching = move || runtime.block_on(watch(mon, map, stop));
        let thread = std::thread::Builder::new().name("observer".into()).spawn(watching);
        Ok(Self { shutdown, thread: thread.context("cannot start a thread")? })
    }

    /// What was seen until now.
    pub fn finish(self) -> Observed {
        self.shutdown.stop();
        self.thread.join().unwrap_or_default()
    }
}

async fn watch(mon: MonClient, map: Arc<ClusterMap>, stop: Shutdown) -> Observed {
    let mut seen =
        Seen { start: Instant::now(), map: Arc::clone(&map), told: BTreeMap::new(), all: Observed::default() };
    let (mut maps, admin) = (mon.watch(map, Shutdown::default()), mon.admin());
    let mut tick = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            () = stop.stopped() => break,
            map = maps.changed() => seen.changed(map),
            _ = tick.tick() => seen.sample(&admin).await,
        }
    }
    let last = maps.current();
    seen.changed(last);
    seen.sample(&admin).await;
    let decisions = admin.list_decisions(0).await.unwrap_or_default();
    explain(&mut seen.all.migrations, &decisions);
    seen.all
}

/// What a rank told last.
#[derive(Clone, Copy)]
struct Told {
    /// When that was so.
    at: f64,
    operations: u64,
    cpu_millis: u64,
}

struct Seen {
    start: Instant,
    map: Arc<ClusterMap>,
    told: BTreeMap<u32, Told>,
    all: Observed,
}

impl Seen {
    fn changed(&mut self, map: Arc<ClusterMap>) {
        let second = self.start.elapsed().as_secs_f64();
        for (id, subtree) in &map.subtrees {
            match self.map.subtrees.get(id) {
                None => self.all.splits += 1,
                Some(before) if before.owner != subtree.owner => {
                    let reason = went_down(&self.map, &map, before.owner);
                    self.all.migrations.push(Migration {
                        second,
                        subtree: id.0,
                        path: String::from_utf8_lossy(&subtree.path_hint).into_owned(),
                        from: before.owner.0,
                        to: subtree.owner.0,
                        map_epoch: map.epoch.0,
                        failure: reason.is_some(),
                        reason,
                    });
                }
                Some(_) => {}
            }
        }
        self.all.merges += self.map.subtrees.keys().filter(|id| !map.subtrees.contains_key(*id)).count() as u64;
        self.map = map;
    }

    async fn sample(&mut self, admin: &AdminClient) {
        match admin.list_loads().await {
            Ok(loads) => loads.into_iter().for_each(|of| self.told(of)),
            Err(error) => tracing::debug!(%error, "no loads"),
        }
    }

    fn told(&mut self, of: mon::RankLoadOf) {
        let Some(load) = of.load else { return };
        let now = self.start.elapsed().as_secs_f64();
        let at = now - of.age_millis as f64 / 1000.0;
        let told = Told { at, operations: load.operations, cpu_millis: load.cpu_millis };
        let Some(before) = self.told.insert(of.rank, told) else { return };
        let span = at - before.at;
        // It has said nothing new since.
        if span < EVERY.as_secs_f64() / 10.0 {
            self.told.insert(of.rank, before);
            return;
        }
        // A new process counts from 0.
        let since = |now: u64, before: u64| if now >= before { now - before } else { now };
        let operations = since(told.operations, before.operations);
        let cpu = since(told.cpu_millis, before.cpu_millis) as f64 / 1000.0;
        let series = self.series(of.rank);
        series.operations += operations;
        series.cpu_seconds += cpu;
        series.series.push(Sample {
            second: at.max(0.0),
            ops_per_s: operations as f64 / span,
            busy_permille: load.busy_permille,
            cpu_percent: 100.0 * cpu / span,
        });
    }

    fn series(&mut self, rank: u32) -> &mut RankSeries {
        let ranks = &mut self.all.ranks;
        let place = ranks.binary_search_by_key(&rank, |series| series.rank).unwrap_or_else(|place| {
            ranks.insert(place, RankSeries { rank, ..RankSeries::default() });
            place
        });
        &mut ranks[place]
    }
}

/// Whether an owner lost its subtrees because its process ended.
fn went_down(before: &ClusterMap, after: &ClusterMap, rank: Rank) -> Option<String> {
    let known = before.ranks.get(&rank)?;
    let now = after.ranks.get(&rank);
    let same = now.is_some_and(|now| now.up && now.incarnation == known.incarnation);
    (!same).then(|| format!("{rank} went down"))
}

/// Gives the migrations that the balancer decided its reasons; the decisions are newest first.
fn explain(migrations: &mut [Migration], decisions: &[mon::Decision]) {
    for migration in migrations.iter_mut().filter(|migration| migration.reason.is_none()) {
        let it = |planned: &&mon::PlannedMove| {
            (planned.subtree, planned.from, planned.to) == (migration.subtree, migration.from, migration.to)
        };
        let earlier = decisions.iter().filter(|decision| decision.map_epoch <= migration.map_epoch);
        migration.reason =
            earlier.filter_map(|decision| decision.moves.iter().find(it)).map(|planned| planned.reason.clone()).next();
    }
}

/// A subtree as reports name it.
pub fn name(subtree: u64, path: &str) -> String {
    format!("{} ({path})", SubtreeId(subtree))
}

#[cfg(test)]
mod tests;
