//! Open files that went to another subtree without their client's knowing (R19).

use std::time::Duration;

use pando_client::{Client, File, OpenOptions};
use pando_local_cluster::LocalCluster;
use pando_proto::Rank;

use crate::subtrees::{owner, ranks};
use crate::transactions::two;
use crate::with_cluster;

/// `/a/f` is open by the first client and was renamed to `/b/f` by the second. The third is its handle.
async fn renamed_while_open(cluster: &LocalCluster, client: &Client) -> (Client, File) {
    two(cluster, client).await;
    client.write("/a/f", "content").await.unwrap();
    let file = OpenOptions::new().read(true).write(true).open(client, "/a/f").await.unwrap();
    let other = Client::connect(cluster.mon_addresses()).await.unwrap();
    other.rename("/a/f", "/b/f").await.unwrap();
    (other, file)
}

/// The rank of `/b` dies; ends when whoever has it then has heard all sessions.
async fn fail_over(cluster: &mut LocalCluster, other: &Client) {
    other.write("/b/marker", "").await.unwrap();
    cluster.kill_mds(2).await.unwrap();
    while owner(other, "/b").await.1 == Rank(2) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It gives no file away before it knows who has it open.
    other.rename("/b/marker", "/a/marker").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn r19_a_renamed_and_removed_file_outlives_the_rank_that_removed_it() {
    let cluster = with_cluster(ranks(3), |mut cluster, client| async move {
        let (other, file) = renamed_while_open(&cluster, &client).await;
        other.remove_file("/b/f").await.unwrap();
        fail_over(&mut cluster, &other).await;
        assert_eq!(file.read_at(0, 10).await.unwrap(), "content");
        file.write_at(0, "changed").await.unwrap();
        assert_eq!(file.read_at(0, 10).await.unwrap(), "changed");
        file.close().await.unwrap();
        cluster
    })
    .await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn r19_a_renamed_file_that_is_removed_after_a_failover_stays_open() {
    let cluster = with_cluster(ranks(3), |mut cluster, client| async move {
        let (other, file) = renamed_while_open(&cluster, &client).await;
        fail_over(&mut cluster, &other).await;
        other.remove_file("/b/f").await.unwrap();
        assert_eq!(file.read_at(0, 10).await.unwrap(), "content");
        file.close().await.unwrap();
        cluster
    })
    .await;
    cluster.shutdown().await;
}
