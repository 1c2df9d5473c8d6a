//! A cluster of this process whose ranks are threads of it, or processes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pando_local_cluster::{Options, process};

use super::process::RankProcess;
use super::quota::{Quota, Quotas};
use crate::target::embedded::Embedded;

/// How the ranks run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How many.
    pub ranks: u32,
    /// Each as a process of its own.
    pub processes: bool,
    /// So much of one CPU for each, in percent; implies processes.
    pub cpu_percent: Option<u32>,
}

/// A running cluster. Dropping it ends everything.
pub struct Cluster {
    // Before `embedded`: ranks end first.
    processes: Option<Processes>,
    embedded: Embedded,
    plan: Plan,
}

struct Processes {
    program: PathBuf,
    cache_bytes: u64,
    // Before `quotas`: a group is removed when its process has ended.
    running: BTreeMap<u32, RankProcess>,
    quotas: BTreeMap<u32, Quota>,
    /// Of those that were killed.
    spent: BTreeMap<u32, Duration>,
}

impl Cluster {
    /// Starts all daemons.
    pub fn start(options: Options, plan: Plan) -> anyhow::Result<Self> {
        if !plan.processes && plan.cpu_percent.is_none() {
            let embedded = Embedded::start(Options { mds: plan.ranks, ..options })?;
            return Ok(Self { processes: None, embedded, plan });
        }
        let program = process::program("pando-mds")?;
        let mut quotas = BTreeMap::new();
        if let Some(percent) = plan.cpu_percent {
            let found = Quotas::find()?;
            for rank in 0..plan.ranks {
                quotas.insert(rank, found.make(&rank.to_string(), percent)?);
            }
        }
        let cache_bytes = options.mds_cache_bytes;
        let embedded = Embedded::start(Options { mds: 0, ..options })?;
        let (running, spent) = Default::default();
        let processes = Processes { program, cache_bytes, running, quotas, spent };
        let mut cluster = Self { processes: Some(processes), embedded, plan };
        for rank in 0..plan.ranks {
            cluster.start_rank(rank)?;
        }
        Ok(cluster)
    }

    /// Its mons, as `HOST:PORT,HOST:PORT`.
    pub fn mons(&self) -> String {
        self.embedded.mons()
    }

    /// Numbers of its ranks, those that were killed included.
    pub fn ranks(&self) -> Vec<u32> {
        (0..self.plan.ranks).collect()
    }

    /// Ends a rank as a crash would: SIGKILL for a process.
    ///
    /// Errors: it does not run.
    pub fn kill_rank(&mut self, rank: u32) -> anyhow::Result<()> {
        let Some(processes) = &mut self.processes else { return self.embedded.kill_rank(rank) };
        let killed = processes.running.remove(&rank);
        let killed = killed.ok_or_else(|| anyhow::anyhow!("rank {rank} does not run"))?;
        *processes.spent.entry(rank).or_default() += killed.kill();
        Ok(())
    }

    /// Starts a rank that does not run. Returns once it serves.
    pub fn start_rank(&mut self, rank: u32) -> anyhow::Result<()> {
        let mons = self.mons();
        let Some(processes) = &mut self.processes else { return self.embedded.start_rank(rank) };
        let quota = processes.quotas.get(&rank);
        let started = RankProcess::start(&processes.program, rank, &mons, processes.cache_bytes, quota)?;
        processes.running.insert(rank, started);
        Ok(())
    }

    /// CPU time of each rank so far, if they are processes.
    pub fn cpu_seconds(&self) -> Option<BTreeMap<u32, f64>> {
        let processes = self.processes.as_ref()?;
        let mut seconds: BTreeMap<u32, f64> = BTreeMap::new();
        let spent = processes.spent.iter().map(|(rank, cpu)| (*rank, *cpu));
        for (rank, cpu) in spent.chain(processes.running.iter().map(|(rank, running)| (*rank, running.cpu()))) {
            *seconds.entry(rank).or_default() += cpu.as_secs_f64();
        }
        Some(seconds)
    }
}
