//! The experiment of 2013: small files read by a client that starts cold, with their bodies
//! kept by the metadata server (inline) and without.
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

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// How many were read.
    pub files: usize,
    /// With bodies in objects.
    pub without_seconds: f64,
    /// With bodies inline.
    pub with_seconds: f64,
}

/// Runs it on two clusters of its own.
pub fn run(cluster: &ClusterOptions, seed: u64, cold_mds: bool) -> anyhow::Result<Report> {
    let mismatches = Mismatches::default();
    let mut report = Report::new("small-files", "pando (embedded)".into(), 1);
    let (without, bytes) = column(cluster, 0, seed, cold_mds, &mismatches)?;
    report.bytes_verified += bytes;
    let (with, bytes) = column(cluster, INLINE_LIMIT, seed, cold_mds, &mismatches)?;
    report.bytes_verified += bytes;
    let rows: Vec<Row> = FILES
        .into_iter()
        .zip(without.iter().zip(&with))
        .map(|(files, (without, with))| Row { files, without_seconds: *without, with_seconds: *with })
        .collect();
    for row in &rows {
        let name = |column: &str| format!("read {} {column}", row.files);
        report.phases.push(PhaseReport::new(name("without"), row.without_seconds, row.files as u64));
        report.phases.push(PhaseReport::new(name("with"), row.with_seconds, row.files as u64));
    }
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
    let mut out = format!("seconds to read files of 1 KB, one after the other (cold: {cold})\n");
    out.push_str("files | without inline | with inline | ratio\n");
    let rows = report.extra.get("rows").and_then(|rows| rows.as_array()).cloned().unwrap_or_default();
    for row in rows {
        let number = |name: &str| row.get(name).and_then(serde_json::Value::as_f64).unwrap_or_default();
        let (without, with) = (number("without_seconds"), number("with_seconds"));
        let files = number("files");
        out.push_str(&format!("{files:>5} | {without:>14.3} | {with:>11.3} | {:>5.2}\n", without / with));
    }
    out
}

/// Seconds for each number of files, and the bytes compared.
fn column(
    cluster: &ClusterOptions,
    inline_limit: u64,
    seed: u64,
    cold_mds: bool,
    mismatches: &Mismatches,
) -> anyhow::Result<(Vec<f64>, u64)> {
    // Each column is a cluster of its own.
    let data = cluster.data.as_ref().map(|data| data.join(format!("inline-{inline_limit}")));
    let options = ClusterOptions { data, inline_limit: Some(inline_limit), ..cluster.clone() };
    let mut cluster = Embedded::start(options)?;
    let target = Pando::new(cluster.mons());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut seconds = Vec::new();
    let mut bytes = 0;
    runtime.block_on(write(&target, seed)).context("cannot write the files")?;
    for files in FILES {
        let mut best = f64::INFINITY;
        for _ in 0..READINGS {
            if cold_mds {
                cluster.restart_mds()?;
            }
            let start = Instant::now();
            bytes += runtime.block_on(read(&target, files, seed, mismatches))?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        seconds.push(best);
    }
    Ok((seconds, bytes))
}

fn path(files: usize, file: usize) -> String {
    format!("files-{files}/{file}")
}

fn body(seed: u64, files: usize, file: usize) -> Body {
    Body { seed: mix(mix(seed, files as u64), file as u64), size: SIZE }
}

async fn write(target: &Pando, seed: u64) -> anyhow::Result<()> {
    let mut session = target.session(0).await?;
    session.make_root().await?;
    for files in FILES {
        session.mkdir(&format!("files-{files}"), 0o755).await?;
        let all: Vec<_> = (0..files).map(|file| (path(files, file), body(seed, files, file))).collect();
        for outcome in session.create_many(&all, 0o644).await {
            outcome?;
        }
    }
    Ok(session.end().await?)
}

async fn read(target: &Pando, files: usize, seed: u64, mismatches: &Mismatches) -> anyhow::Result<u64> {
    let mut session = target.session(0).await?;
    let mut bytes = 0;
    for file in 0..files {
        let path = path(files, file);
        let got = session.read_file(&path).await?;
        bytes += got.len() as u64;
        if let Err(got) = check(body(seed, files, file), got) {
            let (operation, expected) = (format!("read {path}"), "the content written".to_owned());
            mismatches.add(Mismatch { client: 0, line: 0, operation, expected, got });
        }
    }
    Ok(bytes)
}
