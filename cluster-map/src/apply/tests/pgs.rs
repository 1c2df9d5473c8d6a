//! Configurations of PGs, and the OSDs in them (R26).

use super::*;

const PG: PgId = PgId { pool: METADATA_POOL, index: 0 };

fn pg(map: &ClusterMap) -> &Pg {
    &map.pgs[&PG]
}

#[test]
fn pgs_get_their_members_when_the_expected_osds_are_up() {
    let mut map = ClusterMap::default();
    assert_eq!(map.apply(&register_osd(1, 1)), Err(CommandError::NoCluster));
    step(&mut map, &create(3, 3)).unwrap();
    for number in 1..=2 {
        step(&mut map, &register_osd(number, 1)).unwrap();
        assert!(map.pgs.values().all(|pg| pg.members.is_empty() && pg.config == 0));
        assert_eq!(map.pg_state(PG), PgState::Down);
    }
    step(&mut map, &register_osd(3, 1)).unwrap();
    assert!(map.pgs.values().all(|pg| pg.members.len() == 3 && pg.config == 1));
    assert_eq!(map.pg_state(PG), PgState::Healthy);
    assert_eq!(map.pools[&DATA_POOL].min_size, 2);
}

#[test]
fn registration_is_idempotent_and_a_restart_changes_the_configurations() {
    let mut map = cluster(3, 3);
    let epoch = map.epoch;
    let again = step(&mut map, &register_osd(2, 1)).unwrap();
    assert_eq!((again.epoch, again.value), (epoch, CommandValue::Osd(OsdId(2), 1)));
    let restarted = step(&mut map, &register_osd(2, 9)).unwrap();
    assert_eq!(restarted.value, CommandValue::Osd(OsdId(2), 2));
    assert!(map.pgs.values().all(|pg| pg.config == 2 && pg.members.len() == 3), "R25");
}

#[test]
fn a_member_that_died_leaves_and_comes_back_as_a_joiner() {
    let mut map = cluster(3, 3);
    step(&mut map, &Command::OsdDown(daemon(2, 1))).unwrap();
    assert!(map.pgs.values().all(|pg| !pg.members.contains(&OsdId(2)) && pg.config == 2));
    assert_eq!(map.pg_state(PG), PgState::Degraded);
    step(&mut map, &register_osd(2, 2)).unwrap();
    assert_eq!((pg(&map).joining.clone(), pg(&map).config), (vec![OsdId(2)], 2));
    let stale = step(&mut map, &confirm(PG, 1, OsdId(2)));
    assert!(matches!(stale, Err(CommandError::Stale { have: 2, given: 1, .. })));
    step(&mut map, &confirm(PG, 2, OsdId(2))).unwrap();
    assert_eq!((pg(&map).members.len(), pg(&map).config), (3, 3));
    let epoch = map.epoch;
    assert_eq!(step(&mut map, &confirm(PG, 2, OsdId(2))).unwrap().epoch, epoch, "a repetition is fine");
    assert_eq!(map.pg_state(PG), PgState::Healthy);
}

/// R26: only the last member is known to hold everything.
#[test]
fn the_last_member_stays() {
    let mut map = cluster(2, 2);
    step(&mut map, &Command::OsdDown(daemon(1, 1))).unwrap();
    step(&mut map, &Command::OsdDown(daemon(2, 1))).unwrap();
    assert_eq!((pg(&map).members.clone(), pg(&map).config), (vec![OsdId(2)], 2));
    step(&mut map, &register_osd(1, 2)).unwrap();
    assert_eq!(pg(&map).members, vec![OsdId(2)], "the PG waits for osd.2");
    assert_eq!(map.primary(PG), None);
    step(&mut map, &register_osd(2, 2)).unwrap();
    assert_eq!((pg(&map).members.clone(), pg(&map).config), (vec![OsdId(2)], 3));
    assert_eq!(pg(&map).joining, vec![OsdId(1)]);
}

/// A confirmation of what the joiner's former process held must not count.
#[test]
fn a_joiner_that_restarts_invalidates_confirmations_under_way() {
    let mut map = cluster(2, 2);
    step(&mut map, &Command::OsdDown(daemon(1, 1))).unwrap();
    step(&mut map, &register_osd(1, 2)).unwrap();
    let config = pg(&map).config;
    step(&mut map, &register_osd(1, 3)).unwrap();
    assert!(matches!(step(&mut map, &confirm(PG, config, OsdId(1))), Err(CommandError::Stale { .. })));
    let config = pg(&map).config;
    step(&mut map, &Command::OsdDown(daemon(1, 3))).unwrap();
    step(&mut map, &Command::OsdUp(daemon(1, 3))).unwrap();
    assert!(matches!(step(&mut map, &confirm(PG, config, OsdId(1))), Err(CommandError::Stale { .. })));
}

/// A member that dies during a move and comes back joins too: a move ends only when all places are taken.
fn moving_and_rejoining() -> (ClusterMap, PgId, OsdId, OsdId, OsdId) {
    let mut map = cluster(2, 2);
    step(&mut map, &register_osd(3, 1)).unwrap();
    let joiner = OsdId(3);
    let (id, leaving) =
        map.pgs.iter().find(|(_, pg)| pg.joining == [joiner]).map(|(id, pg)| (*id, pg.leaving[0])).unwrap();
    let mate = map.pgs[&id].members.iter().copied().find(|osd| *osd != leaving).unwrap();
    step(&mut map, &Command::OsdDown(daemon(mate.0, 1))).unwrap();
    assert_eq!(map.pgs[&id].members, [leaving]);
    step(&mut map, &Command::OsdUp(daemon(mate.0, 1))).unwrap();
    assert_eq!((&map.pgs[&id].joining, &map.pgs[&id].leaving), (&vec![joiner, mate], &vec![leaving]));
    (map, id, leaving, mate, joiner)
}

fn confirm_now(map: &mut ClusterMap, id: PgId, osd: OsdId) {
    let config = map.pgs[&id].config;
    step(map, &confirm(id, config, osd)).unwrap();
}

#[test]
fn r26_a_healthy_member_leaves_only_when_all_places_are_taken() {
    for turn in 0..2 {
        let (mut map, id, leaving, mate, joiner) = moving_and_rejoining();
        let (first, second) = if turn == 0 { (mate, joiner) } else { (joiner, mate) };
        confirm_now(&mut map, id, first);
        assert_eq!(map.pgs[&id].members, [leaving, first], "two members, not one");
        confirm_now(&mut map, id, second);
        assert_eq!(map.pgs[&id].members, [first, second]);
        assert!(map.pgs[&id].leaving.is_empty());
    }
}

#[test]
fn r26_a_joiner_that_dies_gives_up_its_own_move_only() {
    let (mut map, id, leaving, mate, joiner) = moving_and_rejoining();
    step(&mut map, &Command::OsdDown(daemon(mate.0, 1))).unwrap();
    let pg = &map.pgs[&id];
    assert_eq!((&pg.joining, &pg.leaving, &pg.absent), (&vec![joiner], &vec![leaving], &vec![mate]));
    // The move alone: nobody leaves before the other place is taken too.
    confirm_now(&mut map, id, joiner);
    assert_eq!(map.pgs[&id].members, [leaving, joiner]);
    step(&mut map, &Command::OsdUp(daemon(mate.0, 1))).unwrap();
    confirm_now(&mut map, id, mate);
    assert_eq!(map.pgs[&id].members, [joiner, mate]);

    let (mut map, id, _, mate, joiner) = moving_and_rejoining();
    step(&mut map, &Command::OsdDown(daemon(joiner.0, 1))).unwrap();
    let pg = &map.pgs[&id];
    assert_eq!((pg.joining.as_slice(), pg.leaving.len(), pg.absent.len()), ([mate].as_slice(), 0, 0));
}

#[test]
fn an_osd_that_stays_away_is_replaced_and_balanced_in_again_when_it_returns() {
    let mut map = cluster(4, 3);
    step(&mut map, &Command::OsdDown(daemon(1, 1))).unwrap();
    assert!(map.pgs.values().all(|pg| pg.joining.is_empty()), "its places are kept at first");
    step(&mut map, &Command::OsdOut(daemon(1, 1))).unwrap();
    assert!(map.pgs.values().all(|pg| pg.absent.is_empty() && pg.members.len() + pg.joining.len() == 3));
    confirm_all(&mut map);
    step(&mut map, &register_osd(1, 2)).unwrap();
    assert!(map.pgs.values().any(|pg| pg.joining == [OsdId(1)] && pg.leaving.len() == 1));
    confirm_all(&mut map);
    assert!(map.pgs.values().all(|pg| pg.members.len() == 3 && pg.leaving.is_empty()));
    assert!(!map.pgs_of_osd(OsdId(1)).is_empty());
}

fn confirm_all(map: &mut ClusterMap) {
    let ids: Vec<PgId> = map.pgs.keys().copied().collect();
    for id in ids {
        while let Some(joiner) = map.pgs[&id].joining.first().copied() {
            let config = map.pgs[&id].config;
            step(map, &confirm(id, config, joiner)).unwrap();
        }
    }
}

/// R26.
#[test]
fn an_osd_is_removed_only_when_no_pg_needs_it() {
    let mut map = cluster(2, 2);
    let remove = |id| Command::RemoveOsd(RemoveDaemon { id });
    let message = in_use(step(&mut map, &remove(1)));
    assert!(message.contains("stop its pando-osd"), "{message}");
    step(&mut map, &Command::OsdDown(daemon(1, 1))).unwrap();
    step(&mut map, &Command::OsdDown(daemon(2, 1))).unwrap();
    let message = in_use(step(&mut map, &remove(2)));
    assert!(message.contains("the last member of 12 placement groups (PG 1.0 is one)"), "{message}");
    step(&mut map, &Command::OsdUp(daemon(2, 1))).unwrap();

    // Places kept for it are given up, and go to one that comes later.
    let removed = step(&mut map, &remove(1)).unwrap();
    assert!(map.pgs.values().all(|pg| pg.absent.is_empty() && pg.members == [OsdId(2)]));
    assert_eq!(step(&mut map, &remove(1)).unwrap(), removed, "idempotent");
    assert!(matches!(step(&mut map, &remove(3)), Err(CommandError::Unknown(_))));
    assert!(matches!(step(&mut map, &remove(0)), Err(CommandError::Unknown(_))));
    let again = step(&mut map, &register_osd(1, 2)).unwrap();
    assert_eq!(again.value, CommandValue::Osd(OsdId(3), 1), "its id is not used again");
    assert!(map.pgs.values().all(|pg| pg.joining == [OsdId(3)]));
    let message = in_use({
        step(&mut map, &Command::OsdDown(daemon(2, 1))).unwrap();
        step(&mut map, &remove(2))
    });
    assert!(message.contains("would be lost"), "{message}");
}

#[test]
fn who_was_to_leave_stays_when_the_osd_that_was_waited_for_is_removed() {
    let (mut map, id, leaving, mate, joiner) = moving_and_rejoining();
    step(&mut map, &Command::OsdDown(daemon(mate.0, 1))).unwrap();
    confirm_all(&mut map);
    assert_eq!((map.pgs[&id].members.as_slice(), map.pgs[&id].leaving.len()), ([leaving, joiner].as_slice(), 1));
    step(&mut map, &Command::RemoveOsd(RemoveDaemon { id: mate.0 })).unwrap();
    assert_eq!((map.pgs[&id].members.as_slice(), map.pgs[&id].leaving.len()), ([leaving, joiner].as_slice(), 0));
    assert_eq!(map.pg_state(id), PgState::Healthy);
}

/// R26.
#[test]
fn a_member_that_lacks_something_joins_anew_unless_it_is_the_last() {
    let mut map = cluster(2, 2);
    confirm_all(&mut map);
    let (id, pg) = map.pgs.iter().next().map(|(id, pg)| (*id, pg.clone())).unwrap();
    let (primary, other) = (pg.members[0], pg.members[1]);
    assert!(matches!(step(&mut map, &demote(id, pg.config - 1, primary)), Err(CommandError::Stale { .. })));
    assert!(matches!(step(&mut map, &demote(id, pg.config, OsdId(9))), Err(CommandError::Invalid(_))));
    let done = step(&mut map, &demote(id, pg.config, primary)).unwrap();
    assert_eq!(
        (map.pgs[&id].members.as_slice(), map.pgs[&id].joining.as_slice()),
        ([other].as_slice(), [primary].as_slice())
    );
    assert_eq!(step(&mut map, &demote(id, pg.config, primary)).unwrap(), done, "idempotent");
    in_use(step(&mut map, &demote(id, pg.config + 1, other)));
    step(&mut map, &confirm(id, pg.config + 1, primary)).unwrap();
    assert_eq!(map.pgs[&id].members, [other, primary]);
}

/// R26.
#[test]
fn a_person_may_make_a_copy_count_that_lacks_something() {
    let mut map = cluster(3, 3);
    confirm_all(&mut map);
    step(&mut map, &register_rank(0, 1)).unwrap();
    let epoch = map.root_subtree().unwrap().epoch;
    let (id, before) = map.pgs.iter().next().map(|(id, pg)| (*id, pg.clone())).unwrap();
    let [first, second, third] = before.members[..] else { panic!("{before:?}") };
    let down = |osd: OsdId| Command::OsdDown(daemon(osd.0, 1));
    step(&mut map, &down(third)).unwrap();
    step(&mut map, &down(first)).unwrap();
    step(&mut map, &down(second)).unwrap();
    assert_eq!((map.pg_state(id), map.pgs[&id].members.as_slice()), (PgState::Down, [second].as_slice()));
    let chosen = |map: &ClusterMap, osd: OsdId, behind: u64| {
        let config = map.pgs[&id].config - behind;
        Command::OverridePg(ConfirmMember { pool: id.pool.0, index: id.index, config, osd_id: osd.0 })
    };
    let command = chosen(&map, third, 0);
    assert!(matches!(step(&mut map, &command), Err(CommandError::Invalid(why)) if why.contains("is down")));
    step(&mut map, &Command::OsdUp(daemon(third.0, 1))).unwrap();
    let (stale, stranger) = (chosen(&map, third, 1), chosen(&map, OsdId(9), 0));
    assert!(matches!(step(&mut map, &stale), Err(CommandError::Stale { .. })));
    assert!(matches!(step(&mut map, &stranger), Err(CommandError::Invalid(_))));
    let command = chosen(&map, third, 0);
    let done = step(&mut map, &command).unwrap();
    assert_eq!(step(&mut map, &command).unwrap(), done, "idempotent");
    let pg = map.pgs[&id].clone();
    assert_eq!((pg.members.as_slice(), pg.forgiven), ([third].as_slice(), pg.config));
    assert!(pg.absent.contains(&first) && pg.absent.contains(&second));
    // What ranks have in memory may be what was lost.
    assert_eq!(map.root_subtree().unwrap().epoch.0, epoch.0 + u64::from(id.pool == METADATA_POOL));
    // The others come back as joiners: they are brought to the content that counts.
    step(&mut map, &Command::OsdUp(daemon(second.0, 1))).unwrap();
    assert_eq!((map.pgs[&id].members.as_slice(), map.pgs[&id].forgiven), ([third].as_slice(), pg.forgiven));
    assert!(map.pgs[&id].joining.contains(&second));
}

/// R26.
#[test]
fn a_demoted_member_that_was_to_leave_has_left() {
    let (mut map, id, leaving, mate, joiner) = moving_and_rejoining();
    confirm_now(&mut map, id, mate);
    let config = map.pgs[&id].config;
    step(&mut map, &demote(id, config, leaving)).unwrap();
    let pg = &map.pgs[&id];
    assert_eq!((&pg.members, &pg.joining, &pg.leaving), (&vec![mate], &vec![joiner], &Vec::new()));
}
