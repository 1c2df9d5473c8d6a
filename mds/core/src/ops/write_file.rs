//! create + write + close of a small file.
//!
//! A file that lives in objects keeps its home: it is refused as TOO_LARGE_FOR_INLINE, and the
//! client takes the way of open, which with TRUNCATE brings it back to inline.

use std::sync::Arc;

use bytes::Bytes;
use pando_proto::mds::{FileKind, WriteFileRequest, WriteFileResponse};
use pando_proto::{Errno, Error, Ino, Reason};

use super::create::make;
use super::flag;
use crate::data::{check_writable, clear_privileges, overlaid};
use crate::inode::{Inode, attr, in_objects, is_dir, is_file, modified};
use crate::permission::{WRITE, Who};
use crate::resolve::{Entry, Spot, own_child, walk};
use crate::stop::{Step, Stop, invalid};
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &WriteFileRequest) -> Step<WriteFileResponse> {
    let flags = request.flags;
    if flags & !flag::ALL != 0 || flags & flag::DIRECTORY != 0 {
        return Err(invalid("flags are a sum of OpenFlag without DIRECTORY"));
    }
    if request.data.len() as u64 > view.ns.config.inline_limit {
        return Err(too_large());
    }
    let who = Who::new(request.caller.as_ref());
    let exclusive = flags & (flag::CREATE | flag::EXCLUSIVE) == flag::CREATE | flag::EXCLUSIVE;
    let follow = flags & flag::NO_FOLLOW == 0 && !exclusive;
    let (ino, inode) = match walk(view, who, request.target.as_ref(), follow)? {
        Spot::Entry(Entry { found: None, slash: true, .. }) if flags & flag::CREATE != 0 => {
            return Err(Errno::EISDIR.into());
        }
        Spot::Entry(entry @ Entry { found: None, .. }) if flags & flag::CREATE != 0 => {
            return create(view, who, &entry, request);
        }
        Spot::Entry(Entry { found: None, .. }) => return Err(Errno::ENOENT.into()),
        _ if exclusive => return Err(Errno::EEXIST.into()),
        Spot::Entry(Entry { found: Some(dentry), slash, dir, name, .. }) => {
            if slash && dentry.kind != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            (dentry.ino, own_child(view, dir, &name, dentry)?)
        }
        Spot::Inode(ino, _) => (ino, view.inode(ino)?),
    };
    overwrite(view, who, request, ino, &inode)
}

fn create(view: &mut View<'_>, who: Who<'_>, entry: &Entry, request: &WriteFileRequest) -> Step<WriteFileResponse> {
    let (ino, mut inode) = make(view, who, entry, FileKind::File, request.mode)?;
    inode.size = request.data.len() as u64;
    if inode.size > 0 {
        view.put_body(ino, Some(request.data.clone()));
    }
    let attr = attr(ino, &inode);
    view.put_inode(ino, Arc::new(inode));
    Ok(WriteFileResponse { attr: Some(attr), created: true })
}

fn overwrite(
    view: &mut View<'_>,
    who: Who<'_>,
    request: &WriteFileRequest,
    ino: Ino,
    inode: &Inode,
) -> Step<WriteFileResponse> {
    if is_dir(inode) {
        return Err(Errno::EISDIR.into());
    }
    if !is_file(inode) {
        return Err(Errno::ELOOP.into());
    }
    who.check(inode, WRITE)?;
    if in_objects(inode) {
        return Err(too_large());
    }
    check_writable(view, ino)?;
    let body = content(view, request, ino, inode)?;
    if body.len() as u64 > view.ns.config.inline_limit.max(inode.size) {
        return Err(too_large());
    }
    let mut changed = inode.clone();
    changed.size = body.len() as u64;
    modified(&mut changed, view.now());
    if !who.is_root() {
        clear_privileges(&mut changed);
    }
    if changed.size > 0 || inode.size > 0 {
        view.put_body(ino, (changed.size > 0).then_some(body));
    }
    let attr = attr(ino, &changed);
    view.put_inode(ino, Arc::new(changed));
    Ok(WriteFileResponse { attr: Some(attr), created: false })
}

/// The file's content afterwards.
fn content(view: &mut View<'_>, request: &WriteFileRequest, ino: Ino, inode: &Inode) -> Step<Bytes> {
    let data = &request.data;
    let append = request.flags & flag::APPEND != 0;
    if request.flags & flag::TRUNCATE != 0 || !append && data.len() as u64 >= inode.size {
        return Ok(data.clone());
    }
    let body = view.body(ino, inode)?;
    let offset = if append { body.len() } else { 0 };
    Ok(if data.is_empty() { body } else { overlaid(&body, offset, data) })
}

fn too_large() -> Stop {
    Error::new(
        Reason::TooLargeForInline,
        "the data does not fit inline, or the file lives in objects: open it, write objects, close it",
    )
    .into()
}
