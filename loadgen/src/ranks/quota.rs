//! A share of a CPU for a process, by cgroups of either version, whichever this machine has and lets us write.
//!
//! Version 1: a directory below our own in the hierarchy of the `cpu` controller, with `cpu.cfs_quota_us`
//! (Documentation/scheduler/sched-bwc.rst). Version 2: a directory whose parent hands the `cpu` controller down, with
//! `cpu.max` (Documentation/admin-guide/cgroup-v2.rst); as a directory with processes hands nothing down, that parent
//! is our own directory only if that is the root, else one above.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::leftovers::Group;

/// Short, so that a process at its limit stands still often but not long. Not shorter: the kernel takes no quota below
/// 1 ms, and where a process does not sleep it looks only with each tick (1 to 10 ms) whether the quota is used up, and
/// takes what was too much off the next periods.
const PERIOD_US: u64 = 10_000;
const LEAST_QUOTA_US: u64 = 1000;
/// How the names of our groups begin; then comes the number of the process that made them.
const NAME: &str = "loadgen-";

const NEEDED: &str = "--rank-cpu needs a cgroup directory with the `cpu` controller that it may write: with cgroup v1 \
    that of its own group below the mount of `cpu`, with cgroup v2 one of which the parent has `cpu` in \
    cgroup.subtree_control; run as root, or in a group delegated to you (`systemd-run --user --scope -p Delegate=yes`)";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where groups can be made.
#[derive(Clone, Debug)]
pub(super) struct Quotas {
    parent: PathBuf,
    version: Version,
}

/// One group, removed when it is dropped; its processes have to have ended by then.
#[derive(Debug)]
pub(super) struct Quota {
    group: Group,
}

impl Quotas {
    /// Looks where this machine lets us make groups.
    ///
    /// Errors: nowhere; the message says what is needed.
    pub(super) fn find() -> anyhow::Result<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").context("cannot read /proc/mounts")?;
        let own = std::fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
        let mut tried = Vec::new();
        for candidate in candidates(&mounts, &own) {
            match candidate.try_out() {
                Ok(()) => {
                    candidate.sweep();
                    return Ok(candidate);
                }
                Err(error) => tried.push(format!("{}: {error:#}", candidate.parent.display())),
            }
        }
        if tried.is_empty() {
            tried.push("no cgroup hierarchy is mounted".to_owned());
        }
        anyhow::bail!("{NEEDED} ({})", tried.join("; "))
    }

    fn try_out(&self) -> anyhow::Result<()> {
        self.make("probe", 50).map(drop)
    }

    /// A group whose processes have so many percent of one CPU together.
    pub(super) fn make(&self, name: &str, percent: u32) -> anyhow::Result<Quota> {
        let dir = self.parent.join(format!("{NAME}{}-{name}", std::process::id()));
        let group = Group::new(dir.clone()).with_context(|| format!("cannot make {}", dir.display()))?;
        let quota = Quota { group };
        let (quota_us, period_us) = limits(percent);
        match self.version {
            Version::One => {
                quota.write("cpu.cfs_period_us", &period_us.to_string())?;
                quota.write("cpu.cfs_quota_us", &quota_us.to_string())?;
                quota.allow_burst("cpu.cfs_burst_us", quota_us);
            }
            Version::Two => {
                if !dir.join("cpu.max").exists() {
                    // Fails if processes are in the parent: then it has to be another one.
                    write(&self.parent.join("cgroup.subtree_control"), "+cpu")?;
                }
                quota.write("cpu.max", &format!("{quota_us} {period_us}"))?;
                quota.allow_burst("cpu.max.burst", quota_us);
            }
        }
        Ok(quota)
    }

    /// Removes groups of processes that were killed before they could. One in which somebody still runs stays.
    fn sweep(&self) {
        let entries = std::fs::read_dir(&self.parent).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| maker(&entry.file_name()).is_some_and(has_ended)) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// The process that made a group, by the group's name.
fn maker(name: &OsStr) -> Option<u32> {
    name.to_str()?.strip_prefix(NAME)?.split('-').next()?.parse().ok()
}

fn has_ended(process: u32) -> bool {
    !Path::new("/proc").join(process.to_string()).exists()
}

impl Quota {
    /// What one period leaves may be used in the next one: the share stays the same, but waiting for an answer does not
    /// cost what was meant for the work after it. Kernels before 5.14 know no such thing.
    fn allow_burst(&self, file: &str, quota_us: u64) {
        if let Err(error) = self.write(file, &quota_us.to_string()) {
            tracing::debug!(%error, "no bursts");
        }
    }

    fn write(&self, file: &str, value: &str) -> anyhow::Result<()> {
        write(&self.group.path().join(file), value)
    }

    /// Takes a process in, with all its threads.
    pub(super) fn add(&self, pid: u32) -> anyhow::Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }
}

fn write(file: &Path, value: &str) -> anyhow::Result<()> {
    std::fs::write(file, value).with_context(|| format!("cannot write `{value}` to {}", file.display()))
}

/// Quota and period in microseconds.
fn limits(percent: u32) -> (u64, u64) {
    let percent = u64::from(percent.max(1));
    let period = PERIOD_US.max((LEAST_QUOTA_US * 100).div_ceil(percent));
    ((period * percent / 100).max(LEAST_QUOTA_US), period)
}

/// Directories in which groups might be made, best first, by the texts of /proc/mounts and /proc/self/cgroup.
fn candidates(mounts: &str, own: &str) -> Vec<Quotas> {
    let mut found = Vec::new();
    for mount in mounts.lines() {
        let fields: Vec<&str> = mount.split_whitespace().collect();
        let [_, at, kind, options, ..] = fields[..] else { continue };
        let version = match kind {
            "cgroup" if options.split(',').any(|option| option == "cpu") => Version::One,
            "cgroup2" => Version::Two,
            _ => continue,
        };
        let Some(group) = own.lines().find_map(|line| own_group(line, version)) else { continue };
        let relative = Path::new(group.trim_start_matches('/'));
        let own = Path::new(at).join(relative);
        match version {
            Version::One => found.push(Quotas { parent: own, version }),
            Version::Two => {
                // From our own directory up to the mount: the nearest that works.
                let up = relative.ancestors().map(|above| Path::new(at).join(above));
                found.extend(up.map(|parent| Quotas { parent, version }));
            }
        }
    }
    found
}

/// Our group, from a line `number:controllers:group`.
fn own_group(line: &str, version: Version) -> Option<&str> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let fits = match version {
        Version::One => controllers.split(',').any(|controller| controller == "cpu"),
        Version::Two => number == "0" && controllers.is_empty(),
    };
    fits.then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(mounts: &str, own: &str) -> Vec<(String, Version)> {
        candidates(mounts, own).into_iter().map(|c| (c.parent.display().to_string(), c.version)).collect()
    }

    #[test]
    fn both_versions_are_found_where_they_are_mounted() {
        let v1 = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
                  cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n";
        let own = "4:cpuset:/\n3:cpu,cpuacct:/some/group\n0::/\n";
        assert_eq!(dirs(v1, own), [("/sys/fs/cgroup/cpu,cpuacct/some/group".to_owned(), Version::One)]);
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let paths: Vec<String> = dirs(v2, "0::/user/session\n").into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["/sys/fs/cgroup/user/session", "/sys/fs/cgroup/user", "/sys/fs/cgroup/"]);
        assert!(dirs("proc /proc proc rw 0 0\n", own).is_empty());
    }

    #[test]
    fn groups_of_ended_processes_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let own = format!("loadgen-{}-0", std::process::id());
        // No process has that number: the kernel's greatest is 4194304.
        for name in ["loadgen-4294967295-0", "loadgen-4294967295-probe", &own, "loadgen-x", "other-4294967295-0"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Quotas { parent: dir.path().to_owned(), version: Version::One }.sweep();
        let left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<String> = left.map(|name| name.into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, [&own, "loadgen-x", "other-4294967295-0"]);
    }

    #[test]
    fn the_kernels_least_quota_is_kept() {
        assert_eq!(limits(20), (2000, 10_000));
        assert_eq!(limits(150), (15_000, 10_000));
        assert_eq!(limits(8), (1000, 12_500));
        assert_eq!(limits(1), (1000, 100_000));
    }
}
