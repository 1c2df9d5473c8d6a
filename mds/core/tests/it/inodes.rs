//! Extended attributes.

use bytes::Bytes;
use pando_mds_core::Config;
use pando_proto::Errno;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;

use crate::rig::*;

fn set(name: &str, value: &[u8], mode: XattrMode) -> Op {
    Op::SetXattr(SetXattrRequest {
        target: at("f"),
        name: Bytes::copy_from_slice(name.as_bytes()),
        value: Bytes::copy_from_slice(value),
        mode: mode as i32,
        ..Default::default()
    })
}

fn get(name: &str) -> Op {
    Op::GetXattr(GetXattrRequest {
        target: at("f"),
        name: Bytes::copy_from_slice(name.as_bytes()),
        ..Default::default()
    })
}

fn remove(name: &str) -> Op {
    let name = Bytes::copy_from_slice(name.as_bytes());
    Op::RemoveXattr(RemoveXattrRequest { target: at("f"), name, ..Default::default() })
}

fn names(rig: &mut Rig, caller: Option<Caller>) -> Vec<Bytes> {
    let list = Op::ListXattr(ListXattrRequest { caller, target: at("f"), ..Default::default() });
    let Reply::ListXattr(reply) = rig.ok(list) else { panic!() };
    reply.names
}

#[test]
fn attributes_are_set_read_listed_and_removed() {
    let mut rig = Rig::new(Config { max_xattr_bytes: 50, ..config() });
    rig.write("f", b"");
    rig.ok(set("user.a", b"1", XattrMode::Set));
    rig.ok(set("user.a", b"2", XattrMode::Replace));
    rig.ok(set("trusted.b", b"3", XattrMode::Create));
    let Reply::GetXattr(reply) = rig.ok(get("user.a")) else { panic!() };
    assert_eq!(reply.value, "2");
    assert_eq!(names(&mut rig, None), ["user.a", "trusted.b"]);
    assert_eq!(names(&mut rig, Some(Caller { uid: 9, ..Default::default() })), ["user.a"]);
    for (op, errno) in [
        (set("user.a", b"", XattrMode::Create), Errno::EEXIST),
        (set("user.c", b"", XattrMode::Replace), Errno::ENODATA),
        (set("user.c", &[0; 50], XattrMode::Set), Errno::ENOSPC),
        (set("user.", b"", XattrMode::Set), Errno::EOPNOTSUPP),
        (set("system.x", b"", XattrMode::Set), Errno::EOPNOTSUPP),
        (set("", b"", XattrMode::Set), Errno::ERANGE),
        (set(&format!("user.{}", "x".repeat(251)), b"", XattrMode::Set), Errno::ERANGE),
        (get("user.c"), Errno::ENODATA),
        (remove("user.c"), Errno::ENODATA),
    ] {
        assert_eq!(rig.errno(op.clone()), errno, "{op:?}");
    }
    rig.ok(remove("user.a"));
    assert_eq!(names(&mut rig, None), ["trusted.b"]);
    rig.flush();
    rig.ns = pando_mds_core::Namespace::new(rig.ns.config().clone());
    assert_eq!(names(&mut rig, None), ["trusted.b"], "kept in the record");
}
