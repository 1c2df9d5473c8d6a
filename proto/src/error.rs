//! The error that crosses process borders.
//!
//! On the wire it is a `google.rpc.Status` whose details hold an ErrorInfo
//! (domain `pando`, reason, metadata `errno`, `path`, `rank`, `epoch`) and,
//! where a retry helps, a RetryInfo. Each crate has its own error enum and
//! turns it into this one at its border.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use prost::Message as _;
use tonic::Code;
use tonic_types::{ErrorDetails, StatusExt as _};

const DOMAIN: &str = "pando";

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self($number);)*

            /// The symbol, as `ENOENT`; `EUNKNOWN` for a number Pando never sends.
            pub fn name(self) -> &'static str {
                match self.0 { $($number => stringify!($name),)* _ => "EUNKNOWN" }
            }

            /// What strerror(3) says.
            pub fn text(self) -> &'static str {
                match self.0 { $($number => $text,)* _ => "unknown error" }
            }

            /// The number of a symbol, as in `ENOENT`.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $(stringify!($name) => Some(Self($number)),)* _ => None }
            }
        }
    };
}

/// A POSIX error number, with Linux's values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    EBADF = 9, "bad file handle";
    EAGAIN = 11, "resource temporarily unavailable";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "cross-device link";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    EMFILE = 24, "too many open files";
    ETXTBSY = 26, "text file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    EPIPE = 32, "broken pipe";
    ERANGE = 34, "result too large for the buffer";
    ENAMETOOLONG = 36, "file name too long";
    ENOSYS = 38, "function not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many levels of symbolic links";
    ENODATA = 61, "no data available";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large for its type";
    EOPNOTSUPP = 95, "operation not supported";
    ESTALE = 116, "stale file handle";
    EDQUOT = 122, "disk quota exceeded";
    ECANCELED = 125, "operation canceled";
    ETIMEDOUT = 110, "connection timed out";
    ECONNREFUSED = 111, "connection refused";
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $code:ident, $errno:ident;)*) => {
        /// Why, for programs: the `reason` of ErrorInfo.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// The word on the wire, in UPPER_SNAKE_CASE.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
            /// The reason of a word; `None` for one that a newer peer may have made up.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$name),)* _ => None }
            }
            /// The gRPC code that goes with it.
            pub fn code(self) -> Code {
                match self { $(Self::$name => Code::$code,)* }
            }
            /// The errno that goes with it unless one is set.
            pub fn errno(self) -> Errno {
                match self { $(Self::$name => Errno::$errno,)* }
            }
        }
    };
}

reasons! {
    /// A file-system operation failed as POSIX says: look at the errno.
    Posix = "POSIX", FailedPrecondition, EINVAL;
    /// The request makes no sense; sending it again does not help.
    InvalidRequest = "INVALID_REQUEST", InvalidArgument, EINVAL;
    /// An id (pool, OSD, rank, PG, shard, setting) that the map does not know.
    UnknownId = "UNKNOWN_ID", NotFound, ENODEV;
    /// The message is larger than the receiver accepts.
    TooLarge = "TOO_LARGE", ResourceExhausted, EFBIG;
    /// Data above the inline limit: open, write objects, close.
    TooLargeForInline = "TOO_LARGE_FOR_INLINE", FailedPrecondition, EFBIG;
    /// Data of another cluster, or a peer of one.
    WrongCluster = "WRONG_CLUSTER", FailedPrecondition, EPROTO;
    /// What is to be removed is needed; the message says by whom.
    InUse = "IN_USE", FailedPrecondition, EBUSY;
    /// A disk format newer than this program.
    NewerFormat = "NEWER_FORMAT", FailedPrecondition, EPROTO;
    /// This process is not the primary, leader or owner; look at a newer map and go there.
    NotOwner = "NOT_OWNER", Unavailable, EAGAIN;
    /// Sent under an older epoch, configuration or incarnation than the receiver's.
    StaleEpoch = "STALE_EPOCH", Aborted, ESTALE;
    /// The data generation has moved on (truncate, spill, purge): fetch the placement anew (R22).
    StaleGeneration = "STALE_GENERATION", Aborted, ESTALE;
    /// The session has ended or was evicted, or the request is below its window (R9).
    StaleSession = "STALE_SESSION", FailedPrecondition, ESTALE;
    /// Not now: no lease, too few members, catching up, starting. Retry.
    Unavailable = "UNAVAILABLE", Unavailable, EAGAIN;
    /// The way by which the client came to the subtree has changed: resolve the path anew from the root (R16).
    StaleRoute = "STALE_ROUTE", Aborted, ESTALE;
    /// The subtree was opened anew and does not know the handle: reclaim the session's handles first (R19).
    ReclaimFirst = "RECLAIM_FIRST", FailedPrecondition, EAGAIN;
    /// Too much at once: queue or window full. Retry later.
    Overloaded = "OVERLOADED", ResourceExhausted, EAGAIN;
    /// The deadline passed; a mutation may or may not have happened.
    Timeout = "TIMEOUT", DeadlineExceeded, ETIMEDOUT;
    /// A checksum did not match: the stored bytes are not those that were written (I10).
    Corrupt = "CORRUPT", DataLoss, EIO;
    /// The full threshold is reached.
    NoSpace = "NO_SPACE", ResourceExhausted, ENOSPC;
    /// A disk or engine failed.
    Storage = "STORAGE", Internal, EIO;
    /// A bug: an invariant does not hold.
    Internal = "INTERNAL", Internal, EIO;
}

/// An error with all that a user or a program needs to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Why, for programs.
    pub reason: Reason,
    /// The POSIX error that an application sees.
    pub errno: Errno,
    /// What happened and what to do, for people.
    pub message: String,
    /// Path concerned, as far as known.
    pub path: Option<Vec<u8>>,
    /// Rank that answered.
    pub rank: Option<u32>,
    /// Epoch in force at the server (of the map or of the subtree).
    pub epoch: Option<u64>,
    /// A retry after this long may succeed.
    pub retry_after: Option<Duration>,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.escape_ascii())?;
        }
        write!(f, "{} ({})", self.message, self.errno)
    }
}

impl Error {
    /// An error with the reason's usual errno.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            errno: reason.errno(),
            message: message.into(),
            path: None,
            rank: None,
            epoch: None,
            retry_after: None,
        }
    }

    /// A POSIX error, with strerror's text.
    pub fn posix(errno: Errno) -> Self {
        Self { errno, ..Self::new(Reason::Posix, errno.text()) }
    }

    /// The same with a path.
    pub fn at(mut self, path: impl Into<Vec<u8>>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// The same with an epoch.
    pub fn with_epoch(mut self, epoch: u64) -> Self {
        self.epoch = Some(epoch);
        self
    }

    /// The same with a hint when to retry.
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Whether the same request may be sent again, perhaps elsewhere, and succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.reason,
            Reason::NotOwner
                | Reason::Unavailable
                | Reason::Overloaded
                | Reason::StaleEpoch
                | Reason::StaleRoute
                | Reason::ReclaimFirst
                | Reason::Timeout
        )
    }

    /// The encoded form inside stream replies.
    pub fn to_rpc_status(&self) -> tonic_types::Status {
        let status = self.to_tonic();
        tonic_types::Status::decode(status.details()).unwrap_or_else(|_| tonic_types::Status {
            code: status.code() as i32,
            message: self.message.clone(),
            details: Vec::new(),
        })
    }

    /// Reads what a peer sent inside a stream reply.
    pub fn from_rpc_status(status: tonic_types::Status) -> Self {
        let code = Code::from_i32(status.code);
        let encoded = status.encode_to_vec();
        Self::from_tonic(&tonic::Status::with_details(code, status.message, encoded.into()))
    }

    /// The form for unary methods.
    pub fn to_tonic(&self) -> tonic::Status {
        let mut metadata = HashMap::new();
        metadata.insert("errno".to_owned(), self.errno.name().to_owned());
        if let Some(path) = &self.path {
            metadata.insert("path".to_owned(), shown(path));
        }
        if let Some(rank) = self.rank {
            metadata.insert("rank".to_owned(), rank.to_string());
        }
        if let Some(epoch) = self.epoch {
            metadata.insert("epoch".to_owned(), epoch.to_string());
        }
        let mut details = ErrorDetails::new();
        details.set_error_info(self.reason.as_str(), DOMAIN, metadata);
        if let Some(after) = self.retry_after {
            details.set_retry_info(Some(after));
        }
        tonic::Status::with_error_details(self.code(), self.message.clone(), details)
    }

    /// Whether the status is what a peer of ours said: it carries our ErrorInfo. Any other was made up on the way, and
    /// says nothing certain about what the peer has done, or will do (R7).
    pub fn is_from_peer(status: &tonic::Status) -> bool {
        let details = status.check_error_details().unwrap_or_default();
        details.error_info().is_some_and(|info| info.domain == DOMAIN)
    }

    /// Reads what a peer sent. A status without our ErrorInfo is one of the transport: see
    /// [`is_from_peer`](Self::is_from_peer).
    pub fn from_tonic(status: &tonic::Status) -> Self {
        let details = status.check_error_details().unwrap_or_default();
        let retry_after = details.retry_info().and_then(|info| info.retry_delay);
        let info = details.error_info().filter(|info| info.domain == DOMAIN);
        let Some(info) = info else {
            return Self { retry_after, ..Self::new(reason_of_transport(status.code()), describe(status)) };
        };
        let reason = Reason::parse(&info.reason).unwrap_or_else(|| reason_of_code(status.code()));
        let field = |name: &str| info.metadata.get(name);
        Self {
            reason,
            errno: field("errno").and_then(|name| Errno::from_name(name)).unwrap_or(reason.errno()),
            message: status.message().to_owned(),
            path: field("path").map(|path| unescape(path)),
            rank: field("rank").and_then(|text| text.parse().ok()),
            epoch: field("epoch").and_then(|text| text.parse().ok()),
            retry_after,
        }
    }

    fn code(&self) -> Code {
        match (self.reason, self.errno) {
            (Reason::Posix, Errno::ENOENT | Errno::ENODATA) => Code::NotFound,
            (Reason::Posix, Errno::EEXIST) => Code::AlreadyExists,
            (Reason::Posix, Errno::EACCES | Errno::EPERM) => Code::PermissionDenied,
            (Reason::Posix, Errno::EINVAL | Errno::ENAMETOOLONG) => Code::InvalidArgument,
            _ => self.reason.code(),
        }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        error.to_tonic()
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::from_tonic(&status)
    }
}

/// A path as it travels: escaped, and cut where the trailers of a reply would outgrow what gRPC clients accept (8 KiB).
fn shown(path: &[u8]) -> String {
    const MOST: usize = 1024;
    match path.get(..MOST) {
        Some(start) if path.len() > MOST => format!("{}...", start.escape_ascii()),
        _ => path.escape_ascii().to_string(),
    }
}

fn describe(status: &tonic::Status) -> String {
    if status.message().is_empty() { status.code().description().to_owned() } else { status.message().to_owned() }
}

/// Of a status that the transport made up. Its codes are no word of the peer: GOAWAY(ENHANCE_YOUR_CALM), for one, ends
/// all calls of a connection with `ResourceExhausted`, whether they were done or not. Only what the same request meets
/// again wherever it goes is told as such: tonic refuses messages above its limit with `OutOfRange`.
fn reason_of_transport(code: Code) -> Reason {
    match code {
        Code::DeadlineExceeded => Reason::Timeout,
        Code::OutOfRange => Reason::TooLarge,
        Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied => Reason::InvalidRequest,
        _ => Reason::Unavailable,
    }
}

/// Of a reason that a newer peer has made up.
fn reason_of_code(code: Code) -> Reason {
    match code {
        Code::Unavailable | Code::Cancelled | Code::Unknown => Reason::Unavailable,
        Code::DeadlineExceeded => Reason::Timeout,
        Code::ResourceExhausted | Code::OutOfRange => Reason::TooLarge,
        Code::NotFound => Reason::UnknownId,
        Code::DataLoss => Reason::Corrupt,
        Code::Internal => Reason::Internal,
        Code::Aborted => Reason::StaleEpoch,
        _ => Reason::InvalidRequest,
    }
}

/// Inverse of `escape_ascii`; bytes it cannot read are kept as they are.
fn unescape(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let (byte, width) = match (bytes[at], bytes.get(at + 1)) {
            (b'\\', Some(b'x')) => match text.get(at + 2..at + 4).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => (byte, 4),
                None => (b'\\', 1),
            },
            (b'\\', Some(b'n')) => (b'\n', 2),
            (b'\\', Some(b't')) => (b'\t', 2),
            (b'\\', Some(b'r')) => (b'\r', 2),
            (b'\\', Some(quoted @ (b'\\' | b'\'' | b'"'))) => (*quoted, 2),
            (byte, _) => (byte, 1),
        };
        out.push(byte);
        at += width;
    }
    out
}

#[cfg(test)]
mod tests;
