//! What must not outlive this process: programs, cgroups and directories that it made.
//!
//! A signal ends a process without running any destructor. So all that destructors would end or remove is listed here as
//! well, and removed when SIGINT, SIGTERM or SIGHUP comes. Against SIGKILL nothing helps: then programs end with their standard
//! input (`pando-mds --stop-with-stdin`), cgroups are removed by the next start, and directories stay.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pando_local_cluster::process::Process;
use pando_rpc::StopSignals;
use rustix::process::{Pid, Signal, kill_process};

/// A cgroup whose last process has just ended may be busy for a moment; files may come into a directory while it is removed.
const REMOVAL: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// Whoever makes or removes one of them holds this meanwhile, and whoever ends the process never lets go.
static LISTED: Mutex<BTreeSet<Leftover>> = Mutex::new(BTreeSet::new());

fn listed() -> MutexGuard<'static, BTreeSet<Leftover>> {
    LISTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something short with the end by a signal kept off.
pub(crate) fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    let _listed = listed();
    work()
}

/// In the order in which they go: a cgroup has to be empty, and a program may use a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Leftover {
    Process(u32),
    Group(PathBuf),
    Directory(PathBuf),
}

impl Leftover {
    fn remove(&self) {
        let outcome = match self {
            // Nobody has waited for it as long as it is listed, so its number is its own.
            Self::Process(id) => {
                let id = i32::try_from(*id).ok().and_then(Pid::from_raw);
                id.map_or(Ok(()), |id| kill_process(id, Signal::KILL).map_err(io::Error::from))
            }
            Self::Group(dir) => patiently(|| std::fs::remove_dir(dir)),
            Self::Directory(dir) => patiently(|| std::fs::remove_dir_all(dir)),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, leftover = ?self, "cannot remove what was only for this run");
        }
    }
}

fn patiently(remove: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match remove() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if start.elapsed() < REMOVAL => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

/// Keeps something listed; removes it when it is dropped.
#[derive(Debug)]
struct Entry(Leftover);

impl Entry {
    /// `made` is called under the lock: there is no moment in which the thing exists and is not listed.
    fn new<T>(make: impl FnOnce() -> io::Result<(T, Leftover)>) -> io::Result<(T, Self)> {
        let mut listed = listed();
        let (made, leftover) = make()?;
        listed.insert(leftover.clone());
        Ok((made, Self(leftover)))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut listed = listed();
        self.0.remove();
        listed.remove(&self.0);
    }
}

/// A directory for this run.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _entry: Entry,
}

impl Scratch {
    /// Makes one in `parent`, or where the system has temporary files.
    ///
    /// Errors: none can be made there.
    pub fn new(parent: Option<&Path>) -> anyhow::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let made = Entry::new(|| {
            let path = tempfile::Builder::new().prefix("loadgen-").tempdir_in(&parent)?.keep();
            Ok((path.clone(), Leftover::Directory(path)))
        });
        let (path, entry) = made.with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        Ok(Self { path, _entry: entry })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A cgroup. Its processes have to have ended when it is dropped.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
    _entry: Entry,
}

impl Group {
    /// Makes it.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        let make = || std::fs::create_dir(&path).map(|()| ((), Leftover::Group(path.clone())));
        let ((), entry) = Entry::new(make)?;
        Ok(Self { path, _entry: entry })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A program that this process has started; killed when it is dropped.
pub(crate) struct Program {
    // Before `process`: not listed any more when it is waited for.
    _entry: Entry,
    process: Process,
}

impl Program {
    /// Starts it. Its standard input is a pipe that ends with this process.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let (process, entry) = Entry::new(|| {
            let process = Process::spawn(command)?;
            let leftover = Leftover::Process(process.id());
            Ok((process, leftover))
        })?;
        Ok(Self { _entry: entry, process })
    }

    pub fn process(&self) -> &Process {
        &self.process
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP remove what is listed, then end this process with the code that shells give it.
///
/// Errors: the system lets nobody watch signals.
pub fn remove_on_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut signals = runtime.block_on(async { StopSignals::watch() })?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let signal = runtime.block_on(signals.next());
        eprintln!("loadgen: interrupted, there is no report");
        let listed = listed();
        listed.iter().for_each(Leftover::remove);
        std::process::exit(128 + signal);
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_gone_and_listed_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(Some(dir.path())).unwrap();
        let group = Group::new(dir.path().join("group")).unwrap();
        let paths = [scratch.path().to_owned(), group.path().to_owned()];
        std::fs::create_dir_all(scratch.path().join("a/b")).unwrap();
        let program = Program::start(&mut Command::new("cat")).unwrap();
        let id = program.process().id();
        assert!(paths.iter().all(|path| path.is_dir()));
        drop((program, group, scratch));
        assert!(paths.iter().all(|path| !path.exists()));
        // Nobody but us has waited for it, so its number is not another's for long.
        assert!(!Path::new("/proc").join(id.to_string()).exists());
        let listed = listed();
        assert!(!listed.contains(&Leftover::Process(id)));
        assert!(!paths.iter().any(|path| listed.contains(&Leftover::Directory(path.clone()))));
    }
}
