use std::collections::BTreeMap;

use pando_proto::Ino;
use pando_proto::mds::FileKind;
use proptest::prelude::*;

use super::*;

fn dentry(ino: u64) -> Dentry {
    Dentry { ino: Ino(ino), kind: FileKind::File, remote: false }
}

fn name(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn stamp(batch: u64) -> Stamp {
    Stamp { changed: batch, batch: Some(BatchId(batch)) }
}

fn all(_: &Bytes, _: &Name) -> bool {
    true
}

#[test]
fn a_new_directory_is_complete_and_stays_so() {
    let mut names = Names::complete();
    assert_eq!(names.lookup(b"x"), Lookup::Absent(None));
    assert!(names.set(&name("x"), Some(dentry(5)), stamp(1)));
    assert!(!names.set(&name("x"), None, stamp(1)), "the batch has touched it already");
    assert_eq!(names.lookup(b"x"), Lookup::Absent(Some(BatchId(1))), "R6: the absence is not durable yet");
    names.clean(&name("x"), BatchId(1), 2, true);
    assert!(names.is_empty() && names.is_complete());
    assert_eq!(names.lookup(b"x"), Lookup::Absent(None));
    names.check();
}

#[test]
fn an_evicted_name_leaves_an_unknown_gap_and_a_page_closes_it() {
    let mut names = Names::unknown();
    let entries: Vec<_> = ["a", "c", "e"].iter().map(|text| (name(text), dentry(1))).collect();
    names.install_page(b"", &entries, true);
    assert!(names.is_complete());
    assert_eq!(names.evict(64, false, |name, _| name == "c"), 1);
    assert_eq!(names.lookup(b"c"), Lookup::Unknown);
    assert_eq!(names.lookup(b"b"), Lookup::Unknown, "the whole gap is in doubt");
    assert_eq!(names.lookup(b"f"), Lookup::Absent(None));
    let page = names.page(b"", 10);
    assert_eq!((page.entries.len(), page.unknown_after), (1, Some(name("a"))));
    names.install_page(b"a", &[(name("c"), dentry(1))], false);
    assert_eq!(names.page(b"", 10).entries.len(), 2, "known up to the last name of the page");
    names.install_page(b"c", &[(name("e"), dentry(1))], true);
    assert!(names.is_complete() && names.page(b"", 10).end);
    names.check();
}

#[test]
fn a_page_after_a_name_that_is_not_there_is_of_use() {
    let mut names = Names::unknown();
    names.install_page(b"m", &[(name("p"), dentry(1))], true);
    let page = names.page(b"m", 10);
    assert!(page.end && page.entries.len() == 1);
    assert_eq!(names.lookup(b"m"), Lookup::Unknown, "its own state was not asked for");
    assert_eq!(names.lookup(b"n"), Lookup::Absent(None));
    assert_eq!(names.lookup(b"k"), Lookup::Unknown);
    names.check();
}

#[test]
fn memory_knows_better_than_a_fetch() {
    let mut names = Names::unknown();
    names.set(&name("made"), Some(dentry(1)), stamp(1));
    names.set(&name("removed"), None, stamp(1));
    let old = [(name("made"), dentry(9)), (name("other"), dentry(2)), (name("removed"), dentry(3))];
    names.install_page(b"", &old, true);
    assert_eq!(names.lookup(b"made"), Lookup::Present(dentry(1), Some(BatchId(1))), "R8");
    assert_eq!(names.lookup(b"removed"), Lookup::Absent(Some(BatchId(1))));
    assert_eq!(names.lookup(b"other"), Lookup::Present(dentry(2), None));
    names.install_one(b"removed", Some(dentry(3)));
    assert_eq!(names.lookup(b"removed"), Lookup::Absent(Some(BatchId(1))));
    names.check();
}

#[test]
fn the_clock_spares_what_was_used() {
    let mut names = Names::complete();
    for i in 0..10 {
        names.set(&name(&format!("n{i}")), Some(dentry(1)), stamp(1));
    }
    assert_eq!(names.evict(64, false, all), 0, "R8: nothing undurable goes");
    for i in 0..10 {
        names.clean(&name(&format!("n{i}")), BatchId(1), 2, true);
    }
    assert_eq!(names.evict(64, true, all), 0, "all were just used");
    names.lookup(b"n3");
    assert_eq!(names.evict(64, true, all), 9);
    assert_eq!(names.lookup(b"n3"), Lookup::Present(dentry(1), None));
    names.check();
}

#[derive(Clone, Debug)]
enum Step {
    Set(u8, bool),
    Durable,
    Evict(usize),
    Page(u8, usize),
    One(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0u8..30, any::<bool>()).prop_map(|(name, made)| Step::Set(name, made)),
        Just(Step::Durable),
        (1usize..20).prop_map(Step::Evict),
        (0u8..30, 0usize..6).prop_map(|(after, count)| Step::Page(after, count)),
        (0u8..30).prop_map(Step::One),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// What it says is known is so, whatever was changed, fetched and evicted before.
    #[test]
    fn it_never_claims_what_is_not_so(steps in steps()) {
        let key = |number: u8| Bytes::copy_from_slice(&[b'a' + number]);
        let (mut durable, mut truth) = (BTreeMap::new(), BTreeMap::new());
        let (mut names, mut batch) = (Names::unknown(), 1);
        for step in steps {
            match step {
                Step::Set(name, made) => {
                    let value = made.then(|| dentry(u64::from(name) + 1));
                    names.set(&key(name), value, stamp(batch));
                    truth.insert(name, value);
                }
                Step::Durable => {
                    for name in 0..30 {
                        names.clean(&key(name), BatchId(batch), batch, true);
                    }
                    durable = truth.clone();
                    batch += 1;
                }
                Step::Evict(slice) => {
                    names.evict(slice, false, all);
                }
                Step::Page(after, count) => {
                    let later = durable.iter().filter(|(name, value)| (after == 0 || **name > after) && value.is_some());
                    let mut entries: Vec<_> = later.map(|(name, value)| (key(*name), value.unwrap())).collect();
                    let end = entries.len() <= count;
                    entries.truncate(count);
                    names.install_page(&if after == 0 { Bytes::new() } else { key(after) }, &entries, end);
                }
                Step::One(name) => names.install_one(&key(name), durable.get(&name).copied().flatten()),
            }
            names.check();
            for name in 0..30 {
                match (names.lookup(&key(name)), truth.get(&name).copied().flatten()) {
                    (Lookup::Unknown, _) | (Lookup::Absent(_), None) => {}
                    (Lookup::Present(found, _), Some(expected)) if found == expected => {}
                    (found, expected) => panic!("{name}: {found:?}, not {expected:?}"),
                }
                let page = names.page(&key(name), 100);
                let expected: Vec<_> = truth.iter().filter(|(other, value)| **other > name && value.is_some()).collect();
                prop_assert!(page.entries.len() <= expected.len());
                for (found, (number, value)) in page.entries.iter().zip(&expected) {
                    prop_assert_eq!(&found.0, &key(**number));
                    prop_assert_eq!(Some(found.1), **value);
                }
                prop_assert!(!page.end || page.entries.len() == expected.len());
            }
        }
    }
}
