//! Re-registers handles after a restart of the rank (R19).

use std::collections::BTreeSet;

use pando_proto::mds::{HandleElsewhere, ReclaimRequest, ReclaimResponse, ReclaimedHandle};
use pando_proto::{ClientId, Errno, Ino, SubtreeId};

use super::flag;
use super::open::check_room;
use crate::handles::{Handle, HandleChange};
use crate::inode::{is_file, is_symlink};
use crate::stop::{Step, Stop, invalid};
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &ReclaimRequest) -> Step<ReclaimResponse> {
    let client = view.ctx.client;
    if client == ClientId(0) {
        return Err(invalid("reclaim needs a session"));
    }
    // Those that are known here are only asked for.
    let unknown = |one: &&ReclaimedHandle| view.ns.handles.get(client, one.handle).is_none();
    let unknown = request.handles.iter().filter(unknown).count();
    if unknown > 0 {
        check_room(view, unknown)?;
    }
    let (mut lost, mut elsewhere, mut missing) = (Vec::new(), Vec::new(), false);
    let mut named = BTreeSet::new();
    for reclaimed in &request.handles {
        if !named.insert(reclaimed.handle) {
            // What it is the first one says. The table does not know that one yet.
            lost.push(reclaimed.handle);
            continue;
        }
        match reclaim(view, client, reclaimed) {
            Ok(Found::Here) => {}
            Ok(Found::Lost) => lost.push(reclaimed.handle),
            Ok(Found::Elsewhere(subtree)) => {
                elsewhere.push(HandleElsewhere { handle: reclaimed.handle, subtree: subtree.0 });
            }
            Err(Stop::Missing) => missing = true,
            Err(stop) => return Err(stop),
        }
    }
    if missing { Err(Stop::Missing) } else { Ok(ReclaimResponse { lost, elsewhere }) }
}

enum Found {
    Here,
    /// The inode is gone, or the handle makes no sense.
    Lost,
    Elsewhere(SubtreeId),
}

fn reclaim(view: &mut View<'_>, client: ClientId, reclaimed: &ReclaimedHandle) -> Step<Found> {
    let ino = Ino(reclaimed.ino);
    let sound = ino.is_valid() && reclaimed.handle != 0 && reclaimed.flags & !flag::ALL == 0;
    if !sound || reclaimed.flags & (flag::READ | flag::WRITE) == 0 {
        return Ok(Found::Lost);
    }
    // Where it is going the handle may have to be named, if that side was opened anew meanwhile.
    view.check_stays(ino)?;
    if let Some(handle) = view.ns.handles.get(client, reclaimed.handle) {
        return Ok(if handle.ino == ino { Found::Here } else { Found::Lost });
    }
    match view.owner(ino) {
        Ok(None) => {}
        Ok(Some(subtree)) => return Ok(Found::Elsewhere(subtree)),
        Err(Stop::Posix(Errno::ESTALE)) => return Ok(Found::Lost),
        Err(stop) => return Err(stop),
    }
    let Some(inode) = view.try_inode(ino)? else { return Ok(Found::Lost) };
    // Nobody opens a symlink, nor a directory to write it.
    if is_symlink(&inode) || reclaimed.flags & flag::WRITE != 0 && !is_file(&inode) {
        return Ok(Found::Lost);
    }
    // What it was granted before the restart is not known: it may still have a size to report.
    let granted = reclaimed.flags & flag::WRITE != 0;
    let handle = Handle { ino, flags: reclaimed.flags, granted, privileged: false };
    view.change_handle(HandleChange::Open(client, reclaimed.handle, handle));
    if inode.dead {
        view.change_handle(HandleChange::Orphan(ino));
    }
    Ok(Found::Here)
}
