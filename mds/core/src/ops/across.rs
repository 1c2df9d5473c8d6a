//! Operations on names and inodes of several subtrees: what can be said of them here (R15, R17, R18).

use std::sync::Arc;

use bytes::Bytes;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::{
    FileKind, LinkRequest, LinkResponse, NameComes, NameGoes, RenameMode, RenameRequest, RenameResponse, Reparenting,
    UnlinkRequest, UnlinkResponse,
};
use pando_proto::{Errno, Error, Ino, Reason, SubtreeId};
use smallvec::{SmallVec, smallvec};

use crate::api::{BatchId, Crossing};
use crate::data::check_idle;
use crate::inode::{Dentry, Inode, attr, encode, is_dir, is_file, is_primary, kind_of, touch};
use crate::permission::{WRITE, Who};
use crate::resolve::{Entry, home_elsewhere};
use crate::stop::{Step, Stop};
use crate::transaction::{Across, Checked, Directory, How, Refusal, There, Wanted, change, name_and_slash};
use crate::view::View;

/// What a name of this subtree stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    /// The root of another subtree.
    Root(SubtreeId),
    /// A directory of this one.
    Plain,
    /// A file or symlink; this is its primary name.
    Primary,
    /// One whose primary name is another one of this subtree.
    Link,
    /// One of another subtree.
    Remote(SubtreeId),
}

impl Stand {
    /// Others have to know of it when the name changes.
    pub fn is_elsewhere(self) -> bool {
        matches!(self, Self::Root(_) | Self::Remote(_))
    }
}

pub(crate) fn stand(view: &mut View<'_>, dir: Ino, name: &Bytes, dentry: Dentry, inode: &Inode) -> Step<Stand> {
    if let Some(subtree) = view.foreign_root(dentry.ino) {
        return Ok(Stand::Root(subtree));
    }
    if is_dir(inode) {
        return Ok(Stand::Plain);
    }
    if is_primary(inode, dir, name) {
        return Ok(Stand::Primary);
    }
    Ok(home_elsewhere(view, dir, name, dentry.ino, inode)?.map_or(Stand::Link, Stand::Remote))
}

/// The inode of a name. Of one of another subtree: as the pool has it.
pub(crate) fn look(view: &mut View<'_>, dentry: Dentry) -> Step<Arc<Inode>> {
    if view.foreign_root(dentry.ino).is_some() {
        view.foreign.push(dentry.ino);
        return view.child(dentry.ino);
    }
    let inode = view.child(dentry.ino)?;
    // At home elsewhere, as far as is known: a refusal by what it says now must not outlive what it says.
    let own = view.ns.cache.peek(dentry.ino).is_some_and(|node| node.own);
    if inode.nlink > 1 && !is_dir(&inode) && !own && !view.alone() {
        view.foreign.push(dentry.ino);
    }
    Ok(inode)
}

/// The record of an inode that goes to another subtree, and the batches it waits for: nothing is under way with it,
/// and its holders are known.
pub(crate) fn gift(view: &View<'_>, ino: Ino, inode: &Inode) -> Step<(Bytes, SmallVec<[BatchId; 2]>)> {
    check_idle(view, ino)?;
    if view.ns.grace && is_file(inode) {
        let who = match view.ns.awaited {
            0 | 1 => "1 session has not said yet whether it has".to_owned(),
            more => format!("{more} sessions have not said yet whether they have"),
        };
        let message = format!(
            "{who} this file open: try again; if that lasts, `pando session ls` shows who is awaited, and `pando \
             session evict` ends one that is gone"
        );
        let error = Error::new(Reason::Unavailable, message);
        return Err(error.retry_after(std::time::Duration::from_millis(50)).into());
    }
    // A purge of which the `p/` record is found again would cut what is written under the new owner (R22, R23): nothing
    // orders that owner's batches after ours.
    let mut batches = unsettled(view, ino);
    batches.extend(view.ns.unblocked_by(ino));
    Ok((encode(inode), batches))
}

/// Batches that changed an inode and are not in all shards yet: others read it from the pool.
pub(crate) fn unsettled(view: &View<'_>, ino: Ino) -> SmallVec<[BatchId; 2]> {
    let node = view.ns.cache.peek(ino);
    let links = node.and_then(|node| node.links.as_ref()).and_then(|links| links.last_batch);
    let body = view.ns.cache.peek_body(ino).and_then(|body| body.stamp.batch);
    [node.and_then(|node| node.stamp.batch), body, links].into_iter().flatten().collect()
}

/// The new name of a rename is in a directory of another subtree.
pub(super) fn rename(
    view: &mut View<'_>,
    request: &RenameRequest,
    mode: RenameMode,
    from: &Entry,
    crossing: &Crossing,
) -> Step<RenameResponse> {
    let who = Who::new(request.caller.as_ref());
    // Nothing goes from here: what is wrong at the other side may come before that all the same.
    let nothing = Dentry { ino: from.dir, kind: FileKind::File, remote: false };
    let source = from.found.unwrap_or(nothing);
    let how = match mode {
        RenameMode::Exchange => How::Exchange,
        RenameMode::NoReplace => How::NoReplace,
        _ => How::Replace,
    };
    let mut across = Across {
        reply: Some(Reply::Rename(RenameResponse {})),
        caller: request.caller.clone(),
        goes: smallvec![goes(from, source)],
        there: Some(there(crossing, how, source)),
        ..Across::default()
    };
    if from.found.is_none() {
        across.refusal = Some(Refusal { errno: Errno::ENOENT, after: Checked::Way });
    } else if from.slash && source.kind != FileKind::Directory {
        across.refusal = Some(Refusal { errno: Errno::ENOTDIR, after: Checked::Name });
    } else {
        let moved = look(view, source)?;
        across.refusal = refusal(who, from, &moved);
        if across.refusal.is_none() {
            part_with(view, &mut across, from, source, &moved)?;
        }
    }
    Err(Stop::Across(Box::new(across)))
}

/// What has to be done about what goes.
fn part_with(view: &mut View<'_>, across: &mut Across, from: &Entry, source: Dentry, moved: &Inode) -> Step<()> {
    let Some(there) = &mut across.there else { return Ok(()) };
    let (dir, name) = (Ino(there.comes.dir), there.comes.name.clone());
    let change = change(source.ino, Some((from.dir, &from.name)), Some((dir, &name)));
    match stand(view, from.dir, &from.name, source, moved)? {
        Stand::Root(child) => {
            across.directory = Directory::Root(child);
            across.roots.push(reparenting(child, view.ns.config.subtree, there.subtree, dir, &name));
        }
        Stand::Plain => across.directory = Directory::Plain(source.ino),
        Stand::Primary => {
            (there.comes.inode, across.unsettled) = gift(view, source.ino, moved)?;
            across.goes.iter_mut().for_each(|goes| goes.gives = true);
        }
        Stand::Link => {
            across.unsettled = unsettled(view, source.ino);
            across.links.push(change);
        }
        Stand::Remote(home) if home == there.subtree => there.links.push(change),
        Stand::Remote(subtree) => across.wanted.push(Wanted { subtree, change }),
    }
    Ok(())
}

/// A name that becomes another one of the same subtree.
pub(super) struct Move<'a> {
    pub dentry: Dentry,
    pub stand: Stand,
    pub from: &'a Entry,
    pub to: &'a Entry,
}

/// A rename within this subtree, with inodes that are not all its own.
pub(super) fn within(
    view: &View<'_>,
    request: &RenameRequest,
    moves: &[Move<'_>],
    replaced: Option<Dentry>,
    wanted: Option<Wanted>,
) -> Stop {
    let mut across =
        Across { reply: Some(Reply::Rename(RenameResponse {})), caller: request.caller.clone(), ..Across::default() };
    let own = view.ns.config.subtree;
    for Move { dentry, stand, from, to } in moves {
        across.goes.push(goes(from, *dentry));
        let mut comes = comes(*dentry, to.dir, &to.name);
        if let Some(victim) = replaced {
            (comes.replaces, comes.leaves) = (victim.ino.0, wanted.is_some());
        }
        across.comes.push(comes);
        let change = change(dentry.ino, Some((from.dir, &from.name)), Some((to.dir, &to.name)));
        match *stand {
            Stand::Root(child) => across.roots.push(reparenting(child, own, own, to.dir, &to.name)),
            Stand::Remote(subtree) => across.wanted.push(Wanted { subtree, change }),
            Stand::Plain | Stand::Primary | Stand::Link => across.links.push(change),
        }
    }
    across.wanted.extend(wanted);
    Stop::Across(Box::new(across))
}

/// The name of an inode of another subtree is to be removed.
pub(super) fn unlink(request: &UnlinkRequest, entry: &Entry, dentry: Dentry, home: SubtreeId) -> Stop {
    let gone = change(dentry.ino, Some((entry.dir, &entry.name)), None);
    Stop::Across(Box::new(Across {
        reply: Some(Reply::Unlink(UnlinkResponse {})),
        caller: request.caller.clone(),
        goes: smallvec![goes(entry, dentry)],
        wanted: smallvec![Wanted { subtree: home, change: gone }],
        ..Across::default()
    }))
}

/// An inode of this subtree is to get a name in another one.
pub(super) fn link(view: &View<'_>, request: &LinkRequest, ino: Ino, inode: &Inode, crossing: &Crossing) -> Stop {
    let dentry = Dentry { ino, kind: kind_of(inode), remote: false };
    let there = there(crossing, How::Link, dentry);
    let refuse = |errno: Errno, after: Checked| Some(Refusal { errno, after });
    let refusal = if inode.nlink == 0 {
        refuse(Errno::ENOENT, Checked::Name)
    } else if is_dir(inode) {
        refuse(Errno::EPERM, Checked::Permission)
    } else if inode.nlink >= view.ns.config.max_links {
        refuse(Errno::EMLINK, Checked::Permission)
    } else {
        None
    };
    let now = view.now();
    let mut linked = inode.clone();
    linked.nlink += 1;
    touch(&mut linked, now);
    let mut come = change(ino, None, Some((Ino(there.comes.dir), &there.comes.name)));
    come.ctime = now;
    Stop::Across(Box::new(Across {
        reply: Some(Reply::Link(LinkResponse { attr: Some(attr(ino, &linked)) })),
        caller: request.caller.clone(),
        links: smallvec![come],
        unsettled: unsettled(view, ino),
        there: Some(there),
        refusal,
        ..Across::default()
    }))
}

/// An inode loses its primary name, and all others are in other subtrees: it goes to one of them first. No client
/// sees a difference.
pub(super) fn go_to_a_link(
    view: &View<'_>,
    ino: Ino,
    inode: &Inode,
    (subtree, dir, name): (SubtreeId, Ino, Bytes),
) -> Step<()> {
    let dentry = Dentry { ino, kind: kind_of(inode), remote: false };
    let (record, unsettled) = gift(view, ino, inode)?;
    let goes = NameGoes {
        dir: inode.parent,
        name: inode.name.clone(),
        ino: ino.0,
        kind: inode.kind,
        gives: true,
        stays: true,
        ..NameGoes::default()
    };
    let comes = NameComes { inode: record, adopts: true, ..comes(dentry, dir, &name) };
    let there = There { subtree, how: How::Adopt, slash: false, comes, links: SmallVec::new() };
    let across = Across { goes: smallvec![goes], there: Some(there), unsettled, ..Across::default() };
    Err(Stop::Across(Box::new(across)))
}

fn goes(from: &Entry, source: Dentry) -> NameGoes {
    NameGoes {
        dir: from.dir.0,
        name: from.name.clone(),
        ino: source.ino.0,
        kind: source.kind as i32,
        ..NameGoes::default()
    }
}

fn comes(source: Dentry, dir: Ino, name: &Bytes) -> NameComes {
    NameComes { dir: dir.0, name: name.clone(), ino: source.ino.0, kind: source.kind as i32, ..NameComes::default() }
}

fn there(crossing: &Crossing, how: How, source: Dentry) -> There {
    let (name, slash) = name_and_slash(&crossing.path);
    let comes = comes(source, crossing.base, &name);
    There { subtree: crossing.subtree, how, slash, comes, links: SmallVec::new() }
}

fn reparenting(child: SubtreeId, from: SubtreeId, parent: SubtreeId, dir: Ino, name: &Bytes) -> Reparenting {
    // The route is known when it was raised.
    Reparenting { child: child.0, route: 0, from: from.0, parent: parent.0, parent_dir: dir.0, name: name.clone() }
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
