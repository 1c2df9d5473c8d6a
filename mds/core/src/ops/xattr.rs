//! Extended attributes (xattr(7)): `user.` for all who may read or write the file, `trusted.` for root.

use std::sync::Arc;

use bytes::Bytes;
use pando_proto::Errno;
use pando_proto::mds::{
    GetXattrRequest, GetXattrResponse, ListXattrRequest, ListXattrResponse, RemoveXattrRequest, RemoveXattrResponse,
    SetXattrRequest, SetXattrResponse, Xattr, XattrMode,
};

use crate::inode::{Inode, S_ISVTX, is_dir, is_file, touch};
use crate::permission::{READ, WRITE, Who};
use crate::resolve::find;
use crate::stop::{Step, invalid};
use crate::view::View;

const MAX_NAME: usize = 255;

fn is_trusted(name: &[u8]) -> bool {
    name.starts_with(b"trusted.")
}

fn check(who: Who<'_>, inode: &Inode, name: &[u8], mask: u32) -> Step<()> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(Errno::ERANGE.into());
    }
    if name.contains(&0) {
        return Err(invalid("the name of an extended attribute has no NUL byte"));
    }
    if is_trusted(name) {
        // Others do not learn that it exists.
        let hidden = if mask == READ { Errno::ENODATA } else { Errno::EPERM };
        return if who.is_root() { Ok(()) } else { Err(hidden.into()) };
    }
    if !name.starts_with(b"user.") || name.len() == b"user.".len() {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if !is_file(inode) && !is_dir(inode) {
        return Err(if mask == READ { Errno::ENODATA } else { Errno::EPERM }.into());
    }
    if mask == WRITE && is_dir(inode) && inode.mode & S_ISVTX != 0 && !who.owns(inode) {
        return Err(Errno::EPERM.into());
    }
    who.check(inode, mask)
}

pub(crate) fn get(view: &mut View<'_>, request: &GetXattrRequest) -> Step<GetXattrResponse> {
    let who = Who::new(request.caller.as_ref());
    let (_, inode) = find(view, who, request.target.as_ref(), request.follow)?;
    check(who, &inode, &request.name, READ)?;
    let found = inode.xattrs.iter().find(|xattr| xattr.name == request.name);
    Ok(GetXattrResponse { value: found.ok_or(Errno::ENODATA)?.value.clone() })
}

pub(crate) fn set(view: &mut View<'_>, request: &SetXattrRequest) -> Step<SetXattrResponse> {
    let who = Who::new(request.caller.as_ref());
    let (ino, inode) = find(view, who, request.target.as_ref(), request.follow)?;
    check(who, &inode, &request.name, WRITE)?;
    let mode = XattrMode::try_from(request.mode).map_err(|_| invalid("mode is an XattrMode"))?;
    let at = inode.xattrs.iter().position(|xattr| xattr.name == request.name);
    match (mode, at) {
        (XattrMode::Create, Some(_)) => return Err(Errno::EEXIST.into()),
        (XattrMode::Replace, None) => return Err(Errno::ENODATA.into()),
        _ => {}
    }
    let mut changed = (*inode).clone();
    let value = Bytes::copy_from_slice(&request.value);
    match at {
        Some(at) => changed.xattrs[at].value = value,
        None => changed.xattrs.push(Xattr { name: Bytes::copy_from_slice(&request.name), value }),
    }
    let bytes: usize = changed.xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum();
    if bytes > view.ns.config.max_xattr_bytes {
        return Err(Errno::ENOSPC.into());
    }
    touch(&mut changed, view.now());
    view.put_inode(ino, Arc::new(changed));
    Ok(SetXattrResponse {})
}

pub(crate) fn list(view: &mut View<'_>, request: &ListXattrRequest) -> Step<ListXattrResponse> {
    let who = Who::new(request.caller.as_ref());
    let (_, inode) = find(view, who, request.target.as_ref(), request.follow)?;
    let visible = inode.xattrs.iter().filter(|xattr| who.is_root() || !is_trusted(&xattr.name));
    Ok(ListXattrResponse { names: visible.map(|xattr| xattr.name.clone()).collect() })
}

pub(crate) fn remove(view: &mut View<'_>, request: &RemoveXattrRequest) -> Step<RemoveXattrResponse> {
    let who = Who::new(request.caller.as_ref());
    let (ino, inode) = find(view, who, request.target.as_ref(), request.follow)?;
    check(who, &inode, &request.name, WRITE)?;
    let at = inode.xattrs.iter().position(|xattr| xattr.name == request.name).ok_or(Errno::ENODATA)?;
    let mut changed = (*inode).clone();
    changed.xattrs.remove(at);
    touch(&mut changed, view.now());
    view.put_inode(ino, Arc::new(changed));
    Ok(RemoveXattrResponse {})
}
