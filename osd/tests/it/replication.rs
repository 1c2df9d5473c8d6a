//! Three OSDs: writes are on all members, one may die, and it comes back equal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pando_cluster_map::ClusterMap;
use pando_proto::ids::DATA_POOL;
use pando_proto::osd::{CommitOutcome, ObjectId, TrimKind};
use pando_proto::{OsdId, ShardId};

use crate::cluster::{Cluster, DEADLINE, batch, bytes};

fn osd_of(map: &ClusterMap, number: usize) -> OsdId {
    let uuid = [number as u8 + 1; 16];
    map.osds.iter().find(|(_, osd)| osd.uuid == uuid).map(|(id, _)| *id).unwrap()
}

async fn fill(cluster: &Cluster, from: u64, to: u64) {
    let (records, objects) = (cluster.records(), cluster.objects());
    for number in from..to {
        for shard in 0..4u32 {
            let key = format!("k{}", number % 50);
            let value = format!("v{number}");
            let done = records.commit(batch(shard, 1, number, &[(&key, &value), ("always", &value)])).await.unwrap();
            assert_eq!(done.outcome(), CommitOutcome::Done);
        }
        let id = ObjectId { pool: DATA_POOL.0, ino: 9, index: number % 20 };
        if number % 13 == 0 {
            objects.trim(id, number, TrimKind::Delete, 0, 0).await.unwrap();
        } else {
            objects.write(id, number, number % 7 * 50_000, bytes(&format!("object {number}"))).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_are_on_all_members() {
    let cluster = Cluster::new(3, 3).await;
    fill(&cluster, 1, 40).await;
    cluster.assert_members_equal(&cluster.map.current());
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_service_goes_on_when_one_dies_and_it_comes_back_equal() {
    for victim in 0..3 {
        let mut cluster = Cluster::new(3, 3).await;
        fill(&cluster, 1, 30).await;
        cluster.kill(victim);
        // Some PGs have lost their primary, others a follower: clients notice nothing but a pause.
        tokio::time::timeout(DEADLINE, fill(&cluster, 30, 60)).await.expect("service goes on");
        cluster.start(victim).await;
        let map = cluster.placed(3).await;
        let back = osd_of(&map, victim);
        assert!(map.pgs.values().all(|pg| pg.members.contains(&back)));
        fill(&cluster, 60, 70).await;
        cluster.assert_members_equal(&cluster.map.current());
        let records = cluster.records();
        for shard in 0..4 {
            let value = records.get(ShardId(shard), vec![bytes("always")]).await.unwrap();
            assert_eq!(value, [Some(bytes("v69"))]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_all_die_in_the_middle_of_writes_and_nothing_acknowledged_is_lost() {
    let mut cluster = Cluster::new(3, 3).await;
    let acknowledged: Arc<Vec<std::sync::atomic::AtomicU64>> = Arc::new((0..16).map(|_| 0.into()).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..16u32)
        .map(|shard| {
            let (records, acknowledged, stop) = (cluster.records(), Arc::clone(&acknowledged), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    let value = number.to_string();
                    let key = format!("k{number}");
                    records.commit(batch(shard, 1, number, &[(&key, &value)])).await.unwrap();
                    acknowledged[shard as usize].store(number, Ordering::SeqCst);
                }
                number
            })
        })
        .collect();
    let busy = async {
        while acknowledged.iter().map(|number| number.load(Ordering::SeqCst)).min() < Some(20) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, busy).await.unwrap();
    for victim in 0..3 {
        cluster.kill(victim);
    }
    for number in 0..3 {
        cluster.start(number).await;
    }
    stop.store(true, Ordering::Relaxed);
    let records = cluster.records();
    for (shard, writer) in writers.into_iter().enumerate() {
        let last = tokio::time::timeout(DEADLINE, writer).await.expect("service comes back").unwrap();
        for number in 1..=last {
            let value = records.get(ShardId(shard as u16), vec![bytes(&format!("k{number}"))]).await.unwrap();
            assert_eq!(value, [Some(bytes(&number.to_string()))], "shard {shard} batch {number}");
        }
    }
    let map = cluster.placed(3).await;
    cluster.assert_members_equal(&map);
}

#[tokio::test(flavor = "multi_thread")]
async fn below_min_size_nothing_is_acknowledged_and_reads_go_on() {
    let mut cluster = Cluster::new(2, 2).await;
    let records = cluster.records();
    records.commit(batch(0, 1, 1, &[("k", "v")])).await.unwrap();
    cluster.kill(0);
    cluster.map_with("a map without the dead OSD", |map| map.pgs.values().all(|pg| pg.members.len() == 1)).await;
    assert_eq!(records.get(ShardId(0), vec![bytes("k")]).await.unwrap(), [Some(bytes("v"))]);
    let write = tokio::spawn({
        let records = records.clone();
        async move { records.commit(batch(0, 1, 2, &[("k", "w")])).await }
    });
    assert_eq!(records.get(ShardId(0), vec![bytes("k")]).await.unwrap(), [Some(bytes("v"))]);
    assert!(!write.is_finished(), "R26: one member of two is too few for writes");
    cluster.start(0).await;
    let done = tokio::time::timeout(DEADLINE, write).await.expect("writes go on").unwrap().unwrap();
    assert_eq!(done.outcome(), CommitOutcome::Done);
    let map = cluster.placed(2).await;
    cluster.assert_members_equal(&map);
}
