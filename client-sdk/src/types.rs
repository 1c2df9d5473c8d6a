//! What calls return and take.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use pando_proto::{Epoch, Ino, Rank, SubtreeId, mds};

use crate::{Error, Result};

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

impl FileKind {
    pub(crate) fn from_proto(kind: i32) -> Result<Self> {
        match mds::FileKind::try_from(kind) {
            Ok(mds::FileKind::File) => Ok(Self::File),
            Ok(mds::FileKind::Directory) => Ok(Self::Directory),
            Ok(mds::FileKind::Symlink) => Ok(Self::Symlink),
            Ok(mds::FileKind::Unspecified) | Err(_) => Err(Error::protocol("an unknown kind of inode")),
        }
    }
}

/// Attributes of an inode, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    kind: FileKind,
    attr: mds::Attr,
}

impl Metadata {
    pub(crate) fn from_proto(attr: Option<mds::Attr>) -> Result<Self> {
        let attr = attr.ok_or_else(|| Error::protocol("no attributes"))?;
        Ok(Self { kind: FileKind::from_proto(attr.kind)?, attr })
    }

    /// File, directory or symlink.
    pub fn kind(&self) -> FileKind {
        self.kind
    }
    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
    /// Whether it is a symlink.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileKind::Symlink
    }
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.attr.size
    }
    /// Whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.attr.size == 0
    }
    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.attr.ino
    }
    /// Permission bits with setuid, setgid and sticky: 07777.
    pub fn mode(&self) -> u32 {
        self.attr.mode
    }
    /// Owner.
    pub fn uid(&self) -> u32 {
        self.attr.uid
    }
    /// Group.
    pub fn gid(&self) -> u32 {
        self.attr.gid
    }
    /// Number of hard links.
    pub fn nlink(&self) -> u32 {
        self.attr.nlink
    }
    /// Entries of a directory.
    pub fn entries(&self) -> u64 {
        self.attr.entries
    }
    /// Rises with each change of the inode.
    pub fn version(&self) -> u64 {
        self.attr.version
    }
    /// When the content was last read, as far as it is recorded.
    pub fn accessed(&self) -> SystemTime {
        from_nanos(self.attr.atime)
    }
    /// When the content last changed.
    pub fn modified(&self) -> SystemTime {
        from_nanos(self.attr.mtime)
    }
    /// When the inode last changed.
    pub fn changed(&self) -> SystemTime {
        from_nanos(self.attr.ctime)
    }
    /// When it was made.
    pub fn created(&self) -> SystemTime {
        from_nanos(self.attr.birth_time)
    }
    /// The message as it came, times in nanoseconds.
    pub fn as_proto(&self) -> &mds::Attr {
        &self.attr
    }
}

fn from_nanos(nanos: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// A time to set; see [`Client::set_times`](crate::Client::set_times).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SetTime {
    /// Leave it as it is.
    #[default]
    Keep,
    /// The server's time.
    Now,
    /// This time.
    At(SystemTime),
}

impl SetTime {
    /// (nanoseconds, now), as the wire wants them. Times out of the range of 64 bits are cut to it.
    pub(crate) fn to_wire(self) -> (Option<i64>, bool) {
        match self {
            Self::Keep => (None, false),
            Self::Now => (None, true),
            Self::At(time) => (Some(to_nanos(time)), false),
        }
    }
}

fn to_nanos(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    name: Bytes,
    ino: u64,
    kind: FileKind,
    metadata: Option<Metadata>,
    body: Option<Bytes>,
}

impl DirEntry {
    pub(crate) fn from_proto(entry: mds::DirEntry) -> Result<Self> {
        let bad = entry.name.is_empty() || entry.name.contains(&b'/') || entry.name.contains(&0);
        if bad || &entry.name[..] == b"." || &entry.name[..] == b".." {
            return Err(Error::protocol("an impossible name in a listing"));
        }
        let metadata = entry.attr.map(|attr| Metadata::from_proto(Some(attr))).transpose()?;
        let kind = FileKind::from_proto(entry.kind)?;
        Ok(Self { name: entry.name, ino: entry.ino, kind, metadata, body: entry.body })
    }

    pub(crate) fn with_metadata(self, metadata: Metadata) -> Self {
        Self { kind: metadata.kind(), metadata: Some(metadata), ..self }
    }

    /// Its name.
    pub fn file_name(&self) -> OsString {
        OsString::from_vec(self.name.to_vec())
    }
    /// Its name as bytes.
    pub fn name(&self) -> &[u8] {
        &self.name
    }
    pub(crate) fn name_bytes(&self) -> &Bytes {
        &self.name
    }
    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.ino
    }
    /// File, directory or symlink.
    pub fn kind(&self) -> FileKind {
        self.kind
    }
    /// Attributes, if the listing was asked for them and the caller may search the directory.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }
    /// The content of an inline file, if the listing was asked for bodies and the caller may read it.
    pub fn body(&self) -> Option<&Bytes> {
        self.body.as_ref()
    }
}

/// Who serves a path; see [`Client::locate`](crate::Client::locate).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Location {
    /// The subtree that holds the inode.
    pub subtree: SubtreeId,
    /// Epoch of the subtree: how often it was given an owner.
    pub epoch: Epoch,
    /// The rank that answered for it.
    pub rank: Rank,
    /// host:port of that rank.
    pub address: String,
    /// The inode.
    pub ino: Ino,
    /// The way from the root of the subtree; empty for the root itself. After a `..` or a symlink on the way it is
    /// relative to the directory where the path came into the subtree.
    pub path: PathBuf,
}

/// Space of the file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsStats {
    /// Capacity.
    pub total_bytes: u64,
    /// In use.
    pub used_bytes: u64,
    /// Left.
    pub free_bytes: u64,
    /// Longest name of an entry.
    pub max_name_bytes: u32,
    /// Largest file that is kept with its inode.
    pub inline_limit: u64,
}

/// What [`Client::set_xattr`](crate::Client::set_xattr) does if the attribute is there, or is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Creates or replaces.
    #[default]
    Set,
    /// EEXIST if it is there.
    Create,
    /// ENODATA if it is not.
    Replace,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_wire_also_before_1970() {
        for nanos in [0, 1, -1, 1_700_000_000_123_456_789, -86_400_000_000_000, i64::MAX] {
            assert_eq!(to_nanos(from_nanos(nanos)), nanos);
        }
    }

    #[test]
    fn hostile_listings_are_refused() {
        for name in ["", ".", "..", "a/b", "a\0"] {
            let entry = mds::DirEntry { name: name.into(), kind: 1, ..Default::default() };
            assert!(DirEntry::from_proto(entry).is_err(), "{name:?}");
        }
        assert!(DirEntry::from_proto(mds::DirEntry { name: "a".into(), kind: 77, ..Default::default() }).is_err());
    }
}
