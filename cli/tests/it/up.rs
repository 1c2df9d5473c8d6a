//! `pando up`: its directory, its signals, what it says.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use pando_local_cluster::process::ignores_hangups;
use rustix::process::{Pid, Signal, kill_process};

use crate::{LIMIT, Up, failure, objects, pando, stdout, up_command};

/// A start that fails.
fn up_failure(data: &Path) -> (i32, String) {
    failure(&up_command(data, &[]).output().expect("the command runs"))
}

/// As `nohup` has it: who started it did not want it to end with the terminal.
#[test]
fn an_ignored_hangup_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let plain = up_command(&dir.path().join("data"), &[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    let up = Up::run(shell);
    up.process.signal(Signal::HUP);
    assert_eq!(objects(&stdout(&pando(&up.mons, &["status", "--json"]))).len(), 1);
    assert_eq!(up.stop(), Some(0));
    if ignores_hangups() {
        return;
    }
    let mut up = Up::start(&dir.path().join("data"));
    assert_eq!(up.process.end_by(Signal::HUP, LIMIT).unwrap().code(), Some(0), "a clean stop");
}

#[test]
fn a_directory_runs_in_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let up = Up::start(&data);
    let (code, text) = up_failure(&data);
    let told = format!("another `pando up` uses this directory (pid {})", up.process.id());
    assert!(code == 1 && text.contains(&told), "{text}");
    assert_eq!(up.stop(), Some(0));
    assert_eq!(Up::start(&data).stop(), Some(0));
}

/// Stops a cluster and returns its id.
fn made(data: &Path) -> String {
    let up = Up::start(data);
    let status = objects(&stdout(&pando(&up.mons, &["status", "--json"])));
    assert_eq!(up.stop(), Some(0));
    status[0]["cluster_id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_lost_or_swapped_directory_is_told_by_the_names_of_the_clusters() {
    let dir = tempfile::tempdir().unwrap();
    let (data, other) = (dir.path().join("data"), dir.path().join("other"));
    let (id, other_id) = (made(&data), made(&other));
    for part in ["mon.0", "osd.0"] {
        let (path, kept) = (data.join(part), dir.path().join("kept"));
        std::fs::rename(&path, &kept).unwrap();
        std::fs::rename(other.join(part), &path).unwrap();
        let (code, text) = up_failure(&data);
        assert!(code == 1 && text.contains(path.to_str().unwrap()), "{part}: {code}: {text}");
        assert!(text.contains(&id) && text.contains(&other_id), "{part}: {text}");
        std::fs::rename(&path, other.join(part)).unwrap();
        std::fs::rename(&kept, &path).unwrap();
    }
    let (path, kept) = (data.join("mon.0"), dir.path().join("kept"));
    std::fs::rename(&path, &kept).unwrap();
    let (code, text) = up_failure(&data);
    assert!(code == 1 && text.contains(&id) && text.contains("mon.0 is missing"), "{text}");
    assert!(!path.exists());
    std::fs::rename(&kept, &path).unwrap();
    assert_eq!(made(&data), id, "all is as before");
}

#[test]
fn a_cluster_in_memory_promises_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
    command.args(["up", "--engine", "memory", "--mon-port", "0", "--osds", "1"]).current_dir(dir.path());
    let stopped = {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // Ends at the latest with the process.
        let announced: Vec<String> = lines.by_ref().take_while(|line| !line.starts_with("Ctrl-C")).collect();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        format!("{}\n{}", announced.join("\n"), String::from_utf8_lossy(&output.stderr))
    };
    assert!(stopped.contains("Pando is up. All files are in memory"), "{stopped}");
    assert!(stopped.contains("stopping; all files were in memory"), "{stopped}");
    assert!(!stopped.contains("stays in") && !stopped.contains("Data in"), "{stopped}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is kept");
}

/// What a log file gets: no colours, and no chatter of the storage engine.
#[test]
fn a_log_file_is_plain_text() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut command = up_command(&dir.path().join("data"), &["-v", "--mds-cache-bytes", "1M"]);
    command.stderr(std::fs::File::create(&log).unwrap());
    let up = Up::run(command);
    stdout(&pando(&up.mons, &["mkdir", "/d"]));
    assert_eq!(up.stop(), Some(0));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains(" INFO pando"), "it logs: {text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let chatter = text.lines().find(|line| line.contains(" INFO fjall") || line.contains(" INFO lsm_tree"));
    assert_eq!(chatter, None);
}

#[test]
fn an_occupied_port_is_told_with_a_way_out() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (code, text) = failure(&pando("", &["up", "--mon-port", &port, "--data", data.to_str().unwrap()]));
    assert_eq!(code, 1);
    assert!(text.contains("in use") && text.contains("choose another"), "{text}");
}
