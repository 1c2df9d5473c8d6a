//! close(2), and the end of inodes without a name.

use std::sync::Arc;

use pando_proto::Ino;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::{CloseRequest, CloseResponse};

use super::remove::erase;
use super::size::reported;
use crate::api::Outcome;
use crate::handles::HandleChange;
use crate::stop::Step;
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &CloseRequest) -> Step<CloseResponse> {
    let handle = view.handle(request.handle, request.ino)?;
    // R18: what goes to another subtree goes with the handles that it had then.
    view.check_stays(handle.ino)?;
    if view.ns.handles.is_last_of_orphan(handle) {
        match view.try_inode(handle.ino)? {
            Some(_) if view.ns.grace => view.defer_reap(handle.ino),
            Some(inode) => erase(view, handle.ino, &inode, true)?,
            None => {}
        }
    } else if let Some(report) = &request.report {
        let inode = view.inode(handle.ino)?;
        if let Some(inode) = reported(view, handle, &inode, report)? {
            view.put_inode(handle.ino, Arc::new(inode));
        }
    }
    view.change_handle(HandleChange::Close(view.ctx.client, request.handle));
    Ok(CloseResponse {})
}

/// Removes a nameless inode that nobody has open (R19).
pub(crate) fn reap(mut view: View<'_>, ino: Ino) -> Outcome {
    let step = reap_step(&mut view, ino).map(|()| Reply::Close(CloseResponse {}));
    super::outcome(view, step, None)
}

fn reap_step(view: &mut View<'_>, ino: Ino) -> Step<()> {
    if view.ns.handles.is_open(ino) {
        return Ok(());
    }
    match view.try_inode(ino)? {
        Some(inode) if inode.nlink > 0 => Ok(()),
        // I7: somebody may have it open there.
        Some(inode) if view.other_reaper(&inode).is_some() => Ok(()),
        Some(_) if view.ns.grace => {
            view.defer_reap(ino);
            Ok(())
        }
        Some(inode) => erase(view, ino, &inode, true),
        None => {
            view.put_record(crate::records::Key::Orphan(ino), None);
            Ok(())
        }
    }
}
