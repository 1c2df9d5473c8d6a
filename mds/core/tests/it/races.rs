//! R8: a fetch that was under way while its record changed brings nothing old back, however short memory is.

use bytes::Bytes;
use pando_mds_core::api::Fetch;
use pando_mds_core::records::Key;
use pando_mds_core::{Config, Namespace};
use pando_proto::mds::operation::Op;
use pando_proto::mds::*;
use pando_proto::{Errno, Ino};

use crate::rig::*;

/// Files `a` to `e` in `dir`, all durable; a namespace that keeps nothing it may drop.
fn world() -> (Rig, Config, Ino, Ino) {
    let config = Config { budget_bytes: 1, ..config() };
    let mut rig = Rig::new(crate::rig::config());
    rig.ok(mkdir("dir"));
    for name in ["a", "b", "c", "d", "e"] {
        rig.write(&format!("dir/{name}"), b"old");
    }
    rig.ok(link("dir/c", "c2"));
    rig.ok(link("dir/c", "c3"));
    let (dir, file) = (Ino(rig.stat("dir").ino), Ino(rig.stat("dir/c").ino));
    rig.flush();
    rig.ns = Namespace::new(config.clone());
    (rig, config, dir, file)
}

fn all_fetches(dir: Ino, file: Ino) -> Vec<Fetch> {
    let page = |limit| Fetch::Dentries { dir, after: Bytes::new(), limit };
    vec![
        Fetch::Record(Key::Inode(file)),
        Fetch::Record(Key::Inode(dir)),
        Fetch::Record(Key::Body(file)),
        Fetch::Record(Key::Dentry(dir, Bytes::from_static(b"c"))),
        page(100),
        page(3),
        Fetch::BackLinks { ino: file, after: Bytes::new(), limit: 10 },
    ]
}

fn evict(rig: &mut Rig) {
    while rig.ns.evict(10) {}
}

/// Runs `change` while each of the fetches is under way: all of it, or only its way to the disk.
fn race(change: impl Fn(&mut Rig), check: impl Fn(&mut Rig, Ino)) {
    for kind in 0..all_fetches(Ino::ROOT, Ino::ROOT).len() {
        for changed_before in [false, true] {
            let (mut rig, _, dir, file) = world();
            let fetch = &all_fetches(dir, file)[kind];
            if changed_before {
                change(&mut rig);
            }
            // Reads the store as it was before the change.
            rig.begin_late(fetch);
            if !changed_before {
                change(&mut rig);
            }
            evict(&mut rig);
            rig.flush();
            evict(&mut rig);
            // A neighbour's coming and going does not open the gap.
            rig.stat("dir/b");
            evict(&mut rig);
            // From here on all stays: what the fetch brings would be seen.
            rig.ns.set_budget(64 << 20);
            rig.end_late();
            check(&mut rig, file);
            rig.ns.set_budget(1);
            evict(&mut rig);
            check(&mut rig, file);
        }
    }
}

fn by_number(ino: Ino) -> Op {
    let target = Some(Target { base: ino.0, path: Bytes::new() });
    Op::Stat(StatRequest { target, ..Default::default() })
}

#[test]
fn a_rewritten_file_keeps_its_new_content() {
    race(
        |rig| {
            rig.write("dir/c", b"newer");
        },
        |rig, _| assert_eq!(rig.read("dir/c"), b"newer"),
    );
}

#[test]
fn a_removed_name_stays_removed() {
    race(
        |rig| {
            rig.ok(unlink("dir/c"));
        },
        |rig, file| {
            assert_eq!(rig.errno(stat("dir/c")), Errno::ENOENT);
            assert_eq!(rig.list("dir"), ["a", "b", "d", "e"]);
            assert_eq!(rig.stat("c2").ino, file.0);
        },
    );
}

#[test]
fn a_removed_inode_stays_removed() {
    race(
        |rig| {
            for path in ["dir/c", "c2", "c3"] {
                rig.ok(unlink(path));
            }
        },
        |rig, file| assert_eq!(rig.errno(by_number(file)), Errno::ESTALE),
    );
}

#[test]
fn a_new_name_stays() {
    race(
        |rig| {
            rig.ok(mv("dir/c", "dir/bb"));
        },
        |rig, file| {
            assert_eq!(rig.stat("dir/bb").ino, file.0);
            assert_eq!(rig.errno(stat("dir/c")), Errno::ENOENT);
            assert_eq!(rig.list("dir"), ["a", "b", "bb", "d", "e"]);
        },
    );
}

#[test]
fn a_removed_link_does_not_become_the_primary() {
    race(
        |rig| {
            rig.ok(unlink("c2"));
        },
        |rig, file| {
            if rig.run(unlink("dir/c")).is_ok() {
                rig.flush();
                let record = rig.inode(file).unwrap();
                assert_eq!((record.parent, &record.name[..]), (1, &b"c3"[..]));
            }
        },
    );
}

#[test]
fn a_token_that_was_handed_back_installs_nothing() {
    let (mut rig, _, _, file) = world();
    let fetch = Fetch::Record(Key::Inode(file));
    let token = rig.ns.begin_fetch(&fetch);
    let old = read_store(&rig.store, 10, &fetch);
    rig.ns.abandon_fetch(token);
    rig.write("dir/c", b"newer");
    rig.flush();
    evict(&mut rig);
    rig.ns.install(token, old).unwrap();
    assert_eq!(rig.stat("dir/c").size, 5);
}
