//! link(2).

use std::sync::Arc;

use pando_proto::Errno;
use pando_proto::mds::{LinkRequest, LinkResponse};

use super::across;
use crate::inode::{Dentry, attr, is_dir, kind_of, modified, touch};
use crate::permission::{EXECUTE, WRITE, Who};
use crate::resolve::{Pair, both, entry, find};
use crate::stop::Step;
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &LinkRequest) -> Step<LinkResponse> {
    let who = Who::new(request.caller.as_ref());
    let targets = [request.existing.as_ref(), request.link.as_ref()];
    let find_it = |view: &mut View<'_>| find(view, who, targets[0], request.follow);
    let find_entry = |view: &mut View<'_>| entry(view, who, targets[1], |_| Errno::EEXIST);
    let ((ino, inode), entry) = match both(view, targets, find_it, find_entry)? {
        Pair::Here(found, entry) => (found, entry),
        Pair::Apart((ino, inode), crossing) => return Err(across::link(view, request, ino, &inode, &crossing)),
    };
    if entry.found.is_some() {
        return Err(Errno::EEXIST.into());
    }
    if entry.slash || entry.dir_inode.dead || inode.nlink == 0 {
        return Err(Errno::ENOENT.into());
    }
    who.check(&entry.dir_inode, WRITE | EXECUTE)?;
    if is_dir(&inode) {
        return Err(Errno::EPERM.into());
    }
    if inode.nlink >= view.ns.config.max_links {
        return Err(Errno::EMLINK.into());
    }
    let now = view.now();
    let mut linked = (*inode).clone();
    linked.nlink += 1;
    touch(&mut linked, now);
    // Every name but the primary has a back link.
    view.put_link(ino, entry.dir, &entry.name, true);
    view.put_name(entry.dir, &entry.name, Some(Dentry { ino, kind: kind_of(&inode), remote: false }));
    let mut dir = (*entry.dir_inode).clone();
    dir.entries += 1;
    modified(&mut dir, now);
    view.put_inode(entry.dir, Arc::new(dir));
    let attr = attr(ino, &linked);
    view.put_inode(ino, Arc::new(linked));
    Ok(LinkResponse { attr: Some(attr) })
}
