//! Replays a trace from many clients at once and checks every result and byte.

pub mod acks;
mod client;
mod perform;
mod think;
pub mod verify;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use indicatif::ProgressBar;
use tokio::sync::Barrier;

use crate::clients;
use crate::content::mix;
use crate::measure::{Recorder, Span};
use crate::progress;
use crate::report::{Mismatch, PhaseReport, Report};
use crate::target::Target;
use crate::trace::{PhaseName, Trace};
use acks::AckLog;

/// Mismatches that a report describes.
pub const DESCRIBED: usize = 20;

/// What to replay and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many replay the trace at once, each in its own tree.
    pub clients: usize,
    /// Threads that carry the clients of a target that does not block.
    pub threads: usize,
    /// Which parts; those before the first one must have been replayed before, with the same seed.
    pub phases: Vec<PhaseName>,
    /// Contents follow from it.
    pub seed: u64,
    /// Where to write down what was acknowledged.
    pub record_acks: Option<PathBuf>,
    /// The trace's name, for that file.
    pub trace_name: String,
    /// How long a client computes after each operation; slept in portions, and no part of any latency.
    pub think: Duration,
    /// Leaves the clients' own directories, also where the last phase has emptied them.
    pub keep_roots: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clients: 16,
            threads: 1,
            phases: PhaseName::ALL.to_vec(),
            seed: 1,
            record_acks: None,
            trace_name: String::new(),
            think: Duration::ZERO,
            keep_roots: false,
        }
    }
}

/// The seed of one client's contents.
pub fn client_seed(seed: u64, client: usize) -> u64 {
    mix(seed, client as u64)
}

/// Counts mismatches and keeps the first.
#[derive(Default)]
pub struct Mismatches {
    count: AtomicU64,
    first: Mutex<Vec<Mismatch>>,
}

impl Mismatches {
    /// One more.
    pub fn add(&self, mismatch: Mismatch) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut first = self.first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if first.len() < DESCRIBED {
            first.push(mismatch);
        }
    }

    /// So far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Puts them into a report.
    pub fn report(self, report: &mut Report) {
        report.mismatches = self.count();
        report.first_mismatches = self.first.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    }
}

/// What all clients of a replay share.
struct Shared<'a, T> {
    target: &'a T,
    trace: &'a Trace,
    options: &'a Options,
    mismatches: Mismatches,
    bar: ProgressBar,
    barrier: Barrier,
    spans: Vec<Span>,
    operations: Vec<AtomicU64>,
    acks: Option<AckLog>,
}

/// What one client brings home.
#[derive(Default)]
struct Tally {
    recorder: Recorder,
    bytes_verified: u64,
    bytes_written: u64,
    thought: Duration,
    interrupted: bool,
}

/// Replays `trace` on `target`.
///
/// Errors: what keeps it from starting. Wrong results are counted in the report.
pub fn run<T: Target>(target: &T, trace: &Trace, options: &Options) -> anyhow::Result<Report> {
    anyhow::ensure!(options.clients > 0, "a replay needs at least one client");
    let count = options.phases.len();
    let acks = options.record_acks.as_deref().map(|file| AckLog::create(file, options)).transpose()?;
    let shared = Shared {
        target,
        trace,
        options,
        mismatches: Mismatches::default(),
        bar: progress::bar(trace.count(&options.phases) * options.clients as u64),
        barrier: Barrier::new(options.clients),
        spans: (0..count).map(|_| Span::default()).collect(),
        operations: (0..count).map(|_| AtomicU64::new(0)).collect(),
        acks,
    };
    let threads = if target.blocks() { options.clients } else { options.threads };
    let tallies = clients::run(options.clients, threads, |number| client::run(&shared, number))?;
    shared.bar.finish_and_clear();

    let mut report = Report::new("replay", target.describe(), options.clients);
    let mut recorder = Recorder::default();
    let mut thought = Duration::ZERO;
    for (number, tally) in tallies.into_iter().enumerate() {
        let tally = tally.with_context(|| format!("client {number}"))?;
        recorder.merge(tally.recorder);
        report.bytes_verified += tally.bytes_verified;
        report.bytes_written += tally.bytes_written;
        thought += tally.thought;
        report.interrupted |= tally.interrupted;
    }
    report.latencies_us = recorder.latencies();
    report.extra.insert("client_latency_sum_seconds".into(), recorder.sum().as_secs_f64().into());
    report.extra.insert("longest_stall_ms".into(), (recorder.longest().as_secs_f64() * 1000.0).into());
    report.extra.insert("latency_distribution".into(), serde_json::to_value(recorder.distribution())?);
    for (index, name) in options.phases.iter().enumerate() {
        let operations = shared.operations[index].load(Ordering::Relaxed);
        report.phases.push(PhaseReport::new(name.as_str(), shared.spans[index].seconds(), operations));
    }
    report.sum_up();
    shared.mismatches.report(&mut report);
    report.extra.insert("trace".into(), options.trace_name.clone().into());
    report.extra.insert("seed".into(), options.seed.into());
    report.extra.insert("think_us".into(), (options.think.as_micros() as u64).into());
    report.extra.insert("think_sum_seconds".into(), thought.as_secs_f64().into());
    Ok(report)
}
