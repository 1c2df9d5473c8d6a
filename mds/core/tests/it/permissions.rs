//! Who may do what.

use bytes::Bytes;
use pando_proto::Errno;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;

use crate::rig::*;

pub fn user(uid: u32, groups: &[u32]) -> Option<Caller> {
    Some(Caller { uid, gid: uid, groups: groups.to_vec() })
}

/// The same operation on behalf of somebody.
pub fn by(who: Option<Caller>, mut op: Op) -> Op {
    match &mut op {
        Op::Stat(r) => r.caller = who,
        Op::SetAttr(r) => r.caller = who,
        Op::Access(r) => r.caller = who,
        Op::Open(r) => r.caller = who,
        Op::ReadFile(r) => r.caller = who,
        Op::WriteFile(r) => r.caller = who,
        Op::Mkdir(r) => r.caller = who,
        Op::Unlink(r) => r.caller = who,
        Op::Rmdir(r) => r.caller = who,
        Op::Rename(r) => r.caller = who,
        Op::Link(r) => r.caller = who,
        Op::Readdir(r) => r.caller = who,
        other => panic!("{other:?}"),
    }
    op
}

fn set(path: &str, change: impl FnOnce(&mut SetAttrRequest)) -> Op {
    let mut request = SetAttrRequest { target: at(path), follow: true, ..Default::default() };
    change(&mut request);
    Op::SetAttr(request)
}

pub fn chmod(path: &str, mode: u32) -> Op {
    set(path, |r| r.mode = Some(mode))
}

pub fn chown(path: &str, uid: u32, gid: u32) -> Op {
    set(path, |r| (r.uid, r.gid) = (Some(uid), Some(gid)))
}

fn home() -> Rig {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("home"));
    rig.ok(chown("home", 1, 1));
    rig.ok(by(user(1, &[]), write_file("home/f", b"x")));
    rig
}

#[test]
fn owner_group_and_others_have_their_own_bits() {
    let mut rig = home();
    rig.ok(chmod("home/f", 0o640));
    rig.ok(chown("home/f", 1, 50));
    rig.ok(by(user(1, &[]), read_file("home/f")));
    rig.ok(by(user(2, &[50]), read_file("home/f")));
    assert_eq!(rig.errno(by(user(2, &[50]), write_file("home/f", b"y"))), Errno::EACCES);
    assert_eq!(rig.errno(by(user(2, &[]), read_file("home/f"))), Errno::EACCES);
    rig.ok(chmod("home/f", 0o077));
    assert_eq!(rig.errno(by(user(1, &[]), read_file("home/f"))), Errno::EACCES, "the owner's bits only");
    rig.ok(read_file("home/f"));
    let access = |mask| Op::Access(AccessRequest { target: at("home/f"), mask, ..Default::default() });
    assert_eq!(rig.errno(by(user(1, &[]), access(4))), Errno::EACCES);
    rig.ok(by(user(2, &[]), access(6)));
    assert_eq!(rig.errno(access(8)), Errno::EINVAL);
}

#[test]
fn directories_need_search_and_write() {
    let mut rig = home();
    rig.ok(chmod("home", 0o744));
    let other = || user(2, &[]);
    assert_eq!(rig.errno(by(other(), stat("home/f"))), Errno::EACCES, "no search");
    rig.ok(by(other(), readdir("home", "", 0)));
    rig.ok(chmod("home", 0o711));
    rig.ok(by(other(), stat("home/f")));
    assert_eq!(rig.errno(by(other(), readdir("home", "", 0))), Errno::EACCES);
    for op in [
        write_file("home/new", b""),
        mkdir("home/d"),
        unlink("home/f"),
        mv("home/f", "home/g"),
        link("home/f", "home/l"),
    ] {
        assert_eq!(rig.errno(by(other(), op.clone())), Errno::EACCES, "{op:?}");
    }
}

#[test]
fn a_listing_tells_names_only_to_who_may_not_search() {
    let mut rig = home();
    let mut full = |mode, who| {
        rig.ok(chmod("home", mode));
        let Op::Readdir(plain) = readdir("home", "", 0) else { panic!() };
        let full = ReaddirRequest { want_attrs: true, want_bodies: true, caller: who, ..plain };
        let Reply::Readdir(listing) = rig.ok(Op::Readdir(full)) else { panic!() };
        let entry = listing.entries.into_iter().next().unwrap();
        (entry.name, entry.attr.is_some(), entry.placement.is_some(), entry.body)
    };
    let (name, body) = (Bytes::from("f"), Some(Bytes::from("x")));
    assert_eq!(full(0o755, user(2, &[])), (name.clone(), true, true, body.clone()));
    assert_eq!(full(0o744, user(2, &[])), (name.clone(), false, false, None), "stat and read are refused there");
    assert_eq!(full(0o644, None), (name, true, true, body), "root may");
}

#[test]
fn in_a_sticky_directory_only_owners_remove() {
    let mut rig = home();
    rig.ok(mkdir("tmp"));
    rig.ok(chmod("tmp", 0o1777));
    rig.ok(by(user(1, &[]), write_file("tmp/one", b"")));
    assert_eq!(rig.errno(by(user(2, &[]), unlink("tmp/one"))), Errno::EPERM);
    assert_eq!(rig.errno(by(user(2, &[]), mv("tmp/one", "tmp/two"))), Errno::EPERM);
    rig.ok(by(user(2, &[]), write_file("tmp/two", b"")));
    assert_eq!(rig.errno(by(user(2, &[]), mv("tmp/two", "tmp/one"))), Errno::EPERM, "nor replace");
    rig.ok(by(user(1, &[]), unlink("tmp/one")));
}

#[test]
fn a_setgid_directory_hands_its_group_down() {
    let mut rig = home();
    rig.ok(mkdir("team"));
    rig.ok(chown("team", 0, 50));
    rig.ok(chmod("team", 0o2777));
    rig.ok(by(user(1, &[]), mkdir("team/sub")));
    rig.ok(by(user(1, &[]), write_file("team/sub/f", b"")));
    assert_eq!((rig.stat("team/sub").gid, rig.stat("team/sub").mode & 0o2000), (50, 0o2000));
    assert_eq!((rig.stat("team/sub/f").gid, rig.stat("team/sub/f").mode & 0o2000), (50, 0));
    // Somebody outside the group does not leave a setgid program behind.
    let make = Op::WriteFile(WriteFileRequest {
        caller: user(1, &[]),
        target: at("team/prog"),
        flags: C,
        mode: 0o2775,
        ..Default::default()
    });
    rig.ok(make);
    assert_eq!(rig.stat("team/prog").mode, 0o775);
}

#[test]
fn chmod_and_chown_are_for_owners() {
    let mut rig = home();
    assert_eq!(rig.errno(by(user(2, &[]), chmod("home/f", 0o777))), Errno::EPERM);
    rig.ok(by(user(1, &[]), chmod("home/f", 0o4711)));
    assert_eq!(rig.errno(by(user(1, &[]), chown("home/f", 2, 1))), Errno::EPERM, "files are not given away");
    assert_eq!(rig.errno(by(user(1, &[]), chown("home/f", 1, 50))), Errno::EPERM);
    assert_eq!(rig.stat("home/f").mode, 0o4711);
    rig.ok(by(user(1, &[50]), chown("home/f", 1, 50)));
    assert_eq!((rig.stat("home/f").gid, rig.stat("home/f").mode), (50, 0o711), "setuid is cleared");
    rig.ok(by(user(1, &[]), chmod("home/f", 0o2755)));
    assert_eq!(rig.stat("home/f").mode, 0o755, "no setgid for a foreign group");
}

#[test]
fn writing_takes_setuid_away_unless_root_writes() {
    let mut rig = home();
    rig.ok(by(user(1, &[]), chmod("home/f", 0o6775)));
    rig.ok(write_file("home/f", b"root"));
    assert_eq!(rig.stat("home/f").mode, 0o6775);
    rig.ok(by(user(1, &[]), write_file("home/f", b"owner")));
    assert_eq!(rig.stat("home/f").mode, 0o775);
    rig.ok(by(user(1, &[]), chmod("home/f", 0o4755)));
    rig.ok(by(user(1, &[]), open("home/f", 1, W)));
    rig.write_at(pando_proto::ClientId(1), 1, 0, b"z").unwrap();
    assert_eq!(rig.stat("home/f").mode, 0o755);
}

#[test]
fn times_are_set_by_owners_and_touched_by_writers() {
    let mut rig = home();
    rig.ok(chmod("home/f", 0o666));
    let explicit = || set("home/f", |r| (r.atime, r.mtime) = (Some(-5), Some(7_000)));
    let touch = || set("home/f", |r| (r.atime_now, r.mtime_now) = (true, true));
    assert_eq!(rig.errno(by(user(2, &[]), explicit())), Errno::EPERM);
    rig.ok(by(user(1, &[]), explicit()));
    let attr = rig.stat("home/f");
    assert_eq!((attr.atime, attr.mtime, attr.ctime), (-5, 7_000, rig.now - 1));
    rig.ok(by(user(2, &[]), touch()));
    let attr = rig.stat("home/f");
    assert_eq!((attr.atime, attr.mtime), (rig.now - 1, rig.now - 1));
    rig.ok(chmod("home/f", 0o644));
    assert_eq!(rig.errno(by(user(2, &[]), touch())), Errno::EACCES);
    rig.ok(read_file("home/f"));
    assert_eq!(rig.stat("home/f").atime, attr.atime, "reads leave atime alone");
}

#[test]
fn a_handle_gives_the_right_it_was_opened_with() {
    let mut rig = home();
    rig.ok(by(user(1, &[]), open("home/f", 1, W)));
    rig.ok(chmod("home/f", 0o000));
    let shrink = |handle| set("home/f", |r| (r.size, r.handle, r.caller) = (Some(0), handle, user(1, &[])));
    assert_eq!(rig.errno(shrink(0)), Errno::EACCES);
    rig.ok(shrink(1));
    rig.ok(open("home/f", 2, R));
    assert_eq!(rig.errno(shrink(2)), Errno::EBADF);
    assert_eq!(rig.errno(by(user(1, &[]), open("home/f", 3, R))), Errno::EACCES);
}

#[test]
fn a_moved_directory_must_be_writable_by_who_moves_it() {
    let mut rig = home();
    rig.ok(chmod("home", 0o777));
    rig.ok(mkdir("home/d"));
    rig.ok(mkdir("pub"));
    rig.ok(chmod("pub", 0o777));
    assert_eq!(rig.errno(by(user(2, &[]), mv("home/d", "pub/d"))), Errno::EACCES, "its `..` would change");
    rig.ok(by(user(2, &[]), mv("home/d", "home/e")));
}

#[test]
fn bodies_in_listings_are_for_who_may_read_them() {
    let mut rig = home();
    rig.ok(chmod("home/f", 0o600));
    let list = Op::Readdir(ReaddirRequest { target: at("home"), want_bodies: true, ..Default::default() });
    let Reply::Readdir(page) = rig.ok(by(user(2, &[]), list.clone())) else { panic!() };
    assert!(page.entries[0].body.is_none() && page.entries[0].attr.is_some());
    let Reply::Readdir(page) = rig.ok(by(user(1, &[]), list)) else { panic!() };
    assert_eq!(page.entries[0].body.as_deref(), Some(&b"x"[..]));
}
