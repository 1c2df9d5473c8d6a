//! What only the engine on plain files does: room goes back to the file system, leftovers of a crash go away.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use pando_osd::engine::format::BLOCK_BYTES;
use pando_osd::engine::{Change, EngineKind};

use crate::store::{PG, Store, object, write};

/// The files of the PG's objects.
fn files(store: &Store) -> Vec<PathBuf> {
    let dir = store.path().join("objects").join(PG.to_string());
    let fans = fs::read_dir(dir).unwrap().map(|fan| fan.unwrap().path());
    fans.flat_map(|fan| fs::read_dir(fan).unwrap().map(|file| file.unwrap().path())).collect()
}

#[test]
fn a_removed_object_leaves_no_file() {
    let store = Store::new(EngineKind::File);
    store.commit((0..3).map(|index| write(object(index), 0, &vec![1; 8 * BLOCK_BYTES])).collect());
    assert_eq!(files(&store).len(), 3);
    let tombstone = Change::SetHeader { object: object(1), generation: 1, deleted: true, sessions_before: 1 };
    store.commit(vec![Change::Forget { object: object(0) }, tombstone]);
    assert_eq!(files(&store).len(), 1);
    store.commit(vec![Change::Truncate { object: object(2), size: 0 }]);
    assert_eq!(files(&store).len(), 0);
}

#[test]
fn freed_blocks_leave_a_hole_in_the_file() {
    let store = Store::new(EngineKind::File);
    store.commit(vec![write(object(0), 0, &vec![1; 64 * BLOCK_BYTES])]);
    let room = || fs::metadata(&files(&store)[0]).unwrap().blocks();
    let before = room();
    let (offset, length) = (2 * BLOCK_BYTES as u64, 60 * BLOCK_BYTES as u64);
    store.commit(vec![Change::Zero { object: object(0), offset, length }]);
    assert!(room() < before, "{} sectors before, {} after", before, room());
    assert!(store.read(object(0), offset, length).iter().all(|byte| *byte == 0));
}

#[test]
fn leftovers_of_a_crash_are_removed_and_other_files_are_not() {
    let mut store = Store::new(EngineKind::File);
    store.commit(vec![write(object(0), 0, &vec![1; 8 * BLOCK_BYTES])]);
    let kept = files(&store)[0].clone();
    let fan = kept.parent().unwrap();
    fs::write(fan.join("00000000000000ff.0"), "written before a commit that never came").unwrap();
    fs::write(fan.join("README"), "of the administrator").unwrap();
    store.reopen();
    let mut left = files(&store);
    left.sort();
    let mut expected = [fan.join("README"), kept.clone()];
    expected.sort();
    assert_eq!(left, expected);
    assert_eq!(store.read(object(0), 0, 8 * BLOCK_BYTES as u64), vec![1; 8 * BLOCK_BYTES]);
}
