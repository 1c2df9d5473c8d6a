//! What a transaction does to the records of this subtree, once it is decided.

use std::sync::Arc;

use bytes::Bytes;
use pando_proto::Ino;
use pando_proto::mds::{FileKind, LinkChange, NameComes, NameGoes, TransactionRecord};

use super::{Holders, all_comes, all_goes, hands_on};
use crate::handles::{Handle, HandleChange};
use crate::inode::{Dentry, decode_inode, is_dir, is_primary, modified, touch};
use crate::ops::remove::{drop_directory, drop_link};
use crate::stop::{Step, corrupt};
use crate::view::View;

/// All of it happens.
pub(super) fn happen(view: &mut View<'_>, record: &TransactionRecord, holders: &Holders) -> Step<()> {
    for goes in all_goes(record) {
        go(view, goes)?;
    }
    for change in &record.links {
        relink(view, change)?;
    }
    for comes in all_comes(record) {
        come(view, comes, holders)?;
    }
    Ok(())
}

pub(super) fn rename_root(view: &mut View<'_>, dir: Ino, name: &Bytes) -> Step<()> {
    let root = view.root();
    let inode = view.inode(root)?;
    if inode.parent == dir.0 && inode.name == *name {
        return Ok(());
    }
    let mut renamed = (*inode).clone();
    touch(&mut renamed, view.now());
    renamed.parent = dir.0;
    renamed.name = Bytes::copy_from_slice(name);
    view.put_inode(root, Arc::new(renamed));
    Ok(())
}

/// A name goes, or only its inode.
fn go(view: &mut View<'_>, goes: &NameGoes) -> Step<()> {
    let (dir, ino, now) = (Ino(goes.dir), Ino(goes.ino), view.now());
    if !goes.stays {
        let mut inode = (*view.child(dir)?).clone();
        view.put_name(dir, &goes.name, None);
        inode.entries = inode.entries.saturating_sub(1);
        inode.nlink = inode.nlink.saturating_sub(u32::from(goes.kind == FileKind::Directory as i32));
        modified(&mut inode, now);
        view.put_inode(dir, Arc::new(inode));
    }
    if hands_on(goes) {
        // Whoever reads it from the pool finds whose it is. It is given away when it stands there.
        let mut inode = (*view.child(ino)?).clone();
        touch(&mut inode, now);
        inode.parent = goes.to_dir;
        inode.name = Bytes::copy_from_slice(&goes.to_name);
        view.put_inode(ino, Arc::new(inode));
    } else if goes.gives {
        view.give(ino);
    }
    Ok(())
}

/// Names of an inode of this subtree change.
fn relink(view: &mut View<'_>, change: &LinkChange) -> Step<()> {
    let ino = Ino(change.ino);
    let mut inode = (*view.child(ino)?).clone();
    touch(&mut inode, if change.ctime != 0 { change.ctime } else { view.now() });
    let (gone_dir, come_dir) = (Ino(change.gone_dir), Ino(change.come_dir));
    let (goes, comes) = (change.gone_dir != 0, change.come_dir != 0);
    if goes && comes && (is_dir(&inode) || is_primary(&inode, gone_dir, &change.gone_name)) {
        inode.parent = come_dir.0;
        inode.name = Bytes::copy_from_slice(&change.come_name);
    } else {
        inode.nlink = (inode.nlink + u32::from(comes)).saturating_sub(u32::from(goes));
        if goes {
            view.put_link(ino, gone_dir, &change.gone_name, false);
        }
        if comes {
            view.put_link(ino, come_dir, &change.come_name, true);
        }
    }
    view.put_inode(ino, Arc::new(inode));
    Ok(())
}

/// A name comes, in the place of what has it.
fn come(view: &mut View<'_>, comes: &NameComes, holders: &Holders) -> Step<()> {
    let (ino, dir, now) = (Ino(comes.ino), Ino(comes.dir), view.now());
    let kind = FileKind::try_from(comes.kind).unwrap_or(FileKind::Unspecified);
    if kind == FileKind::Unspecified || !ino.is_valid() {
        return Err(corrupt("name", ino).into());
    }
    if comes.adopts {
        return adopt(view, comes, holders);
    }
    let dir_inode = view.child(dir)?;
    let found = view.lookup(dir, &dir_inode, &comes.name)?;
    if let Some(other) = found.filter(|_| !comes.leaves) {
        let victim = view.child(other.ino)?;
        match is_dir(&victim) {
            true => drop_directory(view, other.ino, &victim)?,
            false => drop_link(view, dir, &comes.name, other.ino, &victim)?,
        }
    }
    view.put_name(dir, &comes.name, Some(Dentry { ino, kind, remote: false }));
    if !comes.inode.is_empty() {
        let mut inode = decode_inode(ino, &comes.inode)?;
        touch(&mut inode, now);
        inode.parent = dir.0;
        inode.name = Bytes::copy_from_slice(&comes.name);
        view.put_inode(ino, Arc::new(inode));
        receive(view, ino, holders);
    }
    // As it is staged: the name may have gone from this very directory.
    let mut inode = (*view.child(dir)?).clone();
    let links = u32::from(kind == FileKind::Directory);
    inode.entries += u64::from(found.is_none());
    inode.nlink = (inode.nlink + links).saturating_sub(if found.is_some() { links } else { 0 });
    modified(&mut inode, now);
    view.put_inode(dir, Arc::new(inode));
    Ok(())
}

/// The inode comes to a name that is here: that is its primary one from now on.
fn adopt(view: &mut View<'_>, comes: &NameComes, holders: &Holders) -> Step<()> {
    let (ino, dir) = (Ino(comes.ino), Ino(comes.dir));
    let mut inode = decode_inode(ino, &comes.inode)?;
    view.put_link(ino, Ino(inode.parent), &inode.name, true);
    view.put_link(ino, dir, &comes.name, false);
    inode.parent = dir.0;
    inode.name = Bytes::copy_from_slice(&comes.name);
    view.put_inode(ino, Arc::new(inode));
    receive(view, ino, holders);
    Ok(())
}

/// The handles come with the inode.
fn receive(view: &mut View<'_>, ino: Ino, holders: &Holders) {
    for one in &holders.handles {
        if view.ns.handles.get(one.client, one.handle).is_none() {
            let handle = Handle { ino, flags: one.flags, granted: one.granted, privileged: one.privileged };
            view.change_handle(HandleChange::Open(one.client, one.handle, handle));
        }
    }
    if let (false, (end, true)) = (holders.handles.is_empty(), holders.append) {
        view.change_handle(HandleChange::Append(ino, end));
    }
}
