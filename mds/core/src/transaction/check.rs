//! Whether what another subtree wants can happen here, in the order of the checks of one tree.

use bytes::Bytes;
use pando_proto::mds::{FileKind, LinkChange, NameComes, NameGoes, Target};
use pando_proto::{Errno, Error, Ino};

use super::{Checked, Coming, Directory, How, Ready, Wanted};
use crate::data::check_idle;
use crate::inode::{Dentry, is_dir, is_primary};
use crate::ops::across::{Stand, gift, look, stand, unsettled};
use crate::ops::remove::{drop_directory, drop_link};
use crate::permission::{EXECUTE, WRITE, Who};
use crate::resolve::{Entry, entry};
use crate::stop::{Step, Stop, corrupt};
use crate::view::View;

/// `None`: it is so already.
pub(super) fn check(view: &mut View<'_>, coming: &Coming) -> Step<Option<Ready>> {
    let mut ready = Ready::default();
    if let Some(comes) = &coming.comes {
        let there = match coming.how {
            How::Adopt => {
                ready.comes = Some(comes.clone());
                check_adopted(view, comes)?
            }
            _ => check_name(view, coming, comes, &mut ready)?,
        };
        if !there {
            return Ok(None);
        }
    }
    for change in &coming.links {
        check_links(view, change)?;
    }
    ready.links.extend(coming.links.iter().cloned());
    Ok(Some(ready))
}

fn refuse(coming: &Coming, after: Checked) -> Step<()> {
    match coming.refusal {
        // Without a path: it is about the name at the other side, which the asker knows.
        Some(refusal) if refusal.after == after => Err(Error::posix(refusal.errno).into()),
        _ => Ok(()),
    }
}

fn target_of(comes: &NameComes, slash: bool) -> Target {
    let path = if slash { [&comes.name[..], b"/"].concat().into() } else { comes.name.clone() };
    Target { base: comes.dir, path }
}

/// False: nothing is to be done.
fn check_name(view: &mut View<'_>, coming: &Coming, comes: &NameComes, ready: &mut Ready) -> Step<bool> {
    let (who, how) = (Who::new(coming.caller.as_ref()), coming.how);
    let target = target_of(comes, coming.slash);
    let entry = entry(view, who, Some(&target), |_| Errno::EBUSY)?;
    refuse(coming, Checked::Way)?;
    if entry.found.is_some() && matches!(how, How::NoReplace | How::Link) {
        return Err(Errno::EEXIST.into());
    }
    let missing = how == How::Exchange && entry.found.is_none();
    if entry.dir_inode.dead || missing || how == How::Link && entry.slash {
        return Err(Errno::ENOENT.into());
    }
    refuse(coming, Checked::Name)?;
    let kind = FileKind::try_from(comes.kind).unwrap_or(FileKind::Unspecified);
    let last = if how == How::Exchange { entry.found.map(|found| found.kind) } else { Some(kind) };
    if entry.slash && last != Some(FileKind::Directory) {
        return Err(Errno::ENOTDIR.into());
    }
    refuse(coming, Checked::Slash)?;
    who.check(&entry.dir_inode, WRITE | EXECUTE)?;
    refuse(coming, Checked::Permission)?;
    ready.comes = Some(NameComes { replaces: 0, leaves: false, ..comes.clone() });
    let Some(other) = entry.found else { return Ok(true) };
    if how == How::Exchange {
        return check_exchange(view, who, coming, &entry, other, ready);
    }
    if other.ino.0 == comes.ino {
        return Ok(false);
    }
    let wanted = replace(view, who, kind == FileKind::Directory, &entry, other)?;
    let leaves = wanted.is_some();
    if !leaves {
        check_idle(view, other.ino)?;
    }
    ready.wanted.extend(wanted);
    ready.comes = Some(NameComes { replaces: other.ino.0, leaves, ..comes.clone() });
    Ok(true)
}

/// What is to be replaced may be. Stages what that does here, for whoever wants it; what its home has to do if that is
/// another subtree.
pub(crate) fn replace(
    view: &mut View<'_>,
    who: Who<'_>,
    directory: bool,
    entry: &Entry,
    other: Dentry,
) -> Step<Option<Wanted>> {
    let victim = look(view, other)?;
    who.check_delete(&entry.dir_inode, &victim)?;
    match (directory, is_dir(&victim)) {
        (true, false) => Err(Errno::ENOTDIR.into()),
        (false, true) => Err(Errno::EISDIR.into()),
        (true, true) => match view.foreign_root(other.ino) {
            Some(subtree) => Err(Stop::NeedMerge(subtree)),
            None => drop_directory(view, other.ino, &victim).map(|()| None),
        },
        (false, false) => {
            if let Stand::Remote(subtree) = stand(view, entry.dir, &entry.name, other, &victim)? {
                let gone = (entry.dir, &entry.name);
                return Ok(Some(Wanted { subtree, change: change(other.ino, Some(gone), None) }));
            }
            drop_link(view, entry.dir, &entry.name, other.ino, &victim).map(|()| None)
        }
    }
}

/// A change of the names of an inode.
pub(crate) fn change(ino: Ino, gone: Option<(Ino, &Bytes)>, come: Option<(Ino, &Bytes)>) -> LinkChange {
    let split = |name: Option<(Ino, &Bytes)>| {
        name.map_or((0, Bytes::new()), |(dir, name)| (dir.0, Bytes::copy_from_slice(name)))
    };
    let ((gone_dir, gone_name), (come_dir, come_name)) = (split(gone), split(come));
    LinkChange { ino: ino.0, gone_dir, gone_name, come_dir, come_name, ctime: 0 }
}

/// What is here goes to where the other comes from.
fn check_exchange(
    view: &mut View<'_>,
    who: Who<'_>,
    coming: &Coming,
    entry: &Entry,
    other: Dentry,
    ready: &mut Ready,
) -> Step<bool> {
    let swapped = look(view, other)?;
    who.check_delete(&entry.dir_inode, &swapped)?;
    if is_dir(&swapped) {
        // Its `..` changes.
        who.check(&swapped, WRITE)?;
    }
    if coming.comes.as_ref().is_some_and(|comes| comes.ino == other.ino.0) {
        return Ok(false);
    }
    let (to_dir, to_name) = (coming.from.0, &coming.from.1);
    let mut goes = NameGoes {
        dir: entry.dir.0,
        name: entry.name.clone(),
        ino: other.ino.0,
        kind: other.kind as i32,
        ..NameGoes::default()
    };
    let moved = change(other.ino, Some((entry.dir, &entry.name)), Some((to_dir, to_name)));
    match stand(view, entry.dir, &entry.name, other, &swapped)? {
        Stand::Root(subtree) => ready.directory = Directory::Root(subtree),
        Stand::Plain => ready.directory = Directory::Plain(other.ino),
        Stand::Primary => {
            (ready.inode, ready.unsettled) = gift(view, other.ino, &swapped)?;
            (goes.gives, goes.to_dir, goes.to_name) = (true, to_dir.0, to_name.clone());
        }
        Stand::Link => {
            ready.unsettled = unsettled(view, other.ino);
            ready.links.push(moved);
        }
        Stand::Remote(subtree) => ready.wanted.push(Wanted { subtree, change: moved }),
    }
    ready.goes = Some(goes);
    Ok(true)
}

/// The name is here, and stands for it.
fn check_adopted(view: &mut View<'_>, comes: &NameComes) -> Step<bool> {
    let entry = entry(view, Who::new(None), Some(&target_of(comes, false)), |_| Errno::EBUSY)?;
    if entry.found.is_none_or(|found| found.ino.0 != comes.ino) {
        // It was renamed or removed meanwhile; that is to be seen from the inode.
        return Err(Stop::Wait(Ino(comes.ino)));
    }
    Ok(true)
}

/// Names of an inode change, which is at home here.
fn check_links(view: &mut View<'_>, change: &LinkChange) -> Step<()> {
    let ino = Ino(change.ino);
    match view.owner(ino) {
        Ok(None) => {}
        Ok(Some(subtree)) => return Err(view.cross_to_inode(subtree, ino)),
        Err(Stop::Posix(_)) => return Err(Stop::Wait(ino)),
        Err(stop) => return Err(stop),
    }
    let Some(inode) = view.try_inode(ino)? else { return Err(Stop::Wait(ino)) };
    let primary = is_primary(&inode, Ino(change.gone_dir), &change.gone_name);
    if inode.dead || inode.nlink == 0 || primary {
        // The other subtree saw what was before.
        return Err(Stop::Wait(ino));
    }
    if is_dir(&inode) || change.come_dir == 0 && inode.nlink < 2 {
        return Err(corrupt("link count", ino).into());
    }
    Ok(())
}
