use raft::Storage as _;
use raft::eraftpb::EntryType;

use super::*;
use crate::Storage as Data;

fn config(dir: &std::path::Path) -> Config {
    Config::new(1, "127.0.0.1:0".parse().unwrap(), Data::Dir(dir.to_owned()))
}

fn open(dir: &std::path::Path) -> RaftStorage {
    RaftStorage::open(&config(dir), Data::Dir(dir.to_owned()), || [5; 16]).unwrap()
}

fn entry(index: u64, term: u64) -> Entry {
    let mut entry = Entry::default();
    entry.set_entry_type(EntryType::EntryNormal);
    (entry.index, entry.term) = (index, term);
    entry.data = format!("{index}@{term}").into_bytes().into();
    entry
}

fn terms(storage: &RaftStorage) -> Vec<(u64, u64)> {
    let (first, last) = (storage.first_index().unwrap(), storage.last_index().unwrap());
    (first..=last).map(|index| (index, storage.term(index).unwrap())).collect()
}

fn persist(storage: &mut RaftStorage, entries: Vec<Entry>, commit: u64) {
    let term = entries.last().map_or(1, |entry| entry.term);
    let hard_state = HardState { term, commit, vote: 1, ..HardState::default() };
    storage.persist(entries, Some(&hard_state), &Snapshot::default()).unwrap();
}

#[test]
fn entries_survive_a_restart_and_conflicting_ones_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut storage = open(dir.path());
    assert_eq!(storage.cluster_id(), Some([5; 16]));
    persist(&mut storage, (2..=6).map(|index| entry(index, 2)).collect(), 3);
    persist(&mut storage, vec![entry(5, 3)], 4);
    let expected = vec![(2, 2), (3, 2), (4, 2), (5, 3)];
    assert_eq!(terms(&storage), expected);
    drop(storage);
    let storage = open(dir.path());
    assert_eq!(terms(&storage), expected);
    let state = storage.initial_state().unwrap();
    assert_eq!((state.hard_state.term, state.hard_state.commit), (3, 4));
    assert_eq!(state.conf_state.voters, vec![1]);
    let read = storage.entries(2, 5, None, GetEntriesContext::empty(false)).unwrap();
    assert_eq!(read.iter().map(|entry| entry.index).collect::<Vec<_>>(), vec![2, 3, 4]);
    let one = storage.entries(2, 5, 1, GetEntriesContext::empty(false)).unwrap();
    assert_eq!(one.len(), 1, "at least one, however small the limit");
}

#[test]
fn compaction_keeps_a_tail_and_the_commit_index_never_trails_the_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let mut storage = open(dir.path());
    persist(&mut storage, (2..=20).map(|index| entry(index, 2)).collect(), 2);
    let map = ClusterMap { cluster_id: [5; 16], next_client_id: 77, ..ClusterMap::default() };
    storage.set_applied(Position { index: 18, term: 2 }, Arc::new(map.clone()));
    storage.compact(4).unwrap();
    assert_eq!(storage.since_snapshot(), 0);
    drop(storage);
    let storage = open(dir.path());
    assert_eq!(storage.first_index().unwrap(), 15);
    assert_eq!((storage.term(14).unwrap(), storage.last_index().unwrap()), (2, 20));
    assert!(storage.term(13).is_err() && storage.term(21).is_err());
    assert!(storage.entries(14, 16, None, GetEntriesContext::empty(false)).is_err());
    let (applied, stored) = storage.applied();
    assert_eq!((applied.index, (*stored).clone()), (18, map));
    assert!(storage.initial_state().unwrap().hard_state.commit >= 18);
}

#[test]
fn a_snapshot_replaces_everything() {
    let dir = tempfile::tempdir().unwrap();
    let (there, here) = (dir.path().join("there"), dir.path().join("here"));
    let mut leader = open(&there);
    let map = ClusterMap { cluster_id: [5; 16], next_client_id: 9, ..ClusterMap::default() };
    persist(&mut leader, (2..=40).map(|index| entry(index, 4)).collect(), 40);
    leader.set_applied(Position { index: 40, term: 4 }, Arc::new(map.clone()));
    let snapshot = leader.snapshot(30, 2).unwrap();
    assert!(leader.snapshot(41, 2).is_err(), "not that far yet");
    let mut follower = open(&here);
    persist(&mut follower, (2..=5).map(|index| entry(index, 2)).collect(), 3);
    let installed = follower.persist(vec![], None, &snapshot).unwrap().unwrap();
    assert_eq!(*installed, map);
    drop(follower);
    let follower = open(&here);
    assert_eq!((follower.first_index().unwrap(), follower.last_index().unwrap()), (41, 40));
    assert_eq!(follower.term(40).unwrap(), 4);
    assert!(follower.initial_state().unwrap().hard_state.commit >= 40);
    assert_eq!(*follower.applied().1, map);
}
