//! A replay on a cluster of Pando, with its ranks prepared, watched and perhaps disturbed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use pando_cluster_map::settings;

use super::chaos::{Chaos, Deeds, Kind};
use super::cluster::Cluster;
use super::html;
use super::observe::{Observed, Observer};
use super::rotate::Rotation;
use super::tree::Tree;
use super::usage::{Usage, Used};
use crate::replay;
use crate::report::{Mismatch, Report};
use crate::target::pando::Pando;
use crate::trace::Trace;

/// For each step of the preparation.
const LIMIT: Duration = Duration::from_secs(60);

/// How far the balancer may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Balancer {
    /// Only draining ranks are emptied.
    #[value(name = "off")]
    Off,
    /// Pins are obeyed; what load asks for is only recorded.
    #[value(name = "manual")]
    Manual,
    /// Subtrees are moved, split and merged as load asks for.
    #[value(name = "auto")]
    Auto,
}

impl Balancer {
    fn mode(self) -> u64 {
        match self {
            Self::Off => settings::BALANCER_OFF,
            Self::Manual => settings::BALANCER_MANUAL,
            Self::Auto => settings::BALANCER_AUTO,
        }
    }
}

/// What to do besides the replay.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Splits each client's tree off before the clients come, and deals them over the ranks.
    pub spread: bool,
    /// If they are spread and cannot be dealt evenly: after each such time one of them moves on to the next rank.
    pub rotate: Option<Duration>,
    /// Sets the balancer's mode; `None` leaves it.
    pub balancer: Option<Balancer>,
    /// Happens meanwhile.
    pub chaos: Vec<Kind>,
    /// Where to write the report as a page.
    pub html: Option<PathBuf>,
}

/// Sets the balancer and splits the clients' trees off where that is wanted.
pub fn prepare(mons: &str, clients: usize, options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let tree = Tree::connect(mons, LIMIT).await?;
        anyhow::ensure!(
            !options.chaos.contains(&Kind::Moves) || tree.ranks().len() > 1,
            "nothing can move: --chaos moves needs two ranks that are up and not being drained"
        );
        if let Some(balancer) = options.balancer {
            tree.admin.set_setting(settings::BALANCER_MODE, &balancer.mode().to_string()).await?;
        }
        if options.spread {
            tree.spread(clients).await?;
        } else if !options.chaos.is_empty() {
            // Something to move.
            for client in 0..clients {
                let path = format!("/client-{client}");
                tree.make_dir(&path).await?;
                tree.split(&path).await?;
            }
        }
        tree.close().await;
        Ok(())
    })
}

/// Replays `trace` on the cluster of these mons. `cluster` is the same one if it was started here.
pub fn replay(
    mons: &str,
    cluster: Option<&Arc<Mutex<Cluster>>>,
    target: &Pando,
    trace: &Trace,
    replayed: &replay::Options,
    options: &Options,
) -> anyhow::Result<(Report, Observed)> {
    prepare(mons, replayed.clients, options)?;
    let cpu = || cluster.and_then(|cluster| cluster.lock().unwrap_or_else(PoisonError::into_inner).cpu_seconds());
    let before = cpu();
    let observer = Observer::start(mons)?;
    let chaos = Chaos::start(&options.chaos, replayed.seed, replayed.clients, mons, cluster)?;
    let rotation = Rotation::start(options.rotate.filter(|_| options.spread), replayed.clients, mons)?;
    let usage = Usage::now();
    let outcome = replay::run(target, trace, replayed);
    let used = Usage::now().since(&usage);
    rotation.finish();
    let deeds = chaos.finish();
    let observed = observer.finish();
    let mut report = outcome?;
    let cpu = match (before, cpu()) {
        (Some(before), Some(after)) => {
            after.into_iter().map(|(rank, cpu)| (rank, cpu - before.get(&rank).copied().unwrap_or_default())).collect()
        }
        _ => observed.cpu_seconds(),
    };
    note_usage(&mut report, &used);
    note(&mut report, &observed, &cpu, (!options.chaos.is_empty()).then_some(&deeds))?;
    if let Some(file) = &options.html {
        html::replay(&report, &observed)?.write(file)?;
    }
    Ok((report, observed))
}

fn note_usage(report: &mut Report, used: &Used) {
    report.extra.insert("own_cpu_seconds".into(), used.own_cpu.as_secs_f64().into());
    report.extra.insert("machine_busy_percent".into(), used.machine_busy_percent.into());
}

/// Puts all that into the report.
fn note(
    report: &mut Report,
    observed: &Observed,
    cpu: &BTreeMap<u32, f64>,
    deeds: Option<&Deeds>,
) -> anyhow::Result<()> {
    let cpu_of: BTreeMap<String, f64> = cpu.iter().map(|(rank, cpu)| (rank.to_string(), *cpu)).collect();
    let extra = &mut report.extra;
    extra.insert("ranks".into(), serde_json::to_value(&observed.ranks)?);
    extra.insert("migrations".into(), serde_json::to_value(&observed.migrations)?);
    extra.insert("splits".into(), observed.splits.into());
    extra.insert("merges".into(), observed.merges.into());
    extra.insert("rank_cpu_seconds".into(), serde_json::to_value(cpu_of)?);
    let Some(deeds) = deeds else { return Ok(()) };
    extra.insert("chaos".into(), serde_json::to_value(deeds)?);
    report.mismatches += deeds.errors.len() as u64;
    report.first_mismatches.extend(deeds.errors.iter().map(|error| Mismatch {
        client: 0,
        line: 0,
        operation: "chaos".to_owned(),
        expected: "done, or refused for the moment".to_owned(),
        got: error.clone(),
    }));
    Ok(())
}
