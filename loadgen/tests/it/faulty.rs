//! A target with planted faults, to show that the checks catch them.

use std::sync::atomic::{AtomicU64, Ordering};

use loadgen::target::posix::{Posix, PosixSession};
use loadgen::target::{Body, Failure, Outcome, Session, Target};
use loadgen::trace::{Attributes, OpenFlags};
use pando_proto::Errno;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One bit of what a read brings.
    FlippedBit,
    /// A read brings bytes of another offset.
    WrongOffset,
    /// A write is acknowledged and not made.
    LostWrite,
    /// A stat says ENOENT for what is there.
    MissingName,
    /// A listing lacks an entry.
    ShortListing,
    /// A failure has another error name.
    WrongError,
    /// The target is gone.
    Unreachable,
}

/// A directory with a fault at the call number `at` of the kind concerned.
pub struct Faulty {
    pub inner: Posix,
    pub fault: Fault,
    pub at: u64,
}

impl Target for Faulty {
    type Session = FaultySession;
    async fn session(&self, client: usize) -> Outcome<FaultySession> {
        let inner = self.inner.session(client).await?;
        // Only client 0 meets the fault.
        let at = if client == 0 { Some(self.at) } else { None };
        Ok(FaultySession { inner, fault: self.fault, at, calls: AtomicU64::new(0) })
    }
    fn describe(&self) -> String {
        "faulty".into()
    }
    fn blocks(&self) -> bool {
        true
    }
}

pub struct FaultySession {
    inner: PosixSession,
    fault: Fault,
    at: Option<u64>,
    calls: AtomicU64,
}

impl FaultySession {
    fn strikes(&self, fault: Fault) -> bool {
        fault == self.fault && self.at == Some(self.calls.fetch_add(1, Ordering::Relaxed))
    }
}

type Handle = <PosixSession as Session>::Handle;

macro_rules! pass_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(async fn $name(&mut self $(, $arg: $type)*) -> Outcome<$out> { self.inner.$name($($arg),*).await })*
    };
}

impl Session for FaultySession {
    type Handle = Handle;

    pass_on! {
        make_root() -> ();
        remove_root() -> ();
        list(path: &str) -> Vec<String>;
        mkdir(path: &str, mode: u32) -> ();
        create(path: &str, mode: u32, body: Body) -> ();
        read_file(path: &str) -> &[u8];
        close(handle: Handle) -> ();
        append(handle: &mut Handle, data: &[u8]) -> u64;
        truncate_handle(handle: &mut Handle, size: u64) -> ();
        truncate(path: &str, size: u64) -> ();
        sync(handle: &mut Handle) -> ();
        stat_handle(handle: &mut Handle) -> Attributes;
        access(path: &str, mask: u8) -> ();
        readlink(path: &str) -> String;
        rmdir(path: &str) -> ();
        rename(old: &str, new: &str, no_replace: bool) -> ();
        link(old: &str, new: &str) -> ();
        symlink(target: &str, path: &str) -> ();
        chmod(path: &str, mode: u32) -> ();
        chmod_handle(handle: &mut Handle, mode: u32) -> ();
        chown_handle(handle: &mut Handle) -> ();
        touch(path: &str) -> ();
        touch_handle(handle: &mut Handle) -> ();
    }

    async fn end(self) -> Outcome<()> {
        self.inner.end().await
    }

    async fn unlink(&mut self, path: &str) -> Outcome<()> {
        if self.strikes(Fault::Unreachable) {
            return Err(Failure::new(Errno::ETIMEDOUT));
        }
        self.inner.unlink(path).await
    }

    async fn open(&mut self, path: &str, flags: OpenFlags, mode: u32) -> Outcome<Handle> {
        let result = self.inner.open(path, flags, mode).await;
        if result.is_err() && self.strikes(Fault::WrongError) {
            return Err(Failure::new(Errno::EACCES));
        }
        result
    }

    async fn read_at(&mut self, handle: &mut Handle, offset: u64, count: u64) -> Outcome<&[u8]> {
        let strikes = self.strikes(Fault::FlippedBit) || self.strikes(Fault::WrongOffset);
        let flip = strikes && self.fault == Fault::FlippedBit;
        let offset = if strikes && !flip { offset + 8 } else { offset };
        let bytes = self.inner.read_at(handle, offset, count).await?;
        if !flip || bytes.is_empty() {
            return Ok(bytes);
        }
        let mut wrong = bytes.to_vec();
        wrong[bytes.len() / 2] ^= 1;
        // A test may leak a few bytes.
        Ok(Box::leak(wrong.into_boxed_slice()))
    }

    async fn write_at(&mut self, handle: &mut Handle, offset: u64, data: &[u8]) -> Outcome<u64> {
        if self.strikes(Fault::LostWrite) {
            return Ok(data.len() as u64);
        }
        self.inner.write_at(handle, offset, data).await
    }

    async fn entries(&mut self, handle: &mut Handle) -> Outcome<Vec<String>> {
        let mut names = self.inner.entries(handle).await?;
        if self.strikes(Fault::ShortListing) {
            names.pop();
        }
        Ok(names)
    }

    async fn stat(&mut self, path: &str, follow: bool) -> Outcome<Attributes> {
        if self.strikes(Fault::MissingName) {
            return Err(Failure::new(Errno::ENOENT));
        }
        self.inner.stat(path, follow).await
    }
}
