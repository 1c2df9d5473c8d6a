//! The experiment with many metadata servers: the same replay with more and more ranks, each with the same share of a
//! CPU, so that a small machine shows how the work scales.
//!
//! The share has to be small enough that clients, OSDs and the mon find room beside the ranks at the largest number of
//! them: the columns on the share and on the machine say whether that was so.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pando_local_cluster::Options as ClusterOptions;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cluster::{Cluster, Plan};
use super::html::{self, Page};
use super::observe::Observed;
use super::run;
use crate::measure::Bucket;
use crate::replay;
use crate::report::{PhaseReport, Report, counted};
use crate::target::pando::Pando;
use crate::trace::Trace;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of ranks.
    pub ranks: Vec<u32>,
    /// Numbers of clients.
    pub clients: Vec<usize>,
    /// So much of one CPU for each rank, in percent; without it they are threads of this process.
    pub rank_cpu: Option<u32>,
    /// For a call of a client: at a small share of a CPU some wait long.
    pub deadline: Duration,
    /// How each is replayed; the number of clients is set for each.
    pub replay: replay::Options,
    /// What else happens; the page is that of the experiment.
    pub run: run::Options,
    /// The cluster.
    pub cluster: ClusterOptions,
    /// What the cluster is, for the report.
    pub label: String,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Clients.
    pub clients: usize,
    /// Ranks.
    pub ranks: u32,
    /// Of all phases.
    pub seconds: f64,
    /// How long clients waited, all together.
    pub client_latency_sum_seconds: f64,
    /// The slowest operation.
    pub longest_stall_ms: f64,
    /// CPU of all ranks.
    pub rank_cpu_seconds: f64,
    /// That, to what they were allowed: near 100 they were the bottleneck.
    #[serde(default)]
    pub share_used_percent: Option<f64>,
    /// CPU of this process: clients, OSDs, mons.
    #[serde(default)]
    pub other_cpu_seconds: f64,
    /// How busy all processors were, whoever used them.
    #[serde(default)]
    pub machine_busy_percent: Option<f64>,
    /// How long clients computed, all together.
    #[serde(default)]
    pub think_sum_seconds: f64,
    /// Subtrees that changed their owner meanwhile.
    pub migrations: usize,
    /// Of time, to the first number of ranks with as many clients.
    pub time_ratio: f64,
    /// Of the sum of latencies.
    pub latency_ratio: f64,
    /// Wrong results.
    pub mismatches: u64,
}

impl Row {
    fn heading(&self) -> String {
        format!("{}, {}", counted(self.clients, "client"), counted(self.ranks, "rank"))
    }
}

/// A run and what was seen in it.
struct Run {
    row: Row,
    observed: Observed,
    distribution: Vec<Bucket>,
}

/// Runs all of them, one after the other, each on a cluster of its own. `page` is where to draw them.
///
/// Errors: what keeps one from starting.
pub fn run(options: &Options, trace: &Trace, page: Option<&PathBuf>) -> anyhow::Result<Report> {
    anyhow::ensure!(!options.ranks.is_empty() && !options.clients.is_empty(), "name ranks and clients");
    let most = options.clients.iter().copied().max().unwrap_or_default();
    let mut report = Report::new("multi-mds", describe(options), most);
    let mut runs: Vec<Run> = Vec::new();
    for clients in &options.clients {
        for ranks in &options.ranks {
            let (one, observed) = one(options, trace, *clients, *ranks)?;
            let row = row(&one, &observed, *ranks, options.rank_cpu, &runs);
            eprintln!("{}: {:.1} s", row.heading(), row.seconds);
            let distribution = html::distribution(&one);
            report.phases.push(PhaseReport::new(row.heading(), one.seconds, one.operations));
            report.mismatches += one.mismatches;
            report.first_mismatches.extend(one.first_mismatches);
            report.interrupted |= one.interrupted;
            report.bytes_verified += one.bytes_verified;
            report.bytes_written += one.bytes_written;
            runs.push(Run { row, observed, distribution });
        }
    }
    report.sum_up();
    report.first_mismatches.truncate(replay::DESCRIBED);
    let rows: Vec<&Row> = runs.iter().map(|run| &run.row).collect();
    report.extra.insert("experiment".into(), "multi-mds".into());
    report.extra.insert("rows".into(), serde_json::to_value(rows)?);
    report.extra.insert("trace".into(), options.replay.trace_name.clone().into());
    report.extra.insert("rank_cpu_percent".into(), options.rank_cpu.into());
    report.extra.insert("think_us".into(), (options.replay.think.as_micros() as u64).into());
    report.extra.insert("spread".into(), options.run.spread.into());
    report.extra.insert("rotate_seconds".into(), options.run.rotate.map(|every| every.as_secs()).into());
    if let Some(file) = page {
        drawn(&report, &runs).write(file)?;
    }
    Ok(report)
}

/// All that decides about the figures.
fn describe(options: &Options) -> String {
    let share = match options.rank_cpu {
        Some(percent) => format!("ranks with {percent} % of a CPU each"),
        None => "ranks are threads".to_owned(),
    };
    let dealt = match (options.run.spread, options.run.rotate) {
        (false, _) => "all at one rank at first".to_owned(),
        (true, None) => "dealt over the ranks at first".to_owned(),
        (true, Some(every)) => format!("dealt over the ranks, what is over moving on every {} s", every.as_secs()),
    };
    let (label, think) = (options.label.trim_end_matches(')'), options.replay.think.as_micros());
    format!("{label}, {share}; trees {dealt}; clients compute {think} us after each operation)")
}

fn one(options: &Options, trace: &Trace, clients: usize, ranks: u32) -> anyhow::Result<(Report, Observed)> {
    let plan = Plan { ranks, processes: false, cpu_percent: options.rank_cpu };
    let cluster = Cluster::start(options.cluster.clone(), plan)?;
    let mons = cluster.mons();
    let target = Pando::new(&mons).with_deadline(options.deadline);
    let replayed = replay::Options { clients, keep_roots: true, ..options.replay.clone() };
    let cluster = Arc::new(Mutex::new(cluster));
    run::replay(&mons, Some(&cluster), &target, trace, &replayed, &options.run)
}

fn row(report: &Report, observed: &Observed, ranks: u32, share: Option<u32>, before: &[Run]) -> Row {
    let number = |name: &str| report.extra.get(name).and_then(Value::as_f64).unwrap_or_default();
    let cpu = report.extra.get("rank_cpu_seconds").and_then(Value::as_object);
    let mut row = Row {
        clients: report.clients,
        ranks,
        seconds: report.seconds,
        client_latency_sum_seconds: number("client_latency_sum_seconds"),
        longest_stall_ms: number("longest_stall_ms"),
        rank_cpu_seconds: cpu.into_iter().flatten().filter_map(|(_, cpu)| cpu.as_f64()).sum(),
        share_used_percent: None,
        other_cpu_seconds: number("own_cpu_seconds"),
        machine_busy_percent: report.extra.get("machine_busy_percent").and_then(Value::as_f64),
        think_sum_seconds: number("think_sum_seconds"),
        migrations: observed.migrations.len(),
        time_ratio: 1.0,
        latency_ratio: 1.0,
        mismatches: report.mismatches,
    };
    let allowed =
        share.map(|percent| f64::from(ranks * percent) / 100.0 * row.seconds).filter(|allowed| *allowed > 0.0);
    row.share_used_percent = allowed.map(|allowed| 100.0 * row.rank_cpu_seconds / allowed);
    if let Some(first) = before.iter().find(|run| run.row.clients == row.clients) {
        row.time_ratio = row.seconds / first.row.seconds;
        row.latency_ratio = row.client_latency_sum_seconds / first.row.client_latency_sum_seconds;
    }
    row
}

const HEAD: [&str; 12] = [
    "clients",
    "ranks",
    "seconds",
    "ratio",
    "latency sum s",
    "ratio",
    "longest ms",
    "rank CPU s",
    "of share %",
    "other CPU s",
    "machine %",
    "migrations",
];

fn cells(row: &Row) -> Vec<String> {
    let percent = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
    vec![
        row.clients.to_string(),
        row.ranks.to_string(),
        format!("{:.2}", row.seconds),
        format!("{:.3}", row.time_ratio),
        format!("{:.1}", row.client_latency_sum_seconds),
        format!("{:.3}", row.latency_ratio),
        format!("{:.1}", row.longest_stall_ms),
        format!("{:.2}", row.rank_cpu_seconds),
        percent(row.share_used_percent),
        format!("{:.2}", row.other_cpu_seconds),
        percent(row.machine_busy_percent),
        row.migrations.to_string(),
    ]
}

fn rows(report: &Report) -> Vec<Row> {
    let rows = report.extra.get("rows").cloned().unwrap_or_default();
    serde_json::from_value(rows).unwrap_or_default()
}

/// The table for people.
pub fn table(report: &Report) -> String {
    let cells: Vec<Vec<String>> = rows(report).iter().map(cells).collect();
    format!("multi-mds on {}\n{}", report.target, text_table(&HEAD, &cells))
}

/// Columns under a head, to the right.
pub(super) fn text_table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        padded.join("  ") + "\n"
    };
    let mut text = line(&mut head.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

fn drawn(report: &Report, runs: &[Run]) -> Page {
    let mut page = Page::new("Many metadata servers");
    let trace = report.extra.get("trace").and_then(Value::as_str).unwrap_or_default();
    let (target, environment) = (&report.target, &report.environment);
    let (cores, build) = (counted(environment.cores, "core"), &environment.build);
    page.text(&format!("{target}; trace {trace}; {cores}, {build} build; mismatches: {}.", report.mismatches));
    page.text(
        "Ratios are to the first number of ranks with as many clients. \"of share %\": CPU of the ranks to what they were \
         allowed (near 100 they were the bottleneck); \"other CPU\": clients, OSDs and mons; \"machine %\": how busy all \
         processors were.",
    );
    page.table(&HEAD, &runs.iter().map(|run| cells(&run.row)).collect::<Vec<_>>());
    for Run { row, observed, distribution } in runs {
        page.heading(&format!("{}: throughput of each rank", row.heading()));
        html::about_marks(&mut page, observed);
        let lines = html::of_ranks(observed, |sample| sample.ops_per_s);
        page.picture(&html::curves(&lines, &html::marks(observed), "operations per second"));
        page.heading(&format!("{}: latency of operations", row.heading()));
        page.picture(&html::latency_bars(distribution));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_first_ranks_of_as_many_clients() {
        let report = |clients, seconds, sum: f64| {
            let mut report = Report::new("replay", String::new(), clients);
            report.seconds = seconds;
            report.extra.insert("client_latency_sum_seconds".into(), sum.into());
            report.extra.insert("rank_cpu_seconds".into(), serde_json::json!({"0": 1.5, "1": 2.0}));
            report
        };
        let mut runs: Vec<Run> = Vec::new();
        for (clients, ranks, seconds, sum) in [(8, 1, 10.0, 80.0), (8, 2, 6.0, 40.0), (16, 1, 20.0, 300.0)] {
            let observed = Observed::default();
            let row = row(&report(clients, seconds, sum), &observed, ranks, Some(20), &runs);
            runs.push(Run { row, observed, distribution: Vec::new() });
        }
        let ratios: Vec<_> = runs.iter().map(|run| (run.row.time_ratio, run.row.latency_ratio)).collect();
        assert_eq!(ratios, [(1.0, 1.0), (0.6, 0.5), (1.0, 1.0)]);
        assert_eq!([runs[0].row.heading(), runs[1].row.heading()], ["8 clients, 1 rank", "8 clients, 2 ranks"]);
        assert_eq!(runs[0].row.rank_cpu_seconds, 3.5);
        let shares: Vec<_> = runs.iter().map(|run| run.row.share_used_percent.unwrap().round()).collect();
        assert_eq!(shares, [175.0, 146.0, 88.0], "3.5 s of 20 % of 10 s, of twice 6 s, of 20 s");
        let text = text_table(&["a", "long"], &[vec!["123".into(), "4".into()]]);
        assert_eq!(text, "  a  long\n123     4\n");
    }
}
