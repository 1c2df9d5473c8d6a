//! Handles, and files that outlive their names.

use bytes::Bytes;
use pando_mds_core::records::Key;
use pando_mds_core::{Config, Namespace};
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;
use pando_proto::{ClientId, Errno, Ino};

use crate::rig::*;

const DIRECTORY: u32 = OpenFlag::Directory as u32;
const NO_FOLLOW: u32 = OpenFlag::NoFollow as u32;

fn read(handle: u64, offset: u64, length: u64) -> Op {
    Op::Read(ReadRequest { handle, offset, length, ..Default::default() })
}

fn data(rig: &mut Rig, handle: u64) -> Bytes {
    match rig.ok(read(handle, 0, 1000)) {
        Reply::Read(reply) => reply.data.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn flags_of_open_mean_what_they_say() {
    let mut rig = Rig::new(config());
    rig.write("f", b"data");
    rig.ok(mkdir("d"));
    rig.ok(symlink("s", "f"));
    rig.ok(symlink("new", "target"));
    for (path, flags, errno) in [
        ("none", R, Errno::ENOENT),
        ("f", R | C | X, Errno::EEXIST),
        ("s", R | C | X, Errno::EEXIST),
        ("new", W | C | X, Errno::EEXIST),
        ("s", R | NO_FOLLOW, Errno::ELOOP),
        ("f", R | DIRECTORY, Errno::ENOTDIR),
        ("s", R | DIRECTORY, Errno::ENOTDIR),
        ("d", W, Errno::EISDIR),
        ("d", R | C, Errno::EISDIR),
        ("d", R | C | DIRECTORY, Errno::EINVAL),
        ("f/", R, Errno::ENOTDIR),
        ("x/", W | C, Errno::EISDIR),
        ("f", 0, Errno::EINVAL),
        ("f", R | T, Errno::EINVAL),
        ("f", R | 256, Errno::EINVAL),
    ] {
        assert_eq!(rig.errno(open(path, 9, flags)), errno, "{path} {flags}");
    }
    rig.open("d", 1, R | DIRECTORY);
    assert!(rig.open("new", 2, W | C).created, "through a dangling symlink");
    assert_eq!(rig.stat("target").size, 0);
    assert!(!rig.open("s", 3, R | W | C | T).created);
    assert_eq!(rig.read("f"), b"");
    assert_eq!(rig.errno(open("f", 3, R)), Errno::EINVAL, "the number is in use");
    let without = rig.run_as(ClientId(0), open("f", 5, R)).unwrap_err();
    assert_eq!(without.errno, Errno::EINVAL, "no session, no handle");
}

#[test]
fn reads_and_writes_go_through_the_handle() {
    let mut rig = Rig::new(config());
    rig.open("f", 1, R | W | C);
    rig.write_at(ClientId(1), 1, 3, b"abc").unwrap();
    rig.write_at(ClientId(1), 1, 1, b"Z").unwrap();
    assert_eq!(data(&mut rig, 1), &b"\0Z\0abc"[..]);
    let Reply::Read(part) = rig.ok(read(1, 4, 100)) else { panic!() };
    assert_eq!(part.data.unwrap(), &b"bc"[..]);
    let Reply::Read(none) = rig.ok(read(1, u64::MAX, u64::MAX)) else { panic!() };
    assert_eq!(none.data.unwrap(), &b""[..]);
    rig.open("f", 2, R);
    rig.open("f", 3, W | OpenFlag::Append as u32);
    assert_eq!(rig.write_at(ClientId(1), 2, 0, b"x").unwrap_err().errno, Errno::EBADF);
    assert_eq!(rig.errno(read(3, 0, 1)), Errno::EBADF);
    rig.write_at(ClientId(1), 3, 0, b"end").unwrap();
    assert_eq!(rig.read("f"), b"\0Z\0abcend");
    assert_eq!(rig.errno(read(77, 0, 1)), Errno::EBADF);
    assert_eq!(rig.run_as(ClientId(2), read(1, 0, 1)).unwrap_err().errno, Errno::EBADF, "another session's handle");
    rig.ok(close(1));
    assert_eq!(rig.errno(close(1)), Errno::EBADF);
    rig.open("f", 4, W);
    let huge = Op::Write(WriteRequest {
        handle: 4,
        offset: u64::MAX,
        data: Bytes::from_static(b"x"),
        append: false,
        ..Default::default()
    });
    assert_eq!(rig.errno(huge), Errno::EFBIG);
}

#[test]
fn a_file_lives_on_while_it_is_open() {
    let mut rig = Rig::new(config());
    let ino = Ino(rig.write("f", b"data").ino);
    rig.open("f", 1, R | W);
    rig.open("f", 2, R);
    rig.ok(unlink("f"));
    rig.flush();
    assert_eq!(rig.orphans(), [ino]);
    assert_eq!(data(&mut rig, 1), &b"data"[..]);
    rig.write_at(ClientId(1), 1, 0, b"DATA").unwrap();
    assert_eq!(data(&mut rig, 2), &b"DATA"[..]);
    rig.write("f", b"another");
    rig.ok(close(1));
    assert!(rig.inode(ino).is_some());
    rig.ok(close(2));
    rig.flush();
    assert!(rig.store.keys().all(|key| ino_of(key) != ino), "I7: all of it is gone");
    assert_eq!(rig.read("f"), b"another");
}

#[test]
fn a_lost_session_gives_its_files_up() {
    let mut rig = Rig::new(config());
    let ino = Ino(rig.write("f", b"data").ino);
    rig.open("f", 1, R);
    rig.ok(unlink("f"));
    let gone = rig.ns.session_gone(ClientId(1));
    assert_eq!(gone, [ino]);
    rig.reap(ino);
    rig.flush();
    assert!(rig.store.keys().all(|key| ino_of(key) != ino));
    assert_eq!(rig.errno(close(1)), Errno::EBADF);
    rig.reap(ino);
}

#[test]
fn after_a_restart_nothing_unlinked_goes_before_the_sessions_came_back() {
    let mut rig = Rig::new(config());
    let (a, b) = (Ino(rig.write("a", b"a").ino), Ino(rig.write("b", b"b").ino));
    rig.open("a", 1, R | W);
    rig.open("b", 2, R);
    rig.ok(unlink("a"));
    rig.flush();
    rig.ns = Namespace::new(config());
    rig.ns.begin_grace();
    // R19: its handle on b is not known yet.
    rig.ok(unlink("b"));
    let handles = vec![
        ReclaimedHandle { handle: 1, ino: a.0, flags: R | W },
        ReclaimedHandle { handle: 2, ino: b.0, flags: R },
        ReclaimedHandle { handle: 3, ino: 4242, flags: R },
        ReclaimedHandle { handle: 4, ino: b.0, flags: 0 },
    ];
    let Reply::Reclaim(reply) = rig.ok(Op::Reclaim(ReclaimRequest { handles: handles.clone() })) else { panic!() };
    assert_eq!(reply.lost, [3, 4]);
    let Reply::Reclaim(again) = rig.ok(Op::Reclaim(ReclaimRequest { handles })) else { panic!() };
    assert_eq!(again.lost, [3, 4], "a repeated reclaim changes nothing");
    assert_eq!((data(&mut rig, 1), data(&mut rig, 2)), (Bytes::from_static(b"a"), Bytes::from_static(b"b")));
    rig.ok(close(1));
    rig.flush();
    assert!(rig.inode(a).is_some(), "kept until grace ends");
    let mut reap = rig.ns.end_grace();
    reap.extend(rig.orphans());
    for ino in reap {
        rig.reap(ino);
    }
    rig.flush();
    assert!(rig.inode(a).is_none() && rig.inode(b).is_some());
    assert_eq!(data(&mut rig, 2), &b"b"[..]);
    rig.ok(close(2));
    rig.flush();
    assert!(!rig.store.contains_key(&Key::Inode(b).encode()));
}

#[test]
fn handles_are_limited() {
    let mut rig = Rig::new(Config { max_handles_per_session: 3, ..config() });
    rig.write("f", b"");
    for handle in 1..=3 {
        rig.open("f", handle, R);
    }
    assert_eq!(rig.errno(open("f", 4, R)), Errno::EMFILE);
    rig.run_as(ClientId(2), open("f", 4, R)).unwrap();
    rig.ok(close(2));
    rig.open("f", 4, R);
}

#[test]
fn a_directory_is_not_reclaimed_for_writing() {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("d"));
    let ino = rig.stat("d").ino;
    let handles = vec![ReclaimedHandle { handle: 1, ino, flags: R | W }, ReclaimedHandle { handle: 2, ino, flags: R }];
    let Reply::Reclaim(reply) = rig.ok(Op::Reclaim(ReclaimRequest { handles })) else { panic!("wrong reply") };
    assert_eq!(reply.lost, [1]);
    let write = WriteRequest { handle: 1, ino, data: "x".into(), ..Default::default() };
    assert_eq!(rig.errno(Op::Write(write)), Errno::EBADF);
}

#[test]
fn one_number_names_one_handle_however_often_it_is_reclaimed() {
    let mut rig = Rig::new(config());
    let (a, b) = (rig.write("a", b"a").ino, rig.write("b", b"b").ino);
    rig.run_as(ClientId(2), open("b", 9, R)).unwrap();
    let handles =
        [(7, a, R), (7, b, R | W), (7, a, R)].map(|(handle, ino, flags)| ReclaimedHandle { handle, ino, flags });
    let Reply::Reclaim(reply) = rig.ok(Op::Reclaim(ReclaimRequest { handles: handles.to_vec() })) else { panic!() };
    assert_eq!(reply.lost, [7, 7], "the first one counts");
    rig.ok(close(7));
    rig.ok(unlink("a"));
    rig.ok(unlink("b"));
    rig.flush();
    assert!(rig.inode(Ino(a)).is_none(), "I7: nobody has it open");
    assert!(rig.inode(Ino(b)).is_some(), "R19: client 2 has it open");
}
