//! Where a subtree ends, one behaviour at a time. The forest's random test has them together.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pando_mds_core::api::{Context, Crossing, Located, Outcome};
use pando_mds_core::records::Key;
use pando_mds_core::{Config, Namespace};
use pando_proto::mds::cache_item::Item;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;
use pando_proto::{ClientId, Errno, Error, Ino, Reason, SubtreeId};
use prost::Message as _;

use crate::forest::{Answer, Forest, ROOT_SUBTREE, Warmth};
use crate::rig::*;

const CHILD: SubtreeId = SubtreeId(2);

fn forest(dirs: &[&str], split: &[&str]) -> Forest {
    let mut forest = Forest::new(Config { inline_limit: 4096, ..config() });
    dirs.iter().for_each(|dir| {
        forest.run(1, 0, mkdir(dir)).unwrap();
        forest.model.mkdir(0, 0, dir, 0o755).unwrap();
    });
    split.iter().for_each(|dir| assert!(forest.split(dir, true), "{dir} is split off"));
    forest
}

fn based(base: Ino, path: &str) -> Option<Target> {
    Some(Target { base: base.0, path: Bytes::copy_from_slice(path.as_bytes()) })
}

fn stat_of(target: Option<Target>) -> Op {
    Op::Stat(StatRequest { target, follow: true, ..Default::default() })
}

fn crossings(forest: &mut Forest, subtree: SubtreeId, op: Op) -> Vec<Crossing> {
    match forest.run_at(subtree, 1, &Operation { op: Some(op) }) {
        Answer::Cross(crossings) => crossings,
        Answer::Done(result) => panic!("{result:?}"),
    }
}

fn refused(forest: &mut Forest, subtree: SubtreeId, op: Op) -> Error {
    match forest.run_at(subtree, 1, &Operation { op: Some(op) }) {
        Answer::Done(Err(error)) => error,
        Answer::Done(Ok(reply)) => panic!("{reply:?}"),
        Answer::Cross(crossings) => panic!("{crossings:?}"),
    }
}

fn done(forest: &mut Forest, subtree: SubtreeId, op: Op) -> Reply {
    match forest.run_at(subtree, 1, &Operation { op: Some(op) }) {
        Answer::Done(result) => result.unwrap(),
        Answer::Cross(crossings) => panic!("{crossings:?}"),
    }
}

fn ino(forest: &mut Forest, path: &str) -> Ino {
    let Reply::Stat(reply) = forest.run(1, 0, stat(path)).unwrap() else { panic!("wrong reply") };
    let last = forest.client.last;
    forest.flush(last);
    Ino(reply.attr.unwrap().ino)
}

#[test]
fn a_crossing_has_the_rest_of_the_path_and_what_may_be_skipped() {
    let mut f = forest(&["a", "a/b", "a/b/c"], &["a/b"]);
    f.run(1, 0, symlink("s", "a//b/c/")).unwrap();
    let root = f.map[&CHILD].root;
    let expect = |path: &str, consumed| {
        vec![Crossing {
            target: 0,
            subtree: CHILD,
            base: root,
            path: Bytes::copy_from_slice(path.as_bytes()),
            consumed,
        }]
    };
    for (path, rest, consumed) in [
        ("a/b", "", 3),
        ("a/b/", "", 3),
        ("a/b/c", "c", 3),
        ("a//./b//c/x/", "c/x/", 6),
        ("a/../a/b/c", "c", 0),
        ("s/x", "c//x", 0),
        ("s/../y", "c//../y", 0),
    ] {
        assert_eq!(crossings(&mut f, ROOT_SUBTREE, stat_of(at(path))), expect(rest, consumed), "{path}");
    }
}

#[test]
fn dot_dot_and_absolute_paths_leave_a_subtree_upwards() {
    let mut f = forest(&["a", "a/b", "a/b/c"], &["a/b"]);
    f.run(1, 0, symlink("a/b/s", "/a/b/c")).unwrap();
    let (root, dir) = (f.map[&CHILD].root, ino(&mut f, "a"));
    let up = |base, path: &str| {
        let path = Bytes::copy_from_slice(path.as_bytes());
        vec![Crossing { target: 0, subtree: ROOT_SUBTREE, base, path, consumed: 0 }]
    };
    assert_eq!(crossings(&mut f, CHILD, stat_of(based(root, "c/../../x"))), up(dir, "x"));
    assert_eq!(crossings(&mut f, CHILD, stat_of(based(root, "s/y"))), up(Ino::ROOT, "a/b/c/y"));
    assert_eq!(crossings(&mut f, CHILD, stat_of(at("a/b"))), up(Ino::ROOT, "a/b"));
    assert_eq!(crossings(&mut f, CHILD, stat_of(based(Ino::ROOT, "a"))), up(Ino::ROOT, "a"));
    // What ends in `..` is no name, wherever that is.
    let rmdir = Op::Rmdir(RmdirRequest { target: based(root, ".."), ..Default::default() });
    assert_eq!(refused(&mut f, CHILD, rmdir).errno, Errno::ENOTEMPTY);
}

#[test]
fn an_inode_is_found_by_the_way_to_a_root() {
    // R15
    let mut f = forest(&["a", "a/b", "a/b/c", "a/d"], &["a/b"]);
    let (inside, outside) = (ino(&mut f, "a/b/c"), ino(&mut f, "a/d"));
    let crossing = crossings(&mut f, ROOT_SUBTREE, stat_of(based(inside, "x")));
    assert_eq!((crossing[0].subtree, crossing[0].base, crossing[0].consumed), (CHILD, inside, 0));
    assert_eq!(crossing[0].path, "x");
    let crossing = crossings(&mut f, CHILD, stat_of(based(outside, "")));
    assert_eq!((crossing[0].subtree, crossing[0].base), (ROOT_SUBTREE, outside));
    assert_eq!(refused(&mut f, CHILD, stat_of(based(Ino(77), ""))).errno, Errno::ESTALE);
    // Nothing of the other subtree stays.
    let before = f.at(CHILD).ns.usage().inodes;
    crossings(&mut f, CHILD, stat_of(based(outside, "")));
    assert_eq!(f.at(CHILD).ns.usage().inodes, before);
}

#[test]
fn names_of_roots_are_their_parents() {
    let mut f = forest(&["a", "b"], &["a"]);
    f.run(1, 0, write_file("a/f", b"")).unwrap();
    f.model.write_file(0, 0, "a/f", (true, false, true), b"", 0o644, |_| false).unwrap();
    assert_eq!(refused(&mut f, ROOT_SUBTREE, rmdir("a")).errno, Errno::ENOTEMPTY);
    assert_eq!(refused(&mut f, ROOT_SUBTREE, mv("b", "a")).errno, Errno::ENOTEMPTY);
    assert_eq!(refused(&mut f, ROOT_SUBTREE, unlink("a")).errno, Errno::EISDIR);
    assert_eq!(refused(&mut f, ROOT_SUBTREE, mkdir("a")).errno, Errno::EEXIST);
    let Reply::Readdir(page) = done(
        &mut f,
        ROOT_SUBTREE,
        Op::Readdir(ReaddirRequest { target: at(""), want_attrs: true, ..Default::default() }),
    ) else {
        panic!("wrong reply")
    };
    let known: Vec<_> = page.entries.iter().map(|entry| (entry.name.as_ref(), entry.attr.is_some())).collect();
    assert_eq!(known, [(&b"a"[..], false), (b"b", true)], "R15: a root is not answered by the parent");
}

#[test]
fn two_targets_meet_where_the_first_one_is() {
    let mut f = forest(&["a", "b", "a/x"], &["a", "b"]);
    let roots = [f.map[&CHILD].root, f.map[&SubtreeId(3)].root];
    let both = crossings(&mut f, ROOT_SUBTREE, mv("a/x", "b/y"));
    assert_eq!(
        both.iter().map(|c| (c.target, c.subtree, c.base)).collect::<Vec<_>>(),
        [(0, CHILD, roots[0]), (1, SubtreeId(3), roots[1])]
    );
    // The second is resolved here: nobody else can know better.
    let both = crossings(&mut f, ROOT_SUBTREE, mv("a/x", "y"));
    assert_eq!((both[1].target, both[1].subtree, both[1].base), (1, ROOT_SUBTREE, Ino::ROOT));
    for (from, to) in [("a/x", "b/y"), ("b/y", "y"), ("b/../y", "a/x"), ("a/x", "b/../a/y")] {
        f.run(1, 0, mv(from, to)).unwrap_or_else(|error| panic!("{from} {to}: {error}"));
    }
    f.run(1, 0, write_file("f", b"f")).unwrap();
    f.run(1, 0, link("f", "a/f")).unwrap();
    assert_eq!(f.run(1, 0, mv("f", "a/../f2")).map(|_| ()), Ok(()), "a detour is no other subtree");
    assert_eq!(f.run(1, 0, mv("a/y", "nowhere/z")).unwrap_err().errno, Errno::ENOENT);
}

#[test]
fn a_file_with_names_in_two_subtrees_has_one_home() {
    // R15: its primary name.
    let mut f = forest(&["a", "b"], &[]);
    f.run(1, 0, write_file("a/f", b"one")).unwrap();
    f.run(1, 0, link("a/f", "b/g")).unwrap();
    f.model.write_file(0, 0, "a/f", (true, false, true), b"one", 0o644, |_| false).unwrap();
    f.model.link(0, 0, "a/f", "b/g").unwrap();
    assert!(f.split("a", true));
    let Reply::ReadFile(reply) = f.run(1, 0, read_file("b/g")).unwrap() else { panic!("wrong reply") };
    assert_eq!((reply.body.unwrap().as_ref(), f.client.last), (&b"one"[..], CHILD));
    f.run(1, 0, write_file("b/g", b"two")).unwrap();
    f.run(1, 0, mv("a/f", "a/e")).unwrap();
    f.merge(CHILD, Warmth::Both);
    f.run(1, 0, unlink("a/e")).unwrap();
    let Reply::ReadFile(reply) = f.run(1, 0, read_file("b/g")).unwrap() else { panic!("wrong reply") };
    assert_eq!(reply.body.unwrap().as_ref(), b"two");
}

#[test]
fn the_way_to_a_subtree_changes_only_after_its_route() {
    // R16
    let mut f = forest(&["a", "a/b", "a/b/c", "a/b/c/e", "d", "d/x"], &["a/b/c", "a/b/c/e"]);
    let third = SubtreeId(3);
    let routes = |f: &Forest| (f.map[&CHILD].route, f.map[&third].route);
    let chmod = |path: &str, mode| {
        Op::SetAttr(SetAttrRequest { target: at(path), follow: true, mode: Some(mode), ..Default::default() })
    };
    let quiet = routes(&f);
    for op in [chmod("d", 0o700), mv("d", "d2"), chmod("a", 0o755), chmod("a/b/c", 0o755), write_file("a/f", b"")] {
        f.run(1, 0, op).unwrap();
        assert_eq!(routes(&f), quiet);
    }
    f.run(1, 0, chmod("a/b", 0o700)).unwrap();
    assert_eq!(routes(&f), (quiet.0 + 1, quiet.1 + 1));
    f.run(1, 0, mv("a", "z")).unwrap();
    f.run(1, 0, chmod("", 0o711)).unwrap();
    assert_eq!(routes(&f), (quiet.0 + 3, quiet.1 + 3));
    // In the child its own root is on the way to the third only.
    f.run(1, 0, chmod("z/b/c", 0o711)).unwrap();
    assert_eq!(routes(&f), (quiet.0 + 3, quiet.1 + 4));
    f.run(1, 0, rename("z", "d2", RenameMode::Exchange)).unwrap();
    assert_eq!(routes(&f), (quiet.0 + 4, quiet.1 + 5));
    // Who may not change it raises nothing.
    let denied = SetAttrRequest {
        caller: Some(Caller { uid: 1, ..Default::default() }),
        target: at("d2"),
        mode: Some(0),
        ..Default::default()
    };
    assert_eq!(refused(&mut f, ROOT_SUBTREE, Op::SetAttr(denied)).errno, Errno::EPERM);
    assert_eq!(refused(&mut f, ROOT_SUBTREE, mv("d2", "d2/b/x")).errno, Errno::EINVAL);
    assert_eq!(routes(&f), (quiet.0 + 4, quiet.1 + 5));
}

#[test]
fn handles_are_asked_for_before_they_are_missed() {
    // R19
    let mut f = forest(&["a", "b"], &[]);
    for (path, handle) in [("a/f", 1), ("b/g", 2)] {
        let request = OpenRequest { target: at(path), handle, flags: R | W | C, mode: 0o644, ..Default::default() };
        f.open_handle(1, 0, request).unwrap();
        f.model.open(0, 0, (1, handle), path, (true, true, true, false, false), 0o644).unwrap();
    }
    assert!(f.split("a", true));
    let moved = f.client.handles[&(1, 1)].ino;
    let read = Op::Read(ReadRequest { handle: 1, ino: moved, offset: 0, length: 10 });
    assert_eq!(refused(&mut f, ROOT_SUBTREE, read.clone()).reason, Reason::ReclaimFirst);
    f.reclaimed(ROOT_SUBTREE, 1);
    let crossing = crossings(&mut f, ROOT_SUBTREE, read.clone());
    assert_eq!((crossing[0].subtree, crossing[0].base.0), (CHILD, moved));
    let nobody = Op::Read(ReadRequest { handle: 9, ino: 0, offset: 0, length: 10 });
    assert_eq!(refused(&mut f, ROOT_SUBTREE, nobody).errno, Errno::EBADF);
    let handles = [1, 2].map(|handle| {
        let held = f.client.handles[&(1, handle)].clone();
        ReclaimedHandle { handle, ino: held.ino, flags: R | W }
    });
    let reclaim = Op::Reclaim(ReclaimRequest { handles: handles.to_vec() });
    let Reply::Reclaim(reply) = done(&mut f, ROOT_SUBTREE, reclaim) else { panic!("wrong reply") };
    assert_eq!(reply.elsewhere, [HandleElsewhere { handle: 1, subtree: CHILD.0 }]);
    assert!(reply.lost.is_empty());
    f.come_back(1, true);
    assert_eq!(f.run_held(1, 1, |_, _| read.clone()).map(|_| ()), Ok(()));
}

#[test]
fn what_is_left_to_do_says_who_is_to_do_it() {
    let mut f = forest(&["a"], &["a"]);
    f.come_back(1, true);
    f.come_back(2, true);
    let request = OpenRequest { target: at("a/f"), handle: 1, flags: R | C, mode: 0o644, ..Default::default() };
    f.open_handle(1, 0, request).unwrap();
    f.run(1, 0, unlink("a/f")).unwrap();
    f.flush(CHILD);
    let record = |f: &Forest, key: Key| f.store[&key.encode()].slice(1..);
    let orphan = Ino(f.client.handles[&(1, 1)].ino);
    assert_eq!(OrphanRecord::decode(record(&f, Key::Orphan(orphan))).unwrap().subtree, CHILD.0);
    // One batch of a file in objects that is cut.
    let grow = |size| Op::SetAttr(SetAttrRequest { target: at("a/g"), size: Some(size), ..Default::default() });
    f.run(1, 0, write_file("a/g", b"")).unwrap();
    f.run(1, 0, grow(100_000)).unwrap();
    let request = OpenRequest { target: at("a/g"), handle: 2, flags: W, ..Default::default() };
    f.open_handle(1, 0, request).unwrap();
    f.run_held(1, 2, |handle, ino| Op::GrantSize(GrantSizeRequest { handle, ino, size: 200_000 })).unwrap();
    let root = f.map[&CHILD].root;
    let unlink = Op::Unlink(UnlinkRequest { target: based(root, "g"), ..Default::default() });
    let close = Op::Close(CloseRequest { handle: 2, ..Default::default() });
    done(&mut f, CHILD, close);
    let context = Context { client: ClientId(1), ..Context::default() };
    let Outcome::Done(done) = f.at(CHILD).ns.apply(&Operation { op: Some(unlink) }, &context) else {
        panic!("everything is in memory")
    };
    let purge = done.change.unwrap().writes.into_iter().find(|write| matches!(write.key, Key::Purge(_))).unwrap();
    assert_eq!(PurgeRecord::decode(purge.value.unwrap().slice(1..)).unwrap().subtree, CHILD.0);
}

#[test]
fn only_a_directory_that_is_no_root_can_be_split_off() {
    let mut f = forest(&["a", "a/b"], &["a"]);
    f.run(1, 0, write_file("f", b"")).unwrap();
    let locate = |f: &mut Forest, subtree, base, path: &str| {
        f.at(subtree).ns.locate(&based(base, path).unwrap(), &Context::default())
    };
    assert!(matches!(locate(&mut f, ROOT_SUBTREE, Ino(0), "f"), Located::Refused(_)));
    assert!(matches!(locate(&mut f, ROOT_SUBTREE, Ino(0), ""), Located::Refused(_)));
    let Located::Refused(error) = locate(&mut f, ROOT_SUBTREE, Ino(0), "x") else { panic!("there is none") };
    assert_eq!(error.errno, Errno::ENOENT);
    assert!(matches!(locate(&mut f, ROOT_SUBTREE, Ino(0), "a/b"), Located::Cross(_)));
    let root = f.map[&CHILD].root;
    assert!(matches!(locate(&mut f, CHILD, root, ""), Located::Refused(_)));
    assert!(matches!(locate(&mut f, CHILD, root, "b"), Located::Directory { .. }));
}

#[test]
fn heat_is_told_by_the_directories_below_the_root() {
    let mut f = forest(&["a", "a/b", "c"], &[]);
    let hot: Vec<Op> = (0..800).map(|at| write_file(&format!("a/b/{}", at % 10), b"")).collect();
    let cold: Vec<Op> = (0..80).map(|at| write_file(&format!("c/{}", at % 10), b"")).collect();
    f.at(ROOT_SUBTREE).ns.heat();
    hot.into_iter().chain(cold).for_each(|op| drop(f.run(1, 0, op).unwrap()));
    let heat = f.at(ROOT_SUBTREE).ns.heat();
    let of = |name: &[u8]| heat.iter().find(|(_, at, _)| at == name).unwrap().2;
    let (hot, cold) = (of(b"a"), of(b"c"));
    assert_eq!(heat.len(), 2);
    assert!((hot - 800.0).abs() <= 80.0 && (cold - 80.0).abs() <= 16.0, "{heat:?}");
    assert!(f.at(ROOT_SUBTREE).ns.heat().is_empty());
}

#[test]
fn strange_items_are_refused() {
    let record = |ino, record: &'static [u8]| CachedRecord { ino, record: Some(Bytes::from_static(record)) };
    let name = |dir, name: &'static [u8], record: &'static [u8]| CachedName {
        dir,
        name: Bytes::from_static(name),
        record: Some(Bytes::from_static(record)),
    };
    let entry = CachedEntry { name: Bytes::from_static(b"a/b"), record: Bytes::from_static(b"\x01\x08\x05\x10\x01") };
    let items = [
        None,
        Some(Item::Inode(record(0, b"\x01"))),
        Some(Item::Inode(record(5, b""))),
        Some(Item::Inode(record(5, b"\x01\xff"))),
        Some(Item::Inode(record(5, b"\x01"))),
        Some(Item::Inode(record(1 << 63, b"\x01\x08\x01"))),
        Some(Item::Body(record(5, b"\x01\xff"))),
        Some(Item::Name(name(5, b"", b"\x01\x08\x05\x10\x01"))),
        Some(Item::Name(name(5, b"a", b"\x01\x08\x05"))),
        Some(Item::Names(CachedNames { dir: 5, complete: true, entries: vec![entry] })),
        Some(Item::UnknownName(name(0, b"a", b""))),
    ];
    for item in items {
        let text = format!("{item:?}");
        let error = Namespace::new(config()).import(vec![CacheItem { item }]).unwrap_err();
        assert!(matches!(error.reason, Reason::Corrupt | Reason::InvalidRequest), "{text}: {error}");
    }
    let newer = CacheItem { item: Some(Item::Inode(record(5, b"\x02"))) };
    assert_eq!(Namespace::new(config()).import(vec![newer]).unwrap_err().reason, Reason::NewerFormat);
}

#[test]
fn a_copy_takes_no_more_than_its_place() {
    // I8
    let mut f = forest(&["a"], &[]);
    (0..500).for_each(|at| drop(f.run(1, 0, write_file(&format!("a/{at}"), &[7; 100])).unwrap()));
    f.flush(ROOT_SUBTREE);
    let from = &mut f.at(ROOT_SUBTREE).ns;
    let mut export = from.begin_export();
    let mut small = Namespace::new(Config { budget_bytes: 50_000, ..config() });
    while let Some(items) = from.export_slice(&mut export, 1000) {
        small.import(items).unwrap();
    }
    from.cancel_export(export);
    let usage = small.usage();
    assert!(usage.inodes > 20 && usage.meta_bytes + usage.body_bytes < 60_000, "{usage:?}");
    // Half a directory is not taken for the whole.
    let outcome = small.apply(&Operation { op: Some(stat("a/499")) }, &Context::default());
    assert!(matches!(outcome, Outcome::Missing(_)), "{outcome:?}");
}

/// R22, R23: the new owner of a file must not find the record of a cut that was done, and cut again.
#[test]
fn r18_a_file_is_given_away_when_the_end_of_its_last_cut_is_durable() {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("b"));
    rig.write("f", &[1; 60]);
    rig.ok(resize("f", 200));
    rig.flush();
    let child = Ino(rig.stat("b").ino);
    let mut splitting = rig.ns.begin_split(child, config());
    while rig.ns.split_slice(&mut splitting, 64) {}
    drop(rig.ns.end_split(splitting));
    let roots = BTreeMap::from([(Ino::ROOT, ROOT_SUBTREE), (child, CHILD)]);
    let forest = Arc::new(pando_mds_core::Forest { roots, ..Default::default() });
    rig.ns.set_tree(pando_mds_core::Tree { subtree: ROOT_SUBTREE, forest, ..Default::default() });
    rig.late_purges = true;
    rig.ok(resize("f", 20));
    rig.flush();
    rig.purge();
    let cut = rig.pending.back().expect("the end of the cut").batch;
    let waits_for = |rig: &mut Rig| {
        let request = RenameRequest { from: at("f"), to: based(child, "f"), ..Default::default() };
        let operation = Operation { op: Some(Op::Rename(request)) };
        match rig.ns.apply(&operation, &Context { client: ClientId(1), ..Context::default() }) {
            Outcome::Across(across, _) => across.unsettled.to_vec(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(waits_for(&mut rig), [cut]);
    rig.flush();
    assert_eq!(waits_for(&mut rig), []);
}

#[test]
fn i7_what_another_subtree_has_removed_is_not_reaped_here() {
    let mut rig = Rig::new(Config { subtree: CHILD, ..config() });
    rig.write("f", b"open there");
    rig.open("f", 1, R);
    rig.ok(unlink("f"));
    rig.flush();
    let orphan = rig.orphans()[0];
    let mut reaps = |roots: &[(Ino, SubtreeId)]| {
        rig.ns = Namespace::new(Config { subtree: ROOT_SUBTREE, ..config() });
        let roots = roots.iter().copied().collect();
        let forest = Arc::new(pando_mds_core::Forest { roots, ..Default::default() });
        rig.ns.set_tree(pando_mds_core::Tree { subtree: ROOT_SUBTREE, forest, ..Default::default() });
        rig.reap(orphan);
        rig.pending.drain(..).next().is_some()
    };
    assert!(!reaps(&[(Ino::ROOT, ROOT_SUBTREE), (Ino(77), CHILD)]), "its sessions are not heard here");
    assert!(reaps(&[(Ino::ROOT, ROOT_SUBTREE)]), "it is no more");
}
