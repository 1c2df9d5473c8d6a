//! rename(2), renameat2(2).

use std::sync::Arc;

use bytes::Bytes;
use pando_proto::mds::{FileKind, RenameMode, RenameRequest, RenameResponse};
use pando_proto::{Errno, Ino};

use super::across;
use super::remove::{drop_directory, drop_link};
use crate::inode::{Dentry, Inode, is_dir, is_primary, modified, touch};
use crate::permission::{EXECUTE, WRITE, Who};
use crate::resolve::{Entry, Pair, entry, home_elsewhere, pair};
use crate::stop::{Step, corrupt, invalid};
use crate::view::{MAX_DEPTH, View};

pub(crate) fn run(view: &mut View<'_>, request: &RenameRequest) -> Step<RenameResponse> {
    let mode = RenameMode::try_from(request.mode).map_err(|_| invalid("mode is a RenameMode"))?;
    let who = Who::new(request.caller.as_ref());
    let targets = [request.from.as_ref(), request.to.as_ref()];
    let (from, to) = match pair(view, targets, |view, at| entry(view, who, targets[at], |_| Errno::EBUSY))? {
        Pair::Here(from, to) => (from, to),
        Pair::Apart(from, crossing) => return across::to_another(view, who, mode, &from, &crossing),
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
    if view.foreign_root(source.ino).is_some() {
        return across::of_a_root(view, who, mode, &from, &to);
    }
    check_victim(view, who, mode, &from, &to)?;
    let moved = view.child(source.ino)?;
    who.check_delete(&from.dir_inode, &moved)?;
    who.check(&to.dir_inode, WRITE | EXECUTE)?;
    check_move(view, who, source, &moved, from.dir, to.dir)?;
    check_home(view, &from, source, &moved)?;
    match (mode, to.found) {
        (RenameMode::Exchange, Some(other)) => exchange(view, who, &from, &to, &moved, other)?,
        (_, other) => replace(view, who, &from, &to, &moved, other)?,
    }
    Ok(RenameResponse {})
}

/// The root of another subtree is neither replaced nor exchanged.
fn check_victim(view: &View<'_>, who: Who<'_>, mode: RenameMode, from: &Entry, to: &Entry) -> Step<()> {
    let Some(subtree) = to.found.and_then(|dentry| view.foreign_root(dentry.ino)) else { return Ok(()) };
    who.check(&from.dir_inode, WRITE | EXECUTE)?;
    who.check(&to.dir_inode, WRITE | EXECUTE)?;
    if mode == RenameMode::Exchange {
        return Err(view.between_subtrees());
    }
    let directory = from.found.is_some_and(|dentry| dentry.kind == FileKind::Directory);
    Err(if directory { view.root_stays(subtree) } else { Errno::EISDIR.into() })
}

/// A file with more names may be at home in another subtree, which keeps its links (R15).
fn check_home(view: &mut View<'_>, entry: &Entry, dentry: Dentry, inode: &Inode) -> Step<()> {
    match home_elsewhere(view, entry.dir, &entry.name, dentry.ino, inode)? {
        None => Ok(()),
        Some(_) => Err(view.between_subtrees()),
    }
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
    who: Who<'_>,
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
    let directory = source.kind == FileKind::Directory;
    if let Some(other) = other {
        let victim = view.child(other.ino)?;
        who.check_delete(&to.dir_inode, &victim)?;
        match (directory, is_dir(&victim)) {
            (true, false) => return Err(Errno::ENOTDIR.into()),
            (false, true) => return Err(Errno::EISDIR.into()),
            (true, true) => drop_directory(view, other.ino, &victim)?,
            (false, false) => {
                check_home(view, to, other, &victim)?;
                drop_link(view, to.dir, &to.name, other.ino, &victim)?;
            }
        }
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
    who: Who<'_>,
    from: &Entry,
    to: &Entry,
    moved: &Arc<Inode>,
    other: Dentry,
) -> Step<()> {
    let Some(source) = from.found else { return Ok(()) };
    let swapped = view.child(other.ino)?;
    who.check_delete(&to.dir_inode, &swapped)?;
    check_move(view, who, other, &swapped, to.dir, from.dir)?;
    if source.ino == other.ino {
        return Ok(());
    }
    check_home(view, to, other, &swapped)?;
    view.raise_routes(&[(source.ino, moved), (other.ino, &swapped)])?;
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
