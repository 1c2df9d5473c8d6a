//! Names: making, removing, moving.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pando_proto::mds::{
    LinkRequest, MkdirRequest, ReadlinkRequest, RenameMode, RenameRequest, RmdirRequest, SymlinkRequest, UnlinkRequest,
};
use pando_proto::{Errno, MAX_PATH_BYTES};

use crate::client::call;
use crate::path::Checked;
use crate::{Client, Error, Metadata, Result, path};

/// Permission bits of a new directory unless others are asked for.
pub(crate) const DIR_MODE: u32 = 0o755;

impl Client {
    /// Makes a directory, with mode 0755.
    ///
    /// Errors: EEXIST, ENOENT if the parent is missing, EACCES, ENOSPC.
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_with_mode(path, DIR_MODE).await.map(|_| ())
    }

    /// Makes a directory with these permission bits.
    ///
    /// Errors: as [`create_dir`](Self::create_dir).
    pub async fn create_dir_with_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<Metadata> {
        let path = path::check(path.as_ref())?;
        let request = MkdirRequest { caller: self.caller(), target: Some(path.target()), mode };
        let answer = call!(self, &path, Mkdir, request)?;
        Metadata::from_proto(answer.attr)
    }

    /// Removes a name that is no directory. Open files live on until they are closed.
    ///
    /// Errors: ENOENT, EISDIR, EACCES, EPERM.
    pub async fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.unlink(&path::check(path.as_ref())?).await
    }

    pub(crate) async fn unlink(&self, path: &Checked) -> Result<()> {
        let request = UnlinkRequest { caller: self.caller(), target: Some(path.target()) };
        call!(self, path, Unlink, request).map(|_| ())
    }

    /// Removes an empty directory.
    ///
    /// Errors: ENOENT, ENOTDIR, ENOTEMPTY, EACCES, EPERM.
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.rmdir(&path::check(path.as_ref())?).await
    }

    pub(crate) async fn rmdir(&self, path: &Checked) -> Result<()> {
        let request = RmdirRequest { caller: self.caller(), target: Some(path.target()) };
        call!(self, path, Rmdir, request).map(|_| ())
    }

    /// Renames, replacing what `to` was, as rename(2).
    ///
    /// Errors: ENOENT, ENOTEMPTY, EISDIR, ENOTDIR, EINVAL for a directory below itself, EACCES, EPERM.
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_as(from.as_ref(), to.as_ref(), RenameMode::Replace).await
    }

    /// Renames; EEXIST if `to` exists.
    ///
    /// Errors: as [`rename`](Self::rename).
    pub async fn rename_no_replace(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_as(from.as_ref(), to.as_ref(), RenameMode::NoReplace).await
    }

    /// Swaps two names, which must both exist.
    ///
    /// Errors: as [`rename`](Self::rename).
    pub async fn exchange(&self, one: impl AsRef<Path>, other: impl AsRef<Path>) -> Result<()> {
        self.rename_as(one.as_ref(), other.as_ref(), RenameMode::Exchange).await
    }

    async fn rename_as(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()> {
        let (from, to) = (path::check(from)?, path::check(to)?);
        let request = RenameRequest {
            caller: self.caller(),
            from: Some(from.target()),
            to: Some(to.target()),
            mode: mode.into(),
        };
        call!(self, &from, Rename, request).map(|_| ())
    }

    /// Gives the file `original` another name. A symlink is linked itself, not followed.
    ///
    /// Errors: ENOENT, EEXIST, EPERM for a directory, EMLINK, EACCES.
    pub async fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (original, link) = (path::check(original.as_ref())?, path::check(link.as_ref())?);
        let request = LinkRequest {
            caller: self.caller(),
            existing: Some(original.target()),
            link: Some(link.target()),
            follow: false,
        };
        call!(self, &link, Link, request).map(|_| ())
    }

    /// Makes a symlink at `link` that says `target`, which need not exist.
    ///
    /// Errors: EEXIST, ENOENT, EINVAL for an impossible target, ENAMETOOLONG, EACCES.
    pub async fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let link = path::check(link.as_ref())?;
        let target = target.as_ref().as_os_str().as_bytes();
        let refuse = |errno, text: &str| Err(Error::with_message(errno, text).at(link.given()));
        if target.is_empty() {
            return refuse(Errno::ENOENT, "the target of a symlink must not be empty");
        }
        if target.contains(&0) {
            return refuse(Errno::EINVAL, "a symlink cannot hold a NUL byte");
        }
        if target.len() > MAX_PATH_BYTES {
            return refuse(Errno::ENAMETOOLONG, "a symlink holds at most 4095 bytes");
        }
        let request = SymlinkRequest {
            caller: self.caller(),
            target: Some(link.target()),
            link_target: Bytes::copy_from_slice(target),
        };
        call!(self, &link, Symlink, request).map(|_| ())
    }

    /// What a symlink says.
    ///
    /// Errors: EINVAL if it is none, ENOENT, EACCES.
    pub async fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.readlink(&path::check(path.as_ref())?).await
    }

    pub(crate) async fn readlink(&self, path: &Checked) -> Result<PathBuf> {
        let request = ReadlinkRequest { caller: self.caller(), target: Some(path.target()) };
        let answer = call!(self, path, Readlink, request)?;
        Ok(PathBuf::from(OsString::from_vec(answer.link_target.to_vec())))
    }
}
