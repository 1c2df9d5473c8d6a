//! What an interrupted or killed loadgen leaves behind: no rank, no cgroup, and no directory unless it was killed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pando_local_cluster::process::{Process, interrupts};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(60);

/// A loadgen on ranks that are processes, with its data below `dir`.
struct Loadgen(Process);

impl Loadgen {
    fn start(dir: &Path, words: &str) -> Self {
        std::fs::create_dir_all(dir.join("data")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
        command.args(words.split(' ')).args("--engine memory --osds 1 --replicas 1 --data data".split(' '));
        let log = std::fs::File::create(dir.join("log")).unwrap();
        Self(Process::spawn(command.current_dir(dir).env("RUST_LOG", "warn").stderr(log)).unwrap())
    }

    /// Waits until something is so. False: it has ended before.
    fn wait_until(&mut self, so: impl Fn(&Self) -> bool) -> bool {
        let start = Instant::now();
        while !so(self) {
            if self.0.has_ended() {
                return false;
            }
            assert!(start.elapsed() < LIMIT, "it comes so far in time");
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Its ranks that run.
    fn ranks(&self) -> Vec<u32> {
        let parent = self.0.id().to_string();
        processes().into_iter().filter(|(_, its_parent)| *its_parent == parent).map(|(rank, _)| rank).collect()
    }

    /// The exit code after a signal.
    fn end_by(&mut self, signal: Signal) -> Option<i32> {
        self.0.end_by(signal, LIMIT).unwrap().code()
    }
}

/// Ranks on this machine that run, whoever started them, with the number of the process whose children they are.
fn processes() -> Vec<(u32, String)> {
    let stat = |entry: std::fs::DirEntry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        // proc(5): number, name in brackets, state, parent.
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // A zombie has ended, whoever has to take notice of it.
        (name == "pando-mds" && *fields.first()? != "Z").then(|| Some((process, fields.get(1)?.to_string())))?
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(stat).collect()
}

fn wait_for_the_end_of(ranks: &[u32]) {
    let start = Instant::now();
    while processes().iter().any(|(rank, _)| ranks.contains(rank)) {
        assert!(start.elapsed() < LIMIT, "the ranks end too");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The cgroups of a process that loadgen has made.
fn groups_of(process: u32) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let groups = std::fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for mount in mounts.lines().filter(|line| line.contains(" cgroup")) {
        let at = mount.split(' ').nth(1).unwrap_or_default();
        let paths =
            groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| path.contains("loadgen-"));
        found.extend(paths.map(|path| Path::new(at).join(path.trim_start_matches('/'))).filter(|path| path.is_dir()));
    }
    found
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// SIGINT, SIGTERM and SIGHUP: it tidies up itself.
#[test]
fn an_interrupted_loadgen_takes_its_ranks_along() {
    let dir = tempfile::tempdir().unwrap();
    for (signal, code) in interrupts() {
        let mut loadgen = Loadgen::start(dir.path(), "migrate --processes --inodes 300 --moves 100000");
        assert!(loadgen.wait_until(|it| it.ranks().len() == 2));
        let ranks = loadgen.ranks();
        assert_eq!(entries(&dir.path().join("data")), 1);
        assert_eq!(loadgen.end_by(signal), Some(code));
        wait_for_the_end_of(&ranks);
        assert_eq!(entries(&dir.path().join("data")), 0, "{signal:?}");
    }
}

/// SIGKILL, while one rank serves and the other just starts: their standard input ends.
#[test]
fn the_ranks_of_a_killed_loadgen_end_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let mut loadgen = Loadgen::start(dir.path(), "migrate --processes --inodes 300 --moves 100000");
    assert!(loadgen.wait_until(|it| it.ranks().len() == 2));
    let ranks = loadgen.ranks();
    assert_eq!(loadgen.end_by(Signal::KILL), None);
    wait_for_the_end_of(&ranks);
}

/// `--chaos kill` is a SIGKILL for a process, and another process goes on as that rank.
#[test]
fn ranks_that_are_processes_are_killed_as_such() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("trace"), crate::crash::trace_text(1000)).unwrap();
    let words = "replay --trace trace --clients 2 --ranks 2 --processes --chaos moves,kill --seed 2 --think-us 5000";
    let mut loadgen = Loadgen::start(dir.path(), words);
    assert!(loadgen.wait_until(|it| it.ranks().len() == 2));
    let first = loadgen.ranks();
    let replaced = |it: &Loadgen| {
        let now = it.ranks();
        now.len() == 2 && now.iter().any(|rank| !first.contains(rank))
    };
    assert!(loadgen.wait_until(replaced), "{}", std::fs::read_to_string(dir.path().join("log")).unwrap());
    let ranks = loadgen.ranks();
    assert_eq!(loadgen.end_by(Signal::TERM), Some(143));
    wait_for_the_end_of(&ranks);
    assert_eq!(entries(&dir.path().join("data")), 0);
}

/// In the middle of a load, with groups, where this machine lets us make some.
#[test]
fn no_cgroup_is_left_behind_for_long() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("trace"), crate::crash::trace_text(1000)).unwrap();
    let words = "replay --trace trace --clients 2 --ranks 2 --spread --rank-cpu 50 --think-us 5000 --record-acks acks";
    let run = |signal: Signal| {
        let _ = std::fs::remove_file(dir.path().join("acks"));
        let mut loadgen = Loadgen::start(dir.path(), words);
        let acknowledged = || std::fs::metadata(dir.path().join("acks")).map_or(0, |file| file.len());
        if !loadgen.wait_until(|_| acknowledged() > 10_000) {
            let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
            assert!(log.contains("--rank-cpu needs a cgroup directory"), "{log}");
            return None;
        }
        let ranks = loadgen.ranks();
        let groups: Vec<PathBuf> = ranks.iter().flat_map(|rank| groups_of(*rank)).collect();
        assert_eq!((ranks.len(), groups.len()), (2, 2), "{groups:?}");
        loadgen.end_by(signal);
        wait_for_the_end_of(&ranks);
        Some(groups)
    };
    let Some(killed) = run(Signal::KILL) else { return };
    assert!(killed.iter().all(|group| group.is_dir()), "nobody was there to remove them");
    let Some(interrupted) = run(Signal::INT) else { return };
    assert!(!killed.iter().any(|group| group.exists()), "the next start has swept them");
    assert!(!interrupted.iter().any(|group| group.exists()));
}
