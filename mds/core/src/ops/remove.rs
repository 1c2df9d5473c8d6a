//! What happens to an inode that loses a name; shared by unlink, rmdir, rename and close.

use std::sync::Arc;

use bytes::Bytes;
use pando_proto::{Errno, Ino};

use crate::data::purge_all;
use crate::handles::HandleChange;
use crate::inode::{Inode, in_objects, is_dir, is_file, is_primary, touch};
use crate::records::Key;
use crate::stop::Step;
use crate::view::View;

/// A file or symlink loses the name (dir, name). The dentry is the caller's.
pub(crate) fn drop_link(view: &mut View<'_>, dir: Ino, name: &Bytes, ino: Ino, inode: &Inode) -> Step<()> {
    if inode.nlink <= 1 {
        return drop_last(view, ino, inode);
    }
    let mut left = inode.clone();
    left.nlink -= 1;
    touch(&mut left, view.now());
    if is_primary(inode, dir, name) {
        // Another link becomes the primary; its back link goes.
        match view.some_link(ino)? {
            Some((None, dir, name)) => {
                view.put_link(ino, dir, &name, false);
                left.parent = dir.0;
                left.name = Bytes::copy_from_slice(&name);
            }
            Some((Some(subtree), dir, name)) => {
                return super::across::go_to_a_link(view, ino, inode, (subtree, dir, name));
            }
            None => return Err(crate::stop::corrupt("missing back link", ino).into()),
        }
    } else {
        view.put_link(ino, dir, name, false);
    }
    view.put_inode(ino, Arc::new(left));
    Ok(())
}

/// A directory loses its only name; it must be empty (rmdir(2)).
pub(crate) fn drop_directory(view: &mut View<'_>, ino: Ino, inode: &Inode) -> Step<()> {
    view.check_unlocked(ino)?;
    if inode.entries > 0 {
        return Err(Errno::ENOTEMPTY.into());
    }
    drop_last(view, ino, inode)
}

/// No name is left: the inode goes, or stays as an orphan while it is, or may be (R19), open.
fn drop_last(view: &mut View<'_>, ino: Ino, inode: &Inode) -> Step<()> {
    let open = view.ns.handles.is_open(ino);
    if !open && !view.ns.grace {
        return erase(view, ino, inode, false);
    }
    let mut orphan = inode.clone();
    orphan.nlink = 0;
    orphan.dead = true;
    orphan.orphan_of = view.ns.config.subtree.0;
    touch(&mut orphan, view.now());
    view.put_inode(ino, Arc::new(orphan));
    view.put_orphan(ino);
    if open {
        view.change_handle(HandleChange::Orphan(ino));
    } else {
        view.defer_reap(ino);
    }
    Ok(())
}

/// Deletes all records of an inode; its objects are purged (R23).
pub(crate) fn erase(view: &mut View<'_>, ino: Ino, inode: &Inode, orphan: bool) -> Step<()> {
    if is_file(inode) {
        // The end of a spill would bring the inode back, and `p/` has room for one purge.
        crate::data::check_writable(view, ino)?;
        if in_objects(inode) {
            purge_all(view, ino, &mut inode.clone(), false)?;
        } else if inode.size > 0 {
            view.put_body(ino, None);
        }
    }
    debug_assert!(!is_dir(inode) || inode.entries == 0, "I7: a directory with entries is not removed");
    view.delete_inode(ino);
    if orphan {
        view.put_record(Key::Orphan(ino), None);
    }
    Ok(())
}
