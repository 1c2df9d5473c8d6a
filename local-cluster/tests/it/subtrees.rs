//! Subtrees split, move, merge and change hands while clients work (issue 3; R10 to R16, R19).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pando_client::{Client, OpenOptions};
use pando_local_cluster::{LocalCluster, Options};
use pando_proto::mds::subtree_service_client::SubtreeServiceClient;
use pando_proto::mds::{MergeRequest, SplitRequest, Target};
use pando_proto::{Errno, Error, Rank, Reason, SubtreeId};
use pando_rpc::{Net, TcpNet};

use crate::with_cluster;

pub(crate) fn ranks(mds: u32) -> Options {
    Options { osds: 1, replicas: 1, mds, metadata_pgs: 4, data_pgs: 4, ..Options::default().memory() }
}

pub(crate) async fn quiet(cluster: &LocalCluster) {
    cluster.admin().admin().set_setting("balancer_mode", "0").await.unwrap();
}

async fn service(address: &str) -> SubtreeServiceClient<tonic::transport::Channel> {
    let net: Arc<dyn Net> = Arc::new(TcpNet);
    SubtreeServiceClient::new(pando_rpc::channel(&net, address).unwrap())
}

/// Asks the owner of `path` to split it off; asks again while somebody else is at it.
pub(crate) async fn split(client: &Client, path: &str) -> Result<SubtreeId, Error> {
    loop {
        let place = client.locate(path).await.unwrap();
        let request = SplitRequest { target: Some(Target { base: place.ino.0, ..Target::default() }) };
        match service(&place.address).await.split(request).await {
            Ok(response) => return Ok(SubtreeId(response.into_inner().subtree)),
            Err(status) => match Error::from_tonic(&status) {
                error
                    if matches!(
                        error.reason,
                        Reason::InUse | Reason::NotOwner | Reason::Unavailable | Reason::StaleEpoch
                    ) =>
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                error => return Err(error),
            },
        }
    }
}

pub(crate) async fn merge(client: &Client, path: &str, subtree: SubtreeId) -> Result<(), Error> {
    loop {
        let place = client.locate(path).await.unwrap();
        let request = MergeRequest { subtree: subtree.0 };
        match service(&place.address).await.merge(request).await {
            Ok(_) => return Ok(()),
            Err(status) => match Error::from_tonic(&status) {
                error if matches!(error.reason, Reason::NotOwner | Reason::Unavailable | Reason::StaleEpoch) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                error => return Err(error),
            },
        }
    }
}

pub(crate) async fn owner(client: &Client, path: &str) -> (SubtreeId, Rank) {
    let place = client.locate(path).await.unwrap();
    (place.subtree, place.rank)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_directory_becomes_a_subtree_moves_and_comes_back() {
    let cluster = with_cluster(ranks(3), |cluster, client| async move {
        quiet(&cluster).await;
        let admin = cluster.admin().admin();
        for dir in ["a", "b", "c"] {
            client.create_dir_all(format!("/p/{dir}/sub")).await.unwrap();
            for file in 0..20 {
                client.write(format!("/p/{dir}/sub/{file}"), format!("{dir}{file}")).await.unwrap();
            }
        }
        let mut open = OpenOptions::new();
        let file = open.read(true).write(true).open(&client, "/p/a/sub/0").await.unwrap();
        let gone = open.open(&client, "/p/a/sub/1").await.unwrap();
        client.remove_file("/p/a/sub/1").await.unwrap();

        let a = split(&client, "/p/a").await.unwrap();
        assert_eq!(owner(&client, "/p/a/sub").await.0, a);
        assert_eq!(owner(&client, "/p/b").await.0, SubtreeId(1));
        assert_eq!(client.read("/p/a/sub/7").await.unwrap(), "a7");
        assert_eq!(file.read_at(0, 10).await.unwrap(), "a0", "R19: handles go along");
        assert_eq!(gone.read_at(0, 10).await.unwrap(), "a1", "R19: so do files without a name");
        let again = split(&client, "/p/a").await.unwrap_err();
        assert_eq!(again.reason, Reason::InvalidRequest, "{again}");
        assert_eq!(split(&client, "/p/b/sub/3").await.unwrap_err().reason, Reason::InvalidRequest, "a file");

        for to in [1, 2, 0, 1] {
            admin.move_subtree(a, Rank(to), true).await.unwrap();
            assert_eq!(owner(&client, "/p/a").await, (a, Rank(to)));
            assert_eq!(client.read("/p/a/sub/7").await.unwrap(), "a7");
            client.write(format!("/p/a/on{to}"), "new").await.unwrap();
            assert_eq!(file.read_at(0, 10).await.unwrap(), "a0");
            assert_eq!(gone.read_at(0, 10).await.unwrap(), "a1");
        }
        file.write_at(0, "A0").await.unwrap();
        assert_eq!(client.read("/p/a/sub/0").await.unwrap(), "A0");
        file.close().await.unwrap();
        gone.close().await.unwrap();

        // The way to it changes: nobody follows the old one.
        client.rename("/p", "/q").await.unwrap();
        assert_eq!(client.read("/q/a/sub/7").await.unwrap(), "a7");
        assert_eq!(client.read("/p/a/sub/7").await.unwrap_err().errno(), Errno::ENOENT, "R16");
        assert_eq!(client.read("/q/a/../b/sub/7").await.unwrap(), "b7", "`..` leads out of it");
        client.symlink("/q/a/sub", "/link").await.unwrap();
        assert_eq!(client.read("/link/9").await.unwrap(), "a9");
        assert_eq!(client.remove_dir("/q/a").await.unwrap_err().errno(), Errno::ENOTEMPTY);
        let empty = {
            client.create_dir("/q/empty").await.unwrap();
            split(&client, "/q/empty").await.unwrap()
        };
        admin.move_subtree(empty, Rank(2), true).await.unwrap();
        client.remove_dir("/q/empty").await.expect("R21: an empty one comes back first");
        assert_eq!(client.metadata("/q/empty").await.unwrap_err().errno(), Errno::ENOENT);

        // Back again.
        let refused = merge(&client, "/q/a", a).await.unwrap_err();
        assert_eq!(refused.reason, Reason::InUse, "they have different owners: {refused}");
        admin.move_subtree(a, Rank(0), true).await.unwrap();
        let parent = owner(&client, "/q").await.1;
        admin.move_subtree(a, parent, true).await.unwrap();
        merge(&client, "/q/a", a).await.unwrap();
        assert_eq!(owner(&client, "/q/a/sub").await.0, SubtreeId(1));
        assert_eq!(client.read("/q/a/sub/7").await.unwrap(), "a7");
        let mut names = Vec::new();
        let mut listing = client.read_dir("/q/a").await.unwrap();
        while let Some(entry) = listing.next_entry().await.unwrap() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        assert_eq!(names, ["on0", "on1", "on2", "sub"]);
        client.remove_dir_all("/q/a").await.unwrap();
        cluster
    })
    .await;
    cluster.shutdown().await;
}

/// Works in a directory of its own and knows what has to be in it.
async fn work(client: Client, dir: String, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    let mut model: BTreeMap<String, String> = BTreeMap::new();
    let mut step = 0u64;
    while !stop.load(Ordering::Relaxed) {
        step += 1;
        let name = format!("f{}", step % 37);
        let path = format!("{dir}/{name}");
        let context = |what: &str| format!("{what} {path}, step {step}");
        match step % 5 {
            0 | 1 => {
                let body = format!("{dir} {step}");
                client.write(&path, &body).await.unwrap_or_else(|e| panic!("{}: {e}", context("write")));
                model.insert(name, body);
            }
            2 => {
                let other = format!("g{}", step % 11);
                let renamed = client.rename(&path, format!("{dir}/{other}")).await;
                match model.remove(&name) {
                    Some(body) => {
                        renamed.unwrap_or_else(|e| panic!("{}: {e}", context("rename")));
                        model.insert(other, body);
                    }
                    None => assert_eq!(renamed.unwrap_err().errno(), Errno::ENOENT, "{}", context("rename")),
                }
            }
            3 => {
                let removed = client.remove_file(&path).await;
                match model.remove(&name) {
                    Some(_) => removed.unwrap_or_else(|e| panic!("{}: {e}", context("unlink"))),
                    None => assert_eq!(removed.unwrap_err().errno(), Errno::ENOENT, "{}", context("unlink")),
                }
            }
            _ => {
                for (name, body) in &model {
                    let read = client.read(format!("{dir}/{name}")).await;
                    let read = read.unwrap_or_else(|e| panic!("{} {name}: {e}", context("read")));
                    assert_eq!(read, body.as_bytes(), "{} {name}", context("read"));
                }
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    let mut names = Vec::new();
    let mut listing = client.read_dir(&dir).await.unwrap();
    while let Some(entry) = listing.next_entry().await.unwrap() {
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    assert_eq!(names, model.into_keys().collect::<Vec<_>>(), "{dir}");
}

struct Workers {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Workers {
    async fn start(cluster: &LocalCluster, dirs: &[&str]) -> Self {
        let (stop, done) = (Arc::default(), Arc::default());
        let mut tasks = Vec::new();
        for dir in dirs {
            let client = Client::connect(cluster.mon_addresses()).await.unwrap();
            client.create_dir_all(dir).await.unwrap();
            tasks.push(tokio::spawn(work(client, (*dir).to_owned(), Arc::clone(&stop), Arc::clone(&done))));
        }
        Self { stop, done, tasks }
    }

    /// Lets them do so many more steps.
    async fn progress(&self, steps: u64) {
        let goal = self.done.load(Ordering::Relaxed) + steps;
        while self.done.load(Ordering::Relaxed) < goal {
            assert!(self.tasks.iter().all(|task| !task.is_finished()), "a worker has failed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("the worker found what it had left");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nobody_notices_that_subtrees_split_move_and_merge() {
    let cluster = with_cluster(ranks(3), |cluster, client| async move {
        quiet(&cluster).await;
        let admin = cluster.admin().admin();
        let dirs = ["/w/0", "/w/1", "/w/2", "/w/3"];
        let workers = Workers::start(&cluster, &dirs).await;
        workers.progress(50).await;
        let mut subtrees = Vec::new();
        for dir in dirs {
            subtrees.push(split(&client, dir).await.unwrap());
            workers.progress(20).await;
        }
        for round in 0..6u32 {
            for (at, subtree) in (0..).zip(&subtrees) {
                admin.move_subtree(*subtree, Rank((at + round) % 3), true).await.unwrap();
                workers.progress(5).await;
            }
        }
        let parent = owner(&client, "/w").await.1;
        for (dir, subtree) in dirs.iter().zip(&subtrees) {
            admin.move_subtree(*subtree, parent, true).await.unwrap();
            merge(&client, dir, *subtree).await.unwrap();
            workers.progress(20).await;
        }
        workers.finish().await;
        cluster
    })
    .await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn survivors_take_over_what_a_dead_rank_served() {
    let cluster = with_cluster(Options { lease_millis: Some(500), ..ranks(3) }, |mut cluster, client| async move {
        quiet(&cluster).await;
        let dirs = ["/w/0", "/w/1", "/w/2"];
        let workers = Workers::start(&cluster, &dirs).await;
        for (rank, dir) in (0..).zip(dirs) {
            let subtree = split(&client, dir).await.unwrap();
            cluster.admin().admin().move_subtree(subtree, Rank(rank), true).await.unwrap();
        }
        for rank in [1, 2, 0] {
            workers.progress(50).await;
            cluster.kill_mds(rank).await.unwrap();
            workers.progress(100).await;
            assert_ne!(owner(&client, dirs[rank as usize]).await.1, Rank(rank));
            cluster.restart_mds(rank).await.unwrap();
        }
        workers.progress(50).await;
        workers.finish().await;
        cluster
    })
    .await;
    cluster.shutdown().await;
}

/// How many child subtrees of `parent` each rank has.
async fn dealt(cluster: &LocalCluster, parent: SubtreeId) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for subtree in cluster.admin().admin().list_subtrees().await.unwrap() {
        if subtree.parent == parent.0 {
            *counts.entry(subtree.owner).or_default() += 1;
        }
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn idle_directories_are_spread_and_those_made_later_too() {
    let cluster = with_cluster(ranks(3), |cluster, client| async move {
        let admin = cluster.admin().admin();
        admin.set_setting("balancer_interval_millis", "200").await.unwrap();
        for dir in 0..6 {
            client.create_dir_all(format!("/s/.{dir}/below")).await.unwrap();
        }
        client.write("/s/file", "no directory").await.unwrap();
        let address = client.locate("/s").await.unwrap().address;
        let status = service(&address).await.split(SplitRequest { target: None }).await.unwrap_err();
        assert_eq!(Error::from_tonic(&status).reason, Reason::InvalidRequest, "no directory is meant: {status}");
        let spread = split(&client, "/s").await.unwrap();
        admin.spread_subtree(spread, true).await.unwrap();
        // The deadline is that of the whole test.
        let wanted = |counts: [usize; 3]| (0..).zip(counts).collect::<BTreeMap<u32, usize>>();
        while dealt(&cluster, spread).await != wanted([2, 2, 2]) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for dir in 6..9 {
            client.create_dir(format!("/s/{dir}")).await.unwrap();
        }
        while dealt(&cluster, spread).await != wanted([3, 3, 3]) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for dir in 0..6 {
            client.metadata(format!("/s/.{dir}/below")).await.expect("what is in them is still there");
        }
        // Nobody wants it any more: what is made now stays in it, while another one that comes after it is spread.
        admin.spread_subtree(spread, false).await.unwrap();
        client.create_dir_all("/s/plain").await.unwrap();
        client.create_dir_all("/t/one").await.unwrap();
        let other = split(&client, "/t").await.unwrap();
        admin.spread_subtree(other, true).await.unwrap();
        while owner(&client, "/t/one").await.0 == other {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(owner(&client, "/s/plain").await.0, spread);
        cluster
    })
    .await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_that_others_wait_for_is_shown_and_can_be_ended() {
    let cluster = with_cluster(ranks(2), |cluster, client| async move {
        quiet(&cluster).await;
        let admin = cluster.admin().admin();
        for dir in ["/from", "/to"] {
            client.create_dir(dir).await.unwrap();
            split(&client, dir).await.unwrap();
        }
        client.write("/from/f", "f").await.unwrap();
        // One that never says a word, as of a client that was killed.
        let (dead, _) = cluster.admin().register_client("a client that was killed").await.unwrap();
        let from = owner(&client, "/from").await.0;
        admin.move_subtree(from, Rank(1), true).await.unwrap();
        let awaited = loop {
            let sessions = admin.list_sessions().await.unwrap();
            let one = sessions.into_iter().find(|one| one.client_id == dead.0).expect("it is listed");
            if one.awaited_by.contains(&1) {
                break one;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!((awaited.description.as_str(), awaited.of_rank), ("a client that was killed", false));
        let short = Client::builder(cluster.mon_addresses()).deadline(Duration::from_secs(2)).connect().await.unwrap();
        let refused = short.rename("/from/f", "/to/f").await.unwrap_err();
        assert!(refused.to_string().contains("pando session ls"), "R19: {refused}");
        admin.evict_session(dead).await.unwrap();
        client.rename("/from/f", "/to/f").await.expect("nobody is waited for any more");
        assert!(admin.list_sessions().await.unwrap().iter().all(|one| one.client_id != dead.0));
        admin.evict_session(dead).await.expect("idempotent");
        let rank = admin.list_sessions().await.unwrap().into_iter().find(|one| one.of_rank).expect("ranks have some");
        let refused = admin.evict_session(pando_proto::ClientId(rank.client_id)).await.unwrap_err();
        assert_eq!(refused.reason, Reason::InUse, "{refused}");
        cluster
    })
    .await;
    cluster.shutdown().await;
}
