//! Reports as pages: one file with all in it, which opens without a network and without scripts.

mod chart;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use super::observe::{self, Observed};
use crate::measure::Bucket;
use crate::report::Report;

pub use chart::{Curve, Mark, bars, curves};

/// Rows of the table of migrations; a chaos makes many.
const MOST_ROWS: usize = 500;

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1c2430;background:#fff}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}table{border-collapse:collapse;margin:.5rem 0}\
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #dde2e8;font-variant-numeric:tabular-nums}\
th:first-child,td:first-child{text-align:left}th{color:#556070;font-weight:600}td.text{text-align:left}\
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#556070}p{max-width:46rem}\
.bad{color:#b3261e;font-weight:600}";

/// A page in the making.
pub struct Page {
    body: String,
    title: String,
}

/// Text as HTML shows it.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

impl Page {
    /// With its title on top.
    pub fn new(title: &str) -> Self {
        Self { body: format!("<h1>{}</h1>\n", escaped(title)), title: title.to_owned() }
    }

    /// A heading.
    pub fn heading(&mut self, text: &str) -> &mut Self {
        let _ = writeln!(self.body, "<h2>{}</h2>", escaped(text));
        self
    }

    /// A paragraph.
    pub fn text(&mut self, text: &str) -> &mut Self {
        let _ = writeln!(self.body, "<p>{}</p>", escaped(text));
        self
    }

    /// A table. Cells are plain text; the first column is to the left.
    pub fn table(&mut self, head: &[&str], rows: &[Vec<String>]) -> &mut Self {
        let cells = |tag: &str, cells: &mut dyn Iterator<Item = String>| {
            cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(&cell))).collect::<String>()
        };
        let head = cells("th", &mut head.iter().map(|cell| (*cell).to_owned()));
        let _ = writeln!(self.body, "<table><thead><tr>{head}</tr></thead><tbody>");
        for row in rows {
            let _ = writeln!(self.body, "<tr>{}</tr>", cells("td", &mut row.iter().cloned()));
        }
        self.body.push_str("</tbody></table>\n");
        self
    }

    /// A picture made by [`curves`] or [`bars`].
    pub fn picture(&mut self, svg: &str) -> &mut Self {
        self.body.push_str(svg);
        self.body.push('\n');
        self
    }

    /// The whole file.
    pub fn text_of_file(&self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\"><title>{}</title><style>{STYLE}</style></head>\n\
             <body>\n{}</body></html>\n",
            escaped(&self.title),
            self.body
        )
    }

    /// Writes the file.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        std::fs::write(file, self.text_of_file()).with_context(|| format!("cannot write {}", file.display()))
    }
}

/// Microseconds as people say them.
pub fn time_text(micros: f64) -> String {
    match micros {
        micros if micros < 1000.0 => format!("{micros:.0} µs"),
        micros if micros < 1e6 => format!("{:.3} ms", micros / 1e3).replace(".000", ""),
        micros => format!("{:.2} s", micros / 1e6),
    }
}

fn number(report: &Report, name: &str) -> Option<f64> {
    report.extra.get(name).and_then(Value::as_f64)
}

/// A page with the throughput of each rank over time, the migrations marked, the latencies and all figures.
pub fn replay(report: &Report, observed: &Observed) -> anyhow::Result<Page> {
    let mut page = Page::new(&format!("{} on {}", report.workload, report.target));
    figures(&mut page, report, observed);
    let marks: Vec<Mark> = observed
        .migrations
        .iter()
        .map(|migration| {
            let name = observe::name(migration.subtree, &migration.path);
            let (from, to, second) = (migration.from, migration.to, migration.second);
            let why = migration.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
            Mark { at: second, text: format!("{second:.2} s: {name} from rank {from} to rank {to}{why}") }
        })
        .collect();
    let of_each = |value: fn(&observe::Sample) -> f64| -> Vec<Curve> {
        let curve = |rank: &observe::RankSeries| Curve {
            name: format!("rank {}", rank.rank),
            points: rank.series.iter().map(|sample| (sample.second, value(sample))).collect(),
        };
        observed.ranks.iter().map(curve).collect()
    };
    page.heading("Throughput of each rank");
    page.text("Operations per second over time; a thin line marks each migration (its name shows under the pointer).");
    page.picture(&curves(&of_each(|sample| sample.ops_per_s), &marks, "operations/s"));
    page.heading("How busy each rank was");
    page.picture(&curves(&of_each(|sample| f64::from(sample.busy_permille) / 10.0), &[], "% of its time"));
    page.heading("Latency of operations");
    page.text("How many operations took so long, by powers of two. The height is the logarithm of the number.");
    let distribution = report.extra.get("latency_distribution").cloned().unwrap_or_default();
    let buckets: Vec<Bucket> = serde_json::from_value(distribution).unwrap_or_default();
    let columns: Vec<(String, u64)> =
        buckets.iter().map(|bucket| (format!("≤ {}", time_text(bucket.up_to_us)), bucket.count)).collect();
    page.picture(&bars(&columns));
    latencies(&mut page, report);
    migrations(&mut page, observed);
    Ok(page)
}

fn figures(page: &mut Page, report: &Report, observed: &Observed) {
    let mut rows = vec![
        vec!["clients".to_owned(), report.clients.to_string()],
        vec!["time".to_owned(), format!("{:.2} s", report.seconds)],
        vec!["operations".to_owned(), format!("{} ({:.0}/s)", report.operations, report.ops_per_s)],
        vec!["mismatches".to_owned(), report.mismatches.to_string()],
    ];
    if let Some(sum) = number(report, "client_latency_sum_seconds") {
        rows.push(vec!["sum of client latency".to_owned(), format!("{sum:.2} s")]);
    }
    if let Some(stall) = number(report, "longest_stall_ms") {
        rows.push(vec!["longest operation".to_owned(), format!("{stall:.1} ms")]);
    }
    for (rank, cpu) in report.extra.get("rank_cpu_seconds").and_then(Value::as_object).into_iter().flatten() {
        rows.push(vec![format!("CPU of rank {rank}"), format!("{:.2} s", cpu.as_f64().unwrap_or_default())]);
    }
    let (moves, splits, merges) = (observed.migrations.len(), observed.splits, observed.merges);
    rows.push(vec!["migrations, splits, merges".to_owned(), format!("{moves}, {splits}, {merges}")]);
    if let Some(chaos) = report.extra.get("chaos") {
        let kills = chaos["kills"].as_u64().unwrap_or_default();
        rows.push(vec!["ranks killed".to_owned(), kills.to_string()]);
    }
    for name in ["trace", "seed"] {
        let value = report.extra.get(name).map(|value| value.as_str().map_or(value.to_string(), str::to_owned));
        rows.extend(value.map(|value| vec![name.to_owned(), value]));
    }
    let environment = &report.environment;
    let place =
        format!("{} {}, {} cores, {}", environment.os, environment.version, environment.cores, environment.build);
    rows.push(vec!["where".to_owned(), place]);
    page.table(&["", ""], &rows);
    for mismatch in &report.first_mismatches {
        let (client, line, operation) = (mismatch.client, mismatch.line, &mismatch.operation);
        page.text(&format!(
            "Mismatch: client {client}, line {line}: {operation}: expected {}, got {}",
            mismatch.expected, mismatch.got
        ));
    }
}

fn latencies(page: &mut Page, report: &Report) {
    let micros = |value: f64| format!("{value:.1}");
    let rows: Vec<Vec<String>> = report
        .latencies_us
        .iter()
        .map(|(name, l)| {
            vec![name.clone(), l.count.to_string(), micros(l.p50), micros(l.p90), micros(l.p99), micros(l.max)]
        })
        .collect();
    page.table(&["operation", "count", "p50 µs", "p90 µs", "p99 µs", "max µs"], &rows);
    let rows: Vec<Vec<String>> = report
        .phases
        .iter()
        .map(|phase| {
            let (seconds, rate) = (format!("{:.2}", phase.seconds), format!("{:.0}", phase.ops_per_s));
            vec![phase.name.clone(), phase.operations.to_string(), seconds, rate]
        })
        .collect();
    page.table(&["phase", "operations", "seconds", "per second"], &rows);
}

fn migrations(page: &mut Page, observed: &Observed) {
    if observed.migrations.is_empty() {
        return;
    }
    page.heading("Migrations");
    let rows: Vec<Vec<String>> = observed
        .migrations
        .iter()
        .take(MOST_ROWS)
        .map(|migration| {
            vec![
                format!("{:.2} s", migration.second),
                observe::name(migration.subtree, &migration.path),
                migration.from.to_string(),
                migration.to.to_string(),
                migration.reason.clone().unwrap_or_else(|| "asked for".to_owned()),
            ]
        })
        .collect();
    page.table(&["at", "subtree", "from rank", "to rank", "why"], &rows);
    if observed.migrations.len() > MOST_ROWS {
        page.text(&format!("… and {} more.", observed.migrations.len() - MOST_ROWS));
    }
}

#[cfg(test)]
mod tests;
