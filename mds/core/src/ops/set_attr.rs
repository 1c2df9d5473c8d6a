//! chmod(2), chown(2), truncate(2), utimensat(2).

use std::sync::Arc;

use pando_proto::mds::{SetAttrRequest, SetAttrResponse};
use pando_proto::{Errno, Ino};

use super::flag;
use crate::data::{clear_privileges, set_size};
use crate::inode::{Inode, MODE_BITS, S_ISGID, S_ISUID, attr, is_dir, is_file, modified, placement, touch};
use crate::permission::{WRITE, Who};
use crate::resolve::find;
use crate::stop::Step;
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &SetAttrRequest) -> Step<SetAttrResponse> {
    let who = Who::new(request.caller.as_ref());
    let (ino, inode) = target(view, who, request)?;
    let mut changed = (*inode).clone();
    change_owner(who, request, &mut changed)?;
    change_mode(who, request, &mut changed)?;
    change_times(view, who, request, &inode, &mut changed)?;
    if let Some(size) = request.size {
        change_size(view, who, request, ino, &inode, &mut changed, size)?;
    }
    if changed == *inode && request.mode.is_none() && request.uid.is_none() && request.gid.is_none() {
        return Ok(SetAttrResponse { attr: Some(attr(ino, &inode)), placement: placement(&inode) });
    }
    let permissions = |inode: &Inode| (inode.mode, inode.uid, inode.gid);
    if permissions(&changed) != permissions(&inode) {
        view.raise_routes(&[(ino, &inode)])?;
    }
    touch(&mut changed, view.now());
    let reply = SetAttrResponse { attr: Some(attr(ino, &changed)), placement: placement(&changed) };
    view.put_inode(ino, Arc::new(changed));
    Ok(reply)
}

/// The handle's inode when one is given without a target.
fn target(view: &mut View<'_>, who: Who<'_>, request: &SetAttrRequest) -> Step<(Ino, Arc<Inode>)> {
    if request.handle != 0 && request.target.is_none() {
        let ino = view.handle(request.handle, request.handle_ino)?.ino;
        return Ok((ino, view.inode(ino)?));
    }
    find(view, who, request.target.as_ref(), request.follow)
}

/// Only root gives files away; the owner may pass the group to one of its own.
fn change_owner(who: Who<'_>, request: &SetAttrRequest, inode: &mut Inode) -> Step<()> {
    if request.uid.is_none() && request.gid.is_none() {
        return Ok(());
    }
    let uid = request.uid.unwrap_or(inode.uid);
    let gid = request.gid.unwrap_or(inode.gid);
    let own = who.uid == inode.uid && uid == inode.uid && (gid == inode.gid || who.in_group(gid));
    if !who.is_root() && !own {
        return Err(Errno::EPERM.into());
    }
    (inode.uid, inode.gid) = (uid, gid);
    // As Linux: also when root does it, for what is no directory.
    if !is_dir(inode) {
        clear_privileges(inode);
    }
    Ok(())
}

fn change_mode(who: Who<'_>, request: &SetAttrRequest, inode: &mut Inode) -> Step<()> {
    let Some(mode) = request.mode else { return Ok(()) };
    if !who.owns(inode) {
        return Err(Errno::EPERM.into());
    }
    inode.mode = mode & MODE_BITS;
    if !who.is_root() && !who.in_group(inode.gid) {
        inode.mode &= !S_ISGID;
    }
    // Who gave it away in the same request cannot leave a setuid program behind.
    if !who.is_root() && who.uid != inode.uid {
        inode.mode &= !S_ISUID;
    }
    Ok(())
}

/// Any time: the owner. The present: also who may write.
fn change_times(
    view: &View<'_>,
    who: Who<'_>,
    request: &SetAttrRequest,
    before: &Inode,
    inode: &mut Inode,
) -> Step<()> {
    let explicit = request.atime.is_some() || request.mtime.is_some();
    let now = request.atime_now || request.mtime_now;
    if explicit && !who.owns(before) {
        return Err(Errno::EPERM.into());
    }
    if now && !who.owns(before) {
        who.check(before, WRITE)?;
    }
    if let Some(atime) = request.atime_now.then_some(view.now()).or(request.atime) {
        inode.atime = atime;
    }
    if let Some(mtime) = request.mtime_now.then_some(view.now()).or(request.mtime) {
        inode.mtime = mtime;
    }
    Ok(())
}

fn change_size(
    view: &mut View<'_>,
    who: Who<'_>,
    request: &SetAttrRequest,
    ino: Ino,
    before: &Inode,
    inode: &mut Inode,
    size: u64,
) -> Step<()> {
    if is_dir(before) {
        return Err(Errno::EISDIR.into());
    }
    if !is_file(before) {
        return Err(Errno::EINVAL.into());
    }
    if request.handle == 0 {
        who.check(before, WRITE)?;
    } else {
        let handle = view.handle(request.handle, request.handle_ino)?;
        if handle.ino != ino || handle.flags & flag::WRITE == 0 {
            return Err(Errno::EBADF.into());
        }
    }
    set_size(view, ino, inode, size)?;
    if !who.is_root() && request.mode.is_none() {
        clear_privileges(inode);
    }
    let explicit = request.mtime;
    modified(inode, view.now());
    if !request.mtime_now
        && let Some(mtime) = explicit
    {
        inode.mtime = mtime;
    }
    Ok(())
}
