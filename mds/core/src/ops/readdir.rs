//! readdir(3), with attributes and bodies on demand. Cursors are names, so that they stay good.

use std::sync::Arc;

use pando_proto::Errno;
use pando_proto::mds::{DirEntry, ReaddirRequest, ReaddirResponse};

use super::flag;
use crate::inode::{Dentry, Inode, attr, in_objects, is_dir, is_file, placement};
use crate::permission::{EXECUTE, READ, Who};
use crate::resolve::{find, home_elsewhere};
use crate::stop::{Step, Stop, invalid};
use crate::view::View;
use bytes::Bytes;
use pando_proto::{Ino, MAX_NAME_BYTES};

pub(crate) fn run(view: &mut View<'_>, request: &ReaddirRequest) -> Step<ReaddirResponse> {
    if request.after.len() > MAX_NAME_BYTES {
        return Err(invalid("`after` is a name: at most 255 bytes"));
    }
    let who = Who::new(request.caller.as_ref());
    let (dir, inode) = directory(view, who, request)?;
    if inode.dead {
        return Ok(ReaddirResponse { entries: Vec::new(), end: true });
    }
    let most = view.ns.config.max_page_entries.max(1);
    let limit = if request.limit == 0 { most } else { request.limit.min(most) };
    let page = view.page(dir, &inode, &request.after, limit as usize)?;
    let mut end = page.end;
    let mut entries = Vec::with_capacity(page.entries.len());
    // Without search permission stat(2) of an entry is refused, and all the more its content: names may be had.
    let searchable = who.may(&inode, EXECUTE);
    if !searchable || !(request.want_attrs || request.want_bodies) {
        entries.extend(page.entries.into_iter().map(|(name, dentry)| plain(name, dentry)));
        return Ok(ReaddirResponse { entries, end });
    }
    let mut room = view.ns.config.max_page_body_bytes;
    let mut missing = false;
    for (name, dentry) in page.entries {
        if room == 0 {
            end = false;
            break;
        }
        match full(view, who, request, dir, name, dentry) {
            Ok(entry) => {
                room = room.saturating_sub(entry.body.as_ref().map_or(0, Bytes::len));
                entries.push(entry);
            }
            // Goes on to find out what else is missing.
            Err(Stop::Missing) => missing = true,
            Err(stop) => return Err(stop),
        }
    }
    if missing { Err(Stop::Missing) } else { Ok(ReaddirResponse { entries, end }) }
}

fn directory(view: &mut View<'_>, who: Who<'_>, request: &ReaddirRequest) -> Step<(Ino, Arc<Inode>)> {
    if request.handle != 0 {
        let handle = view.handle(request.handle, request.handle_ino)?;
        let inode = view.inode(handle.ino)?;
        if handle.flags & flag::READ == 0 {
            return Err(Errno::EBADF.into());
        }
        return if is_dir(&inode) { Ok((handle.ino, inode)) } else { Err(Errno::ENOTDIR.into()) };
    }
    let (ino, inode) = find(view, who, request.target.as_ref(), true)?;
    if !is_dir(&inode) {
        return Err(Errno::ENOTDIR.into());
    }
    who.check(&inode, READ)?;
    Ok((ino, inode))
}

fn plain(name: Bytes, dentry: Dentry) -> DirEntry {
    DirEntry { name, ino: dentry.ino.0, kind: dentry.kind as i32, attr: None, placement: None, body: None }
}

fn full(
    view: &mut View<'_>,
    who: Who<'_>,
    request: &ReaddirRequest,
    dir: Ino,
    name: Bytes,
    dentry: Dentry,
) -> Step<DirEntry> {
    // The inode of another subtree is that one's to tell of (R15).
    if view.foreign_root(dentry.ino).is_some() {
        return Ok(plain(name, dentry));
    }
    let inode = view.child(dentry.ino)?;
    if home_elsewhere(view, dir, &name, dentry.ino, &inode)?.is_some() {
        return Ok(plain(name, dentry));
    }
    let wanted = request.want_bodies && is_file(&inode) && !in_objects(&inode) && who.may(&inode, READ);
    let body = if wanted { Some(view.body(dentry.ino, &inode)?) } else { None };
    Ok(DirEntry { attr: Some(attr(dentry.ino, &inode)), placement: placement(&inode), body, ..plain(name, dentry) })
}
