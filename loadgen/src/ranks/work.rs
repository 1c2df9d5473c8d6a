//! A steady load in a directory, every result checked, which remembers when each request was answered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pando_client::Client;

use crate::clients;
use crate::content::{generated, mix};
use crate::measure::Recorder;
use crate::replay::Mismatches;
use crate::report::{Mismatch, PhaseReport, Report};
use crate::target::pando::Pando;

/// Files that a client has in its directory.
const FILES: u64 = 64;
const MOST_BYTES: u64 = 1000;
/// Shorter requests are no stall, and not remembered one by one.
const SLOW: Duration = Duration::from_millis(1);

/// A request that took its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slow {
    pub(super) start: Instant,
    pub(super) end: Instant,
}

/// Files that are only looked at.
#[derive(Clone, Debug)]
pub(super) struct Warm {
    pub(super) dir: String,
    pub(super) directories: u64,
    /// In each.
    pub(super) files: u64,
}

impl Warm {
    pub(super) fn directory(&self, number: u64) -> String {
        format!("{}/d{number}", self.dir)
    }

    pub(super) fn file(&self, number: u64) -> String {
        format!("{}/d{}/f{}", self.dir, number / self.files, number % self.files)
    }

    pub(super) fn count(&self) -> u64 {
        self.directories * self.files
    }
}

/// What one client brings home.
#[derive(Default)]
pub(super) struct Done {
    /// When its requests succeeded.
    pub(super) answered: Vec<Instant>,
    pub(super) slow: Vec<Slow>,
    pub(super) failed: u64,
    recorder: Recorder,
}

/// All of them.
pub(super) struct Load<'a> {
    pub(super) target: &'a Pando,
    /// A directory for each client.
    pub(super) dirs: &'a [String],
    pub(super) warm: Option<&'a Warm>,
    pub(super) threads: usize,
    pub(super) seed: u64,
    pub(super) stop: AtomicBool,
    pub(super) mismatches: Mismatches,
}

/// Stops a load when it is dropped, also when what was measured panics.
pub(super) struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Load<'_> {
    /// Its end is the end of the load.
    pub(super) fn stop_at_end(&self) -> StopAtEnd<'_> {
        StopAtEnd(&self.stop)
    }

    /// Works until `stop` is set.
    pub(super) fn run(&self) -> anyhow::Result<Vec<Done>> {
        let results = clients::run(self.dirs.len(), self.threads, |number| self.client(number))?;
        results.into_iter().collect()
    }

    async fn client(&self, number: usize) -> anyhow::Result<Done> {
        let client = self.target.connect(number).await?;
        let mut worker = Worker { load: self, client, number, dir: &self.dirs[number], done: Done::default() };
        let mut round = 0;
        while !self.stop.load(Ordering::Relaxed) {
            worker.round(round).await;
            round += 1;
        }
        let Worker { client, done, .. } = worker;
        client.close().await?;
        Ok(done)
    }
}

struct Worker<'a> {
    load: &'a Load<'a>,
    client: Client,
    number: usize,
    dir: &'a str,
    done: Done,
}

impl Worker<'_> {
    /// Notes how a request went; `None` if it failed.
    fn note<T>(&mut self, name: &'static str, start: Instant, result: pando_client::Result<T>) -> Option<T> {
        let end = Instant::now();
        self.done.recorder.record(name, end - start);
        if end - start >= SLOW {
            self.done.slow.push(Slow { start, end });
            tracing::debug!(client = self.number, name, took_ms = millis(end - start), "a slow request");
        }
        match result {
            Ok(value) => {
                self.done.answered.push(end);
                Some(value)
            }
            Err(error) => {
                self.done.failed += 1;
                self.wrong(name, "success", error.to_string());
                None
            }
        }
    }

    fn wrong(&self, operation: &str, expected: &str, got: String) {
        self.load.mismatches.add(Mismatch {
            client: self.number,
            line: 0,
            operation: operation.to_owned(),
            expected: expected.to_owned(),
            got,
        });
    }

    async fn round(&mut self, round: u64) {
        let number = round % FILES;
        let (path, other) = (format!("{}/f{number}", self.dir), format!("{}/r{number}", self.dir));
        let seed = mix(mix(self.load.seed, self.number as u64), round);
        let bytes = generated(seed, 0, (seed % MOST_BYTES) as usize);
        let start = Instant::now();
        let result = self.client.write(&path, &bytes).await;
        let written = self.note("write", start, result).is_some();
        let start = Instant::now();
        let result = self.client.read(&path).await;
        let read = self.note("read", start, result);
        if written && read.is_some_and(|read| read != bytes) {
            self.wrong("read", "the bytes written", "others".to_owned());
        }
        if let Some(warm) = self.load.warm {
            let path = warm.file(seed % warm.count());
            let start = Instant::now();
            let result = self.client.metadata(&path).await;
            self.note("stat", start, result);
        }
        if number.is_multiple_of(4) {
            let start = Instant::now();
            let result = self.client.rename(&path, &other).await;
            self.note("rename", start, result);
            let start = Instant::now();
            let result = self.client.remove_file(&other).await;
            self.note("unlink", start, result);
        }
    }
}

/// A report of such a load.
pub(super) fn report(workload: &str, target: String, seconds: f64, done: &mut [Done], wrong: Mismatches) -> Report {
    let mut report = Report::new(workload, target, done.len());
    let mut recorder = Recorder::default();
    for one in done {
        recorder.merge(std::mem::take(&mut one.recorder));
    }
    report.latencies_us = recorder.latencies();
    report.phases.push(PhaseReport::new(workload, seconds, recorder.total()));
    report.sum_up();
    wrong.report(&mut report);
    let sum = recorder.sum().as_secs_f64();
    report.extra.insert("client_latency_sum_seconds".into(), sum.into());
    report.extra.insert("longest_stall_ms".into(), millis(recorder.longest()).into());
    report
}

pub(super) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
