//! The client against a whole cluster in this process.

mod appends;
mod directories;
mod faults;
mod handovers;
mod large;
mod names;
mod random;
mod whole;

use std::time::Duration;

use pando_client::Client;
use pando_local_cluster::{LocalCluster, Options};

/// A cluster of one OSD in memory and a client.
async fn small() -> (LocalCluster, Client) {
    let options = Options { osds: 1, replicas: 1, ..Options::default() };
    let cluster = within(LocalCluster::start(options.memory())).await.expect("a cluster");
    let client = Client::connect(&cluster.mon_addresses()).await.expect("a client");
    (cluster, client)
}

async fn end(cluster: LocalCluster, client: Client) {
    within(client.close()).await.expect("the session ends");
    within(cluster.shutdown()).await;
}

/// Every wait has a deadline.
async fn within<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), call).await.expect("within 60 s")
}

/// Bytes that tell where they belong.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
