//! From (base, path) to an inode (path_resolution(7)).

use bytes::Bytes;
use pando_proto::mds::{FileKind, Target};
use pando_proto::{Errno, Ino, MAX_NAME_BYTES, MAX_PATH_BYTES};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

use crate::inode::{Dentry, Inode, is_dir};
use crate::permission::{EXECUTE, Who};
use crate::stop::{Step, invalid};
use crate::view::View;

/// Symlinks that one resolution follows (as Linux).
const MAX_SYMLINKS: u32 = 40;

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
    let base = if target.base == 0 { view.root() } else { Ino(target.base) };
    Ok((base, smallvec![(path.clone(), 0)]))
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
    let (mut here, mut rest) = start(view, target)?;
    let mut end = End::Base;
    let mut links = 0;
    loop {
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
                if here != view.root() {
                    here = Ino(inode.parent);
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
                if text.first() == Some(&b'/') {
                    here = view.root();
                }
                end = End::Base;
                rest.push((text, 0));
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
            Ok((dentry.ino, view.child(dentry.ino)?))
        }
    }
}

/// Walks to an entry that is to be made, removed or moved; `special` says what `.`, `..` and the base mean there.
pub(crate) fn entry(
    view: &mut View<'_>,
    who: Who<'_>,
    target: Option<&Target>,
    special: impl Fn(End) -> Errno,
) -> Step<Entry> {
    match walk(view, who, target, false)? {
        Spot::Entry(entry) => Ok(entry),
        Spot::Inode(_, end) => Err(special(end).into()),
    }
}
