//! Subtrees and their ranks.

use pando_proto::{Error, Reason, SubtreeId};

use super::*;
use crate::convert::MapError;
use crate::map::Lineage;

const ROOT: u64 = 1;

fn up(id: u32, incarnation: u64) -> Command {
    Command::RankUp(daemon(id, incarnation))
}

fn split(parent: u64, parent_epoch: u64, root: u64, adopted: &[u64]) -> Command {
    Command::SplitSubtree(SplitSubtree {
        parent,
        parent_epoch,
        root,
        parent_dir: 1000 + root,
        name: format!("dir{root}").into_bytes(),
        path_hint: format!("/dir{root}").into_bytes(),
        adopted: adopted.to_vec(),
        automatic: false,
    })
}

fn merge(child: u64, child_epoch: u64, parent_epoch: u64) -> Command {
    Command::MergeSubtree(MergeSubtree { child, child_epoch, parent_epoch })
}

fn start(subtree: u64, to: u32) -> Command {
    Command::StartMove(StartMove { subtree, to, to_merge: false })
}

fn commit(subtree: u64, from: u32, epoch: u64, move_id: u64) -> Command {
    Command::CommitMove(CommitMove { subtree, from, epoch, move_id })
}

fn cancel(subtree: u64, move_id: u64) -> Command {
    Command::CancelMove(CancelMove { subtree, move_id })
}

fn drain(rank: u32, draining: bool) -> Command {
    Command::DrainRank(DrainRank { rank, draining })
}

fn client(nonce: u8) -> Command {
    register_client(nonce, "")
}

/// Ranks 0 to `ranks` - 1, of which 0 owns the root subtree.
fn with_ranks(ranks: u32) -> ClusterMap {
    let mut map = cluster(1, 1);
    for rank in 0..ranks {
        step(&mut map, &register_rank(rank, 1)).unwrap();
    }
    map
}

fn tree(map: &ClusterMap, id: u64) -> &Subtree {
    &map.subtrees[&SubtreeId(id)]
}

/// Owner and epoch.
fn held(map: &ClusterMap, id: u64) -> (u32, u64) {
    let subtree = tree(map, id);
    (subtree.owner.0, subtree.epoch.0)
}

fn split_off(map: &mut ClusterMap, parent: u64, root: u64) -> u64 {
    let epoch = tree(map, parent).epoch.0;
    match step(map, &split(parent, epoch, root, &[])).unwrap().value {
        CommandValue::Subtree(id) => id.0,
        other => panic!("{other:?}"),
    }
}

/// Starts a move and returns its id.
fn begin(map: &mut ClusterMap, subtree: u64, to: u32) -> u64 {
    match step(map, &start(subtree, to)).unwrap().value {
        CommandValue::Move(id) => id,
        other => panic!("{other:?}"),
    }
}

fn relocate(map: &mut ClusterMap, subtree: u64, to: u32) {
    let (from, epoch) = held(map, subtree);
    let id = begin(map, subtree, to);
    step(map, &commit(subtree, from, epoch, id)).unwrap();
}

fn reason(result: Result<CommandResult, CommandError>) -> Reason {
    Error::from(result.unwrap_err()).reason
}

/// R11.
#[test]
fn a_split_raises_both_epochs_and_is_idempotent() {
    let mut map = with_ranks(1);
    step(&mut map, &client(1)).unwrap();
    let first = step(&mut map, &split(ROOT, 1, 50, &[])).unwrap();
    assert_eq!(first.value, CommandValue::Subtree(SubtreeId(2)));
    let child = tree(&map, 2);
    assert_eq!((held(&map, ROOT), held(&map, 2), child.route), ((0, 2), (0, 1), 1));
    assert_eq!((child.parent, child.split_from), (Some(SubtreeId(1)), Some((SubtreeId(1), Epoch(2)))));
    assert_eq!((child.root, child.parent_dir, child.name.as_slice()), (Ino(50), Some(Ino(1050)), b"dir50".as_slice()));
    assert_eq!(child.path_hint, b"/dir50");
    let entry = &map.lineage[0];
    assert_eq!((entry.child, entry.parent, entry.merged, entry.epoch), (SubtreeId(2), SubtreeId(1), false, map.epoch));
    assert_eq!(step(&mut map, &split(ROOT, 1, 50, &[])).unwrap(), first, "a repetition");

    // Also when much has happened since.
    step(&mut map, &register_rank(1, 1)).unwrap();
    relocate(&mut map, 2, 1);
    split_off(&mut map, ROOT, 60);
    assert_eq!(step(&mut map, &split(ROOT, 1, 50, &[])).unwrap().value, first.value);
    // Another split of the same directory is none.
    let error = step(&mut map, &split(ROOT, 3, 50, &[])).unwrap_err();
    assert!(matches!(&error, CommandError::Invalid(message) if message.contains("root of subtree.2")), "{error}");
    assert!(matches!(step(&mut map, &split(2, 1, 50, &[])), Err(CommandError::Invalid(_))));
}

#[test]
fn a_split_by_an_old_owner_or_of_what_moves_is_refused() {
    let mut map = with_ranks(2);
    let stale = step(&mut map, &split(ROOT, 2, 50, &[]));
    assert!(matches!(stale, Err(CommandError::Stale { have: 1, given: 2, .. })), "{stale:?}");
    let id = begin(&mut map, ROOT, 1);
    let moving = step(&mut map, &split(ROOT, 1, 50, &[])).unwrap_err();
    assert!(moving.to_string().contains("on its way to mds.1"), "{moving}");
    let error = Error::from(moving);
    assert!(error.is_retryable() && error.retry_after.is_some() && error.epoch == Some(1), "{error:?}");
    step(&mut map, &cancel(ROOT, id)).unwrap();
    step(&mut map, &split(ROOT, 1, 50, &[])).unwrap();
    assert_eq!(reason(step(&mut map, &split(77, 1, 60, &[]))), Reason::UnknownId);
}

#[test]
fn splits_that_make_no_sense_are_refused() {
    let mut map = with_ranks(1);
    let changed = |change: &dyn Fn(&mut SplitSubtree)| {
        let Command::SplitSubtree(mut command) = split(ROOT, 1, 50, &[]) else { unreachable!() };
        change(&mut command);
        Command::SplitSubtree(command)
    };
    for command in [
        changed(&|split| split.root = 0),
        changed(&|split| split.root = 1),
        changed(&|split| split.root = 1 << 63 | 5),
        changed(&|split| split.parent_dir = 0),
        changed(&|split| split.parent_dir = split.root),
        changed(&|split| split.name = vec![]),
        changed(&|split| split.name = vec![b'a'; 256]),
        changed(&|split| split.name = b"a/b".to_vec()),
        changed(&|split| split.name = b"..".to_vec()),
        changed(&|split| split.adopted = vec![ROOT]),
    ] {
        assert_eq!(reason(step(&mut map, &command)), Reason::InvalidRequest, "{command:?}");
    }
    assert_eq!(reason(step(&mut map, &changed(&|split| split.adopted = vec![9]))), Reason::UnknownId);
    step(&mut map, &changed(&|split| split.path_hint = vec![b'x'; 4096])).unwrap();
    assert_eq!(tree(&map, 2).path_hint.len(), 512, "the map stays small");
}

#[test]
fn children_below_the_new_root_are_adopted() {
    let mut map = with_ranks(1);
    let (inner, outer) = (split_off(&mut map, ROOT, 50), split_off(&mut map, ROOT, 60));
    let grandchild = split_off(&mut map, inner, 70);
    let refused = step(&mut map, &split(ROOT, 3, 40, &[inner, grandchild]));
    assert_eq!(reason(refused), Reason::InvalidRequest, "no child of the parent");
    let before = tree(&map, inner).clone();
    step(&mut map, &split(ROOT, 3, 40, &[inner])).unwrap();
    let adopted = tree(&map, inner).clone();
    assert_eq!(adopted, Subtree { parent: Some(SubtreeId(5)), ..before });
    assert_eq!(tree(&map, outer).parent, Some(SubtreeId(1)));
    let below: Vec<u64> = map.with_descendants([SubtreeId(5)]).into_iter().map(|id| id.0).collect();
    assert_eq!(below, [inner, grandchild, 5]);
}

/// R10, R11.
#[test]
fn a_merge_raises_the_parent_and_leaves_its_fence_in_the_lineage() {
    let mut map = with_ranks(2);
    step(&mut map, &client(1)).unwrap();
    let child = split_off(&mut map, ROOT, 50);
    let grandchild = split_off(&mut map, child, 60);
    let error = step(&mut map, &merge(child, 2, 2)).unwrap_err();
    assert!(error.to_string().contains("merge those first"), "{error}");
    assert_eq!(reason(Err(error)), Reason::InUse);
    assert_eq!(reason(step(&mut map, &merge(grandchild, 2, 2))), Reason::StaleEpoch, "child epoch");
    assert_eq!(reason(step(&mut map, &merge(grandchild, 1, 1))), Reason::StaleEpoch, "parent epoch");
    let id = begin(&mut map, grandchild, 1);
    assert_eq!(reason(step(&mut map, &merge(grandchild, 1, 2))), Reason::StaleEpoch, "the child moves");
    step(&mut map, &cancel(grandchild, id)).unwrap();
    let id = begin(&mut map, child, 1);
    assert_eq!(reason(step(&mut map, &merge(grandchild, 1, 2))), Reason::StaleEpoch, "the parent moves");
    step(&mut map, &commit(child, 0, 2, id)).unwrap();
    let error = step(&mut map, &merge(grandchild, 1, 3)).unwrap_err();
    assert!(error.to_string().contains("move them to one rank first"), "{error}");

    relocate(&mut map, grandchild, 1);
    let done = step(&mut map, &merge(grandchild, 2, 3)).unwrap();
    assert_eq!(held(&map, child), (1, 4));
    let expected = Lineage {
        child: SubtreeId(grandchild),
        parent: SubtreeId(child),
        epoch: map.epoch,
        merged: true,
        child_fence: Epoch(3),
        child_root: Ino(60),
    };
    assert_eq!(map.lineage.last(), Some(&expected));
    assert_eq!(map.lineage.len(), 2, "its split is of no use any more");
    assert_eq!(step(&mut map, &merge(grandchild, 2, 3)).unwrap(), done, "a repetition");
    assert_eq!(reason(step(&mut map, &merge(grandchild, 1, 3))), Reason::UnknownId);
    assert_eq!(reason(step(&mut map, &merge(ROOT, 2, 3))), Reason::InvalidRequest);
    assert_eq!(reason(step(&mut map, &merge(99, 2, 3))), Reason::UnknownId);

    // The directory can be split off again: as another subtree.
    assert_eq!(split_off(&mut map, child, 60), 4);
    step(&mut map, &Command::EndSession(EndSession { client_id: 1 })).unwrap();
    assert!(map.lineage.is_empty(), "no session is older");
}

#[test]
fn subtrees_are_bounded() {
    let mut map = with_ranks(1);
    let child = split_off(&mut map, ROOT, 50);
    let one = tree(&map, child).clone();
    for number in 100..100 + 4094 {
        map.subtrees.insert(SubtreeId(number), Subtree { root: Ino(number), ..one.clone() });
    }
    map.next_subtree_id = 10_000;
    let error = step(&mut map, &split(ROOT, 2, 60, &[])).unwrap_err();
    assert!(error.to_string().contains("4096 subtrees") && !Error::from(error.clone()).is_retryable(), "{error}");
}

/// A long-lived session keeps the lineage; it must not grow without end.
#[test]
fn merges_that_old_sessions_may_ask_about_are_bounded() {
    let mut map = with_ranks(1);
    step(&mut map, &client(1)).unwrap();
    let entry =
        |child| Lineage { merged: true, child: SubtreeId(child), parent: SubtreeId(1), epoch: map.epoch, ..lineage() };
    map.lineage = (100..100 + 4096).map(entry).collect();
    map.lineage.iter_mut().for_each(|entry| entry.epoch = Epoch(map.epoch.0));
    map.sessions.values_mut().for_each(|session| session.since = Epoch(1));
    let child = split_off(&mut map, ROOT, 50);
    assert_eq!(reason(step(&mut map, &merge(child, 1, 2))), Reason::InUse);
    step(&mut map, &Command::EndSession(EndSession { client_id: 1 })).unwrap();
    step(&mut map, &merge(child, 1, 2)).unwrap();
}

fn lineage() -> Lineage {
    Lineage {
        child: SubtreeId(0),
        parent: SubtreeId(0),
        epoch: Epoch(0),
        merged: false,
        child_fence: Epoch(0),
        child_root: Ino(0),
    }
}

/// R12.
#[test]
fn a_move_is_committed_once_and_by_its_source() {
    let mut map = with_ranks(3);
    let id = begin(&mut map, ROOT, 1);
    assert_eq!(id, map.epoch.0);
    assert_eq!((tree(&map, ROOT).move_id, tree(&map, ROOT).moving_to, held(&map, ROOT)), (id, Rank(1), (0, 1)));
    assert_eq!(begin(&mut map, ROOT, 1), id, "idempotent");
    assert_eq!(reason(step(&mut map, &start(ROOT, 2))), Reason::InUse, "two people, two wishes");
    for wrong in [commit(ROOT, 0, 2, id), commit(ROOT, 2, 1, id), commit(ROOT, 0, 1, id + 1), commit(ROOT, 0, 1, 0)] {
        assert_eq!(reason(step(&mut map, &wrong)), Reason::StaleEpoch, "{wrong:?}");
    }
    let done = step(&mut map, &commit(ROOT, 0, 1, id)).unwrap();
    assert_eq!((held(&map, ROOT), tree(&map, ROOT).move_id), ((1, 2), 0));
    assert_eq!(step(&mut map, &commit(ROOT, 0, 1, id)).unwrap(), done, "a repetition");
    assert_eq!(reason(step(&mut map, &cancel(ROOT, id))), Reason::StaleEpoch, "it is done");
    assert_eq!(begin(&mut map, ROOT, 1), 0, "there already");
    // Back again: the old handover is another one.
    relocate(&mut map, ROOT, 0);
    assert_eq!(reason(step(&mut map, &commit(ROOT, 0, 1, id))), Reason::StaleEpoch);
    assert_eq!(held(&map, ROOT), (0, 3));
}

/// R12: a handover that is still under way when the move is given up must not count.
#[test]
fn a_move_that_was_given_up_is_never_committed() {
    let mut map = with_ranks(2);
    let id = begin(&mut map, ROOT, 1);
    step(&mut map, &cancel(ROOT, id + 7)).unwrap();
    assert_eq!(tree(&map, ROOT).move_id, id, "another move");
    let done = step(&mut map, &cancel(ROOT, id)).unwrap();
    assert_eq!(step(&mut map, &cancel(ROOT, id)).unwrap(), done, "idempotent");
    assert_eq!(reason(step(&mut map, &commit(ROOT, 0, 1, id))), Reason::StaleEpoch);
    let second = begin(&mut map, ROOT, 1);
    assert_ne!(second, id);
    assert_eq!(reason(step(&mut map, &commit(ROOT, 0, 1, id))), Reason::StaleEpoch);
    assert_eq!(reason(step(&mut map, &cancel(ROOT, 0))), Reason::InvalidRequest);
    assert_eq!(reason(step(&mut map, &cancel(9, id))), Reason::UnknownId);
}

#[test]
fn moves_to_nowhere_are_refused() {
    let mut map = with_ranks(4);
    step(&mut map, &rank_down(2, 1)).unwrap();
    step(&mut map, &drain(3, true)).unwrap();
    assert_eq!(reason(step(&mut map, &start(ROOT, 9))), Reason::UnknownId);
    assert_eq!(reason(step(&mut map, &start(9, 1))), Reason::UnknownId);
    let dead = step(&mut map, &start(ROOT, 2)).unwrap_err();
    assert!(dead.to_string().contains("mds.2 is down"), "{dead}");
    let draining = step(&mut map, &start(ROOT, 3)).unwrap_err();
    assert!(draining.to_string().contains("being drained"), "{draining}");
    assert_eq!(reason(step(&mut map, &drain(9, true))), Reason::UnknownId);
}

#[test]
fn draining_ends_the_moves_towards_a_rank() {
    let mut map = with_ranks(2);
    let id = begin(&mut map, ROOT, 1);
    let done = step(&mut map, &drain(1, true)).unwrap();
    assert_eq!(step(&mut map, &drain(1, true)).unwrap(), done, "idempotent");
    assert_eq!(reason(step(&mut map, &commit(ROOT, 0, 1, id))), Reason::StaleEpoch);
    step(&mut map, &drain(1, false)).unwrap();
    begin(&mut map, ROOT, 1);
}

/// R16.
#[test]
fn routes_rise_for_all_below() {
    let mut map = with_ranks(1);
    let child = split_off(&mut map, ROOT, 50);
    let grandchild = split_off(&mut map, child, 60);
    let other = split_off(&mut map, ROOT, 70);
    let raise = |ids: &[u64]| Command::RaiseRoutes(RaiseRoutes { subtrees: ids.to_vec() });
    step(&mut map, &raise(&[child])).unwrap();
    let routes = |map: &ClusterMap| [ROOT, child, grandchild, other].map(|id| tree(map, id).route);
    assert_eq!(routes(&map), [1, 2, 2, 1]);
    step(&mut map, &raise(&[child, grandchild])).unwrap();
    assert_eq!(routes(&map), [1, 3, 3, 1], "once each");
    assert_eq!(reason(step(&mut map, &raise(&[99]))), Reason::UnknownId);
    step(&mut map, &merge(grandchild, 1, 2)).unwrap();
    let epoch = map.epoch;
    assert_eq!(step(&mut map, &raise(&[grandchild])).unwrap().epoch, epoch, "there is no way to it any more");
    assert_eq!(step(&mut map, &raise(&[])).unwrap().epoch, epoch);
}

#[test]
fn pins_and_spreads_are_kept_and_name_what_there_is() {
    let mut map = with_ranks(2);
    let pin = |subtree, rank| Command::PinSubtree(PinSubtree { subtree, rank });
    let done = step(&mut map, &pin(ROOT, Some(1))).unwrap();
    assert_eq!(step(&mut map, &pin(ROOT, Some(1))).unwrap(), done, "idempotent");
    assert_eq!(tree(&map, ROOT).pin, Some(Rank(1)));
    assert_eq!(reason(step(&mut map, &pin(ROOT, Some(7)))), Reason::UnknownId);
    assert_eq!(reason(step(&mut map, &pin(7, Some(1)))), Reason::UnknownId);
    step(&mut map, &rank_down(1, 1)).unwrap();
    step(&mut map, &pin(ROOT, None)).unwrap();
    step(&mut map, &pin(ROOT, Some(1))).unwrap();
    step(&mut map, &Command::RemoveRank(RemoveDaemon { id: 1 })).unwrap();
    assert_eq!(tree(&map, ROOT).pin, None, "the rank is gone");
    let spread = |subtree, spread| Command::SpreadSubtree(SpreadSubtree { subtree, spread });
    let done = step(&mut map, &spread(ROOT, true)).unwrap();
    assert_eq!(step(&mut map, &spread(ROOT, true)).unwrap(), done, "idempotent");
    assert!(tree(&map, ROOT).spread);
    assert_eq!(reason(step(&mut map, &spread(7, true))), Reason::UnknownId);
}

#[test]
fn the_first_rank_gets_the_root_whatever_its_number_is() {
    let mut map = cluster(1, 1);
    step(&mut map, &register_rank(5, 1)).unwrap();
    assert_eq!(held(&map, ROOT), (5, 1));
    step(&mut map, &register_rank(0, 1)).unwrap();
    assert_eq!(held(&map, ROOT), (5, 1));
}

/// R13, I3.
#[test]
fn the_subtrees_of_a_dead_rank_go_where_the_command_says_or_to_the_rank_with_the_fewest() {
    let mut map = with_ranks(4);
    let ids: Vec<u64> = (0..7).map(|n| split_off(&mut map, ROOT, 50 + n)).collect();
    relocate(&mut map, ids[0], 1);
    relocate(&mut map, ids[1], 1);
    relocate(&mut map, ids[2], 2);
    step(&mut map, &drain(3, true)).unwrap();
    let assignment = |subtree, rank| Assignment { subtree, rank };
    let mut named = RankDown { id: 0, incarnation: 1, assignments: vec![] };
    // One that is not its own, one to a rank that is not up, one to the dead rank itself, one to nowhere.
    named.assignments = vec![
        assignment(ids[3], 1),
        assignment(ids[0], 2),
        assignment(ids[4], 9),
        assignment(ids[5], 0),
        assignment(777, 1),
    ];
    let epochs: Vec<_> = ids.iter().map(|id| held(&map, *id).1).collect();
    step(&mut map, &Command::RankDown(named)).unwrap();
    let owners: Vec<u32> = std::iter::once(ROOT).chain(ids.clone()).map(|id| held(&map, id).0).collect();
    // root: to 2, which has one; then ids 3 as said; 4 to 2; 5 to 1 or 2; none to the one that drains.
    assert_eq!(owners, [2, 1, 1, 2, 1, 2, 1, 2]);
    for (index, id) in ids.iter().enumerate() {
        assert_eq!(held(&map, *id).1, epochs[index] + u64::from(index > 2), "{id}");
    }
    // Its number comes back with nothing.
    step(&mut map, &up(0, 1)).unwrap();
    assert!(map.subtrees.values().all(|subtree| subtree.owner != Rank(0)));
    // Only the draining one is left: it serves.
    for rank in [0, 1, 2] {
        step(&mut map, &rank_down(rank, 1)).unwrap();
    }
    assert!(map.subtrees.values().all(|subtree| subtree.owner == Rank(3)));
}

/// R12.
#[test]
fn the_death_of_a_source_or_a_destination_ends_the_move() {
    let mut map = with_ranks(3);
    let child = split_off(&mut map, ROOT, 50);
    let (first, second) = (begin(&mut map, ROOT, 1), begin(&mut map, child, 2));
    step(&mut map, &rank_down(1, 1)).unwrap();
    assert_eq!((tree(&map, ROOT).move_id, tree(&map, child).move_id), (0, second));
    assert_eq!(held(&map, ROOT), (0, 2));
    assert_eq!(reason(step(&mut map, &commit(ROOT, 0, 2, first))), Reason::StaleEpoch);
    step(&mut map, &rank_down(0, 1)).unwrap();
    assert_eq!((held(&map, ROOT), held(&map, child)), ((2, 3), (2, 2)));
    assert_eq!(reason(step(&mut map, &commit(child, 0, 1, second))), Reason::StaleEpoch, "the zombie's late handover");
}

#[test]
fn the_restart_of_a_source_or_a_destination_ends_the_move() {
    let mut map = with_ranks(2);
    let id = begin(&mut map, ROOT, 1);
    step(&mut map, &register_rank(1, 2)).unwrap();
    assert_eq!((held(&map, ROOT), tree(&map, ROOT).move_id), ((0, 1), 0));
    assert_eq!(reason(step(&mut map, &commit(ROOT, 0, 1, id))), Reason::StaleEpoch);
    let id = begin(&mut map, ROOT, 1);
    step(&mut map, &register_rank(0, 2)).unwrap();
    assert_eq!((held(&map, ROOT), tree(&map, ROOT).move_id), ((0, 2), 0));
    assert_eq!(reason(step(&mut map, &commit(ROOT, 0, 1, id))), Reason::StaleEpoch);
}

#[test]
fn subtrees_that_nobody_served_go_to_the_rank_that_comes() {
    let mut map = with_ranks(2);
    let child = split_off(&mut map, ROOT, 50);
    step(&mut map, &rank_down(1, 1)).unwrap();
    step(&mut map, &rank_down(0, 1)).unwrap();
    assert_eq!((held(&map, ROOT), held(&map, child)), ((0, 2), (0, 1)), "nobody is there to take them");
    // The same process goes on with what it has.
    step(&mut map, &up(0, 1)).unwrap();
    assert_eq!((held(&map, ROOT), held(&map, child)), ((0, 2), (0, 1)));
    step(&mut map, &rank_down(0, 1)).unwrap();
    step(&mut map, &up(1, 1)).unwrap();
    assert_eq!((held(&map, ROOT), held(&map, child)), ((1, 3), (1, 2)), "the first that is heard of serves");
    step(&mut map, &rank_down(1, 1)).unwrap();
    step(&mut map, &register_rank(7, 1)).unwrap();
    assert_eq!((held(&map, ROOT), held(&map, child)), ((7, 4), (7, 3)));
}

#[test]
fn a_map_with_subtrees_in_a_circle_is_refused() {
    let mut map = with_ranks(1);
    let first = split_off(&mut map, ROOT, 50);
    let second = split_off(&mut map, first, 60);
    assert_eq!(ClusterMap::from_proto(&map.to_proto()), Ok(map.clone()));
    map.subtrees.get_mut(&SubtreeId(first)).unwrap().parent = Some(SubtreeId(second));
    assert_eq!(ClusterMap::from_proto(&map.to_proto()), Err(MapError::Cycle));
    assert!(invariants::check(&map).is_err());
}

/// Commands about the subtrees of a small cluster. Epochs and moves of 0 stand for the true ones.
pub(super) fn any_subtree_command() -> impl Strategy<Value = Command> {
    let (id, rank) = (1..7u64, 0..3u32);
    let adopted = prop::collection::vec(1..7u64, 0..2);
    let mostly_true = || prop_oneof![5 => Just(0), 1 => 1..40u64];
    prop_oneof![
        4 => (id.clone(), mostly_true(), 20..32u64, adopted)
            .prop_map(|(parent, epoch, root, adopted)| split(parent, epoch, root, &adopted)),
        3 => (id.clone(), mostly_true(), mostly_true()).prop_map(|(child, epoch, parent)| merge(child, epoch, parent)),
        6 => (id.clone(), rank.clone()).prop_map(|(subtree, to)| start(subtree, to)),
        6 => (id.clone(), rank.clone(), mostly_true(), mostly_true())
            .prop_map(|(subtree, from, epoch, move_id)| commit(subtree, from, epoch, move_id)),
        1 => (id.clone(), mostly_true()).prop_map(|(subtree, move_id)| cancel(subtree, move_id)),
        2 => prop::collection::vec(id.clone(), 0..3).prop_map(|subtrees| {
            Command::RaiseRoutes(RaiseRoutes { subtrees })
        }),
        1 => (id.clone(), prop::option::of(rank.clone())).prop_map(|(subtree, rank)| {
            Command::PinSubtree(PinSubtree { subtree, rank })
        }),
        1 => (id.clone(), any::<bool>()).prop_map(|(subtree, spread)| {
            Command::SpreadSubtree(SpreadSubtree { subtree, spread })
        }),
        1 => (rank.clone(), any::<bool>()).prop_map(|(rank, draining)| drain(rank, draining)),
        2 => (rank.clone(), 1..4u64, prop::collection::vec((id, rank), 0..3)).prop_map(|(id, incarnation, named)| {
            let assignments = named.into_iter().map(|(subtree, rank)| Assignment { subtree, rank }).collect();
            Command::RankDown(RankDown { id, incarnation, assignments })
        }),
    ]
}

/// Puts the true epochs and moves where a command has 0, and takes most ids for places among those that exist.
pub(super) fn aim(map: &ClusterMap, command: Command) -> Command {
    let ids: Vec<u64> = map.subtrees.keys().map(|id| id.0).collect();
    let pick = |id: u64| if id >= 6 || ids.is_empty() { id } else { ids[id as usize % ids.len()] };
    let subtree = |id: u64| map.subtrees.get(&SubtreeId(id)).cloned().unwrap_or_default();
    let or = |given: u64, true_one: u64| if given == 0 { true_one } else { given };
    match command {
        Command::SplitSubtree(split) => {
            let parent = pick(split.parent);
            let parent_epoch = or(split.parent_epoch, subtree(parent).epoch.0);
            let fits = |id: &u64| *id >= 6 || subtree(*id).parent == Some(SubtreeId(parent));
            let adopted = split.adopted.into_iter().map(pick).filter(fits).collect();
            Command::SplitSubtree(SplitSubtree { parent, parent_epoch, adopted, ..split })
        }
        Command::StartMove(start) => Command::StartMove(StartMove { subtree: pick(start.subtree), ..start }),
        Command::MergeSubtree(merge) => {
            let merge = MergeSubtree { child: pick(merge.child), ..merge };
            let child = subtree(merge.child);
            let parent = child.parent.map(|parent| subtree(parent.0)).unwrap_or_default();
            let (child_epoch, parent_epoch) =
                (or(merge.child_epoch, child.epoch.0), or(merge.parent_epoch, parent.epoch.0));
            Command::MergeSubtree(MergeSubtree { child_epoch, parent_epoch, ..merge })
        }
        Command::CommitMove(commit) => {
            let commit = CommitMove { subtree: pick(commit.subtree), ..commit };
            let known = subtree(commit.subtree);
            let from = if commit.epoch == 0 { known.owner.0 } else { commit.from };
            let (epoch, move_id) = (or(commit.epoch, known.epoch.0), or(commit.move_id, known.move_id));
            Command::CommitMove(CommitMove { from, epoch, move_id, ..commit })
        }
        Command::CancelMove(cancel) => {
            let cancel = CancelMove { subtree: pick(cancel.subtree), ..cancel };
            let move_id = or(cancel.move_id, subtree(cancel.subtree).move_id);
            Command::CancelMove(CancelMove { move_id, ..cancel })
        }
        other => other,
    }
}

fn any_rank_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        12 => any_subtree_command(),
        2 => (0..3u32, 1..4u8).prop_map(|(rank, boot)| register_rank(rank, boot)),
        1 => (0..3u32, 1..4u64).prop_map(|(id, incarnation)| up(id, incarnation)),
        1 => (0..3u32).prop_map(|id| Command::RemoveRank(RemoveDaemon { id })),
        1 => (0..9u8).prop_map(client),
        1 => (1..9u64).prop_map(|client_id| Command::EndSession(EndSession { client_id })),
    ]
}

/// What became of handovers: the map alone knows, and a source must be able to rely on what it is told (R12).
#[derive(Default)]
struct Handovers(std::collections::BTreeMap<(u64, u64), bool>);

impl Handovers {
    fn note(&mut self, command: &Command, result: &Result<CommandResult, CommandError>, map: &ClusterMap) {
        let known = |id: u64| map.subtrees.contains_key(&SubtreeId(id));
        let (subtree, move_id, committed) = match command {
            Command::CommitMove(commit) if result.is_ok() => (commit.subtree, commit.move_id, true),
            // An error may be about the epoch or the owner only, as long as the move goes on.
            Command::CommitMove(commit)
                if known(commit.subtree) && tree(map, commit.subtree).move_id != commit.move_id =>
            {
                (commit.subtree, commit.move_id, false)
            }
            Command::CancelMove(cancel) if result.is_ok() => (cancel.subtree, cancel.move_id, false),
            _ => return,
        };
        // Ids that no move had yet say nothing.
        if move_id != 0 && move_id <= map.epoch.0 {
            let before = *self.0.entry((subtree, move_id)).or_insert(committed);
            assert!(!committed || before, "R12: a move that was said to be void was committed: {command:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_commands_keep_the_tree(commands in prop::collection::vec(any_rank_command(), 0..120)) {
        let mut map = with_ranks(3);
        step(&mut map, &client(200)).unwrap();
        let mut handovers = Handovers::default();
        for command in commands {
            let command = aim(&map, command);
            let reread = Command::from_bytes(&command.to_bytes()).unwrap();
            let mut twin = map.clone();
            let result = step(&mut map, &command);
            prop_assert_eq!(twin.apply(&reread), result.clone(), "deterministic");
            prop_assert_eq!(&twin, &map);
            handovers.note(&command, &result, &map);
        }
        prop_assert_eq!(ClusterMap::from_proto(&map.to_proto()), Ok(map));
    }
}

#[test]
fn a_subtree_tells_whose_it_was_until_it_moves() {
    let mut map = with_ranks(2);
    let of_root = |map: &ClusterMap| map.subtrees[&SubtreeId(ROOT)].clone();
    step(&mut map, &rank_down(0, 1)).unwrap();
    assert_eq!((of_root(&map).owner, of_root(&map).taken_from), (Rank(1), Some(Rank(0))));
    // The new owner's restart changes nothing in that.
    step(&mut map, &register_rank(1, 2)).unwrap();
    assert_eq!(of_root(&map).taken_from, Some(Rank(0)));
    step(&mut map, &rank_down(1, 2)).unwrap();
    step(&mut map, &register_rank(0, 2)).unwrap();
    assert_eq!((of_root(&map).owner, of_root(&map).taken_from), (Rank(0), Some(Rank(1))), "nobody was up meanwhile");
    step(&mut map, &register_rank(1, 3)).unwrap();
    let CommandValue::Move(move_id) = step(&mut map, &start(ROOT, 1)).unwrap().value else { panic!("no move") };
    let epoch = of_root(&map).epoch.0;
    step(&mut map, &commit(ROOT, 0, epoch, move_id)).unwrap();
    assert_eq!((of_root(&map).owner, of_root(&map).taken_from), (Rank(1), None));
}
