use pando_cluster_map::Subtree;
use pando_proto::Ino;
use pando_proto::mds::cache_item::Item;
use pando_proto::mds::{BodyRecord, CacheItem, CachedRecord};
use prost::Message as _;

use super::*;

const CACHE: u64 = 1 << 20;
const CHILD: SubtreeId = SubtreeId(2);
const HERE: Rank = Rank(1);

/// A map in which the subtree is on its way to us.
fn under_way(move_id: u64) -> ClusterMap {
    let mut map = ClusterMap::default();
    let subtree = Subtree { root: Ino(1 << 40), epoch: Epoch(3), move_id, moving_to: HERE, ..Subtree::default() };
    map.subtrees.insert(CHILD, subtree);
    map
}

fn arrived(move_id: u64) -> ClusterMap {
    let mut map = under_way(0);
    let subtree = map.subtrees.get_mut(&CHILD).unwrap();
    (subtree.owner, subtree.epoch, subtree.last_move) = (HERE, Epoch(4), move_id);
    map
}

fn frame(move_id: u64, number: u64, last: bool) -> ImportFrame {
    ImportFrame { subtree: CHILD.0, epoch: 3, move_id, items: Vec::new(), last, number }
}

fn take(imports: &Imports, frame: ImportFrame) -> Result<bool, Error> {
    let map = under_way(frame.move_id);
    imports.take_frame(frame, &map, HERE, CACHE)
}

#[tokio::test]
async fn r12_a_copy_is_used_if_all_its_frames_came_in_order() {
    let imports = Imports::default();
    assert_eq!(take(&imports, frame(7, 0, false)), Ok(false));
    assert_eq!(take(&imports, frame(7, 1, false)), Ok(false));
    assert_eq!(take(&imports, frame(7, 2, true)), Ok(true));
    let late = take(&imports, frame(7, 3, false)).unwrap_err();
    assert_eq!(late.reason, Reason::StaleEpoch, "nothing follows the last");
    assert!(imports.take(CHILD, &arrived(7)).is_some());
    assert!(imports.take(CHILD, &arrived(7)).is_none(), "once");
}

#[tokio::test]
async fn r12_a_copy_with_a_gap_is_dropped() {
    let imports = Imports::default();
    take(&imports, frame(7, 0, false)).unwrap();
    take(&imports, frame(7, 1, false)).unwrap();
    assert_eq!(take(&imports, frame(7, 3, true)).unwrap_err().reason, Reason::StaleEpoch);
    assert_eq!(take(&imports, frame(7, 2, true)).unwrap_err().reason, Reason::StaleEpoch, "it has gone");
    assert!(imports.take(CHILD, &arrived(7)).is_none());
}

#[tokio::test]
async fn r12_rounds_without_the_copy_before_them_are_refused() {
    let imports = Imports::default();
    // This rank was started anew, or has forgotten the copy.
    assert_eq!(take(&imports, frame(7, 40, true)).unwrap_err().reason, Reason::StaleEpoch);
    assert!(imports.take(CHILD, &arrived(7)).is_none());
}

#[tokio::test]
async fn r12_a_copy_that_begins_anew_has_nothing_of_the_one_before() {
    let imports = Imports::default();
    take(&imports, frame(7, 0, false)).unwrap();
    take(&imports, frame(7, 1, false)).unwrap();
    take(&imports, frame(7, 0, false)).unwrap();
    assert_eq!(take(&imports, frame(7, 2, true)).unwrap_err().reason, Reason::StaleEpoch, "of the one before");
    take(&imports, frame(7, 0, true)).unwrap();
    assert!(imports.take(CHILD, &arrived(7)).is_some());
}

#[tokio::test]
async fn r12_a_copy_of_another_move_or_without_its_end_is_not_used() {
    let imports = Imports::default();
    take(&imports, frame(7, 0, true)).unwrap();
    assert!(imports.take(CHILD, &arrived(8)).is_none());
    take(&imports, frame(7, 0, false)).unwrap();
    assert!(imports.take(CHILD, &arrived(7)).is_none());
    take(&imports, frame(7, 0, true)).unwrap();
    imports.forget_missed(&under_way(9), HERE);
    assert!(imports.take(CHILD, &arrived(7)).is_none(), "the move was given up");
}

/// A frame with the bodies of `count` files of 64 KiB.
fn bodies(subtree: SubtreeId, number: u64, count: u64) -> ImportFrame {
    let body = |at: u64| {
        let record = BodyRecord { inline_version: 1, data: vec![7; 64 << 10].into() };
        let record = [&[1], &record.encode_to_vec()[..]].concat().into();
        let ino = Ino((subtree.0 << 40) + number * 1000 + at + 1).0;
        CacheItem { item: Some(Item::Body(CachedRecord { ino, record: Some(record) })) }
    };
    ImportFrame { subtree: subtree.0, epoch: 3, move_id: 7, items: (0..count).map(body).collect(), last: false, number }
}

#[tokio::test]
async fn i8_all_copies_together_take_their_share_of_the_memory_and_no_more() {
    let imports = Imports::default();
    let mut map = ClusterMap::default();
    for id in 2..20 {
        let subtree =
            Subtree { root: Ino(id << 40), epoch: Epoch(3), move_id: 7, moving_to: HERE, ..Subtree::default() };
        map.subtrees.insert(SubtreeId(id), subtree);
    }
    // All of them begin at once, so none knows at first what the others will bring.
    for number in 0..3 {
        for id in 2..18 {
            imports.take_frame(bodies(SubtreeId(id), number, 4), &map, HERE, CACHE).unwrap();
        }
    }
    let taken = imports.bytes().bytes();
    let (least, most) = (CACHE / IMPORT_SHARE / 2, CACHE / IMPORT_SHARE + (80 << 10) * 16);
    assert!((least..=most).contains(&taken), "{taken}");
    let error = imports.take_frame(bodies(SubtreeId(18), 0, 1), &map, HERE, CACHE).unwrap_err();
    assert_eq!(error.reason, Reason::Overloaded);
    map.subtrees.clear();
    imports.forget_missed(&map, HERE);
    assert_eq!(imports.bytes().bytes(), 0);
}
