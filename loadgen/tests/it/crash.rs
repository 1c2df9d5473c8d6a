//! Real processes, killed with SIGKILL in the middle of a replay: nothing acknowledged is missing (I1, I4).

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use loadgen::replay::acks::Acks;
use loadgen::replay::{self, Options, verify};
use loadgen::report::Report;
use loadgen::target::pando::Pando;
use loadgen::trace::{self, PhaseName, Trace};

const CLIENTS: usize = 3;
const LIMIT: Duration = Duration::from_secs(120);

/// The directory of the daemons' programs: cargo puts all of a workspace beside each other.
fn programs() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_loadgen")).parent().unwrap()
}

/// A process that is killed when it is dropped.
struct Process {
    child: Child,
}

impl Process {
    /// Starts a program and waits until it prints `ready`.
    fn start(name: &str, log: &Path, ready: &'static str, arguments: &[String]) -> Self {
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(programs().join(name));
        command.args(arguments).env("RUST_LOG", "warn").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{name}: {error}: build the whole workspace first"));
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, receiver) = mpsc::channel();
        // Ends with the process.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if line.contains(ready) {
                    let _ = sender.send(());
                }
            }
        });
        let process = Self { child };
        receiver.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("{name} does not start"));
        process
    }

    fn kill(&mut self) {
        // SIGKILL.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// A cluster with a process for each daemon.
struct Daemons {
    dir: PathBuf,
    mon_address: String,
    _mon: Process,
    osds: Vec<Process>,
    mds: Process,
}

impl Daemons {
    fn start(dir: &Path) -> Self {
        let dir = dir.to_owned();
        let mon_address = format!("127.0.0.1:{}", free_port());
        let data = dir.join("mon");
        let flags = format!("--listen {mon_address} --expected-osds 3 --replicas 3 --data-dir {}", data.display());
        let mon = Process::start("pando-mon", &dir.join("mon.log"), "serves on", &words(&flags));
        let osds = (0..3).map(|osd| Self::osd(&dir, &mon_address, osd)).collect();
        let mds = Self::mds(&dir, &mon_address);
        Self { dir, mon_address, _mon: mon, osds, mds }
    }

    fn osd(dir: &Path, mon: &str, osd: usize) -> Process {
        let data = dir.join(format!("osd-{osd}"));
        let flags = format!("--mons {mon} --host host-{osd} --data-dir {}", data.display());
        Process::start("pando-osd", &dir.join(format!("osd-{osd}.log")), "on 127.0.0.1", &words(&flags))
    }

    fn mds(dir: &Path, mon: &str) -> Process {
        Process::start("pando-mds", &dir.join("mds.log"), "listens on", &words(&format!("--mons {mon}")))
    }
}

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
    let mut cluster = Daemons::start(dir.path());
    let run = Run::start(dir.path(), &cluster.mon_address, 40, LIMIT);
    for acknowledged in [50, 400] {
        run.wait_for(acknowledged);
        cluster.mds.kill();
        cluster.mds = Daemons::mds(&cluster.dir, &cluster.mon_address);
    }
    let (replayed, _) = run.finish();
    assert!(!replayed.interrupted, "the replay goes on after the restart");
}

#[test]
fn an_osd_killed_in_a_replay_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Daemons::start(dir.path());
    let run = Run::start(dir.path(), &cluster.mon_address, 40, LIMIT);
    for (acknowledged, osd) in [(50, 0), (400, 1)] {
        run.wait_for(acknowledged);
        cluster.osds[osd].kill();
        // Goes on without it, then with it again.
        run.wait_for(acknowledged + 60);
        cluster.osds[osd] = Daemons::osd(&cluster.dir, &cluster.mon_address, osd);
    }
    let (replayed, _) = run.finish();
    assert!(!replayed.interrupted, "the replay goes on without the OSD");
}

#[test]
fn a_whole_cluster_killed_in_a_replay_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mons, data) = (free_port(), dir.path().join("data"));
    let up = || {
        let flags = format!("up --mon-port {mons} --osds 3 --replicas 3 --data {}", data.display());
        Process::start("pando", &dir.path().join("up.log"), "Pando is up", &words(&flags))
    };
    let mut cluster = up();
    let mons = format!("127.0.0.1:{mons}");
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
