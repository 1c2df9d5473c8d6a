//! rename(2), link(2).

use pando_mds_core::Config;
use pando_mds_core::records::Key;
use pando_proto::mds::*;
use pando_proto::{Errno, Ino};

use crate::rig::*;

fn tree() -> Rig {
    let mut rig = Rig::new(config());
    for dir in ["a", "a/b", "a/b/c", "e", "full"] {
        rig.ok(mkdir(dir));
    }
    rig.write("f", b"f");
    rig.write("g", b"g");
    rig.write("full/x", b"");
    rig
}

#[test]
fn a_file_moves_and_replaces() {
    let mut rig = tree();
    let ino = rig.stat("f").ino;
    rig.ok(mv("f", "a/b/f2"));
    assert_eq!((rig.stat("a/b/f2").ino, rig.read("a/b/f2")), (ino, b"f".to_vec()));
    assert_eq!(rig.errno(stat("f")), Errno::ENOENT);
    let old = rig.stat("g").ino;
    rig.ok(mv("a/b/f2", "g"));
    assert_eq!(rig.read("g"), b"f");
    rig.flush();
    assert!(rig.inode(Ino(old)).is_none(), "what was replaced is gone");
    assert!(!rig.store.contains_key(&Key::Body(Ino(old)).encode()));
}

#[test]
fn directories_move_with_their_link_counts() {
    let mut rig = tree();
    assert_eq!((rig.stat("").nlink, rig.stat("a").nlink, rig.stat("e").nlink), (5, 3, 2));
    rig.ok(mv("a/b", "e/b"));
    assert_eq!((rig.stat("a").nlink, rig.stat("e").nlink), (2, 3));
    assert_eq!(rig.stat("e/b/c/../..").ino, rig.stat("e").ino, "`..` follows");
    rig.ok(mkdir("empty"));
    rig.ok(mv("e", "empty"));
    assert_eq!(rig.stat("").nlink, 5, "replaced an empty directory");
    assert_eq!(rig.list("empty/b"), ["c"]);
}

#[test]
fn a_rename_that_makes_no_sense_is_refused() {
    let mut rig = tree();
    for (op, errno) in [
        (mv("none", "x"), Errno::ENOENT),
        (mv("f", "none/x"), Errno::ENOENT),
        (mv("a", "a/b/x"), Errno::EINVAL),
        (mv("a", "a/b/c/x"), Errno::EINVAL),
        (mv("a/b/c", "a"), Errno::ENOTEMPTY),
        (mv("e", "full"), Errno::ENOTEMPTY),
        (mv("e", "f"), Errno::ENOTDIR),
        (mv("f", "e"), Errno::EISDIR),
        (mv("f", "x/"), Errno::ENOTDIR),
        (mv("f/", "x"), Errno::ENOTDIR),
        (mv(".", "x"), Errno::EBUSY),
        (mv("a/..", "x"), Errno::EBUSY),
        (mv("f", "a/."), Errno::EBUSY),
        (mv("f", ""), Errno::EBUSY),
        (rename("f", "g", RenameMode::NoReplace), Errno::EEXIST),
        (rename("f", "none", RenameMode::Exchange), Errno::ENOENT),
        (rename("a", "a/b", RenameMode::Exchange), Errno::EINVAL),
        (rename("a/b", "a", RenameMode::Exchange), Errno::EINVAL),
    ] {
        assert_eq!(rig.errno(op.clone()), errno, "{op:?}");
    }
    rig.ok(mv("a", "a"));
    rig.ok(rename("f", "h", RenameMode::NoReplace));
    rig.ok(mv("e/", "e2/"));
    let unknown = pando_proto::mds::operation::Op::Rename(RenameRequest {
        from: at("a"),
        to: at("x"),
        mode: 9,
        ..Default::default()
    });
    assert_eq!(rig.errno(unknown), Errno::EINVAL);
}

#[test]
fn two_names_change_places() {
    let mut rig = tree();
    let (f, b) = (rig.stat("f").ino, rig.stat("a/b").ino);
    rig.ok(rename("f", "a/b", RenameMode::Exchange));
    assert_eq!((rig.stat("f").ino, rig.stat("a/b").ino), (b, f));
    assert_eq!((rig.stat("").nlink, rig.stat("a").nlink), (6, 2));
    assert_eq!(rig.stat("f/..").ino, 1);
    assert_eq!(rig.list("f"), ["c"]);
}

#[test]
fn hard_links_share_an_inode_until_the_last_goes() {
    let mut rig = tree();
    let ino = Ino(rig.stat("f").ino);
    rig.ok(link("f", "a/l1"));
    rig.ok(link("a/l1", "e/l2"));
    assert_eq!(rig.stat("f").nlink, 3);
    rig.write("a/l1", b"new");
    assert_eq!(rig.read("e/l2"), b"new");
    rig.flush();
    let back = |rig: &Rig, dir: u64, name: &'static str| {
        rig.store.contains_key(&Key::BackLink(ino, Ino(dir), name.into()).encode())
    };
    let (a, e) = (rig.stat("a").ino, rig.stat("e").ino);
    assert!(back(&rig, a, "l1") && back(&rig, e, "l2") && !back(&rig, 1, "f"), "the primary has none");

    // The primary goes: another link takes its place.
    rig.ok(unlink("f"));
    rig.flush();
    let record = rig.inode(ino).unwrap();
    assert_eq!(record.nlink, 2);
    assert_ne!(back(&rig, a, "l1"), back(&rig, e, "l2"), "the new primary has no back link");
    let (other, primary) = if record.parent == a { ("e/l2", "a/l1") } else { ("a/l1", "e/l2") };
    rig.ok(mv(other, "moved"));
    rig.flush();
    assert!(back(&rig, 1, "moved"));
    rig.ok(unlink(primary));
    rig.flush();
    assert_eq!((rig.inode(ino).unwrap().nlink, back(&rig, 1, "moved")), (1, false));
    assert_eq!(rig.read("moved"), b"new");
    rig.ok(unlink("moved"));
    rig.flush();
    assert!(rig.store.keys().all(|key| ino_of(key) != ino), "nothing of it is left");
}

#[test]
fn the_next_primary_is_found_on_disk() {
    let mut rig = tree();
    for i in 0..100 {
        rig.ok(link("f", &format!("a/l{i}")));
    }
    rig.flush();
    rig.page = 7;
    rig.ns = pando_mds_core::Namespace::new(rig.ns.config().clone());
    rig.ok(unlink("f"));
    for i in 0..99 {
        rig.ok(unlink(&format!("a/l{i}")));
    }
    assert_eq!((rig.stat("a/l99").nlink, rig.read("a/l99")), (1, b"f".to_vec()));
}

#[test]
fn renaming_between_links_of_one_file_does_nothing() {
    let mut rig = tree();
    rig.ok(link("f", "l"));
    rig.ok(mv("f", "l"));
    assert_eq!((rig.stat("f").nlink, rig.stat("l").nlink), (2, 2));
}

#[test]
fn links_that_cannot_be_made_are_refused() {
    let mut rig = Rig::new(Config { max_links: 3, ..config() });
    rig.ok(mkdir("d"));
    rig.write("f", b"");
    rig.ok(symlink("s", "f"));
    for (op, errno) in [
        (link("d", "x"), Errno::EPERM),
        (link("none", "x"), Errno::ENOENT),
        (link("f", "d"), Errno::EEXIST),
        (link("f", "s"), Errno::EEXIST),
        (link("f", "x/"), Errno::ENOENT),
        (link("f", "."), Errno::EEXIST),
    ] {
        assert_eq!(rig.errno(op.clone()), errno, "{op:?}");
    }
    rig.ok(link("s", "s2"));
    assert_eq!(rig.stat("s2").kind(), FileKind::Symlink, "the symlink itself is linked");
    rig.ok(link("f", "f2"));
    rig.ok(link("f", "f3"));
    assert_eq!(rig.errno(link("f", "f4")), Errno::EMLINK);
}
