//! The command line.

mod check;
mod ranks;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use pando_local_cluster::{EngineKind, Options as ClusterOptions};
use pando_mon_client::check_mons;

use crate::replay::acks::Acks;
use crate::report::{Report, counted, rss_bytes};
use crate::small_files::{self, inline_2013};
use crate::target::Target;
use crate::target::embedded::Embedded;
use crate::target::pando::Pando;
use crate::target::posix::Posix;
use crate::trace::{self, PhaseName, Trace};
use crate::{compare, floor, replay};

/// Load for Pando and any mounted file system, with every result and byte checked.
#[derive(Parser)]
#[command(name = "loadgen", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replays a recorded kernel build from many clients.
    Replay(ReplayArgs),
    /// After a crash and a restart: checks that nothing that `replay --record-acks` saw acknowledged is missing.
    VerifyAcks(VerifyArgs),
    /// Creates, stats, reads, overwrites, renames, lists and unlinks many small files.
    SmallFiles(SmallFilesArgs),
    /// What this machine allows, and how near Pando is.
    Floor(FloorArgs),
    /// A fixed experiment, with the table that it is known for.
    #[command(subcommand)]
    Experiment(ranks::ExperimentCommand),
    /// How long clients wait while the subtree in which they work moves between two ranks.
    Migrate(ranks::MigrateArgs),
    /// How long paths are not served when the rank that serves them is killed.
    Failover(ranks::FailoverArgs),
    /// How long renames of a very large and of an empty directory to another rank take.
    Rename(ranks::RenameArgs),
    /// Prints the ratios of two reports.
    Compare {
        /// The report to compare with.
        a: PathBuf,
        /// The report to look at.
        b: PathBuf,
    },
}

/// What to run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetName {
    /// A cluster within this process.
    Embedded,
    /// A running cluster, by its mons.
    Pando(String),
    /// A directory.
    Posix(PathBuf),
}

impl FromStr for TargetName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "pando" => Ok(Self::Embedded),
            Some(("pando", mons)) if mons.contains(':') => {
                let named: Vec<String> = mons.split(',').map(|mon| mon.trim().to_owned()).collect();
                check_mons("a target `pando:`", &named).map_err(|error| error.message)?;
                Ok(Self::Pando(named.join(",")))
            }
            Some(("posix", dir)) if !dir.is_empty() => Ok(Self::Posix(dir.into())),
            _ => Err("a target is `pando` (a cluster in this process), `pando:HOST:PORT[,HOST:PORT]` or `posix:DIR`"
                .to_owned()),
        }
    }
}

/// The cluster in this process; meaningless for other targets.
#[derive(Args)]
#[command(next_help_heading = "Cluster in this process")]
struct ClusterArgs {
    /// Members of the Raft group: 1, 3 or 5.
    #[arg(long, default_value_t = 1)]
    mons: u32,
    /// Object storage daemons.
    #[arg(long, default_value_t = 3)]
    osds: u32,
    /// Copies of everything, 1 to 3.
    #[arg(long, default_value_t = 3)]
    replicas: u32,
    /// `fjall`, `file` or `memory`
    #[arg(long, default_value = "fjall")]
    engine: EngineKind,
    /// Budget of the metadata server's cache, in MiB.
    #[arg(long, default_value_t = 256)]
    mds_cache_mib: u64,
    /// Largest file that is kept with its inode, in bytes; without it the cluster's default.
    #[arg(long)]
    inline_limit: Option<u64>,
    /// Where the cluster puts its data for the time of the run, in a directory of its own; without it the system's
    /// temporary directory.
    #[arg(long)]
    data: Option<PathBuf>,
}

impl ClusterArgs {
    /// For reports.
    fn label(&self) -> String {
        let counts = [(self.mons, "mon"), (self.osds, "osd"), (self.replicas, "replica")];
        let [mons, osds, replicas] = counts.map(|(number, what)| counted(number, what));
        format!("pando (embedded: {mons}, {osds}, {replicas}, {})", self.engine)
    }

    fn options(&self) -> ClusterOptions {
        ClusterOptions {
            data: self.data.clone(),
            mons: self.mons,
            osds: self.osds,
            replicas: self.replicas,
            engine: self.engine,
            mds_cache_bytes: self.mds_cache_mib << 20,
            inline_limit: self.inline_limit,
            ..ClusterOptions::default()
        }
    }
}

#[derive(Args)]
struct OutputArgs {
    /// Threads that carry the clients of a Pando target.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    client_threads: u16,
    /// Writes the report as JSON, at the end and all at once.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl OutputArgs {
    fn finish(&self, report: &Report) -> anyhow::Result<ExitCode> {
        report.print();
        if let Some(file) = &self.json {
            report.write(file)?;
        }
        let clean = report.mismatches == 0 && !report.interrupted;
        Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[derive(Args)]
struct TargetArgs {
    /// `pando` (a cluster in this process), `pando:HOST:PORT[,HOST:PORT]` or `posix:DIR`
    #[arg(long, default_value = "pando")]
    target: TargetName,
    /// Process of the metadata server, to report its memory (`pando:` only).
    #[arg(long)]
    mds_pid: Option<u32>,
    /// How long a call of a Pando client may take, retries included, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86400))]
    deadline: u32,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A workload for any target.
trait Workload {
    fn run<T: Target>(&self, target: &T) -> anyhow::Result<Report>;
}

impl TargetArgs {
    fn threads(&self) -> usize {
        self.output.client_threads.into()
    }

    fn pando(&self, mons: impl Into<String>) -> Pando {
        Pando::new(mons).with_deadline(Duration::from_secs(self.deadline.into()))
    }

    fn run(&self, workload: &impl Workload) -> anyhow::Result<ExitCode> {
        let mut report = match &self.target {
            TargetName::Posix(dir) => workload.run(&Posix::new(dir))?,
            TargetName::Pando(mons) => workload.run(&self.pando(mons))?,
            TargetName::Embedded => {
                let cluster = Embedded::start(self.cluster.options())?;
                workload.run(&self.pando(cluster.mons()).called(self.cluster.label()))?
            }
        };
        report.mds_rss_bytes = self.mds_rss();
        self.output.finish(&report)
    }

    fn mds_rss(&self) -> Option<u64> {
        self.mds_pid.and_then(|pid| rss_bytes(&pid.to_string()))
    }
}

#[derive(Args)]
struct ReplayArgs {
    /// `small`, `medium` or a file.
    #[arg(long, default_value = "medium")]
    trace: trace::Source,
    /// How many replay it at once, each in its own tree.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    clients: u32,
    /// Which phases, in order. Without `unpack` they need a tree left by an earlier run with the same seed.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = PhaseName::ALL)]
    phases: Vec<PhaseName>,
    /// File contents follow from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes down each acknowledged mutation, for `verify-acks`.
    #[arg(long)]
    record_acks: Option<PathBuf>,
    /// Has each client compute so many microseconds after each operation, as a build does: slept in portions of 2 ms or
    /// more, and no part of any latency.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=60_000_000))]
    think_us: u32,
    #[command(flatten)]
    ranks: ranks::RanksArgs,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Args)]
struct VerifyArgs {
    /// What `replay --record-acks` wrote.
    file: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
}

impl Cli {
    /// Reads the command line; ends the process where that says so.
    ///
    /// Errors: what makes no sense together, and files that could not be written at the end.
    pub fn read() -> anyhow::Result<Self> {
        let matches = Self::command().get_matches();
        let cli = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut Self::command()).exit());
        check::check(&cli.command, &matches)?;
        Ok(cli)
    }

    /// Runs the command. The exit code is 1 if anything did not match.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Replay(args) => args.run(),
            Command::VerifyAcks(args) => args.run(),
            Command::SmallFiles(args) => args.run(),
            Command::Floor(args) => args.run(),
            Command::Experiment(command) => command.run(),
            Command::Migrate(args) => args.run(),
            Command::Failover(args) => args.run(),
            Command::Rename(args) => args.run(),
            Command::Compare { a, b } => {
                print!("{}", compare::compare(&Report::read(&a)?, &Report::read(&b)?));
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl ReplayArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        let trace = trace::load(&self.trace)?;
        let options = replay::Options {
            clients: self.clients as usize,
            threads: self.target.threads(),
            phases: self.phases.clone(),
            seed: self.seed,
            record_acks: self.record_acks.clone(),
            trace_name: self.trace.to_string(),
            think: Duration::from_micros(self.think_us.into()),
            keep_roots: false,
        };
        ranks::replay(&self, &trace, &options)
    }
}

struct ReplayJob<'a> {
    trace: &'a Trace,
    options: &'a replay::Options,
}

impl Workload for ReplayJob<'_> {
    fn run<T: Target>(&self, target: &T) -> anyhow::Result<Report> {
        replay::run(target, self.trace, self.options)
    }
}

impl VerifyArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            self.target.target != TargetName::Embedded,
            "a cluster in this process holds nothing to verify: name a running one with --target pando:HOST:PORT"
        );
        let acks = Acks::read(&self.file)?;
        let trace = trace::load(&acks.header.trace.parse::<trace::Source>()?)?;
        self.target.run(&VerifyJob { trace: &trace, acks: &acks, threads: self.target.threads() })
    }
}

struct VerifyJob<'a> {
    trace: &'a Trace,
    acks: &'a Acks,
    threads: usize,
}

impl Workload for VerifyJob<'_> {
    fn run<T: Target>(&self, target: &T) -> anyhow::Result<Report> {
        replay::verify::run(target, self.trace, self.acks, self.threads)
    }
}

/// What an experiment decides itself.
const FIXED: [&str; 9] =
    ["files", "size", "clients", "phases", "batch", "client_threads", "deadline", "mds_pid", "inline_limit"];

#[derive(Args)]
struct SmallFilesArgs {
    /// How many in all.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    files: u32,
    /// Bytes of each.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(0..=64 << 20))]
    size: u64,
    /// Each works on its share of the files.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    clients: u32,
    /// Which phases, in order. Without `create` they need the files of an earlier run with the same numbers and seed.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = small_files::Phase::ALL)]
    phases: Vec<small_files::Phase>,
    /// Files of one call for create, stat and read.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    /// File contents follow from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A fixed experiment instead, on clusters in this process.
    #[arg(long, value_enum, conflicts_with_all = FIXED)]
    experiment: Option<Experiment>,
    /// In the experiment: starts the metadata server anew before each reading, so that it is cold too.
    #[arg(long, requires = "experiment")]
    cold_mds: bool,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// 1000, 2000 and 3000 files of 1 KB read by a cold client, bodies inline and not.
    #[value(name = "inline-2013")]
    Inline2013,
}

impl SmallFilesArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        if self.experiment == Some(Experiment::Inline2013) {
            anyhow::ensure!(
                self.target.target == TargetName::Embedded,
                "the experiment sets up clusters of its own: leave --target away"
            );
            let cluster = self.target.cluster.options();
            let report = inline_2013::run(&cluster, self.seed, self.cold_mds)?;
            print!("{}", inline_2013::table(&report));
            return self.target.output.finish(&report);
        }
        let options = small_files::Options {
            files: self.files as usize,
            size: self.size,
            clients: self.clients as usize,
            threads: self.target.threads(),
            phases: self.phases,
            batch: self.batch as usize,
            seed: self.seed,
        };
        self.target.run(&SmallFilesJob(&options))
    }
}

struct SmallFilesJob<'a>(&'a small_files::Options);

impl Workload for SmallFilesJob<'_> {
    fn run<T: Target>(&self, target: &T) -> anyhow::Result<Report> {
        small_files::run(target, self.0)
    }
}

#[derive(Args)]
struct FloorArgs {
    /// Each with one request in flight.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    clients: u32,
    /// For each figure.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// File contents follow from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl FloorArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        let report = floor::run(&floor::Options {
            clients: self.clients as usize,
            threads: self.output.client_threads.into(),
            seconds: self.seconds,
            seed: self.seed,
            cluster: self.cluster.options(),
        })?;
        print!("{}", floor::table(&report));
        self.output.finish(&report)
    }
}
