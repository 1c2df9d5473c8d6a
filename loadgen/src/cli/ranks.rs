//! The options for several ranks, and the commands that are about them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use clap::Args;
use pando_local_cluster::MAX_MDS;

use super::{ReplayArgs, TargetArgs, TargetName};
use crate::ranks::chaos::Kind;
use crate::ranks::cluster::{Cluster, Plan};
use crate::ranks::run::{self, Balancer};
use crate::replay;
use crate::trace::Trace;

/// Several metadata servers, and what happens to them meanwhile.
#[derive(Args)]
#[command(next_help_heading = "Ranks (Pando only)")]
pub(super) struct RanksArgs {
    /// Metadata servers of the cluster in this process [default: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_MDS)))]
    ranks: Option<u32>,
    /// Each of them as a process of its own that gets so much of one CPU, by cgroups.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    rank_cpu: Option<u32>,
    /// Splits each client's tree off before the clients come, and deals them over the ranks.
    #[arg(long)]
    spread: bool,
    /// Sets the mode of the balancer; without it a cluster of this process has `auto`, a running one keeps its own.
    #[arg(long, value_enum)]
    balancer: Option<Balancer>,
    /// Meanwhile moves subtrees, splits and merges them, and kills ranks (those of a cluster in this process).
    #[arg(long, value_enum, value_delimiter = ',')]
    chaos: Vec<Kind>,
    /// Writes the report as a page that opens without a network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl RanksArgs {
    fn plan(&self) -> Plan {
        Plan { ranks: self.ranks.unwrap_or(1), processes: false, cpu_percent: self.rank_cpu }
    }

    fn options(&self) -> run::Options {
        run::Options {
            spread: self.spread,
            balancer: self.balancer,
            chaos: self.chaos.clone(),
            html: self.html.clone(),
        }
    }

    /// Errors: options that the target cannot have.
    fn check(&self, target: &TargetName) -> anyhow::Result<()> {
        let own = self.ranks.is_some() || self.rank_cpu.is_some();
        let any = own || self.spread || self.balancer.is_some() || !self.chaos.is_empty() || self.html.is_some();
        match target {
            TargetName::Embedded => {}
            TargetName::Pando(_) => anyhow::ensure!(
                !own && !self.chaos.contains(&Kind::Kill),
                "a running cluster has its own ranks: --ranks, --rank-cpu and --chaos kill are for one in this process"
            ),
            TargetName::Posix(_) => anyhow::ensure!(!any, "a directory has no ranks: leave their options away"),
        }
        Ok(())
    }
}

/// Runs a replay where it was asked to.
pub(super) fn replay(args: &ReplayArgs, trace: &Trace, options: &replay::Options) -> anyhow::Result<ExitCode> {
    let (target, ranks) = (&args.target, &args.ranks);
    ranks.check(&target.target)?;
    let extra = ranks.options();
    let mut report = match &target.target {
        TargetName::Posix(_) => return target.run(&super::ReplayJob { trace, options }),
        TargetName::Pando(mons) => run::replay(mons, None, &target.pando(mons), trace, options, &extra)?,
        TargetName::Embedded => {
            let plan = ranks.plan();
            let place = target.cluster.plan()?;
            let label = label(target, plan);
            let cluster = Cluster::start(place.options.clone(), plan)?;
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
    let own = match plan.cpu_percent {
        Some(percent) => format!("{} ranks with {percent} % of a CPU each", plan.ranks),
        None => format!("{} ranks", plan.ranks),
    };
    format!("{}, {own})", target.cluster.label().trim_end_matches(')'))
}
