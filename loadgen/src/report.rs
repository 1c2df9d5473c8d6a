//! The report: a table for people, JSON for programs (fields: `loadgen/README.md`).

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::measure::{Latency, rate};
use crate::output;

/// One phase of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseReport {
    /// Its name.
    pub name: String,
    /// From the first client's start to the last one's end.
    pub seconds: f64,
    /// Operations of all clients.
    pub operations: u64,
    /// Per second.
    pub ops_per_s: f64,
}

impl PhaseReport {
    /// With the rate worked out.
    pub fn new(name: impl Into<String>, seconds: f64, operations: u64) -> Self {
        Self { name: name.into(), seconds, operations, ops_per_s: rate(operations, seconds) }
    }
}

/// Where it ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Processors that this process may use.
    pub cores: usize,
    /// Version of this program.
    pub version: String,
    /// Operating system.
    pub os: String,
    /// `debug` or `release`.
    pub build: String,
}

impl Environment {
    /// Of this process.
    pub fn here() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            os: std::env::consts::OS.to_owned(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
        }
    }
}

/// A result that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Number of the client.
    pub client: usize,
    /// Line of the trace; 0 where there is none.
    pub line: u32,
    /// What was done.
    pub operation: String,
    /// What had to come.
    pub expected: String,
    /// What came.
    pub got: String,
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `replay`, `small-files`, `floor`, ...
    pub workload: String,
    /// What it ran on.
    pub target: String,
    /// How many at once.
    pub clients: usize,
    /// Of all phases.
    pub seconds: f64,
    /// Results and bytes that were not as they must be.
    pub mismatches: u64,
    /// All operations.
    pub operations: u64,
    /// Per second.
    pub ops_per_s: f64,
    /// Bytes read and compared.
    pub bytes_verified: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// A client stopped early because the target was gone.
    pub interrupted: bool,
    /// Percentiles in microseconds by operation.
    pub latencies_us: BTreeMap<String, Latency>,
    /// In order.
    pub phases: Vec<PhaseReport>,
    /// The first mismatches.
    pub first_mismatches: Vec<Mismatch>,
    /// Where it ran.
    pub environment: Environment,
    /// Memory of the metadata server's process, where it is known.
    pub mds_rss_bytes: Option<u64>,
    /// Memory of this process; with an embedded cluster that of the whole cluster too.
    pub rss_bytes: Option<u64>,
    /// What belongs to one workload only.
    #[serde(flatten)]
    pub extra: BTreeMap<String, serde_json::Value>,
}

impl Report {
    /// An empty one.
    pub fn new(workload: &str, target: String, clients: usize) -> Self {
        Self {
            workload: workload.to_owned(),
            target,
            clients,
            seconds: 0.0,
            mismatches: 0,
            operations: 0,
            ops_per_s: 0.0,
            bytes_verified: 0,
            bytes_written: 0,
            interrupted: false,
            latencies_us: BTreeMap::new(),
            phases: Vec::new(),
            first_mismatches: Vec::new(),
            environment: Environment::here(),
            mds_rss_bytes: None,
            rss_bytes: rss_bytes("self"),
            extra: BTreeMap::new(),
        }
    }

    /// Sums the phases up.
    pub fn sum_up(&mut self) {
        self.seconds = self.phases.iter().map(|phase| phase.seconds).sum();
        self.operations = self.phases.iter().map(|phase| phase.operations).sum();
        self.ops_per_s = rate(self.operations, self.seconds);
    }

    /// Writes the JSON form.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        output::write(file, &(text + "\n"))
    }

    /// Reads the JSON form.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read the report {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no report of loadgen", file.display()))
    }

    /// Prints the table.
    pub fn print(&self) {
        let mut out = std::io::stdout().lock();
        // A closed pipe is the reader's choice.
        let _ = out.write_all(self.table().as_bytes());
    }

    /// What ran on what.
    pub fn heading(&self) -> String {
        format!("{} on {}, {}", self.workload, self.target, counted(self.clients, "client"))
    }

    /// The table.
    pub fn table(&self) -> String {
        use std::fmt::Write as _;
        let mut out = String::new();
        let mut line = |text: fmt::Arguments<'_>| {
            let _ = writeln!(out, "{text}");
        };
        line(format_args!("{}", self.heading()));
        if !self.latencies_us.is_empty() {
            line(format_args!(
                "{:<12} {:>11} {:>11} {:>11} {:>11} {:>11}",
                "operation", "count", "p50 us", "p90 us", "p99 us", "max us"
            ));
        }
        for (name, l) in &self.latencies_us {
            line(format_args!(
                "{name:<12} {:>11} {:>11.1} {:>11.1} {:>11.1} {:>11.1}",
                l.count, l.p50, l.p90, l.p99, l.max
            ));
        }
        for phase in &self.phases {
            line(format_args!(
                "{:<12} {:>11} operations in {:>8.2} s: {:>9.0} /s",
                phase.name, phase.operations, phase.seconds, phase.ops_per_s
            ));
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        line(format_args!(
            "{:<12} {:>11} operations in {:>8.2} s: {:>9.0} /s; {:.1} MiB read and compared, {:.1} MiB written",
            "all",
            self.operations,
            self.seconds,
            self.ops_per_s,
            mib(self.bytes_verified),
            mib(self.bytes_written)
        ));
        if let Some(rss) = self.mds_rss_bytes {
            line(format_args!("memory of the metadata server: {:.0} MiB", mib(rss)));
        }
        for m in &self.first_mismatches {
            line(format_args!(
                "MISMATCH client {} line {}: {}: expected {}, got {}",
                m.client, m.line, m.operation, m.expected, m.got
            ));
        }
        if self.interrupted {
            line(format_args!("INTERRUPTED: the target was gone before the end"));
        }
        line(format_args!("mismatches: {}", self.mismatches));
        out
    }
}

/// How many of something: `1 rank`, `3 ranks`.
pub fn counted(number: impl fmt::Display, what: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Resident memory of a process (`self` or a number); `None` where `/proc` does not tell.
pub fn rss_bytes(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}
