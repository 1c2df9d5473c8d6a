//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};

use crate::report::{Report, rss_bytes};
use crate::target::posix::Posix;
use crate::trace::{self, PhaseName};
use crate::{compare, replay};

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
            Some(("pando", mons)) if mons.contains(':') => Ok(Self::Pando(mons.to_owned())),
            Some(("posix", dir)) if !dir.is_empty() => Ok(Self::Posix(dir.into())),
            _ => Err("a target is `pando` (a cluster in this process), `pando:HOST:PORT[,HOST:PORT]` or `posix:DIR`"
                .to_owned()),
        }
    }
}

#[derive(Args)]
struct TargetArgs {
    /// `pando` (a cluster in this process), `pando:HOST:PORT[,HOST:PORT]` or `posix:DIR`
    #[arg(long, default_value = "pando")]
    target: TargetName,
    /// Threads that carry the clients of a Pando target.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    client_threads: u16,
    /// Process of the metadata server, to report its memory (`pando:` only).
    #[arg(long)]
    mds_pid: Option<u32>,
    /// Writes the report as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
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
    /// Runs the command. The exit code is 1 if anything did not match.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Replay(args) => args.run(),
            Command::VerifyAcks(args) => args.run(),
            Command::Compare { a, b } => {
                print!("{}", compare::compare(&Report::read(&a)?, &Report::read(&b)?));
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl TargetArgs {
    fn finish(&self, mut report: Report) -> anyhow::Result<ExitCode> {
        report.mds_rss_bytes = self.mds_pid.and_then(|pid| rss_bytes(&pid.to_string()));
        report.print();
        if let Some(file) = &self.json {
            report.write(file)?;
        }
        let clean = report.mismatches == 0 && !report.interrupted;
        Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl ReplayArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(self.phases.is_sorted(), "phases come in the order unpack, build, remove");
        let trace = trace::load(&self.trace)?;
        let options = replay::Options {
            clients: self.clients as usize,
            threads: self.target.client_threads.into(),
            phases: self.phases,
            seed: self.seed,
            record_acks: self.record_acks,
            trace_name: self.trace.to_string(),
        };
        let report = match &self.target.target {
            TargetName::Posix(dir) => replay::run(&Posix::new(dir), &trace, &options)?,
            TargetName::Embedded | TargetName::Pando(_) => anyhow::bail!("not built yet"),
        };
        self.target.finish(report)
    }
}

impl VerifyArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        let acks = replay::acks::Acks::read(&self.file)?;
        let trace = trace::load(&acks.header.trace.parse::<trace::Source>()?)?;
        let threads = self.target.client_threads.into();
        let report = match &self.target.target {
            TargetName::Posix(dir) => replay::verify::run(&Posix::new(dir), &trace, &acks, threads)?,
            TargetName::Embedded => anyhow::bail!("a cluster in this process holds nothing to verify: name its mons"),
            TargetName::Pando(_) => anyhow::bail!("not built yet"),
        };
        self.target.finish(report)
    }
}
