//! readlink(2).

use pando_proto::Errno;
use pando_proto::mds::{ReadlinkRequest, ReadlinkResponse};

use crate::inode::is_symlink;
use crate::permission::Who;
use crate::resolve::find;
use crate::stop::Step;
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &ReadlinkRequest) -> Step<ReadlinkResponse> {
    let who = Who::new(request.caller.as_ref());
    let (_, inode) = find(view, who, request.target.as_ref(), false)?;
    if !is_symlink(&inode) {
        return Err(Errno::EINVAL.into());
    }
    Ok(ReadlinkResponse { link_target: inode.link_target.clone() })
}
