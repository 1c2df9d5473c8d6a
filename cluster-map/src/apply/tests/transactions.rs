//! Transactions between subtrees are decided once (R17, R18).

use pando_proto::{Epoch, SubtreeId};

use super::*;
use crate::map::{Decision, TransactionId};

/// The root subtree (1) with children 2 and 3, and 4 below 3. All have been split, and have epochs and routes.
fn tree() -> ClusterMap {
    let mut map = cluster(1, 1);
    step(&mut map, &register_rank(0, 1)).unwrap();
    for (parent, root) in [(1, 12), (1, 13), (3, 14)] {
        let split = SplitSubtree {
            parent,
            parent_epoch: map.subtrees[&SubtreeId(parent)].epoch.0,
            root,
            parent_dir: 1000 + root,
            name: format!("dir{root}").into_bytes(),
            ..SplitSubtree::default()
        };
        step(&mut map, &Command::SplitSubtree(split)).unwrap();
    }
    map
}

fn decide(map: &ClusterMap, number: u64, participants: &[u64], commit: bool) -> DecideTransaction {
    let epoch = |id: u64| map.subtrees.get(&SubtreeId(id)).map_or(0, |subtree| subtree.epoch.0);
    DecideTransaction {
        id: Some(TransactionName { coordinator: participants[0], epoch: epoch(participants[0]), number }),
        participants: participants.iter().map(|id| Participant { subtree: *id, epoch: epoch(*id) }).collect(),
        commit,
        ..DecideTransaction::default()
    }
}

fn reparent(map: &ClusterMap, child: u64, from: u64, parent: u64, name: &str) -> Reparent {
    let route = map.subtrees[&SubtreeId(child)].route;
    Reparent { child, route, from, parent, parent_dir: 77, name: name.into() }
}

fn decided(map: &mut ClusterMap, command: &DecideTransaction) -> Decision {
    match step(map, &Command::DecideTransaction(command.clone())).unwrap().value {
        CommandValue::Decided(decision) => decision,
        other => panic!("{other:?}"),
    }
}

fn finish(map: &mut ClusterMap, subtree: u64, command: &DecideTransaction) {
    let transactions = command.id.into_iter().collect();
    step(map, &Command::FinishTransactions(FinishTransactions { subtree, transactions, epoch: 0 })).unwrap();
}

#[test]
fn r18_who_is_superseded_finishes_nothing() {
    let mut map = tree();
    let commit = decide(&map, 1, &[2, 3], true);
    let id = TransactionId::from(commit.id.unwrap());
    assert_eq!(decided(&mut map, &commit), Decision::Committed);
    let epoch = map.subtrees[&SubtreeId(2)].epoch.0;
    step(&mut map, &register_rank(0, 2)).unwrap();
    let finish = |map: &mut ClusterMap, epoch| {
        let transactions = commit.id.into_iter().collect();
        step(map, &Command::FinishTransactions(FinishTransactions { subtree: 2, transactions, epoch })).unwrap();
    };
    finish(&mut map, epoch);
    assert!(map.is_unfinished(id, SubtreeId(2)), "I6: the present owner may be at it");
    let epoch = map.subtrees[&SubtreeId(2)].epoch.0;
    finish(&mut map, epoch);
    assert!(!map.is_unfinished(id, SubtreeId(2)) && map.is_unfinished(id, SubtreeId(3)));
}

#[test]
fn r18_the_first_decision_stands_until_all_have_done_it() {
    let mut map = tree();
    let commit = decide(&map, 1, &[2, 3], true);
    let abort = DecideTransaction { commit: false, ..commit.clone() };
    assert_eq!(decided(&mut map, &commit), Decision::Committed);
    assert_eq!(decided(&mut map, &abort), Decision::Committed, "too late");
    let id = TransactionId::from(commit.id.unwrap());
    assert!(map.is_unfinished(id, SubtreeId(2)) && map.is_unfinished(id, SubtreeId(3)));
    finish(&mut map, 1, &commit);
    finish(&mut map, 3, &commit);
    finish(&mut map, 3, &commit);
    assert!(map.is_unfinished(id, SubtreeId(2)) && !map.is_unfinished(id, SubtreeId(3)));
    finish(&mut map, 2, &commit);
    assert!(map.transactions.is_empty());

    let (abort, commit) = (decide(&map, 2, &[2, 3], false), decide(&map, 2, &[2, 3], true));
    assert_eq!(decided(&mut map, &abort), Decision::Aborted);
    assert_eq!(decided(&mut map, &commit), Decision::Aborted, "too late");
}

#[test]
fn r18_nothing_is_committed_over_a_change_of_owner() {
    let mut map = tree();
    let commit = decide(&map, 1, &[2, 3], true);
    step(&mut map, &register_rank(0, 2)).unwrap();
    assert_eq!(decided(&mut map, &commit), Decision::Aborted);
    let mut unknown = decide(&map, 2, &[2, 3], true);
    unknown.participants[1].subtree = 99;
    assert_eq!(decided(&mut map, &unknown), Decision::Aborted);
    let id = TransactionId::from(unknown.id.unwrap());
    assert!(map.is_unfinished(id, SubtreeId(2)) && !map.is_unfinished(id, SubtreeId(99)));
    finish(&mut map, 2, &unknown);
    assert!(!map.transactions.contains_key(&id), "R11: who is no more was drained");
}

#[test]
fn r17_a_subtree_gets_another_parent_and_no_late_copy_does_it_again() {
    let mut map = tree();
    let mut there = decide(&map, 1, &[1, 2], true);
    there.reparent = Some(reparent(&map, 3, 1, 2, "new"));
    let routes = |map: &ClusterMap| [2, 3, 4].map(|id| map.subtrees[&SubtreeId(id)].route);
    let before = routes(&map);
    assert_eq!(decided(&mut map, &there), Decision::Committed);
    let moved = &map.subtrees[&SubtreeId(3)];
    assert_eq!((moved.parent, moved.parent_dir, &moved.name[..]), (Some(SubtreeId(2)), Some(Ino(77)), &b"new"[..]));
    assert_eq!(routes(&map), [before[0], before[1] + 1, before[2] + 1], "R16");
    for subtree in [1, 2] {
        finish(&mut map, subtree, &there);
    }

    let mut back = decide(&map, 1, &[2, 1], true);
    back.reparent = Some(reparent(&map, 3, 2, 1, "dir13"));
    assert_eq!(decided(&mut map, &back), Decision::Committed);
    for subtree in [1, 2] {
        finish(&mut map, subtree, &back);
    }
    assert_eq!(decided(&mut map, &there), Decision::Aborted, "a copy of long ago");
    assert_eq!(map.subtrees[&SubtreeId(3)].parent, Some(SubtreeId(1)));

    let mut aborted = decide(&map, 5, &[1, 2], false);
    aborted.reparent = Some(reparent(&map, 3, 1, 2, "new"));
    let late = DecideTransaction { commit: true, ..aborted.clone() };
    assert_eq!(decided(&mut map, &aborted), Decision::Aborted);
    for subtree in [1, 2] {
        finish(&mut map, subtree, &aborted);
    }
    assert_eq!(decided(&mut map, &late), Decision::Aborted, "its proposal comes after all have forgotten it");
}

/// A participant that hears nothing has the map abort, and says neither what the map was to do nor who else takes part.
#[test]
fn r18_late_copies_of_a_commit_change_nothing_after_the_abort_of_a_participant() {
    let mut map = tree();
    let mut commit = decide(&map, 1, &[1, 2, 4], true);
    commit.reparent = Some(reparent(&map, 3, 1, 2, "new"));
    let mut abort = DecideTransaction { id: commit.id, ..decide(&map, 1, &[1, 2], false) };
    abort.participants.iter_mut().for_each(|one| one.epoch = 0);
    let id = TransactionId::from(commit.id.unwrap());
    assert_eq!(decided(&mut map, &abort), Decision::Aborted);
    assert!(!map.is_unfinished(id, SubtreeId(4)));
    assert_eq!(decided(&mut map, &commit), Decision::Aborted, "I6");
    assert!(map.is_unfinished(id, SubtreeId(4)), "it may be prepared");
    let route = map.subtrees[&SubtreeId(3)].route;
    assert_eq!(decided(&mut map, &commit), Decision::Aborted, "again");
    assert_eq!(map.subtrees[&SubtreeId(3)].route, route, "once is enough");
    for subtree in [1, 2] {
        finish(&mut map, subtree, &commit);
    }
    assert!(map.transactions.contains_key(&id), "R18: until all know it");
    finish(&mut map, 4, &commit);
    assert!(map.transactions.is_empty());
    assert_eq!(decided(&mut map, &commit), Decision::Aborted, "R17: a copy that comes when all have forgotten it");
    assert_eq!(map.subtrees[&SubtreeId(3)].parent, Some(SubtreeId(1)));
}

#[test]
fn r17_no_subtree_comes_to_lie_below_itself() {
    let mut map = tree();
    for (number, to) in [(1, 3), (2, 4)] {
        let mut command = decide(&map, number, &[1, to], true);
        command.reparent = Some(reparent(&map, 3, 1, to, "loop"));
        assert_eq!(decided(&mut map, &command), Decision::Cycle);
    }
    // Two at once, each into the other: the second one sees the first.
    let (mut one, mut two) = (decide(&map, 3, &[1, 3], true), decide(&map, 4, &[1, 2], true));
    one.reparent = Some(reparent(&map, 2, 1, 3, "a"));
    two.reparent = Some(reparent(&map, 3, 1, 2, "b"));
    assert_eq!(decided(&mut map, &one), Decision::Committed);
    assert_eq!(decided(&mut map, &two), Decision::Cycle);
}

#[test]
fn r17_two_subtrees_exchange_their_names_in_one_step() {
    let mut map = tree();
    // 2 hangs in 1, and 4 in 3.
    let mut swap = decide(&map, 1, &[1, 3], true);
    let named = |map: &ClusterMap, child: u64, from: u64, parent: u64, dir: u64, name: &str| Reparent {
        parent_dir: dir,
        ..reparent(map, child, from, parent, name)
    };
    swap.reparent = Some(named(&map, 2, 1, 3, 1014, "dir14"));
    swap.more = vec![named(&map, 4, 3, 1, 1012, "dir12")];
    let routes = |map: &ClusterMap| [2, 3, 4].map(|id| map.subtrees[&SubtreeId(id)].route);
    let before = routes(&map);
    assert_eq!(decided(&mut map, &swap), Decision::Committed);
    let place = |map: &ClusterMap, id: u64| {
        let found = &map.subtrees[&SubtreeId(id)];
        (found.parent.unwrap().0, found.parent_dir.unwrap().0, String::from_utf8(found.name.clone()).unwrap())
    };
    assert_eq!(place(&map, 2), (3, 1014, "dir14".to_owned()));
    assert_eq!(place(&map, 4), (1, 1012, "dir12".to_owned()));
    assert_eq!(routes(&map), [before[0] + 1, before[1], before[2] + 1], "R16");
    for subtree in [1, 3] {
        finish(&mut map, subtree, &swap);
    }
    assert_eq!(decided(&mut map, &swap), Decision::Aborted, "a copy of long ago");
    assert_eq!(place(&map, 2).0, 3);
}

#[test]
fn r17_a_subtree_is_not_exchanged_with_what_is_below_it() {
    let mut map = tree();
    // 4 is in 3, which would get the name of 4: in itself.
    let mut swap = decide(&map, 1, &[1, 3], true);
    swap.reparent = Some(reparent(&map, 3, 1, 3, "dir14"));
    swap.more = vec![reparent(&map, 4, 3, 1, "dir13")];
    assert_eq!(decided(&mut map, &swap), Decision::Cycle);
    // Both children into each other.
    let mut swap = decide(&map, 3, &[1, 2, 3], true);
    swap.reparent = Some(reparent(&map, 2, 1, 3, "a"));
    swap.more = vec![reparent(&map, 3, 1, 2, "b")];
    assert_eq!(decided(&mut map, &swap), Decision::Cycle);
    assert_eq!([3, 4].map(|id| map.subtrees[&SubtreeId(id)].parent.unwrap().0), [1, 3], "nothing was changed");
    // One that is not where it was said to be: neither moves.
    let mut swap = decide(&map, 4, &[1, 3], true);
    swap.reparent = Some(reparent(&map, 2, 1, 3, "a"));
    swap.more = vec![reparent(&map, 4, 1, 1, "b")];
    assert_eq!(decided(&mut map, &swap), Decision::Aborted);
    assert_eq!(map.subtrees[&SubtreeId(2)].parent, Some(SubtreeId(1)));
}

#[test]
fn decisions_that_make_no_sense_are_refused() {
    let mut map = tree();
    let good = decide(&map, 1, &[1, 2], true);
    let named =
        |name: &str| Some(Reparent { child: 3, route: 1, from: 1, parent: 2, parent_dir: 7, name: name.into() });
    let one = good.participants[0];
    for bad in [
        DecideTransaction { id: None, ..good.clone() },
        DecideTransaction { participants: vec![], ..good.clone() },
        DecideTransaction { participants: vec![one, one], ..good.clone() },
        DecideTransaction {
            participants: (1..9).map(|id| Participant { subtree: id, epoch: 1 }).collect(),
            ..good.clone()
        },
        DecideTransaction { reparent: named(".."), ..good.clone() },
        DecideTransaction { reparent: named("a"), more: named("b").into_iter().collect(), ..good.clone() },
        DecideTransaction { more: named("a/b").into_iter().collect(), ..good.clone() },
        DecideTransaction { reparent: named("a/b"), ..good.clone() },
        DecideTransaction { reparent: named("").map(|it| Reparent { parent: 4, ..it }), ..good.clone() },
    ] {
        let refused = step(&mut map, &Command::DecideTransaction(bad.clone()));
        assert!(matches!(refused, Err(CommandError::Invalid(_))), "{bad:?}: {refused:?}");
    }
}

#[test]
fn i8_decisions_that_nobody_finishes_are_bounded() {
    let mut map = tree();
    let mut number = 0;
    let mut next = |map: &mut ClusterMap, commit| {
        number += 1;
        map.apply(&Command::DecideTransaction(decide(map, number, &[1, 2], commit)))
    };
    while next(&mut map, true).is_ok() {}
    assert_eq!(map.transactions.len(), 4096);
    assert!(next(&mut map, false).is_ok(), "what cannot be committed can be aborted");
    while next(&mut map, false).is_ok() {}
    assert_eq!((map.transactions.len(), map.subtrees[&SubtreeId(1)].epoch > Epoch(0)), (8192, true));
}
