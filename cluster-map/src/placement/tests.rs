use std::collections::BTreeSet;

use pando_proto::ids::{DATA_POOL, METADATA_POOL};
use proptest::prelude::*;

use super::*;
use crate::map::Pool;

fn cluster(osds: &[(u8, u32)], size: u32, pg_count: u32) -> ClusterMap {
    let mut map = ClusterMap { cluster_id: [1; 16], expected_osds: 1, ..ClusterMap::default() };
    for (id, pgs) in [(METADATA_POOL, pg_count / 2), (DATA_POOL, pg_count)] {
        map.pools.insert(id, Pool { name: id.to_string(), size, min_size: 1, pg_count: pgs });
        map.pgs.extend((0..pgs).map(|index| (PgId { pool: id, index }, Pg::default())));
    }
    for (host, weight) in osds {
        add_osd(&mut map, *host, *weight);
    }
    map
}

fn add_osd(map: &mut ClusterMap, host: u8, weight: u32) -> OsdId {
    let id = OsdId(map.osds.len() as u32 + 1);
    let mut uuid = [0; 16];
    uuid[0] = id.0 as u8;
    let osd = Osd { uuid, host: format!("host{host}"), weight, up: true, ..Osd::default() };
    map.osds.insert(id, osd);
    id
}

fn settle(map: &mut ClusterMap) -> usize {
    let mut moved = 0;
    for pg in map.pgs.values_mut() {
        moved += pg.joining.len();
        pg.members.append(&mut pg.joining);
        let leaving = std::mem::take(&mut pg.leaving);
        pg.members.retain(|osd| !leaving.contains(osd));
    }
    moved
}

/// The naive oracle: counts PGs by looking at every member of every PG.
fn counts(map: &ClusterMap, pool: PoolId) -> BTreeMap<OsdId, u64> {
    let mut counts: BTreeMap<OsdId, u64> = map.osds.keys().map(|id| (*id, 0)).collect();
    for pg in map.pgs.iter().filter(|(id, _)| id.pool == pool).map(|(_, pg)| pg) {
        for osd in &pg.members {
            *counts.get_mut(osd).unwrap() += 1;
        }
    }
    counts
}

fn spread(map: &ClusterMap, pool: PoolId) -> u64 {
    let counts = counts(map, pool);
    counts.values().max().unwrap() - counts.values().min().unwrap()
}

fn check_hosts(map: &ClusterMap, size: usize) {
    let hosts: BTreeSet<&str> = map.osds.values().map(|osd| osd.host.as_str()).collect();
    for (id, pg) in &map.pgs {
        let distinct: BTreeSet<_> = pg.members.iter().collect();
        assert_eq!(distinct.len(), pg.members.len(), "PG {id} has an OSD twice");
        let used: BTreeSet<&str> = pg.members.iter().map(|osd| map.osds[osd].host.as_str()).collect();
        assert_eq!(used.len(), hosts.len().min(size).min(pg.members.len()), "PG {id} is on too few hosts");
    }
}

#[test]
fn equal_osds_get_equal_shares_and_primaries() {
    for (osds, size) in [(3, 3), (5, 3), (6, 2), (7, 1), (12, 3)] {
        let hosts: Vec<(u8, u32)> = (0..osds).map(|host| (host, 1000)).collect();
        let mut map = cluster(&hosts, size, 64);
        place_first(&mut map);
        check_hosts(&map, size as usize);
        for pool in [METADATA_POOL, DATA_POOL] {
            assert!(spread(&map, pool) <= 1, "{osds} OSDs, size {size}: {:?}", counts(&map, pool));
            let loads = loads(&map, pool);
            let primaries = loads.values().map(|load| load.primaries);
            let (least, most) = (primaries.clone().min().unwrap(), primaries.max().unwrap());
            assert!(most - least <= 2, "{osds} OSDs, size {size}: primaries {least} to {most}");
        }
    }
}

#[test]
fn shares_follow_weights() {
    let mut map = cluster(&[(0, 1000), (1, 2000), (2, 3000), (3, 2000)], 2, 128);
    place_first(&mut map);
    let counts = counts(&map, DATA_POOL);
    for (osd, count) in counts {
        let ideal = 256.0 * f64::from(map.osds[&osd].weight) / 8000.0;
        assert!((count as f64 - ideal).abs() <= 2.0, "{osd}: {count} instead of {ideal}");
    }
}

#[test]
fn a_new_osd_takes_its_share_and_no_more_moves() {
    for (osds, size) in [(3, 2), (4, 3), (5, 1), (9, 3)] {
        let hosts: Vec<(u8, u32)> = (0..osds).map(|host| (host, 1000)).collect();
        let mut map = cluster(&hosts, size, 64);
        place_first(&mut map);
        let before = map.clone();
        let new = add_osd(&mut map, osds, 1000);
        rebalance(&mut map);
        let moved = settle(&mut map);
        check_hosts(&map, size as usize);
        for pool in [METADATA_POOL, DATA_POOL] {
            assert!(spread(&map, pool) <= 1, "{:?}", counts(&map, pool));
        }
        let share: u64 = [METADATA_POOL, DATA_POOL].iter().map(|pool| counts(&map, *pool)[&new]).sum();
        assert_eq!(moved as u64, share, "only moves to the new OSD");
        for (id, pg) in &map.pgs {
            let kept = pg.members.iter().filter(|osd| before.pgs[id].members.contains(osd)).count();
            assert!(kept >= pg.members.len() - 1, "PG {id} moved more than one member");
        }
    }
}

#[test]
fn a_balanced_cluster_rests() {
    let mut map = cluster(&[(0, 1000), (1, 2000), (2, 1500), (3, 700)], 3, 64);
    place_first(&mut map);
    rebalance(&mut map);
    settle(&mut map);
    let before = map.clone();
    rebalance(&mut map);
    assert_eq!(before, map);
}

/// A PG is moved by one member at a time: what it could not do for that comes in a later round. Each move makes the pool
/// more even, so that there is no swinging.
fn rounds_to_rest(map: &mut ClusterMap, size: usize) -> usize {
    (0..100)
        .find(|_| {
            rebalance(map);
            let moved = settle(map);
            check_hosts(map, size);
            moved == 0
        })
        .expect("balancing has an end")
}

/// One PG comes to the second OSD, and could be better elsewhere when it is there.
#[test]
fn what_is_under_way_is_balanced_when_it_has_arrived() {
    let osds = [
        (1, 2835),
        (2, 550),
        (2, 3301),
        (1, 3378),
        (0, 2815),
        (1, 2751),
        (0, 1131),
        (2, 1101),
        (2, 3301),
        (3, 2751),
        (0, 3302),
    ];
    let mut map = cluster(&osds, 3, 32);
    place_first(&mut map);
    assert_eq!(rounds_to_rest(&mut map, 3), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn hosts_are_distinct_where_possible_and_no_osd_is_overloaded(
        osds in prop::collection::vec((0..5u8, 500..4000u32), 1..12),
        size in 1..4u32,
    ) {
        let mut map = cluster(&osds, size, 32);
        place_first(&mut map);
        check_hosts(&map, size as usize);
        for pg in map.pgs.values() {
            prop_assert_eq!(pg.members.len(), (size as usize).min(osds.len()));
        }
        let rounds = rounds_to_rest(&mut map, size as usize);
        prop_assert!(rounds <= 4, "{rounds} rounds");
    }

    #[test]
    fn equal_osds_on_own_hosts_stay_even_while_osds_come(size in 1..4u32, first in 3..6u8, more in 1..6u8) {
        let hosts: Vec<(u8, u32)> = (0..first).map(|host| (host, 1000)).collect();
        let mut map = cluster(&hosts, size, 32);
        place_first(&mut map);
        for host in first..first + more {
            add_osd(&mut map, host, 1000);
            rebalance(&mut map);
            settle(&mut map);
        }
        check_hosts(&map, size as usize);
        prop_assert!(spread(&map, DATA_POOL) <= 1);
    }
}
