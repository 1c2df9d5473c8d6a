//! The options for several ranks, and the commands that are about them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{ArgAction, Args, Subcommand};
use pando_local_cluster::MAX_MDS;

use super::{ClusterArgs, OutputArgs, ReplayArgs, TargetArgs, TargetName};
use crate::ranks::chaos::Kind;
use crate::ranks::cluster::{Cluster, Plan};
use crate::ranks::run::{self, Balancer};
use crate::ranks::{failover, migrate, multi_mds, rename};
use crate::replay;
use crate::report::counted;
use crate::trace::{self, PhaseName, Trace};

/// Several metadata servers, and what happens to them meanwhile.
#[derive(Args)]
#[command(next_help_heading = "Ranks (Pando only)")]
pub(super) struct RanksArgs {
    /// Metadata servers of the cluster in this process [default: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_MDS)))]
    ranks: Option<u32>,
    /// Has each of them as a process of its own, without a limit of its CPU: `--chaos kill` kills it with SIGKILL.
    #[arg(long)]
    processes: bool,
    /// Each of them as a process of its own that gets so much of one CPU, by cgroups.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    rank_cpu: Option<u32>,
    /// Splits each client's tree off before the clients come, and deals them over the ranks.
    #[arg(long)]
    spread: bool,
    /// Sets the mode of the balancer; without it a cluster of this process has `auto`, a running one keeps its own.
    #[arg(long, value_enum)]
    balancer: Option<Balancer>,
    /// Meanwhile moves subtrees, splits and merges them, and kills ranks (those of a cluster in this process: its
    /// threads, or with --processes or --rank-cpu real processes).
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) chaos: Vec<Kind>,
    /// Writes the report as a page that opens without a network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl RanksArgs {
    pub(super) fn plan(&self) -> Plan {
        Plan { ranks: self.ranks.unwrap_or(1), processes: self.processes, cpu_percent: self.rank_cpu }
    }

    fn options(&self) -> run::Options {
        run::Options {
            spread: self.spread,
            rotate: None,
            balancer: self.balancer,
            chaos: self.chaos.clone(),
            html: self.html.clone(),
        }
    }

    /// Errors: options that the target cannot have.
    pub(super) fn check(&self, target: &TargetName) -> anyhow::Result<()> {
        let own = self.ranks.is_some() || self.processes || self.rank_cpu.is_some();
        let any = own || self.spread || self.balancer.is_some() || !self.chaos.is_empty() || self.html.is_some();
        match target {
            TargetName::Embedded => {}
            TargetName::Pando(_) => anyhow::ensure!(
                !own && !self.chaos.contains(&Kind::Kill),
                "a running cluster has its own ranks: --ranks, --processes, --rank-cpu and --chaos kill are for one in this \
                 process"
            ),
            TargetName::Posix(_) => anyhow::ensure!(!any, "a directory has no ranks: leave their options away"),
        }
        Ok(())
    }
}

/// Runs a replay where it was asked to.
pub(super) fn replay(args: &ReplayArgs, trace: &Trace, options: &replay::Options) -> anyhow::Result<ExitCode> {
    let (target, ranks) = (&args.target, &args.ranks);
    let extra = ranks.options();
    let (mut report, _) = match &target.target {
        TargetName::Posix(_) => return target.run(&super::ReplayJob { trace, options }),
        TargetName::Pando(mons) => run::replay(mons, None, &target.pando(mons), trace, options, &extra)?,
        TargetName::Embedded => {
            let plan = ranks.plan();
            let label = label(target, plan);
            let cluster = Cluster::start(target.cluster.options(), plan)?;
            let mons = cluster.mons();
            let pando = target.pando(&mons).called(label);
            let cluster = Arc::new(Mutex::new(cluster));
            run::replay(&mons, Some(&cluster), &pando, trace, options, &extra)?
        }
    };
    report.mds_rss_bytes = target.mds_rss();
    target.output.finish(&report)
}

fn label(target: &TargetArgs, plan: Plan) -> String {
    let each = if plan.ranks == 1 { "" } else { " each" };
    let share = match plan.cpu_percent {
        Some(percent) => format!(" with {percent} % of a CPU{each}"),
        None if plan.processes => format!(" as {}", if plan.ranks == 1 { "a process" } else { "processes" }),
        None => String::new(),
    };
    let cluster = target.cluster.label();
    format!("{}, {}{share})", cluster.trim_end_matches(')'), counted(plan.ranks, "rank"))
}

#[derive(Subcommand)]
pub(super) enum ExperimentCommand {
    /// The same replay with more and more ranks, each with the same share of a CPU.
    ///
    /// After the experiment with many metadata servers on CephFS: clients that build a kernel, each in a tree of its own,
    /// and metadata servers that have one core each. There every daemon has a machine of its own, and the clients compile
    /// between their calls. Here all share one machine, so a rank gets only a small share of a CPU (--rank-cpu): so
    /// little that one rank is the bottleneck, and three leave room for clients, OSDs and mon ("machine %" says how full
    /// it was, "of share %" whether the ranks were the bottleneck). The data are kept by one OSD in one copy, durably: more
    /// take CPU from the ranks and say nothing about them. The recordings have no times, so --think-us stands for the
    /// compiler; with 0 each client always waits for an answer, and the sum of latencies is clients times time whatever
    /// the ranks do. The default is four or five times what one operation takes of a rank at that share: 16 clients keep
    /// one rank saturated, and with enough ranks they hardly wait.
    MultiMds(MultiMdsArgs),
}

impl ExperimentCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::MultiMds(args) => args.run(),
        }
    }
}

#[derive(Args)]
#[command(mut_arg("osds", |arg| arg.default_value("1")), mut_arg("replicas", |arg| arg.default_value("1")))]
pub(super) struct MultiMdsArgs {
    /// `kernel-small`, `kernel-medium` or a file.
    #[arg(long, default_value = "kernel-medium")]
    trace: trace::Source,
    /// Which phases of it, in order.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = PhaseName::ALL)]
    pub(super) phases: Vec<PhaseName>,
    /// Numbers of ranks.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3], value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_MDS)))]
    ranks: Vec<u32>,
    /// Numbers of clients.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 16], value_parser = clap::value_parser!(u32).range(1..=65536))]
    clients: Vec<u32>,
    /// So much of one CPU for each rank, by cgroups; 0 has them as threads of this process without a limit.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100))]
    rank_cpu: u32,
    /// How long a client computes after each operation: slept in portions of 2 ms or more, and no part of any latency.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 2500, value_parser = clap::value_parser!(u32).range(0..=60_000_000))]
    think_us: u32,
    /// Splits each client's tree off before the clients come, and deals them over the ranks; else they begin at one.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub(super) spread: bool,
    /// Where they cannot be dealt evenly, one of them moves on to the next rank after so many seconds, so that each rank
    /// is the crowded one in turn; 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=86400))]
    pub(super) rotate: u32,
    /// Sets the mode of the balancer [default: off if the trees are spread, else auto].
    #[arg(long, value_enum)]
    balancer: Option<Balancer>,
    /// How long a call of a client may take, retries included, in seconds.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86400))]
    deadline: u32,
    /// File contents follow from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the report as a page that opens without a network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl MultiMdsArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        let trace = trace::load(&self.trace)?;
        let balancer = self.balancer.unwrap_or(if self.spread { Balancer::Off } else { Balancer::Auto });
        let options = multi_mds::Options {
            ranks: self.ranks,
            clients: self.clients.into_iter().map(|clients| clients as usize).collect(),
            rank_cpu: (self.rank_cpu > 0).then_some(self.rank_cpu),
            deadline: Duration::from_secs(self.deadline.into()),
            replay: replay::Options {
                threads: self.output.client_threads.into(),
                phases: self.phases,
                seed: self.seed,
                trace_name: self.trace.to_string(),
                think: Duration::from_micros(self.think_us.into()),
                ..replay::Options::default()
            },
            run: run::Options {
                spread: self.spread,
                rotate: (self.rotate > 0).then(|| Duration::from_secs(self.rotate.into())),
                balancer: Some(balancer),
                ..run::Options::default()
            },
            cluster: self.cluster.options(),
            label: self.cluster.label(),
        };
        let report = multi_mds::run(&options, &trace, self.html.as_ref())?;
        print!("{}", multi_mds::table(&report));
        self.output.finish(&report)
    }
}

/// Of the experiments with a steady load.
#[derive(Args)]
struct SteadyArgs {
    /// Each with one request in flight.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65536))]
    clients: u32,
    /// Each rank gets so much of one CPU, by cgroups; it is a process then.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    rank_cpu: Option<u32>,
    /// File contents follow from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the report as a page that opens without a network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Args)]
pub(super) struct MigrateArgs {
    /// Files in the subtree, all cached at the rank that it leaves.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    inodes: u64,
    /// How often it moves.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    moves: u32,
    /// Has each rank as a process of its own.
    #[arg(long)]
    processes: bool,
    #[command(flatten)]
    steady: SteadyArgs,
}

impl MigrateArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let steady = self.steady;
        let report = migrate::run(&migrate::Options {
            inodes: self.inodes,
            clients: steady.clients as usize,
            threads: steady.output.client_threads.into(),
            moves: self.moves as usize,
            seed: steady.seed,
            cluster: steady.cluster.options(),
            plan: Plan { ranks: 2, processes: self.processes, cpu_percent: steady.rank_cpu },
            html: steady.html,
        })?;
        print!("{}", migrate::table(&report));
        steady.output.finish(&report)
    }
}

#[derive(Args)]
pub(super) struct FailoverArgs {
    /// Metadata servers, each a process of its own.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=i64::from(MAX_MDS)))]
    ranks: u32,
    /// The one to kill.
    #[arg(long, default_value_t = 1)]
    victim: u32,
    #[command(flatten)]
    steady: SteadyArgs,
}

impl FailoverArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let steady = self.steady;
        let report = failover::run(&failover::Options {
            clients: steady.clients as usize,
            threads: steady.output.client_threads.into(),
            victim: self.victim,
            seed: steady.seed,
            cluster: steady.cluster.options(),
            plan: Plan { ranks: self.ranks, processes: true, cpu_percent: steady.rank_cpu },
            html: steady.html,
        })?;
        print!("{}", failover::table(&report));
        steady.output.finish(&report)
    }
}

#[derive(Args)]
pub(super) struct RenameArgs {
    /// Entries below the big directory: files and the directories that hold them.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(2..=100_000_000))]
    pub(super) entries: u64,
    /// So many of them in one directory; the others hold 1000 each.
    #[arg(long, default_value_t = 100_000)]
    pub(super) flat: u64,
    /// Renames of each of the two directories, in each of the two cases.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    renames: u32,
    /// Files that are looked at before the big directory is renamed for the first time, so that its rank has them cached.
    #[arg(long, default_value_t = 50_000)]
    pub(super) warm: u64,
    /// That make the files.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=65536))]
    clients: u32,
    /// Has each rank as a process of its own.
    #[arg(long)]
    processes: bool,
    /// Writes the report as a page that opens without a network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl RenameArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let report = rename::run(&rename::Options {
            entries: self.entries,
            flat: self.flat,
            renames: self.renames as usize,
            warm: self.warm,
            clients: self.clients as usize,
            threads: self.output.client_threads.into(),
            cluster: self.cluster.options(),
            plan: Plan { ranks: 2, processes: self.processes, cpu_percent: None },
            html: self.html,
        })?;
        print!("{}", rename::table(&report));
        self.output.finish(&report)
    }
}
