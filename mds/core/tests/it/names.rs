//! Paths, lookups, making and removing names, listings.

use bytes::Bytes;
use pando_mds_core::Config;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;
use pando_proto::{ClientId, Errno, Ino, ShardId};

use crate::rig::*;

#[test]
fn a_file_is_made_read_and_removed() {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("dir"));
    let made = rig.write("dir/file", b"hello");
    assert_eq!((made.kind(), made.size, made.nlink, made.mode), (FileKind::File, 5, 1, 0o644));
    assert_eq!(rig.read("dir/file"), b"hello");
    assert_eq!(rig.list("dir"), ["file"]);
    let dir = rig.stat("dir");
    assert_eq!((dir.entries, dir.nlink, dir.mtime), (1, 2, rig.now - 3));
    rig.ok(unlink("dir/file"));
    assert_eq!(rig.errno(read_file("dir/file")), Errno::ENOENT);
    assert_eq!(rig.stat("dir").mtime, rig.now - 2);
    rig.flush();
    assert_eq!(rig.store.len(), 3, "two directories and a dentry are left: {:?}", rig.store.keys());
}

#[test]
fn the_kind_of_error_says_what_is_wrong_with_a_path() {
    let mut rig = Rig::new(config());
    rig.write("file", b"x");
    rig.ok(mkdir("dir"));
    let long = "n".repeat(256);
    for (path, errno) in [
        ("none", Errno::ENOENT),
        ("none/x", Errno::ENOENT),
        ("file/x", Errno::ENOTDIR),
        ("file/", Errno::ENOTDIR),
        ("file/..", Errno::ENOTDIR),
        (long.as_str(), Errno::ENAMETOOLONG),
        (&"a/".repeat(2048), Errno::ENAMETOOLONG),
        ("a\0b", Errno::EINVAL),
        ("/dir", Errno::EINVAL),
    ] {
        assert_eq!(rig.errno(stat(path)), errno, "{}", &path[..path.len().min(20)]);
    }
    let longest = "n".repeat(255);
    rig.write(&longest, b"");
    assert_eq!(rig.stat(&format!("dir/../dir/./../{longest}")).size, 0);
    assert_eq!(rig.stat("dir//").ino, rig.stat("dir").ino);
    assert_eq!(rig.stat("").ino, 1);
    assert_eq!(rig.stat("../..").ino, 1, "the root is its own parent");
}

#[test]
fn names_that_cannot_be_made_or_removed_say_so() {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("dir"));
    rig.ok(mkdir("dir/sub"));
    rig.write("file", b"");
    for (op, errno) in [
        (mkdir("dir"), Errno::EEXIST),
        (mkdir("."), Errno::EEXIST),
        (mkdir("dir/.."), Errno::EEXIST),
        (mkdir(""), Errno::EEXIST),
        (mkdir("file"), Errno::EEXIST),
        (mkdir("file/x"), Errno::ENOTDIR),
        (rmdir("dir"), Errno::ENOTEMPTY),
        (rmdir("dir/."), Errno::EINVAL),
        (rmdir("dir/sub/.."), Errno::ENOTEMPTY),
        (rmdir(""), Errno::EBUSY),
        (rmdir("file"), Errno::ENOTDIR),
        (rmdir("none"), Errno::ENOENT),
        (unlink("dir"), Errno::EISDIR),
        (unlink("."), Errno::EISDIR),
        (unlink("file/"), Errno::ENOTDIR),
        (unlink("none"), Errno::ENOENT),
        (write_file("new/", b""), Errno::EISDIR),
        (write_file("dir", b""), Errno::EISDIR),
        (symlink("link", ""), Errno::ENOENT),
        (symlink("link", &"x".repeat(4096)), Errno::ENAMETOOLONG),
        (symlink("new/", "x"), Errno::ENOENT),
    ] {
        assert_eq!(rig.errno(op.clone()), errno, "{op:?}");
    }
    rig.ok(mkdir("slash/"));
    rig.ok(rmdir("slash/"));
}

#[test]
fn errors_carry_the_path() {
    let mut rig = Rig::new(config());
    let error = rig.run(stat("no/such")).unwrap_err();
    assert_eq!(error.path.as_deref(), Some(&b"no/such"[..]));
    assert_eq!(error.to_string(), "no/such: no such file or directory (ENOENT)");
    // symlink(2): ENOENT too, but it is the target that is at fault.
    let error = rig.run(symlink("link", "")).unwrap_err();
    assert_eq!(error.errno, Errno::ENOENT);
    assert!(error.message.contains("the target of a symlink must not be empty"), "{error}");
}

#[test]
fn symlinks_are_followed_where_they_should_be() {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("dir"));
    rig.write("dir/file", b"data");
    rig.ok(symlink("dir/up", "../dir/file"));
    rig.ok(symlink("root", "/dir/./up"));
    rig.ok(symlink("todir", "dir/"));
    rig.ok(symlink("dangling", "dir/later"));
    rig.ok(symlink("loop", "loop"));
    assert_eq!(rig.read("root"), b"data");
    assert_eq!(rig.read("todir/up"), b"data");
    assert_eq!(rig.stat("root").kind(), FileKind::Symlink);
    assert_eq!(rig.stat("root").size, 9);
    assert_eq!(rig.stat("todir/").kind(), FileKind::Directory, "a slash follows");
    assert_eq!(rig.errno(read_file("loop")), Errno::ELOOP);
    assert_eq!(rig.errno(stat("loop/x")), Errno::ELOOP);
    rig.write("dangling", b"made");
    assert_eq!(rig.read("dir/later"), b"made", "created where the symlink points");
    let Reply::Readlink(reply) = rig.ok(Op::Readlink(ReadlinkRequest { target: at("root"), ..Default::default() }))
    else {
        panic!()
    };
    assert_eq!(reply.link_target, "/dir/./up");
    let readlink = Op::Readlink(ReadlinkRequest { target: at("dir"), ..Default::default() });
    assert_eq!(rig.errno(readlink), Errno::EINVAL);
    rig.ok(unlink("root"));
    assert_eq!(rig.read("dir/file"), b"data", "the symlink went, not the file");
}

#[test]
fn forty_symlinks_are_followed_and_no_more() {
    let mut rig = Rig::new(config());
    rig.write("l0", b"x");
    for i in 0..41 {
        rig.ok(symlink(&format!("l{}", i + 1), &format!("l{i}")));
    }
    assert_eq!(rig.read("l40"), b"x");
    assert_eq!(rig.errno(read_file("l41")), Errno::ELOOP);
}

#[test]
fn a_base_is_an_inode_by_number() {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("dir"));
    let file = rig.write("dir/file", b"x");
    let base = rig.stat("dir").ino;
    let by = |base, path: &'static str| {
        let target = Some(Target { base, path: Bytes::from_static(path.as_bytes()) });
        Op::Stat(StatRequest { target, ..Default::default() })
    };
    let Reply::Stat(reply) = rig.ok(by(base, "file")) else { panic!() };
    assert_eq!(reply.attr.unwrap().ino, file.ino);
    let Reply::Stat(reply) = rig.ok(by(file.ino, "")) else { panic!() };
    assert_eq!(reply.attr.unwrap().ino, file.ino);
    assert_eq!(rig.errno(by(file.ino, "x")), Errno::ENOTDIR);
    assert_eq!(rig.errno(by(777, "")), Errno::ESTALE);
    assert_eq!(rig.errno(by(1 << 63 | 5, "")), Errno::ESTALE);
    assert_eq!(rig.errno(by(5 << 48, "")), Errno::ESTALE, "number 0 of a shard");
}

#[test]
fn a_listing_goes_on_where_its_cursor_stood() {
    let mut rig = Rig::new(Config { max_page_entries: 4, ..config() });
    rig.ok(mkdir("dir"));
    for i in 0..10 {
        rig.write(&format!("dir/f{i}"), &[b'x'; 10]);
    }
    let page = |rig: &mut Rig, after: &str, limit| {
        let Reply::Readdir(page) = rig.ok(readdir("dir", after, limit)) else { panic!() };
        (page.entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect::<Vec<_>>(), page.end)
    };
    assert_eq!(page(&mut rig, "", 0), (["f0", "f1", "f2", "f3"].map(String::from).to_vec(), false));
    rig.ok(unlink("dir/f3"));
    rig.ok(unlink("dir/f4"));
    assert_eq!(page(&mut rig, "f3", 2), (["f5", "f6"].map(String::from).to_vec(), false));
    assert_eq!(page(&mut rig, "f6", 100), (["f7", "f8", "f9"].map(String::from).to_vec(), true));
    assert_eq!(page(&mut rig, "zz", 0), (vec![], true));
    assert_eq!(rig.errno(readdir("dir/f5", "", 0)), Errno::ENOTDIR);
}

#[test]
fn a_listing_brings_attributes_and_bodies() {
    let mut rig = Rig::new(Config { max_page_body_bytes: 25, ..config() });
    for i in 0..5 {
        rig.write(&format!("f{i}"), &[b'x'; 10]);
    }
    rig.ok(mkdir("a"));
    rig.flush();
    rig.ns = pando_mds_core::Namespace::new(rig.ns.config().clone());
    let request = ReaddirRequest { target: at(""), want_attrs: true, want_bodies: true, ..Default::default() };
    let Reply::Readdir(page) = rig.ok(Op::Readdir(request)) else { panic!() };
    let bodies: Vec<_> = page.entries.iter().map(|e| e.body.as_ref().map(Bytes::len)).collect();
    assert_eq!(bodies, [None, Some(10), Some(10), Some(10)], "cut at the limit of bytes");
    assert!(!page.end);
    assert_eq!(page.entries[1].attr.unwrap().size, 10);
    assert_eq!(page.entries[1].placement.unwrap().home(), DataHome::Inline);
}

#[test]
fn a_large_directory_is_looked_up_name_by_name() {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("big"));
    for i in 0..1030 {
        rig.write(&format!("big/f{i}"), b"");
    }
    rig.flush();
    rig.ns = pando_mds_core::Namespace::new(rig.ns.config().clone());
    rig.stat("big");
    let before = rig.fetches;
    rig.stat("big/f77");
    assert_eq!(rig.errno(stat("big/none")), Errno::ENOENT);
    assert_eq!(rig.fetches - before, 3, "dentry, inode, absent dentry");
    assert_eq!(rig.errno(stat("big/none")), Errno::ENOENT);
    assert_eq!(rig.fetches - before, 3, "the absence is remembered");
}

#[test]
fn a_small_directory_is_fetched_whole_and_answers_absence() {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("dir"));
    rig.write("dir/a", b"");
    rig.write("dir/b", b"");
    rig.flush();
    rig.ns = pando_mds_core::Namespace::new(rig.ns.config().clone());
    rig.stat("dir/a");
    let before = rig.fetches;
    for i in 0..100 {
        assert_eq!(rig.errno(stat(&format!("dir/x{i}"))), Errno::ENOENT);
    }
    assert_eq!(rig.list("dir"), ["a", "b"]);
    assert_eq!(rig.fetches, before);
}

#[test]
fn a_new_directory_needs_no_fetch() {
    let mut rig = Rig::new(config());
    let before = rig.fetches;
    rig.ok(mkdir("new"));
    assert_eq!(rig.errno(stat("new/x")), Errno::ENOENT);
    rig.write("new/x", b"1");
    assert_eq!(rig.list("new"), ["x"]);
    assert_eq!(rig.fetches, before);
}

#[test]
fn directories_near_the_root_are_spread_and_files_stay_with_theirs() {
    let mut rig = Rig::new(config());
    let shard = |ino: u64| Ino(ino).shard();
    let mut shards = std::collections::BTreeSet::new();
    for i in 0..100 {
        rig.ok(mkdir(&format!("d{i}")));
        let top = rig.stat(&format!("d{i}")).ino;
        assert!(shard(top).0 < 64);
        shards.insert(shard(top));
        let file = rig.write(&format!("d{i}/f"), b"");
        assert_eq!(shard(file.ino), shard(top));
    }
    assert!(shards.len() > 30, "{}", shards.len());
    rig.ok(mkdir("d0/a"));
    rig.ok(mkdir("d0/b"));
    rig.ok(mkdir("d0/c"));
    let second: Vec<ShardId> = ["a", "b", "c"].map(|n| shard(rig.stat(&format!("d0/{n}")).ino)).to_vec();
    assert!(second.iter().any(|s| *s != shard(rig.stat("d0").ino)), "depth 2 is spread as well");
    rig.ok(mkdir("d0/a/x"));
    rig.ok(mkdir("d0/a/x/y"));
    assert_eq!(shard(rig.stat("d0/a/x").ino), second[0], "depth 3 inherits");
    assert_eq!(shard(rig.stat("d0/a/x/y").ino), second[0]);
}

#[test]
fn the_files_of_a_directory_are_neighbours() {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("a"));
    rig.ok(mkdir("a/b"));
    rig.ok(mkdir("a/b/c"));
    rig.ok(mkdir("a/b/d"));
    let mut inos = [Vec::new(), Vec::new()];
    for i in 0..20 {
        inos[0].push(rig.write(&format!("a/b/c/{i}"), b"").ino);
        inos[1].push(rig.write(&format!("a/b/d/{i}"), b"").ino);
    }
    for run in inos {
        assert!(run.windows(2).all(|pair| pair[1] == pair[0] + 1), "{run:?}");
    }
}

#[test]
fn rmdir_of_an_open_directory_leaves_it_empty_and_closed_for_new_names() {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("dir"));
    let base = rig.stat("dir").ino;
    rig.open("dir", 1, R);
    rig.ok(rmdir("dir"));
    let list = Op::Readdir(ReaddirRequest { handle: 1, ..Default::default() });
    let Reply::Readdir(page) = rig.ok(list) else { panic!() };
    assert!(page.entries.is_empty() && page.end);
    let inside = Some(Target { base, path: Bytes::from_static(b"new") });
    let make = Op::Mkdir(MkdirRequest { target: inside.clone(), mode: 0o755, ..Default::default() });
    assert_eq!(rig.errno(make.clone()), Errno::ENOENT, "R21");
    assert_eq!(rig.orphans(), []);
    rig.flush();
    assert_eq!(rig.orphans(), [Ino(base)]);
    rig.ok(close(1));
    rig.flush();
    assert_eq!(rig.orphans(), []);
    assert!(rig.inode(Ino(base)).is_none());
    assert_eq!(rig.errno(make), Errno::ESTALE);
}

#[test]
fn statfs_tells_space_and_limits() {
    let mut rig = Rig::new(config());
    rig.ns.set_space(1000, 300);
    let Reply::Statfs(reply) = rig.ok(Op::Statfs(StatfsRequest {})) else { panic!() };
    assert_eq!((reply.total_bytes, reply.free_bytes, reply.max_name_bytes), (1000, 700, 255));
    assert_eq!(reply.inline_limit, INLINE_LIMIT);
}

#[test]
fn an_answer_from_undurable_state_names_the_batch() {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("dir"));
    let made = rig.pending.back().unwrap().batch;
    rig.run_as(ClientId(1), stat("dir")).unwrap();
    assert_eq!(rig.reads, [made], "R6");
    rig.run_as(ClientId(1), stat("none")).unwrap_err();
    assert_eq!(rig.reads, [made], "absence in a changed directory counts as well");
    rig.flush();
    rig.run_as(ClientId(1), stat("dir")).unwrap();
    assert!(rig.reads.is_empty());
    rig.ok(rmdir("dir"));
    let gone = rig.pending.back().unwrap().batch;
    rig.run_as(ClientId(1), stat("dir")).unwrap_err();
    assert_eq!(rig.reads, [gone]);
    rig.run_as(ClientId(1), readdir("", "", 0)).unwrap();
    assert_eq!(rig.reads, [gone]);
}
