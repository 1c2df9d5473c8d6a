//! Subtrees are split and merged (R10, R11).

use super::*;
use crate::map::Lineage;

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

/// R11: a copy of a split that was refused may come when nothing speaks against it any more.
#[test]
fn what_was_refused_is_not_applied_after_a_renewal() {
    let mut map = with_ranks(2);
    let child = split_off(&mut map, ROOT, 50);
    let limit = |count: &str| Command::SetSetting(SetSetting { name: "max_subtrees".into(), value: count.into() });
    step(&mut map, &limit("2")).unwrap();
    assert_eq!(reason(step(&mut map, &split(ROOT, 2, 60, &[]))), Reason::InUse, "the map is full");
    let mut other = map.clone();
    step(&mut other, &limit("3")).unwrap();
    step(&mut other, &split(ROOT, 2, 60, &[])).expect("a refusal that holds for a while only");

    let done = step(&mut map, &renew(ROOT, 2)).unwrap();
    assert_eq!((held(&map, ROOT), held(&map, child)), ((0, 3), (0, 1)));
    step(&mut map, &limit("9")).unwrap();
    assert_eq!(reason(step(&mut map, &split(ROOT, 2, 60, &[]))), Reason::StaleEpoch, "the late copy");
    assert_eq!(step(&mut map, &renew(ROOT, 2)).unwrap().value, done.value, "a late copy of the renewal itself");
    assert_eq!((held(&map, ROOT), map.epoch.0), ((0, 3), done.epoch.0 + 1));
    assert_eq!(reason(step(&mut map, &renew(ROOT, 4))), Reason::StaleEpoch, "an epoch that is yet to come");
    assert_eq!(reason(step(&mut map, &renew(99, 1))), Reason::UnknownId);

    // What came before the renewal has happened, and its repetition says so.
    let third = step(&mut map, &split(ROOT, 3, 60, &[])).unwrap();
    let epoch = map.epoch;
    step(&mut map, &renew(ROOT, 3)).unwrap();
    assert_eq!(map.epoch, epoch, "the split has raised it");
    assert_eq!(step(&mut map, &split(ROOT, 3, 60, &[])).unwrap(), third);
    step(&mut map, &renew(ROOT, 4)).unwrap();
    assert_eq!(step(&mut map, &split(ROOT, 3, 60, &[])).unwrap().value, third.value);
}

/// R11, R12.
#[test]
fn a_renewal_voids_merges_and_the_move_under_way() {
    let mut map = with_ranks(2);
    let child = split_off(&mut map, ROOT, 50);
    let id = begin(&mut map, child, 1);
    assert_eq!(reason(step(&mut map, &merge(child, 1, 2))), Reason::StaleEpoch, "it moves");
    let mut other = map.clone();
    step(&mut other, &cancel(child, id)).unwrap();
    step(&mut other, &merge(child, 1, 2)).expect("a refusal that holds for a while only");

    step(&mut map, &renew(child, 1)).unwrap();
    assert_eq!((held(&map, child), tree(&map, child).move_id, held(&map, ROOT)), ((0, 2), 0, (0, 2)));
    assert_eq!(reason(step(&mut map, &merge(child, 1, 2))), Reason::StaleEpoch, "the late copy");
    assert_eq!(reason(step(&mut map, &commit(child, 0, 1, id))), Reason::StaleEpoch);
    assert_eq!(reason(step(&mut map, &commit(child, 0, 2, id))), Reason::StaleEpoch);
    step(&mut map, &merge(child, 2, 2)).unwrap();
    assert_eq!(reason(step(&mut map, &renew(child, 2))), Reason::UnknownId, "it was merged");
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
