//! Subtrees and their ranks.

use pando_proto::{Error, Reason, SubtreeId};

use super::*;
use crate::convert::MapError;

mod moves;
mod owners;
mod random;
mod splits;

pub(super) use random::{aim, any_subtree_command};

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

fn renew(subtree: u64, epoch: u64) -> Command {
    Command::RenewSubtree(RenewSubtree { subtree, epoch })
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
fn a_map_with_subtrees_in_a_circle_is_refused() {
    let mut map = with_ranks(1);
    let first = split_off(&mut map, ROOT, 50);
    let second = split_off(&mut map, first, 60);
    assert_eq!(ClusterMap::from_proto(&map.to_proto()), Ok(map.clone()));
    map.subtrees.get_mut(&SubtreeId(first)).unwrap().parent = Some(SubtreeId(second));
    assert_eq!(ClusterMap::from_proto(&map.to_proto()), Err(MapError::Cycle));
    assert!(invariants::check(&map).is_err());
}
