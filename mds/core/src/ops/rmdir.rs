//! rmdir(2).

use std::sync::Arc;

use pando_proto::Errno;
use pando_proto::mds::{FileKind, RmdirRequest, RmdirResponse};

use super::across::look;
use super::remove::drop_directory;
use crate::inode::modified;
use crate::permission::Who;
use crate::resolve::{End, entry};
use crate::stop::{Step, Stop};
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &RmdirRequest) -> Step<RmdirResponse> {
    let who = Who::new(request.caller.as_ref());
    let entry = entry(view, who, request.target.as_ref(), |end| match end {
        End::Base => Errno::EBUSY,
        End::Dot => Errno::EINVAL,
        End::DotDot => Errno::ENOTEMPTY,
    })?;
    let dentry = entry.found.ok_or(Errno::ENOENT)?;
    let inode = look(view, dentry)?;
    who.check_delete(&entry.dir_inode, &inode)?;
    if let Some(subtree) = view.foreign_root(dentry.ino) {
        return Err(Stop::NeedMerge(subtree));
    }
    if dentry.kind != FileKind::Directory {
        return Err(Errno::ENOTDIR.into());
    }
    // R21: the count in the inode includes all that is committed in memory.
    drop_directory(view, dentry.ino, &inode)?;
    view.put_name(entry.dir, &entry.name, None);
    let mut dir = (*entry.dir_inode).clone();
    dir.entries = dir.entries.saturating_sub(1);
    dir.nlink = dir.nlink.saturating_sub(1);
    modified(&mut dir, view.now());
    view.put_inode(entry.dir, Arc::new(dir));
    Ok(RmdirResponse {})
}
