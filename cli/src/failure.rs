//! How a verb fails: what is printed, and the exit code.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use pando_proto::{Errno, Reason};

use crate::output;

/// Why a verb failed.
#[derive(Debug)]
pub enum Failure {
    /// The cluster refused something.
    Operation(pando_proto::Error, Option<&'static str>),
    /// The cluster is not in the state for it.
    Refused(pando_proto::Error, Option<&'static str>),
    /// Nobody serves what was asked for, though the mons answer: so many ranks are up, of so many.
    NotServed(pando_proto::Error, u32, u32),
    /// Something on this side: a local file, the terminal.
    Local(String),
    /// Nobody reads our output any more: nothing to say.
    OutputClosed,
    /// Wrong usage that only shows at run time.
    Usage(String),
    /// A signal came, with the exit code of that: whoever sent it knows.
    Interrupted(u8),
    /// Already printed, while the verb went on with the rest.
    Printed(u8),
}

impl Failure {
    pub fn local(what: impl AsRef<Path>, error: &io::Error) -> Self {
        let what = output::shown(what.as_ref().as_os_str().as_encoded_bytes());
        Self::Local(format!("{what}: {error}"))
    }

    pub fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::local("standard output", error),
        }
    }

    /// The same with a word on what to do.
    pub fn hint(self, on: Errno, hint: &'static str) -> Self {
        match self {
            Self::Operation(error, None) if error.errno == on => Self::Operation(error, Some(hint)),
            other => other,
        }
    }

    /// The same in other words.
    pub fn saying(self, message: impl Into<String>) -> Self {
        match self {
            Self::Operation(error, hint) => {
                Self::Operation(pando_proto::Error { message: message.into(), ..error }, hint)
            }
            other => other,
        }
    }

    /// The same where a request that is refused was right as such: it may be granted another time. Not where no mon was
    /// asked (EPROTO).
    pub fn by_state(self) -> Self {
        match self {
            Self::Operation(error, hint) if error.reason == Reason::InvalidRequest && error.errno != Errno::EPROTO => {
                Self::Refused(error, hint)
            }
            other => other,
        }
    }

    /// The same with what the mons say of the ranks, if they say anything.
    pub fn seen_by_mons(self, ranks: Option<(u32, u32)>) -> Self {
        match (self, ranks) {
            (Self::Operation(error, None), Some((up, of))) => Self::NotServed(error, up, of),
            (other, _) => other,
        }
    }

    /// The same about the one of these paths that is meant: a server knows the way from the root of its subtree only.
    pub fn at_one_of(self, paths: &[&Path]) -> Self {
        let Self::Operation(error, hint) = self else { return self };
        let said = error.path.as_deref().map(|path| path.strip_prefix(b"/").unwrap_or(path).to_vec());
        let ends = |path: &&&Path| said.as_ref().is_some_and(|said| path.ends_with(OsStr::from_bytes(said)));
        let found: Vec<_> = paths.iter().filter(ends).collect();
        match found[..] {
            [path] => Self::Operation(error, hint).at(path),
            _ => Self::Operation(error, hint),
        }
    }

    /// The same about this path: a server that answers about an open file knows none.
    pub fn at(self, path: &Path) -> Self {
        match self {
            Self::Operation(error, hint) => Self::Operation(error.at(path.as_os_str().as_encoded_bytes()), hint),
            Self::Refused(error, hint) => Self::Refused(error.at(path.as_os_str().as_encoded_bytes()), hint),
            other => other,
        }
    }

    /// What the cluster refused it with, if it did.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Operation(error, _) => Some(error.errno),
            _ => None,
        }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Operation(error, _) if is_unreachable(error) => 3,
            Self::NotServed(..) => 3,
            Self::Operation(error, _) if error.reason == Reason::InvalidRequest => 2,
            Self::Operation(..) | Self::Refused(..) | Self::Local(_) => 1,
            Self::OutputClosed => 0,
            Self::Usage(_) => 2,
            Self::Interrupted(code) | Self::Printed(code) => *code,
        }
    }

    /// On standard error, one line: `pando: PATH: message (ERRNO); what to do`.
    pub fn print(&self) {
        if let Some(line) = self.line() {
            eprintln!("pando: {line}");
        }
    }

    fn line(&self) -> Option<String> {
        match self {
            Self::Operation(error, hint) | Self::Refused(error, hint) => Some(operation_line(error, *hint)),
            Self::NotServed(error, up, of) => Some(not_served_line(error, *up, *of)),
            Self::Local(text) | Self::Usage(text) => Some(text.clone()),
            Self::OutputClosed | Self::Interrupted(_) | Self::Printed(_) => None,
        }
    }
}

/// A rank that says why it does not do it yet has been reached.
fn is_unreachable(error: &pando_proto::Error) -> bool {
    let answered = error.rank.is_some() && error.errno == Errno::ETIMEDOUT;
    !answered && matches!(error.reason, Reason::Unavailable | Reason::Timeout | Reason::NotOwner)
}

fn not_served_line(error: &pando_proto::Error, up: u32, of: u32) -> String {
    let path = error.path.as_deref().map(|path| format!("{}: ", output::shown(path))).unwrap_or_default();
    let what = match up {
        0 => "no metadata server is up; start one (pando-mds), `pando rank ls` lists them".to_owned(),
        _ => format!("the mons answer, and {up} of {of} metadata servers are up; `pando status` looks"),
    };
    format!("{path}{} ({}); {what}", error.message, error.errno)
}

fn operation_line(error: &pando_proto::Error, hint: Option<&str>) -> String {
    let path = error.path.as_deref().map(|path| format!("{}: ", output::shown(path))).unwrap_or_default();
    let hint = match hint {
        Some(hint) => Some(hint),
        None if is_unreachable(error) => Some(
            "is the cluster running? `pando up` starts one, `--mons HOST:PORT` names another, `pando status` looks",
        ),
        None => usual_hint(error.errno),
    };
    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{path}{} ({}){hint}", error.message, error.errno)
}

fn usual_hint(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::EACCES | Errno::EPERM => Some("`pando ls -l` shows who may, `--uid 0` acts as root"),
        Errno::ENOSPC => Some("remove something or add an OSD; `pando df` shows the space"),
        Errno::ESTALE => Some("run the command again"),
        _ => None,
    }
}

impl From<pando_client::Error> for Failure {
    fn from(error: pando_client::Error) -> Self {
        Self::Operation(error.into(), None)
    }
}

impl From<pando_proto::Error> for Failure {
    fn from(error: pando_proto::Error) -> Self {
        Self::Operation(error, None)
    }
}

/// Goes on after a failure, and remembers the worst.
#[derive(Default)]
pub struct Failures(u8);

impl Failures {
    /// Prints a failure. Err if going on makes no sense.
    pub fn note(&mut self, outcome: Result<(), Failure>) -> Result<(), Failure> {
        match outcome {
            Ok(()) => Ok(()),
            Err(failure @ Failure::OutputClosed) => Err(failure),
            Err(failure) if failure.exit_code() == 3 => Err(failure),
            Err(failure) => {
                failure.print();
                self.0 = self.0.max(failure.exit_code());
                Ok(())
            }
        }
    }

    pub fn finish(self) -> Result<(), Failure> {
        if self.0 == 0 { Ok(()) } else { Err(Failure::Printed(self.0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_path_message_errno_and_a_way_out() {
        let error = pando_proto::Error::posix(Errno::EISDIR).at(&b"/a\xff"[..]);
        let failure = Failure::from(error).hint(Errno::EISDIR, "use `rm -r`").hint(Errno::ENOENT, "no");
        assert_eq!(failure.line().unwrap(), "/a\\xff: is a directory (EISDIR); use `rm -r`");
        assert_eq!(failure.exit_code(), 1);
    }

    #[test]
    fn a_request_that_makes_no_sense_is_wrong_usage() {
        let failure = Failure::from(pando_proto::Error::new(Reason::InvalidRequest, "inline_limit takes a number"));
        assert_eq!(failure.exit_code(), 2);
    }

    #[test]
    fn what_the_state_of_the_cluster_forbids_is_no_wrong_usage() {
        let error = pando_proto::Error::new(Reason::InvalidRequest, "mds.2 is being drained");
        let failure = Failure::from(error).by_state().at(Path::new("/a"));
        assert_eq!((failure.exit_code(), failure.line().unwrap()), (1, "/a: mds.2 is being drained (EINVAL)".into()));
    }

    #[test]
    fn a_path_is_named_as_it_was_given() {
        let error = || Failure::from(pando_proto::Error::posix(Errno::ENOENT).at(&b"/f"[..]));
        let line = |paths: &[&str]| error().at_one_of(&paths.iter().map(Path::new).collect::<Vec<_>>()).line().unwrap();
        assert!(line(&["/zb/f", "x"]).starts_with("/zb/f: "));
        assert!(line(&["/zb/f", "/c/f"]).starts_with("/f: "), "either may be meant");
        assert!(line(&["/zb/ff", "x"]).starts_with("/f: "));
    }

    #[test]
    fn who_does_not_serve_is_said_as_the_mons_know_it() {
        let error = || Failure::from(pando_proto::Error::new(Reason::Timeout, "mds.2 does not answer"));
        let (none, some) = (error().seen_by_mons(Some((0, 3))), error().seen_by_mons(Some((2, 3))));
        assert_eq!((none.exit_code(), some.exit_code()), (3, 3));
        assert!(none.line().unwrap().contains("no metadata server is up") && some.line().unwrap().contains("2 of 3"));
        assert!(error().seen_by_mons(None).line().unwrap().contains("pando up"));
        let mut slow = pando_proto::Error::new(Reason::Timeout, "2 sessions have not said yet");
        slow.rank = Some(1);
        let slow = Failure::from(slow);
        assert_eq!((slow.exit_code(), slow.line().unwrap().contains("pando up")), (1, false), "a rank has answered");
    }

    #[test]
    fn an_unreachable_cluster_has_its_own_exit_code() {
        let failure = Failure::from(pando_proto::Error::new(Reason::Unavailable, "no mon answers"));
        assert_eq!(failure.exit_code(), 3);
        assert!(failure.line().unwrap().contains("pando up"));
    }
}
