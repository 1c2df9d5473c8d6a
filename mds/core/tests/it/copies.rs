//! A copied cache never says what is not so (R12), whatever is forgotten on either side while it is copied.

use pando_mds_core::api::{Context, Outcome};
use pando_mds_core::{Config, Export, Namespace};
use pando_proto::mds::cache_item::Item;
use pando_proto::mds::operation::Op;
use pando_proto::mds::{CacheItem, Operation};
use pando_proto::{ClientId, Errno};
use proptest::prelude::*;

use crate::rig::*;

const FILES: usize = 60;

fn filled() -> Rig {
    let mut rig = Rig::new(config());
    rig.ok(mkdir("a"));
    (0..FILES).for_each(|at| assert_eq!(rig.write(&name(at), b"old").size, 3));
    rig.flush();
    rig
}

fn write_all(rig: &mut Rig, data: &[u8]) {
    for at in 0..FILES {
        rig.write(&name(at), data);
    }
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

/// Rounds until the one that is begun is over. Operations may run meanwhile.
fn round(rig: &mut Rig, export: &mut Export, max_bytes: usize) -> Vec<CacheItem> {
    let mut items = Vec::new();
    while let Some(slice) = rig.ns.export_round(export, max_bytes) {
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

fn names(items: &[CacheItem]) -> Vec<String> {
    let name = |item: &CacheItem| match &item.item {
        Some(Item::Name(name)) => Some(String::from_utf8(name.name.to_vec()).unwrap()),
        _ => None,
    };
    items.iter().filter_map(name).collect()
}

#[test]
fn r12_a_round_brings_what_is_durable_and_leaves_the_rest_for_the_next() {
    let mut rig = filled();
    let mut export = rig.ns.begin_export();
    let mut items = rest(&mut rig, &mut export, 500);
    rig.write("a/first", b"1");
    rig.flush();
    rig.write("a/second", b"2");
    let first = round(&mut rig, &mut export, 100);
    assert_eq!(names(&first), ["first"], "the other may never become durable");
    assert!(rig.ns.noted() > 0, "it waits");
    rig.flush();
    rig.write(&name(1), b"third");
    let second = round(&mut rig, &mut export, 100);
    assert_eq!(names(&second), ["second"]);
    items.extend(first);
    items.extend(second);
    items.extend(delta(&mut rig, export));
    assert_eq!(rig.ns.noted(), 0, "nothing is noted any more");
    let mut ns = Namespace::new(config());
    ns.import(items).unwrap();
    for path in ["a/first".to_owned(), "a/second".to_owned(), name(1)] {
        assert_eq!(ask(&mut ns, read_file(&path)), Ok(None), "{path} is in memory");
    }
    rig.ns = ns;
    assert_eq!((rig.read("a/second"), rig.read(&name(1))), (b"2".to_vec(), b"third".to_vec()));
    assert_eq!(rig.list("a").len(), FILES + 2);
}

#[test]
fn r12_a_round_that_was_not_sent_to_its_end_comes_with_the_delta() {
    let mut rig = filled();
    let mut export = rig.ns.begin_export();
    let mut items = rest(&mut rig, &mut export, 500);
    write_all(&mut rig, b"newer");
    rig.flush();
    items.extend(rig.ns.export_round(&mut export, 100).unwrap());
    items.extend(delta(&mut rig, export));
    rig.ns = Namespace::new(config());
    rig.ns.import(items).unwrap();
    (0..FILES).for_each(|at| assert_eq!(rig.read(&name(at)), b"newer"));
}

#[test]
fn i8_what_is_noted_is_counted_and_forgotten_at_the_end() {
    let mut rig = filled();
    let pinned = |rig: &Rig| rig.ns.usage().pinned_bytes;
    let before = pinned(&rig);
    let mut export = rig.ns.begin_export();
    rest(&mut rig, &mut export, 500);
    write_all(&mut rig, b"newer");
    rig.flush();
    let noted = pinned(&rig);
    assert!(noted > before);
    rig.ns.export_round(&mut export, 100).unwrap();
    assert!(pinned(&rig) > before, "a round under way is still in memory");
    round(&mut rig, &mut export, 100);
    assert_eq!(pinned(&rig), before);
    write_all(&mut rig, b"newest");
    rig.flush();
    rig.ns.cancel_export(export);
    assert_eq!(pinned(&rig), before);
}

/// What happens between two slices of a copy.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    Unlink(usize),
    Rename(usize, usize),
    /// Durable, so many batches at most.
    Settle(usize),
    Forget,
    /// So many bytes of the copy, or of a round.
    Send(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let file = || 0..FILES + 8;
    let step = prop_oneof![
        4 => file().prop_map(Step::Write),
        2 => file().prop_map(Step::Unlink),
        2 => (file(), file()).prop_map(|(from, to)| Step::Rename(from, to)),
        3 => (0usize..8).prop_map(Step::Settle),
        1 => Just(Step::Forget),
        6 => (1usize..4000).prop_map(Step::Send),
    ];
    prop::collection::vec(step, 1..80)
}

fn apply(rig: &mut Rig, step: Step, number: usize) {
    let run = |rig: &mut Rig, op: Op| drop(rig.run_as(ClientId(1), op));
    match step {
        Step::Write(at) => run(rig, write_file(&name(at), format!("{number}").as_bytes())),
        Step::Unlink(at) => run(rig, unlink(&name(at))),
        Step::Rename(from, to) => run(rig, mv(&name(from), &name(to))),
        Step::Settle(batches) => (0..batches.min(rig.pending.len())).for_each(|_| rig.durable()),
        Step::Forget => forget(&mut rig.ns),
        Step::Send(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn r12_a_copy_with_its_rounds_says_what_the_source_says(steps in steps()) {
        let mut rig = filled();
        let mut export = rig.ns.begin_export();
        let (mut items, mut copied) = (Vec::new(), false);
        for (number, step) in steps.into_iter().enumerate() {
            let Step::Send(bytes) = step else {
                apply(&mut rig, step, number);
                continue;
            };
            let slice = if copied { None } else { rig.ns.export_slice(&mut export, bytes) };
            copied = slice.is_none();
            items.extend(slice.or_else(|| rig.ns.export_round(&mut export, bytes)).unwrap_or_default());
        }
        if !copied {
            items.extend(rest(&mut rig, &mut export, 500));
        }
        items.extend(delta(&mut rig, export));
        let mut ns = Namespace::new(config());
        ns.import(items).unwrap();
        for at in 0..FILES + 8 {
            // From memory alone, first: what it claims to know is so.
            let known = ask(&mut ns, read_file(&name(at)));
            let here = rig.run_as(ClientId(1), read_file(&name(at))).err().map(|error| error.errno);
            if let Ok(known) = known {
                prop_assert_eq!(known, here, "{}", name(at));
            }
        }
        let read = |rig: &mut Rig| -> Vec<String> {
            (0..FILES + 8).map(|at| format!("{:?}", rig.run_as(ClientId(1), read_file(&name(at))))).collect()
        };
        let (before, listed) = (read(&mut rig), rig.list("a"));
        rig.ns = ns;
        prop_assert_eq!(before, read(&mut rig));
        prop_assert_eq!(listed, rig.list("a"));
    }
}
