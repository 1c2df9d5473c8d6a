//! Reads the inline body of an open file.

use pando_proto::Errno;
use pando_proto::mds::{ReadRequest, ReadResponse};

use super::flag;
use crate::data::check_readable;
use crate::inode::{attr, in_objects, is_dir, placement};
use crate::stop::Step;
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &ReadRequest) -> Step<ReadResponse> {
    let handle = view.handle(request.handle, request.ino)?;
    if handle.flags & flag::READ == 0 {
        return Err(Errno::EBADF.into());
    }
    let inode = view.inode(handle.ino)?;
    if is_dir(&inode) {
        return Err(Errno::EISDIR.into());
    }
    check_readable(view, handle.ino)?;
    let data = if in_objects(&inode) {
        None
    } else {
        let body = view.body(handle.ino, &inode)?;
        let from = usize::try_from(request.offset).unwrap_or(usize::MAX).min(body.len());
        let length = usize::try_from(request.length).unwrap_or(usize::MAX).min(body.len() - from);
        Some(body.slice(from..from + length))
    };
    Ok(ReadResponse { data, attr: Some(attr(handle.ino, &inode)), placement: placement(&inode) })
}
