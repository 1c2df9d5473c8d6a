//! unlink(2).

use std::sync::Arc;

use pando_proto::Errno;
use pando_proto::mds::{FileKind, UnlinkRequest, UnlinkResponse};

use super::across::{self, look};
use super::remove::drop_link;
use crate::inode::modified;
use crate::permission::Who;
use crate::resolve::{entry, home_elsewhere};
use crate::stop::Step;
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &UnlinkRequest) -> Step<UnlinkResponse> {
    let who = Who::new(request.caller.as_ref());
    let entry = entry(view, who, request.target.as_ref(), |_| Errno::EISDIR)?;
    let dentry = entry.found.ok_or(Errno::ENOENT)?;
    let inode = look(view, dentry)?;
    who.check_delete(&entry.dir_inode, &inode)?;
    if dentry.kind == FileKind::Directory {
        return Err(Errno::EISDIR.into());
    }
    if entry.slash {
        return Err(Errno::ENOTDIR.into());
    }
    if let Some(home) = home_elsewhere(view, entry.dir, &entry.name, dentry.ino, &inode)? {
        return Err(across::unlink(request, &entry, dentry, home));
    }
    drop_link(view, entry.dir, &entry.name, dentry.ino, &inode)?;
    view.put_name(entry.dir, &entry.name, None);
    let mut dir = (*entry.dir_inode).clone();
    dir.entries = dir.entries.saturating_sub(1);
    modified(&mut dir, view.now());
    view.put_inode(entry.dir, Arc::new(dir));
    Ok(UnlinkResponse {})
}
