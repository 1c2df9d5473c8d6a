//! Subtrees are moved by those who own them (R12).

use super::*;

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
