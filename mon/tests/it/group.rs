use std::collections::BTreeSet;

use pando_proto::{Epoch, OsdId};

use crate::support::*;

#[tokio::test]
async fn no_acknowledged_command_is_lost_when_the_leader_stops() {
    let mut group = Group::start(1000).await;
    let client = group.client();
    let mut ids = BTreeSet::new();
    for round in 0..2 {
        for _ in 0..10 {
            let (id, map) = within(client.register_client("counted")).await.unwrap();
            assert!(ids.insert(id), "I4: {id} twice");
            assert!(map.session_is_live(id));
        }
        let leader = client.admin().status().await.unwrap().leader_id;
        if round == 0 {
            group.stop_mon(leader).await;
        }
        let (id, _) = within(client.register_client("after the stop")).await.unwrap();
        assert!(ids.insert(id));
        let now = client.admin().status().await.unwrap();
        if round == 0 {
            assert_ne!(now.leader_id, leader);
            group.start_mon(leader).await;
        }
    }
    let newest = client.get_map(Epoch(0)).await.unwrap();
    for mon in group.mons.values() {
        let map = within(mon.client().get_map(newest.epoch)).await.unwrap();
        let known: BTreeSet<_> = map.sessions.keys().copied().collect();
        assert_eq!(known, ids, "I1: every mon has them all");
    }
    group.stop().await;
}

#[tokio::test]
async fn a_mon_that_missed_a_compaction_gets_a_snapshot() {
    let mut group = Group::start(10).await;
    let client = group.client();
    within(client.register_client("first")).await.unwrap();
    let leader = client.admin().status().await.unwrap().leader_id;
    let behind = if leader == 3 { 2 } else { 3 };
    group.stop_mon(behind).await;
    for _ in 0..50 {
        within(client.register_client("missed")).await.unwrap();
    }
    let newest = client.get_map(Epoch(0)).await.unwrap();
    group.start_mon(behind).await;
    let (mut watch, stop) = watch(&group.mons[&behind].client()).await;
    let map = map_when(&mut watch, |map| map.epoch >= newest.epoch).await;
    assert_eq!(map.sessions, newest.sessions);
    // What it got must also survive its own restart.
    stop.stop();
    group.stop_mon(behind).await;
    group.start_mon(behind).await;
    let map = within(group.mons[&behind].client().get_map(newest.epoch)).await.unwrap();
    assert_eq!(map.sessions, newest.sessions);
    group.stop().await;
}

/// What the error of a mon that lost its disk tells the operator to do.
#[tokio::test]
async fn a_mon_that_lost_its_disk_comes_back_after_an_election_without_it() {
    let mut group = Group::start(1000).await;
    let client = group.client();
    within(client.register_client("first")).await.unwrap();
    let leader = client.admin().status().await.unwrap().leader_id;
    // Mon 1 would want to be told the cluster's id.
    let lost = if leader == 3 { 2 } else { 3 };
    group.stop_mon(lost).await;
    group.wipe(lost);
    group.stop_mon(leader).await;
    group.start_mon(leader).await;
    let (_, newest) = within(client.register_client("second")).await.unwrap();
    group.start_mon(lost).await;
    let map = within(group.mons[&lost].client().get_map(newest.epoch)).await.unwrap();
    assert_eq!(map.sessions, newest.sessions);
    assert!(!group.mons[&lost].env.shutdown.is_stopping());
    group.stop().await;
}

#[tokio::test]
async fn any_mon_answers() {
    let group = Group::start(1000).await;
    let leader = within(group.client().admin().status()).await.unwrap().leader_id;
    for (id, mon) in &group.mons {
        let client = mon.client();
        let registered = within(client.register_osd(osd(*id as u8, 1))).await.unwrap();
        let status = within(client.admin().status()).await.unwrap();
        assert_eq!(status.leader_id, leader, "asked mon {id}");
        assert_eq!(status.mons.len(), 3);
        let map = within(client.get_map(Epoch(0))).await.unwrap();
        assert!(map.osds.contains_key(&OsdId(registered.osd_id)));
        assert_eq!(within(client.admin().list_osds()).await.unwrap().len(), map.osds.len());
    }
    group.stop().await;
}
