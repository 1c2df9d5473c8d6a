//! Operations, in short.

use bytes::Bytes;
use pando_proto::mds::operation::Op;
use pando_proto::mds::*;

pub fn at(path: &str) -> Option<Target> {
    Some(Target { base: 0, path: Bytes::copy_from_slice(path.as_bytes()) })
}

pub fn stat(path: &str) -> Op {
    Op::Stat(StatRequest { target: at(path), ..Default::default() })
}
pub fn read_file(path: &str) -> Op {
    Op::ReadFile(ReadFileRequest { target: at(path), ..Default::default() })
}
pub fn write_file(path: &str, data: &[u8]) -> Op {
    Op::WriteFile(WriteFileRequest {
        target: at(path),
        flags: (OpenFlag::Create as u32) | (OpenFlag::Truncate as u32),
        mode: 0o644,
        data: Bytes::copy_from_slice(data),
        ..Default::default()
    })
}
pub fn mkdir(path: &str) -> Op {
    Op::Mkdir(MkdirRequest { target: at(path), mode: 0o755, ..Default::default() })
}
pub fn unlink(path: &str) -> Op {
    Op::Unlink(UnlinkRequest { target: at(path), ..Default::default() })
}
pub fn rmdir(path: &str) -> Op {
    Op::Rmdir(RmdirRequest { target: at(path), ..Default::default() })
}
pub fn rename(from: &str, to: &str, mode: RenameMode) -> Op {
    Op::Rename(RenameRequest { from: at(from), to: at(to), mode: mode as i32, ..Default::default() })
}
pub fn mv(from: &str, to: &str) -> Op {
    rename(from, to, RenameMode::Replace)
}
pub fn link(existing: &str, new: &str) -> Op {
    Op::Link(LinkRequest { existing: at(existing), link: at(new), ..Default::default() })
}
pub fn symlink(path: &str, text: &str) -> Op {
    let link_target = Bytes::copy_from_slice(text.as_bytes());
    Op::Symlink(SymlinkRequest { target: at(path), link_target, ..Default::default() })
}
pub fn readdir(path: &str, after: &str, limit: u32) -> Op {
    let after = Bytes::copy_from_slice(after.as_bytes());
    Op::Readdir(ReaddirRequest { target: at(path), after, limit, ..Default::default() })
}
pub fn open(path: &str, handle: u64, flags: u32) -> Op {
    Op::Open(OpenRequest { target: at(path), handle, flags, mode: 0o644, ..Default::default() })
}
pub fn close(handle: u64) -> Op {
    Op::Close(CloseRequest { handle, report: None, ..Default::default() })
}
pub fn resize(path: &str, size: u64) -> Op {
    Op::SetAttr(SetAttrRequest { target: at(path), size: Some(size), follow: true, ..Default::default() })
}
pub const R: u32 = OpenFlag::Read as u32;
pub const W: u32 = OpenFlag::Write as u32;
pub const C: u32 = OpenFlag::Create as u32;
pub const X: u32 = OpenFlag::Exclusive as u32;
pub const T: u32 = OpenFlag::Truncate as u32;
