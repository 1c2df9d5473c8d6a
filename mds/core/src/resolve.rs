//! From (base, path) to an inode (path_resolution(7)), or to where another subtree goes on (R15, R16).

use bytes::Bytes;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::{FileKind, Target};
use pando_proto::{Errno, Ino, MAX_NAME_BYTES, MAX_PATH_BYTES, SubtreeId};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

use crate::api::Crossing;
use crate::inode::{Dentry, Inode, is_dir, is_primary};
use crate::permission::{EXECUTE, Who};
use crate::stop::{Step, Stop, invalid};
use crate::view::View;

/// Symlinks that one resolution follows (as Linux).
const MAX_SYMLINKS: u32 = 40;

/// What to do with the root of another subtree at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// The operation is on the inode, which is the other subtree's.
    Inode,
    /// It is on the name, which is ours.
    Name,
}

/// Where a path ended.
#[derive(Debug)]
pub(crate) enum Spot {
    /// At an entry of a directory, existing or not.
    Entry(Entry),
    /// At a directory by way of `.`, `..`, `/` or the base itself (which may be any inode).
    Inode(Ino, End),
}

/// How a path that names no entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Base,
    Dot,
    DotDot,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub dir: Ino,
    /// The directory's inode, search permission checked.
    pub dir_inode: Arc<Inode>,
    pub name: Bytes,
    pub found: Option<Dentry>,
    /// A slash followed: only a directory will do.
    pub slash: bool,
}

/// Paths still to go, the innermost last: (path, position).
type Rest = SmallVec<[(Bytes, usize); 2]>;

fn start(view: &View<'_>, target: Option<&Target>) -> Step<(Ino, Rest)> {
    let Some(target) = target else { return Err(invalid("the request has no target")) };
    let path = &target.path;
    if path.len() > MAX_PATH_BYTES {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if path.contains(&0) {
        return Err(invalid("a path has no NUL byte"));
    }
    if path.first() == Some(&b'/') {
        return Err(invalid("a path is relative to its base: leave the leading slash out"));
    }
    let base = match target.base {
        0 if view.ns.tree.parent.is_some() => Ino::ROOT,
        0 => view.root(),
        base => Ino(base),
    };
    Ok((base, smallvec![(path.clone(), 0)]))
}

/// The path that is still to go. Each piece but the innermost one begins with a slash, or is at its end.
fn remainder(rest: &Rest) -> Bytes {
    let left = |bytes: &[u8]| bytes.iter().take_while(|byte| **byte == b'/').count();
    if let [(path, at)] = rest.as_slice() {
        return path.slice(*at + left(&path[*at..])..);
    }
    let whole: Vec<u8> = rest.iter().rev().flat_map(|(path, at)| path[*at..].iter().copied()).collect();
    let skipped = left(&whole);
    Bytes::from(whole).slice(skipped..)
}

/// Another subtree goes on from `base`.
fn cross(view: &mut View<'_>, subtree: SubtreeId, base: Ino, rest: &Rest, plain: bool) -> Stop {
    let consumed = if plain && rest.len() == 1 { rest[0].1 as u32 } else { 0 };
    view.cross(Crossing { target: view.target, subtree, base, path: remainder(rest), consumed })
}

/// The next name, whether it is the last, and whether a slash follows the last.
fn next(rest: &mut Rest) -> Option<(Bytes, bool, bool)> {
    let name = loop {
        let (path, at) = rest.last_mut()?;
        let begin = *at + path[*at..].iter().take_while(|byte| **byte == b'/').count();
        if begin == path.len() {
            rest.pop();
            continue;
        }
        let length = path[begin..].iter().position(|byte| *byte == b'/').unwrap_or(path.len() - begin);
        *at = begin + length;
        break path.slice(begin..begin + length);
    };
    let blank = |(path, at): &(Bytes, usize)| path[*at..].iter().all(|byte| *byte == b'/');
    let last = rest.iter().all(blank);
    let slash = last && rest.iter().any(|(path, at)| *at < path.len());
    Some((name, last, slash))
}

/// Walks a path. `follow`: also a symlink at its end.
pub(crate) fn walk(view: &mut View<'_>, who: Who<'_>, target: Option<&Target>, follow: bool) -> Step<Spot> {
    walk_to(view, who, target, follow, Last::Inode)
}

fn walk_to(view: &mut View<'_>, who: Who<'_>, target: Option<&Target>, follow: bool, to: Last) -> Step<Spot> {
    let (mut here, mut rest) = start(view, target)?;
    if let Some(subtree) = view.owner(here)? {
        return Err(cross(view, subtree, here, &rest, false));
    }
    let mut end = End::Base;
    let mut links = 0;
    // Only directories of the target's own path were passed.
    let mut plain = true;
    loop {
        view.ns.heat.at = here;
        let Some((name, last, slash)) = next(&mut rest) else { return Ok(Spot::Inode(here, end)) };
        let inode = view.inode(here)?;
        if !is_dir(&inode) {
            return Err(Errno::ENOTDIR.into());
        }
        who.check(&inode, EXECUTE)?;
        match name.as_ref() {
            b"." => {
                end = End::Dot;
                continue;
            }
            b".." => {
                end = End::DotDot;
                plain = false;
                if here != view.root() {
                    here = Ino(inode.parent);
                } else if let Some((subtree, dir)) = view.ns.tree.parent {
                    if last && to == Last::Name {
                        return Ok(Spot::Inode(dir, end));
                    }
                    return Err(cross(view, subtree, dir, &rest, false));
                }
                continue;
            }
            _ if name.len() > MAX_NAME_BYTES => return Err(Errno::ENAMETOOLONG.into()),
            _ => {}
        }
        let found = view.lookup(here, &inode, &name)?;
        match found {
            Some(dentry) if dentry.kind == FileKind::Symlink && (!last || follow || slash) => {
                links += 1;
                if links > MAX_SYMLINKS {
                    return Err(Errno::ELOOP.into());
                }
                let text = view.child(dentry.ino)?.link_target.clone();
                let absolute = text.first() == Some(&b'/');
                (end, plain) = (End::Base, false);
                rest.push((text, 0));
                if absolute && view.ns.tree.parent.is_some() {
                    return Err(cross(view, ROOT_SUBTREE, Ino::ROOT, &rest, false));
                }
                if absolute {
                    here = view.root();
                }
            }
            Some(dentry) if (!last || to == Last::Inode) && view.foreign_root(dentry.ino).is_some() => {
                let subtree = view.foreign_root(dentry.ino).unwrap_or_default();
                return Err(cross(view, subtree, dentry.ino, &rest, plain));
            }
            found if last => {
                return Ok(Spot::Entry(Entry { dir: here, dir_inode: inode, name, found, slash }));
            }
            None => return Err(Errno::ENOENT.into()),
            Some(dentry) if dentry.kind != FileKind::Directory => return Err(Errno::ENOTDIR.into()),
            Some(dentry) => {
                here = dentry.ino;
                end = End::Base;
            }
        }
    }
}

/// Walks to something that exists.
pub(crate) fn find(
    view: &mut View<'_>,
    who: Who<'_>,
    target: Option<&Target>,
    follow: bool,
) -> Step<(Ino, Arc<Inode>)> {
    match walk(view, who, target, follow)? {
        Spot::Inode(ino, _) => Ok((ino, view.inode(ino)?)),
        Spot::Entry(entry) => {
            let dentry = entry.found.ok_or(Errno::ENOENT)?;
            if entry.slash && dentry.kind != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            Ok((dentry.ino, own_child(view, entry.dir, &entry.name, dentry)?))
        }
    }
}

/// The inode of a name, for an operation on it: a file with more names may be at home in another subtree (R15).
pub(crate) fn own_child(view: &mut View<'_>, dir: Ino, name: &Bytes, dentry: Dentry) -> Step<Arc<Inode>> {
    let inode = view.child(dentry.ino)?;
    match home_elsewhere(view, dir, name, dentry.ino, &inode)? {
        None => Ok(inode),
        Some(subtree) => Err(view.cross_to_inode(subtree, dentry.ino)),
    }
}

/// The subtree of what the name (dir, name) of this subtree stands for, if that is another one. Whatever the link count
/// says: it changes at home before the names do elsewhere, or after.
pub(crate) fn home_elsewhere(
    view: &mut View<'_>,
    dir: Ino,
    name: &Bytes,
    ino: Ino,
    inode: &Inode,
) -> Step<Option<SubtreeId>> {
    if view.alone() || is_dir(inode) || is_primary(inode, dir, name) {
        return Ok(None);
    }
    view.owner(ino)
}

/// Walks to an entry that is to be made, removed or moved; `special` says what `.`, `..` and the base mean there.
pub(crate) fn entry(
    view: &mut View<'_>,
    who: Who<'_>,
    target: Option<&Target>,
    special: impl Fn(End) -> Errno,
) -> Step<Entry> {
    match walk_to(view, who, target, false, Last::Name)? {
        Spot::Entry(entry) => Ok(entry),
        Spot::Inode(_, end) => Err(special(end).into()),
    }
}

/// Resolves both targets of an operation, in order. When only the second one is elsewhere, and that is certain, the
/// operation becomes a transaction. Otherwise a client that always goes to the subtree of the first
/// crossing ends where the first target is, with a second one of which that is certain: what was resolved here is
/// passed on as (directory, name), which no other subtree can know better.
pub(crate) fn both<T>(
    view: &mut View<'_>,
    targets: [Option<&Target>; 2],
    first: impl FnOnce(&mut View<'_>) -> Step<T>,
    second: impl FnOnce(&mut View<'_>) -> Step<Entry>,
) -> Step<Pair<T>> {
    let first = first(view);
    if let Err(stop) = first {
        if !matches!(stop, Stop::Cross) {
            return Err(stop);
        }
        return Err(first_elsewhere(view, targets[0], second));
    }
    view.target = 1;
    match (first, second(view)) {
        (Ok(first), Ok(second)) => Ok(Pair::Here(first, second)),
        (Err(stop), _) => Err(stop),
        (Ok(first), Err(Stop::Cross)) if targets[1].is_some_and(is_single_name) => match view.crossings.pop() {
            Some(crossing) => Ok(Pair::Apart(first, crossing)),
            None => Err(Stop::Cross),
        },
        (_, Err(stop)) => Err(stop),
    }
}

/// Both targets of an operation.
pub(crate) enum Pair<T = Entry> {
    Here(T, Entry),
    /// The second one is a name in a directory of another subtree.
    Apart(T, Crossing),
}

/// The same for a rename, which may lead from this subtree to another one.
pub(crate) fn pair(
    view: &mut View<'_>,
    targets: [Option<&Target>; 2],
    find: impl Fn(&mut View<'_>, usize) -> Step<Entry>,
) -> Step<Pair> {
    let first = find(view, 0);
    if let Err(stop) = first {
        if !matches!(stop, Stop::Cross) {
            return Err(stop);
        }
        // Only a name in its directory was looked at where it is.
        let looked_at = targets[0].filter(|target| is_single_name(target));
        return Err(first_elsewhere(view, looked_at, |view| find(view, 1)));
    }
    view.target = 1;
    match (first, find(view, 1)) {
        (Ok(first), Ok(second)) => Ok(Pair::Here(first, second)),
        (Err(stop), _) => Err(stop),
        (Ok(first), Err(Stop::Cross)) if targets[1].is_some_and(is_single_name) => match view.crossings.pop() {
            Some(crossing) => Ok(Pair::Apart(first, crossing)),
            None => Err(Stop::Cross),
        },
        (Ok(first), Err(Stop::Cross)) => {
            // The second one is looked for elsewhere first; it is known then that this one was found as far as it is.
            let path = if first.slash { [&first.name[..], b"/"].concat().into() } else { first.name };
            let (target, subtree, base) = (0, view.ns.config.subtree, first.dir);
            Err(view.cross(Crossing { target, subtree, base, path, consumed: 0 }))
        }
        (_, Err(stop)) => Err(stop),
    }
}

fn first_elsewhere(
    view: &mut View<'_>,
    target: Option<&Target>,
    second: impl FnOnce(&mut View<'_>) -> Step<Entry>,
) -> Stop {
    // It was known before that it is there: it was resolved as far as it can be before the second one.
    let same = |crossing: &Crossing, target: &Target| {
        target.path == crossing.path && (target.base == crossing.base.0 || target.base == 0)
    };
    let settled = view.crossings.first().zip(target).is_some_and(|(crossing, target)| same(crossing, target));
    view.target = 1;
    match second(view) {
        Ok(entry) => {
            let subtree = view.ns.config.subtree;
            let path = if entry.slash { [&entry.name[..], b"/"].concat().into() } else { entry.name.clone() };
            view.cross(Crossing { target: 1, subtree, base: entry.dir, path, consumed: 0 })
        }
        // R18: what is locked is met when it is free; to send the client away meanwhile would only bring it back.
        Err(stop @ (Stop::Missing | Stop::Wait(_))) => stop,
        Err(stop @ (Stop::Posix(_) | Stop::Error(_))) if settled => stop,
        Err(_) => Stop::Cross,
    }
}

/// One name in its base: resolving it never leaves the base's subtree.
fn is_single_name(target: &Target) -> bool {
    let name = target.path.strip_suffix(b"/").unwrap_or(&target.path);
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/')
}
