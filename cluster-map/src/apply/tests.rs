use pando_proto::ids::{DATA_POOL, METADATA_POOL, ROOT_SUBTREE};
use pando_proto::{ClientId, Ino, OsdId, PgId, Rank};
use proptest::prelude::*;

use super::*;
use crate::command::*;
use crate::invariants;
use crate::map::{LongerLease, Pg, PgState, Subtree};

mod subtrees;
mod transactions;

fn create(expected_osds: u32, size: u32) -> Command {
    Command::CreateCluster(CreateCluster {
        cluster_id: vec![1; 16],
        expected_osds,
        metadata: Some(PoolSpec::new(size, 4)),
        data: Some(PoolSpec::new(size, 8)),
        mons: vec![SetMon { id: 1, address: "mon:1".into() }],
    })
}

fn register_osd(number: u8, boot: u8) -> Command {
    Command::RegisterOsd(RegisterOsd {
        uuid: vec![number; 16],
        boot_id: vec![boot],
        address: format!("osd{number}:7000"),
        host: format!("host{number}"),
        weight: 0,
        total_bytes: 1 << 30,
    })
}

fn register_rank(rank: u32, boot: u8) -> Command {
    Command::RegisterRank(RegisterRank { rank, boot_id: vec![boot], address: "mds:7100".into() })
}

fn register_client(nonce: u8, description: &str) -> Command {
    let description = description.to_owned();
    Command::RegisterClient(RegisterClient { nonce: vec![nonce], description, is_client: true, of_rank: None })
}

fn rank_down(id: u32, incarnation: u64) -> Command {
    Command::RankDown(RankDown { id, incarnation, assignments: vec![] })
}

fn confirm(id: PgId, config: u64, osd: OsdId) -> Command {
    Command::ConfirmMember(ConfirmMember { pool: id.pool.0, index: id.index, config, osd_id: osd.0 })
}

fn demote(id: PgId, config: u64, osd: OsdId) -> Command {
    Command::DemoteMember(ConfirmMember { pool: id.pool.0, index: id.index, config, osd_id: osd.0 })
}

/// Applies and checks the invariants.
fn step(map: &mut ClusterMap, command: &Command) -> Result<CommandResult, CommandError> {
    let before = map.clone();
    let result = map.apply(command);
    if result.is_err() {
        assert_eq!(before, *map, "a refused command changes nothing: {command:?}");
    }
    if let Err(violation) = invariants::check(map).and_then(|()| invariants::check_step(&before, map)) {
        panic!("{violation}\nafter {command:?}");
    }
    result
}

fn cluster(osds: u8, size: u32) -> ClusterMap {
    let mut map = ClusterMap::default();
    step(&mut map, &create(u32::from(osds), size)).unwrap();
    for number in 1..=osds {
        step(&mut map, &register_osd(number, 1)).unwrap();
    }
    map
}

fn daemon(id: u32, incarnation: u64) -> DaemonState {
    DaemonState { id, incarnation }
}

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
fn a_cluster_is_made_once() {
    let mut map = ClusterMap::default();
    step(&mut map, &create(1, 1)).unwrap();
    let epoch = map.epoch;
    assert_eq!(step(&mut map, &create(1, 1)).unwrap().epoch, epoch, "a repetition is fine");
    let Command::CreateCluster(mut other) = create(1, 1) else { unreachable!() };
    other.cluster_id = vec![2; 16];
    assert_eq!(step(&mut map, &Command::CreateCluster(other)), Err(CommandError::ClusterExists));
    assert!(matches!(ClusterMap::default().apply(&create(1, 2)), Err(CommandError::Invalid(_))), "2 copies on 1 OSD");
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

#[test]
fn a_restarted_rank_fences_its_subtrees() {
    let mut map = cluster(1, 1);
    let first = step(&mut map, &register_rank(0, 1)).unwrap();
    assert_eq!(first.value, CommandValue::Rank(1));
    let root = map.subtrees[&ROOT_SUBTREE].clone();
    assert_eq!((root.root, root.owner, root.epoch), (Ino::ROOT, Rank(0), Epoch(1)));
    assert_eq!(step(&mut map, &register_rank(0, 1)).unwrap(), first, "idempotent");
    let second = step(&mut map, &register_rank(0, 2)).unwrap();
    assert_eq!(second.value, CommandValue::Rank(2));
    assert_eq!(map.subtrees[&ROOT_SUBTREE].epoch, Epoch(2), "I3");
    assert!(matches!(step(&mut map, &rank_down(0, 1)), Err(CommandError::Stale { .. })));
    step(&mut map, &rank_down(0, 2)).unwrap();
    assert_eq!(map.owner(ROOT_SUBTREE), None);
    step(&mut map, &Command::RankUp(daemon(0, 2))).unwrap();
    assert_eq!(map.owner(ROOT_SUBTREE), Some((Rank(0), "mds:7100")));
}

fn in_use(result: Result<CommandResult, CommandError>) -> String {
    let Err(CommandError::InUse(message)) = result else { panic!("{result:?}") };
    message
}

/// R13: no process of before passes for one of a rank that was registered anew.
#[test]
fn a_rank_is_removed_only_when_it_has_no_lease_and_owns_nothing() {
    let mut map = cluster(1, 1);
    let remove = |id| Command::RemoveRank(RemoveDaemon { id });
    step(&mut map, &register_rank(0, 1)).unwrap();
    for boot in 1..=3 {
        step(&mut map, &register_rank(5, boot)).unwrap();
    }
    let message = in_use(step(&mut map, &remove(5)));
    assert!(message.contains("mds.5") && message.contains("stop its pando-mds"), "{message}");
    step(&mut map, &rank_down(5, 3)).unwrap();
    let removed = step(&mut map, &remove(5)).unwrap();
    assert!(!map.ranks.contains_key(&Rank(5)));
    assert_eq!(step(&mut map, &remove(5)).unwrap(), removed, "idempotent");
    let up = step(&mut map, &Command::RankUp(daemon(5, 3)));
    assert!(matches!(up, Err(CommandError::Unknown(_))), "{up:?}");
    assert_eq!(step(&mut map, &register_rank(5, 9)).unwrap().value, CommandValue::Rank(4));
    let stale = step(&mut map, &rank_down(5, 3));
    assert!(matches!(stale, Err(CommandError::Stale { .. })), "{stale:?}");

    step(&mut map, &rank_down(5, 4)).unwrap();
    step(&mut map, &rank_down(0, 1)).unwrap();
    let message = in_use(step(&mut map, &remove(0)));
    assert!(message.contains("mds.0 owns") && message.contains("`/`"), "{message}");
    assert!(matches!(step(&mut map, &remove(5000)), Err(CommandError::Unknown(_))));
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

#[test]
fn client_ids_are_unique_and_never_reused() {
    let mut map = cluster(1, 1);
    let register = |nonce: u8| register_client(nonce, "test");
    let first = step(&mut map, &register(1)).unwrap();
    assert_eq!(first.value, CommandValue::Client(ClientId(1)));
    assert_eq!(step(&mut map, &register(1)).unwrap(), first, "idempotent");
    step(&mut map, &Command::EndSession(EndSession { client_id: 1 })).unwrap();
    assert!(!map.session_is_live(ClientId(1)));
    step(&mut map, &Command::EndSession(EndSession { client_id: 1 })).unwrap();
    assert_eq!(step(&mut map, &register(1)).unwrap().value, CommandValue::Client(ClientId(2)));
    step(&mut map, &register_client(9, &"\u{1b}ä".repeat(1000))).unwrap();
    assert_eq!(map.sessions[&ClientId(3)].description, "ä".repeat(127), "tidied");
    let unknown = step(&mut map, &Command::EndSession(EndSession { client_id: 77 }));
    assert!(matches!(unknown, Err(CommandError::Unknown(_))));
}

/// R10, R19: whoever passes for a rank is not waited for.
#[test]
fn no_client_passes_for_a_rank_by_what_it_says_of_itself() {
    let mut map = cluster(1, 1);
    step(&mut map, &register_rank(0, 1)).unwrap();
    for description in ["mds.0", "mds.7", "mds.\u{1}7"] {
        let refused = step(&mut map, &register_client(1, description)).unwrap_err();
        assert!(matches!(&refused, CommandError::Invalid(text) if text.contains("otherwise")), "{refused}");
    }
    step(&mut map, &register_client(1, "mds.backup")).unwrap();
    assert!(!map.sessions[&ClientId(1)].is_of_rank());
    let of_rank = |nonce: u8, id, incarnation| {
        let of_rank = Some(daemon(id, incarnation));
        let description = format!("mds.{id}");
        Command::RegisterClient(RegisterClient { nonce: vec![nonce], description, is_client: false, of_rank })
    };
    assert!(matches!(step(&mut map, &of_rank(2, 7, 1)), Err(CommandError::Unknown(_))));
    assert!(matches!(step(&mut map, &of_rank(2, 0, 2)), Err(CommandError::Stale { .. })));
    let first = step(&mut map, &of_rank(2, 0, 1)).unwrap();
    assert_eq!(first.value, CommandValue::Client(ClientId(2)));
    assert_eq!(map.sessions[&ClientId(2)].rank, Some(Rank(0)));
    step(&mut map, &register_rank(0, 2)).unwrap();
    let again = step(&mut map, &of_rank(2, 0, 1)).unwrap();
    assert_eq!(again.value, first.value, "R9: idempotent");
    // As it stands in old logs, where the description told. Ids must not change when such a log is read again (R9).
    let old = RegisterClient { nonce: vec![3], description: "mds.7".into(), ..RegisterClient::default() };
    step(&mut map, &Command::RegisterClient(old)).unwrap();
    assert_eq!(map.sessions[&ClientId(3)].rank, Some(Rank(7)));
}

/// R20.
#[test]
fn ino_ranges_are_disjoint_and_belong_to_one_process() {
    let mut map = cluster(1, 1);
    step(&mut map, &register_rank(0, 1)).unwrap();
    let ask = |shard, incarnation, nonce: u8, count| {
        Command::AllocateInos(AllocateInos { shard, rank: 0, incarnation, count, nonce: vec![nonce] })
    };
    let first = step(&mut map, &ask(0, 1, 1, 100)).unwrap();
    assert_eq!(first.value, CommandValue::Inos(Ino(16), 100));
    assert_eq!(step(&mut map, &ask(0, 1, 1, 100)).unwrap().value, first.value, "idempotent");
    assert_eq!(step(&mut map, &ask(0, 1, 2, 100)).unwrap().value, CommandValue::Inos(Ino(116), 100));
    let other = CommandValue::Inos(Ino((5 << 48) + 16), 1);
    assert_eq!(step(&mut map, &ask(5, 1, 3, 1)).unwrap().value, other);
    step(&mut map, &register_rank(0, 2)).unwrap();
    assert!(matches!(step(&mut map, &ask(0, 1, 4, 1)), Err(CommandError::Stale { .. })));
    assert!(matches!(step(&mut map, &ask(1 << 15, 2, 4, 1)), Err(CommandError::Invalid(_))));
    map.ino_cursors.insert(pando_proto::ShardId(7), (1 << 48) - 2);
    assert!(matches!(step(&mut map, &ask(7, 2, 5, 9)).unwrap().value, CommandValue::Inos(_, 2)));
    assert_eq!(step(&mut map, &ask(7, 2, 6, 9)), Err(CommandError::NoInosLeft(7)));
}

#[test]
fn settings_have_names_and_ranges() {
    let mut map = cluster(1, 1);
    let set = |name: &str, value: &str| Command::SetSetting(SetSetting { name: name.into(), value: value.into() });
    step(&mut map, &set("inline_limit", "0")).unwrap();
    assert_eq!(map.inline_limit(), 0);
    let error = step(&mut map, &set("inline_limit", "9999999")).unwrap_err();
    assert!(error.to_string().contains("from 0 to 262144"), "{error}");
    let error = step(&mut map, &set("nonsense", "1")).unwrap_err();
    assert!(error.to_string().contains("object_size"), "{error}");
}

/// R13.
#[test]
fn the_longest_lease_of_before_is_remembered_until_that_very_one_is_forgotten() {
    let mut map = cluster(1, 1);
    let set = |millis: u64| Command::SetSetting(SetSetting { name: "lease_millis".into(), value: millis.to_string() });
    let forget = |since: Epoch| Command::ForgetLongerLease(ForgetLongerLease { since: since.0 });
    step(&mut map, &set(60_000)).unwrap();
    assert_eq!(map.longer_lease, None, "a longer one needs no memory");
    let first = step(&mut map, &set(30_000)).unwrap().epoch;
    assert_eq!(map.longer_lease, Some(LongerLease { millis: 60_000, since: first }));
    assert_eq!(step(&mut map, &set(30_000)).unwrap().epoch, first, "nothing has changed");
    let second = step(&mut map, &set(2000)).unwrap().epoch;
    assert_eq!(map.longer_lease, Some(LongerLease { millis: 60_000, since: second }));
    step(&mut map, &forget(first)).unwrap();
    assert_eq!(map.longer_lease, Some(LongerLease { millis: 60_000, since: second }), "that was the one before");
    let forgotten = step(&mut map, &forget(second)).unwrap().epoch;
    assert_eq!((map.longer_lease, forgotten > second), (None, true));
    assert_eq!(step(&mut map, &forget(second)).unwrap().epoch, forgotten, "idempotent");
    assert_eq!(step(&mut map, &forget(Epoch(0))).unwrap().epoch, forgotten);
}

#[test]
fn nonsense_from_outside_is_refused() {
    let mut map = cluster(1, 1);
    let osd = |change: &dyn Fn(&mut RegisterOsd)| {
        let Command::RegisterOsd(mut command) = register_osd(9, 1) else { unreachable!() };
        change(&mut command);
        Command::RegisterOsd(command)
    };
    for command in [
        osd(&|osd| osd.uuid = vec![1; 15]),
        osd(&|osd| osd.boot_id = vec![]),
        osd(&|osd| osd.boot_id = vec![1; 65]),
        osd(&|osd| osd.address = "nowhere".into()),
        osd(&|osd| osd.address = "host:0".into()),
        osd(&|osd| osd.address = ":7000".into()),
        osd(&|osd| osd.address = "a/b:7000".into()),
        osd(&|osd| osd.host = "x".repeat(300)),
        osd(&|osd| osd.weight = u32::MAX),
        register_rank(5000, 1),
        Command::RegisterClient(RegisterClient { is_client: true, ..RegisterClient::default() }),
    ] {
        assert!(matches!(step(&mut map, &command), Err(CommandError::Invalid(_))), "{command:?}");
    }
}

fn any_command() -> impl Strategy<Value = Command> {
    let osd = 1..6u32;
    prop_oneof![
        4 => (1..6u8, 1..4u8).prop_map(|(number, boot)| register_osd(number, boot)),
        4 => (osd.clone(), 1..4u64).prop_map(|(id, incarnation)| Command::OsdDown(daemon(id, incarnation))),
        2 => (osd.clone(), 1..4u64).prop_map(|(id, incarnation)| Command::OsdUp(daemon(id, incarnation))),
        2 => (osd.clone(), 1..4u64).prop_map(|(id, incarnation)| Command::OsdOut(daemon(id, incarnation))),
        6 => (1..3u32, 0..4u32, 1..8u64, osd).prop_map(|(pool, index, config, osd_id)| {
            Command::ConfirmMember(ConfirmMember { pool, index, config, osd_id })
        }),
        3 => (1..3u32, 0..4u32, 1..8u64, 1..6u32).prop_map(|(pool, index, config, osd_id)| {
            Command::DemoteMember(ConfirmMember { pool, index, config, osd_id })
        }),
        1 => (1..3u32, 0..4u32, 1..8u64, 1..6u32).prop_map(|(pool, index, config, osd_id)| {
            Command::OverridePg(ConfirmMember { pool, index, config, osd_id })
        }),
        1 => (0..3u32, 1..4u8).prop_map(|(rank, boot)| register_rank(rank, boot)),
        12 => subtrees::any_subtree_command(),
        1 => (0..3u32, 1..4u64).prop_map(|(id, incarnation)| Command::RankUp(daemon(id, incarnation))),
        1 => (0..6u32).prop_map(|id| Command::RemoveOsd(RemoveDaemon { id })),
        1 => (0..3u32).prop_map(|id| Command::RemoveRank(RemoveDaemon { id })),
        1 => (0..9u8).prop_map(|nonce| register_client(nonce, "p")),
        1 => (9..12u8, 0..3u32, 1..4u64).prop_map(|(nonce, id, incarnation)| {
            let of_rank = Some(daemon(id, incarnation));
            Command::RegisterClient(RegisterClient { nonce: vec![nonce], of_rank, ..RegisterClient::default() })
        }),
        1 => (0..9u64).prop_map(|client_id| Command::EndSession(EndSession { client_id })),
        1 => (0..3u32, 0..3u32, 1..3u64, 0..9u8, 0..1000u64).prop_map(|(shard, rank, incarnation, nonce, count)| {
            Command::AllocateInos(AllocateInos { shard, rank, incarnation, count, nonce: vec![nonce] })
        }),
        1 => (100..70_000u64).prop_map(|value| {
            Command::SetSetting(SetSetting { name: "lease_millis".into(), value: value.to_string() })
        }),
        1 => (0..3u64).prop_map(|since| Command::ForgetLongerLease(ForgetLongerLease { since })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_commands_keep_the_invariants(
        commands in prop::collection::vec(any_command(), 0..120),
        expected in 1..5u32,
        size in 1..4u32,
    ) {
        let mut map = ClusterMap::default();
        step(&mut map, &create(expected.max(size), size)).unwrap();
        for command in commands {
            // Confirmations of the true configuration get somewhere.
            let command = match command {
                Command::ConfirmMember(mut confirm) if confirm.config > 3 => {
                    let id = PgId { pool: pando_proto::PoolId(confirm.pool), index: confirm.index };
                    let pg = &map.pgs[&id];
                    confirm.config = pg.config;
                    confirm.osd_id = pg.joining.first().map_or(confirm.osd_id, |osd| osd.0);
                    Command::ConfirmMember(confirm)
                }
                Command::DemoteMember(mut demote) if demote.config > 3 => {
                    let id = PgId { pool: pando_proto::PoolId(demote.pool), index: demote.index };
                    demote.config = map.pgs[&id].config;
                    Command::DemoteMember(demote)
                }
                Command::OverridePg(mut chosen) if chosen.config > 3 => {
                    let id = PgId { pool: pando_proto::PoolId(chosen.pool), index: chosen.index };
                    chosen.config = map.pgs[&id].config;
                    Command::OverridePg(chosen)
                }
                Command::ForgetLongerLease(ForgetLongerLease { since: 0 }) => {
                    let since = map.longer_lease.map_or(0, |longer| longer.since.0);
                    Command::ForgetLongerLease(ForgetLongerLease { since })
                }
                other => subtrees::aim(&map, other),
            };
            let reread = Command::from_bytes(&command.to_bytes()).unwrap();
            let mut twin = map.clone();
            let result = step(&mut map, &command);
            prop_assert_eq!(twin.apply(&reread), result, "deterministic");
            prop_assert_eq!(&twin, &map);
        }
        prop_assert_eq!(ClusterMap::from_proto(&map.to_proto()), Ok(map));
    }
}
