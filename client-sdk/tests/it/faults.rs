use std::time::Duration;

use bytes::Bytes;
use pando_client::{Client, Errno, OpenOptions, Reason};
use pando_local_cluster::{LocalCluster, Options};

use crate::{pattern, small, within};

async fn short_leases() -> (LocalCluster, Client) {
    let options = Options { osds: 1, replicas: 1, lease_millis: Some(500), ..Options::default() };
    let cluster = within(LocalCluster::start(options.memory())).await.expect("a cluster");
    let client = Client::connect(&cluster.mon_addresses()).await.expect("a client");
    (cluster, client)
}

#[tokio::test]
async fn calls_outlive_a_crash_of_the_mds_and_happen_once() {
    let (mut cluster, client) = short_leases().await;
    client.create_dir("/d").await.unwrap();
    let load = |worker: u32| {
        let client = client.clone();
        tokio::spawn(async move {
            for number in 0..150 {
                let path = format!("/d/{worker}-{number}");
                // I4: a repeated create_new would fail with EEXIST if it happened twice.
                client.write_with(&path, Bytes::from(path.clone()), 0o644, true).await.unwrap();
                client.rename(&path, format!("{path}.done")).await.unwrap();
            }
        })
    };
    let workers: Vec<_> = (0..4).map(load).collect();
    for _ in 0..2 {
        let before = client.metadata("/d").await.unwrap().entries();
        within(async {
            while client.metadata("/d").await.unwrap().entries() < before + 20
                && !workers.iter().all(|worker| worker.is_finished())
            {}
        })
        .await;
        cluster.kill_mds(0).await.unwrap();
        within(cluster.restart_mds(0)).await.unwrap();
    }
    for worker in workers {
        within(worker).await.unwrap();
    }
    assert_eq!(client.metadata("/d").await.unwrap().entries(), 600);
    for worker in 0..4 {
        let path = format!("/d/{worker}-149");
        assert_eq!(client.read(format!("{path}.done")).await.unwrap(), path);
    }
    crate::end(cluster, client).await;
}

#[tokio::test]
async fn open_files_outlive_a_crash_of_the_mds() {
    let (mut cluster, client) = short_leases().await;
    client.write("/inline", "abc").await.unwrap();
    client.write("/gone", "still here").await.unwrap();
    client.write("/large", pattern(1, 100_000)).await.unwrap();
    let open = |path| {
        let client = client.clone();
        async move { OpenOptions::new().read(true).write(true).open(&client, path).await.unwrap() }
    };
    let (inline, gone, large) = (open("/inline").await, open("/gone").await, open("/large").await);
    client.remove_file("/gone").await.unwrap();
    cluster.kill_mds(0).await.unwrap();
    within(cluster.restart_mds(0)).await.unwrap();
    within(inline.write_at(3, b"def")).await.unwrap();
    assert_eq!(client.read("/inline").await.unwrap(), "abcdef");
    assert_eq!(within(gone.read_at(0, 100)).await.unwrap(), "still here", "R19");
    within(large.write_at(100_000, b"more")).await.unwrap();
    assert_eq!(client.metadata("/large").await.unwrap().len(), 100_004);
    for file in [inline, gone, large] {
        within(file.close()).await.unwrap();
    }
    crate::end(cluster, client).await;
}

#[tokio::test]
async fn without_an_mds_a_call_ends_at_its_deadline() {
    let (mut cluster, client) = short_leases().await;
    client.write("/f", "x").await.unwrap();
    cluster.kill_mds(0).await.unwrap();
    let impatient = client.with_deadline(Duration::from_millis(300));
    let error = within(impatient.read("/f")).await.unwrap_err();
    assert_eq!(error.errno(), Errno::ETIMEDOUT, "{error}");
    within(cluster.restart_mds(0)).await.unwrap();
    assert_eq!(within(client.read("/f")).await.unwrap(), "x");
    crate::end(cluster, client).await;
}

#[tokio::test]
async fn a_closed_session_is_refused_and_leaves_others_alone() {
    let (cluster, client) = small().await;
    let other = Client::connect(&cluster.mon_addresses()).await.unwrap();
    other.write("/f", "x").await.unwrap();
    let clone = other.clone();
    within(other.close()).await.unwrap();
    assert_eq!(clone.read("/f").await.unwrap_err().reason(), Reason::StaleSession);
    assert_eq!(client.read("/f").await.unwrap(), "x");
    crate::end(cluster, client).await;
}

#[tokio::test]
async fn nobody_there_is_an_error_with_a_deadline() {
    let connecting = Client::builder("127.0.0.1:1").connect_limit(Duration::from_millis(300)).connect();
    let error = within(connecting).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(Client::connect("").await.is_err());
    assert!(Client::connect("no address").await.is_err());
}

#[tokio::test]
async fn large_files_outlive_a_crash_of_an_osd() {
    let options = Options { osds: 3, replicas: 3, lease_millis: Some(500), ..Options::default() };
    let mut cluster = within(LocalCluster::start(options.memory())).await.expect("a cluster");
    let client = Client::connect(&cluster.mon_addresses()).await.expect("a client");
    let writer = tokio::spawn({
        let client = client.clone();
        async move {
            for number in 0..30 {
                client.write(format!("/{number}"), pattern(number, 300_000)).await.unwrap();
            }
        }
    });
    within(async { while !client.try_exists("/5").await.unwrap() {} }).await;
    cluster.kill_osd(1).await.unwrap();
    within(writer).await.unwrap();
    for number in 0..30 {
        let read = within(client.read(format!("/{number}"))).await.unwrap();
        assert!(read == pattern(number, 300_000), "I1: file {number}");
    }
    crate::end(cluster, client).await;
}
