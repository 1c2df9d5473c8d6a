//! The command as a user runs it: real processes, real data.

mod subtrees;
mod transfers;
mod up;
mod usage;
mod verbs;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use pando_local_cluster::process::Process;
use rustix::process::Signal;
use serde_json::Value;

/// Every wait has a deadline.
const LIMIT: Duration = Duration::from_secs(60);

fn pando(mons: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
    command.args(args).env("PANDO_MONS", mons).env_remove("RUST_LOG").stdin(Stdio::null());
    command.output().expect("the command runs")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn failure(output: &Output) -> (i32, String) {
    (output.status.code().expect("an exit code"), String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

struct Up {
    process: Process,
    mons: String,
}

/// `pando up` on a directory, not yet started.
fn up_command(data: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
    command.args(["up", "--json", "--mon-port", "0", "--osds", "1", "--data"]).arg(data).args(flags);
    command.env_remove("RUST_LOG");
    command
}

impl Up {
    fn start(data: &Path) -> Self {
        Self::run(up_command(data, &[]))
    }

    fn run(mut command: Command) -> Self {
        let process = Process::spawn(&mut command).expect("it starts");
        let up: Value =
            process.wait_for_line(LIMIT, |line| serde_json::from_str(line).ok()).expect("it serves in time");
        let mons =
            up["mons"].as_array().expect("a list").iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",");
        Self { process, mons }
    }

    /// SIGTERM; the exit code.
    fn stop(mut self) -> Option<i32> {
        self.process.end_by(Signal::TERM, LIMIT).expect("it stops in time").code()
    }
}
