//! Bytes that rot on disk are noticed, never returned (I10).

use std::fs;
use std::path::{Path, PathBuf};

use pando_osd::engine::fjall::FjallEngine;
use pando_osd::engine::memory::MemoryEngine;
use pando_osd::engine::{self, DirectoryError, Engine, EngineError, EngineKind};

use crate::store::{PG, Store, object, options, put, transaction, write};

const RECORD: &[u8] = b"a record value that is easily found";
const DATA: &[u8] = b"object data that is as easily found";

fn is_corrupt<T: std::fmt::Debug>(result: Result<T, EngineError>) -> bool {
    match result {
        Err(EngineError::Corrupt { what }) => !what.is_empty(),
        other => panic!("not noticed: {other:?}"),
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// Flips a bit in every place below `dir` that holds `needle`; returns how many there were.
fn rot(dir: &Path, needle: &[u8]) -> usize {
    let mut places = 0;
    for path in files(dir) {
        let mut bytes = fs::read(&path).unwrap();
        let found: Vec<usize> =
            bytes.windows(needle.len()).enumerate().filter(|(_, at)| *at == needle).map(|(at, _)| at).collect();
        for at in &found {
            bytes[at + needle.len() / 2] ^= 0x20;
        }
        if !found.is_empty() {
            fs::write(&path, bytes).unwrap();
            places += found.len();
        }
    }
    places
}

#[test]
fn memory_notices_rot() {
    let engine = MemoryEngine::new(1 << 20);
    engine.commit(&[transaction(vec![put(b"k", RECORD), write(object(0), 0, DATA)])]).unwrap();
    assert!(engine.corrupt_record(PG, b"k") && engine.corrupt_block(PG, object(0), 3));
    assert!(!engine.corrupt_record(PG, b"absent") && !engine.corrupt_block(PG, object(0), 1 << 20));
    assert!(is_corrupt(engine.get(PG, b"k")));
    assert!(is_corrupt(engine.scan(PG, b"", b"", 10, 10)));
    assert!(is_corrupt(engine.read(PG, object(0), 0, 1)));
    // What rotted can be overwritten and removed.
    engine.commit(&[transaction(vec![put(b"k", b"new"), write(object(0), 0, &[1; 100])])]).unwrap();
    assert_eq!(engine.get(PG, b"k").unwrap().unwrap(), "new");
    assert_eq!(engine.read(PG, object(0), 0, 200).unwrap(), [1; 100][..]);
}

#[test]
fn fjall_notices_rot_in_its_tables() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FjallEngine::open(dir.path(), &options()).unwrap();
    engine.commit(&[transaction(vec![put(b"k", RECORD), write(object(0), 0, DATA)])]).unwrap();
    engine.flush().unwrap();
    drop(engine);
    // The journal is done with after a flush, but may still lie about: only tables count here.
    assert!(rot(&dir.path().join("keyspaces"), RECORD) >= 1);
    assert!(rot(&dir.path().join("keyspaces"), DATA) >= 1);
    match FjallEngine::open(dir.path(), &options()) {
        Ok(engine) => {
            assert!(is_corrupt(engine.get(PG, b"k")));
            assert!(is_corrupt(engine.scan(PG, b"", b"", 10, 10)));
            assert!(is_corrupt(engine.read(PG, object(0), 0, 1)));
        }
        Err(error) => assert!(is_corrupt::<()>(Err(error))),
    }
}

#[test]
fn fjall_notices_rot_in_its_journal() {
    let mut store = Store::new(EngineKind::Fjall);
    store.commit(vec![put(b"k", RECORD)]);
    store.commit(vec![put(b"l", b"later")]);
    store.close();
    assert!(rot(store.path(), RECORD) >= 1);
    let opened = pando_osd::engine::open(EngineKind::Fjall, store.path(), &options());
    assert!(is_corrupt(opened.map(|_| ())));
}

/// fjall would cut its journal there without a word.
#[test]
fn i1_damage_within_a_journal_loses_no_commit_in_silence() {
    let mut store = Store::new(EngineKind::Fjall);
    let count = 40u8;
    for number in 0..count {
        store.commit(vec![put(&[b'k', number], RECORD), write(object(u64::from(number)), 0, DATA)]);
    }
    store.close();
    let fjall = store.path().join("fjall");
    let journal = fs::read_dir(&fjall).unwrap().map(|entry| entry.unwrap().path());
    let journal = journal.filter(|path| path.extension().is_some_and(|extension| extension == "jnl")).max().unwrap();
    let bytes = fs::read(&journal).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let mut refused = 0;
    for part in 1..16 {
        let mut damaged = bytes.clone();
        let at = used * part / 16;
        damaged[at..at + 200.min(used - at)].fill(0xee);
        fs::write(&journal, &damaged).unwrap();
        match engine::open(EngineKind::Fjall, store.path(), &options()) {
            Err(EngineError::Directory(error @ DirectoryError::DamagedJournal { .. })) => {
                assert!(error.to_string().contains("remove the osd's data directory"), "{error}");
                refused += 1;
            }
            Err(error) => assert!(is_corrupt::<()>(Err(error))),
            Ok(_) => panic!("opened, although {at} of {used} bytes were damaged"),
        }
        assert!(fs::read(&journal).unwrap() == damaged, "what is left is left alone");
    }
    assert!(refused > 10, "{refused}");
    fs::write(&journal, &bytes).unwrap();
    store.reopen();
    assert_eq!(store.engine().get(PG, &[b'k', count - 1]).unwrap().unwrap(), RECORD);
}

#[test]
fn file_notices_rot_in_objects_and_records() {
    let mut store = Store::new(EngineKind::File);
    store.commit(vec![put(b"k", RECORD), write(object(0), 0, &DATA.repeat(4000)), write(object(1), 0, DATA)]);
    store.close();
    assert!(rot(store.path(), RECORD) >= 1);
    assert!(rot(store.path(), DATA) >= 4001);
    store.reopen();
    assert!(is_corrupt(store.engine().get(PG, b"k")));
    assert!(is_corrupt(store.engine().read(PG, object(0), 50_000, 1)));
    assert!(is_corrupt(store.engine().read(PG, object(1), 0, 1)));
}
