//! Open files while their subtree is split off, moved, merged back, and while ranks die (R10, R19).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pando_client::{Client, File, OpenOptions, Rank, Reason, SubtreeId};
use pando_local_cluster::{LocalCluster, Options};
use pando_proto::Error;
use pando_proto::mds::subtree_service_client::SubtreeServiceClient;
use pando_proto::mds::{MergeRequest, SplitRequest, Target};
use pando_rpc::{Net, TcpNet};

use crate::{pattern, within};

async fn three_ranks() -> (LocalCluster, Client) {
    let options = Options { osds: 1, replicas: 1, mds: 3, lease_millis: Some(500), ..Options::default() };
    let cluster = within(LocalCluster::start(options.memory())).await.expect("a cluster");
    let client = Client::connect(&cluster.mon_addresses()).await.expect("a client");
    // What moves is what the test moves.
    cluster.admin().admin().set_setting("balancer_mode", "0").await.expect("a setting");
    (cluster, client)
}

async fn service(address: &str) -> SubtreeServiceClient<tonic::transport::Channel> {
    let net: Arc<dyn Net> = Arc::new(TcpNet);
    SubtreeServiceClient::new(pando_rpc::channel(&net, address).expect("an address"))
}

/// Repeats what the owner refuses for the moment.
async fn until_done<T, F: Future<Output = Result<T, tonic::Status>>>(mut call: impl FnMut() -> F) -> T {
    within(async {
        loop {
            match call().await {
                Ok(value) => return value,
                Err(status) => {
                    let error = Error::from_tonic(&status);
                    assert!(error.is_retryable() || error.reason == Reason::InUse, "{error}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    })
    .await
}

async fn split(client: &Client, path: &str) -> SubtreeId {
    until_done(|| async move {
        let place = client.locate(path).await.expect("it is there");
        let target = Target { base: place.ino.0, ..Target::default() };
        let split = service(&place.address).await.split(SplitRequest { target: Some(target) }).await?;
        Ok(SubtreeId(split.into_inner().subtree))
    })
    .await
}

async fn merge(cluster: &LocalCluster, client: &Client, path: &str, parent: &str) {
    until_done(|| async move {
        let (child, above) = (client.locate(path).await, client.locate(parent).await);
        let (child, above) = (child.expect("it is there"), above.expect("it is there"));
        if child.rank != above.rank {
            let _ = cluster.admin().admin().move_subtree(child.subtree, above.rank, true).await;
        }
        service(&above.address).await.merge(MergeRequest { subtree: child.subtree.0 }).await
    })
    .await;
}

/// Files of each kind, all open.
struct Open {
    client: Client,
    inline: File,
    large: File,
    appended: File,
    removed: File,
    expected: Vec<u8>,
}

impl Open {
    async fn new(client: &Client, dir: &str) -> Self {
        client.create_dir_all(dir).await.unwrap();
        let open = |name: &str| {
            let (client, path) = (client.clone(), format!("{dir}/{name}"));
            async move { OpenOptions::new().read(true).write(true).create(true).open(&client, path).await.unwrap() }
        };
        let (inline, large, removed) = (open("inline").await, open("large").await, open("removed").await);
        let path = format!("{dir}/appended");
        let appended = OpenOptions::new().read(true).append(true).create(true).open(client, path).await.unwrap();
        large.write_at(0, pattern(1, 300_000)).await.unwrap();
        removed.write_at(0, b"still here").await.unwrap();
        client.remove_file(format!("{dir}/removed")).await.unwrap();
        Self { client: client.clone(), inline, large, appended, removed, expected: Vec::new() }
    }

    /// Uses all of them once, and one more that is opened and closed.
    async fn step(&mut self, dir: &str, step: u64) {
        let line = format!("{step}\n");
        let at = self.appended.append_at_end(line.clone()).await.unwrap();
        assert_eq!(at, self.expected.len() as u64, "I4: each append once");
        self.expected.extend_from_slice(line.as_bytes());
        self.inline.write_at(0, line.as_bytes()).await.unwrap();
        assert_eq!(self.inline.read_at(0, line.len()).await.unwrap(), line);
        let end = 300_000 + step * 10;
        self.large.write_at(end, b"0123456789").await.unwrap();
        assert_eq!(self.large.metadata().await.unwrap().len(), end + 10, "R23");
        assert_eq!(self.removed.read_at(0, 100).await.unwrap(), "still here", "R19");
        let short = OpenOptions::new().read(true).open(&self.client, format!("{dir}/large")).await.unwrap();
        assert_eq!(short.read_at(end, 10).await.unwrap(), "0123456789");
        short.close().await.unwrap();
    }

    async fn end(self) {
        assert_eq!(self.appended.read_at(0, self.expected.len() + 1).await.unwrap(), self.expected);
        for file in [self.inline, self.large, self.appended, self.removed] {
            file.close().await.unwrap();
        }
    }
}

/// Works with open files of a directory until it is told to stop.
struct Worker {
    stop: Arc<AtomicBool>,
    steps: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Worker {
    async fn start(cluster: &LocalCluster, dir: &'static str) -> Self {
        let client = Client::connect(&cluster.mon_addresses()).await.expect("a client");
        let mut open = Open::new(&client, dir).await;
        let (stop, steps) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let task = tokio::spawn({
            let (stop, steps) = (Arc::clone(&stop), Arc::clone(&steps));
            async move {
                while !stop.load(Ordering::Relaxed) {
                    open.step(dir, steps.fetch_add(1, Ordering::Relaxed)).await;
                }
                open.end().await;
                client.close().await.unwrap();
            }
        });
        Self { stop, steps, task }
    }

    async fn progress(&self, more: u64) {
        let goal = self.steps.load(Ordering::Relaxed) + more;
        within(async {
            while self.steps.load(Ordering::Relaxed) < goal {
                assert!(!self.task.is_finished(), "the worker has failed");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        within(self.task).await.expect("all was as it had to be");
    }
}

#[tokio::test]
async fn open_files_go_along_with_their_subtree() {
    let (cluster, client) = three_ranks().await;
    let admin = cluster.admin().admin();
    let worker = Worker::start(&cluster, "/a/b/c").await;
    for round in 0..3 {
        worker.progress(3).await;
        let outer = split(&client, "/a/b").await;
        worker.progress(3).await;
        admin.move_subtree(outer, Rank((round + 1) % 3), true).await.unwrap();
        let inner = split(&client, "/a/b/c").await;
        worker.progress(3).await;
        for to in [1, 2, 0] {
            admin.move_subtree(inner, Rank((to + round) % 3), true).await.unwrap();
            worker.progress(2).await;
        }
        let found = client.locate("/a/b/c/large").await.unwrap();
        assert_eq!((found.subtree, found.path), (inner, "large".into()));
        merge(&cluster, &client, "/a/b/c", "/a/b").await;
        worker.progress(2).await;
        merge(&cluster, &client, "/a/b", "/a").await;
        assert_eq!(client.locate("/a/b/c/large").await.unwrap().subtree, SubtreeId(1));
    }
    worker.progress(3).await;
    worker.finish().await;
    assert_eq!(client.read("/a/b/c/inline").await.unwrap().last(), Some(&b'\n'));
    crate::end(cluster, client).await;
}

#[tokio::test]
async fn open_files_outlive_the_death_of_any_rank() {
    let (mut cluster, client) = three_ranks().await;
    let workers = [Worker::start(&cluster, "/a").await, Worker::start(&cluster, "/b").await];
    for (path, to) in [("/a", 1), ("/b", 2)] {
        let subtree = split(&client, path).await;
        cluster.admin().admin().move_subtree(subtree, Rank(to), true).await.unwrap();
    }
    for victim in [1, 0, 2] {
        for worker in &workers {
            worker.progress(3).await;
        }
        cluster.kill_mds(victim).await.unwrap();
        for worker in &workers {
            worker.progress(3).await;
        }
        within(cluster.restart_mds(victim)).await.unwrap();
    }
    for worker in workers {
        worker.progress(3).await;
        worker.finish().await;
    }
    crate::end(cluster, client).await;
}
