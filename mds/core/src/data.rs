//! Sizes and homes of file data, shared by the operations.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pando_proto::mds::{DataHome, PurgeRecord};
use pando_proto::{Errno, Ino};

use crate::api::FollowUp;
use crate::busy::Busy;
use crate::handles::HandleChange;
use crate::inode::{Inode, S_ISGID, S_ISUID, encode, in_objects};
use crate::records::Key;
use crate::stop::{Step, Stop};
use crate::view::View;

/// Writing takes the privileges of a program away unless root writes (chmod(2), write(2)).
pub(crate) fn clear_privileges(inode: &mut Inode) {
    inode.mode &= !S_ISUID;
    if inode.mode & 0o010 != 0 {
        inode.mode &= !S_ISGID;
    }
}

/// Data may be changed: not blocked by a spill or cut.
pub(crate) fn check_writable(view: &View<'_>, ino: Ino) -> Step<()> {
    match view.ns.busy.get(&ino) {
        Some(Busy::Spill | Busy::Cut) => Err(Stop::Wait(ino)),
        Some(Busy::Purge) | None => Ok(()),
    }
}

/// Data may be read. During a spill the body is still there, and still right.
pub(crate) fn check_readable(view: &View<'_>, ino: Ino) -> Step<()> {
    match view.ns.busy.get(&ino) {
        Some(Busy::Cut) => Err(Stop::Wait(ino)),
        Some(Busy::Spill | Busy::Purge) | None => Ok(()),
    }
}

/// Objects may be granted and shown, and a purge of the ino may begin: none is outstanding.
pub(crate) fn check_idle(view: &View<'_>, ino: Ino) -> Step<()> {
    if view.ns.busy.contains_key(&ino) { Err(Stop::Wait(ino)) } else { Ok(()) }
}

/// The file has to move to objects. Its body is in memory then, for the intent to take.
pub(crate) fn need_spill(view: &mut View<'_>, ino: Ino, inode: &Inode) -> Stop {
    match view.body(ino, inode) {
        Ok(_) => Stop::NeedSpill(ino),
        Err(stop) => stop,
    }
}

/// An empty inline file becomes an empty file in objects: no bytes move.
pub(crate) fn to_objects(view: &View<'_>, inode: &mut Inode) {
    inode.home = DataHome::Objects as i32;
    inode.inline_version += 1;
    inode.pool = view.ns.config.data_pool.0;
    inode.object_size = view.ns.config.object_size;
    inode.max_size = 0;
}

/// Gives a file the size `size`; changes `inode`, which the caller stages, and stages the rest. Times are the caller's.
pub(crate) fn set_size(view: &mut View<'_>, ino: Ino, inode: &mut Inode, size: u64) -> Step<()> {
    if size > view.ns.config.max_file_size {
        return Err(Errno::EFBIG.into());
    }
    check_writable(view, ino)?;
    if in_objects(inode) {
        return set_size_in_objects(view, ino, inode, size);
    }
    if size == inode.size {
        return Ok(());
    }
    if size <= view.ns.config.inline_limit || size < inode.size {
        let body = view.body(ino, inode)?;
        view.put_body(ino, resized(&body, size));
    } else if inode.size == 0 {
        check_idle(view, ino)?;
        to_objects(view, inode);
    } else {
        return Err(need_spill(view, ino, inode));
    }
    inode.size = size;
    Ok(())
}

/// A body cut, or extended by zeros; `None` when empty, as there is no `b/` then.
fn resized(body: &Bytes, size: u64) -> Option<Bytes> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if size == 0 {
        return None;
    }
    if size <= body.len() {
        return Some(body.slice(..size));
    }
    let mut longer = BytesMut::with_capacity(size);
    longer.extend_from_slice(body);
    longer.resize(size, 0);
    Some(longer.freeze())
}

/// Bytes of `body` with `data` written at `offset`.
pub(crate) fn overlaid(body: &Bytes, offset: usize, data: &Bytes) -> Bytes {
    if offset == 0 && data.len() >= body.len() {
        return data.clone();
    }
    let mut merged = BytesMut::with_capacity(body.len().max(offset + data.len()));
    merged.extend_from_slice(body);
    if merged.len() < offset + data.len() {
        merged.resize(offset + data.len(), 0);
    }
    merged[offset..offset + data.len()].copy_from_slice(data);
    merged.freeze()
}

fn set_size_in_objects(view: &mut View<'_>, ino: Ino, inode: &mut Inode, size: u64) -> Step<()> {
    if size == 0 {
        // Back to inline: a file that is rewritten whole finds its right home anew.
        purge_all(view, ino, inode, true)?;
        inode.home = DataHome::Inline as i32;
        inode.inline_version += 1;
        void_reports(view, ino, inode);
        inode.max_size = 0;
    } else if size < inode.size {
        cut(view, ino, inode, size)?;
    } else if size > inode.size {
        // Extension first cuts what was granted and never reported (R23): a dead writer's bytes
        // must not show. A live writer's report carries the old truncate_seq and is ignored; it writes again
        // under the new generation.
        if inode.max_size > inode.size {
            return Err(Stop::CutFirst(ino));
        }
        check_idle(view, ino)?;
    }
    inode.size = size;
    Ok(())
}

/// Size reports under way are ignored from now on (R23), and with them the ranges reserved for appends: the next
/// append goes to the end.
fn void_reports(view: &mut View<'_>, ino: Ino, inode: &mut Inode) {
    inode.truncate_seq += 1;
    view.change_handle(HandleChange::Append(ino, 0));
}

/// [`Stop::CutFirst`]: objects above the size go.
pub(crate) fn cut_unreported(view: &mut View<'_>, ino: Ino) -> Step<()> {
    check_idle(view, ino)?;
    let mut inode = (*view.inode(ino)?).clone();
    let size = inode.size;
    if size == 0 {
        purge_all(view, ino, &mut inode, true)?;
        void_reports(view, ino, &mut inode);
        inode.max_size = 0;
    } else {
        cut(view, ino, &mut inode, size)?;
    }
    inode.version += 1;
    view.put_inode(ino, Arc::new(inode));
    Ok(())
}

/// Objects at and above `from`, which is not 0, go (R22). The file lives on above the generation of the trims.
fn cut(view: &mut View<'_>, ino: Ino, inode: &mut Inode, from: u64) -> Step<()> {
    check_idle(view, ino)?;
    void_reports(view, ino, inode);
    if inode.max_size > from {
        let record = purge_record(view, inode, from, inode.generation + 1);
        view.put_record(Key::Purge(ino), Some(encode(&record)));
        view.follow_up(FollowUp::Purge(ino, record));
        view.set_busy(ino, Some(Busy::Cut));
    }
    inode.generation += 2;
    inode.max_size = inode.max_size.min(from);
    Ok(())
}

/// All objects of the file go. If it lives on (`lives`), it does so in a generation above that of the deletes, and
/// new objects are granted only when those are done: an object that still lives has no higher generation
/// to keep a delete off, and shows its old bytes.
pub(crate) fn purge_all(view: &mut View<'_>, ino: Ino, inode: &mut Inode, lives: bool) -> Step<()> {
    if inode.max_size > 0 {
        check_idle(view, ino)?;
        let record = purge_record(view, inode, 0, inode.generation + 1);
        view.put_record(Key::Purge(ino), Some(encode(&record)));
        view.follow_up(FollowUp::Purge(ino, record));
        if lives {
            view.set_busy(ino, Some(Busy::Purge));
        }
    }
    inode.generation += 2;
    Ok(())
}

fn purge_record(view: &View<'_>, inode: &Inode, from: u64, generation: u64) -> PurgeRecord {
    PurgeRecord {
        pool: inode.pool,
        object_size: inode.object_size,
        max_size: inode.max_size,
        from,
        generation,
        subtree: view.ns.config.tag(),
    }
}

/// Allows objects up to `size` (R23). `first`: the caller's handle has no grant yet.
/// What somebody else was granted and left unreported is cut first, unless a writer may still report it; and an
/// outstanding purge ends first, as it would take what is written now. The grant is in a later batch of
/// the same shard than the removal of `p/`: after a restart no purge meets what was written under it.
pub(crate) fn grant(view: &mut View<'_>, ino: Ino, inode: &mut Inode, size: u64, first: bool) -> Step<bool> {
    if size > view.ns.config.max_file_size {
        return Err(Errno::EFBIG.into());
    }
    if first && inode.max_size > inode.size && view.ns.handles.granted(ino) == 0 {
        return Err(Stop::CutFirst(ino));
    }
    if size <= inode.max_size {
        return Ok(false);
    }
    check_idle(view, ino)?;
    inode.max_size = size;
    Ok(true)
}
