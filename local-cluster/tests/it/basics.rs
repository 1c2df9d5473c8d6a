//! Files, directories, restarts.

use pando_client::OpenOptions;
use pando_local_cluster::{LocalCluster, Options};
use pando_proto::{Errno, Reason};

use crate::with_cluster;

fn small() -> Options {
    Options { osds: 1, replicas: 1, metadata_pgs: 4, data_pgs: 4, ..Options::default().memory() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_was_written_is_read_back_small_and_large() {
    let cluster = with_cluster(small(), |cluster, client| async move {
        client.create_dir_all("/a/b/c").await.unwrap();
        for length in [0, 1, 4096, 4097, 100_000, 9_000_000] {
            let path = format!("/a/b/c/{length}");
            let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            client.write(&path, &data).await.unwrap();
            assert_eq!(client.read(&path).await.unwrap(), data, "{path}");
            assert_eq!(client.metadata(&path).await.unwrap().len(), length);
        }
        assert_eq!(client.read("/a/b/none").await.unwrap_err().errno(), Errno::ENOENT);
        assert_eq!(client.remove_dir("/a/b").await.unwrap_err().errno(), Errno::ENOTEMPTY);
        let error = client.symlink("", "/a/link").await.unwrap_err();
        assert_eq!(error.errno(), Errno::ENOENT, "as symlink(2) says");
        assert!(error.message().contains("the target of a symlink must not be empty"), "{error}");
        client.remove_dir_all("/a").await.unwrap();
        assert!(!client.try_exists("/a").await.unwrap());
        cluster
    });
    cluster.await.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_that_outgrows_its_inline_body_keeps_every_byte() {
    let cluster = with_cluster(small(), |cluster, client| async move {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).open(&client, "/grows").await.unwrap();
        let data: Vec<u8> = (0..50_000u32).map(|at| (at / 7) as u8).collect();
        for (number, piece) in data.chunks(1500).enumerate() {
            file.write_at(number as u64 * 1500, piece).await.unwrap();
        }
        assert_eq!(file.read_at(0, data.len()).await.unwrap(), data);
        file.close().await.unwrap();
        assert_eq!(client.read("/grows").await.unwrap(), data);
        client.truncate("/grows", 10).await.unwrap();
        client.truncate("/grows", 20).await.unwrap();
        assert_eq!(client.read("/grows").await.unwrap(), [&data[..10], &[0; 10]].concat(), "no old bytes come back");
        cluster
    });
    cluster.await.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stopped_cluster_comes_back_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { data: Some(dir.path().join("data")), osds: 3, ..Options::default() };
    let cluster = with_cluster(options.clone(), |cluster, client| async move {
        client.create_dir_all("/x/y").await.unwrap();
        client.write("/x/y/small", b"small").await.unwrap();
        client.write("/x/y/large", vec![7; 300_000]).await.unwrap();
        client.rename("/x/y/small", "/x/renamed").await.unwrap();
        cluster
    });
    cluster.await.shutdown().await;
    let cluster = with_cluster(options, |cluster, client| async move {
        assert_eq!(client.read("/x/renamed").await.unwrap(), &b"small"[..]);
        assert_eq!(client.read("/x/y/large").await.unwrap(), vec![7; 300_000]);
        assert_eq!(client.read("/x/y/small").await.unwrap_err().errno(), Errno::ENOENT);
        client.write("/x/y/more", b"more").await.unwrap();
        cluster
    });
    cluster.await.shutdown().await;
}

#[tokio::test]
async fn options_that_make_no_cluster_are_refused() {
    for options in [
        Options { mons: 2, ..Options::default() },
        Options { osds: 0, ..Options::default() },
        Options { replicas: 4, osds: 5, ..Options::default() },
        Options { replicas: 3, osds: 2, ..Options::default() },
        Options { mds: 65, ..Options::default() },
        Options { mds_cache_bytes: 0, ..Options::default() },
        Options { inline_limit: Some(99 << 30), ..Options::default() },
        Options { lease_millis: Some(1), ..Options::default() },
    ] {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let options = Options { data: Some(data.clone()), ..options };
        let error = LocalCluster::start(options).await.err().expect("refused");
        assert!(!data.exists(), "a refused start leaves nothing");
        assert!(error.message.contains("use"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_occupied_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = LocalCluster::start(Options { mon_port: port, ..small() }).await.err().expect("refused");
    assert!(error.message.contains("in use"), "{error}");
    assert!(error.message.contains(&port.to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn single_ranks_are_started_and_stopped() {
    let options = Options { mds: 2, osds: 1, replicas: 1, ..Options::default().memory() };
    let cluster = with_cluster(options, |mut cluster, client| async move {
        client.write("/file", b"kept").await.unwrap();
        assert_eq!(cluster.start_mds(1).await.unwrap_err().reason, Reason::InUse);
        cluster.start_mds(2).await.unwrap();
        assert_eq!(cluster.rank_addresses().into_keys().collect::<Vec<_>>(), [0, 1, 2]);
        // What rank 0 owns goes to another one, without waiting for its lease.
        cluster.stop_mds(0).await.unwrap();
        assert_eq!(client.read("/file").await.unwrap(), "kept");
        assert_ne!(client.locate("/file").await.unwrap().rank.0, 0);
        assert_eq!(cluster.stop_mds(0).await.unwrap_err().reason, Reason::UnknownId);
        cluster.start_mds(0).await.unwrap();
        assert_eq!(cluster.rank_addresses().len(), 3);
        cluster
    });
    cluster.await.shutdown().await;
}
