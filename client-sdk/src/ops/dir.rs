//! Names in one directory, in the manner of openat(2).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pando_proto::Errno;

use crate::path::{self, Base, Checked};
use crate::{Client, Error, ReadDir, ReadDirOptions, Result};

/// A directory, known by its inode. Whatever becomes of the names that led to it, what is called by its means concerns
/// this directory: who walks a tree by it is not led out by somebody who puts symlinks in the place of directories. An
/// inode number is never used again (R20), so that no handle has to be kept open for it, and nothing has to be closed.
///
/// Once the directory is removed, calls fail with ENOENT or ESTALE.
#[derive(Clone, Debug)]
pub struct Dir {
    client: Client,
    place: Checked,
    ino: u64,
}

impl Client {
    /// Finds a directory, symlinks followed.
    ///
    /// Errors: ENOENT, ENOTDIR, EACCES, ELOOP.
    pub async fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        Dir::find(self, &path::check(path.as_ref())?, true).await
    }
}

impl Dir {
    pub(crate) async fn find(client: &Client, path: &Checked, follow: bool) -> Result<Self> {
        let (found, subtree) = client.stat_and_place(path, follow).await?;
        if !found.is_dir() {
            return Err(Error::posix(Errno::ENOTDIR).at(path.given()));
        }
        let ino = found.ino();
        Ok(Self { client: client.clone(), place: path.fixed_at(Base { ino, subtree }), ino })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// An entry of it.
    pub(crate) fn entry(&self, name: &OsStr) -> Result<Checked> {
        let name = name.as_bytes();
        path::check_name(name).map_err(|error| error.at(self.place.given()))?;
        Ok(self.place.join(name))
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// A directory in it; a symlink is not followed.
    ///
    /// Errors: ENOENT, ENOTDIR also for a symlink, EACCES, EINVAL for what is no name.
    pub async fn open_dir(&self, name: impl AsRef<OsStr>) -> Result<Self> {
        Self::find(&self.client, &self.entry(name.as_ref())?, false).await
    }

    /// Lists it, as [`Client::read_dir_with`].
    ///
    /// Errors: EACCES.
    pub async fn read_dir_with(&self, options: ReadDirOptions) -> Result<ReadDir> {
        self.client.list(self.place.clone(), options).await
    }

    /// What a symlink in it says, as [`Client::read_link`].
    ///
    /// Errors: EINVAL if it is none, ENOENT, EACCES.
    pub async fn read_link(&self, name: impl AsRef<OsStr>) -> Result<PathBuf> {
        self.client.readlink(&self.entry(name.as_ref())?).await
    }

    /// Removes a name that is no directory, as [`Client::remove_file`].
    ///
    /// Errors: ENOENT, EISDIR, EACCES, EPERM.
    pub async fn remove_file(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.client.unlink(&self.entry(name.as_ref())?).await
    }

    /// Removes an empty directory, as [`Client::remove_dir`].
    ///
    /// Errors: ENOENT, ENOTDIR, ENOTEMPTY, EACCES, EPERM.
    pub async fn remove_dir(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.client.rmdir(&self.entry(name.as_ref())?).await
    }
}
