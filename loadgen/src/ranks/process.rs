//! A rank as a process of its own.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;

use super::quota::Quota;

/// How long a rank may take to say where it serves: longer than the lease of its former process.
const START: Duration = Duration::from_secs(60);
const PROGRAM: &str = "pando-mds";

/// The program, where cargo puts it: beside this one.
///
/// Errors: it is not there; the message says how to get it.
pub(super) fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    // Tests are one directory below the programs.
    let places = own.ancestors().skip(1).take(2).map(|dir| dir.join(PROGRAM));
    let found = places.clone().find(|path| path.is_file());
    found.with_context(|| {
        let place = own.with_file_name(PROGRAM);
        format!(
            "{} is missing: build it with the same profile, `cargo build [--release] -p pando-mds`",
            place.display()
        )
    })
}

/// A running rank, killed when it is dropped.
pub(super) struct RankProcess {
    child: Child,
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
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "warn");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let output = child.stdout.take().context("its output is piped")?;
        let process = Self { child };
        if let Some(quota) = quota {
            quota.add(process.child.id())?;
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
        Ok(process)
    }

    /// CPU time of all its threads so far.
    pub(super) fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let of_thread = |task: std::path::PathBuf| {
            // proc(5): nanoseconds on a CPU come first.
            let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        let threads = tasks.into_iter().flatten().flatten().filter_map(|task| of_thread(task.path()));
        Duration::from_nanos(threads.sum())
    }

    /// SIGKILL. Returns the CPU time that it had.
    pub(super) fn kill(mut self) -> Duration {
        let cpu = self.cpu();
        self.end();
        cpu
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        self.end();
    }
}
