//! Files with much room and few bytes (R22, R23, I7).

use std::sync::Arc;
use std::time::Duration;

use pando_client::{Client, OpenOptions};
use pando_local_cluster::LocalCluster;
use pando_mon_client::ClusterStamp;
use pando_proto::ids::DATA_POOL;
use pando_proto::osd::ListRequest;
use pando_proto::osd::object_service_client::ObjectServiceClient;
use pando_proto::{Epoch, Errno, Rank};
use pando_rpc::{Net, TcpNet};

use crate::subtrees::{merge, owner, quiet, ranks, split};
use crate::with_cluster;

/// The last byte that a file may have.
const END: u64 = (1 << 50) - 1;
const LARGE: usize = 9_000_000;

async fn sparse(client: &Client, path: &str) {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).open(client, path).await.unwrap();
    file.write_at(END, "x").await.unwrap();
    file.close().await.unwrap();
    assert_eq!(client.metadata(path).await.unwrap().len(), END + 1);
}

/// Objects of the data pool that live.
async fn objects(cluster: &LocalCluster) -> usize {
    let map = cluster.admin().get_map(Epoch(0)).await.unwrap();
    let net: Arc<dyn Net> = Arc::new(TcpNet);
    let stamp = ClusterStamp::default();
    stamp.bind(&map.cluster_id);
    let mut count = 0;
    for pg in map.pgs.keys().filter(|pg| pg.pool == DATA_POOL) {
        let (_, address) = map.primary(*pg).expect("a primary");
        let mut service =
            ObjectServiceClient::with_interceptor(pando_rpc::channel(&net, address).unwrap(), stamp.clone());
        let request = ListRequest { pool: pg.pool.0, pg_index: pg.index, ..ListRequest::default() };
        count += service.list(request).await.unwrap().into_inner().objects.len();
    }
    count
}

/// Fails by the deadline of the test.
async fn until_gone(cluster: &LocalCluster) {
    while objects(cluster).await > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn i7_a_byte_at_the_very_end_of_a_file_holds_up_nothing() {
    let cluster = with_cluster(ranks(2), |cluster, client| async move {
        quiet(&cluster).await;
        client.create_dir_all("/p/a").await.unwrap();
        // More than are purged at once.
        for number in 0..20 {
            sparse(&client, &format!("/p/a/sparse{number}")).await;
        }
        client.write("/p/a/large", vec![1; LARGE]).await.unwrap();
        sparse(&client, "/p/a/cut").await;
        assert!(objects(&cluster).await > 22);
        for number in 0..20 {
            client.remove_file(format!("/p/a/sparse{number}")).await.unwrap();
        }
        client.remove_file("/p/a/large").await.unwrap();
        client.truncate("/p/a/cut", 10).await.unwrap();
        client.truncate("/p/a/cut", END).await.unwrap();
        assert_eq!(client.metadata("/p/a/cut").await.unwrap().len(), END);

        let a = split(&client, "/p/a").await.unwrap();
        cluster.admin().admin().move_subtree(a, Rank(1), true).await.unwrap();
        assert_eq!(owner(&client, "/p/a").await, (a, Rank(1)));
        client.truncate("/p/a/cut", 0).await.unwrap();
        until_gone(&cluster).await;

        // What is written from now on is not taken for a late write.
        client.write("/p/a/cut", vec![2; LARGE]).await.unwrap();
        assert_eq!(client.read("/p/a/cut").await.unwrap(), vec![2; LARGE]);
        client.remove_file("/p/a/cut").await.unwrap();
        until_gone(&cluster).await;
        cluster.admin().admin().move_subtree(a, owner(&client, "/p").await.1, true).await.unwrap();
        merge(&client, "/p/a", a).await.unwrap();
        assert_eq!(client.read("/p/a/cut").await.unwrap_err().errno(), Errno::ENOENT);
        cluster
    });
    cluster.await.shutdown().await;
}
