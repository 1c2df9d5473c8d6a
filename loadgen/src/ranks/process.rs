//! A rank as a process of its own.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use pando_local_cluster::process::START;

use super::quota::Quota;
use crate::leftovers::Program;

/// A running rank, killed when it is dropped. If this process is killed it stops by itself.
pub(super) struct RankProcess {
    program: Program,
}

impl RankProcess {
    /// Starts a rank and waits until it serves. With a quota it is bound to that from its first moments on.
    pub(super) fn start(
        program: &Path,
        rank: u32,
        mons: &str,
        cache_bytes: u64,
        quota: Option<&Quota>,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["--mons", mons, "--rank", &rank.to_string(), "--cache-bytes", &cache_bytes.to_string()]);
        command.arg("--stop-with-stdin");
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "warn");
        }
        let program = Program::start(&mut command).with_context(|| format!("cannot start {}", program.display()))?;
        if let Some(quota) = quota {
            quota.add(program.process().id())?;
        }
        let serves = |line: &str| line.contains("listens on").then_some(());
        program.process().wait_for_line(START, serves).with_context(|| format!("rank {rank}"))?;
        Ok(Self { program })
    }

    /// CPU time of all its threads so far.
    pub(super) fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.program.process().id()));
        let of_thread = |task: std::path::PathBuf| {
            // proc(5): nanoseconds on a CPU come first.
            let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        let threads = tasks.into_iter().flatten().flatten().filter_map(|task| of_thread(task.path()));
        Duration::from_nanos(threads.sum())
    }

    /// SIGKILL. Returns the CPU time that it had.
    pub(super) fn kill(self) -> Duration {
        self.cpu()
    }
}
