use pando_proto::ids::{DATA_POOL, METADATA_POOL, ROOT_SUBTREE};
use pando_proto::{ClientId, Ino, OsdId, PgId, Rank};
use proptest::prelude::*;

use super::*;
use crate::command::*;
use crate::invariants;
use crate::map::{LongerLease, Pg, PgState, Subtree};

mod pgs;
mod random;
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
