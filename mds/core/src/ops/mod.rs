//! The operations, one file a verb. Each has `run(view, request) -> reply`; what they
//! share (dispatch, paths in errors, outcomes) is here and in the view.

mod access;
pub(crate) mod across;
pub(crate) mod close;
mod create;
mod link;
mod mkdir;
mod open;
mod read;
mod read_file;
mod readdir;
mod readlink;
mod reclaim;
pub(crate) mod remove;
mod rename;
mod rmdir;
mod set_attr;
mod size;
mod stat;
mod statfs;
mod symlink;
mod unlink;
mod write;
mod write_file;
mod xattr;

use bytes::Bytes;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::{OpenFlag, Operation, OperationResult, Target};

use crate::api::Outcome;
use crate::stop::{Step, invalid};
use crate::view::View;

/// Bits of `flags` in requests.
pub(crate) mod flag {
    use super::OpenFlag;
    pub const READ: u32 = OpenFlag::Read as u32;
    pub const WRITE: u32 = OpenFlag::Write as u32;
    pub const CREATE: u32 = OpenFlag::Create as u32;
    pub const EXCLUSIVE: u32 = OpenFlag::Exclusive as u32;
    pub const TRUNCATE: u32 = OpenFlag::Truncate as u32;
    pub const APPEND: u32 = OpenFlag::Append as u32;
    pub const DIRECTORY: u32 = OpenFlag::Directory as u32;
    pub const NO_FOLLOW: u32 = OpenFlag::NoFollow as u32;
    pub const ALL: u32 = 255;
}

/// Runs one operation.
pub(crate) fn run(mut view: View<'_>, operation: &Operation) -> Outcome {
    let v = &mut view;
    let (step, path) = match &operation.op {
        None => (Err(invalid("the operation is empty or of a newer kind")), None),
        Some(op) => match op {
            Op::Stat(r) => (stat::run(v, r).map(Reply::Stat), path(&r.target)),
            Op::SetAttr(r) => (set_attr::run(v, r).map(Reply::SetAttr), path(&r.target)),
            Op::Access(r) => (access::run(v, r).map(Reply::Access), path(&r.target)),
            Op::Open(r) => (open::run(v, r).map(Reply::Open), path(&r.target)),
            Op::Close(r) => (close::run(v, r).map(Reply::Close), None),
            Op::ReadFile(r) => (read_file::run(v, r).map(Reply::ReadFile), path(&r.target)),
            Op::WriteFile(r) => (write_file::run(v, r).map(Reply::WriteFile), path(&r.target)),
            Op::Read(r) => (read::run(v, r).map(Reply::Read), None),
            Op::Write(r) => (write::run(v, r).map(Reply::Write), None),
            Op::GrantSize(r) => (size::grant(v, r).map(Reply::GrantSize), None),
            Op::ReportSize(r) => (size::report(v, r).map(Reply::ReportSize), None),
            Op::Mkdir(r) => (mkdir::run(v, r).map(Reply::Mkdir), path(&r.target)),
            Op::Unlink(r) => (unlink::run(v, r).map(Reply::Unlink), path(&r.target)),
            Op::Rmdir(r) => (rmdir::run(v, r).map(Reply::Rmdir), path(&r.target)),
            Op::Rename(r) => (rename::run(v, r).map(Reply::Rename), path(&r.from)),
            Op::Link(r) => (link::run(v, r).map(Reply::Link), path(&r.link)),
            Op::Symlink(r) => (symlink::run(v, r).map(Reply::Symlink), path(&r.target)),
            Op::Readlink(r) => (readlink::run(v, r).map(Reply::Readlink), path(&r.target)),
            Op::Readdir(r) => (readdir::run(v, r).map(Reply::Readdir), path(&r.target)),
            Op::GetXattr(r) => (xattr::get(v, r).map(Reply::GetXattr), path(&r.target)),
            Op::SetXattr(r) => (xattr::set(v, r).map(Reply::SetXattr), path(&r.target)),
            Op::ListXattr(r) => (xattr::list(v, r).map(Reply::ListXattr), path(&r.target)),
            Op::RemoveXattr(r) => (xattr::remove(v, r).map(Reply::RemoveXattr), path(&r.target)),
            Op::Statfs(r) => (statfs::run(v, r).map(Reply::Statfs), None),
            Op::Reclaim(r) => (reclaim::run(v, r).map(Reply::Reclaim), None),
        },
    };
    outcome(view, step, path)
}

pub(crate) fn outcome(view: View<'_>, step: Step<Reply>, path: Option<&Bytes>) -> Outcome {
    let step = step.map(|reply| OperationResult { result: Some(reply) });
    view.finish(step, path.unwrap_or(&Bytes::new()))
}

fn path(target: &Option<Target>) -> Option<&Bytes> {
    target.as_ref().map(|target| &target.path)
}
