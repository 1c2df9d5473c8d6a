//! Daemons that die under load.

use std::time::Duration;

use pando_local_cluster::Options;
use pando_proto::{Errno, OsdId, PgId, PoolId, Reason};

use crate::with_cluster;

fn three() -> Options {
    let pgs = Options { metadata_pgs: 8, data_pgs: 8, ..Options::default() };
    Options { osds: 3, replicas: 3, lease_millis: Some(600), ..pgs }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_osd_dies_and_returns_and_nothing_acknowledged_is_missing() {
    let cluster = with_cluster(three(), |mut cluster, client| async move {
        client.create_dir("/d").await.unwrap();
        let writer = tokio::spawn({
            let client = client.clone();
            async move {
                for number in 0..300 {
                    let body = if number % 10 == 0 { vec![number as u8; 20_000] } else { vec![number as u8; 500] };
                    client.write(format!("/d/{number}"), body).await.unwrap();
                }
            }
        });
        cluster.kill_osd(1).await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), async { while client.read("/d/150").await.is_err() {} })
            .await
            .expect("service goes on with two of three");
        cluster.restart_osd(1).await.unwrap();
        writer.await.unwrap();
        wait_until_healthy(&cluster).await;
        // Now another one may go: the one that came back holds everything.
        cluster.kill_osd(0).await.unwrap();
        for number in 0..300u32 {
            let data = client.read(format!("/d/{number}")).await.unwrap();
            assert!(data.iter().all(|byte| *byte == number as u8), "file {number}");
            assert_eq!(data.len(), if number % 10 == 0 { 20_000 } else { 500 });
        }
        cluster
    });
    cluster.await.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_rank_dies_and_its_successor_knows_all_that_was_acknowledged() {
    let cluster = with_cluster(three(), |mut cluster, client| async move {
        for round in 0..3 {
            let dir = format!("/round-{round}");
            client.create_dir(&dir).await.unwrap();
            let writing = (0..40).map(|number| client.write(format!("/round-{round}/{number}"), vec![round; 100]));
            for written in writing.collect::<Vec<_>>() {
                written.await.unwrap();
            }
            cluster.kill_mds(0).await.unwrap();
            cluster.restart_mds(0).await.unwrap();
            for number in 0..40 {
                assert_eq!(client.read(format!("{dir}/{number}")).await.unwrap(), vec![round; 100]);
            }
        }
        cluster
    });
    cluster.await.shutdown().await;
}

/// R26: two of three disks are gone, and the third was away when the last writes were acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_old_copy_counts_once_an_administrator_says_so() {
    let cluster = with_cluster(three(), |mut cluster, client| async move {
        client.create_dir("/d").await.unwrap();
        for number in 0..20u8 {
            client.write(format!("/d/old-{number}"), vec![number; 20_000]).await.unwrap();
        }
        let osds = cluster.admin().admin().list_osds().await.unwrap();
        let id_of = |place: u32| {
            let address = cluster.osd_addresses()[&place].to_string();
            OsdId(osds.iter().find(|osd| osd.address == address).unwrap().id)
        };
        let (dead, old) = (id_of(1), id_of(2));
        cluster.kill_osd(2).await.unwrap();
        for number in 0..20u8 {
            client.write(format!("/d/new-{number}"), vec![number; 100]).await.unwrap();
        }
        cluster.kill_osd(0).await.unwrap();
        cluster.kill_osd(1).await.unwrap();
        cluster.restart_osd(2).await.unwrap();
        let admin = cluster.admin().admin();
        // One of both may be found to be down before the other is.
        let is_up = |map: &pando_cluster_map::ClusterMap| map.osds[&dead].up;
        let all_down = async {
            while admin.status().await.unwrap().pgs_down < 16
                || is_up(&cluster.admin().get_map(Default::default()).await.unwrap())
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all_down).await.expect("the others are known to be down in time");
        let pgs = admin.list_pgs(None).await.unwrap();
        for pg in pgs {
            let id = PgId { pool: PoolId(pg.pool), index: pg.index };
            let error = admin.override_pg(id, pg.config, old, false).await.unwrap_err();
            assert!(error.reason == Reason::InvalidRequest && error.message.contains("since it left"), "{error}");
            let error = admin.override_pg(id, pg.config, dead, true).await.unwrap_err();
            assert!(error.reason == Reason::InvalidRequest && error.message.contains("is down"), "{error}");
            admin.override_pg(id, pg.config, old, true).await.unwrap();
        }
        // They know of more, and are overwritten all the same.
        cluster.restart_osd(0).await.unwrap();
        cluster.restart_osd(1).await.unwrap();
        wait_until_healthy(&cluster).await;
        let check = async {
            for number in 0..20u8 {
                assert_eq!(client.read(format!("/d/old-{number}")).await.unwrap(), vec![number; 20_000]);
                let gone = client.read(format!("/d/new-{number}")).await.unwrap_err();
                assert_eq!(gone.errno(), Errno::ENOENT, "{gone}");
                client.write(format!("/d/new-{number}"), vec![number + 1; 100]).await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(60), check).await.expect("served again in time");
        cluster.kill_osd(2).await.unwrap();
        for number in 0..20u8 {
            assert_eq!(client.read(format!("/d/old-{number}")).await.unwrap(), vec![number; 20_000]);
            assert_eq!(client.read(format!("/d/new-{number}")).await.unwrap(), vec![number + 1; 100]);
        }
        cluster
    });
    cluster.await.shutdown().await;
}

async fn wait_until_healthy(cluster: &pando_local_cluster::LocalCluster) {
    let healthy = async {
        loop {
            let status = cluster.admin().admin().status().await.unwrap();
            if status.pgs_degraded == 0 && status.pgs_down == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), healthy).await.expect("all replicas are back in time");
}
