//! Daemons as processes of their own, as in production: for whoever wants to kill them, or to bind them to a CPU.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a daemon may take to say where it serves: longer than the lease of its former process.
pub const START: Duration = Duration::from_secs(60);
/// Lines of output that wait to be looked at; what is more is lost.
const LINES: usize = 64;
const PAUSE: Duration = Duration::from_millis(5);

/// A program of the workspace, where cargo puts it: beside this one.
///
/// Errors: it is not there; the message says how to get it.
pub fn program(name: &str) -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    // Tests are one directory below the programs.
    let found = own.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let place = own.with_file_name(name);
        let text = format!(
            "{} is missing: build it with the same profile, `cargo build [--release] --workspace`",
            place.display()
        );
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

/// Whether this process was started with SIGHUP ignored, as under `nohup`: its children inherit that.
pub fn ignores_hangups() -> bool {
    // proc(5): a mask in hexadecimal; the lowest bit is that of signal 1.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 != 0)
}

/// The signals that ask a child to stop, with the exit codes of what was interrupted by them.
pub fn interrupts() -> Vec<(Signal, i32)> {
    let mut signals = vec![(Signal::INT, 130), (Signal::TERM, 143)];
    if !ignores_hangups() {
        signals.push((Signal::HUP, 129));
    }
    signals
}

/// A child process, killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    /// Somebody has waited for its end: its number may be another's.
    ended: bool,
}

impl Process {
    /// Starts a program. Its standard input is a pipe that ends with this process, also when that is killed.
    ///
    /// Errors: it cannot be started.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take();
        let (sender, lines) = mpsc::sync_channel(LINES);
        // Ends with the process.
        std::thread::spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok) {
                let _ = sender.try_send(line);
            }
        });
        Ok(Self { child, lines, ended: false })
    }

    /// Waits for a line of its output in which `look` finds something.
    ///
    /// Errors: it says no such thing in time, or ends before.
    pub fn wait_for_line<T>(&self, limit: Duration, look: impl Fn(&str) -> Option<T>) -> io::Result<T> {
        let start = Instant::now();
        loop {
            let line = self.lines.recv_timeout(limit.saturating_sub(start.elapsed()));
            let line = line.map_err(|error| match error {
                RecvTimeoutError::Timeout => timed_out("does not serve", limit),
                RecvTimeoutError::Disconnected => io::Error::other("it has ended before it served"),
            })?;
            if let Some(found) = look(&line) {
                return Ok(found);
            }
        }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The other end of its standard input, once.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Sends a signal. Nothing happens if it has ended.
    pub fn signal(&self, signal: Signal) {
        if !self.ended {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Sends a signal and waits for the end.
    ///
    /// Errors: it does not end in time.
    pub fn end_by(&mut self, signal: Signal, limit: Duration) -> io::Result<ExitStatus> {
        self.signal(signal);
        self.wait(limit)
    }

    /// Waits for its end.
    ///
    /// Errors: it does not end in time.
    pub fn wait(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.ended = true;
                return Ok(status);
            }
            if start.elapsed() > limit {
                return Err(timed_out("does not end", limit));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether it has ended, in whatever way.
    pub fn has_ended(&mut self) -> bool {
        self.ended |= self.child.try_wait().is_ok_and(|status| status.is_some());
        self.ended
    }

    /// SIGKILL. Returns when it has ended.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.ended = true;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn timed_out(what: &str, limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("it {what} within {limit:?}"))
}

/// A mon, three OSDs and ranks, a process each; their data and logs are in a temporary directory.
pub struct Daemons {
    /// Where the mon serves.
    pub address: SocketAddr,
    /// The mon.
    pub mon: Process,
    /// OSDs that run, from 1 on.
    pub osds: BTreeMap<u32, Process>,
    /// Ranks that run.
    pub mds: BTreeMap<u32, Process>,
    // The last: it is removed when all have ended.
    dir: tempfile::TempDir,
}

impl Daemons {
    /// Starts them on free ports of the loopback.
    ///
    /// Errors: one does not start; its log says why.
    pub fn start(ranks: u32) -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let flags = "--listen 127.0.0.1:0 --expected-osds 3 --replicas 3 --metadata-pgs 4 --data-pgs 4";
        let (mon, address) = start(dir.path(), "pando-mon", "mon", &with_data(flags, dir.path(), "mon"))?;
        let (osds, mds) = Default::default();
        let mut daemons = Self { address, mon, osds, mds, dir };
        for osd in 1..=3 {
            daemons.start_osd(osd)?;
        }
        for rank in 0..ranks {
            daemons.start_mds(rank)?;
        }
        Ok(daemons)
    }

    /// Starts an OSD on its directory; one that still runs is killed before.
    ///
    /// Errors: those of [`start`](Self::start).
    pub fn start_osd(&mut self, osd: u32) -> io::Result<()> {
        drop(self.osds.remove(&osd));
        let part = format!("osd-{osd}");
        let flags = with_data(&format!("--mons {} --host host-{osd}", self.address), self.dir.path(), &part);
        self.osds.insert(osd, start(self.dir.path(), "pando-osd", &part, &flags)?.0);
        Ok(())
    }

    /// Starts a rank; one that still runs is killed before.
    ///
    /// Errors: those of [`start`](Self::start).
    pub fn start_mds(&mut self, rank: u32) -> io::Result<()> {
        drop(self.mds.remove(&rank));
        let flags = format!("--mons {} --rank {rank} --stop-with-stdin", self.address);
        self.mds.insert(rank, start(self.dir.path(), "pando-mds", &format!("mds-{rank}"), &words(&flags))?.0);
        Ok(())
    }
}

fn words(flags: &str) -> Vec<String> {
    flags.split(' ').map(str::to_owned).collect()
}

fn with_data(flags: &str, dir: &Path, part: &str) -> Vec<String> {
    let mut words = words(flags);
    words.extend(["--data-dir".to_owned(), dir.join(part).display().to_string()]);
    words
}

/// Starts a daemon and waits until it says where it serves.
fn start(dir: &Path, name: &str, part: &str, flags: &[String]) -> io::Result<(Process, SocketAddr)> {
    let log = dir.join(format!("{part}.log"));
    let mut command = Command::new(program(name)?);
    command.args(flags).stderr(File::options().create(true).append(true).open(&log)?);
    if std::env::var_os("RUST_LOG").is_none() {
        command.env("RUST_LOG", "warn");
    }
    let process = Process::spawn(&mut command)?;
    let address = |line: &str| line.split_whitespace().last()?.parse().ok();
    let address = process
        .wait_for_line(START, address)
        .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}; its log is {}", log.display())))?;
    Ok((process, address))
}
