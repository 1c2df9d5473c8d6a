//! How long the rename of a directory to another rank takes: one with very many entries below it, and an empty one, in
//! turns. No metadata has to move, so the first must not take longer than the second.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use pando_client::Client;
use pando_cluster_map::settings;
use pando_local_cluster::Options as ClusterOptions;
use pando_proto::{Errno, Error, Rank};
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, Plan};
use super::html::Page;
use super::multi_mds::text_table;
use super::tree::Tree;
use super::work::millis;
use crate::clients;
use crate::measure::{Recorder, median};
use crate::replay::Mismatches;
use crate::report::{Mismatch, PhaseReport, Report};
use crate::target::pando::Pando;

/// The directories between which others are renamed, each a subtree of another rank.
const SIDES: [&str; 2] = ["/rename-a", "/rename-b"];
const BIG: &str = "big";
const EMPTY: &str = "empty";
/// Files of a directory, but for the flat one, and of one call.
const FILES: u64 = 1000;
const LIMIT: Duration = Duration::from_secs(60);
/// Between two renames: what the one before has left to do is done.
const CALM: Duration = Duration::from_millis(50);

/// What to rename, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Below the big directory: files, and the directories that hold them.
    pub entries: u64,
    /// So many of them in one directory.
    pub flat: u64,
    /// Renames of each directory in each case.
    pub renames: usize,
    /// Files of the big directory that are looked at before it is renamed for the first time, so that they are cached.
    pub warm: u64,
    /// That make the files.
    pub clients: usize,
    /// Threads that carry them.
    pub threads: usize,
    /// The cluster.
    pub cluster: ClusterOptions,
    /// Its ranks; two at least.
    pub plan: Plan,
    /// Where to write the report as a page.
    pub html: Option<PathBuf>,
}

/// The directory that is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Case {
    /// Is a subtree of its own already: it was renamed before.
    Again,
    /// Is a part of the subtree in which it stands, and has to be split off.
    First,
}

impl Case {
    const ALL: [Self; 2] = [Self::Again, Self::First];

    fn text(self) -> &'static str {
        match self {
            Self::Again => "again (a subtree already)",
            Self::First => "for the first time (split off first)",
        }
    }
}

/// The renames of one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which.
    pub case: Case,
    /// Each, of the big directory.
    pub big_ms: Vec<f64>,
    /// Each, of the empty one.
    pub empty_ms: Vec<f64>,
    /// Of those.
    pub big_median_ms: f64,
    /// Of those.
    pub empty_median_ms: f64,
    /// Of the medians.
    pub ratio: f64,
}

impl Row {
    fn new(case: Case, big_ms: Vec<f64>, empty_ms: Vec<f64>) -> Self {
        let (big_median_ms, empty_median_ms) = (median(&big_ms), median(&empty_ms));
        let ratio = if empty_median_ms > 0.0 { big_median_ms / empty_median_ms } else { 0.0 };
        Self { case, big_ms, empty_ms, big_median_ms, empty_median_ms, ratio }
    }
}

/// How the entries lie: one flat directory, and as many of `FILES` files as are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    flat: u64,
    directories: u64,
    /// In the directories that are not flat.
    spread: u64,
}

impl Shape {
    /// Files and directories are `entries` together.
    fn new(entries: u64, flat: u64) -> Self {
        let flat = flat.min(entries.saturating_sub(1));
        // The flat directory is an entry as well, and each of the others is one beside its files.
        let rest = entries - flat - 1;
        let directories = rest.div_ceil(FILES + 1);
        Self { flat, directories, spread: rest - directories }
    }

    fn files(&self) -> u64 {
        self.flat + self.spread
    }

    fn entries(&self) -> u64 {
        self.files() + self.directories + 1
    }

    /// Below the big directory.
    fn file(&self, number: u64) -> String {
        match number.checked_sub(self.flat) {
            None => format!("flat/f{number}"),
            Some(number) => format!("d{}/f{}", number / FILES, number % FILES),
        }
    }
}

/// Runs it.
///
/// Errors: what keeps it from starting, and a rename that fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    anyhow::ensure!(options.plan.ranks >= 2, "a rename to another rank needs two ranks");
    anyhow::ensure!(options.entries >= 2, "the big directory needs entries");
    let cluster = Cluster::start(options.cluster.clone(), options.plan)?;
    let mons = cluster.mons();
    let shape = Shape::new(options.entries, options.flat);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tree = runtime.block_on(prepare(&mons, &shape))?;
    let start = Instant::now();
    let target = Pando::new(&mons);
    clients::run(options.clients, options.threads, |number| fill(&target, &shape, number, options.clients))?
        .into_iter()
        .collect::<anyhow::Result<()>>()?;
    let built = start.elapsed();
    tracing::info!(entries = shape.entries(), ?built, "the big directory is made");
    let mut renamer =
        Renamer { tree, shape, warm: options.warm, recorder: Recorder::default(), wrong: Mismatches::default() };
    let start = Instant::now();
    let rows = runtime.block_on(async {
        let mut rows = Vec::new();
        for case in Case::ALL {
            rows.push(renamer.case(case, options.renames).await?);
        }
        renamer.check_all().await?;
        anyhow::Ok(rows)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let label = format!(
        "pando ({} entries, {} of them in one directory, {} ranks)",
        shape.entries(),
        shape.flat,
        options.plan.ranks
    );
    let mut report = Report::new("rename", label, options.clients);
    report.phases.push(PhaseReport::new("build", built.as_secs_f64(), shape.files()));
    report.phases.push(PhaseReport::new("rename", seconds, renamer.recorder.total()));
    report.sum_up();
    report.latencies_us = renamer.recorder.latencies();
    renamer.wrong.report(&mut report);
    report.extra.insert("entries".into(), shape.entries().into());
    report.extra.insert("build_seconds".into(), built.as_secs_f64().into());
    report.extra.insert("cases".into(), serde_json::to_value(&rows)?);
    runtime.block_on(renamer.tree.close());
    if let Some(file) = &options.html {
        page(&report).write(file)?;
    }
    Ok(report)
}

/// The two sides at two ranks, and the directories of the big one.
async fn prepare(mons: &str, shape: &Shape) -> anyhow::Result<Tree> {
    let tree = Tree::connect(mons, LIMIT).await?;
    tree.admin.set_setting(settings::BALANCER_MODE, &settings::BALANCER_OFF.to_string()).await?;
    for (side, rank) in SIDES.iter().zip(0..) {
        tree.make_dir(side).await?;
        let subtree = tree.split(side).await?;
        tree.move_to(subtree, Rank(rank)).await?;
    }
    let side = SIDES[0];
    for name in [EMPTY, BIG, "big/flat"] {
        tree.make_dir(&format!("{side}/{name}")).await?;
    }
    for directory in 0..shape.directories {
        tree.make_dir(&format!("{side}/{BIG}/d{directory}")).await?;
    }
    Ok(tree)
}

/// One client's share of the files.
async fn fill(target: &Pando, shape: &Shape, number: usize, clients: usize) -> anyhow::Result<()> {
    let client = target.connect(number).await?;
    let calls = (0..shape.files().div_ceil(FILES)).skip(number).step_by(clients);
    for call in calls {
        let files = call * FILES..((call + 1) * FILES).min(shape.files());
        let files = files.map(|file| (format!("{}/{BIG}/{}", SIDES[0], shape.file(file)), Bytes::new()));
        let made = client.write_many(files).await;
        made.into_iter().collect::<Result<(), _>>().context("cannot make the files")?;
    }
    client.close().await?;
    Ok(())
}

struct Renamer {
    tree: Tree,
    shape: Shape,
    warm: u64,
    recorder: Recorder,
    wrong: Mismatches,
}

impl Renamer {
    /// Both directories begin and end at the first side.
    async fn case(&mut self, case: Case, renames: usize) -> anyhow::Result<Row> {
        let (mut big, mut empty) = (Vec::new(), Vec::new());
        if case == Case::Again {
            // To and fro without a look at the clock: from now on both are subtrees.
            for name in [BIG, EMPTY] {
                self.rename(name, 0).await?;
                self.rename(name, 1).await?;
            }
        }
        for number in 0..renames {
            let from = match case {
                Case::Again => number % 2,
                Case::First => 0,
            };
            if case == Case::First {
                self.join().await?;
            }
            // Each is the first of the two as often as the other.
            let names = if number.is_multiple_of(2) { [BIG, EMPTY] } else { [EMPTY, BIG] };
            for name in names {
                let took = self.rename(name, from).await?;
                self.recorder.record(if name == BIG { "rename-big" } else { "rename-empty" }, took);
                if name == BIG { &mut big } else { &mut empty }.push(millis(took));
                self.check(from, number as u64).await;
            }
            if case == Case::First {
                self.rename(BIG, 1).await?;
                self.rename(EMPTY, 1).await?;
            }
        }
        if case == Case::Again && renames % 2 == 1 {
            self.rename(BIG, 1).await?;
            self.rename(EMPTY, 1).await?;
        }
        Ok(Row::new(case, big, empty))
    }

    fn client(&self) -> &Client {
        &self.tree.client
    }

    /// Renames one from that side to the other.
    async fn rename(&self, name: &str, from: usize) -> anyhow::Result<Duration> {
        tokio::time::sleep(CALM).await;
        let path = |side: &str| format!("{side}/{name}");
        let (old, new) = (path(SIDES[from]), path(SIDES[1 - from]));
        let start = Instant::now();
        self.client().rename(&old, &new).await.map_err(Error::from).with_context(|| format!("{old} to {new}"))?;
        Ok(start.elapsed())
    }

    /// Makes both a part of the first side's subtree again, and has some of the big one cached there.
    async fn join(&self) -> anyhow::Result<()> {
        for name in [BIG, EMPTY] {
            let path = format!("{}/{name}", SIDES[0]);
            let subtree = self.tree.split(&path).await?;
            self.tree.merge(subtree).await.with_context(|| format!("{path} cannot be merged back"))?;
        }
        let warm = self.warm.min(self.shape.files());
        // From both ends: some of the flat directory, some of the others.
        let files: Vec<u64> = (0..warm / 2).chain(self.shape.files() - (warm - warm / 2)..self.shape.files()).collect();
        for call in files.chunks(FILES as usize) {
            let paths = call.iter().map(|file| format!("{}/{BIG}/{}", SIDES[0], self.shape.file(*file)));
            let seen = self.client().stat_many(paths).await;
            seen.into_iter().collect::<Result<Vec<_>, _>>().context("a file cannot be looked at")?;
        }
        Ok(())
    }

    fn note(&self, operation: String, expected: &str, got: String) {
        let mismatch = Mismatch { client: 0, line: 0, operation, expected: expected.to_owned(), got };
        self.wrong.add(mismatch);
    }

    /// After a rename of the big directory, or before it: a file has exactly one of its two paths.
    async fn check(&self, from: usize, number: u64) {
        let file = self.shape.file(number.wrapping_mul(7919) % self.shape.files());
        let mut found = 0;
        for side in [SIDES[from], SIDES[1 - from]] {
            let path = format!("{side}/{BIG}/{file}");
            match self.client().metadata(&path).await {
                Ok(_) => found += 1,
                Err(error) if error.errno() == Errno::ENOENT => {}
                Err(error) => self.note(format!("stat {path}"), "success, or ENOENT", error.to_string()),
            }
        }
        if found != 1 {
            self.note(format!("stat {file} at both sides"), "one", found.to_string());
        }
    }

    /// At the end: every name is there.
    async fn check_all(&self) -> anyhow::Result<()> {
        let big = format!("{}/{BIG}", SIDES[0]);
        let directories = (0..self.shape.directories).map(|directory| format!("d{directory}"));
        let mut found = 0;
        for directory in directories.chain(["flat".to_owned()]) {
            let mut listing = self.client().read_dir(format!("{big}/{directory}")).await?;
            while listing.next_entry().await?.is_some() {
                found += 1;
            }
        }
        if found != self.shape.files() {
            self.note(format!("listing all below {big}"), &format!("{} files", self.shape.files()), found.to_string());
        }
        Ok(())
    }
}

const HEAD: [&str; 6] = ["rename", "times", "big median ms", "empty median ms", "ratio", "worst ms (big, empty)"];

fn rows(report: &Report) -> Vec<Vec<String>> {
    let rows: Vec<Row> =
        serde_json::from_value(report.extra.get("cases").cloned().unwrap_or_default()).unwrap_or_default();
    let worst = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
    let cells = |row: &Row| {
        vec![
            row.case.text().to_owned(),
            row.big_ms.len().to_string(),
            format!("{:.2}", row.big_median_ms),
            format!("{:.2}", row.empty_median_ms),
            format!("{:.3}", row.ratio),
            format!("{:.2}, {:.2}", worst(&row.big_ms), worst(&row.empty_ms)),
        ]
    };
    rows.iter().map(cells).collect()
}

/// The table for people.
pub fn table(report: &Report) -> String {
    text_table(&HEAD, &rows(report))
}

fn page(report: &Report) -> Page {
    let mut page = Page::new("Renames of a directory to another rank");
    page.text(&format!("{}; mismatches: {}.", report.target, report.mismatches));
    page.table(&HEAD, &rows(report));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_what_was_asked_for() {
        for (entries, flat) in [(2, 0), (2, 9), (1000, 100), (2102, 100), (2103, 100), (1_000_000, 100_000)] {
            let shape = Shape::new(entries, flat);
            assert_eq!(shape.entries(), entries, "{shape:?}");
            assert!(shape.spread <= shape.directories * FILES, "{shape:?}");
        }
        let shape = Shape::new(1_000_000, 100_000);
        assert_eq!((shape.file(99_999), shape.file(100_000)), ("flat/f99999".to_owned(), "d0/f0".to_owned()));
        let last = format!("d{}/", shape.directories - 1);
        assert!(shape.file(shape.files() - 1).starts_with(&last), "no directory is empty");
    }

    #[test]
    fn ratios_are_of_medians() {
        let row = Row::new(Case::First, vec![9.0, 3.0, 2.0], vec![2.0, 1.0, 2.0, 50.0]);
        assert_eq!((row.big_median_ms, row.empty_median_ms, row.ratio), (3.0, 2.0, 1.5));
        assert_eq!(Row::new(Case::Again, vec![], vec![]).ratio, 0.0);
    }
}
