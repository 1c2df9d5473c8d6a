//! What this machine allows, and how near Pando is: all measured in one run, in turns.
//!
//! | figure | what runs |
//! |---|---|
//! | echo | 1 KiB there and back over the stream of metadata operations, no work at the server |
//! | inline read | open + read + close of warm files of 1 KiB with the client library, same server thread |
//! | durable create | create + write + close of new files of 1 KiB with the client library, 1 replica |
//! | synced commits | the records of durable creates, handed to the engine alone, as many in each sync as the durable creates of the same turn had |
//! | grouped commits | the same from as many submitters as clients, none of whom has anything else to do between two commits |
//!
//! Every figure has the same number of clients, each with one request in flight.

mod echo;
mod engine;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pando_local_cluster::Options as ClusterOptions;
use tokio::sync::Barrier;

use crate::clients;
use crate::content::{generated, mix};
use crate::measure::{Recorder, rate};
use crate::replay::Mismatches;
use crate::report::{Mismatch, PhaseReport, Report};
use crate::target::embedded::Embedded;
use crate::target::pando::Pando;

/// Bytes of an echo, and of a file.
pub const SIZE: usize = 1024;
/// Warm files of each client.
const WARM_FILES: u64 = 64;
/// The figures are measured in turns, so that a busy moment of the machine hits all.
const TURNS: u32 = 3;
const CHECKSUM_TIME: Duration = Duration::from_millis(500);

/// How long and how many.
#[derive(Clone, Debug)]
pub struct Options {
    /// Each with one request in flight.
    pub clients: usize,
    /// Threads that carry them.
    pub threads: usize,
    /// For each figure.
    pub seconds: f64,
    /// Contents follow from it.
    pub seed: u64,
    /// The cluster; `replicas` is taken as 1.
    pub cluster: ClusterOptions,
}

/// One of the figures.
#[derive(Default)]
pub(crate) struct Figure {
    operations: u64,
    seconds: f64,
}

impl Figure {
    fn rate(&self) -> f64 {
        rate(self.operations, self.seconds)
    }
}

/// What a client does again and again.
pub(crate) struct Turn<'a> {
    options: &'a Options,
    barrier: Barrier,
    limit: Duration,
}

impl<'a> Turn<'a> {
    fn new(options: &'a Options) -> Self {
        let limit = Duration::from_secs_f64(options.seconds / f64::from(TURNS));
        Self { options, barrier: Barrier::new(options.clients), limit }
    }

    /// Runs all clients; each makes itself ready, meets the others, and counts what it does until the time is over.
    fn run<F, Fut>(&self, figure: &mut Figure, recorder: &mut Recorder, client: F) -> anyhow::Result<()>
    where
        F: Fn(usize) -> Fut + Sync,
        Fut: Future<Output = anyhow::Result<(Recorder, Duration)>>,
    {
        let mut seconds: f64 = 0.0;
        for outcome in clients::run(self.options.clients, self.options.threads, client)? {
            let (one, took) = outcome?;
            figure.operations += one.total();
            recorder.merge(one);
            seconds = seconds.max(took.as_secs_f64());
        }
        figure.seconds += seconds;
        Ok(())
    }
}

/// Measures everything.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    anyhow::ensure!(options.clients > 0, "at least one client is needed");
    anyhow::ensure!(options.seconds > 0.0 && options.seconds <= 3600.0, "seconds: more than 0, at most 3600");
    let cluster = Embedded::start(ClusterOptions { osds: 1, replicas: 1, ..options.cluster.clone() })?;
    let target = Pando::new(cluster.mons());
    let mismatches = Mismatches::default();
    let mut recorder = Recorder::default();
    let (mut echo, mut read, mut commit, mut create) =
        (Figure::default(), Figure::default(), Figure::default(), Figure::default());
    let (mut grouped, mut syncs) = (Figure::default(), 0);
    let bytes_verified = AtomicU64::new(0);
    prepare(&target, options)?;
    let store = engine::Store::open(options)?;
    for turn in 0..TURNS {
        echo::measure(&cluster.mons(), options, &mut echo, &mut recorder)?;
        reads(&target, options, &mut read, &mut recorder, &mismatches, &bytes_verified)?;
        let (created, synced) = (create.operations, cluster.syncs());
        creates(&target, options, turn, &mut create, &mut recorder)?;
        let (created, synced) = (create.operations - created, cluster.syncs() - synced);
        syncs += synced;
        // Rounded up: in doubt the floor gets the larger batches.
        store.measure_batches(options, turn, created.div_ceil(synced.max(1)), &mut commit, &mut recorder)?;
        store.measure_grouped(options, turn, &mut grouped, &mut recorder)?;
    }
    store.close();
    let mut report = Report::new("floor", "pando (embedded, 1 replica)".into(), options.clients);
    report.latencies_us = recorder.latencies();
    for (name, figure) in [
        ("echo", &echo),
        ("inline read", &read),
        ("durable create", &create),
        ("synced commit", &commit),
        ("grouped commit", &grouped),
    ] {
        report.phases.push(PhaseReport::new(name, figure.seconds, figure.operations));
    }
    report.sum_up();
    report.bytes_verified = bytes_verified.into_inner();
    report.bytes_written = create.operations * SIZE as u64;
    mismatches.report(&mut report);
    let ratio = |a: &Figure, b: &Figure| if b.rate() > 0.0 { a.rate() / b.rate() } else { 0.0 };
    for (name, value) in [
        ("echo_ops_per_s", echo.rate()),
        ("inline_read_ops_per_s", read.rate()),
        ("synced_commits_per_s", commit.rate()),
        ("durable_create_ops_per_s", create.rate()),
        ("inline_read_ratio", ratio(&read, &echo)),
        ("grouped_commits_per_s", grouped.rate()),
        ("creates_per_sync", create.operations as f64 / syncs.max(1) as f64),
        ("durable_create_ratio", ratio(&create, &commit)),
        ("durable_create_to_grouped_ratio", ratio(&create, &grouped)),
        ("checksum_mib_per_s", checksum_rate()),
    ] {
        report.extra.insert(name.into(), value.into());
    }
    Ok(report)
}

/// The figures for people.
pub fn table(report: &Report) -> String {
    let number = |name: &str| report.extra.get(name).and_then(serde_json::Value::as_f64).unwrap_or_default();
    let (echo, read) = (number("echo_ops_per_s"), number("inline_read_ops_per_s"));
    let (commit, create) = (number("synced_commits_per_s"), number("durable_create_ops_per_s"));
    format!(
        "echo            {echo:>10.0} /s\ninline read     {read:>10.0} /s   {:.0} % of the echo rate\n\
         synced commits  {commit:>10.0} /s   {:.1} creates a sync, as the durable creates had\n\
         grouped commits {:>10.0} /s   from submitters without any other work\n\
         durable create  {create:>10.0} /s   {:.0} % of the synced commits, {:.0} % of the grouped ones\n\
         checksum        {:>10.0} MiB/s\n",
        100.0 * number("inline_read_ratio"),
        number("creates_per_sync"),
        number("grouped_commits_per_s"),
        100.0 * number("durable_create_ratio"),
        100.0 * number("durable_create_to_grouped_ratio"),
        number("checksum_mib_per_s")
    )
}

fn warm_path(client: usize, file: u64) -> String {
    format!("/client-{client}/warm-{file}")
}

fn body(options: &Options, client: usize, file: u64) -> Bytes {
    generated(mix(mix(options.seed, client as u64), file), 0, SIZE).into()
}

/// Writes the warm files.
fn prepare(target: &Pando, options: &Options) -> anyhow::Result<()> {
    let outcomes = clients::run(options.clients, options.threads, |client| async move {
        let session = target.connect(client).await?;
        session.create_dir(format!("/client-{client}")).await?;
        for file in 0..WARM_FILES {
            session.write_bytes(warm_path(client, file), body(options, client, file)).await?;
        }
        session.close().await?;
        anyhow::Ok(())
    })?;
    outcomes.into_iter().collect()
}

fn reads(
    target: &Pando,
    options: &Options,
    figure: &mut Figure,
    recorder: &mut Recorder,
    mismatches: &Mismatches,
    verified: &AtomicU64,
) -> anyhow::Result<()> {
    let turn = Turn::new(options);
    let one = &turn;
    turn.run(figure, recorder, |client| async move {
        let session = target.connect(client).await?;
        let files: Vec<(String, Bytes)> =
            (0..WARM_FILES).map(|file| (warm_path(client, file), body(options, client, file))).collect();
        // The first read opens the stream.
        session.read(&files[0].0).await?;
        one.barrier.wait().await;
        let mut recorder = Recorder::default();
        let start = Instant::now();
        for (path, expected) in files.iter().cycle() {
            let began = Instant::now();
            let got = session.read(path).await?;
            recorder.ended("inline_read", began);
            verified.fetch_add(got.len() as u64, Ordering::Relaxed);
            if got != *expected {
                let (expected, got) = ("the content written".to_owned(), format!("{} other bytes", got.len()));
                mismatches.add(Mismatch { client, line: 0, operation: format!("read {path}"), expected, got });
            }
            if start.elapsed() >= one.limit {
                break;
            }
        }
        let took = start.elapsed();
        session.close().await?;
        Ok((recorder, took))
    })
}

fn creates(
    target: &Pando,
    options: &Options,
    number: u32,
    figure: &mut Figure,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let turn = Turn::new(options);
    let one = &turn;
    turn.run(figure, recorder, |client| async move {
        let session = target.connect(client).await?;
        let data = body(options, client, u64::from(number));
        session.create_dir(format!("/client-{client}/new-{number}")).await?;
        one.barrier.wait().await;
        let mut recorder = Recorder::default();
        let start = Instant::now();
        for file in 0_u64.. {
            let path = format!("/client-{client}/new-{number}/{file}");
            let began = Instant::now();
            session.write_bytes(&path, data.clone()).await?;
            recorder.ended("durable_create", began);
            if start.elapsed() >= one.limit {
                break;
            }
        }
        let took = start.elapsed();
        session.close().await?;
        Ok((recorder, took))
    })
}

/// CRC32C of blocks of 1 MiB by one thread, in MiB/s.
fn checksum_rate() -> f64 {
    let block = generated(1, 0, 1 << 20);
    let start = Instant::now();
    let mut blocks = 0;
    let mut sum = 0;
    while start.elapsed() < CHECKSUM_TIME {
        sum = std::hint::black_box(crc32c::crc32c_append(sum, &block));
        blocks += 1;
    }
    rate(blocks, start.elapsed().as_secs_f64())
}
