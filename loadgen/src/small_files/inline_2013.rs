//! The experiment of 2013: small files read by a client that starts cold, with their bodies
//! kept by the metadata server (inline) and without: one after the other as in 2013, and in batches as a client
//! with a library for small files would. A batch has all its files under way at once in both columns, so that
//! without inline bodies the objects are read in parallel too.
//!
//! Cold is the client: each measurement makes a new one, with no connection, no map and nothing cached, and
//! its connecting counts. The servers are as the writing left them (what they hold in memory they hold in both columns), unless
//! `cold_mds` has the metadata server killed and started again before each reading.

use std::time::Instant;

use anyhow::Context as _;
use pando_local_cluster::Options as ClusterOptions;
use serde::Serialize;

use super::check;
use crate::content::mix;
use crate::replay::Mismatches;
use crate::report::{Mismatch, PhaseReport, Report};
use crate::target::embedded::Embedded;
use crate::target::pando::Pando;
use crate::target::{Body, Session, Target as _};

/// Numbers of files, as in 2013.
pub const FILES: [usize; 3] = [1000, 2000, 3000];
const SIZE: u64 = 1024;
/// The fastest of so many readings counts: others use the machine too.
const READINGS: usize = 3;
const INLINE_LIMIT: u64 = 4096;
/// Files of one call of `read_many`.
const BATCH: usize = 64;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// How many were read.
    pub files: usize,
    /// With bodies in objects.
    pub without_seconds: f64,
    /// With bodies inline.
    pub with_seconds: f64,
    /// With bodies in objects, in batches of 64.
    pub batched_without_seconds: f64,
    /// With bodies inline, in batches of 64.
    pub batched_with_seconds: f64,
}

impl Row {
    fn new(files: usize, without: Timing, with: Timing) -> Self {
        Self {
            files,
            without_seconds: without.sequential,
            with_seconds: with.sequential,
            batched_without_seconds: without.batched,
            batched_with_seconds: with.batched,
        }
    }

    fn phases(&self) -> [PhaseReport; 4] {
        let files = self.files;
        let phase = |name: String, seconds| PhaseReport::new(name, seconds, files as u64);
        [
            phase(format!("read {files} without"), self.without_seconds),
            phase(format!("read {files} with"), self.with_seconds),
            phase(format!("read_many {files} without"), self.batched_without_seconds),
            phase(format!("read_many {files} with"), self.batched_with_seconds),
        ]
    }
}

/// Seconds to read so many files, in both manners.
#[derive(Clone, Copy, Debug)]
struct Timing {
    sequential: f64,
    batched: f64,
}

/// How files are read.
#[derive(Clone, Copy, Debug)]
enum Manner {
    OneByOne,
    Batched,
}

/// Runs it on two clusters of its own.
pub fn run(cluster: &ClusterOptions, seed: u64, cold_mds: bool) -> anyhow::Result<Report> {
    run_with(cluster, seed, cold_mds, &FILES)
}

/// The same with other numbers of files.
pub fn run_with(cluster: &ClusterOptions, seed: u64, cold_mds: bool, counts: &[usize]) -> anyhow::Result<Report> {
    let mismatches = Mismatches::default();
    let mut report = Report::new("small-files", "pando (embedded)".into(), 1);
    let experiment = Experiment { seed, cold_mds, counts, mismatches: &mismatches };
    let (without, bytes) = experiment.column(cluster, 0)?;
    report.bytes_verified += bytes;
    let (with, bytes) = experiment.column(cluster, INLINE_LIMIT)?;
    report.bytes_verified += bytes;
    let columns = without.into_iter().zip(with);
    let rows: Vec<Row> =
        counts.iter().zip(columns).map(|(files, (without, with))| Row::new(*files, without, with)).collect();
    report.phases.extend(rows.iter().flat_map(Row::phases));
    report.sum_up();
    mismatches.report(&mut report);
    report.extra.insert("experiment".into(), "inline-2013".into());
    report.extra.insert("cold".into(), if cold_mds { "client and mds" } else { "client" }.into());
    report.extra.insert("rows".into(), serde_json::to_value(&rows)?);
    Ok(report)
}

/// The table for people.
pub fn table(report: &Report) -> String {
    let cold = report.extra.get("cold").and_then(|cold| cold.as_str()).unwrap_or("client");
    let mut out = format!("seconds to read files of 1 KB, one after the other and {BATCH} in a call (cold: {cold})\n");
    out.push_str("files | without inline | with inline | ratio | batched without | batched with | ratio\n");
    let rows = report.extra.get("rows").and_then(|rows| rows.as_array()).cloned().unwrap_or_default();
    for row in rows {
        let number = |name: &str| row.get(name).and_then(serde_json::Value::as_f64).unwrap_or_default();
        let (without, with) = (number("without_seconds"), number("with_seconds"));
        let (many_without, many_with) = (number("batched_without_seconds"), number("batched_with_seconds"));
        let files = number("files");
        out.push_str(&format!("{files:>5} | {without:>14.3} | {with:>11.3} | {:>5.2}", without / with));
        out.push_str(&format!(" | {many_without:>15.3} | {many_with:>12.3} | {:>5.2}\n", many_without / many_with));
    }
    out
}

struct Experiment<'a> {
    seed: u64,
    cold_mds: bool,
    counts: &'a [usize],
    mismatches: &'a Mismatches,
}

impl Experiment<'_> {
    /// Seconds for each number of files, and the bytes compared.
    fn column(&self, cluster: &ClusterOptions, inline_limit: u64) -> anyhow::Result<(Vec<Timing>, u64)> {
        // Each column is a cluster of its own.
        let options = ClusterOptions { inline_limit: Some(inline_limit), ..cluster.clone() };
        let mut cluster = Embedded::start(options)?;
        let target = Pando::new(cluster.mons());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut timings = Vec::new();
        let mut bytes = 0;
        runtime.block_on(self.write(&target)).context("cannot write the files")?;
        for files in self.counts.iter().copied() {
            let mut best = |manner| -> anyhow::Result<f64> {
                let mut best = f64::INFINITY;
                for _ in 0..READINGS {
                    if self.cold_mds {
                        cluster.restart_mds()?;
                    }
                    let start = Instant::now();
                    bytes += runtime.block_on(self.read(&target, files, manner))?;
                    best = best.min(start.elapsed().as_secs_f64());
                }
                Ok(best)
            };
            timings.push(Timing { sequential: best(Manner::OneByOne)?, batched: best(Manner::Batched)? });
        }
        Ok((timings, bytes))
    }

    async fn write(&self, target: &Pando) -> anyhow::Result<()> {
        let mut session = target.session(0).await?;
        session.make_root().await?;
        for files in self.counts.iter().copied() {
            session.mkdir(&format!("files-{files}"), 0o755).await?;
            let all: Vec<_> = (0..files).map(|file| (path(files, file), body(self.seed, files, file))).collect();
            for outcome in session.create_many(&all, 0o644).await {
                outcome?;
            }
        }
        Ok(session.end().await?)
    }

    async fn read(&self, target: &Pando, files: usize, manner: Manner) -> anyhow::Result<u64> {
        let mut session = target.session(0).await?;
        let mut bytes = 0;
        match manner {
            Manner::OneByOne => {
                for file in 0..files {
                    let got = session.read_file(&path(files, file)).await?;
                    bytes += self.compare(files, file, got);
                }
            }
            Manner::Batched => {
                for first in (0..files).step_by(BATCH) {
                    let range = first..files.min(first + BATCH);
                    let paths: Vec<String> = range.clone().map(|file| path(files, file)).collect();
                    for (file, got) in range.zip(session.read_many(&paths).await) {
                        bytes += self.compare(files, file, &got?);
                    }
                }
            }
        }
        Ok(bytes)
    }

    /// The bytes compared.
    fn compare(&self, files: usize, file: usize, got: &[u8]) -> u64 {
        if let Err(wrong) = check(body(self.seed, files, file), got) {
            let (operation, expected) = (format!("read {}", path(files, file)), "the content written".to_owned());
            self.mismatches.add(Mismatch { client: 0, line: 0, operation, expected, got: wrong });
        }
        got.len() as u64
    }
}

fn path(files: usize, file: usize) -> String {
    format!("files-{files}/{file}")
}

fn body(seed: u64, files: usize, file: usize) -> Body {
    Body { seed: mix(mix(seed, files as u64), file as u64), size: SIZE }
}
