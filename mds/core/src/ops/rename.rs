//! rename(2), renameat2(2).

use std::sync::Arc;

use bytes::Bytes;
use pando_proto::mds::{FileKind, RenameMode, RenameRequest, RenameResponse};
use pando_proto::{Errno, Ino};

use super::across::{self, Move, Stand, look, stand};
use crate::data::check_idle;
use crate::inode::{Dentry, Inode, is_primary, modified, touch};
use crate::permission::{EXECUTE, WRITE, Who};
use crate::resolve::{Entry, Pair, entry, pair};
use crate::stop::{Step, corrupt, invalid};
use crate::transaction;
use crate::view::{MAX_DEPTH, View};

pub(crate) fn run(view: &mut View<'_>, request: &RenameRequest) -> Step<RenameResponse> {
    let mode = RenameMode::try_from(request.mode).map_err(|_| invalid("mode is a RenameMode"))?;
    let who = Who::new(request.caller.as_ref());
    let targets = [request.from.as_ref(), request.to.as_ref()];
    let (from, to) = match pair(view, targets, |view, at| entry(view, who, targets[at], |_| Errno::EBUSY))? {
        Pair::Here(from, to) => (from, to),
        Pair::Apart(from, crossing) => return across::rename(view, request, mode, &from, &crossing),
    };
    let source = from.found.ok_or(Errno::ENOENT)?;
    if to.found.is_some() && mode == RenameMode::NoReplace {
        return Err(Errno::EEXIST.into());
    }
    if to.dir_inode.dead {
        return Err(Errno::ENOENT.into());
    }
    let slash = |entry: &Entry, dentry: Dentry| entry.slash && dentry.kind != FileKind::Directory;
    let target = if mode == RenameMode::Exchange { to.found.ok_or(Errno::ENOENT)? } else { source };
    if slash(&from, source) || slash(&to, target) {
        return Err(Errno::ENOTDIR.into());
    }
    let moved = look(view, source)?;
    who.check_delete(&from.dir_inode, &moved)?;
    who.check(&to.dir_inode, WRITE | EXECUTE)?;
    check_move(view, who, source, &moved, from.dir, to.dir)?;
    match (mode, to.found) {
        (RenameMode::Exchange, Some(other)) => exchange(view, request, &from, &to, &moved, other)?,
        (_, other) => replace(view, request, &from, &to, &moved, other)?,
    }
    Ok(RenameResponse {})
}

/// A directory does not move below itself (EINVAL), and one that changes its `..` must be writable.
fn check_move(view: &mut View<'_>, who: Who<'_>, dentry: Dentry, inode: &Inode, from: Ino, to: Ino) -> Step<()> {
    if dentry.kind != FileKind::Directory || from == to {
        return Ok(());
    }
    who.check(inode, WRITE)?;
    let (root, mut above) = (view.root(), to);
    for _ in 0..MAX_DEPTH {
        if above == dentry.ino {
            return Err(Errno::EINVAL.into());
        }
        if above == root {
            return Ok(());
        }
        above = Ino(view.inode(above)?.parent);
    }
    Err(corrupt("cycle among the parents", to).into())
}

fn replace(
    view: &mut View<'_>,
    request: &RenameRequest,
    from: &Entry,
    to: &Entry,
    moved: &Arc<Inode>,
    other: Option<Dentry>,
) -> Step<()> {
    let Some(source) = from.found else { return Ok(()) };
    // Two names of one file: nothing happens (POSIX rename()).
    if other.is_some_and(|other| other.ino == source.ino) {
        return Ok(());
    }
    let (who, directory) = (Who::new(request.caller.as_ref()), source.kind == FileKind::Directory);
    let wanted = match other {
        Some(other) => transaction::replace(view, who, directory, to, other)?,
        None => None,
    };
    let stand = stand(view, from.dir, &from.name, source, moved)?;
    if wanted.is_some() || stand.is_elsewhere() {
        if let (Some(other), None) = (other, &wanted) {
            check_idle(view, other.ino)?;
        }
        // What was staged is not done here.
        return Err(across::within(view, request, &[Move { dentry: source, stand, from, to }], other, wanted));
    }
    view.raise_routes(&[(source.ino, moved)])?;
    view.put_name(from.dir, &from.name, None);
    view.put_name(to.dir, &to.name, Some(source));
    rebind(view, source.ino, moved, from, to)?;
    let links = u32::from(directory);
    let now = view.now();
    edit(view, from.dir, |dir| {
        dir.entries = dir.entries.saturating_sub(1);
        dir.nlink = dir.nlink.saturating_sub(links);
        modified(dir, now);
    })?;
    let new = u64::from(other.is_none());
    let replaced_dir = u32::from(other.is_some() && directory);
    edit(view, to.dir, |dir| {
        dir.entries += new;
        dir.nlink = (dir.nlink + links).saturating_sub(replaced_dir);
        modified(dir, now);
    })
}

fn exchange(
    view: &mut View<'_>,
    request: &RenameRequest,
    from: &Entry,
    to: &Entry,
    moved: &Arc<Inode>,
    other: Dentry,
) -> Step<()> {
    let Some(source) = from.found else { return Ok(()) };
    let who = Who::new(request.caller.as_ref());
    let swapped = look(view, other)?;
    who.check_delete(&to.dir_inode, &swapped)?;
    check_move(view, who, other, &swapped, to.dir, from.dir)?;
    if source.ino == other.ino {
        return Ok(());
    }
    let there = Move { dentry: source, stand: stand(view, from.dir, &from.name, source, moved)?, from, to };
    let back = Move { dentry: other, stand: stand(view, to.dir, &to.name, other, &swapped)?, from: to, to: from };
    let plain = |stand: Stand| stand == Stand::Plain;
    if plain(there.stand) {
        view.raise_routes(&[(source.ino, moved)])?;
    }
    if plain(back.stand) {
        view.raise_routes(&[(other.ino, &swapped)])?;
    }
    if there.stand.is_elsewhere() || back.stand.is_elsewhere() {
        return Err(across::within(view, request, &[there, back], None, None));
    }
    view.put_name(from.dir, &from.name, Some(other));
    view.put_name(to.dir, &to.name, Some(source));
    rebind(view, source.ino, moved, from, to)?;
    rebind(view, other.ino, &swapped, to, from)?;
    let link = |dentry: Dentry| u32::from(dentry.kind == FileKind::Directory);
    let (gone, come, now) = (link(source), link(other), view.now());
    edit(view, from.dir, |dir| {
        dir.nlink = (dir.nlink + come).saturating_sub(gone);
        modified(dir, now);
    })?;
    edit(view, to.dir, |dir| {
        dir.nlink = (dir.nlink + gone).saturating_sub(come);
        modified(dir, now);
    })
}

/// The name in the inode, or its back link, follows.
fn rebind(view: &mut View<'_>, ino: Ino, inode: &Inode, from: &Entry, to: &Entry) -> Step<()> {
    let mut bound = inode.clone();
    touch(&mut bound, view.now());
    if is_primary(inode, from.dir, &from.name) {
        bound.parent = to.dir.0;
        bound.name = Bytes::copy_from_slice(&to.name);
    } else {
        view.put_link(ino, from.dir, &from.name, false);
        view.put_link(ino, to.dir, &to.name, true);
    }
    view.put_inode(ino, Arc::new(bound));
    Ok(())
}

/// Changes an inode as it is staged, or in memory.
fn edit(view: &mut View<'_>, ino: Ino, change: impl FnOnce(&mut Inode)) -> Step<()> {
    let mut inode = view.inode(ino)?;
    change(Arc::make_mut(&mut inode));
    view.put_inode(ino, inode);
    Ok(())
}
