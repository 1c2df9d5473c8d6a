//! Who may do what (POSIX.1-2017, 4.5 File Access Permissions; path_resolution(7)).

use pando_proto::Errno;
use pando_proto::mds::Caller;

use crate::inode::{Inode, S_ISVTX};
use crate::stop::Step;

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

/// The caller of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who<'a> {
    pub uid: u32,
    pub gid: u32,
    groups: &'a [u32],
}

impl<'a> Who<'a> {
    /// Absent means root.
    pub fn new(caller: Option<&'a Caller>) -> Self {
        caller.map_or(Self { uid: 0, gid: 0, groups: &[] }, |caller| Self {
            uid: caller.uid,
            gid: caller.gid,
            groups: &caller.groups,
        })
    }

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    pub fn owns(&self, inode: &Inode) -> bool {
        self.is_root() || self.uid == inode.uid
    }

    /// Whether all bits of `mask` are granted. Root passes, also without x bits.
    pub fn may(&self, inode: &Inode, mask: u32) -> bool {
        if self.is_root() {
            return true;
        }
        let shift = if self.uid == inode.uid {
            6
        } else if self.in_group(inode.gid) {
            3
        } else {
            0
        };
        (inode.mode >> shift) & mask == mask
    }

    pub fn check(&self, inode: &Inode, mask: u32) -> Step<()> {
        if self.may(inode, mask) { Ok(()) } else { Err(Errno::EACCES.into()) }
    }

    /// May remove or rename `victim` in `dir`: write and search, and with the
    /// sticky bit only the owner of either (EPERM, as unlink(2)).
    pub fn check_delete(&self, dir: &Inode, victim: &Inode) -> Step<()> {
        self.check(dir, WRITE | EXECUTE)?;
        let sticky = dir.mode & S_ISVTX != 0;
        if sticky && !self.owns(dir) && !self.owns(victim) { Err(Errno::EPERM.into()) } else { Ok(()) }
    }
}
