//! Many small files: what each kind of operation costs, contents verified.

pub mod inline_2013;

use std::time::Instant;

use indicatif::ProgressBar;
use pando_proto::Errno;
use tokio::sync::Barrier;

use crate::clients;
use crate::content::{Content, mix};
use crate::measure::{Recorder, Span};
use crate::progress::{self, Ticker};
use crate::replay::{Mismatches, client_seed};
use crate::report::{Mismatch, PhaseReport, Report};
use crate::target::{Body, Outcome, Session, Target};
use crate::trace::{Attributes, Kind};

/// Files in one directory.
const PER_DIRECTORY: usize = 1000;
const FILE_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;

/// What is done with every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Phase {
    /// create + write + close
    Create,
    /// stat, size compared
    Stat,
    /// open + read + close, content compared
    Read,
    /// open + truncate + write + close
    Overwrite,
    /// rename within the directory
    Rename,
    /// each directory, names compared
    List,
    /// unlink
    Unlink,
}

impl Phase {
    /// All, in order.
    pub const ALL: [Self; 7] =
        [Self::Create, Self::Stat, Self::Read, Self::Overwrite, Self::Rename, Self::List, Self::Unlink];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Read => "read",
            Self::Overwrite => "overwrite",
            Self::Rename => "rename",
            Self::List => "list",
            Self::Unlink => "unlink",
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How many of what.
#[derive(Clone, Debug)]
pub struct Options {
    /// In all.
    pub files: usize,
    /// Bytes of each.
    pub size: u64,
    /// Each works on its share.
    pub clients: usize,
    /// Threads that carry the clients of a target that does not block.
    pub threads: usize,
    /// In order. Without `create` the files must stand from an earlier run.
    pub phases: Vec<Phase>,
    /// Files of one call for create, stat and read (`write_many` and its like).
    pub batch: usize,
    /// Contents follow from it.
    pub seed: u64,
}

struct Shared<'a, T> {
    target: &'a T,
    options: &'a Options,
    mismatches: Mismatches,
    bar: ProgressBar,
    barrier: Barrier,
    spans: Vec<Span>,
}

#[derive(Default)]
struct Tally {
    recorder: Recorder,
    bytes_verified: u64,
    bytes_written: u64,
    operations: Vec<u64>,
}

/// Runs the phases.
///
/// Errors: what keeps it from starting, or a target that went away.
pub fn run<T: Target>(target: &T, options: &Options) -> anyhow::Result<Report> {
    anyhow::ensure!(options.clients > 0 && options.batch > 0, "at least one client and one file a call are needed");
    let shared = Shared {
        target,
        options,
        mismatches: Mismatches::default(),
        bar: progress::bar((options.files * options.phases.len()) as u64),
        barrier: Barrier::new(options.clients),
        spans: options.phases.iter().map(|_| Span::default()).collect(),
    };
    let threads = if target.blocks() { options.clients } else { options.threads };
    let tallies = clients::run(options.clients, threads, |number| client(&shared, number))?;
    shared.bar.finish_and_clear();

    let mut report = Report::new("small-files", target.describe(), options.clients);
    let mut recorder = Recorder::default();
    let mut operations = vec![0; options.phases.len()];
    for tally in tallies {
        let tally = tally?;
        recorder.merge(tally.recorder);
        report.bytes_verified += tally.bytes_verified;
        report.bytes_written += tally.bytes_written;
        operations.iter_mut().zip(&tally.operations).for_each(|(sum, one)| *sum += one);
    }
    report.latencies_us = recorder.latencies();
    for ((phase, span), operations) in options.phases.iter().zip(&shared.spans).zip(operations) {
        report.phases.push(PhaseReport::new(phase.as_str(), span.seconds(), operations));
    }
    report.sum_up();
    shared.mismatches.report(&mut report);
    report.extra.insert("files".into(), options.files.into());
    report.extra.insert("size".into(), options.size.into());
    report.extra.insert("batch".into(), options.batch.into());
    Ok(report)
}

async fn client<T: Target>(shared: &Shared<'_, T>, number: usize) -> anyhow::Result<Tally> {
    let mut worker = Worker::start(shared, number).await;
    shared.barrier.wait().await;
    for (index, phase) in shared.options.phases.iter().enumerate() {
        shared.barrier.wait().await;
        let start = Instant::now();
        if let Ok(running) = &mut worker
            && let Err(failure) = running.phase(*phase).await
        {
            worker = Err(failure);
        }
        shared.spans[index].add(start);
    }
    shared.barrier.wait().await;
    Ok(worker?.finish().await?)
}

struct Worker<'a, T: Target> {
    shared: &'a Shared<'a, T>,
    session: T::Session,
    number: usize,
    seed: u64,
    files: usize,
    /// Content of every file: rises with `overwrite`.
    version: u64,
    /// Names: after `rename`.
    renamed: bool,
    tally: Tally,
}

impl<'a, T: Target> Worker<'a, T> {
    async fn start(shared: &'a Shared<'a, T>, number: usize) -> Outcome<Self> {
        let options = shared.options;
        let share = options.files / options.clients + usize::from(number < options.files % options.clients);
        let mut session = shared.target.session(number).await?;
        let seed = client_seed(options.seed, number);
        if options.phases.contains(&Phase::Create) {
            let root = session.make_root().await;
            if !root.as_ref().is_err_and(|failure| failure.errno == Errno::EEXIST) {
                root?;
            }
            for directory in 0..share.div_ceil(PER_DIRECTORY) {
                session.mkdir(&directory_name(directory), DIR_MODE).await?;
            }
        }
        let tally = Tally::default();
        Ok(Self { shared, session, number, seed, files: share, version: 0, renamed: false, tally })
    }

    fn path(&self, file: usize) -> String {
        let letter = if self.renamed { 'r' } else { 'f' };
        format!("{}/{letter}{file}", directory_name(file / PER_DIRECTORY))
    }

    fn body(&self, file: usize) -> Body {
        Body { seed: mix(mix(self.seed, file as u64), self.version), size: self.shared.options.size }
    }

    fn wrong(&self, operation: String, expected: impl Into<String>, got: impl Into<String>) {
        let (expected, got) = (expected.into(), got.into());
        self.shared.mismatches.add(Mismatch { client: self.number, line: 0, operation, expected, got });
    }

    /// Counts a failed operation; a target that is gone ends the client.
    fn judge<R>(&self, phase: Phase, file: usize, outcome: Outcome<R>) -> Outcome<Option<R>> {
        match outcome {
            Ok(result) => Ok(Some(result)),
            Err(failure) if failure.is_unreachable() => Err(failure),
            Err(failure) => {
                self.wrong(format!("{phase} {}", self.path(file)), "success", failure.to_string());
                Ok(None)
            }
        }
    }

    async fn phase(&mut self, phase: Phase) -> Outcome<()> {
        let mut ticker = Ticker::new(&self.shared.bar);
        if phase == Phase::Overwrite {
            self.version += 1;
        }
        let before = self.tally.recorder.total();
        let batch = self.shared.options.batch;
        let mut files = 0;
        if phase == Phase::List {
            files = self.list().await?;
        } else if batch > 1 && matches!(phase, Phase::Create | Phase::Stat | Phase::Read) {
            for first in (0..self.files).step_by(batch) {
                let range = first..self.files.min(first + batch);
                files += range.len() as u64;
                range.clone().for_each(|_| ticker.tick());
                self.many(phase, range).await?;
            }
        } else {
            for file in 0..self.files {
                self.one(phase, file).await?;
                ticker.tick();
            }
            files = self.tally.recorder.total() - before;
        }
        self.renamed |= phase == Phase::Rename;
        self.tally.operations.push(files);
        Ok(())
    }

    async fn one(&mut self, phase: Phase, file: usize) -> Outcome<()> {
        let (path, body) = (self.path(file), self.body(file));
        let start = Instant::now();
        let session = &mut self.session;
        let outcome = match phase {
            Phase::Create | Phase::Overwrite => session.create(&path, FILE_MODE, body).await,
            Phase::Rename => session.rename(&path, &path.replacen("/f", "/r", 1), false).await,
            Phase::Unlink => session.unlink(&path).await,
            Phase::Stat => {
                let outcome = session.stat(&path, true).await;
                self.tally.recorder.ended(phase.as_str(), start);
                return self.check_stat(file, outcome);
            }
            Phase::Read | Phase::List => {
                let outcome = session.read_file(&path).await;
                self.tally.recorder.ended(phase.as_str(), start);
                let outcome = outcome.map(|bytes| (bytes.len() as u64, check(body, bytes)));
                return self.check_read(file, outcome);
            }
        };
        self.tally.recorder.ended(phase.as_str(), start);
        if self.judge(phase, file, outcome)?.is_some() && matches!(phase, Phase::Create | Phase::Overwrite) {
            self.tally.bytes_written += body.size;
        }
        Ok(())
    }

    /// One call for many files.
    async fn many(&mut self, phase: Phase, range: std::ops::Range<usize>) -> Outcome<()> {
        let paths: Vec<String> = range.clone().map(|file| self.path(file)).collect();
        let start = Instant::now();
        match phase {
            Phase::Create => {
                let files: Vec<_> = paths.into_iter().zip(range.clone().map(|file| self.body(file))).collect();
                let outcomes = self.session.create_many(&files, FILE_MODE).await;
                self.tally.recorder.ended("create_many", start);
                for (file, outcome) in range.zip(outcomes) {
                    if self.judge(phase, file, outcome)?.is_some() {
                        self.tally.bytes_written += self.shared.options.size;
                    }
                }
            }
            Phase::Stat => {
                let outcomes = self.session.stat_many(&paths).await;
                self.tally.recorder.ended("stat_many", start);
                for (file, outcome) in range.zip(outcomes) {
                    self.check_stat(file, outcome)?;
                }
            }
            _ => {
                let outcomes = self.session.read_many(&paths).await;
                self.tally.recorder.ended("read_many", start);
                for (file, outcome) in range.zip(outcomes) {
                    let body = self.body(file);
                    let outcome = outcome.map(|bytes| (bytes.len() as u64, check(body, &bytes)));
                    self.check_read(file, outcome)?;
                }
            }
        }
        Ok(())
    }

    fn check_stat(&mut self, file: usize, outcome: Outcome<Attributes>) -> Outcome<()> {
        let expected = Attributes { kind: Kind::File, size: self.shared.options.size };
        match self.judge(Phase::Stat, file, outcome)? {
            Some(found) if found != expected => {
                self.wrong(format!("stat {}", self.path(file)), format!("{expected:?}"), format!("{found:?}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn check_read(&mut self, file: usize, outcome: Outcome<(u64, Result<(), String>)>) -> Outcome<()> {
        if let Some((bytes, checked)) = self.judge(Phase::Read, file, outcome)? {
            self.tally.bytes_verified += bytes;
            if let Err(got) = checked {
                self.wrong(format!("read {}", self.path(file)), "the content written last", got);
            }
        }
        Ok(())
    }

    /// Lists every directory; returns how many names came.
    async fn list(&mut self) -> Outcome<u64> {
        let mut count = 0;
        for directory in 0..self.files.div_ceil(PER_DIRECTORY) {
            let name = directory_name(directory);
            let start = Instant::now();
            let outcome = self.session.list(&name).await;
            self.tally.recorder.ended("list", start);
            let first = directory * PER_DIRECTORY;
            let Some(mut got) = self.judge(Phase::List, first, outcome)? else { continue };
            count += got.len() as u64;
            let files = first..self.files.min(first + PER_DIRECTORY);
            let mut expected: Vec<String> = files.map(|file| self.path(file)[name.len() + 1..].to_owned()).collect();
            expected.sort_unstable();
            got.sort_unstable();
            if expected != got {
                let (expected, got) = (format!("{} names", expected.len()), format!("{} others", got.len()));
                self.wrong(format!("list {name}"), expected, got);
            }
        }
        Ok(count)
    }

    async fn finish(mut self) -> Outcome<Tally> {
        if self.shared.options.phases.last() == Some(&Phase::Unlink) && self.shared.mismatches.count() == 0 {
            for directory in 0..self.files.div_ceil(PER_DIRECTORY) {
                self.session.rmdir(&directory_name(directory)).await?;
            }
            self.session.remove_root().await?;
        }
        self.session.end().await?;
        Ok(self.tally)
    }
}

fn directory_name(directory: usize) -> String {
    format!("d{directory}")
}

fn check(body: Body, bytes: &[u8]) -> Result<(), String> {
    if bytes.len() as u64 != body.size {
        return Err(format!("{} bytes", bytes.len()));
    }
    let mut content = Content::default();
    content.write(0, body.size, body.seed);
    match content.check(0, bytes) {
        None => Ok(()),
        Some(wrong) => Err(format!("byte {:#04x} at offset {}", wrong.got, wrong.offset)),
    }
}
