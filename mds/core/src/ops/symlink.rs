//! symlink(2).

use std::sync::Arc;

use bytes::Bytes;
use pando_proto::mds::{FileKind, SymlinkRequest, SymlinkResponse};
use pando_proto::{Errno, Error, MAX_PATH_BYTES};

use super::create::make;
use crate::inode::attr;
use crate::permission::Who;
use crate::resolve::entry;
use crate::stop::{Step, invalid};
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &SymlinkRequest) -> Step<SymlinkResponse> {
    let text = &request.link_target;
    if text.is_empty() {
        // ENOENT as symlink(2) says; yet what is missing is not the directory.
        let message = "the target of a symlink must not be empty".to_owned();
        return Err(Error { message, ..Error::posix(Errno::ENOENT) }.into());
    }
    if text.len() > MAX_PATH_BYTES {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if text.contains(&0) {
        return Err(invalid("a symlink has no NUL byte"));
    }
    let who = Who::new(request.caller.as_ref());
    let entry = entry(view, who, request.target.as_ref(), |_| Errno::EEXIST)?;
    if entry.found.is_some() {
        return Err(Errno::EEXIST.into());
    }
    if entry.slash {
        return Err(Errno::ENOENT.into());
    }
    // The mode of a symlink means nothing (symlink(7)).
    let (ino, mut inode) = make(view, who, &entry, FileKind::Symlink, 0o777)?;
    inode.size = text.len() as u64;
    inode.link_target = Bytes::copy_from_slice(text);
    let attr = attr(ino, &inode);
    view.put_inode(ino, Arc::new(inode));
    Ok(SymlinkResponse { attr: Some(attr) })
}
