//! access(2), with the caller's ids as they are sent.

use pando_proto::mds::{AccessRequest, AccessResponse};

use crate::permission::Who;
use crate::resolve::find;
use crate::stop::{Step, invalid};
use crate::view::View;

pub(crate) fn run(view: &mut View<'_>, request: &AccessRequest) -> Step<AccessResponse> {
    if request.mask > 7 {
        return Err(invalid("mask is a sum of R_OK 4, W_OK 2 and X_OK 1"));
    }
    let who = Who::new(request.caller.as_ref());
    let (_, inode) = find(view, who, request.target.as_ref(), true)?;
    who.check(&inode, request.mask)?;
    Ok(AccessResponse {})
}
