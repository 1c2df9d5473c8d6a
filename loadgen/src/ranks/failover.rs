//! How long paths are not served when the rank that serves them is killed, and how even the survivors' load is then.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pando_cluster_map::settings;
use pando_local_cluster::Options as ClusterOptions;
use pando_proto::{Rank, SubtreeId};
use serde::Serialize;

use super::cluster::{Cluster, Plan};
use super::html::Page;
use super::tree::Tree;
use super::work::{self, Done, Load};
use crate::measure::rate;
use crate::replay::Mismatches;
use crate::report::{Report, counted};
use crate::target::pando::Pando;

const LIMIT: Duration = Duration::from_secs(60);
/// Before the kill: long enough that the ranks have told of their load.
const BEFORE: Duration = Duration::from_secs(4);
/// From the kill to the end.
const AFTER: Duration = Duration::from_secs(12);
/// Answers that a rank had sent before it was killed have arrived by then.
const UNDER_WAY: Duration = Duration::from_millis(200);
/// At the end: the time over which the survivors' load is compared.
const SETTLED: Duration = Duration::from_secs(5);

/// Who is killed, and under what load.
#[derive(Clone, Debug)]
pub struct Options {
    /// Each at work on a path of its own, dealt over the ranks.
    pub clients: usize,
    /// Threads that carry them.
    pub threads: usize,
    /// The rank to kill.
    pub victim: u32,
    /// Contents follow from it.
    pub seed: u64,
    /// The cluster.
    pub cluster: ClusterOptions,
    /// Its ranks; two at least.
    pub plan: Plan,
    /// Where to write the report as a page.
    pub html: Option<PathBuf>,
}

/// One path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which.
    pub path: String,
    /// Who served it.
    pub rank: u32,
    /// Who served it at the end.
    pub rank_after: u32,
    /// From the kill to the first success, but for answers that were under way.
    pub first_success_seconds: f64,
    /// The longest time without a success from the kill on.
    pub longest_gap_seconds: f64,
}

struct Prepared {
    tree: Tree,
    paths: Vec<(String, SubtreeId)>,
    lease: Duration,
}

/// Runs it.
///
/// Errors: what keeps it from starting.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let ranks = options.plan.ranks;
    anyhow::ensure!(ranks >= 2, "a failover needs two ranks");
    anyhow::ensure!(options.victim < ranks, "there is no rank {}: the last one is {}", options.victim, ranks - 1);
    let mut cluster = Cluster::start(options.cluster.clone(), options.plan)?;
    let mons = cluster.mons();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let prepared = runtime.block_on(prepare(&mons, options))?;
    let dirs: Vec<String> = prepared.paths.iter().map(|(path, _)| path.clone()).collect();
    let before = owners(&prepared);
    let target = Pando::new(&mons);
    let load = Load {
        target: &target,
        dirs: &dirs,
        warm: None,
        threads: options.threads,
        seed: options.seed,
        stop: AtomicBool::new(false),
        mismatches: Mismatches::default(),
    };
    let start = Instant::now();
    let (done, killed) = std::thread::scope(|scope| {
        let stop = load.stop_at_end();
        let working = scope.spawn(|| load.run());
        // The session behind `prepared` lives on this runtime.
        runtime.block_on(async { tokio::time::sleep(BEFORE).await });
        let killed = cluster.kill_rank(options.victim).map(|()| Instant::now());
        runtime.block_on(async { tokio::time::sleep(AFTER).await });
        drop(stop);
        (working.join(), killed)
    });
    let (mut done, killed) = (done.map_err(|_| anyhow::anyhow!("the load panicked"))??, killed?);
    let after = owners(&prepared);
    let seconds = start.elapsed().as_secs_f64();
    let measured = Measured { prepared: &prepared, before, after, killed };
    let (rows, survivors) = (measured.rows(&done), measured.survivors(&done));
    let failed: u64 = done.iter().map(|done| done.failed).sum();
    let label = format!("pando ({ranks} ranks, mds.{} killed)", options.victim);
    let mut report = work::report("failover", label, seconds, &mut done, load.mismatches);
    note(&mut report, &rows, &survivors, failed, prepared.lease)?;
    runtime.block_on(prepared.tree.close());
    if let Some(file) = &options.html {
        page(&report).write(file)?;
    }
    Ok(report)
}

/// A subtree for each client, dealt over the ranks.
async fn prepare(mons: &str, options: &Options) -> anyhow::Result<Prepared> {
    let tree = Tree::connect(mons, LIMIT).await?;
    tree.admin.set_setting(settings::BALANCER_MODE, &settings::BALANCER_OFF.to_string()).await?;
    let lease = tree.admin.get_setting(settings::LEASE_MILLIS).await?;
    let lease = Duration::from_millis(lease.parse().context("the lease is no number")?);
    let mut paths = Vec::with_capacity(options.clients);
    for (client, rank) in (0..options.clients).zip((0..options.plan.ranks).cycle()) {
        let path = format!("/failover-{client}");
        tree.make_dir(&path).await?;
        let subtree = tree.split(&path).await?;
        tree.move_to(subtree, Rank(rank)).await?;
        paths.push((path, subtree));
    }
    // The session's own map has to show them all.
    let start = Instant::now();
    let shown = |subtree: &SubtreeId, rank: u32| {
        tree.client.map().subtrees.get(subtree).is_some_and(|found| found.owner == Rank(rank))
    };
    while !paths.iter().zip((0..options.plan.ranks).cycle()).all(|((_, subtree), rank)| shown(subtree, rank)) {
        anyhow::ensure!(start.elapsed() < LIMIT, "the map does not follow");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(Prepared { tree, paths, lease })
}

fn owners(prepared: &Prepared) -> Vec<u32> {
    let map = prepared.tree.client.map();
    let owner = |(_, subtree): &(String, SubtreeId)| map.subtrees.get(subtree).map_or(u32::MAX, |found| found.owner.0);
    prepared.paths.iter().map(owner).collect()
}

struct Measured<'a> {
    prepared: &'a Prepared,
    before: Vec<u32>,
    after: Vec<u32>,
    killed: Instant,
}

impl Measured<'_> {
    fn rows(&self, done: &[Done]) -> Vec<Row> {
        let owners = self.before.iter().zip(&self.after);
        let each = self.prepared.paths.iter().zip(owners).zip(done);
        each.map(|(((path, _), (rank, rank_after)), done)| {
            let (first, gap) = first_success(&done.answered, self.killed, self.killed + AFTER);
            Row {
                path: path.clone(),
                rank: *rank,
                rank_after: *rank_after,
                first_success_seconds: first.as_secs_f64(),
                longest_gap_seconds: gap.as_secs_f64(),
            }
        })
        .collect()
    }

    /// Successes a second at each rank at the end.
    fn survivors(&self, done: &[Done]) -> BTreeMap<u32, f64> {
        let end = self.killed + AFTER;
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        for (rank, done) in self.after.iter().zip(done) {
            let late = done.answered.iter().filter(|at| **at >= end - SETTLED && **at < end).count();
            *counts.entry(*rank).or_default() += late as u64;
        }
        counts.into_iter().map(|(rank, count)| (rank, rate(count, SETTLED.as_secs_f64()))).collect()
    }
}

/// From the kill to the end of the longest gap between two successes among those that begin with it, and the longest
/// gap of all. What never succeeds again ends with the run.
fn first_success(answered: &[Instant], killed: Instant, end: Instant) -> (Duration, Duration) {
    let mut last = answered.iter().copied().filter(|at| *at <= killed).max().unwrap_or(killed);
    let (mut first_gap, mut back, mut longest) = (Duration::ZERO, killed, Duration::ZERO);
    for at in answered.iter().copied().filter(|at| *at > killed && *at < end).chain([end]) {
        let gap = at - last;
        longest = longest.max(gap);
        if last <= killed + UNDER_WAY && gap > first_gap {
            (first_gap, back) = (gap, at);
        }
        last = at;
    }
    (back - killed, longest)
}

fn note(
    report: &mut Report,
    rows: &[Row],
    survivors: &BTreeMap<u32, f64>,
    failed: u64,
    lease: Duration,
) -> anyhow::Result<()> {
    let worst = rows.iter().map(|row| row.first_success_seconds).fold(0.0, f64::max);
    let most = survivors.values().copied().fold(0.0, f64::max);
    let least = survivors.values().copied().fold(f64::INFINITY, f64::min);
    let ratio = if least > 0.0 && least.is_finite() { most / least } else { 0.0 };
    let extra = &mut report.extra;
    extra.insert("paths".into(), serde_json::to_value(rows)?);
    extra.insert("worst_first_success_seconds".into(), worst.into());
    extra.insert("lease_seconds".into(), lease.as_secs_f64().into());
    extra.insert("failed_requests".into(), failed.into());
    let named: BTreeMap<String, f64> = survivors.iter().map(|(rank, ops)| (rank.to_string(), *ops)).collect();
    extra.insert("survivors_ops_per_s".into(), serde_json::to_value(named)?);
    extra.insert("survivors_ratio".into(), ratio.into());
    Ok(())
}

const HEAD: [&str; 5] = ["path", "rank", "then", "first success s", "longest gap s"];

fn rows(report: &Report) -> Vec<Vec<String>> {
    let paths = report.extra.get("paths").and_then(serde_json::Value::as_array);
    let row = |row: &serde_json::Value| {
        let seconds = |name: &str| format!("{:.3}", row[name].as_f64().unwrap_or_default());
        let path = row["path"].as_str().unwrap_or_default().to_owned();
        let (rank, then) = (row["rank"].to_string(), row["rank_after"].to_string());
        vec![path, rank, then, seconds("first_success_seconds"), seconds("longest_gap_seconds")]
    };
    paths.into_iter().flatten().map(row).collect()
}

fn summary(report: &Report) -> String {
    let number = |name: &str| report.extra.get(name).and_then(serde_json::Value::as_f64).unwrap_or_default();
    format!(
        "first success again on the last path: {:.2} s after the kill (lease {:.1} s); survivors' load within {:.2}x of \
         each other; failed requests: {}",
        number("worst_first_success_seconds"),
        number("lease_seconds"),
        number("survivors_ratio"),
        number("failed_requests")
    )
}

/// The table for people.
pub fn table(report: &Report) -> String {
    super::multi_mds::text_table(&HEAD, &rows(report)) + &summary(report) + "\n"
}

fn page(report: &Report) -> Page {
    let mut page = Page::new("A rank is killed under load");
    page.text(&format!("{}, {}.", report.target, counted(report.clients, "client"))).text(&summary(report));
    page.table(&HEAD, &rows(report));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_after_the_kill_ends_with_the_first_success() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let (killed, end) = (at(1000), at(9000));
        let found = |answered: &[u64]| {
            let answered: Vec<Instant> = answered.iter().map(|millis| at(*millis)).collect();
            let (first, gap) = first_success(&answered, killed, end);
            (first.as_millis(), gap.as_millis())
        };
        let working = |from: u64| (from..9000).step_by(100);
        // One answer was still on its way.
        assert_eq!(found(&[500, 990, 1005].into_iter().chain(working(3100)).collect::<Vec<_>>()), (2100, 2095));
        let disturbed: Vec<u64> = working(900).filter(|at| !(3000..3500).contains(at)).collect();
        assert_eq!(found(&disturbed), (100, 600), "one that waited for another's takeover");
        assert_eq!((found(&[990]), found(&[990, 1005])), ((8000, 8010), (8000, 7995)), "one that never came back");
    }
}
