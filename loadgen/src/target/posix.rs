//! A mounted or local directory, through system calls relative to the client's directory.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{self, Access, AtFlags, FileType, Mode, OFlags, RawDir, RenameFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;

use super::{Body, Outcome, Session, Target};
use crate::trace::{Attributes, Kind, OpenFlags};

const PIECE: u64 = 1 << 20;
const LISTING_BUFFER: usize = 32 << 10;

/// The directory `DIR` of `posix:DIR`.
pub struct Posix {
    dir: PathBuf,
}

impl Posix {
    /// Clients work below `dir`, which must exist.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }
}

impl Target for Posix {
    type Session = PosixSession;

    async fn session(&self, client: usize) -> Outcome<PosixSession> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = fs::open(&self.dir, flags, Mode::empty())?;
        let name = format!("client-{client}");
        let root = match fs::openat(&parent, &name, flags | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(root) => Some(root),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(PosixSession { parent, name, root, buffer: Vec::new() })
    }

    fn describe(&self) -> String {
        format!("posix:{}", self.dir.display())
    }

    fn blocks(&self) -> bool {
        true
    }
}

/// One client of a directory.
pub struct PosixSession {
    parent: OwnedFd,
    name: String,
    root: Option<OwnedFd>,
    buffer: Vec<u8>,
}

impl PosixSession {
    fn root(&self) -> Result<&OwnedFd, Errno> {
        self.root.as_ref().ok_or(Errno::NOENT)
    }

    /// A buffer of `count` bytes. Its bytes are overwritten by what is read.
    fn buffer(&mut self, count: usize) -> &mut [u8] {
        if self.buffer.len() < count {
            self.buffer.resize(count, 0);
        }
        &mut self.buffer[..count]
    }

    fn read_names(&mut self, handle: &OwnedFd) -> Result<Vec<String>, Errno> {
        let mut buffer = [MaybeUninit::uninit(); LISTING_BUFFER];
        let mut dir = RawDir::new(handle, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = dir.next() {
            names.push(entry?.file_name().to_string_lossy().into_owned());
            if dir.is_buffer_empty() {
                break;
            }
        }
        Ok(names)
    }
}

fn mode(bits: u32) -> Mode {
    Mode::from_bits_truncate(bits)
}

fn open_flags(flags: OpenFlags) -> OFlags {
    let mut out = OFlags::CLOEXEC
        | match (flags.has(OpenFlags::READ), flags.has(OpenFlags::WRITE)) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
    for (ours, theirs) in [
        (OpenFlags::CREATE, OFlags::CREATE),
        (OpenFlags::EXCLUSIVE, OFlags::EXCL),
        (OpenFlags::TRUNCATE, OFlags::TRUNC),
        (OpenFlags::APPEND, OFlags::APPEND),
        (OpenFlags::DIRECTORY, OFlags::DIRECTORY),
        (OpenFlags::NO_FOLLOW, OFlags::NOFOLLOW),
    ] {
        if flags.has(ours) {
            out |= theirs;
        }
    }
    out
}

fn attributes(stat: &fs::Stat) -> Attributes {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Attributes { kind: Kind::Dir, size: 0 },
        FileType::Symlink => Attributes { kind: Kind::Symlink, size: 0 },
        _ => Attributes { kind: Kind::File, size: stat.st_size.max(0) as u64 },
    }
}

fn now() -> Timestamps {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}

/// Reads until `out` is full or the file ends.
fn read_full(file: &OwnedFd, mut offset: u64, mut out: &mut [u8]) -> Result<usize, Errno> {
    let mut total = 0;
    while !out.is_empty() {
        match rustix::io::pread(file, &mut *out, offset) {
            Ok(0) => break,
            Ok(got) => {
                total += got;
                offset += got as u64;
                out = &mut out[got..];
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

fn write_full(file: &OwnedFd, offset: u64, data: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(file, &data[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(wrote) => done += wrote,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Session for PosixSession {
    type Handle = OwnedFd;

    async fn make_root(&mut self) -> Outcome<()> {
        if self.root.is_none() {
            fs::mkdirat(&self.parent, &self.name, mode(0o755))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            self.root = Some(fs::openat(&self.parent, &self.name, flags, Mode::empty())?);
        }
        Ok(())
    }

    async fn remove_root(&mut self) -> Outcome<()> {
        self.root = None;
        Ok(fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR)?)
    }

    async fn end(self) -> Outcome<()> {
        Ok(())
    }

    async fn list(&mut self, path: &str) -> Outcome<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = fs::openat(self.root()?, path, flags, Mode::empty())?;
        let mut names = Vec::new();
        loop {
            let portion = self.read_names(&dir)?;
            if portion.is_empty() {
                names.retain(|name| name != "." && name != "..");
                return Ok(names);
            }
            names.extend(portion);
        }
    }

    async fn mkdir(&mut self, path: &str, bits: u32) -> Outcome<()> {
        Ok(fs::mkdirat(self.root()?, path, mode(bits))?)
    }

    async fn create(&mut self, path: &str, bits: u32, body: Body) -> Outcome<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = fs::openat(self.root()?, path, flags, mode(bits))?;
        let mut offset = 0;
        while offset < body.size {
            let piece = body.piece(offset, PIECE);
            write_full(&file, offset, &piece)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    async fn read_file(&mut self, path: &str) -> Outcome<&[u8]> {
        let file = fs::openat(self.root()?, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut total = 0;
        loop {
            // Room for one byte more than was read, to see the end without another call.
            let want = (total * 2).max(8 << 10);
            let got = read_full(&file, total as u64, &mut self.buffer(want)[total..])?;
            total += got;
            if total < want {
                return Ok(&self.buffer[..total]);
            }
        }
    }

    async fn open(&mut self, path: &str, flags: OpenFlags, bits: u32) -> Outcome<OwnedFd> {
        Ok(fs::openat(self.root()?, path, open_flags(flags), mode(bits))?)
    }

    async fn close(&mut self, handle: OwnedFd) -> Outcome<()> {
        // close(2) reports late write errors only on some network file systems, after fsync none:
        // those are found by the verification of what was read.
        drop(handle);
        Ok(())
    }

    async fn read_at(&mut self, handle: &mut OwnedFd, offset: u64, count: u64) -> Outcome<&[u8]> {
        let out = self.buffer(count as usize);
        let got = rustix::io::pread(handle, out, offset)?;
        Ok(&self.buffer[..got])
    }

    async fn write_at(&mut self, handle: &mut OwnedFd, offset: u64, data: &[u8]) -> Outcome<u64> {
        Ok(rustix::io::pwrite(handle, data, offset)? as u64)
    }

    async fn append(&mut self, handle: &mut OwnedFd, data: &[u8]) -> Outcome<u64> {
        Ok(rustix::io::write(handle, data)? as u64)
    }

    async fn truncate_handle(&mut self, handle: &mut OwnedFd, size: u64) -> Outcome<()> {
        Ok(fs::ftruncate(handle, size)?)
    }

    async fn truncate(&mut self, path: &str, size: u64) -> Outcome<()> {
        let file = fs::openat(self.root()?, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(fs::ftruncate(file, size)?)
    }

    async fn sync(&mut self, handle: &mut OwnedFd) -> Outcome<()> {
        Ok(fs::fsync(handle)?)
    }

    async fn entries(&mut self, handle: &mut OwnedFd) -> Outcome<Vec<String>> {
        Ok(self.read_names(handle)?)
    }

    async fn stat(&mut self, path: &str, follow: bool) -> Outcome<Attributes> {
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        Ok(attributes(&fs::statat(self.root()?, path, flags)?))
    }

    async fn stat_handle(&mut self, handle: &mut OwnedFd) -> Outcome<Attributes> {
        Ok(attributes(&fs::fstat(handle)?))
    }

    async fn access(&mut self, path: &str, mask: u8) -> Outcome<()> {
        let mut access = Access::empty();
        for (bit, how) in [(4, Access::READ_OK), (2, Access::WRITE_OK), (1, Access::EXEC_OK)] {
            if mask & bit != 0 {
                access |= how;
            }
        }
        Ok(fs::accessat(self.root()?, path, access, AtFlags::empty())?)
    }

    async fn readlink(&mut self, path: &str) -> Outcome<String> {
        Ok(fs::readlinkat(self.root()?, path, Vec::new())?.to_string_lossy().into_owned())
    }

    async fn rmdir(&mut self, path: &str) -> Outcome<()> {
        Ok(fs::unlinkat(self.root()?, path, AtFlags::REMOVEDIR)?)
    }

    async fn unlink(&mut self, path: &str) -> Outcome<()> {
        Ok(fs::unlinkat(self.root()?, path, AtFlags::empty())?)
    }

    async fn rename(&mut self, old: &str, new: &str, no_replace: bool) -> Outcome<()> {
        let root = self.root()?;
        if no_replace {
            return Ok(fs::renameat_with(root, old, root, new, RenameFlags::NOREPLACE)?);
        }
        Ok(fs::renameat(root, old, root, new)?)
    }

    async fn link(&mut self, old: &str, new: &str) -> Outcome<()> {
        let root = self.root()?;
        Ok(fs::linkat(root, old, root, new, AtFlags::empty())?)
    }

    async fn symlink(&mut self, target: &str, path: &str) -> Outcome<()> {
        Ok(fs::symlinkat(target, self.root()?, path)?)
    }

    async fn chmod(&mut self, path: &str, bits: u32) -> Outcome<()> {
        Ok(fs::chmodat(self.root()?, path, mode(bits), AtFlags::empty())?)
    }

    async fn chmod_handle(&mut self, handle: &mut OwnedFd, bits: u32) -> Outcome<()> {
        Ok(fs::fchmod(handle, mode(bits))?)
    }

    async fn chown_handle(&mut self, handle: &mut OwnedFd) -> Outcome<()> {
        let stat = fs::fstat(handle.as_fd())?;
        let (owner, group) = (fs::Uid::from_raw(stat.st_uid), fs::Gid::from_raw(stat.st_gid));
        Ok(fs::fchown(handle, Some(owner), Some(group))?)
    }

    async fn touch(&mut self, path: &str) -> Outcome<()> {
        Ok(fs::utimensat(self.root()?, path, &now(), AtFlags::empty())?)
    }

    async fn touch_handle(&mut self, handle: &mut OwnedFd) -> Outcome<()> {
        Ok(fs::futimens(handle, &now())?)
    }
}
