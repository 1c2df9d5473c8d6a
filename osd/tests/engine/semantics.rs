//! What every engine must do, one behaviour a test.

use bytes::Bytes;
use pando_osd::engine::format::{BLOCK_BYTES, MAX_KEY_BYTES, MAX_OBJECT_BYTES, MAX_READ_BYTES};
use pando_osd::engine::memory::MemoryEngine;
use pando_osd::engine::{Change, Engine, EngineError, EngineKind, ObjectHeader, Transaction};

use crate::store::{OTHER_PG, PG, Store, delete_range, object, put, transaction, write};

const BLOCK: u64 = BLOCK_BYTES as u64;

fn keys(store: &Store) -> Vec<Bytes> {
    store.engine().scan(PG, b"", b"", 1000, usize::MAX).unwrap().records.into_iter().map(|(key, _)| key).collect()
}

fn an_invalid_transaction_leaves_no_trace_of_its_commit(kind: EngineKind) {
    let store = Store::new(kind);
    let too_long = vec![0; MAX_KEY_BYTES + 1];
    let invalid = [
        put(&too_long, b""),
        write(object(0), MAX_OBJECT_BYTES, b"x"),
        write(object(0), u64::MAX, b"x"),
        Change::Truncate { object: object(0), size: MAX_OBJECT_BYTES + 1 },
    ];
    for change in invalid {
        let commit = [transaction(vec![put(b"a", b"1")]), transaction(vec![put(b"b", b"2"), change])];
        assert!(matches!(store.engine().commit(&commit), Err(EngineError::Invalid(_))));
        assert_eq!(store.engine().pgs().unwrap(), []);
    }
    store.commit(vec![put(b"a", b"1")]);
    assert_eq!(keys(&store), ["a"]);
}

fn transactions_of_one_commit_see_each_other(kind: EngineKind) {
    let mut store = Store::new(kind);
    let commit = [
        transaction(vec![put(b"a", b"1"), put(b"b", b"1"), write(object(0), 10, b"first")]),
        transaction(vec![delete_range(b"a", b"b"), put(b"b", b"2"), write(object(0), 13, b"second")]),
        transaction(vec![put(b"a", b"3"), Change::Zero { object: object(0), offset: 0, length: 11 }]),
        Transaction { pg: OTHER_PG, changes: vec![put(b"a", b"other")] },
    ];
    store.engine().commit(&commit).unwrap();
    for _ in 0..2 {
        assert_eq!(store.engine().get(PG, b"a").unwrap().unwrap(), "3");
        assert_eq!(store.engine().get(PG, b"b").unwrap().unwrap(), "2");
        assert_eq!(store.engine().get(OTHER_PG, b"a").unwrap().unwrap(), "other");
        assert_eq!(store.read(object(0), 0, 100), &b"\0\0\0\0\0\0\0\0\0\0\0irsecond"[..]);
        assert_eq!(store.engine().pgs().unwrap(), [OTHER_PG, PG]);
        store.reopen();
    }
}

fn scans_come_in_pages_in_key_order(kind: EngineKind) {
    let store = Store::new(kind);
    store.commit(["d", "a", "c", "b", "\u{7f}"].iter().map(|key| put(key.as_bytes(), b"12345")).collect());
    let scan = |start: &[u8], end: &[u8], limit, bytes| store.engine().scan(PG, start, end, limit, bytes).unwrap();
    let page = scan(b"", b"", 2, usize::MAX);
    assert_eq!(page.records.iter().map(|(key, _)| &key[..]).collect::<Vec<_>>(), [b"a", b"b"]);
    assert_eq!(page.next.unwrap(), "c");
    // By bytes: one always comes, the second no longer fits.
    let page = scan(b"b", b"d", 10, 1);
    assert_eq!((page.records.len(), page.next.unwrap()), (1, Bytes::from("c")));
    let page = scan(b"b", b"d", 10, usize::MAX);
    assert_eq!((page.records.len(), page.next), (2, None), "the end is exclusive");
    let page = scan(b"b", b"d", 2, usize::MAX);
    assert_eq!((page.records.len(), page.next), (2, None), "no empty page follows");
    assert_eq!(scan(b"d", b"b", 10, 10), Default::default());
    assert_eq!(scan(b"x", b"x", 10, 10), Default::default());
}

fn a_deleted_range_ends_where_it_should(kind: EngineKind) {
    let mut store = Store::new(kind);
    let all: [&[u8]; 5] = [b"a", b"b", b"b\0", b"c", b"\xff\xff"];
    store.commit(all.iter().map(|key| put(key, b"")).collect());
    store.engine().commit(&[Transaction { pg: OTHER_PG, changes: vec![put(b"b", b"")] }]).unwrap();
    store.commit(vec![delete_range(b"b", b"b\0")]);
    assert_eq!(keys(&store), [&b"a"[..], b"b\0", b"c", b"\xff\xff"]);
    store.commit(vec![delete_range(b"c", b"b")]);
    assert_eq!(keys(&store).len(), 4, "an inverted range is empty");
    store.commit(vec![delete_range(b"b", b"")]);
    store.reopen();
    assert_eq!(keys(&store), ["a"]);
    assert!(store.engine().get(OTHER_PG, b"b").unwrap().is_some(), "another pg is not touched");
}

fn holes_read_as_zeros_and_are_not_stored(kind: EngineKind) {
    let mut store = Store::new(kind);
    store.commit(vec![write(object(0), 10 * BLOCK + 5, b"end")]);
    for _ in 0..2 {
        assert_eq!(store.size(object(0)), 10 * BLOCK + 8);
        assert_eq!(store.stored(object(0)), 8);
        let bytes = store.read(object(0), 0, u64::MAX);
        assert_eq!(bytes.len() as u64, 10 * BLOCK + 8);
        assert!(bytes[..bytes.len() - 3].iter().all(|byte| *byte == 0) && bytes.ends_with(b"end"));
        store.reopen();
    }
    assert_eq!(store.read(object(0), 10 * BLOCK + 8, 1), "");
    assert_eq!(store.read(object(0), u64::MAX, u64::MAX), "");
    assert_eq!(store.read(object(1), 0, 10), "");
}

fn an_overwrite_keeps_the_bytes_around_it(kind: EngineKind) {
    let mut store = Store::new(kind);
    for (number, size) in [1, 2, 100, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1].into_iter().enumerate() {
        for (edge, (from, to)) in [(0, size - 1), (1, size), (1, size - 1), (0, size)].into_iter().enumerate() {
            let object = object(number as u64 * 4 + edge as u64);
            store.commit(vec![write(object, 0, &vec![1; size as usize])]);
            if from < to {
                store.commit(vec![write(object, from, &vec![2; (to - from) as usize])]);
                let bytes = store.read(object, 0, u64::MAX);
                let expected = (0..size).map(|at| if (from..to).contains(&at) { 2 } else { 1 });
                assert!(bytes.iter().copied().eq(expected), "{from}..{to} of {size}");
            }
        }
    }
    store.reopen();
    assert_eq!(store.read(object(2 * 4 + 2), 98, 9), [2, 1][..]);
}

fn a_cut_object_that_grows_again_shows_zeros(kind: EngineKind) {
    let mut store = Store::new(kind);
    store.commit(vec![write(object(0), 0, &vec![7; 3 * BLOCK_BYTES])]);
    store.commit(vec![Change::Truncate { object: object(0), size: BLOCK + 10 }]);
    assert_eq!(store.stored(object(0)), BLOCK + 10);
    store.commit(vec![Change::Truncate { object: object(0), size: 4 * BLOCK }]);
    store.reopen();
    let bytes = store.read(object(0), 0, u64::MAX);
    assert_eq!(bytes.len() as u64, 4 * BLOCK);
    assert!(bytes[..BLOCK_BYTES + 10].iter().all(|byte| *byte == 7));
    assert!(bytes[BLOCK_BYTES + 10..].iter().all(|byte| *byte == 0));
    // Within one commit as well.
    store.commit(vec![
        write(object(0), 0, &vec![8; 2 * BLOCK_BYTES]),
        Change::Truncate { object: object(0), size: 1 },
        Change::Truncate { object: object(0), size: 3 },
        write(object(0), 4, b"x"),
    ]);
    assert_eq!(store.read(object(0), 0, u64::MAX), &b"\x08\0\0\0x"[..]);
}

fn zeroing_frees_whole_blocks_and_keeps_the_size(kind: EngineKind) {
    let mut store = Store::new(kind);
    store.commit(vec![write(object(0), 0, &vec![9; 4 * BLOCK_BYTES])]);
    store.commit(vec![Change::Zero { object: object(0), offset: 100, length: 2 * BLOCK }]);
    store.reopen();
    assert_eq!(store.size(object(0)), 4 * BLOCK);
    assert_eq!(store.stored(object(0)), 100 + 2 * BLOCK);
    let bytes = store.read(object(0), 0, u64::MAX);
    let zeros = 100..100 + 2 * BLOCK_BYTES;
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == if zeros.contains(&at) { 0 } else { 9 }));
    store.commit(vec![Change::Zero { object: object(0), offset: 0, length: u64::MAX }]);
    assert_eq!((store.size(object(0)), store.stored(object(0))), (4 * BLOCK, 0));
    store.commit(vec![Change::Zero { object: object(1), offset: 0, length: 5 }]);
    assert_eq!(store.engine().header(PG, object(1)).unwrap(), None, "zeroing makes no object");
}

fn an_object_can_be_made_without_bytes(kind: EngineKind) {
    let store = Store::new(kind);
    store.commit(vec![write(object(0), 500, b""), Change::Truncate { object: object(1), size: 0 }]);
    let expected = vec![(object(0), ObjectHeader::default()), (object(1), ObjectHeader::default())];
    assert_eq!(store.engine().list_objects(PG, None, 10).unwrap(), expected);
}

fn a_tombstone_keeps_the_generation_and_nothing_else(kind: EngineKind) {
    let mut store = Store::new(kind);
    store.commit(vec![write(object(0), 0, &vec![1; 2 * BLOCK_BYTES]), write(object(1), 0, b"stays")]);
    let tombstone = Change::SetHeader { object: object(0), generation: 4, deleted: true, sessions_before: 9 };
    store.commit(vec![tombstone]);
    store.reopen();
    let header = ObjectHeader { size: 0, generation: 4, deleted: true, sessions_before: 9 };
    assert_eq!(store.engine().header(PG, object(0)).unwrap(), Some(header));
    assert_eq!((store.read(object(0), 0, 10), store.stored(object(0))), (Bytes::new(), 0));
    assert_eq!(store.engine().list_objects(PG, None, 1).unwrap(), [(object(0), header)]);
    assert_eq!(store.engine().list_objects(PG, Some(object(0)), 10).unwrap().len(), 1);
    store.commit(vec![Change::Forget { object: object(0) }, Change::Forget { object: object(1) }]);
    store.reopen();
    assert_eq!(store.engine().header(PG, object(0)).unwrap(), None);
    assert_eq!(store.engine().pgs().unwrap(), []);
}

fn an_object_that_was_forgotten_starts_anew(kind: EngineKind) {
    let mut store = Store::new(kind);
    store.commit(vec![write(object(0), 0, &vec![1; 3 * BLOCK_BYTES])]);
    store.commit(vec![Change::Forget { object: object(0) }, write(object(0), BLOCK, b"new")]);
    store.reopen();
    let bytes = store.read(object(0), 0, u64::MAX);
    assert!(bytes[..BLOCK_BYTES].iter().all(|byte| *byte == 0) && bytes.ends_with(b"new"));
    store.commit(vec![Change::Forget { object: object(0) }]);
    store.commit(vec![write(object(0), 2, b"newer")]);
    store.reopen();
    assert_eq!(store.read(object(0), 0, u64::MAX), &b"\0\0newer"[..]);
}

fn large_reads_are_refused_and_large_objects_are_not(kind: EngineKind) {
    let store = Store::new(kind);
    store.commit(vec![write(object(0), MAX_OBJECT_BYTES - 1, b"x")]);
    assert!(matches!(store.engine().read(PG, object(0), 0, u64::MAX), Err(EngineError::Invalid(_))));
    let tail = store.read(object(0), MAX_OBJECT_BYTES - MAX_READ_BYTES, u64::MAX);
    assert_eq!((tail.len() as u64, tail.last()), (MAX_READ_BYTES, Some(&b'x')));
    store.commit(vec![Change::Truncate { object: object(0), size: 1 }]);
    assert_eq!(store.stored(object(0)), 0);
}

fn many_objects_survive(kind: EngineKind) {
    let mut store = Store::new(kind);
    for round in 0..4u8 {
        store.commit((0..50).map(|index| write(object(index), 0, &[round; 9000])).collect());
    }
    store.commit((0..50).step_by(2).map(|index| Change::Forget { object: object(index) }).collect());
    store.reopen();
    assert_eq!(store.engine().list_objects(PG, None, 100).unwrap().len(), 25);
    assert!((1..50).step_by(2).all(|index| store.read(object(index), 0, u64::MAX) == [3; 9000][..]));
}

fn the_disk_has_room(kind: EngineKind) {
    let store = Store::new(kind);
    let usage = store.engine().usage().unwrap();
    assert!(usage.total_bytes > 0 && usage.used_bytes <= usage.total_bytes, "{usage:?}");
}

#[test]
fn a_full_memory_refuses_writes_and_still_deletes() {
    let engine = MemoryEngine::new(1000);
    engine.commit(&[transaction(vec![write(object(0), 0, &[1; 2000])])]).unwrap();
    let usage = engine.usage().unwrap();
    assert_eq!(usage.used_bytes, usage.total_bytes);
    assert_eq!(engine.commit(&[transaction(vec![put(b"k", b"")])]), Err(EngineError::Full));
    engine.commit(&[transaction(vec![Change::Forget { object: object(0) }])]).unwrap();
    assert_eq!(engine.usage().unwrap().used_bytes, 0);
    engine.commit(&[transaction(vec![put(b"k", b"")])]).unwrap();
}

macro_rules! suite {
    ($($test:ident)*) => {
        mod memory { $(#[test] fn $test() { super::$test(super::EngineKind::Memory); })* }
        mod fjall { $(#[test] fn $test() { super::$test(super::EngineKind::Fjall); })* }
        mod file { $(#[test] fn $test() { super::$test(super::EngineKind::File); })* }
    };
}

suite! {
    an_invalid_transaction_leaves_no_trace_of_its_commit
    transactions_of_one_commit_see_each_other
    scans_come_in_pages_in_key_order
    a_deleted_range_ends_where_it_should
    holes_read_as_zeros_and_are_not_stored
    an_overwrite_keeps_the_bytes_around_it
    a_cut_object_that_grows_again_shows_zeros
    zeroing_frees_whole_blocks_and_keeps_the_size
    an_object_can_be_made_without_bytes
    a_tombstone_keeps_the_generation_and_nothing_else
    an_object_that_was_forgotten_starts_anew
    large_reads_are_refused_and_large_objects_are_not
    many_objects_survive
    the_disk_has_room
}
