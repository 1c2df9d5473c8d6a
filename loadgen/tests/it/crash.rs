//! Real processes, killed with SIGKILL in the middle of a replay: nothing acknowledged is missing (I1, I4).

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use loadgen::replay::acks::Acks;
use loadgen::replay::{self, Options, verify};
use loadgen::report::Report;
use loadgen::target::pando::Pando;
use loadgen::trace::{self, PhaseName, Trace};
use pando_local_cluster::process::{Daemons, Process, START, program};

const CLIENTS: usize = 3;
const LIMIT: Duration = Duration::from_secs(120);

/// Creates, grows beyond the inline limit, links, renames, cuts and removes.
pub fn trace_text(rounds: usize) -> String {
    let mut build = String::new();
    let mut lines = 0;
    let mut put = |line: std::fmt::Arguments<'_>| {
        writeln!(build, "{line}").unwrap();
        lines += 1;
    };
    for i in 0..rounds {
        put(format_args!("mkdir\t0\tsrc/d{i}\t755"));
        put(format_args!("open\t1\tsrc/d{i}/f\tO_RDWR|O_CREAT|O_EXCL\t644"));
        put(format_args!("write\t{}\t1", 100 + 37 * i));
        if i % 4 == 0 {
            put(format_args!("write\t9000\t1"));
            put(format_args!("pwrite\t50\t1\t20"));
        }
        put(format_args!("close\t0\t1"));
        put(format_args!("link\t0\tsrc/d{i}/f\tsrc/d{i}/g"));
        put(format_args!("rename\t0\tsrc/d{i}/g\tsrc/h{i}"));
        put(format_args!("symlink\t0\th{i}\tsrc/s{i}"));
        if i % 3 == 0 {
            put(format_args!("truncate\t0\tsrc/h{i}\t64"));
        }
        if i % 2 == 0 {
            put(format_args!("unlink\t0\tsrc/d{i}/f"));
            put(format_args!("rmdir\t0\tsrc/d{i}"));
        }
    }
    let files: String = (0..30).map(|i| format!("W\tsrc/w{i}\t644\t{}\n", i * 400)).collect();
    format!("# fstrace 1\n# phase unpack 31\nM\tsrc\t755\n{files}# phase build {lines}\n{build}")
}

/// A replay under way.
struct Run {
    mons: String,
    trace: PathBuf,
    list: PathBuf,
    replay: JoinHandle<Report>,
}

impl Run {
    fn start(dir: &Path, mons: &str, rounds: usize, deadline: Duration) -> Self {
        let (trace_file, list) = (dir.join("trace"), dir.join("acks"));
        std::fs::write(&trace_file, trace_text(rounds)).unwrap();
        // That of an earlier run would be taken for this one's.
        let _ = std::fs::remove_file(&list);
        let trace = load(&trace_file);
        let options = Options {
            clients: CLIENTS,
            phases: vec![PhaseName::Unpack, PhaseName::Build],
            record_acks: Some(list.clone()),
            trace_name: trace_file.display().to_string(),
            ..Options::default()
        };
        let target = Pando::new(mons).with_deadline(deadline);
        let replay = std::thread::spawn(move || replay::run(&target, &trace, &options).unwrap());
        Self { mons: mons.to_owned(), trace: trace_file, list, replay }
    }

    /// Waits until so many mutations were acknowledged.
    fn wait_for(&self, acknowledged: usize) {
        let start = Instant::now();
        loop {
            let text = std::fs::read(&self.list).unwrap_or_default();
            if text.iter().filter(|byte| **byte == b'\n').count() > acknowledged {
                return;
            }
            assert!(!self.replay.is_finished(), "the replay ended before it was to be disturbed");
            assert!(start.elapsed() < LIMIT, "the replay makes no progress");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn finish(self) -> (Report, Report) {
        let report = self.replay.join().unwrap();
        assert_eq!((report.mismatches, &report.first_mismatches[..]), (0, &[][..]), "in the replay");
        (report, check(&self.mons, &self.trace, &self.list))
    }
}

fn load(file: &Path) -> Trace {
    trace::load(&trace::Source::File(file.to_owned())).unwrap()
}

fn check(mons: &str, trace: &Path, list: &Path) -> Report {
    let acks = Acks::read(list).unwrap();
    let target = Pando::new(mons).with_deadline(LIMIT);
    let report = verify::run(&target, &load(trace), &acks, 1).unwrap();
    assert_eq!((report.mismatches, &report.first_mismatches[..]), (0, &[][..]), "after the crash");
    assert!(report.operations > 100 && report.bytes_verified > 100_000, "there was something to check");
    report
}

#[test]
fn an_mds_killed_in_a_replay_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Daemons::start(1).unwrap();
    let run = Run::start(dir.path(), &cluster.address.to_string(), 40, LIMIT);
    for acknowledged in [50, 400] {
        run.wait_for(acknowledged);
        cluster.start_mds(0).unwrap();
    }
    let (replayed, _) = run.finish();
    assert!(!replayed.interrupted, "the replay goes on after the restart");
}

#[test]
fn an_osd_killed_in_a_replay_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Daemons::start(1).unwrap();
    let run = Run::start(dir.path(), &cluster.address.to_string(), 40, LIMIT);
    for (acknowledged, osd) in [(50, 1), (400, 2)] {
        run.wait_for(acknowledged);
        cluster.osds.remove(&osd).unwrap().kill();
        // Goes on without it, then with it again.
        run.wait_for(acknowledged + 60);
        cluster.start_osd(osd).unwrap();
    }
    let (replayed, _) = run.finish();
    assert!(!replayed.interrupted, "the replay goes on without the OSD");
}

#[test]
fn a_whole_cluster_killed_in_a_replay_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (port, data) =
        (TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port(), dir.path().join("data"));
    let up = || {
        let mut command = Command::new(program("pando").unwrap());
        command.args(["up", "--mon-port", &port.to_string(), "--osds", "3", "--replicas", "3", "--data"]).arg(&data);
        let process = Process::spawn(&mut command).unwrap();
        process.wait_for_line(START, |line| line.contains("Pando is up").then_some(())).unwrap();
        process
    };
    let mut cluster = up();
    let mons = format!("127.0.0.1:{port}");
    // Once so that the replay outlasts it, then so that it gives up in the middle.
    let run = Run::start(dir.path(), &mons, 40, LIMIT);
    run.wait_for(250);
    cluster.kill();
    cluster = up();
    let (replayed, _) = run.finish();
    assert!(!replayed.interrupted, "the replay goes on after the restart");

    cluster.kill();
    std::fs::remove_dir_all(&data).unwrap();
    cluster = up();
    let run = Run::start(dir.path(), &mons, 200, Duration::from_secs(2));
    run.wait_for(700);
    cluster.kill();
    let Run { mons, trace, list, replay } = run;
    let replayed = replay.join().unwrap();
    assert!(replayed.interrupted && replayed.mismatches == 0, "{:?}", replayed.first_mismatches);
    let _cluster = up();
    check(&mons, &trace, &list);
}
