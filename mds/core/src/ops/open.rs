//! open(2).

use std::sync::Arc;

use bytes::Bytes;
use pando_proto::mds::{FileKind, OpenRequest, OpenResponse};
use pando_proto::{ClientId, Errno, Ino};

use super::create::make;
use super::flag;
use crate::data::{check_readable, check_writable, clear_privileges, set_size, to_objects};
use crate::handles::{HANDLE_BYTES, Handle, HandleChange};
use crate::inode::{Inode, attr, in_objects, is_dir, is_file, modified, placement, touch};
use crate::permission::{READ, WRITE, Who};
use crate::resolve::{Entry, Spot, own_child, walk};
use crate::stop::{Step, Stop, invalid};
use crate::view::View;

/// All handles together may take this part of the budget (I8).
const HANDLE_SHARE: u64 = 4;

pub(crate) fn run(view: &mut View<'_>, request: &OpenRequest) -> Step<OpenResponse> {
    check_request(view, request)?;
    let who = Who::new(request.caller.as_ref());
    let flags = request.flags;
    let exclusive = flags & (flag::CREATE | flag::EXCLUSIVE) == flag::CREATE | flag::EXCLUSIVE;
    let follow = flags & flag::NO_FOLLOW == 0 && !exclusive;
    let spot = walk(view, who, request.target.as_ref(), follow)?;
    let (ino, inode, slash) = match spot {
        Spot::Entry(Entry { found: None, slash, .. }) if flags & flag::CREATE != 0 && slash => {
            return Err(Errno::EISDIR.into());
        }
        Spot::Entry(entry @ Entry { found: None, .. }) if flags & flag::CREATE != 0 => {
            return create(view, who, &entry, request);
        }
        Spot::Entry(Entry { found: None, .. }) => return Err(Errno::ENOENT.into()),
        _ if exclusive => return Err(Errno::EEXIST.into()),
        Spot::Entry(Entry { found: Some(dentry), slash, dir, name, .. }) => {
            (dentry.ino, own_child(view, dir, &name, dentry)?, slash)
        }
        Spot::Inode(ino, _) => (ino, view.inode(ino)?, false),
    };
    open_existing(view, who, request, ino, inode, slash)
}

fn check_request(view: &View<'_>, request: &OpenRequest) -> Step<()> {
    let flags = request.flags;
    if flags & (flag::READ | flag::WRITE) == 0 || flags & !flag::ALL != 0 {
        return Err(invalid("flags are a sum of OpenFlag with READ, WRITE or both"));
    }
    if flags & flag::TRUNCATE != 0 && flags & flag::WRITE == 0 {
        return Err(invalid("TRUNCATE goes with WRITE"));
    }
    if flags & flag::CREATE != 0 && flags & flag::DIRECTORY != 0 {
        return Err(Errno::EINVAL.into());
    }
    let client = view.ctx.client;
    if client == ClientId(0) || request.handle == 0 {
        return Err(invalid("open needs a session and a handle number; without one use ReadFile and WriteFile"));
    }
    if view.ns.handles.get(client, request.handle).is_some() {
        return Err(invalid("the handle number is in use in this session"));
    }
    check_room(view, 1)
}

/// There is room for `more` handles of the session.
pub(super) fn check_room(view: &View<'_>, more: usize) -> Step<()> {
    let (handles, config) = (&view.ns.handles, &view.ns.config);
    let bytes = handles.bytes().saturating_add(more.saturating_mul(HANDLE_BYTES)) as u64;
    let full = bytes > config.budget_bytes / HANDLE_SHARE;
    if full || handles.of_session(view.ctx.client).saturating_add(more) > config.max_handles_per_session {
        return Err(Errno::EMFILE.into());
    }
    Ok(())
}

fn create(view: &mut View<'_>, who: Who<'_>, entry: &Entry, request: &OpenRequest) -> Step<OpenResponse> {
    let (ino, mut inode) = make(view, who, entry, FileKind::File, request.mode)?;
    if request.size_hint > view.ns.config.inline_limit {
        to_objects(view, &mut inode);
    }
    let inode = Arc::new(inode);
    view.put_inode(ino, Arc::clone(&inode));
    let body = (request.want_body && request.flags & flag::READ != 0 && !in_objects(&inode)).then(Bytes::new);
    Ok(opened(view, who, request, ino, &inode, body, true))
}

fn open_existing(
    view: &mut View<'_>,
    who: Who<'_>,
    request: &OpenRequest,
    ino: Ino,
    mut inode: Arc<Inode>,
    slash: bool,
) -> Step<OpenResponse> {
    let flags = request.flags;
    if is_dir(&inode) {
        if flags & (flag::WRITE | flag::CREATE | flag::TRUNCATE) != 0 {
            return Err(Errno::EISDIR.into());
        }
    } else if slash || flags & flag::DIRECTORY != 0 {
        return Err(Errno::ENOTDIR.into());
    } else if !is_file(&inode) {
        // O_NOFOLLOW met a symlink.
        return Err(Errno::ELOOP.into());
    }
    let read = if flags & flag::READ != 0 { READ } else { 0 };
    let write = if flags & flag::WRITE != 0 { WRITE } else { 0 };
    who.check(&inode, read | write)?;
    if let Some(changed) = truncate_or_move(view, who, request, ino, &inode)? {
        inode = Arc::new(changed);
        view.put_inode(ino, Arc::clone(&inode));
    }
    let body = if request.want_body && read != 0 && is_file(&inode) && !in_objects(&inode) {
        check_readable(view, ino)?;
        Some(view.body(ino, &inode)?)
    } else {
        None
    };
    Ok(opened(view, who, request, ino, &inode, body, false))
}

/// O_TRUNC, and the move of an empty file to objects when much is to be written.
fn truncate_or_move(
    view: &mut View<'_>,
    who: Who<'_>,
    request: &OpenRequest,
    ino: Ino,
    inode: &Inode,
) -> Result<Option<Inode>, Stop> {
    let truncate = request.flags & flag::TRUNCATE != 0;
    let large = request.flags & flag::WRITE != 0 && request.size_hint > view.ns.config.inline_limit;
    let empties = truncate || inode.size == 0;
    if !(truncate || large && empties && is_file(inode) && !in_objects(inode)) {
        return Ok(None);
    }
    let (mut changed, now) = (inode.clone(), view.now());
    if truncate {
        set_size(view, ino, &mut changed, 0)?;
        modified(&mut changed, now);
        if !who.is_root() {
            clear_privileges(&mut changed);
        }
    }
    if large && !in_objects(&changed) {
        check_writable(view, ino)?;
        to_objects(view, &mut changed);
        if !truncate {
            touch(&mut changed, now);
        }
    }
    Ok(Some(changed))
}

fn opened(
    view: &mut View<'_>,
    who: Who<'_>,
    request: &OpenRequest,
    ino: Ino,
    inode: &Inode,
    body: Option<Bytes>,
    created: bool,
) -> OpenResponse {
    let handle = Handle { ino, flags: request.flags, granted: false, privileged: who.is_root() };
    view.change_handle(HandleChange::Open(view.ctx.client, request.handle, handle));
    if inode.dead {
        view.change_handle(HandleChange::Orphan(ino));
    }
    OpenResponse { attr: Some(attr(ino, inode)), placement: placement(inode), body, created }
}
