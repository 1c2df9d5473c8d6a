use pando_cluster_map::{ClusterMap, CreateCluster, PoolSpec, RegisterOsd, RegisterRank, SetMon, SetSetting};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const OSD: Daemon = Daemon::Osd(OsdId(1));

/// One OSD and one rank, leases of 2 s.
fn map() -> ClusterMap {
    let mut map = ClusterMap::default();
    let spec = PoolSpec::new(1, 1);
    for command in [
        Command::CreateCluster(CreateCluster {
            cluster_id: vec![1; 16],
            expected_osds: 1,
            metadata: Some(spec),
            data: Some(spec),
            mons: vec![SetMon { id: 1, address: "mon:1".into() }],
        }),
        Command::RegisterOsd(RegisterOsd {
            uuid: vec![1; 16],
            boot_id: vec![1],
            address: "osd:1".into(),
            ..RegisterOsd::default()
        }),
        Command::RegisterRank(RegisterRank { rank: 0, boot_id: vec![1], address: "mds:1".into() }),
    ] {
        map.apply(&command).unwrap();
    }
    map
}

/// Looks often, as the node does.
fn due_until(leases: &mut Leases, map: &ClusterMap, from: Duration, to: Duration) -> Vec<(Daemon, Command)> {
    let mut now = from;
    while now < to {
        let due = leases.due(now, map);
        if !due.is_empty() {
            return due;
        }
        now += Duration::from_millis(50);
    }
    leases.due(to, map)
}

#[test]
fn a_new_leader_assumes_full_leases() {
    let (map, mut leases) = (map(), Leases::default());
    leases.elected(10 * SECOND);
    let over = 12 * SECOND + Duration::from_millis(200);
    assert_eq!(due_until(&mut leases, &map, 10 * SECOND, over - Duration::from_millis(1)), vec![]);
    let due = leases.due(over, &map);
    assert_eq!(due.len(), 2, "R13: lease x 1.05 + 100 ms: {due:?}");
    assert_eq!(due[0].1, Command::OsdDown(DaemonState { id: 1, incarnation: 1 }));
}

#[test]
fn heartbeats_keep_a_daemon_up_and_a_frozen_one_is_left_alone() {
    let (map, mut leases) = (map(), Leases::default());
    leases.elected(10 * SECOND);
    assert_eq!(leases.grant(OSD, 12 * SECOND, &map), 2 * SECOND);
    let due = due_until(&mut leases, &map, 10 * SECOND, 13 * SECOND);
    assert_eq!(due.iter().map(|(daemon, _)| *daemon).collect::<Vec<_>>(), vec![Daemon::Rank(Rank(0))]);
    leases.freeze(Daemon::Rank(Rank(0)));
    assert_eq!(due_until(&mut leases, &map, 13 * SECOND, 14 * SECOND), vec![]);
    assert_eq!(leases.remaining(OSD, 13 * SECOND, &map), Some(SECOND + Duration::from_millis(200)));
    assert_eq!(leases.remaining(OSD, 15 * SECOND, &map), None);
}

/// A suspended machine: on its return heartbeats may wait unread.
#[test]
fn a_stalled_mon_takes_nobody_down() {
    let (map, mut leases) = (map(), Leases::default());
    leases.elected(10 * SECOND);
    assert_eq!(leases.due(100 * SECOND, &map), vec![]);
    assert!(leases.remaining(OSD, 101 * SECOND, &map).is_some());
}

fn set_lease(map: &mut ClusterMap, millis: u64) {
    let set = SetSetting { name: settings::LEASE_MILLIS.into(), value: millis.to_string() };
    map.apply(&Command::SetSetting(set)).unwrap();
}

#[test]
fn a_shorter_lease_does_not_end_the_longer_ones_that_are_held() {
    let (mut map, mut leases) = (map(), Leases::default());
    leases.elected(10 * SECOND);
    leases.grant(OSD, 11 * SECOND, &map);
    set_lease(&mut map, 200);
    leases.learn(&map, 11 * SECOND);
    assert_eq!(leases.grant(OSD, 11 * SECOND, &map), Duration::from_millis(200));
    assert!(leases.remaining(OSD, 13 * SECOND, &map).is_some(), "the holder got 2 s at 11 s");
    leases.elected(12 * SECOND);
    assert!(leases.remaining(OSD, 13 * SECOND, &map).is_some(), "a new leader knows of the longer ones");
    assert_eq!(leases.remaining(OSD, 14 * SECOND, &map), None, "and when they ended");
}

/// R13: whoever leads next waits for the longest lease that may be held, also if it only has the map: it was started
/// again, or got a snapshot.
#[test]
fn the_longer_lease_is_waited_for_by_whoever_has_but_the_map() {
    let mut map = map();
    set_lease(&mut map, 60_000);
    set_lease(&mut map, 2000);
    let mut leases = Leases::default();
    leases.learn(&map, 5 * SECOND);
    leases.elected(10 * SECOND);
    // 60 s from when it learnt of it, x 1.05, + 100 ms.
    let over = 68 * SECOND + Duration::from_millis(100);
    assert_eq!(due_until(&mut leases, &map, 10 * SECOND, over - Duration::from_millis(1)), vec![]);
    assert_eq!(leases.forget_longer(over - Duration::from_millis(1)), None);
    assert_eq!(leases.due(over, &map).len(), 2);
    let Some(forget) = leases.forget_longer(over) else { panic!("it has ended") };
    assert_eq!(leases.forget_longer(over), None, "it is proposed once");
    assert_eq!(leases.forget_longer(over + FORGET_AGAIN), Some(forget.clone()), "unless it is lost");
    map.apply(&forget).unwrap();
    leases.learn(&map, over + 2 * SECOND);
    assert_eq!(leases.forget_longer(over + 4 * SECOND), None);
    leases.elected(90 * SECOND);
    assert_eq!(leases.remaining(OSD, 90 * SECOND, &map), Some(Duration::from_millis(2200)), "forgotten by all");
}

/// The wait goes on from where it was when a map tells the same again, and begins anew with another lowering.
#[test]
fn the_wait_for_a_longer_lease_begins_with_each_lowering() {
    let (mut map, mut leases) = (map(), Leases::default());
    set_lease(&mut map, 1000);
    leases.learn(&map, 10 * SECOND);
    leases.learn(&map, 11 * SECOND);
    assert!(leases.forget_longer(12 * SECOND + Duration::from_millis(200)).is_some());
    set_lease(&mut map, 500);
    leases.learn(&map, 13 * SECOND);
    assert_eq!(leases.forget_longer(15 * SECOND), None);
    assert!(leases.forget_longer(15 * SECOND + Duration::from_millis(200)).is_some());
}

#[test]
fn an_osd_that_stays_away_is_out() {
    let (mut map, mut leases) = (map(), Leases::default());
    let second = RegisterOsd { uuid: vec![2; 16], boot_id: vec![1], address: "osd:2".into(), ..RegisterOsd::default() };
    let spec = PoolSpec::new(2, 4);
    map.pools.values_mut().for_each(|pool| pool.size = spec.size);
    map.apply(&Command::RegisterOsd(second.clone())).unwrap();
    for id in map.pgs.keys().copied().collect::<Vec<_>>() {
        let pg = map.pgs.get_mut(&id).unwrap();
        pg.members.append(&mut pg.joining);
    }
    map.apply(&Command::OsdDown(DaemonState { id: 1, incarnation: 1 })).unwrap();
    map.ranks.clear();
    let end = 10 * SECOND + Duration::from_millis(map.setting_u64(settings::DOWN_OUT_MILLIS));
    leases.elected(10 * SECOND);
    leases.grant(Daemon::Osd(OsdId(2)), 2 * end, &map);
    assert_eq!(due_until(&mut leases, &map, 10 * SECOND, end + SECOND), vec![], "nobody could take its places");
    map.apply(&Command::RegisterOsd(RegisterOsd { uuid: vec![3; 16], ..second })).unwrap();
    leases.grant(Daemon::Osd(OsdId(3)), 2 * end, &map);
    let out = Command::OsdOut(DaemonState { id: 1, incarnation: 1 });
    assert_eq!(leases.due(end + SECOND, &map), vec![(OSD, out)]);
}
