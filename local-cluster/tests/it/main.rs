//! The whole cluster in one process, through the client library.

mod basics;
mod failures;
mod handles;
mod processes;
mod rank_processes;
mod sparse;
mod subtrees;
mod transactions;
mod usage;

use std::future::Future;
use std::time::Duration;

use pando_client::Client;
use pando_local_cluster::{LocalCluster, Options};

/// Longest that any of these tests may take.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs a test body against a cluster, with a deadline, and stops the cluster.
async fn with_cluster<F, Fut>(options: Options, body: F) -> LocalCluster
where
    F: FnOnce(LocalCluster, Client) -> Fut,
    Fut: Future<Output = LocalCluster>,
{
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .try_init();
    let test = async {
        let cluster = LocalCluster::start(options).await.expect("the cluster starts");
        let client = Client::connect(cluster.mon_addresses()).await.expect("a client connects");
        body(cluster, client).await
    };
    tokio::time::timeout(DEADLINE, test).await.expect("the test ends in time")
}
