//! Disks that fail, lie or are full, and a clean stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use pando_osd::engine::memory::MemoryEngine;
use pando_osd::engine::{Engine, EngineError, ObjectHeader, ObjectKey, ScanPage, Transaction, Usage};
use pando_proto::ids::DATA_POOL;
use pando_proto::osd::{CommitOutcome, ObjectId, TrimKind};
use pando_proto::{PgId, Reason, ShardId};

use crate::cluster::{Cluster, DEADLINE, batch, bytes};

/// A memory engine with switches.
struct Faulty {
    inner: MemoryEngine,
    fail_commits: AtomicBool,
    corrupt_reads: AtomicBool,
    used_percent: AtomicU64,
}

impl Faulty {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryEngine::new(1 << 30),
            fail_commits: AtomicBool::new(false),
            corrupt_reads: AtomicBool::new(false),
            used_percent: AtomicU64::new(10),
        })
    }

    fn check(&self) -> Result<(), EngineError> {
        if self.corrupt_reads.load(Ordering::SeqCst) {
            return Err(EngineError::Corrupt { what: "a block".to_owned() });
        }
        Ok(())
    }
}

impl Engine for Faulty {
    fn commit(&self, transactions: &[Transaction]) -> Result<(), EngineError> {
        if self.fail_commits.load(Ordering::SeqCst) {
            return Err(EngineError::Io("no such luck".to_owned()));
        }
        self.inner.commit(transactions)
    }

    fn get(&self, pg: PgId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.inner.get(pg, key)
    }

    fn scan(&self, pg: PgId, start: &[u8], end: &[u8], limit: usize, max: usize) -> Result<ScanPage, EngineError> {
        self.inner.scan(pg, start, end, limit, max)
    }

    fn header(&self, pg: PgId, object: ObjectKey) -> Result<Option<ObjectHeader>, EngineError> {
        self.inner.header(pg, object)
    }

    fn read(&self, pg: PgId, object: ObjectKey, offset: u64, length: u64) -> Result<Bytes, EngineError> {
        self.check()?;
        self.inner.read(pg, object, offset, length)
    }

    fn stored_bytes(&self, pg: PgId, object: ObjectKey) -> Result<u64, EngineError> {
        self.inner.stored_bytes(pg, object)
    }

    fn list_objects(
        &self,
        pg: PgId,
        after: Option<ObjectKey>,
        limit: usize,
    ) -> Result<Vec<(ObjectKey, ObjectHeader)>, EngineError> {
        self.inner.list_objects(pg, after, limit)
    }

    fn pgs(&self) -> Result<Vec<PgId>, EngineError> {
        self.inner.pgs()
    }

    fn usage(&self) -> Result<Usage, EngineError> {
        Ok(Usage { total_bytes: 100, used_bytes: self.used_percent.load(Ordering::SeqCst) })
    }
}

fn object(index: u64) -> ObjectId {
    ObjectId { pool: DATA_POOL.0, ino: 9, index }
}

#[tokio::test(flavor = "multi_thread")]
async fn i10_corrupt_blocks_are_an_error_and_the_osd_lives_on() {
    let faulty = Faulty::new();
    let cluster = Cluster::with_engines(vec![Arc::clone(&faulty) as Arc<dyn Engine>], 1).await;
    let objects = cluster.objects();
    objects.write(object(0), 0, 0, bytes("data")).await.unwrap();
    faulty.corrupt_reads.store(true, Ordering::SeqCst);
    assert_eq!(objects.read(object(0), 0, 0, 4).await.unwrap_err().reason, Reason::Corrupt);
    faulty.corrupt_reads.store(false, Ordering::SeqCst);
    assert_eq!(objects.read(object(0), 0, 0, 4).await.unwrap(), "data");
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_full_osd_refuses_writes_and_still_deletes() {
    let faulty = Faulty::new();
    let cluster = Cluster::with_engines(vec![Arc::clone(&faulty) as Arc<dyn Engine>], 1).await;
    let (records, objects) = (cluster.records(), cluster.objects());
    records.commit(batch(0, 1, 1, &[("k", "v")])).await.unwrap();
    objects.write(object(0), 0, 0, bytes("data")).await.unwrap();
    faulty.used_percent.store(97, Ordering::SeqCst);
    let refused = async {
        let mut number = 1;
        loop {
            number += 1;
            match records.commit(batch(0, 1, number, &[("k", "w")])).await {
                Err(error) => return (number, error),
                Ok(_) => tokio::task::yield_now().await,
            }
        }
    };
    let (number, error) = tokio::time::timeout(DEADLINE, refused).await.expect("the OSD notices that it is full");
    assert_eq!(error.reason, Reason::NoSpace);
    assert_eq!(objects.write(object(1), 0, 0, bytes("more")).await.unwrap_err().reason, Reason::NoSpace);
    assert_eq!(objects.read(object(0), 0, 0, 4).await.unwrap(), "data");
    objects.trim(object(0), 1, TrimKind::Delete, 0, 0).await.unwrap();
    let mut unlink = batch(0, 1, number, &[("dir", "entry count")]);
    unlink.deletes.push(bytes("k"));
    unlink.uses_reserve = true;
    assert_eq!(records.commit(unlink).await.unwrap().outcome(), CommitOutcome::Done);
    faulty.used_percent.store(50, Ordering::SeqCst);
    let accepted = async {
        while objects.write(object(1), 0, 0, bytes("more")).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, accepted).await.expect("it recovers when there is space again");
}

/// The full one is primary of some placement groups, and a member of the others.
#[tokio::test(flavor = "multi_thread")]
async fn i9_a_full_osd_gets_no_more_writes_whoever_is_the_primary_and_still_deletes() {
    let faulty = Faulty::new();
    let other = Arc::new(MemoryEngine::new(1 << 30)) as Arc<dyn Engine>;
    let cluster = Cluster::with_engines(vec![Arc::clone(&faulty) as Arc<dyn Engine>, other], 2).await;
    let map = cluster.map.current();
    let led = map.pgs.values().filter(|pg| map.osds[&pg.members[0]].uuid[0] == 1).count();
    assert!(0 < led && led < map.pgs.len(), "it is to be both: {:?}", map.pgs);
    let objects = cluster.objects();
    for index in 0..16 {
        objects.write(object(index), 0, 0, bytes("data")).await.unwrap();
    }
    faulty.used_percent.store(97, Ordering::SeqCst);
    for index in 0..16 {
        let refused = async {
            loop {
                match objects.write(object(index), 0, 0, bytes("more")).await {
                    Err(error) => return error,
                    Ok(_) => tokio::task::yield_now().await,
                }
            }
        };
        let error = tokio::time::timeout(DEADLINE, refused).await.expect("its primary hears that it is full");
        assert_eq!(error.reason, Reason::NoSpace);
    }
    for index in 0..16 {
        objects.trim(object(index), 1, TrimKind::Delete, 0, 0).await.unwrap();
    }
    faulty.used_percent.store(50, Ordering::SeqCst);
    for index in 0..16 {
        let accepted = async {
            while objects.write(object(index), 1, 0, bytes("again")).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, accepted).await.expect("it recovers when there is space again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_osd_whose_disk_fails_stops_and_others_go_on() {
    let faulty = Faulty::new();
    let mut engines: Vec<Arc<dyn Engine>> = vec![Arc::clone(&faulty) as Arc<dyn Engine>];
    for _ in 0..2 {
        engines.push(Arc::new(MemoryEngine::new(1 << 30)));
    }
    let mut cluster = Cluster::with_engines(engines, 3).await;
    let records = cluster.records();
    for shard in 0..4 {
        records.commit(batch(shard, 1, 1, &[("k", "v")])).await.unwrap();
    }
    faulty.fail_commits.store(true, Ordering::SeqCst);
    for shard in 0..4 {
        let commit = records.commit(batch(shard, 1, 2, &[("k", "w")]));
        let done = tokio::time::timeout(DEADLINE, commit).await.expect("service goes on").unwrap();
        assert_eq!(done.outcome(), CommitOutcome::Done);
    }
    // It has stopped by itself.
    cluster.nodes[0].take().unwrap().joined();
    faulty.fail_commits.store(false, Ordering::SeqCst);
    cluster.start(0).await;
    let map = cluster.placed(3).await;
    cluster.assert_members_equal(&map);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_gives_the_lease_back() {
    let mut cluster = Cluster::new(2, 1).await;
    let records = cluster.records();
    // So long that nobody would wait for its end.
    cluster.mon.admin().set_setting("lease_millis", "60000").await.unwrap();
    records.commit(batch(0, 1, 1, &[("k", "v")])).await.unwrap();
    cluster.nodes[0].take().unwrap().stop();
    cluster.map_with("the end of the OSD", |map| map.osds.values().filter(|osd| osd.up).count() == 1).await;
    cluster.start(0).await;
    assert_eq!(records.get(ShardId(0), vec![bytes("k")]).await.unwrap(), [Some(bytes("v"))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn placement_groups_move_to_a_new_osd_while_they_serve() {
    let mut cluster = Cluster::new(2, 2).await;
    let (records, objects) = (cluster.records(), cluster.objects());
    for shard in 0..4 {
        for number in 1..=50 {
            let (key, value) = (format!("k{number}"), format!("v{number}"));
            records.commit(batch(shard, 1, number, &[(&key, &value)])).await.unwrap();
        }
    }
    for index in 0..20 {
        objects.write(object(index), 0, index * 100_000, bytes("data")).await.unwrap();
    }
    cluster.engines.push(Arc::new(MemoryEngine::new(1 << 30)));
    cluster.nodes.push(None);
    cluster.start(2).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (records, stop) = (records.clone(), Arc::clone(&stop));
        async move {
            let mut number = 50;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let value = format!("v{number}");
                for shard in 0..4 {
                    records.commit(batch(shard, 1, number, &[("live", &value)])).await.unwrap();
                    let read = records.get(ShardId(shard as u16), vec![bytes("live")]).await.unwrap();
                    assert_eq!(read, [Some(bytes(&value))]);
                }
            }
        }
    });
    let moved = cluster
        .map_with("a move to the new OSD", |map| {
            let newest = map.osds.iter().find(|(_, osd)| osd.uuid == [3; 16]).map(|(id, _)| *id);
            newest.is_some_and(|id| map.pgs.values().any(|pg| pg.members.contains(&id)))
                && map.pgs.values().all(|pg| pg.members.len() == 2 && pg.joining.is_empty())
        })
        .await;
    stop.store(true, Ordering::Relaxed);
    tokio::time::timeout(DEADLINE, writer).await.unwrap().unwrap();
    for shard in 0..4 {
        let keys = (1..=50).map(|number| bytes(&format!("k{number}"))).collect();
        let values: Vec<_> = (1..=50).map(|number| Some(bytes(&format!("v{number}")))).collect();
        assert_eq!(records.get(ShardId(shard), keys).await.unwrap(), values);
    }
    cluster.assert_members_equal(&moved);
    // The copies that moved away are given up, so that their space is free again (I7).
    let given_up = async {
        while !cluster.has_no_leftovers(&cluster.map.current()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, given_up).await.expect("old copies go");
}
