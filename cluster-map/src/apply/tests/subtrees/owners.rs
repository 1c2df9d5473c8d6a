//! Who owns a subtree when ranks come and go.

use super::*;

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
