//! Names and inodes of several subtrees in one operation (R15, R17, R18), also while ranks die.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pando_client::{Client, OpenOptions};
use pando_local_cluster::{LocalCluster, Options};
use pando_proto::{Errno, Rank, SubtreeId};

use crate::subtrees::{merge, owner, quiet, ranks, split};
use crate::with_cluster;

/// Directories `/a` and `/b`, subtrees at ranks 1 and 2.
pub(crate) async fn two(cluster: &LocalCluster, client: &Client) -> (SubtreeId, SubtreeId) {
    quiet(cluster).await;
    let mut subtrees = Vec::new();
    for (dir, rank) in [("/a", 1), ("/b", 2)] {
        client.create_dir(dir).await.unwrap();
        let subtree = split(client, dir).await.unwrap();
        cluster.admin().admin().move_subtree(subtree, Rank(rank), true).await.unwrap();
        subtrees.push(subtree);
    }
    (subtrees[0], subtrees[1])
}

async fn names(client: &Client, dir: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut listing = client.read_dir(dir).await.unwrap();
    while let Some(entry) = listing.next_entry().await.unwrap() {
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names
}

/// The map forgets what all have done.
async fn forgotten(cluster: &LocalCluster) {
    loop {
        let map = cluster.admin().get_map(Default::default()).await.unwrap();
        if map.transactions.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn files_and_symlinks_go_to_another_subtree() {
    let cluster = with_cluster(ranks(3), |cluster, client| async move {
        two(&cluster, &client).await;
        client.create_dir("/b/sub").await.unwrap();
        client.write("/a/small", "small").await.unwrap();
        let large = vec![7u8; 300_000];
        client.write("/a/large", large.clone()).await.unwrap();
        client.symlink("small", "/a/link").await.unwrap();
        client.write("/top", "top").await.unwrap();

        client.rename("/a/small", "/b/sub/little").await.unwrap();
        client.rename("/a/large", "/b/large").await.unwrap();
        client.rename("/a/link", "/b/link").await.unwrap();
        client.rename("/top", "/a/top").await.unwrap();
        assert_eq!(names(&client, "/a").await, ["top"]);
        assert_eq!(names(&client, "/b").await, ["large", "link", "sub"]);
        assert_eq!(client.read("/b/sub/little").await.unwrap(), "small");
        assert_eq!(client.read("/b/large").await.unwrap(), large);
        assert_eq!(client.read("/a/top").await.unwrap(), "top");
        assert_eq!(client.read_link("/b/link").await.unwrap().as_os_str(), "small");
        assert_eq!(client.read("/a/small").await.unwrap_err().errno(), Errno::ENOENT);

        // What is there is replaced, or not.
        client.write("/a/x", "x").await.unwrap();
        client.write("/b/x", "old").await.unwrap();
        client.rename("/a/x", "/b/x").await.unwrap();
        assert_eq!(client.read("/b/x").await.unwrap(), "x");
        let errno = |error: pando_client::Error| error.errno();
        client.write("/a/x", "x").await.unwrap();
        assert_eq!(client.rename_no_replace("/a/x", "/b/x").await.map_err(errno), Err(Errno::EEXIST));
        assert_eq!(client.rename("/a/x", "/b/sub").await.map_err(errno), Err(Errno::EISDIR));
        let missing = client.rename("/a/none", "/b/y").await.unwrap_err();
        assert_eq!((missing.errno(), missing.path()), (Errno::ENOENT, Some(&b"/a/none"[..])), "what is missing");
        assert_eq!(client.rename("/a/x", "/b/none/y").await.map_err(errno), Err(Errno::ENOENT));
        assert_eq!(client.rename("/a/x", "/b/x/y").await.map_err(errno), Err(Errno::ENOTDIR));

        // It lives on where it is now.
        client.write("/b/sub/little", "changed").await.unwrap();
        client.rename("/b/sub/little", "/a/back").await.unwrap();
        assert_eq!(client.read("/a/back").await.unwrap(), "changed");
        client.remove_file("/a/back").await.unwrap();
        client.remove_file("/b/large").await.unwrap();
        forgotten(&cluster).await;
        cluster
    })
    .await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn open_files_stay_open_on_their_way() {
    let cluster = with_cluster(ranks(3), |cluster, client| async move {
        two(&cluster, &client).await;
        client.write("/a/f", "one").await.unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&client, "/a/f").await.unwrap();
        let other = Client::connect(cluster.mon_addresses()).await.unwrap();
        other.rename("/a/f", "/b/f").await.unwrap();
        assert_eq!(file.read_at(0, 10).await.unwrap(), "one", "R15: the handle went along");
        file.write_at(0, "two").await.unwrap();
        assert_eq!(other.read("/b/f").await.unwrap(), "two");
        // R19: unlinked where it is now, and still open.
        other.rename("/b/f", "/a/g").await.unwrap();
        other.remove_file("/a/g").await.unwrap();
        assert_eq!(file.read_at(0, 10).await.unwrap(), "two");
        file.close().await.unwrap();
        forgotten(&cluster).await;
        cluster
    })
    .await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn directories_go_whole_to_another_subtree() {
    let cluster = with_cluster(ranks(3), |cluster, client| async move {
        let (a, b) = two(&cluster, &client).await;
        client.create_dir_all("/a/dir/deep").await.unwrap();
        for file in 0..30 {
            client.write(format!("/a/dir/{file}"), format!("{file}")).await.unwrap();
        }
        client.write("/a/dir/deep/f", "deep").await.unwrap();
        let errno = |error: pando_client::Error| error.errno();
        client.create_dir_all("/b/full/x").await.unwrap();
        client.write("/b/file", "").await.unwrap();
        client.create_dir("/b/empty").await.unwrap();
        assert_eq!(client.rename("/a/dir", "/b/full").await.map_err(errno), Err(Errno::ENOTEMPTY));
        assert_eq!(client.rename("/a/dir", "/b/file").await.map_err(errno), Err(Errno::ENOTDIR));
        assert_eq!(owner(&client, "/a/dir").await.0, a, "nothing was split for what was refused");

        client.rename("/a/dir", "/b/moved").await.unwrap();
        assert_eq!(names(&client, "/a").await, Vec::<String>::new());
        assert_eq!(names(&client, "/b").await, ["empty", "file", "full", "moved"]);
        assert_eq!(client.read("/b/moved/deep/f").await.unwrap(), "deep");
        assert_eq!(client.read("/b/moved/29").await.unwrap(), "29");
        assert_eq!(client.read("/a/dir/29").await.unwrap_err().errno(), Errno::ENOENT, "R16");
        assert_eq!(client.metadata("/b/moved/..").await.unwrap().ino(), client.metadata("/b").await.unwrap().ino());
        let dir = owner(&client, "/b/moved").await.0;
        assert!(dir != a && dir != b);

        // Onto an empty directory; within one subtree; back.
        client.rename("/b/moved", "/b/empty").await.unwrap();
        client.rename("/b/empty", "/b/full/inner").await.unwrap();
        assert_eq!(client.read("/b/full/inner/deep/f").await.unwrap(), "deep");
        assert_eq!(names(&client, "/b").await, ["file", "full"]);
        client.rename("/b/full/inner", "/a/dir").await.unwrap();
        assert_eq!(client.read("/a/dir/deep/f").await.unwrap(), "deep");
        assert_eq!(owner(&client, "/a/dir").await.0, dir);

        // R17: not into itself.
        assert_eq!(client.rename("/a/dir", "/a/dir/deep/x").await.map_err(errno), Err(Errno::EINVAL));
        assert_eq!(client.rename("/a", "/a/dir/x").await.map_err(errno), Err(Errno::EINVAL));
        let (one, two) = tokio::join!(client.rename("/a", "/b/a"), client.rename("/b", "/a/b"));
        let refused = [one, two].into_iter().filter_map(Result::err).map(errno).collect::<Vec<_>>();
        assert!(matches!(refused[..], [Errno::EINVAL | Errno::ENOENT]), "{refused:?}");
        let top = if client.try_exists("/a").await.unwrap() { "/a" } else { "/b/a" };
        assert_eq!(client.read(format!("{top}/dir/deep/f")).await.unwrap(), "deep");

        // It is merged where it is now, and is there.
        let parent = owner(&client, top).await.1;
        cluster.admin().admin().move_subtree(dir, parent, true).await.unwrap();
        merge(&client, &format!("{top}/dir"), dir).await.unwrap();
        assert_eq!(owner(&client, &format!("{top}/dir/deep")).await.0, a);
        assert_eq!(client.read(format!("{top}/dir/deep/f")).await.unwrap(), "deep");
        client.remove_dir_all(format!("{top}/dir")).await.unwrap();
        forgotten(&cluster).await;
        cluster
    })
    .await;
    cluster.shutdown().await;
}

/// Without a session, as grpcurl asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn unary_renames_and_links_cross_subtrees() {
    use pando_proto::mds::namespace_service_client::NamespaceServiceClient;
    use pando_proto::mds::{LinkRequest, RenameRequest, Target};
    let cluster = with_cluster(ranks(3), |cluster, client| async move {
        let (a, b) = two(&cluster, &client).await;
        client.write("/a/x", "x").await.unwrap();
        client.create_dir("/b/sub").await.unwrap();
        let admin = cluster.admin().admin();
        admin.move_subtree(a, Rank(0), true).await.unwrap();
        let address = client.locate("/").await.unwrap().address;
        let net: Arc<dyn pando_rpc::Net> = Arc::new(pando_rpc::TcpNet);
        let mut service = NamespaceServiceClient::new(pando_rpc::channel(&net, &address).unwrap());
        let at = |path: &str| Some(Target { base: 0, path: path.to_owned().into() });
        for rank in [0, 1] {
            admin.move_subtree(b, Rank(rank), true).await.unwrap();
            for (from, to) in [("a/x", "b/y"), ("a/x", "b/sub/y"), ("top", "b/y"), ("top", "b/sub/y")] {
                // They are served when this is answered.
                client.write(format!("/{from}"), format!("{rank} {from}")).await.unwrap();
                client.write("/b/served", "").await.unwrap();
                let request = RenameRequest { from: at(from), to: at(to), ..RenameRequest::default() };
                match service.rename(request).await {
                    Ok(_) => assert_eq!(client.read(format!("/{to}")).await.unwrap(), format!("{rank} {from}")),
                    // It says who knows.
                    Err(status) => {
                        let error = pando_proto::Error::from_tonic(&status);
                        assert!(
                            rank == 1 && error.reason == pando_proto::Reason::NotOwner,
                            "{rank} {from} {to}: {error}"
                        );
                    }
                }
            }
        }
        client.write("/a/z", "z").await.unwrap();
        service.link(LinkRequest { existing: at("a/z"), link: at("top2"), ..LinkRequest::default() }).await.unwrap();
        assert_eq!(nlink(&client, "/top2").await, 2);
        cluster
    })
    .await;
    cluster.shutdown().await;
}

/// In a cluster that has as many subtrees as it may, a directory that would have to become one is told so at once.
/// What needs none goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn r17_a_full_map_refuses_directories_and_nothing_else() {
    let cluster = with_cluster(ranks(3), |cluster, client| async move {
        two(&cluster, &client).await;
        client.create_dir("/a/dir").await.unwrap();
        client.create_dir("/b/dir").await.unwrap();
        client.write("/a/file", "file").await.unwrap();
        let admin = cluster.admin().admin();
        admin.set_setting("max_subtrees", "3").await.unwrap();
        let before = cluster.admin().get_map(Default::default()).await.unwrap();
        let refused = client.rename("/a/dir", "/b/new").await.unwrap_err();
        assert_eq!(refused.errno(), Errno::EXDEV);
        assert!(refused.to_string().contains("subtree merge"), "it says what to do: {refused}");
        assert_eq!(client.exchange("/a/file", "/b/dir").await.unwrap_err().errno(), Errno::EXDEV);
        assert_eq!(client.rename("/a/none", "/b/new").await.unwrap_err().errno(), Errno::ENOENT);
        client.rename("/a/file", "/b/file").await.unwrap();
        client.rename("/b", "/a/b").await.unwrap();
        client.rename("/a/b", "/b").await.unwrap();
        let epochs = |map: &pando_cluster_map::ClusterMap| -> Vec<_> {
            map.subtrees.iter().map(|(id, subtree)| (*id, subtree.epoch)).collect()
        };
        let after = cluster.admin().get_map(Default::default()).await.unwrap();
        assert_eq!(epochs(&before), epochs(&after), "no subtree was frozen or opened anew for it");
        admin.set_setting("max_subtrees", "4").await.unwrap();
        // As soon as the rank knows.
        while let Err(error) = client.rename("/a/dir", "/b/new").await {
            assert_eq!(error.errno(), Errno::EXDEV);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(names(&client, "/b").await, ["dir", "file", "new"]);
        cluster
    })
    .await;
    cluster.shutdown().await;
}

async fn nlink(client: &Client, path: &str) -> u32 {
    client.metadata(path).await.unwrap_or_else(|error| panic!("{path}: {error}")).nlink()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_has_names_in_several_subtrees() {
    let cluster = with_cluster(ranks(3), |cluster, client| async move {
        let (a, b) = two(&cluster, &client).await;
        let errno = |error: pando_client::Error| error.errno();
        client.write("/a/f", "one").await.unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&client, "/a/f").await.unwrap();
        client.hard_link("/a/f", "/b/g").await.unwrap();
        client.hard_link("/b/g", "/top").await.unwrap();
        client.hard_link("/b/g", "/b/h").await.unwrap();
        assert_eq!(client.hard_link("/b/g", "/top").await.map_err(errno), Err(Errno::EEXIST));
        assert_eq!(client.hard_link("/a/f", "/b/none/x").await.map_err(errno), Err(Errno::ENOENT));
        assert_eq!(client.hard_link("/a", "/b/x").await.map_err(errno), Err(Errno::EPERM));
        assert_eq!(nlink(&client, "/top").await, 4);
        client.write("/top", "two").await.unwrap();
        assert_eq!(client.read("/b/h").await.unwrap(), "two");
        let found = client.metadata("/b/g").await.unwrap().ino();

        // The primary name goes: the file is at home where another one is, and stays open.
        client.remove_file("/a/f").await.unwrap();
        assert_eq!((nlink(&client, "/b/g").await, names(&client, "/a").await), (3, vec![]));
        assert_eq!(file.read_at(0, 10).await.unwrap(), "two");
        file.write_at(0, "thr").await.unwrap();
        assert_eq!(client.read("/top").await.unwrap(), "thr");
        client.remove_file("/top").await.unwrap();
        client.rename("/b/g", "/a/g").await.unwrap();
        client.rename("/b/h", "/b/i").await.unwrap();
        client.rename("/a/g", "/b/i").await.unwrap();
        assert_eq!(names(&client, "/a").await, ["g"], "two names of one file: nothing happens");
        let other = client.metadata("/b/i").await.unwrap();
        assert_eq!((other.ino(), other.nlink()), (found, 2));

        // A name that is replaced is one of a file of another subtree.
        client.write("/a/n", "new").await.unwrap();
        client.hard_link("/a/n", "/b/n").await.unwrap();
        client.rename("/b/n", "/b/i").await.unwrap();
        assert_eq!((client.read("/b/i").await.unwrap(), nlink(&client, "/a/g").await), ("new".into(), 1));
        assert_eq!(nlink(&client, "/a/n").await, 2);
        client.rename("/a/g", "/a/n").await.unwrap();
        assert_eq!((client.read("/a/n").await.unwrap(), nlink(&client, "/b/i").await), ("thr".into(), 1));
        file.close().await.unwrap();
        for path in ["/a/n", "/b/i"] {
            client.remove_file(path).await.unwrap();
        }
        forgotten(&cluster).await;
        // Nothing is left of it that would keep them from being merged.
        for (path, subtree) in [("/a", a), ("/b", b)] {
            cluster.admin().admin().move_subtree(subtree, Rank(0), true).await.unwrap();
            merge(&client, path, subtree).await.unwrap();
            client.remove_dir(path).await.unwrap();
        }
        cluster
    })
    .await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn names_of_two_subtrees_are_exchanged() {
    let cluster = with_cluster(ranks(3), |cluster, client| async move {
        let (a, b) = two(&cluster, &client).await;
        let errno = |error: pando_client::Error| error.errno();
        for dir in ["/a/dir/deep", "/b/dir"] {
            client.create_dir_all(dir).await.unwrap();
        }
        for file in ["/a/f", "/b/f", "/a/dir/deep/f", "/b/dir/f"] {
            client.write(file, file).await.unwrap();
        }
        let large = vec![7u8; 300_000];
        client.write("/b/large", large.clone()).await.unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&client, "/b/f").await.unwrap();
        client.exchange("/a/f", "/b/f").await.unwrap();
        assert_eq!(
            (client.read("/a/f").await.unwrap(), client.read("/b/f").await.unwrap()),
            ("/b/f".into(), "/a/f".into())
        );
        file.write_at(0, "open").await.unwrap();
        file.close().await.unwrap();
        assert_eq!(client.read("/a/f").await.unwrap(), "open", "R15: both went with their handles");
        client.exchange("/b/large", "/a/f").await.unwrap();
        assert_eq!(
            (client.read("/a/f").await.unwrap(), client.read("/b/large").await.unwrap()),
            (large.into(), "open".into())
        );

        client.exchange("/a/dir", "/b/dir").await.unwrap();
        assert_eq!(client.read("/b/dir/deep/f").await.unwrap(), "/a/dir/deep/f");
        assert_eq!(client.read("/a/dir/f").await.unwrap(), "/b/dir/f");
        assert_eq!(client.read("/a/dir/deep/f").await.map_err(errno), Err(Errno::ENOENT), "R16");
        client.exchange("/a/f", "/b/dir").await.unwrap();
        assert_eq!(client.read("/a/f/deep/f").await.unwrap(), "/a/dir/deep/f");
        assert_eq!((nlink(&client, "/a").await, nlink(&client, "/b").await), (4, 2));
        // The roots themselves, within one subtree.
        client.exchange("/a", "/b").await.unwrap();
        assert_eq!((owner(&client, "/a/large").await.0, owner(&client, "/b/dir").await.0 != a), (b, true));
        assert_eq!(client.read("/b/f/deep/f").await.unwrap(), "/a/dir/deep/f");
        client.write("/top", "top").await.unwrap();
        client.exchange("/top", "/b").await.unwrap();
        assert_eq!(
            (client.read("/b").await.unwrap(), names(&client, "/top").await),
            ("top".into(), vec!["dir".to_owned(), "f".to_owned()])
        );
        // R17
        for (one, other) in [("/top", "/top/f"), ("/top/f/deep", "/top"), ("/top/f", "/top/f/deep/f")] {
            assert_eq!(client.exchange(one, other).await.map_err(errno), Err(Errno::EINVAL), "{one} {other}");
        }
        assert_eq!(client.exchange("/a/f", "/top/none").await.map_err(errno), Err(Errno::ENOENT));
        forgotten(&cluster).await;
        cluster
    })
    .await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_empty_subtree_is_replaced() {
    let cluster = with_cluster(ranks(3), |cluster, client| async move {
        two(&cluster, &client).await;
        let errno = |error: pando_client::Error| error.errno();
        client.create_dir_all("/b/v").await.unwrap();
        let victim = split(&client, "/b/v").await.unwrap();
        cluster.admin().admin().move_subtree(victim, Rank(0), true).await.unwrap();
        client.create_dir("/a/dir").await.unwrap();
        client.write("/a/dir/f", "f").await.unwrap();
        client.write("/b/v/x", "x").await.unwrap();
        assert_eq!(client.rename("/a/dir", "/b/v").await.map_err(errno), Err(Errno::ENOTEMPTY));
        assert_eq!(client.rename("/a/dir/f", "/b/v").await.map_err(errno), Err(Errno::EISDIR));
        client.remove_file("/b/v/x").await.unwrap();
        client.rename("/a/dir", "/b/v").await.unwrap();
        assert_eq!(client.read("/b/v/f").await.unwrap(), "f");
        client.create_dir("/new").await.unwrap();
        client.rename("/new", "/a").await.unwrap();
        assert_eq!(names(&client, "/").await, ["a", "b"]);
        forgotten(&cluster).await;
        cluster
    })
    .await;
    cluster.shutdown().await;
}

/// Gives a file of its own names in two directories, and takes them again, for ever.
async fn linker(
    client: Client,
    number: usize,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> BTreeMap<String, String> {
    let [a, b, c] = ["/a/link", "/b/link", "/b/other"].map(|path| format!("{path}{number}"));
    let failed = |what: &str, error: pando_client::Error| -> () { panic!("{what} {number}: {error}") };
    client.write(&a, &a).await.unwrap();
    client.write(&c, "other").await.unwrap();
    while !stop.load(Ordering::Relaxed) {
        client.hard_link(&a, &b).await.unwrap_or_else(|error| failed("link", error));
        assert_eq!((nlink(&client, &a).await, nlink(&client, &b).await), (2, 2));
        client.exchange(&b, &c).await.unwrap_or_else(|error| failed("exchange here", error));
        client.exchange(&a, &b).await.unwrap_or_else(|error| failed("exchange", error));
        assert_eq!((client.read(&a).await.unwrap(), nlink(&client, &b).await), ("other".into(), 2));
        client.exchange(&b, &a).await.unwrap_or_else(|error| failed("exchange back", error));
        client.exchange(&c, &b).await.unwrap_or_else(|error| failed("exchange here again", error));
        client.remove_file(&a).await.unwrap_or_else(|error| failed("remove", error));
        assert_eq!((nlink(&client, &b).await, client.read(&b).await.unwrap()), (1, a.clone().into()));
        client.hard_link(&b, &a).await.unwrap_or_else(|error| failed("link back", error));
        client.remove_file(&b).await.unwrap_or_else(|error| failed("remove there", error));
        assert_eq!((nlink(&client, &a).await, client.read(&a).await.unwrap()), (1, a.clone().into()));
        done.fetch_add(1, Ordering::Relaxed);
    }
    let place = |path: &str| (path[3..].to_owned(), path[..2].to_owned());
    BTreeMap::from([place(&a), place(&c)])
}

/// Moves files of its own between two directories for ever, and knows where each has to be.
async fn shuttle(
    client: Client,
    number: usize,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> BTreeMap<String, String> {
    let dirs = ["/a", "/b"];
    let mut places = BTreeMap::new();
    for file in 0..5 {
        let name = format!("{number}-{file}");
        client.write(format!("/a/{name}"), &name).await.unwrap();
        places.insert(name, 0);
    }
    while !stop.load(Ordering::Relaxed) {
        for (name, place) in &mut places {
            let (from, to) = (format!("{}/{name}", dirs[*place]), format!("{}/{name}", dirs[1 - *place]));
            client.rename(&from, &to).await.unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
            *place = 1 - *place;
            assert_eq!(client.read(&to).await.unwrap_or_else(|error| panic!("{to}: {error}")), name.as_bytes());
            assert_eq!(client.read(&from).await.unwrap_err().errno(), Errno::ENOENT, "{from}");
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
    places.into_iter().map(|(name, place)| (name, dirs[place].to_owned())).collect()
}

/// The same with a directory and what is in it.
async fn shuttle_directory(client: Client, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) -> BTreeMap<String, String> {
    let dirs = ["/a", "/b"];
    client.create_dir_all("/a/dir/deep").await.unwrap();
    client.write("/a/dir/deep/f", "deep").await.unwrap();
    let mut place = 0;
    while !stop.load(Ordering::Relaxed) {
        let (from, to) = (format!("{}/dir", dirs[place]), format!("{}/dir", dirs[1 - place]));
        client.rename(&from, &to).await.unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
        place = 1 - place;
        let file = format!("{to}/deep/f");
        assert_eq!(client.read(&file).await.unwrap_or_else(|error| panic!("{file}: {error}")), "deep");
        assert_eq!(client.read(format!("{from}/deep/f")).await.unwrap_err().errno(), Errno::ENOENT, "R16: {from}");
        done.fetch_add(1, Ordering::Relaxed);
    }
    BTreeMap::from([("dir".to_owned(), dirs[place].to_owned())])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_file_is_there_once_whichever_rank_dies() {
    let options = Options { lease_millis: Some(500), ..ranks(3) };
    let cluster = with_cluster(options, |mut cluster, client| async move {
        two(&cluster, &client).await;
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut tasks = Vec::new();
        for number in 0..4 {
            let client = Client::connect(cluster.mon_addresses()).await.unwrap();
            tasks.push(tokio::spawn(shuttle(client, number, Arc::clone(&stop), Arc::clone(&done))));
        }
        for number in 0..2 {
            let client = Client::connect(cluster.mon_addresses()).await.unwrap();
            tasks.push(tokio::spawn(linker(client, number, Arc::clone(&stop), Arc::clone(&done))));
        }
        let mover = Client::connect(cluster.mon_addresses()).await.unwrap();
        tasks.push(tokio::spawn(shuttle_directory(mover, Arc::clone(&stop), Arc::clone(&done))));
        let progress = async |steps: u64| {
            let goal = done.load(Ordering::Relaxed) + steps;
            while done.load(Ordering::Relaxed) < goal {
                assert!(tasks.iter().all(|task| !task.is_finished()), "a worker has failed");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        for rank in [1, 2, 0] {
            progress(40).await;
            cluster.kill_mds(rank).await.unwrap();
            progress(20).await;
            cluster.restart_mds(rank).await.unwrap();
        }
        progress(40).await;
        stop.store(true, Ordering::Relaxed);
        let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for task in tasks {
            for (name, dir) in task.await.expect("each rename was done once") {
                expected.entry(dir).or_default().push(name);
            }
        }
        for dir in ["/a", "/b"] {
            let mut expected = expected.remove(dir).unwrap_or_default();
            expected.sort();
            assert_eq!(names(&client, dir).await, expected, "{dir}");
            let directories = u32::from(expected.iter().any(|name| name == "dir"));
            assert_eq!(client.metadata(dir).await.unwrap().nlink(), 2 + directories);
        }
        forgotten(&cluster).await;
        cluster
    })
    .await;
    cluster.shutdown().await;
}
