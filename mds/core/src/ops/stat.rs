//! stat(2), lstat(2).

use pando_proto::mds::{StatRequest, StatResponse};

use crate::inode::{attr, placement};
use crate::permission::Who;
use crate::resolve::find;
use crate::stop::Step;
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &StatRequest) -> Step<StatResponse> {
    let who = Who::new(request.caller.as_ref());
    let (ino, inode) = find(view, who, request.target.as_ref(), request.follow)?;
    Ok(StatResponse { attr: Some(attr(ino, &inode)), placement: placement(&inode) })
}
