//! Attributes: look and change.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use pando_proto::mds::{
    AccessRequest, SetAttrRequest, StatRequest, StatfsRequest, operation::Op, operation_result::Result as Answer,
};
use pando_proto::{Errno, Ino, SubtreeId};

use crate::client::{call, wrong_answer};
use crate::path::{self, Checked};
use crate::session::{Answered, Found};
use crate::{Client, FsStats, Location, Metadata, Result, SetTime};

/// Which attributes to change.
#[derive(Default)]
pub(crate) struct Changes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: SetTime,
    pub mtime: SetTime,
}

impl Changes {
    pub fn times(accessed: SetTime, modified: SetTime) -> Self {
        Self { atime: accessed, mtime: modified, ..Self::default() }
    }

    pub fn into_request(self) -> SetAttrRequest {
        let (atime, atime_now) = self.atime.to_wire();
        let (mtime, mtime_now) = self.mtime.to_wire();
        SetAttrRequest {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            atime,
            mtime,
            atime_now,
            mtime_now,
            ..SetAttrRequest::default()
        }
    }
}

impl Client {
    /// Attributes of what `path` leads to, symlinks followed.
    ///
    /// Errors: ENOENT, ENOTDIR, EACCES, ELOOP.
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(&path::check(path.as_ref())?, true).await
    }

    /// Attributes of `path` itself, be it a symlink.
    ///
    /// Errors: as [`metadata`](Self::metadata).
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(&path::check(path.as_ref())?, false).await
    }

    pub(crate) async fn stat(&self, path: &Checked, follow: bool) -> Result<Metadata> {
        let request = StatRequest { caller: self.caller(), target: Some(path.target()), follow };
        let answer = call!(self, path, Stat, request)?;
        Metadata::from_proto(answer.attr)
    }

    /// Attributes, and the subtree that the inode belongs to.
    pub(crate) async fn stat_and_place(&self, path: &Checked, follow: bool) -> Result<(Metadata, SubtreeId)> {
        let request = StatRequest { caller: self.caller(), target: Some(path.target()), follow };
        let Answered { result, subtree, .. } = self.run_at(Op::Stat(request), path).await?;
        let Answer::Stat(answer) = result else { return Err(wrong_answer(path.given())) };
        Ok((Metadata::from_proto(answer.attr)?, subtree))
    }

    /// Who serves what `path` leads to, symlinks followed: asks the rank that does.
    ///
    /// Errors: as [`metadata`](Self::metadata).
    pub async fn locate(&self, path: impl AsRef<Path>) -> Result<Location> {
        let path = path::check(path.as_ref())?;
        let request = StatRequest { caller: self.caller(), target: Some(path.target()), follow: true };
        let Found { answered, path: rest } = self.run_and_find(Op::Stat(request), path.given()).await?;
        let Answer::Stat(answer) = answered.result else { return Err(wrong_answer(path.given())) };
        let map = self.map();
        Ok(Location {
            subtree: answered.subtree,
            epoch: answered.epoch,
            rank: answered.rank,
            address: map.ranks.get(&answered.rank).map(|rank| rank.address.clone()).unwrap_or_default(),
            ino: Ino(Metadata::from_proto(answer.attr)?.ino()),
            path: PathBuf::from(OsString::from_vec(rest.to_vec())),
        })
    }

    /// Whether `path` leads to something.
    ///
    /// Errors: those of [`metadata`](Self::metadata) except that nothing is there.
    pub async fn try_exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::ENOENT | Errno::ENOTDIR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the user may read (4), write (2) and execute or search (1); the sum of these. 0 asks only whether it is there.
    ///
    /// Errors: EACCES if not.
    pub async fn access(&self, path: impl AsRef<Path>, mask: u32) -> Result<()> {
        let path = path::check(path.as_ref())?;
        let request = AccessRequest { caller: self.caller(), target: Some(path.target()), mask };
        call!(self, &path, Access, request).map(|_| ())
    }

    /// Sets the permission bits (07777).
    ///
    /// Errors: EPERM for others than the owner.
    pub async fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.set_attr(path.as_ref(), true, Changes { mode: Some(mode), ..Changes::default() }).await.map(|_| ())
    }

    /// Sets the times of access and modification.
    ///
    /// Errors: EPERM, EACCES.
    pub async fn set_times(&self, path: impl AsRef<Path>, accessed: SetTime, modified: SetTime) -> Result<()> {
        self.set_attr(path.as_ref(), true, Changes::times(accessed, modified)).await.map(|_| ())
    }

    /// Sets the times of `path` itself, be it a symlink.
    ///
    /// Errors: EPERM, EACCES.
    pub async fn set_symlink_times(&self, path: impl AsRef<Path>, accessed: SetTime, modified: SetTime) -> Result<()> {
        self.set_attr(path.as_ref(), false, Changes::times(accessed, modified)).await.map(|_| ())
    }

    /// Sets owner and group; `None` leaves one as it is.
    ///
    /// Errors: EPERM.
    pub async fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set_attr(path.as_ref(), true, Changes { uid, gid, ..Changes::default() }).await.map(|_| ())
    }

    /// Sets owner and group of `path` itself, be it a symlink.
    ///
    /// Errors: EPERM.
    pub async fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set_attr(path.as_ref(), false, Changes { uid, gid, ..Changes::default() }).await.map(|_| ())
    }

    /// Cuts a file to `size`, or extends it with zeros.
    ///
    /// Errors: EISDIR, EACCES, EFBIG.
    pub async fn truncate(&self, path: impl AsRef<Path>, size: u64) -> Result<()> {
        self.set_attr(path.as_ref(), true, Changes { size: Some(size), ..Changes::default() }).await.map(|_| ())
    }

    async fn set_attr(&self, path: &Path, follow: bool, changes: Changes) -> Result<Metadata> {
        let path = path::check(path)?;
        let request =
            SetAttrRequest { caller: self.caller(), target: Some(path.target()), follow, ..changes.into_request() };
        let answer = call!(self, &path, SetAttr, request)?;
        Metadata::from_proto(answer.attr)
    }

    /// Space of the file system.
    ///
    /// Errors: the cluster cannot be reached.
    pub async fn statfs(&self) -> Result<FsStats> {
        let answer = call!(self, &Checked::default(), Statfs, StatfsRequest {})?;
        Ok(FsStats {
            total_bytes: answer.total_bytes,
            used_bytes: answer.used_bytes,
            free_bytes: answer.free_bytes,
            max_name_bytes: answer.max_name_bytes,
            inline_limit: answer.inline_limit,
        })
    }
}
