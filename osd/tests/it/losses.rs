//! Disks that lost what they had acknowledged, and a restart of the whole cluster: no OSD remembers its log (I1, R26).

use std::fs;
use std::path::Path;
use std::sync::Arc;

use pando_osd::engine::fjall::FjallEngine;
use pando_osd::engine::{Engine, EngineKind, EngineOptions};
use pando_osd::{Config, Storage};
use pando_proto::{Reason, ShardId};
use pando_rpc::Env;
use tempfile::TempDir;

use crate::cluster::{Cluster, DEADLINE, batch, bytes};

const OSDS: usize = 3;
const BATCHES: u64 = 60;

fn open(dir: &TempDir) -> Arc<dyn Engine> {
    Arc::new(FjallEngine::open(dir.path(), &EngineOptions::default()).unwrap())
}

/// Leases are long enough to restart all: were all given up meanwhile, the last one would count.
async fn cluster(lease_millis: &str) -> (Cluster, Vec<TempDir>) {
    let dirs: Vec<_> = (0..OSDS).map(|_| tempfile::tempdir().unwrap()).collect();
    let mut cluster = Cluster::with_engines(dirs.iter().map(open).collect(), OSDS as u32).await;
    cluster.mon.admin().set_setting("lease_millis", lease_millis).await.unwrap();
    // The leases that they have are of the old length.
    for number in 0..OSDS {
        cluster.kill(number);
        cluster.start(number).await;
    }
    cluster.placed(OSDS).await;
    (cluster, dirs)
}

async fn write(cluster: &Cluster, numbers: std::ops::Range<u64>) {
    let records = cluster.records();
    for number in numbers {
        for shard in 0..2 {
            records.commit(batch(shard, 1, number, &[(&format!("k{number}"), &format!("v{number}"))])).await.unwrap();
        }
    }
}

async fn assert_all_there(cluster: &Cluster, last: u64) {
    let records = cluster.records();
    for shard in 0..2 {
        let keys = (1..=last).map(|number| bytes(&format!("k{number}"))).collect();
        let found =
            tokio::time::timeout(DEADLINE, records.get(ShardId(shard), keys)).await.expect("an answer").unwrap();
        let expected: Vec<_> = (1..=last).map(|number| Some(bytes(&format!("v{number}")))).collect();
        assert_eq!(found, expected, "I1");
    }
}

/// All are killed, and their databases closed.
async fn kill_all(cluster: &mut Cluster) {
    (0..OSDS).for_each(|number| cluster.kill(number));
    let closed = async {
        for engine in std::mem::take(&mut cluster.engines) {
            // Threads of the OSD that was killed may be at it still.
            while Arc::strong_count(&engine) > 1 {
                tokio::task::yield_now().await;
            }
        }
    };
    tokio::time::timeout(DEADLINE, closed).await.expect("the databases are closed");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A disk that lied: after the restart it has what it had some time ago. Each OSD in turn, so each PG's primary too.
#[tokio::test(flavor = "multi_thread")]
async fn i1_a_copy_that_lost_its_tail_does_not_win_after_a_restart_of_all() {
    let (mut cluster, dirs) = cluster("20000").await;
    let mut last = 0;
    for victim in 0..OSDS {
        write(&cluster, last + 1..last + 11).await;
        let earlier = tempfile::tempdir().unwrap();
        copy(dirs[victim].path(), earlier.path());
        write(&cluster, last + 11..last + BATCHES + 1).await;
        last += BATCHES;
        kill_all(&mut cluster).await;
        fs::remove_dir_all(dirs[victim].path()).unwrap();
        copy(earlier.path(), dirs[victim].path());
        cluster.engines = dirs.iter().map(open).collect();
        for number in 0..OSDS {
            cluster.start(number).await;
        }
        assert_all_there(&cluster, last).await;
        let map = cluster.placed(OSDS).await;
        assert_all_there(&cluster, last).await;
        write(&cluster, last + 1..last + 2).await;
        last += 1;
        cluster.assert_members_equal(&map);
    }
}

/// Bytes in the middle of a journal rot while all are down.
#[tokio::test(flavor = "multi_thread")]
async fn i1_i10_an_osd_with_a_damaged_journal_does_not_come_back_and_nothing_is_lost() {
    let (mut cluster, dirs) = cluster("6000").await;
    write(&cluster, 1..BATCHES + 1).await;
    kill_all(&mut cluster).await;
    let map = cluster.map.current();
    let pg = map.pg_of_shard(ShardId(0));
    let victim = map.osds[&map.pgs[&pg].members[0]].uuid[0] as usize - 1;
    let journals = fs::read_dir(dirs[victim].path()).unwrap().map(|entry| entry.unwrap().path());
    for journal in journals.filter(|path| path.extension().is_some_and(|extension| extension == "jnl")) {
        let mut content = fs::read(&journal).unwrap();
        let middle = content.iter().rposition(|byte| *byte != 0).unwrap_or(0) / 2;
        content[middle..middle + 200].fill(0xee);
        fs::write(&journal, content).unwrap();
    }
    let home = tempfile::tempdir().unwrap();
    drop(pando_osd::engine::open(EngineKind::Fjall, home.path(), &EngineOptions::default()).unwrap());
    fs::remove_dir_all(home.path().join("fjall")).unwrap();
    copy(dirs[victim].path(), &home.path().join("fjall"));
    let storage = Storage::Directory {
        path: home.path().to_owned(),
        engine: EngineKind::Fjall,
        options: EngineOptions::default(),
    };
    let config = Config::new(cluster.mons.clone(), std::net::SocketAddr::from(([127, 0, 0, 1], 0)), storage);
    let Err(error) = pando_osd::start(config, Env::system()).await else { panic!("it came back") };
    assert_eq!(error.reason, Reason::Corrupt);
    assert!(error.message.contains("damaged at byte") && error.message.contains("joins anew"), "{error:?}");
    cluster.engines = (0..OSDS).map(|number| if number == victim { memory() } else { open(&dirs[number]) }).collect();
    for number in (0..OSDS).filter(|number| *number != victim) {
        cluster.start(number).await;
    }
    assert_all_there(&cluster, BATCHES).await;
}

fn memory() -> Arc<dyn Engine> {
    Arc::new(pando_osd::engine::memory::MemoryEngine::new(1 << 20))
}
