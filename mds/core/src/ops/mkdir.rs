//! mkdir(2).

use std::sync::Arc;

use pando_proto::Errno;
use pando_proto::mds::{FileKind, MkdirRequest, MkdirResponse};

use super::create::make;
use crate::inode::attr;
use crate::permission::Who;
use crate::resolve::entry;
use crate::stop::Step;
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &MkdirRequest) -> Step<MkdirResponse> {
    let who = Who::new(request.caller.as_ref());
    let entry = entry(view, who, request.target.as_ref(), |_| Errno::EEXIST)?;
    if entry.found.is_some() {
        return Err(Errno::EEXIST.into());
    }
    let (ino, inode) = make(view, who, &entry, FileKind::Directory, request.mode)?;
    let attr = attr(ino, &inode);
    view.put_new_dir(ino, Arc::new(inode));
    Ok(MkdirResponse { attr: Some(attr) })
}
