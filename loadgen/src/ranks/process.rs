//! A rank as a process of its own.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;

use super::quota::Quota;
use crate::leftovers::Program;

/// How long a rank may take to say where it serves: longer than the lease of its former process.
const START: Duration = Duration::from_secs(60);
const NAME: &str = "pando-mds";

/// The program, where cargo puts it: beside this one.
///
/// Errors: it is not there; the message says how to get it.
pub(super) fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    // Tests are one directory below the programs.
    let places = own.ancestors().skip(1).take(2).map(|dir| dir.join(NAME));
    let found = places.clone().find(|path| path.is_file());
    found.with_context(|| {
        let place = own.with_file_name(NAME);
        format!(
            "{} is missing: build it with the same profile, `cargo build [--release] -p pando-mds`",
            place.display()
        )
    })
}

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
        command.arg("--stop-with-stdin").stdout(Stdio::piped());
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "warn");
        }
        let mut program =
            Program::start(&mut command).with_context(|| format!("cannot start {}", program.display()))?;
        let output = program.child().stdout.take().context("its output is piped")?;
        if let Some(quota) = quota {
            quota.add(program.id())?;
        }
        let (sender, serving) = mpsc::channel();
        // Ends with the process.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if line.contains("listens on") {
                    let _ = sender.send(());
                }
            }
        });
        serving.recv_timeout(START).map_err(|_| anyhow::anyhow!("rank {rank} does not serve within {START:?}"))?;
        Ok(Self { program })
    }

    /// CPU time of all its threads so far.
    pub(super) fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.program.id()));
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
