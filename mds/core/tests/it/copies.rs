//! A copied cache never says what is not so (R12), whatever is forgotten on either side while it is copied.

use pando_mds_core::api::{Context, Outcome};
use pando_mds_core::{Config, Export, Namespace};
use pando_proto::mds::cache_item::Item;
use pando_proto::mds::operation::Op;
use pando_proto::mds::{CacheItem, Operation};
use pando_proto::{ClientId, Errno};

use crate::rig::*;

const FILES: usize = 60;

fn filled() -> Rig {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("a"));
    (0..FILES).for_each(|at| assert_eq!(rig.write(&name(at), b"old").size, 3));
    rig.flush();
    rig
}

fn name(at: usize) -> String {
    format!("a/{at:03}")
}

/// Everything that may go, goes.
fn forget(ns: &mut Namespace) {
    let budget = ns.config().budget_bytes;
    ns.set_budget(0);
    while ns.evict(1000) {}
    ns.set_budget(budget);
}

fn rest(rig: &mut Rig, export: &mut Export, max_bytes: usize) -> Vec<CacheItem> {
    let mut items = Vec::new();
    while let Some(slice) = rig.ns.export_slice(export, max_bytes) {
        items.extend(slice);
    }
    items
}

fn delta(rig: &mut Rig, export: Export) -> Vec<CacheItem> {
    rig.flush();
    let (mut slices, mut items) = (rig.ns.export_delta(export), Vec::new());
    while let Some(slice) = slices.next(&mut rig.ns, 100) {
        items.extend(slice);
    }
    items
}

/// From memory alone: the error, `None` for success, or that something has to be fetched.
fn ask(ns: &mut Namespace, op: Op) -> Result<Option<Errno>, ()> {
    let context = Context { now: 1, client: ClientId(1), ..Context::default() };
    match ns.apply(&Operation { op: Some(op) }, &context) {
        Outcome::Done(done) => Ok(done.result.err().map(|error| error.errno)),
        Outcome::Missing(_) => Err(()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_changed_and_was_forgotten_since_is_not_known_at_the_destination() {
    let mut rig = filled();
    let mut export = rig.ns.begin_export();
    let mut items = rest(&mut rig, &mut export, 500);
    rig.write(&name(3), b"newer");
    rig.ok(unlink(&name(4)));
    rig.ok(write_file("a/new", b"new"));
    rig.flush();
    forget(&mut rig.ns);
    let changed = delta(&mut rig, export);
    let count =
        |wanted: fn(&Item) -> bool| changed.iter().filter(|item| item.item.as_ref().is_some_and(wanted)).count();
    assert!(count(|item| matches!(item, Item::UnknownInode(_))) >= 3);
    assert!(count(|item| matches!(item, Item::UnknownBody(_))) >= 2);
    assert!(count(|item| matches!(item, Item::UnknownName(_))) >= 2);
    items.extend(changed);
    let mut ns = Namespace::new(config());
    ns.import(items).unwrap();
    // The directory's inode has changed too; the rest is as it was.
    for path in [name(3), name(4), "a/new".to_owned()] {
        assert_eq!(ask(&mut ns, read_file(&path)), Err(()), "{path}");
    }
    rig.ns = ns;
    assert_eq!(rig.read(&name(3)), b"newer");
    assert_eq!(rig.errno(stat(&name(4))), Errno::ENOENT);
    assert_eq!(rig.read("a/new"), b"new");
    assert_eq!(rig.list("a").len(), FILES);
}

#[test]
fn a_directory_that_was_forgotten_in_parts_is_not_taken_for_the_whole() {
    let mut rig = filled();
    let mut export = rig.ns.begin_export();
    let mut items = rig.ns.export_slice(&mut export, 2000).unwrap();
    // Gone and fetched again, part by part: what was passed over meanwhile is not in the copy.
    forget(&mut rig.ns);
    rig.page = 2;
    rig.stat(&name(FILES / 2));
    items.extend(rig.ns.export_slice(&mut export, 1).unwrap_or_default());
    rig.page = 1000;
    rig.list("a");
    items.extend(rest(&mut rig, &mut export, 500));
    items.extend(delta(&mut rig, export));
    rig.ns = Namespace::new(config());
    rig.ns.import(items).unwrap();
    (0..FILES).for_each(|at| assert_eq!(rig.stat(&name(at)).size, 3));
}

#[test]
fn a_destination_that_forgot_parts_does_not_take_them_for_absent() {
    let mut rig = filled();
    let mut export = rig.ns.begin_export();
    let items = rest(&mut rig, &mut export, 500);
    let whole = |item: &CacheItem| matches!(&item.item, Some(Item::Names(names)) if names.complete && names.dir != 1);
    assert_eq!(items.iter().filter(|item| whole(item)).count(), 1);
    let mut all = Namespace::new(Config { ..config() });
    all.import(items.clone()).unwrap();
    assert_eq!(ask(&mut all, stat("a/none")), Ok(Some(Errno::ENOENT)), "else the test shows nothing");
    let mut ns = Namespace::new(config());
    for (at, item) in items.into_iter().enumerate() {
        ns.import(vec![item]).unwrap();
        if at == FILES / 2 {
            forget(&mut ns);
        }
    }
    rig.ns.cancel_export(export);
    rig.ns = ns;
    (0..FILES).for_each(|at| assert_eq!(rig.stat(&name(at)).size, 3));
}
