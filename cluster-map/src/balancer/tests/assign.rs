//! Who gets the subtrees of a dead rank.

use super::*;

#[test]
fn a_dead_ranks_subtrees_are_spread_by_load() {
    let demands = [500.0, 240.0, 240.0, 20.0, 300.0, 100.0];
    let world = with_subtrees(3, &demands, |number| if number < 4 { 0 } else { number as u32 - 3 });
    let loads = world.loads();
    let assigned = assign(&world.map, &loads, Rank(0));
    assert_eq!(assigned.len(), 5, "the root too");
    let mut after = [300.0, 100.0];
    for (id, rank) in &assigned {
        after[rank.0 as usize - 1] += world.demand_of(*id);
    }
    assert_eq!(assigned[0], (world.subtree_of(Ino(1000)), Rank(2)), "the hottest first, to the one with room");
    assert!((after[0] / after[1] - 1.0f64).abs() < 0.3, "{after:?}");
    // After an election nobody knows what the dead rank had to do.
    let unknown: BTreeMap<_, _> = loads.into_iter().filter(|(rank, _)| *rank != Rank(0)).collect();
    let counts =
        [1, 2].map(|rank| assign(&world.map, &unknown, Rank(0)).iter().filter(|(_, to)| *to == Rank(rank)).count());
    assert_eq!(counts, [2, 3]);
    let none = assign(&world.map, &BTreeMap::new(), Rank(0));
    let counts = [1, 2].map(|rank| none.iter().filter(|(_, to)| *to == Rank(rank)).count());
    assert_eq!(counts, [3, 2]);
}

#[test]
fn a_dead_ranks_subtrees_are_spread_by_what_the_others_have_now() {
    let mut world = with_subtrees(3, &[100.0; 12], |number| number as u32 % 3);
    let before = world.loads();
    let moved: Vec<SubtreeId> = world
        .map
        .subtrees
        .iter()
        .filter(|(id, one)| one.owner == Rank(0) && **id != ROOT_SUBTREE)
        .map(|(id, _)| *id)
        .collect();
    assert_eq!(moved.len(), 4);
    moved.into_iter().for_each(|id| world.relocate(id, Rank(2)));
    // Nobody has told yet what these moves did.
    let assigned = assign(&world.map, &before, Rank(1));
    assert!(assigned.len() == 4 && assigned.iter().all(|(_, to)| *to == Rank(0)), "{assigned:?}");
}

#[test]
fn subtrees_of_which_nobody_has_told_yet_count_as_average_ones() {
    let world = with_subtrees(3, &[100.0; 12], |number| number as u32 % 3);
    let untold = |load: &mut Load| load.subtrees.retain(|id, _| *id == ROOT_SUBTREE || id.0 % 2 == 0);
    let mut loads = world.loads();
    // Those that came to the dead rank a moment before: not all to the one that has least.
    loads.get_mut(&Rank(1)).unwrap().subtrees.clear();
    let assigned = assign(&world.map, &loads, Rank(1));
    let count = |rank| assigned.iter().filter(|(_, to)| *to == Rank(rank)).count();
    assert_eq!((count(0), count(2)), (2, 2), "{assigned:?}");
    // And those that came to the others.
    loads.values_mut().for_each(untold);
    let assigned = assign(&world.map, &loads, Rank(1));
    let count = |rank| assigned.iter().filter(|(_, to)| *to == Rank(rank)).count();
    assert_eq!((count(0), count(2)), (2, 2), "{assigned:?}");
}

#[test]
fn a_dead_ranks_subtrees_avoid_ranks_that_drain_and_follow_pins() {
    let mut world = with_subtrees(3, &[100.0; 4], |_| 0);
    world.apply(Command::DrainRank(DrainRank { rank: 1, draining: true }));
    assert!(assign(&world.map, &world.loads(), Rank(0)).iter().all(|(_, rank)| *rank == Rank(2)));
    world.apply(Command::DrainRank(DrainRank { rank: 1, draining: false }));
    let pinned = world.subtree_of(Ino(1002));
    for rank in [1, 2] {
        world.apply(Command::PinSubtree(PinSubtree { subtree: pinned.0, rank: Some(rank) }));
        assert!(assign(&world.map, &world.loads(), Rank(0)).contains(&(pinned, Rank(rank))));
    }
    let mut alone = with_subtrees(1, &[1.0], |_| 0);
    assert_eq!(assign(&alone.map, &alone.loads(), Rank(0)), []);
    alone.apply(Command::DrainRank(DrainRank { rank: 0, draining: true }));
    assert_eq!(assign(&alone.map, &BTreeMap::new(), Rank(0)), []);
}
