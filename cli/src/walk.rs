//! Directories on this machine, walked by descriptor and name, never by path: whoever may rename in a tree that is being
//! copied cannot lead the copy out of it by a symlink (openat(2)).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat, statat};

/// An open directory.
pub struct LocalDir(OwnedFd);

impl LocalDir {
    /// Opens one; a symlink is not followed.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::at(openat(CWD, path, Self::flags(), Mode::empty()))
    }

    /// A directory in it; a symlink is not followed.
    pub fn open_dir(&self, name: &OsStr) -> io::Result<Self> {
        Self::at(openat(&self.0, name, Self::flags(), Mode::empty()))
    }

    fn flags() -> OFlags {
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
    }

    fn at(opened: rustix::io::Result<OwnedFd>) -> io::Result<Self> {
        Ok(Self(opened?))
    }

    /// Its permission bits.
    pub fn mode(&self) -> io::Result<u32> {
        Ok(fstat(&self.0)?.st_mode & 0o7777)
    }

    /// What is in it, and which of it are directories.
    pub fn entries(&self) -> io::Result<Vec<(OsString, bool)>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let name = OsStr::from_bytes(name).to_owned();
            let kind = match entry.file_type() {
                // Not every file system tells.
                FileType::Unknown => self.kind(&name)?,
                kind => kind,
            };
            entries.push((name, kind == FileType::Directory));
        }
        Ok(entries)
    }

    /// What an entry is, be it a symlink.
    pub fn kind(&self, name: &OsStr) -> io::Result<FileType> {
        Ok(FileType::from_raw_mode(statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode))
    }

    /// What a symlink in it says.
    pub fn read_link(&self, name: &OsStr) -> io::Result<PathBuf> {
        Ok(OsString::from_vec(readlinkat(&self.0, name, Vec::new())?.into_bytes()).into())
    }

    /// Opens a file in it to read. ELOOP for a symlink; a pipe is not waited for.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_directory_stays_the_same_whatever_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for made in ["tree/sub/deep", "kept/deep"] {
            fs::create_dir_all(at(made)).unwrap();
        }
        fs::write(at("tree/sub/file"), "inside").unwrap();
        fs::write(at("kept/file"), "outside").unwrap();
        let tree = LocalDir::open(&at("tree")).unwrap();
        let sub = tree.open_dir(OsStr::new("sub")).unwrap();
        fs::rename(at("tree/sub"), at("moved")).unwrap();
        symlink(at("kept"), at("tree/sub")).unwrap();
        symlink(at("kept/file"), at("moved/link")).unwrap();

        let mut text = String::new();
        sub.open_file(OsStr::new("file")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "inside");
        let mut entries = sub.entries().unwrap();
        entries.sort();
        assert_eq!(entries, [("deep".into(), true), ("file".into(), false), ("link".into(), false)]);
        assert!(tree.open_dir(OsStr::new("sub")).is_err() && LocalDir::open(&at("tree/sub")).is_err());
        assert!(sub.open_file(OsStr::new("link")).is_err());
        assert_eq!(sub.kind(OsStr::new("link")).unwrap(), FileType::Symlink);
        assert_eq!(sub.read_link(OsStr::new("link")).unwrap(), at("kept/file"));
    }
}
