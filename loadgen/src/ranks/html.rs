//! Reports as pages: one file with all in it, which opens without a network and without scripts.

mod chart;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::observe::{self, Observed};
use crate::measure::Bucket;
use crate::output;
use crate::report::{Report, counted};

pub use chart::{Curve, Mark, bars, curves};

/// Rows of the table of migrations; a chaos makes many.
const MOST_ROWS: usize = 500;

/// Light and dark, as the reader's system has it, and plain on paper. The colours of curves are told apart also without
/// seeing red and green (Okabe and Ito, "Color Universal Design"), lighter ones where the page is dark.
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2430;--soft:#556070;--line:#dde2e8;--page:#fff;--bar:#0072b2;--bad:#b3261e}\
@media screen and (prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#a3adba;--line:#39424e;--page:#14181e;--bar:#4aa3d8;--bad:#ff8a80}}\
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:var(--ink);background:var(--page)}\
h1{font-size:1.4rem;line-height:1.25}h2{font-size:1.15rem;margin:2rem 0 .5rem}p{max-width:46rem}\
div.wide{overflow-x:auto}table{border-collapse:collapse;margin:.5rem 0 1rem}\
th,td{padding:.2rem .7rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums}\
th{color:var(--soft);font-weight:600}.n{text-align:right}p.bad{color:var(--bad);font-weight:600}\
svg{display:block;width:100%;height:auto;margin:.5rem 0 1rem}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}\
.grid{stroke:var(--line)}.axis{stroke:var(--soft)}.bar{fill:var(--bar)}.curve{fill:none;stroke-width:1.8}\
.c0{stroke:#0072b2}.c1{stroke:#d55e00}.c2{stroke:#009e73}.c3{stroke:#cc79a7}.c4{stroke:#e69f00}.c5{stroke:#56b4e9}\
@media screen and (prefers-color-scheme:dark){.c0{stroke:#4aa3d8}.c1{stroke:#ff8b3d}.c2{stroke:#2fc79a}.c3{stroke:#e3a3c6}.c4{stroke:#ffc04d}.c5{stroke:#a5dcff}}\
.mark path{fill:var(--page);stroke:var(--soft)}.failure path{fill:var(--ink);stroke:var(--ink)}\
.through{stroke:var(--soft);stroke-width:.7;stroke-dasharray:1 3}.failure .through{stroke:var(--ink)}\
@media print{body{max-width:none}svg,tr{break-inside:avoid}}";

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

    /// Something that is not as it must be.
    pub fn bad(&mut self, text: &str) -> &mut Self {
        let _ = writeln!(self.body, "<p class=\"bad\">{}</p>", escaped(text));
        self
    }

    /// A table, if need be without a head. Cells are plain text; columns of numbers are to the right.
    pub fn table(&mut self, head: &[&str], rows: &[Vec<String>]) -> &mut Self {
        let numeric = |column: usize| {
            let mut cells = rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
            cells.all(|cell| cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit()))
        };
        let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
            let class = |column| if numeric(column) { " class=\"n\"" } else { "" };
            let cell = |(column, cell)| format!("<{tag}{}>{}</{tag}>", class(column), escaped(cell));
            cells.enumerate().map(cell).collect::<String>()
        };
        self.body.push_str("<div class=\"wide\"><table>");
        if !head.is_empty() {
            let _ = writeln!(self.body, "<thead><tr>{}</tr></thead>", cells("th", &mut head.iter().copied()));
        }
        self.body.push_str("<tbody>\n");
        for row in rows {
            let _ = writeln!(self.body, "<tr>{}</tr>", cells("td", &mut row.iter().map(String::as_str)));
        }
        self.body.push_str("</tbody></table></div>\n");
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
        output::write(file, &self.text_of_file())
    }
}

/// Microseconds as people say them.
pub fn time_text(micros: f64) -> String {
    match micros {
        micros if micros < 999.5 => format!("{} µs", three_digits(micros)),
        micros if micros < 999_500.0 => format!("{} ms", three_digits(micros / 1e3)),
        micros => format!("{} s", three_digits(micros / 1e6)),
    }
}

/// More say nothing.
fn three_digits(value: f64) -> String {
    match value {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// How long operations took, as [`Report`]s hold it.
pub fn distribution(report: &Report) -> Vec<Bucket> {
    let buckets = report.extra.get("latency_distribution").cloned().unwrap_or_default();
    serde_json::from_value(buckets).unwrap_or_default()
}

/// The picture of it.
pub fn latency_bars(distribution: &[Bucket]) -> String {
    let columns: Vec<(String, u64)> =
        distribution.iter().map(|bucket| (format!("≤ {}", time_text(bucket.up_to_us)), bucket.count)).collect();
    bars(&columns, "latency: up to this, and longer than the column before", "operations")
}

/// The moments in which subtrees got another owner.
pub fn marks(observed: &Observed) -> Vec<Mark> {
    let mark = |migration: &observe::Migration| {
        let name = observe::name(migration.subtree, &migration.path);
        let (from, to, second) = (migration.from, migration.to, migration.second);
        let why = migration.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let text = format!("{second:.2} s: {name} from rank {from} to rank {to}{why}");
        Mark { at: second, text, failure: migration.failure }
    };
    observed.migrations.iter().map(mark).collect()
}

/// A curve for each rank.
pub fn of_ranks(observed: &Observed, value: fn(&observe::Sample) -> f64) -> Vec<Curve> {
    let curve = |rank: &observe::RankSeries| Curve {
        name: format!("rank {}", rank.rank),
        points: rank.series.iter().map(|sample| (sample.second, value(sample))).collect(),
    };
    observed.ranks.iter().map(curve).collect()
}

/// Says what the marks are.
pub fn about_marks(page: &mut Page, observed: &Observed) {
    if !observed.migrations.is_empty() {
        page.text(
            "Triangles on top: migrations of subtrees; filled ones because a rank went down. What moved where shows under \
             the pointer.",
        );
    }
}

fn number(report: &Report, name: &str) -> Option<f64> {
    report.extra.get(name).and_then(Value::as_f64)
}

/// A page with the throughput of each rank over time, the migrations marked, the latencies and all figures.
pub fn replay(report: &Report, observed: &Observed) -> anyhow::Result<Page> {
    let mut page = Page::new(&format!("{} on {}", report.workload, report.target));
    figures(&mut page, report, observed);
    let marks = marks(observed);
    page.heading("Throughput of each rank");
    about_marks(&mut page, observed);
    page.picture(&curves(&of_ranks(observed, |sample| sample.ops_per_s), &marks, "operations per second"));
    page.heading("How busy each rank was");
    let busy = of_ranks(observed, |sample| f64::from(sample.busy_permille) / 10.0);
    page.picture(&curves(&busy, &[], "time with work, in %"));
    page.heading("Latency of operations");
    page.picture(&latency_bars(&distribution(report)));
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
    let cores = counted(environment.cores, "core");
    let place = format!("{} {}, {cores}, {}", environment.os, environment.version, environment.build);
    rows.push(vec!["where".to_owned(), place]);
    page.table(&[], &rows);
    for mismatch in &report.first_mismatches {
        let (client, line, operation) = (mismatch.client, mismatch.line, &mismatch.operation);
        page.bad(&format!(
            "Mismatch: client {client}, line {line}: {operation}: expected {}, got {}",
            mismatch.expected, mismatch.got
        ));
    }
}

fn latencies(page: &mut Page, report: &Report) {
    let micros = time_text;
    let rows: Vec<Vec<String>> = report
        .latencies_us
        .iter()
        .map(|(name, l)| {
            vec![name.clone(), l.count.to_string(), micros(l.p50), micros(l.p90), micros(l.p99), micros(l.max)]
        })
        .collect();
    page.table(&["operation", "count", "p50", "p90", "p99", "longest"], &rows);
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
