//! What people want: pins, draining, spreading, and a balancer that keeps still.

use super::*;

#[test]
fn pins_are_obeyed_and_kept() {
    let mut world = with_subtrees(3, &[400.0; 6], |_| 0);
    let pinned = world.subtree_of(Ino(1000));
    world.apply(Command::PinSubtree(PinSubtree { subtree: pinned.0, rank: Some(2) }));
    let first = world.step();
    assert_eq!(first.moves.len(), 1);
    assert_eq!((first.moves[0].subtree, first.moves[0].to, first.moves[0].cause), (pinned, Rank(2), Cause::Pin));
    for _ in 0..20 {
        assert!(world.step().moves.iter().all(|one| one.subtree != pinned));
    }
    assert_eq!(world.map.subtrees[&pinned].owner, Rank(2));
    // A pin holds for what lies below, too.
    let below = world.dir(50, Ino(1000), 10.0);
    let below = world.split(pinned, below, false);
    world.relocate(below, Rank(1));
    let decision = world.step();
    assert!(decision.moves.iter().any(|one| (one.subtree, one.to) == (below, Rank(2))), "{decision:?}");
    // A rank that is down cannot have it.
    world.apply(Command::PinSubtree(PinSubtree { subtree: pinned.0, rank: Some(1) }));
    world.apply(Command::RankDown(RankDown { id: 1, incarnation: 1, assignments: vec![] }));
    let decision = world.step();
    assert!(decision.moves.iter().all(|one| one.cause != Cause::Pin), "{decision:?}");
    assert!(decision.reason.contains("pinned to a rank that is down"), "{}", decision.reason);
}

/// A pin names a rank, and the nearest one holds: pins that contradict each other cannot chase a subtree around.
#[test]
fn the_nearest_pin_holds_and_then_all_rests() {
    let mut world = with_subtrees(3, &[10.0; 3], |_| 0);
    let above = world.subtree_of(Ino(1000));
    let dir = world.dir(50, Ino(1000), 10.0);
    let below = world.split(above, dir, false);
    let dir = world.dir(51, dir, 10.0);
    let lowest = world.split(below, dir, false);
    for (subtree, rank) in [(ROOT_SUBTREE, 2), (above, 1), (below, 2), (lowest, 1)] {
        world.apply(Command::PinSubtree(PinSubtree { subtree: subtree.0, rank: Some(rank) }));
    }
    for _ in 0..5 {
        world.step();
    }
    let owner = |world: &World, id: SubtreeId| world.map.subtrees[&id].owner;
    assert_eq!([ROOT_SUBTREE, above, below, lowest].map(|id| owner(&world, id)), [2, 1, 2, 1].map(Rank));
    world.rest(20);
}

#[test]
fn a_pinned_subtree_is_not_split() {
    let mut world = with_dirs(3, &[300.0; 16]);
    world.apply(Command::PinSubtree(PinSubtree { subtree: ROOT_SUBTREE.0, rank: Some(0) }));
    world.rest(20);
}

#[test]
fn a_draining_rank_is_emptied_in_every_mode_and_stays_empty() {
    for mode in [Mode::Off, Mode::Manual, Mode::Auto] {
        let mut world = with_subtrees(3, &[50.0; 9], |_| 0);
        world.policy.mode = mode;
        world.apply(Command::DrainRank(DrainRank { rank: 0, draining: true }));
        let decision = world.step();
        assert_eq!(decision.moves.len(), 10, "the root too");
        assert!(decision.moves.iter().all(|one| one.cause == Cause::Drain));
        let counts = [1, 2].map(|rank| world.map.subtrees.values().filter(|one| one.owner == Rank(rank)).count());
        assert_eq!(counts, [5, 5]);
        world.rest(10);
    }
    let mut world = with_subtrees(2, &[900.0; 2], |_| 1);
    world.apply(Command::DrainRank(DrainRank { rank: 1, draining: true }));
    world.apply(Command::DrainRank(DrainRank { rank: 0, draining: true }));
    let decision = world.step();
    assert!(decision.moves.is_empty() && decision.reason.contains("no other rank"), "{decision:?}");
    world.apply(Command::DrainRank(DrainRank { rank: 0, draining: false }));
    world.step();
    assert_eq!(world.demand_on(1), 0.0);
    world.rest(20);
}

#[test]
fn spread_directories_are_dealt_whether_they_carry_load_or_not() {
    for demand in [0.0, 10.0] {
        let mut world = with_subtrees(3, &[demand; 40], |_| 0);
        world.policy.idle = 5;
        world.apply(Command::SpreadSubtree(SpreadSubtree { subtree: ROOT_SUBTREE.0, spread: true }));
        world.step();
        let dealt = |world: &World| {
            [0, 1, 2].map(|rank| world.map.children(ROOT_SUBTREE).filter(|(_, one)| one.owner == Rank(rank)).count())
        };
        let mut counts = dealt(&world);
        counts.sort_unstable();
        assert_eq!(counts, [13, 13, 14]);
        world.rest(20);
        assert_eq!(world.map.subtrees.len(), 41, "none goes back for being idle");
        // One that is made later.
        let dir = world.dir(40, Ino::ROOT, demand);
        world.split(ROOT_SUBTREE, dir, true);
        world.step();
        assert_eq!(dealt(&world).iter().max(), Some(&14));
        // A rank less, then one more.
        world.apply(Command::DrainRank(DrainRank { rank: 1, draining: true }));
        world.step();
        world.step();
        assert_eq!(dealt(&world)[1], 0);
        world.apply(Command::DrainRank(DrainRank { rank: 1, draining: false }));
        world.step();
        assert_eq!(dealt(&world).iter().max(), Some(&14));
        // Load does not undo it.
        world.demands.values_mut().take(14).for_each(|demand| *demand = 500.0);
        world.rest(20);
    }
}

#[test]
fn what_was_spread_goes_back_when_it_is_idle_and_nobody_wants_it_spread() {
    let mut world = with_subtrees(2, &[0.0; 6], |number| number as u32 % 2);
    world.policy.idle = 5;
    world.apply(Command::SpreadSubtree(SpreadSubtree { subtree: ROOT_SUBTREE.0, spread: true }));
    world.rest(40);
    assert_eq!(world.map.subtrees.len(), 7);
    world.apply(Command::SpreadSubtree(SpreadSubtree { subtree: ROOT_SUBTREE.0, spread: false }));
    for _ in 0..60 {
        world.step();
    }
    assert_eq!(world.map.subtrees.len(), 1, "{:?}", world.map.subtrees);
}

#[test]
fn off_does_nothing_and_manual_only_says_it() {
    let mut world = with_subtrees(2, &[600.0, 600.0], |_| 0);
    world.policy.mode = Mode::Off;
    world.rest(5);
    assert_eq!(world.plan().reason, "the balancer is off (balancer_mode 0)");
    world.policy.mode = Mode::Manual;
    world.step();
    let (first, second) = (world.step(), world.step());
    assert_eq!(first.moves.len(), 1);
    assert!(first.reason.ends_with("(balancer_mode 1: not done)"), "{}", first.reason);
    assert!(second.is_like(&first), "{first:?} {second:?}");
    assert_eq!(world.demand_on(0), 1200.0);
    // The same for splits.
    let mut world = with_dirs(2, &[600.0, 600.0]);
    world.policy.mode = Mode::Manual;
    world.step();
    let (first, second) = (world.step(), world.step());
    assert!(!first.splits.is_empty() && second.is_like(&first), "{first:?} {second:?}");
}

#[test]
fn idle_subtrees_that_nobody_asked_for_are_merged_one_at_a_time() {
    let mut world = with_subtrees(2, &[1.0; 4], |_| 0);
    let wanted = world.dir(9, Ino::ROOT, 1.0);
    let wanted = world.split(ROOT_SUBTREE, wanted, false);
    let far = world.subtree_of(Ino(1003));
    world.relocate(far, Rank(1));
    world.rest(20);
    assert_eq!(world.map.subtrees.len(), 6, "all have load");
    world.demands.values_mut().for_each(|demand| *demand = 0.0);
    for _ in 0..40 {
        let before = world.map.subtrees.len();
        world.step();
        assert!(before - world.map.subtrees.len() <= 1);
    }
    let left: Vec<SubtreeId> = world.map.subtrees.keys().copied().collect();
    assert_eq!(left, [ROOT_SUBTREE, wanted], "what a person split off stays");
}
