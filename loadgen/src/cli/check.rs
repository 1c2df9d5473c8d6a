//! What makes no sense together, told before anything starts. clap itself sees options that exclude each other whatever
//! their values are.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::ArgMatches;
use clap::parser::ValueSource;

use super::ranks::{ExperimentCommand, MultiMdsArgs, RenameArgs};
use super::{Command, FloorArgs, ReplayArgs, SmallFilesArgs, TargetArgs, TargetName};
use crate::output;
use crate::ranks::chaos::Kind;
use crate::small_files::Phase;
use crate::trace::PhaseName;

/// Of a cluster in this process.
const CLUSTER: [&str; 7] = ["mons", "osds", "replicas", "engine", "mds_cache_mib", "inline_limit", "data"];
/// What a run may leave.
const FILES: [&str; 3] = ["json", "html", "record_acks"];

/// What was typed, not what is so by default.
struct Given<'a>(&'a ArgMatches);

impl<'a> Given<'a> {
    fn new(mut matches: &'a ArgMatches) -> Self {
        while let Some((_, inner)) = matches.subcommand() {
            matches = inner;
        }
        Self(matches)
    }

    /// The first of these options that was given, as it is typed.
    fn first(&self, options: &[&str]) -> Option<String> {
        let known = |option: &&&str| self.0.ids().any(|id| id.as_str() == **option);
        let typed = |option: &&&str| self.0.value_source(option) == Some(ValueSource::CommandLine);
        options.iter().filter(known).find(typed).map(|option| format!("--{}", option.replace('_', "-")))
    }

    fn has(&self, option: &str) -> bool {
        self.first(&[option]).is_some()
    }

    fn file(&self, option: &str) -> Option<&'a PathBuf> {
        self.0.try_get_one(option).ok().flatten()
    }
}

/// Errors: what is wrong, and a way out.
pub(super) fn check(command: &Command, matches: &ArgMatches) -> anyhow::Result<()> {
    let given = Given::new(matches);
    match command {
        Command::Replay(args) => replay(args, &given)?,
        Command::VerifyAcks(args) => target(&args.target, &given)?,
        Command::SmallFiles(args) => small_files(args, &given)?,
        Command::Floor(args) => floor(args, &given)?,
        Command::Experiment(ExperimentCommand::MultiMds(args)) => multi_mds(args, &given)?,
        Command::Rename(args) => rename(args, &given)?,
        Command::Migrate(_) | Command::Failover(_) | Command::Compare { .. } => {}
    }
    files(&given)
}

/// A run may take hours, and what it found must not be lost at its end.
fn files(given: &Given<'_>) -> anyhow::Result<()> {
    let files: Vec<(&str, &PathBuf)> = FILES.iter().filter_map(|option| Some((*option, given.file(option)?))).collect();
    for (at, (option, file)) in files.iter().enumerate() {
        let other = files[..at].iter().find(|(_, other)| other == file).map(|(other, _)| other.replace('_', "-"));
        if let Some(other) = other {
            bail!("--{other} and --{} name the same file, {}", option.replace('_', "-"), file.display());
        }
        output::check(file)?;
    }
    Ok(())
}

fn target(args: &TargetArgs, given: &Given<'_>) -> anyhow::Result<()> {
    let TargetArgs { target, .. } = args;
    let (embedded, running) = (*target == TargetName::Embedded, matches!(target, TargetName::Pando(_)));
    if let Some(option) = given.first(&CLUSTER).filter(|_| !embedded) {
        bail!("{option} is for a cluster in this process: leave it away, or --target");
    }
    if let Some(option) = given.first(&["mds_pid"]).filter(|_| !running) {
        bail!("{option} is for a running cluster: name it with --target pando:HOST:PORT");
    }
    if let (Some(option), TargetName::Posix(_)) = (given.first(&["client_threads", "deadline"]), target) {
        bail!("{option} is for clients of Pando: those of a directory have a thread each, and wait for the system");
    }
    Ok(())
}

fn in_order(phases: &[PhaseName]) -> anyhow::Result<()> {
    ensure!(
        phases.windows(2).all(|pair| pair[0] < pair[1]),
        "phases come once each, in the order unpack, build, remove"
    );
    Ok(())
}

/// A new cluster is empty.
fn begins_with(first: bool, phase: &str, target: &TargetName) -> anyhow::Result<()> {
    ensure!(
        first || *target != TargetName::Embedded,
        "a cluster in this process holds nothing of an earlier run: begin with the phase {phase}, or name a running \
         cluster with --target pando:HOST:PORT"
    );
    Ok(())
}

fn replay(args: &ReplayArgs, given: &Given<'_>) -> anyhow::Result<()> {
    let place = &args.target.target;
    args.ranks.check(place)?;
    target(&args.target, given)?;
    in_order(&args.phases)?;
    begins_with(args.phases.first() == Some(&PhaseName::ALL[0]), PhaseName::ALL[0].as_str(), place)?;
    let moves = args.ranks.chaos.contains(&Kind::Moves);
    ensure!(
        !moves || *place != TargetName::Embedded || args.ranks.plan().ranks > 1,
        "with one rank nothing can move: --chaos moves needs --ranks 2 or more"
    );
    Ok(())
}

fn small_files(args: &SmallFilesArgs, given: &Given<'_>) -> anyhow::Result<()> {
    target(&args.target, given)?;
    begins_with(args.phases.first() == Some(&Phase::Create), Phase::Create.as_str(), &args.target.target)
}

fn floor(args: &FloorArgs, given: &Given<'_>) -> anyhow::Result<()> {
    let seconds = args.seconds;
    ensure!(seconds > 0.0 && seconds <= 86_400.0, "--seconds is {seconds}: use more than 0, at most 86400");
    ensure!(
        !given.has("replicas") || args.cluster.replicas == 1,
        "creates are measured on one replica: leave --replicas away"
    );
    Ok(())
}

fn multi_mds(args: &MultiMdsArgs, given: &Given<'_>) -> anyhow::Result<()> {
    in_order(&args.phases)?;
    begins_with(args.phases.first() == Some(&PhaseName::ALL[0]), PhaseName::ALL[0].as_str(), &TargetName::Embedded)?;
    ensure!(
        args.spread || args.rotate == 0 || !given.has("rotate"),
        "trees that are not dealt over the ranks take no turns: leave --rotate away, or use --spread true"
    );
    Ok(())
}

fn rename(args: &RenameArgs, given: &Given<'_>) -> anyhow::Result<()> {
    let RenameArgs { entries, flat, warm, .. } = args;
    ensure!(
        !given.has("flat") || flat < entries,
        "--flat {flat}: the big directory has {entries} entries only, one of them the flat one"
    );
    ensure!(!given.has("warm") || warm <= entries, "--warm {warm}: the big directory has {entries} entries only");
    Ok(())
}
