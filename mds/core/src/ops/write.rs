//! Writes to an open file: into the inline body, or the answer where in objects the data belongs.

use std::sync::Arc;

use pando_proto::Errno;
use pando_proto::mds::{WriteRequest, WriteResponse};

use super::flag;
use crate::data::{check_writable, clear_privileges, grant, need_spill, overlaid, to_objects};
use crate::handles::{Handle, HandleChange};
use crate::inode::{Inode, attr, in_objects, modified, placement, touch};
use crate::stop::{Step, Stop};
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &WriteRequest) -> Step<WriteResponse> {
    let handle = view.handle(request.handle, request.ino)?;
    if handle.flags & flag::WRITE == 0 {
        return Err(Errno::EBADF.into());
    }
    let ino = handle.ino;
    let inode = view.inode(ino)?;
    check_writable(view, ino)?;
    let length = request.data.len() as u64;
    let append = request.append || handle.flags & flag::APPEND != 0;
    if append && in_objects(&inode) && inode.max_size > inode.size && view.ns.appends_are_unknown(ino) {
        // Ranges may have been handed out before a restart: they are voided, not handed out again (R23).
        return Err(Stop::CutFirst(ino));
    }
    let offset = match append {
        true if in_objects(&inode) => inode.size.max(view.ns.handles.append_end(ino)),
        true => inode.size,
        false => request.offset,
    };
    let end = offset.checked_add(length).filter(|end| *end <= view.ns.config.max_file_size);
    let end = end.ok_or(Errno::EFBIG)?;
    if in_objects(&inode) {
        return in_objects_at(view, request, handle, &inode, offset, end, append);
    }
    if length == 0 {
        return Ok(reply(handle, &inode, offset, true));
    }
    if end > view.ns.config.inline_limit.max(inode.size) {
        if inode.size > 0 {
            return Err(need_spill(view, ino, &inode));
        }
        return in_objects_at(view, request, handle, &inode, offset, end, append);
    }
    let mut changed = (*inode).clone();
    let body = view.body(ino, &inode)?;
    let body = overlaid(&body, usize::try_from(offset).unwrap_or(usize::MAX), &request.data);
    changed.size = body.len() as u64;
    modified(&mut changed, view.now());
    if !handle.privileged {
        clear_privileges(&mut changed);
    }
    view.put_body(ino, Some(body));
    let reply = reply(handle, &changed, offset, true);
    view.put_inode(ino, Arc::new(changed));
    Ok(reply)
}

/// The data belongs into objects: grants the range (R23), reserves it for an append.
fn in_objects_at(
    view: &mut View<'_>,
    request: &WriteRequest,
    handle: Handle,
    inode: &Arc<Inode>,
    offset: u64,
    end: u64,
    append: bool,
) -> Step<WriteResponse> {
    let (ino, mut changed) = (handle.ino, (**inode).clone());
    let moved = !in_objects(inode);
    if moved {
        to_objects(view, &mut changed);
    }
    let granted = grant(view, ino, &mut changed, end, !handle.granted)?;
    if !handle.granted {
        view.change_handle(HandleChange::Granted(view.ctx.client, request.handle));
    }
    if append {
        view.change_handle(HandleChange::Append(ino, end));
    }
    if !(moved || granted) {
        return Ok(reply(handle, inode, offset, false));
    }
    touch(&mut changed, view.now());
    let reply = reply(handle, &changed, offset, false);
    view.put_inode(ino, Arc::new(changed));
    Ok(reply)
}

fn reply(handle: Handle, inode: &Inode, offset: u64, written: bool) -> WriteResponse {
    WriteResponse { written, attr: Some(attr(handle.ino, inode)), placement: placement(inode), offset }
}
