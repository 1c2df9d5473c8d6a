//! Grants of max_size and reports of size, for files in objects (R23).

use std::sync::Arc;

use pando_proto::Errno;
use pando_proto::mds::{GrantSizeRequest, GrantSizeResponse, ReportSizeRequest, ReportSizeResponse, SizeReport};

use super::flag;
use crate::data::{check_writable, clear_privileges, need_spill, to_objects};
use crate::handles::{Handle, HandleChange};
use crate::inode::{Inode, attr, in_objects, placement, touch};
use crate::stop::{Step, invalid};
use crate::view::View;

fn writer(view: &mut View<'_>, number: u64, ino: u64) -> Step<Handle> {
    let handle = view.handle(number, ino)?;
    if handle.flags & flag::WRITE == 0 { Err(Errno::EBADF.into()) } else { Ok(handle) }
}

/// Raises max_size; the reply waits until that is durable. A file that fits inline is answered as it is.
pub(crate) fn grant(view: &mut View<'_>, request: &GrantSizeRequest) -> Step<GrantSizeResponse> {
    let handle = writer(view, request.handle, request.ino)?;
    let ino = handle.ino;
    let inode = view.inode(ino)?;
    check_writable(view, ino)?;
    let mut changed = (*inode).clone();
    let mut dirty = false;
    if !in_objects(&inode) {
        if request.size <= view.ns.config.inline_limit.max(inode.size) {
            return Ok(GrantSizeResponse { placement: placement(&inode) });
        }
        if inode.size > 0 {
            return Err(need_spill(view, ino, &inode));
        }
        to_objects(view, &mut changed);
        dirty = true;
    }
    dirty |= crate::data::grant(view, ino, &mut changed, request.size, !handle.granted)?;
    if !handle.granted {
        view.change_handle(HandleChange::Granted(view.ctx.client, request.handle));
    }
    if dirty {
        touch(&mut changed, view.now());
    }
    let placement = placement(&changed);
    if dirty {
        view.put_inode(ino, Arc::new(changed));
    }
    Ok(GrantSizeResponse { placement })
}

pub(crate) fn report(view: &mut View<'_>, request: &ReportSizeRequest) -> Step<ReportSizeResponse> {
    let Some(report) = &request.report else { return Err(invalid("the request has no report")) };
    let handle = writer(view, request.handle, request.ino)?;
    let inode = view.inode(handle.ino)?;
    let inode = match reported(view, handle, &inode, report)? {
        Some(changed) => {
            let changed = Arc::new(changed);
            view.put_inode(handle.ino, Arc::clone(&changed));
            changed
        }
        None => inode,
    };
    Ok(ReportSizeResponse { attr: Some(attr(handle.ino, &inode)), placement: placement(&inode) })
}

/// The inode with the report taken in; `None` if it is void: the file was truncated since, or lives inline.
pub(crate) fn reported(view: &mut View<'_>, handle: Handle, inode: &Inode, report: &SizeReport) -> Step<Option<Inode>> {
    if handle.flags & flag::WRITE == 0 {
        return Err(Errno::EBADF.into());
    }
    if !in_objects(inode) || report.truncate_seq < inode.truncate_seq {
        return Ok(None);
    }
    if report.truncate_seq > inode.truncate_seq || report.size > inode.max_size {
        return Err(invalid("a size report stays below the granted max_size and names a truncate_seq that was given"));
    }
    let now = view.now();
    let mut changed = inode.clone();
    changed.size = changed.size.max(report.size);
    changed.mtime = if report.mtime == 0 { now } else { report.mtime };
    touch(&mut changed, now);
    if !handle.privileged {
        clear_privileges(&mut changed);
    }
    Ok(Some(changed))
}
