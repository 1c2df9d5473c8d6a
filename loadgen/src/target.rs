//! What a workload runs on: any file system behind two traits.

pub mod embedded;
pub mod pando;
pub mod posix;

use std::fmt;

use pando_proto::Errno;

use crate::content;
use crate::trace::{Attributes, OpenFlags};

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// As applications see it.
    pub errno: Errno,
    /// For people; may be empty.
    pub message: String,
}

/// Result of an operation on a target.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure without more to say.
    pub fn new(errno: Errno) -> Self {
        Self { errno, message: String::new() }
    }

    /// Whether the target seems to be gone, so that going on makes no sense.
    pub fn is_unreachable(&self) -> bool {
        matches!(self.errno, Errno::ETIMEDOUT | Errno::ECONNREFUSED | Errno::EAGAIN | Errno::EPIPE | Errno::ESTALE)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.errno.name(), self.message.as_str()) {
            ("EUNKNOWN", _) => write!(f, "error {} {}", self.errno.0, self.message),
            (name, "") => f.write_str(name),
            (name, message) => write!(f, "{name}: {message}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<rustix::io::Errno> for Failure {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::new(Errno(errno.raw_os_error()))
    }
}

impl From<pando_proto::Error> for Failure {
    fn from(error: pando_proto::Error) -> Self {
        Self { errno: error.errno, message: error.to_string() }
    }
}

/// Content to write: the generator's bytes from offset 0.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    /// Of the generator.
    pub seed: u64,
    /// Bytes.
    pub size: u64,
}

impl Body {
    /// The bytes from `offset` on, at most `limit`.
    pub fn piece(&self, offset: u64, limit: u64) -> Vec<u8> {
        content::generated(self.seed, offset, self.size.saturating_sub(offset).min(limit) as usize)
    }
}

/// A file system under load.
#[allow(async_fn_in_trait)] // sessions live on one thread: no Send wanted
pub trait Target: Sync {
    /// A client's view.
    type Session: Session;

    /// Opens client number `client`, with the directory `client-<n>` for its root.
    async fn session(&self, client: usize) -> Outcome<Self::Session>;

    /// For reports.
    fn describe(&self) -> String;

    /// Whether calls block the thread: each client then gets its own.
    fn blocks(&self) -> bool;
}

/// One client. Paths are relative to the client's directory; `.` is that directory.
#[allow(async_fn_in_trait)]
pub trait Session {
    /// An open file or directory.
    type Handle;

    /// Makes the client's directory.
    async fn make_root(&mut self) -> Outcome<()>;
    /// Removes the client's empty directory.
    async fn remove_root(&mut self) -> Outcome<()>;
    /// Ends the client.
    async fn end(self) -> Outcome<()>;
    /// Names in a directory, without `.` and `..`.
    async fn list(&mut self, path: &str) -> Outcome<Vec<String>>;

    /// [`create`](Self::create) of many files, in one call where the target has one.
    async fn create_many(&mut self, files: &[(String, Body)], mode: u32) -> Vec<Outcome<()>> {
        let mut outcomes = Vec::with_capacity(files.len());
        for (path, body) in files {
            outcomes.push(self.create(path, mode, *body).await);
        }
        outcomes
    }
    /// [`read_file`](Self::read_file) of many files.
    async fn read_many(&mut self, paths: &[String]) -> Vec<Outcome<Vec<u8>>> {
        let mut outcomes = Vec::with_capacity(paths.len());
        for path in paths {
            outcomes.push(self.read_file(path).await.map(<[u8]>::to_vec));
        }
        outcomes
    }
    /// [`stat`](Self::stat) of many paths, symlinks followed.
    async fn stat_many(&mut self, paths: &[String]) -> Vec<Outcome<Attributes>> {
        let mut outcomes = Vec::with_capacity(paths.len());
        for path in paths {
            outcomes.push(self.stat(path, true).await);
        }
        outcomes
    }

    /// mkdir(2)
    async fn mkdir(&mut self, path: &str, mode: u32) -> Outcome<()>;
    /// Makes (or replaces the content of) a file: create, write, close.
    async fn create(&mut self, path: &str, mode: u32, body: Body) -> Outcome<()>;
    /// The whole content: open, read, close.
    async fn read_file(&mut self, path: &str) -> Outcome<&[u8]>;
    /// open(2)
    async fn open(&mut self, path: &str, flags: OpenFlags, mode: u32) -> Outcome<Self::Handle>;
    /// close(2)
    async fn close(&mut self, handle: Self::Handle) -> Outcome<()>;
    /// pread(2); may be short.
    async fn read_at(&mut self, handle: &mut Self::Handle, offset: u64, count: u64) -> Outcome<&[u8]>;
    /// pwrite(2); the bytes written.
    async fn write_at(&mut self, handle: &mut Self::Handle, offset: u64, data: &[u8]) -> Outcome<u64>;
    /// write(2) of a file opened with `O_APPEND`.
    async fn append(&mut self, handle: &mut Self::Handle, data: &[u8]) -> Outcome<u64>;
    /// ftruncate(2)
    async fn truncate_handle(&mut self, handle: &mut Self::Handle, size: u64) -> Outcome<()>;
    /// truncate(2)
    async fn truncate(&mut self, path: &str, size: u64) -> Outcome<()>;
    /// fsync(2)
    async fn sync(&mut self, handle: &mut Self::Handle) -> Outcome<()>;
    /// The next names of a directory, `.` and `..` included; empty at the end.
    async fn entries(&mut self, handle: &mut Self::Handle) -> Outcome<Vec<String>>;
    /// stat(2) or lstat(2)
    async fn stat(&mut self, path: &str, follow: bool) -> Outcome<Attributes>;
    /// fstat(2)
    async fn stat_handle(&mut self, handle: &mut Self::Handle) -> Outcome<Attributes>;
    /// access(2); `mask`: R 4, W 2, X 1.
    async fn access(&mut self, path: &str, mask: u8) -> Outcome<()>;
    /// readlink(2)
    async fn readlink(&mut self, path: &str) -> Outcome<String>;
    /// rmdir(2)
    async fn rmdir(&mut self, path: &str) -> Outcome<()>;
    /// unlink(2)
    async fn unlink(&mut self, path: &str) -> Outcome<()>;
    /// rename(2), or with `RENAME_NOREPLACE`
    async fn rename(&mut self, old: &str, new: &str, no_replace: bool) -> Outcome<()>;
    /// link(2)
    async fn link(&mut self, old: &str, new: &str) -> Outcome<()>;
    /// symlink(2)
    async fn symlink(&mut self, target: &str, path: &str) -> Outcome<()>;
    /// chmod(2)
    async fn chmod(&mut self, path: &str, mode: u32) -> Outcome<()>;
    /// fchmod(2)
    async fn chmod_handle(&mut self, handle: &mut Self::Handle, mode: u32) -> Outcome<()>;
    /// fchown(2) to the owner it has.
    async fn chown_handle(&mut self, handle: &mut Self::Handle) -> Outcome<()>;
    /// utimensat(2) to now.
    async fn touch(&mut self, path: &str) -> Outcome<()>;
    /// futimens(3) to now.
    async fn touch_handle(&mut self, handle: &mut Self::Handle) -> Outcome<()>;
}
