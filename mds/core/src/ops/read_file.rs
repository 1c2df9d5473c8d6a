//! open + read + close of a small file.

use pando_proto::Errno;
use pando_proto::mds::{ReadFileRequest, ReadFileResponse};

use crate::data::check_readable;
use crate::inode::{attr, in_objects, is_dir, is_file, placement};
use crate::permission::{READ, Who};
use crate::resolve::find;
use crate::stop::Step;
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &ReadFileRequest) -> Step<ReadFileResponse> {
    let who = Who::new(request.caller.as_ref());
    let (ino, inode) = find(view, who, request.target.as_ref(), true)?;
    if is_dir(&inode) {
        return Err(Errno::EISDIR.into());
    }
    if !is_file(&inode) {
        return Err(Errno::EINVAL.into());
    }
    who.check(&inode, READ)?;
    check_readable(view, ino)?;
    let body = if in_objects(&inode) { None } else { Some(view.body(ino, &inode)?) };
    Ok(ReadFileResponse { attr: Some(attr(ino, &inode)), placement: placement(&inode), body })
}
