//! A power cut while a commit was being written: any of its sectors may be on disk, or none. What was acknowledged is
//! there afterwards, and what was cut is not half there (I1, I10).

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pando_osd::engine::fjall::FjallEngine;
use pando_osd::engine::{Change, Engine};

use crate::store::{PG, object, options, put, transaction, write};

const SECTOR: usize = 512;
const COMMITS: u8 = 6;

fn journal(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "jnl")).max().unwrap()
}

/// Where the zeros at the end begin.
fn used(bytes: &[u8]) -> usize {
    let Some(last) = bytes.chunks(SECTOR).rposition(|sector| *sector != [0; SECTOR][..sector.len()]) else { return 0 };
    let end = bytes.len().min((last + 1) * SECTOR);
    bytes[..end].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// All but zeros, so that a sector that is not there differs from one that is.
fn data(number: u8) -> Vec<u8> {
    (0..20_000u32).map(|at| (at * 7 + u32::from(number)) as u8 | 1).collect()
}

/// Several items, in each of the three keyspaces; the blocks are longer than the sectors.
fn commit(number: u8) -> Vec<Change> {
    let value = vec![number + 1; 700];
    vec![put(&[b'a', number], &value), put(&[b'b', number], &value), write(object(u64::from(number)), 0, &data(number))]
}

/// A database with so many commits, and where in its journal the last one begins and ends.
fn database(dir: &Path) -> (Vec<u8>, usize, usize) {
    let engine = FjallEngine::open(dir, &options()).unwrap();
    let mut ends = Vec::new();
    for number in 0..COMMITS {
        engine.commit(&[transaction(commit(number))]).unwrap();
        ends.push(used(&fs::read(journal(dir)).unwrap()));
    }
    drop(engine);
    let [.., begin, end] = ends[..] else { panic!("{ends:?}") };
    let mut bytes = fs::read(journal(dir)).unwrap();
    assert_eq!(used(&bytes), end, "all of it is in one journal");
    bytes.truncate(end);
    (bytes, begin, end)
}

fn copy(from: &Path, to: &Path, skip: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target, skip);
        } else if path != skip {
            fs::copy(&path, target).unwrap();
        }
    }
}

/// Opens the database with this in its journal, which is zeros from there up to `length`, and says whether the last commit
/// is there. Goes on with it.
fn open_with(original: &Path, content: &[u8], length: u64, what: &str) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(original);
    copy(original, dir.path(), &journal);
    let mut file = File::create(dir.path().join(journal.file_name().unwrap())).unwrap();
    file.write_all(content).unwrap();
    file.set_len(length).unwrap();
    drop(file);
    let engine = FjallEngine::open(dir.path(), &options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let there = check(&engine, what);
    engine.commit(&[transaction(commit(COMMITS))]).unwrap();
    drop(engine);
    let engine = FjallEngine::open(dir.path(), &options()).unwrap_or_else(|error| panic!("after {what}: {error}"));
    assert_eq!(check(&engine, what), there);
    assert_whole(&engine, COMMITS, what);
    there
}

fn assert_whole(engine: &dyn Engine, number: u8, what: &str) {
    for key in [[b'a', number], [b'b', number]] {
        assert_eq!(engine.get(PG, &key).unwrap().unwrap(), vec![number + 1; 700], "{what}");
    }
    let found = engine.read(PG, object(u64::from(number)), 0, 1 << 20).unwrap();
    assert!(found == data(number), "object {number}: {what}");
}

/// What was acknowledged is there; the last commit is there or not.
fn check(engine: &dyn Engine, what: &str) -> bool {
    (0..COMMITS - 1).for_each(|number| assert_whole(engine, number, what));
    let last = COMMITS - 1;
    let parts = [
        engine.get(PG, &[b'a', last]).unwrap().is_some(),
        engine.get(PG, &[b'b', last]).unwrap().is_some(),
        engine.header(PG, object(u64::from(last))).unwrap().is_some(),
        engine.read(PG, object(u64::from(last)), 0, 1 << 20).unwrap() != Bytes::new(),
    ];
    if parts[0] {
        assert_whole(engine, last, what);
    }
    assert!(parts == [parts[0]; 4], "half of the last commit is there: {parts:?}, {what}");
    parts[0]
}

#[test]
fn i1_a_commit_that_was_cut_anywhere_is_not_there_and_all_before_it_is() {
    let original = tempfile::tempdir().unwrap();
    let (content, begin, end) = database(original.path());
    let full = 64 << 20;
    assert!(open_with(original.path(), &content, full, "nothing"));
    // Every place of the first item's head and of the end, and some in between.
    let places = (begin..begin + 60).step_by(3).chain((begin + 60..end - 20).step_by(997)).chain(end - 20..end);
    for at in places {
        let what = format!("cut at byte {} of {}", at - begin, end - begin);
        assert!(!open_with(original.path(), &content[..at], at as u64, &what), "{what}");
        assert!(!open_with(original.path(), &content[..at], full, &what), "{what}, zeros behind");
    }
}

#[test]
fn i1_a_commit_that_lacks_any_of_its_sectors_is_not_there_and_all_before_it_is() {
    let original = tempfile::tempdir().unwrap();
    let (content, begin, end) = database(original.path());
    // The disk writes whole sectors: the first one holds the end of the commit before as well.
    let sectors: Vec<usize> = (begin.next_multiple_of(SECTOR)..end).step_by(SECTOR).collect();
    assert!(sectors.len() > 30, "{sectors:?}");
    let mut dice = 1u64;
    for round in 0..sectors.len() + 40 {
        let mut torn = content.clone();
        for (number, at) in sectors.iter().enumerate() {
            // Each alone first, then any.
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let lost = if round < sectors.len() { number == round } else { dice >> 63 == 1 };
            if lost {
                torn[*at..(at + SECTOR).min(end)].fill(0);
            }
        }
        if torn != content {
            let what = format!("round {round} of {} sectors", sectors.len());
            assert!(!open_with(original.path(), &torn, 64 << 20, &what), "{what}");
        }
    }
}
