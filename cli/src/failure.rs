//! How a verb fails: what is printed, and the exit code.

use std::io;
use std::path::Path;

use pando_proto::{Errno, Reason};

use crate::output;

/// Why a verb failed.
#[derive(Debug)]
pub enum Failure {
    /// The cluster refused something.
    Operation(pando_proto::Error, Option<&'static str>),
    /// Something on this side: a local file, the terminal.
    Local(String),
    /// Nobody reads our output any more: nothing to say.
    OutputClosed,
    /// Wrong usage that only shows at run time.
    Usage(String),
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

    /// The same about this path: a server that answers about an open file knows none.
    pub fn at(self, path: &Path) -> Self {
        match self {
            Self::Operation(error, hint) => Self::Operation(error.at(path.as_os_str().as_encoded_bytes()), hint),
            other => other,
        }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Operation(error, _) if is_unreachable(error) => 3,
            Self::Operation(error, _) if error.reason == Reason::InvalidRequest => 2,
            Self::Operation(..) | Self::Local(_) => 1,
            Self::OutputClosed => 0,
            Self::Usage(_) => 2,
            Self::Printed(code) => *code,
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
            Self::Operation(error, hint) => Some(operation_line(error, *hint)),
            Self::Local(text) | Self::Usage(text) => Some(text.clone()),
            Self::OutputClosed | Self::Printed(_) => None,
        }
    }
}

fn is_unreachable(error: &pando_proto::Error) -> bool {
    matches!(error.reason, Reason::Unavailable | Reason::Timeout | Reason::NotOwner)
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
    fn an_unreachable_cluster_has_its_own_exit_code() {
        let failure = Failure::from(pando_proto::Error::new(Reason::Unavailable, "no mon answers"));
        assert_eq!(failure.exit_code(), 3);
        assert!(failure.line().unwrap().contains("pando up"));
    }
}
