//! I8: memory stays inside the budget whatever clients do.

use bytes::Bytes;
use pando_mds_core::api::Fetch;
use pando_mds_core::records::Key;
use pando_mds_core::{Config, Namespace};
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::*;
use pando_proto::{ClientId, Errno, Ino};

use crate::rig::*;

const BUDGET: u64 = 200_000;

fn small() -> Config {
    Config { budget_bytes: BUDGET, inline_limit: 4096, ..config() }
}

fn total(rig: &Rig) -> u64 {
    let usage = rig.ns.usage();
    usage.meta_bytes + usage.body_bytes
}

fn settle(rig: &mut Rig) {
    rig.flush();
    let mut calls = 0;
    while rig.ns.evict(100) {
        calls += 1;
        assert!(calls < 10_000, "eviction ends");
    }
}

/// A tree of 50 directories with 40 files each, all durable.
fn forest() -> Rig {
    let mut rig = Rig::new(small());
    for d in 0..50 {
        rig.ok(mkdir(&format!("d{d}")));
        for f in 0..40 {
            rig.write(&format!("d{d}/file-with-a-name-{f}"), &[d as u8; 300]);
        }
        settle(&mut rig);
    }
    rig
}

#[test]
fn the_budget_holds_under_a_walk_over_everything() {
    let mut rig = forest();
    for round in 0..2 {
        for d in 0..50 {
            for f in 0..40 {
                let path = format!("d{d}/file-with-a-name-{f}");
                assert_eq!(rig.read(&path), vec![d as u8; 300], "round {round}");
            }
            settle(&mut rig);
            assert!(total(&rig) <= BUDGET, "I8: {:?}", rig.ns.usage());
        }
    }
    let usage = rig.ns.usage();
    assert!(usage.inodes > 20 && usage.bodies > 20, "and it is used: {usage:?}");
}

#[test]
fn the_budget_holds_in_one_giant_directory() {
    let mut rig = Rig::new(small());
    rig.ok(mkdir("giant"));
    for i in 0..5000 {
        rig.write(&format!("giant/some-name-{i}"), b"");
        if i % 50 == 0 {
            settle(&mut rig);
            assert!(total(&rig) <= BUDGET, "I8");
        }
    }
    for i in (0..5000).step_by(7) {
        rig.stat(&format!("giant/some-name-{i}"));
        assert_eq!(rig.errno(stat(&format!("giant/none-{i}"))), Errno::ENOENT);
        settle(&mut rig);
        assert!(total(&rig) <= BUDGET, "I8");
    }
    let (mut after, mut count) = (Bytes::new(), 0);
    loop {
        let request = ReaddirRequest { target: at("giant"), after: after.clone(), limit: 100, ..Default::default() };
        let Reply::Readdir(page) = rig.ok(Op::Readdir(request)) else { panic!() };
        count += page.entries.len();
        settle(&mut rig);
        assert!(total(&rig) <= BUDGET, "I8");
        if page.end {
            break;
        }
        after = page.entries.last().unwrap().name.clone();
    }
    assert_eq!(count, 5000);
}

#[test]
fn a_giant_directory_does_not_push_everything_else_out() {
    let mut rig = Rig::new(small());
    rig.ok(mkdir("giant"));
    rig.ok(mkdir("other"));
    for i in 0..100 {
        rig.write(&format!("other/{i}"), b"");
    }
    for i in 0..5000 {
        rig.write(&format!("giant/some-name-{i}"), b"");
        if i % 20 == 0 {
            rig.flush();
            rig.ns.evict(10_000);
            for k in 0..20 {
                rig.stat(&format!("other/{k}"));
            }
        }
    }
    let before = rig.fetches;
    for k in 0..20 {
        rig.stat(&format!("other/{k}"));
    }
    assert_eq!(rig.fetches, before, "what is in use stays, while the giant gives names");
}

#[test]
fn absences_cost_and_go() {
    let mut rig = Rig::new(small());
    rig.ok(mkdir("big"));
    for i in 0..1100 {
        rig.write(&format!("big/{i}"), b"");
        if i % 100 == 0 {
            settle(&mut rig);
        }
    }
    settle(&mut rig);
    for i in 0..3000 {
        assert_eq!(rig.errno(stat(&format!("big/no-such-name-at-all-{i}"))), Errno::ENOENT);
        settle(&mut rig);
        assert!(total(&rig) <= BUDGET, "I8");
    }
}

#[test]
fn made_and_removed_names_leave_nothing() {
    let mut rig = Rig::new(small());
    rig.ok(mkdir("tmp"));
    rig.flush();
    let before = rig.ns.usage();
    for i in 0..500 {
        rig.write(&format!("tmp/t{i}"), b"data");
        rig.ok(unlink(&format!("tmp/t{i}")));
        rig.flush();
    }
    assert_eq!(rig.ns.usage(), before);
}

#[test]
fn handles_take_a_bounded_share() {
    let mut rig = Rig::new(small());
    rig.write("f", b"");
    let mut opened = 0;
    let errno = loop {
        let client = ClientId(1 + opened % 7);
        match rig.run_as(client, open("f", opened + 1, R)) {
            Ok(_) => opened += 1,
            Err(error) => break error.errno,
        }
    };
    assert_eq!(errno, Errno::EMFILE);
    assert!(rig.ns.usage().pinned_bytes <= BUDGET / 4 + 10_000, "{:?}", rig.ns.usage());
    rig.stat("f");
}

#[test]
fn bodies_go_before_inodes() {
    let mut rig = Rig::new(small());
    for i in 0..100 {
        rig.write(&format!("f{i}"), &[1; 4000]);
    }
    settle(&mut rig);
    let usage = rig.ns.usage();
    assert_eq!(usage.inodes, 101, "dropping a body drops no inode: {usage:?}");
    assert!(usage.bodies < 50 && total(&rig) <= BUDGET);
}

#[test]
fn what_is_not_durable_is_never_evicted() {
    let mut rig = Rig::new(Config { budget_bytes: 1000, ..small() });
    for i in 0..50 {
        rig.write(&format!("f{i}"), b"data");
    }
    while rig.ns.evict(100) {}
    let before = rig.fetches;
    for i in 0..50 {
        assert_eq!(rig.read(&format!("f{i}")), b"data", "R8");
    }
    assert_eq!(rig.fetches, before);
    settle(&mut rig);
    assert!(total(&rig) <= 1000);
}

#[test]
fn what_a_parked_operation_fetched_stays() {
    let mut rig = forest();
    rig.ns = Namespace::new(Config { budget_bytes: 1, ..small() });
    let root = Fetch::Record(Key::Inode(Ino::ROOT));
    let names = Fetch::Dentries { dir: Ino::ROOT, after: Bytes::new(), limit: 2048 };
    for fetch in [&root, &names] {
        rig.ns.pin(7, fetch);
        let token = rig.ns.begin_fetch(fetch);
        let fetched = read_store(&rig.store, 1000, fetch);
        rig.ns.install(token, fetched).unwrap();
    }
    while rig.ns.evict(100) {}
    assert_eq!(rig.ns.usage().inodes, 1);
    let before = rig.ns.usage().meta_bytes;
    assert!(before > 5000, "inode and 50 names are there: {before}");
    rig.ns.unpin(7);
    while rig.ns.evict(100) {}
    assert_eq!(rig.ns.usage().meta_bytes, 0);
}

#[test]
fn counts_follow_contents() {
    let mut rig = Rig::new(Config { budget_bytes: 1 << 30, ..small() });
    let empty = total(&rig);
    for i in 0..1000 {
        rig.write(&format!("f{i}"), &[0; 1000]);
    }
    rig.flush();
    let full = total(&rig) - empty;
    assert!(full > 1000 * (1000 + 400) && full < 1000 * (1000 + 2000), "{full}");
    assert_eq!(rig.ns.usage().pinned_bytes, 0);
}
