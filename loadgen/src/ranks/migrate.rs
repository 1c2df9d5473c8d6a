//! How long clients wait while the subtree in which they work moves: a subtree with many cached inodes goes to and
//! fro between two ranks.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use pando_cluster_map::settings;
use pando_local_cluster::Options as ClusterOptions;
use pando_proto::{Error, Rank, SubtreeId};
use serde::Serialize;

use super::cluster::{Cluster, Plan};
use super::html::Page;
use super::tree::Tree;
use super::work::{self, Load, Slow, Warm, millis};
use crate::measure::median;
use crate::replay::Mismatches;
use crate::report::{Report, counted};
use crate::target::pando::Pando;

const DIR: &str = "/migrate";
/// Files in a directory.
const FILES: u64 = 1000;
const LIMIT: Duration = Duration::from_secs(60);
/// Before the first move, and between two.
const CALM: Duration = Duration::from_secs(1);
/// What a move causes may show a little after it is done.
const AFTER: Duration = Duration::from_millis(200);

/// What to move, and under what load.
#[derive(Clone, Debug)]
pub struct Options {
    /// Cached at the rank that the subtree leaves.
    pub inodes: u64,
    /// At work in the subtree.
    pub clients: usize,
    /// Threads that carry them.
    pub threads: usize,
    /// How often it moves.
    pub moves: usize,
    /// Contents follow from it.
    pub seed: u64,
    /// The cluster.
    pub cluster: ClusterOptions,
    /// Its ranks; two at least.
    pub plan: Plan,
    /// Where to write the report as a page.
    pub html: Option<PathBuf>,
}

/// One move.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// From this rank.
    pub from: u32,
    /// To this one.
    pub to: u32,
    /// From asking to the new owner in the map.
    pub seconds: f64,
    /// The longest request of any client that was under way meanwhile.
    pub longest_stall_ms: f64,
    /// The same of a stretch of the same length before it, in which nothing moved.
    pub stall_without_move_ms: f64,
}

/// When a move was under way.
struct Moved {
    from: u32,
    to: u32,
    start: Instant,
    end: Instant,
    /// Nothing moved from then to the start, nor did anything of an earlier move show.
    calm: Instant,
}

impl Moved {
    fn meets(&self, slow: &Slow) -> bool {
        slow.start <= self.end + AFTER && slow.end >= self.start
    }

    /// For comparison: a request that was under way before, in a stretch as long as that of the move.
    fn precedes(&self, slow: &Slow) -> bool {
        let length = self.end + AFTER - self.start;
        let from = self.start.checked_sub(length).map_or(self.calm, |from| from.max(self.calm));
        slow.start >= from && slow.end < self.start
    }
}

/// Runs it.
///
/// Errors: what keeps it from starting, and a move that fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    anyhow::ensure!(options.plan.ranks >= 2, "a migration needs two ranks");
    let cluster = Cluster::start(options.cluster.clone(), options.plan)?;
    let mons = cluster.mons();
    let warm = Warm { dir: DIR.into(), directories: options.inodes.div_ceil(FILES), files: FILES.min(options.inodes) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (tree, subtree) = runtime.block_on(prepare(&mons, &warm, options.clients))?;
    let dirs: Vec<String> = (0..options.clients).map(client_dir).collect();
    let target = Pando::new(&mons);
    let load = Load {
        target: &target,
        dirs: &dirs,
        warm: Some(&warm),
        threads: options.threads,
        seed: options.seed,
        stop: AtomicBool::new(false),
        mismatches: Mismatches::default(),
    };
    let start = Instant::now();
    let (done, moved) = std::thread::scope(|scope| {
        let stop = load.stop_at_end();
        let working = scope.spawn(|| load.run());
        let moved = runtime.block_on(moves(&tree, subtree, options.moves));
        drop(stop);
        (working.join(), moved)
    });
    let mut done = done.map_err(|_| anyhow::anyhow!("the load panicked"))??;
    let (moved, cached) = moved?;
    let seconds = start.elapsed().as_secs_f64();
    let slow: Vec<Slow> = done.iter().flat_map(|done| done.slow.iter().copied()).collect();
    let failed: u64 = done.iter().map(|done| done.failed).sum();
    let label = format!("pando ({}, {} ranks)", counted(options.inodes, "inode"), options.plan.ranks);
    let mut report = work::report("migrate", label, seconds, &mut done, load.mismatches);
    note(&mut report, &moved, &slow, failed, cached)?;
    runtime.block_on(tree.close());
    if let Some(file) = &options.html {
        page(&report)?.write(file)?;
    }
    Ok(report)
}

fn client_dir(client: usize) -> String {
    format!("{DIR}/c{client}")
}

/// A subtree with so many files, all just made and looked at.
async fn prepare(mons: &str, warm: &Warm, clients: usize) -> anyhow::Result<(Tree, SubtreeId)> {
    let tree = Tree::connect(mons, LIMIT).await?;
    tree.admin.set_setting(settings::BALANCER_MODE, &settings::BALANCER_OFF.to_string()).await?;
    tree.make_dir(DIR).await?;
    let subtree = tree.split(DIR).await?;
    for client in 0..clients {
        tree.make_dir(&client_dir(client)).await?;
    }
    for directory in 0..warm.directories {
        tree.make_dir(&warm.directory(directory)).await?;
        let paths: Vec<String> = (0..warm.files).map(|file| warm.file(directory * warm.files + file)).collect();
        let made = tree.client.write_many(paths.iter().map(|path| (path, Bytes::new()))).await;
        made.into_iter().collect::<Result<(), _>>().context("cannot make the files")?;
        let seen = tree.client.stat_many(&paths).await;
        seen.into_iter().try_for_each(|seen| seen.map(drop))?;
    }
    Ok((tree, subtree))
}

/// The moves, and how many inodes the owner said were cached before the first.
async fn moves(tree: &Tree, subtree: SubtreeId, count: usize) -> anyhow::Result<(Vec<Moved>, u64)> {
    tokio::time::sleep(CALM).await;
    let mut calm = Instant::now();
    tokio::time::sleep(CALM).await;
    let cached = cached(tree, subtree).await;
    let mut moved = Vec::with_capacity(count);
    for number in 0..count {
        let map = tree.client.map();
        let from = map.subtrees.get(&subtree).context("the subtree is gone")?.owner;
        let others = map.ranks.iter().filter(|(rank, info)| info.up && **rank != from).map(|(rank, _)| *rank);
        let to = others.min().context("there is no other rank")?;
        let start = Instant::now();
        let (_, epoch) = tree.admin.move_subtree(subtree, to, true).await.with_context(|| format!("move {number}"))?;
        let end = Instant::now();
        moved.push(Moved { from: from.0, to: to.0, start, end, calm });
        calm = end + AFTER;
        // Until the next: at least as long as a move.
        tokio::time::sleep(AFTER + (end - start + 2 * AFTER).max(CALM)).await;
        wait_for_map(tree, subtree, to).await.with_context(|| format!("no map of epoch {epoch} came"))?;
    }
    Ok((moved, cached))
}

async fn cached(tree: &Tree, subtree: SubtreeId) -> u64 {
    let loads = tree.admin.list_loads().await.unwrap_or_default();
    let all = loads.into_iter().filter_map(|of| of.load).flat_map(|load| load.subtrees);
    all.filter(|load| load.subtree == subtree.0).map(|load| load.cached_inodes).max().unwrap_or(0)
}

/// The client's own map shows the new owner.
async fn wait_for_map(tree: &Tree, subtree: SubtreeId, owner: Rank) -> Result<(), Error> {
    let start = Instant::now();
    while tree.client.map().subtrees.get(&subtree).is_none_or(|found| found.owner != owner) {
        if start.elapsed() > LIMIT {
            return Err(Error::new(pando_proto::Reason::Timeout, "the map does not follow"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

fn note(report: &mut Report, moved: &[Moved], slow: &[Slow], failed: u64, cached: u64) -> anyhow::Result<()> {
    let longest =
        |slow: &mut dyn Iterator<Item = &Slow>| slow.map(|slow| millis(slow.end - slow.start)).fold(0.0, f64::max);
    let rows: Vec<Row> = moved
        .iter()
        .map(|moved| Row {
            from: moved.from,
            to: moved.to,
            seconds: (moved.end - moved.start).as_secs_f64(),
            longest_stall_ms: longest(&mut slow.iter().filter(|slow| moved.meets(slow))),
            stall_without_move_ms: longest(&mut slow.iter().filter(|slow| moved.precedes(slow))),
        })
        .collect();
    let quiet = longest(&mut slow.iter().filter(|slow| !moved.iter().any(|moved| moved.meets(slow))));
    let stalls: Vec<f64> = rows.iter().map(|row| row.longest_stall_ms).collect();
    let without: Vec<f64> = rows.iter().map(|row| row.stall_without_move_ms).collect();
    let added: Vec<f64> = rows.iter().map(|row| row.longest_stall_ms - row.stall_without_move_ms).collect();
    let extra = &mut report.extra;
    extra.insert("moves".into(), serde_json::to_value(&rows)?);
    extra.insert("median_stall_ms".into(), median(&stalls).into());
    extra.insert("worst_stall_ms".into(), stalls.iter().copied().fold(0.0, f64::max).into());
    extra.insert("median_stall_without_move_ms".into(), median(&without).into());
    extra.insert("worst_stall_without_move_ms".into(), without.iter().copied().fold(0.0, f64::max).into());
    extra.insert("median_added_by_move_ms".into(), median(&added).into());
    extra.insert("quiet_longest_ms".into(), quiet.into());
    extra.insert("failed_requests".into(), failed.into());
    extra.insert("cached_inodes".into(), cached.into());
    Ok(())
}

fn rows(report: &Report) -> Vec<Vec<String>> {
    let moves = report.extra.get("moves").and_then(serde_json::Value::as_array);
    let cell = |row: &serde_json::Value, name: &str| row[name].as_f64().unwrap_or_default();
    let row = |(number, row): (usize, &serde_json::Value)| {
        vec![
            (number + 1).to_string(),
            format!("{} -> {}", row["from"], row["to"]),
            format!("{:.3}", cell(row, "seconds")),
            format!("{:.1}", cell(row, "longest_stall_ms")),
            format!("{:.1}", cell(row, "stall_without_move_ms")),
        ]
    };
    moves.into_iter().flatten().enumerate().map(row).collect()
}

const HEAD: [&str; 5] = ["move", "ranks", "seconds", "longest stall ms", "without a move ms"];

fn summary(report: &Report) -> String {
    let number = |name: &str| report.extra.get(name).and_then(serde_json::Value::as_f64).unwrap_or_default();
    format!(
        "longest stall of a move: median {:.1} ms, worst {:.1} ms; in as long a time before each, without a move: \
         median {:.1} ms, worst {:.1} ms; the move adds {:.1} ms at the median; failed requests: {}; inodes cached \
         before the first move: {}",
        number("median_stall_ms"),
        number("worst_stall_ms"),
        number("median_stall_without_move_ms"),
        number("worst_stall_without_move_ms"),
        number("median_added_by_move_ms"),
        number("failed_requests"),
        number("cached_inodes")
    )
}

/// The table for people.
pub fn table(report: &Report) -> String {
    super::multi_mds::text_table(&HEAD, &rows(report)) + &summary(report) + "\n"
}

fn page(report: &Report) -> anyhow::Result<Page> {
    let mut page = Page::new("Moves of a subtree under load");
    page.text(&format!("{}, {}.", report.target, counted(report.clients, "client"))).text(&summary(report));
    page.table(&HEAD, &rows(report));
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_belongs_to_the_moves_that_it_meets() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let moved =
            |from: u64, to: u64, calm: u64| Moved { from: 0, to: 1, start: at(from), end: at(to), calm: at(calm) };
        let slow = |from: u64, to: u64| Slow { start: at(from), end: at(to) };
        let mut report = Report::new("migrate", String::new(), 1);
        let before = [slow(20, 70), slow(60, 90), slow(60, 80), slow(4600, 4700), slow(4750, 4800), slow(4900, 4920)];
        let all = [slow(90, 130), slow(150, 155), slow(5000, 5007), slow(9000, 9300)].into_iter().chain(before);
        let all: Vec<Slow> = all.collect();
        // The second has 299 ms before it, and what is like it.
        note(&mut report, &[moved(100, 200, 50), moved(5001, 5100, 400)], &all, 0, 7).unwrap();
        let stalls: Vec<f64> = report.extra["moves"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["longest_stall_ms"].as_f64().unwrap())
            .collect();
        assert_eq!(stalls, [40.0, 7.0]);
        assert_eq!((&report.extra["median_stall_ms"], &report.extra["worst_stall_ms"]), (&23.5.into(), &40.0.into()));
        let without = |row: usize| report.extra["moves"][row]["stall_without_move_ms"].as_f64().unwrap();
        assert_eq!((without(0), without(1)), (30.0, 50.0));
        assert_eq!(report.extra["median_stall_without_move_ms"], 40.0);
        assert_eq!(report.extra["median_added_by_move_ms"], -16.5);
        assert_eq!(report.extra["quiet_longest_ms"], 300.0);
    }
}
