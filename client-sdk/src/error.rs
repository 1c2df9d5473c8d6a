//! The library's error: a POSIX errno, the path, and what to do.

use std::fmt;
use std::io;
use std::time::Duration;

use pando_proto::{Errno, Reason};

/// Why a call failed. Cheap to move; turns into [`std::io::Error`].
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<pando_proto::Error>);

/// Result of a call of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The POSIX error.
    pub fn errno(&self) -> Errno {
        self.0.errno
    }

    /// The class of the error, for programs.
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// What happened and what to do, without path and errno.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The path concerned, as it was given.
    pub fn path(&self) -> Option<&[u8]> {
        self.0.path.as_deref()
    }

    /// Whether the same call may succeed later. The library has already retried until its deadline.
    ///
    /// After a timeout a change may have happened all the same: see [`outcome_is_unknown`](Self::outcome_is_unknown).
    pub fn is_retryable(&self) -> bool {
        self.0.is_retryable()
    }

    /// Whether the call may have taken effect although it failed.
    pub fn outcome_is_unknown(&self) -> bool {
        self.0.reason == Reason::Timeout
    }

    /// The kind that [`std::io`] uses for this errno.
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.0.errno.0).kind()
    }

    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        pando_proto::Error::new(reason, message).into()
    }

    pub(crate) fn posix(errno: Errno) -> Self {
        pando_proto::Error::posix(errno).into()
    }

    pub(crate) fn with_message(errno: Errno, message: impl Into<String>) -> Self {
        pando_proto::Error { message: message.into(), ..pando_proto::Error::posix(errno) }.into()
    }

    /// A peer that answers what no correct peer answers.
    pub(crate) fn protocol(what: &str) -> Self {
        let message = format!("the server's answer makes no sense ({what}): are all parts of the same version?");
        pando_proto::Error { errno: Errno::EPROTO, ..pando_proto::Error::new(Reason::Internal, message) }.into()
    }

    pub(crate) fn timeout(limit: Duration, sent: bool, last: Option<&pando_proto::Error>) -> Self {
        let seconds = limit.as_secs_f64();
        let outcome = if sent {
            "a change may or may not have happened: look before you repeat it"
        } else {
            "it was never sent, so nothing happened"
        };
        let cause = last.map(|error| format!(", last: {}", error.message)).unwrap_or_default();
        let message = format!("no answer within {seconds} s{cause}; {outcome}");
        let mut error = pando_proto::Error::new(Reason::Timeout, message);
        // Somebody did answer, but not with an outcome.
        error.rank = last.and_then(|last| last.rank);
        if !sent {
            error.reason = Reason::Unavailable;
            error.errno = Errno::ETIMEDOUT;
        }
        error.into()
    }

    /// The same with the path that the caller gave, unless the server named one.
    pub(crate) fn at(mut self, path: &[u8]) -> Self {
        match &mut self.0.path {
            // On the wire paths are relative to the root.
            Some(named) if named.first() != Some(&b'/') => named.insert(0, b'/'),
            Some(_) => {}
            none if !path.is_empty() => *none = Some(path.to_vec()),
            None => {}
        }
        self
    }

    /// The same with this path, whatever the server named.
    pub(crate) fn only_at(mut self, path: &[u8]) -> Self {
        self.0.path = None;
        self.at(path)
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<pando_proto::Error> for Error {
    fn from(error: pando_proto::Error) -> Self {
        Self(Box::new(error))
    }
}

impl From<Error> for pando_proto::Error {
    fn from(error: Error) -> Self {
        *error.0
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_the_errno() {
        let io: io::Error = Error::posix(Errno::ENOENT).at(b"/a").into();
        assert_eq!(io.kind(), io::ErrorKind::NotFound);
        assert_eq!(io.to_string(), "/a: no such file or directory (ENOENT)");
        let named: Error = pando_proto::Error::posix(Errno::ENOENT).at(&b"b"[..]).into();
        assert_eq!(named.at(b"/a").path(), Some(&b"/b"[..]));
        let kind = |errno| Error::posix(errno).kind();
        assert_eq!(kind(Errno::ENOTEMPTY), io::ErrorKind::DirectoryNotEmpty);
        assert_eq!(kind(Errno::EEXIST), io::ErrorKind::AlreadyExists);
        assert_eq!(kind(Errno::ENOSPC), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_timeout_says_whether_the_outcome_is_known() {
        let sent = Error::timeout(Duration::from_secs(1), true, None);
        assert!(sent.outcome_is_unknown() && sent.message().contains("may or may not"));
        let unsent = Error::timeout(Duration::from_secs(1), false, None);
        assert!(!unsent.outcome_is_unknown() && unsent.message().contains("nothing happened"));
        assert_eq!(unsent.errno(), Errno::ETIMEDOUT);
    }
}
