//! Own content that rots on a disk: in a group of several, the others make up for it (I10).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_osd::engine::memory::MemoryEngine;
use pando_osd::engine::{Engine, ObjectKey};
use pando_osd_client::ObjectClient;
use pando_osd_core::keys;
use pando_proto::ids::DATA_POOL;
use pando_proto::osd::{CommitOutcome, ObjectId, TrimKind};
use pando_proto::{Ino, OsdId, PgId, Reason, ShardId, SubtreeId};

use crate::cluster::{Cluster, DEADLINE, batch, bytes};

fn object(index: u64) -> ObjectId {
    ObjectId { pool: DATA_POOL.0, ino: 9, index }
}

/// Three OSDs that hold an object of several blocks, the engines, its placement group, and the one client of the session.
async fn three_with_an_object() -> (Cluster, Vec<Arc<MemoryEngine>>, PgId, ObjectClient) {
    let engines: Vec<_> = (0..3).map(|_| Arc::new(MemoryEngine::new(1 << 30))).collect();
    let cluster =
        Cluster::with_engines(engines.iter().map(|engine| Arc::clone(engine) as Arc<dyn Engine>).collect(), 3).await;
    let objects = cluster.objects();
    objects.write(object(0), 0, 0, Bytes::from(vec![b'x'; 200_000])).await.unwrap();
    let pg = cluster.map.current().pg_of_object(DATA_POOL, Ino(9), 0);
    (cluster, engines, pg, objects)
}

fn key(index: u64) -> ObjectKey {
    ObjectKey { ino: Ino(9), index }
}

fn engine_number(map: &ClusterMap, osd: OsdId) -> usize {
    map.osds[&osd].uuid[0] as usize - 1
}

/// Waits until a copy reads as the others do.
async fn repaired(engine: &MemoryEngine, pg: PgId, expected: &[u8]) {
    let reading = async {
        while engine.read(pg, key(0), 0, 1 << 20).ok().as_deref() != Some(expected) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, reading).await.expect("the copy is repaired");
}

#[tokio::test(flavor = "multi_thread")]
async fn i10_a_rotten_block_under_a_write_of_a_member_is_repaired_from_the_primary() {
    let (cluster, engines, pg, objects) = three_with_an_object().await;
    let map = cluster.map.current();
    let member = engine_number(&map, map.pgs[&pg].members[1]);
    assert!(engines[member].corrupt_block(pg, key(0), 0));
    // Part of the rotten block.
    let write = objects.write(object(0), 0, 5, bytes("new"));
    tokio::time::timeout(DEADLINE, write).await.expect("service goes on").unwrap();
    let mut expected = vec![b'x'; 200_000];
    expected[5..8].copy_from_slice(b"new");
    repaired(&engines[member], pg, &expected).await;
    objects.write(object(0), 0, 0, bytes("and on")).await.unwrap();
    let after = cluster.placed(3).await;
    assert!(after.osds.values().all(|osd| osd.up && osd.incarnation == 1), "nobody has died");
    cluster.assert_members_equal(&after);
}

#[tokio::test(flavor = "multi_thread")]
async fn i10_a_primary_with_a_rotten_block_under_a_write_makes_way_and_is_repaired() {
    let (cluster, engines, pg, objects) = three_with_an_object().await;
    let map = cluster.map.current();
    let number = engine_number(&map, map.pgs[&pg].members[0]);
    assert!(engines[number].corrupt_block(pg, key(0), 0));
    let write = objects.write(object(0), 0, 5, bytes("new"));
    tokio::time::timeout(DEADLINE, write).await.expect("another member takes over").unwrap();
    // All other placement groups, those of this primary too, go on.
    let records = cluster.records();
    for shard in 0..4 {
        records.commit(batch(shard, 1, 1, &[("k", "v")])).await.unwrap();
    }
    assert!(cluster.map.current().osds.values().all(|osd| osd.up && osd.incarnation == 1), "nobody has died");
    let map = cluster.placed(3).await;
    let mut expected = vec![b'x'; 200_000];
    expected[5..8].copy_from_slice(b"new");
    repaired(&engines[number], pg, &expected).await;
    cluster.assert_members_equal(&map);
}

#[tokio::test(flavor = "multi_thread")]
async fn i10_a_write_on_a_rotten_block_of_the_only_copy_is_refused_and_others_are_not() {
    let engine = Arc::new(MemoryEngine::new(1 << 30));
    let cluster = Cluster::with_engines(vec![Arc::clone(&engine) as Arc<dyn Engine>], 1).await;
    let objects = cluster.objects();
    objects.write(object(0), 0, 0, Bytes::from(vec![b'x'; 200_000])).await.unwrap();
    let pg = cluster.map.current().pg_of_object(DATA_POOL, Ino(9), 0);
    assert!(engine.corrupt_block(pg, key(0), 0));
    for _ in 0..10 {
        assert_eq!(objects.write(object(0), 0, 5, bytes("new")).await.unwrap_err().reason, Reason::Corrupt);
    }
    for index in 1..10 {
        objects.write(object(index), 0, 0, bytes("data")).await.unwrap();
    }
    assert_eq!(objects.read(object(0), 0, 150_000, 1).await.unwrap(), "x");
    objects.trim(object(0), 1, TrimKind::Delete, 0, 0).await.unwrap();
    objects.write(object(0), 1, 0, bytes("new")).await.unwrap();
    assert_eq!(objects.read(object(0), 1, 0, 10).await.unwrap(), "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn i10_what_the_primary_cannot_read_another_member_answers() {
    let (cluster, engines, pg, objects) = three_with_an_object().await;
    let map = cluster.map.current();
    let number = engine_number(&map, map.pgs[&pg].members[0]);
    assert!(engines[number].corrupt_block(pg, key(0), 0));
    let read = objects.read(object(0), 0, 0, 5);
    assert_eq!(tokio::time::timeout(DEADLINE, read).await.expect("another member takes over").unwrap(), "xxxxx");
    repaired(&engines[number], pg, &[b'x'; 200_000]).await;
    let map = cluster.placed(3).await;
    cluster.assert_members_equal(&map);
}

/// The primary of a placement group dies, and comes back when another leads.
async fn another_leads(cluster: &mut Cluster, pg: PgId) {
    let map = cluster.map.current();
    let number = engine_number(&map, map.pgs[&pg].members[0]);
    cluster.kill(number);
    cluster.map_with("its end", |map| map.pgs.values().all(|pg| pg.members.len() == 2)).await;
    cluster.start(number).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i10_a_primary_whose_sessions_rotted_makes_way_when_it_begins() {
    let (mut cluster, engines, pg, objects) = three_with_an_object().await;
    let map = cluster.map.current();
    let next = engine_number(&map, map.pgs[&pg].members[1]);
    assert!(engines[next].corrupt_record(pg, &keys::session(cluster.client)));
    another_leads(&mut cluster, pg).await;
    let write = objects.write(object(0), 0, 0, bytes("new"));
    tokio::time::timeout(DEADLINE, write).await.expect("somebody serves the object").unwrap();
    let map = cluster.placed(3).await;
    cluster.assert_members_equal(&map);
}

#[tokio::test(flavor = "multi_thread")]
async fn i10_a_primary_whose_fence_rotted_makes_way() {
    let (mut cluster, engines, _, _) = three_with_an_object().await;
    let records = cluster.records();
    records.commit(batch(0, 1, 1, &[("k", "v")])).await.unwrap();
    let map = cluster.map.current();
    let pg = map.pg_of_shard(ShardId(0));
    let next = engine_number(&map, map.pgs[&pg].members[1]);
    assert!(engines[next].corrupt_record(pg, &keys::fence(ShardId(0), SubtreeId(1))));
    another_leads(&mut cluster, pg).await;
    let commit = records.commit(batch(0, 1, 2, &[("k", "w")]));
    let done = tokio::time::timeout(DEADLINE, commit).await.expect("somebody serves the subtree").unwrap();
    assert_eq!(done.outcome(), CommitOutcome::Done);
    let map = cluster.placed(3).await;
    cluster.assert_members_equal(&map);
}

#[tokio::test(flavor = "multi_thread")]
async fn i10_a_copy_that_cannot_read_its_position_is_replaced_and_the_osd_starts() {
    let (mut cluster, engines, pg, objects) = three_with_an_object().await;
    let map = cluster.map.current();
    let number = engine_number(&map, map.pgs[&pg].members[0]);
    cluster.kill(number);
    cluster.map_with("its end", |map| map.pgs.values().all(|pg| pg.members.len() == 2)).await;
    assert!(engines[number].corrupt_record(pg, &keys::POSITION));
    objects.write(object(0), 0, 5, bytes("new")).await.unwrap();
    cluster.start(number).await;
    let map = cluster.placed(3).await;
    assert!(engines[number].get(pg, &keys::POSITION).unwrap().is_some());
    cluster.assert_members_equal(&map);
}
