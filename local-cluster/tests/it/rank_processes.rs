//! Three ranks as real processes: killed, stopped like a machine that hangs, and restarted one after the other, all
//! under load (I1, I3, I4; R12, R13).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pando_client::Client;
use pando_cluster_map::ClusterMap;
use pando_local_cluster::process::{Daemons, START};
use pando_mon_client::MonClient;
use pando_proto::{Epoch, OsdId, Rank, SubtreeId};
use pando_rpc::TcpNet;
use rustix::process::Signal;
use tokio::task::JoinHandle;

use crate::processes::{TEST, check, connect, load};
use crate::subtrees::split;

const RANKS: u32 = 3;
/// Clients; each has a directory that is a subtree, two of them at each rank.
const CLIENTS: u32 = 6;
/// Operations in one go.
const OPERATIONS: u32 = 25;

type Acknowledged = BTreeMap<String, Option<Vec<u8>>>;

/// Clients that work until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    running: Vec<JoinHandle<Acknowledged>>,
    moving: JoinHandle<u32>,
}

impl Load {
    async fn begin(mon: SocketAddr, admin: &MonClient) -> Self {
        let client = connect(mon).await;
        for number in 0..CLIENTS {
            let dir = format!("/client-{number}");
            client.create_dir(&dir).await.expect("mkdir");
            let subtree = split(&client, &dir).await.expect("split");
            let to = Rank(number % RANKS);
            admin.admin().move_subtree(subtree, to, true).await.expect("a move");
        }
        let stop = Arc::new(AtomicBool::new(false));
        let mut running = Vec::new();
        for number in 0..CLIENTS {
            running.push(tokio::spawn(until(connect(mon).await, number, Arc::clone(&stop))));
        }
        let moving = tokio::spawn(shuttle(connect(mon).await, Arc::clone(&stop)));
        Self { stop, running, moving }
    }

    /// Nothing failed, and all that was acknowledged is there.
    async fn end(self, mon: SocketAddr) {
        self.stop.store(true, Ordering::Relaxed);
        let client = connect(mon).await;
        for running in self.running {
            let acknowledged = running.await.expect("the load ends well");
            assert!(acknowledged.len() > 20);
            check(&client, &acknowledged).await;
        }
        assert!(self.moving.await.expect("so do the renames") > 0);
    }
}

async fn until(client: Client, number: u32, stop: Arc<AtomicBool>) -> Acknowledged {
    let mut acknowledged = Acknowledged::new();
    while !stop.load(Ordering::Relaxed) || acknowledged.is_empty() {
        acknowledged.extend(load(client.clone(), number, OPERATIONS).await);
    }
    acknowledged
}

/// A file goes from subtree to subtree: each rename is one of two ranks, done once (I4).
async fn shuttle(client: Client, stop: Arc<AtomicBool>) -> u32 {
    let at = |number: u32| format!("/client-{}/shuttle", number % CLIENTS);
    client.write(&at(0), "on its way").await.expect("write");
    let mut renames = 0;
    while !stop.load(Ordering::Relaxed) || renames == 0 {
        client.rename(at(renames), at(renames + 1)).await.unwrap_or_else(|error| panic!("rename {renames}: {error}"));
        renames += 1;
        assert_eq!(client.read(&at(renames)).await.expect("it is there"), "on its way");
        assert!(!client.try_exists(at(renames - 1)).await.expect("looked"), "and nowhere else");
    }
    renames
}

fn admin(mon: SocketAddr) -> MonClient {
    MonClient::new(Arc::new(TcpNet), vec![mon.to_string()]).expect("an address")
}

async fn map_when(admin: &MonClient, is_so: impl Fn(&ClusterMap) -> bool) -> Arc<ClusterMap> {
    loop {
        if let Ok(map) = admin.get_map(Epoch(0)).await
            && is_so(&map)
        {
            return map;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn owned(map: &ClusterMap, rank: Rank) -> usize {
    map.subtrees.values().filter(|subtree| subtree.owner == rank).count()
}

async fn with_load<F: Future<Output = Daemons>>(scenario: impl FnOnce(Daemons, MonClient) -> F) {
    let test = async {
        let daemons = Daemons::start(RANKS).expect("the daemons start");
        let mon = daemons.address;
        let admin = admin(mon);
        map_when(&admin, |map| map.ranks.values().filter(|rank| rank.up).count() == RANKS as usize).await;
        admin.admin().set_setting("balancer_mode", "0").await.expect("a setting");
        let load = Load::begin(mon, &admin).await;
        let _daemons = scenario(daemons, admin).await;
        load.end(mon).await;
    };
    tokio::time::timeout(TEST, test).await.expect("the test ends in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rank_is_killed_in_turn() {
    with_load(|mut daemons, admin| async move {
        for rank in 0..RANKS {
            daemons.mds.get_mut(&rank).expect("started").kill();
            let map = map_when(&admin, |map| owned(map, Rank(rank)) == 0).await;
            assert!(!map.ranks[&Rank(rank)].up);
            daemons.start_mds(rank).expect("it starts again");
            map_when(&admin, |map| map.ranks[&Rank(rank)].up).await;
        }
        daemons
    })
    .await;
}

/// R13: a rank that hangs loses its subtrees; when it goes on, it answers nothing from its memory, and what it still
/// sends is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_hangs_comes_back_as_a_zombie() {
    with_load(|daemons, admin| async move {
        for rank in [1, 0] {
            daemons.mds[&rank].signal(Signal::STOP);
            map_when(&admin, |map| !map.ranks[&Rank(rank)].up && owned(map, Rank(rank)) == 0).await;
            // The others open what was its, and their clients change it meanwhile.
            tokio::time::sleep(Duration::from_millis(500)).await;
            daemons.mds[&rank].signal(Signal::CONT);
            let map = map_when(&admin, |map| map.ranks[&Rank(rank)].up).await;
            let own = map.subtrees.iter().find(|(_, subtree)| subtree.owner != Rank(rank));
            let (subtree, _) = own.expect("the others have all");
            admin.admin().move_subtree(*subtree, Rank(rank), true).await.expect("it serves again");
        }
        daemons
    })
    .await;
}

/// A hang that is shorter than the lease is no reason for anything; a mon or an OSD that hangs for longer stops the
/// cluster, or a part of it, for that time only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemons_that_hang_for_a_while_lose_nothing() {
    with_load(|daemons, admin| async move {
        let before = admin.get_map(Epoch(0)).await.expect("a map");
        for rank in 0..RANKS {
            daemons.mds[&rank].signal(Signal::STOP);
            tokio::time::sleep(Duration::from_millis(300)).await;
            daemons.mds[&rank].signal(Signal::CONT);
        }
        let owners = |map: &ClusterMap| -> Vec<(SubtreeId, Rank)> {
            map.subtrees.iter().map(|(id, subtree)| (*id, subtree.owner)).collect()
        };
        assert_eq!(owners(&before), owners(&admin.get_map(Epoch(0)).await.expect("a map")), "each kept what it had");
        daemons.osds[&2].signal(Signal::STOP);
        map_when(&admin, |map| !map.osds[&OsdId(2)].up).await;
        daemons.osds[&2].signal(Signal::CONT);
        daemons.mon.signal(Signal::STOP);
        // All leases end.
        tokio::time::sleep(Duration::from_millis(3000)).await;
        daemons.mon.signal(Signal::CONT);
        map_when(&admin, |map| map.osds.values().filter(|osd| osd.up).count() >= 2).await;
        daemons
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_ranks_are_restarted_one_after_the_other() {
    with_load(|mut daemons, admin| async move {
        for rank in 0..RANKS {
            let before = map_when(&admin, |map| map.ranks.values().all(|rank| rank.up)).await;
            let incarnation = before.ranks[&Rank(rank)].incarnation;
            let status = daemons.mds.get_mut(&rank).expect("started").end_by(Signal::TERM, START).expect("it stops");
            assert!(status.success(), "{status}");
            let map = map_when(&admin, |map| owned(map, Rank(rank)) == 0).await;
            assert!(!map.ranks[&Rank(rank)].up);
            daemons.start_mds(rank).expect("it starts again");
            map_when(&admin, |map| map.ranks[&Rank(rank)].incarnation > incarnation && map.ranks[&Rank(rank)].up).await;
        }
        daemons
    })
    .await;
}
