//! rename(2) from one subtree to another, or of the root of one: what can be said here of it (R17, R18).

use bytes::Bytes;
use pando_proto::mds::{FileKind, NameComes, NameGoes, RenameMode, RenameResponse};
use pando_proto::{Errno, Error, Ino, Reason};
use smallvec::SmallVec;

use crate::api::Crossing;
use crate::data::check_idle;
use crate::inode::{Dentry, Inode, encode, is_dir, is_file};
use crate::permission::{EXECUTE, WRITE, Who};
use crate::resolve::Entry;
use crate::stop::{Step, Stop};
use crate::transaction::{Across, Checked, Directory, Refusal, come, name_and_slash};
use crate::view::View;

/// The new name is in a directory of another subtree.
pub(super) fn to_another(
    view: &mut View<'_>,
    who: Who<'_>,
    mode: RenameMode,
    from: &Entry,
    crossing: &Crossing,
) -> Step<RenameResponse> {
    if mode == RenameMode::Exchange && from.found.is_some() {
        return Err(view.between_subtrees());
    }
    let (name, slash) = name_and_slash(&crossing.path);
    // Nothing goes from here: what is wrong at the other side may come before that all the same.
    let nothing = Dentry { ino: from.dir, kind: FileKind::File, remote: false };
    let source = from.found.unwrap_or(nothing);
    let mut across = Across {
        goes: goes(from, source),
        inode: Bytes::new(),
        unsettled: SmallVec::new(),
        to: crossing.subtree,
        dir: crossing.base,
        name,
        slash,
        replaces: Ino(0),
        directory: directory(view, source),
        refusal: None,
    };
    if from.found.is_none() {
        across.refusal = Some(Refusal { errno: Errno::ENOENT, after: Checked::Way });
        return Err(Stop::Across(Box::new(across)));
    }
    if from.slash && !is_directory(source) {
        across.refusal = Some(Refusal { errno: Errno::ENOTDIR, after: Checked::Name });
        return Err(Stop::Across(Box::new(across)));
    }
    let moved = source_inode(view, source)?;
    across.refusal = refusal(who, from, &moved);
    if across.refusal.is_none() && !is_dir(&moved) {
        give(view, &mut across, source.ino, &moved)?;
    }
    Err(Stop::Across(Box::new(across)))
}

/// The root of another subtree, whose name is in the map as well, gets another name in this subtree.
pub(super) fn of_a_root(
    view: &mut View<'_>,
    who: Who<'_>,
    mode: RenameMode,
    from: &Entry,
    to: &Entry,
) -> Step<RenameResponse> {
    let source = from.found.ok_or(Errno::ENOENT)?;
    if to.found.is_some_and(|other| other.ino == source.ino) && mode != RenameMode::NoReplace {
        let moved = source_inode(view, source)?;
        who.check_delete(&from.dir_inode, &moved)?;
        who.check(&to.dir_inode, WRITE | EXECUTE)?;
        if mode == RenameMode::Exchange {
            who.check_delete(&to.dir_inode, &moved)?;
        }
        return Ok(RenameResponse {});
    }
    if mode == RenameMode::Exchange {
        who.check(&from.dir_inode, WRITE | EXECUTE)?;
        who.check(&to.dir_inode, WRITE | EXECUTE)?;
        return Err(view.between_subtrees());
    }
    let moved = source_inode(view, source)?;
    who.check_delete(&from.dir_inode, &moved)?;
    who.check(&to.dir_inode, WRITE | EXECUTE)?;
    if from.dir != to.dir {
        who.check(&moved, WRITE)?;
    }
    let comes = NameComes { dir: to.dir.0, name: to.name.clone(), ..comes(source) };
    // Whether it may take the place of what is there. What this stages is not done here.
    come(view, who, &comes, to)?;
    Err(Stop::Across(Box::new(Across {
        goes: goes(from, source),
        inode: Bytes::new(),
        unsettled: SmallVec::new(),
        to: view.ns.config.subtree,
        dir: to.dir,
        name: to.name.clone(),
        slash: to.slash,
        replaces: to.found.map_or(Ino(0), |other| other.ino),
        directory: directory(view, source),
        refusal: None,
    })))
}

fn is_directory(dentry: Dentry) -> bool {
    dentry.kind == FileKind::Directory
}

fn goes(from: &Entry, source: Dentry) -> NameGoes {
    NameGoes {
        dir: from.dir.0,
        name: from.name.clone(),
        ino: source.ino.0,
        kind: source.kind as i32,
        gives: !is_directory(source),
    }
}

fn comes(source: Dentry) -> NameComes {
    NameComes { ino: source.ino.0, kind: source.kind as i32, ..NameComes::default() }
}

fn directory(view: &View<'_>, source: Dentry) -> Directory {
    match view.foreign_root(source.ino) {
        Some(subtree) => Directory::Root(subtree),
        None if is_directory(source) => Directory::Plain,
        None => Directory::None,
    }
}

/// Of the root of another subtree: as the pool has it.
fn source_inode(view: &mut View<'_>, source: Dentry) -> Step<std::sync::Arc<Inode>> {
    if view.foreign_root(source.ino).is_some() {
        view.foreign.push(source.ino);
    }
    view.child(source.ino)
}

/// What this side has to say against it. It is said only if nothing that is to be checked before is wrong at the other.
fn refusal(who: Who<'_>, from: &Entry, moved: &Inode) -> Option<Refusal> {
    let errno = |step: Step<()>| match step {
        Err(Stop::Posix(errno)) => Some(errno),
        _ => None,
    };
    if let Some(errno) = errno(who.check_delete(&from.dir_inode, moved)) {
        return Some(Refusal { errno, after: Checked::Slash });
    }
    // A directory that changes its `..` must be writable.
    let writable = if is_dir(moved) { errno(who.check(moved, WRITE)) } else { None };
    writable.map(|errno| Refusal { errno, after: Checked::Permission })
}

/// The inode goes with its name: it has this one only, nothing is under way with it, and its holders are known.
fn give(view: &mut View<'_>, across: &mut Across, ino: Ino, inode: &Inode) -> Step<()> {
    if inode.nlink > 1 {
        // Its other names would be left behind (R15).
        return Err(view.between_subtrees());
    }
    check_idle(view, ino)?;
    if view.ns.grace && is_file(inode) {
        let message = "sessions have not said yet whether they have this file open: try again";
        let error = Error::new(Reason::Unavailable, message);
        return Err(error.retry_after(std::time::Duration::from_millis(50)).into());
    }
    across.inode = encode(inode);
    let node = view.ns.cache.peek(ino);
    let links = node.and_then(|node| node.links.as_ref()).and_then(|links| links.last_batch);
    let body = view.ns.cache.peek_body(ino).and_then(|body| body.stamp.batch);
    let batches = [node.and_then(|node| node.stamp.batch), body, links];
    across.unsettled = batches.into_iter().flatten().collect();
    Ok(())
}
