//! Subtrees move between ranks: the calls of ranks and people, failover, and the balancer at work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pando_cluster_map::ClusterMap;
use pando_mon_client::{Daemon, MonClient, MoveOutcome};
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mon::{RankLoad, RegisterRankRequest, SplitRequest, SplitSubtreeRequest, SubtreeLoad};
use pando_proto::{Epoch, Ino, Rank, Reason, SubtreeId, mon};
use pando_rpc::{Env, Lease};

use crate::support::*;

fn numbered(number: u32) -> RegisterRankRequest {
    RegisterRankRequest { rank: number, boot_id: vec![number as u8 + 1; 16].into(), ..rank(1) }
}

fn split(parent: SubtreeId, parent_epoch: u64, root: u64) -> SplitSubtreeRequest {
    SplitSubtreeRequest {
        parent: parent.0,
        parent_epoch,
        root_ino: root,
        parent_dir: 1,
        name: format!("d{root}").into(),
        path_hint: format!("/d{root}").into(),
        ..Default::default()
    }
}

/// A mon whose ranks 0 to `ranks` - 1 send no heartbeats and are left alone all the same.
async fn with_ranks(dir: &std::path::Path, ranks: u32) -> (TestMon, MonClient) {
    let mon = TestMon::start(single(dir)).await;
    let client = mon.client();
    client.admin().set_setting("lease_millis", "60000").await.unwrap();
    for number in 0..ranks {
        client.register_rank(numbered(number)).await.unwrap();
    }
    (mon, client)
}

/// R11, R12.
#[tokio::test]
async fn subtrees_are_split_moved_and_merged_by_compare_and_set() {
    let dir = tempfile::tempdir().unwrap();
    let (mon, client) = with_ranks(dir.path(), 3).await;
    let admin = client.admin();
    let (child, epoch) = client.split_subtree(split(ROOT_SUBTREE, 1, 50)).await.unwrap();
    assert_eq!(client.split_subtree(split(ROOT_SUBTREE, 1, 50)).await.unwrap(), (child, epoch), "idempotent");
    assert_eq!(client.split_subtree(split(ROOT_SUBTREE, 1, 60)).await.unwrap_err().reason, Reason::StaleEpoch);
    assert_eq!(client.split_subtree(split(child, 1, 50)).await.unwrap_err().reason, Reason::InvalidRequest);

    let epoch = client.renew_subtree(ROOT_SUBTREE, Epoch(2)).await.unwrap();
    assert_eq!(client.renew_subtree(ROOT_SUBTREE, Epoch(2)).await.unwrap(), epoch, "idempotent");
    assert_eq!(client.get_map(epoch).await.unwrap().root_subtree().unwrap().epoch, Epoch(3));
    assert_eq!(client.split_subtree(split(ROOT_SUBTREE, 2, 60)).await.unwrap_err().reason, Reason::StaleEpoch);
    assert_eq!(client.renew_subtree(SubtreeId(99), Epoch(1)).await.unwrap_err().reason, Reason::UnknownId);

    let (move_id, begun) = admin.move_subtree(child, Rank(1), false).await.unwrap();
    assert_eq!(admin.move_subtree(child, Rank(1), false).await.unwrap(), (move_id, begun), "idempotent");
    assert_eq!(admin.move_subtree(child, Rank(2), false).await.unwrap_err().reason, Reason::InUse);
    let since = Instant::now();
    let moving = client.split_subtree(split(child, 1, 70)).await.unwrap_err();
    assert!(moving.reason == Reason::StaleEpoch && moving.is_retryable(), "{moving:?}");
    assert!(since.elapsed() < Duration::from_secs(5), "not repeated while the owner holds the subtree frozen");

    let refused = client.commit_move(child, Rank(2), Epoch(1), move_id).await;
    assert!(matches!(&refused, MoveOutcome::Refused(error) if error.reason == Reason::StaleEpoch), "{refused:?}");
    let refused = client.commit_move(SubtreeId(99), Rank(0), Epoch(1), move_id).await;
    assert!(matches!(&refused, MoveOutcome::Refused(error) if error.reason == Reason::UnknownId), "{refused:?}");
    let done = client.commit_move(child, Rank(0), Epoch(1), move_id).await;
    assert!(matches!(done, MoveOutcome::Done(epoch) if epoch > begun), "{done:?}");
    assert_eq!(client.commit_move(child, Rank(0), Epoch(1), move_id).await, done, "idempotent");
    assert_eq!(client.cancel_move(child, move_id).await.unwrap_err().reason, Reason::StaleEpoch, "too late");

    let epoch = client.raise_routes(vec![child]).await.unwrap();
    assert_eq!(client.get_map(epoch).await.unwrap().subtrees[&child].route, 2);
    let apart = client.merge_subtree(child, Epoch(2), Epoch(3)).await.unwrap_err();
    assert!(apart.reason == Reason::InUse && apart.message.contains("one rank first"), "{apart}");
    let (move_id, _) = admin.move_subtree(child, Rank(0), false).await.unwrap();
    client.cancel_move(child, move_id).await.unwrap();
    let refused = client.commit_move(child, Rank(1), Epoch(2), move_id).await;
    assert!(matches!(refused, MoveOutcome::Refused(_)), "R12: it was given up: {refused:?}");
    let (move_id, _) = admin.move_subtree(child, Rank(0), false).await.unwrap();
    client.commit_move(child, Rank(1), Epoch(2), move_id).await;
    let epoch = client.merge_subtree(child, Epoch(3), Epoch(3)).await.unwrap();
    let map = client.get_map(epoch).await.unwrap();
    assert_eq!((map.subtrees.len(), map.root_subtree().unwrap().epoch), (1, Epoch(4)));
    mon.stop().await;
}

#[tokio::test]
async fn wishes_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mon, client) = with_ranks(dir.path(), 3).await;
    let admin = client.admin();
    client.release_lease(Daemon::Rank(Rank(1)), 1).await.unwrap();
    admin.drain_rank(Rank(2), true).await.unwrap();
    let reason = |result: Result<(u64, Epoch), pando_proto::Error>| result.unwrap_err().reason;
    assert_eq!(reason(admin.move_subtree(SubtreeId(9), Rank(0), true).await), Reason::UnknownId);
    assert_eq!(reason(admin.move_subtree(ROOT_SUBTREE, Rank(9), true).await), Reason::UnknownId);
    assert_eq!(reason(admin.move_subtree(ROOT_SUBTREE, Rank(1), true).await), Reason::InvalidRequest, "down");
    assert_eq!(reason(admin.move_subtree(ROOT_SUBTREE, Rank(2), true).await), Reason::InvalidRequest, "draining");
    assert_eq!(admin.pin_subtree(ROOT_SUBTREE, Some(Rank(9))).await.unwrap_err().reason, Reason::UnknownId);
    // The balancer would bring it back.
    admin.drain_rank(Rank(2), false).await.unwrap();
    admin.pin_subtree(ROOT_SUBTREE, Some(Rank(0))).await.unwrap();
    let error = admin.move_subtree(ROOT_SUBTREE, Rank(2), true).await.unwrap_err();
    assert!(error.reason == Reason::InvalidRequest && error.message.contains("pinned to mds.0"), "{error}");
    admin.pin_subtree(ROOT_SUBTREE, None).await.unwrap();
    assert_eq!(admin.pin_subtree(SubtreeId(9), None).await.unwrap_err().reason, Reason::UnknownId);
    assert_eq!(admin.spread_subtree(SubtreeId(9), true).await.unwrap_err().reason, Reason::UnknownId);
    assert_eq!(admin.drain_rank(Rank(9), true).await.unwrap_err().reason, Reason::UnknownId);
    assert_eq!(client.raise_routes(vec![SubtreeId(9)]).await.unwrap_err().reason, Reason::UnknownId);
    assert_eq!(client.raise_routes(vec![ROOT_SUBTREE; 5000]).await.unwrap_err().reason, Reason::InvalidRequest);
    let error = client.merge_subtree(ROOT_SUBTREE, Epoch(1), Epoch(1)).await.unwrap_err();
    assert_eq!(error.reason, Reason::InvalidRequest);
    for (name, bad) in
        [("balancer_mode", "3"), ("balancer_interval_millis", "1"), ("balancer_saturation_permille", "0")]
    {
        assert_eq!(admin.set_setting(name, bad).await.unwrap_err().reason, Reason::InvalidRequest, "{name}");
    }
    let map = client.get_map(Epoch(0)).await.unwrap();
    assert_eq!((map.subtrees.len(), map.root_subtree().unwrap().epoch), (1, Epoch(1)), "nothing changed");
    mon.stop().await;
}

#[tokio::test]
async fn who_waits_for_a_move_is_told_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (mon, client) = with_ranks(dir.path(), 2).await;
    let (admin, (mut watch, _stop)) = (client.admin(), watch(&client).await);
    assert_eq!(admin.move_subtree(ROOT_SUBTREE, Rank(0), true).await.unwrap().0, 0, "it is there");

    let waiting = tokio::spawn(async move { admin.move_subtree(ROOT_SUBTREE, Rank(1), true).await });
    let map = map_when(&mut watch, |map| map.root_subtree().unwrap().move_id != 0).await;
    let move_id = map.root_subtree().unwrap().move_id;
    assert!(!waiting.is_finished());
    client.commit_move(ROOT_SUBTREE, Rank(0), Epoch(1), move_id).await;
    let (id, epoch) = within(waiting).await.unwrap().unwrap();
    assert_eq!((id, client.get_map(epoch).await.unwrap().root_subtree().unwrap().owner), (move_id, Rank(1)));

    let admin = client.admin();
    let waiting = tokio::spawn(async move { admin.move_subtree(ROOT_SUBTREE, Rank(0), true).await });
    let map = map_when(&mut watch, |map| map.root_subtree().unwrap().move_id > move_id).await;
    client.cancel_move(ROOT_SUBTREE, map.root_subtree().unwrap().move_id).await.unwrap();
    let error = within(waiting).await.unwrap().unwrap_err();
    assert!(error.reason == Reason::StaleEpoch && error.message.contains("was given up"), "{error}");

    // Not longer than the caller does.
    let channel = pando_rpc::channel(&mon.env.net, &mon.address()).unwrap();
    let mut service = mon::admin_service_client::AdminServiceClient::new(channel);
    let mut request = tonic::Request::new(mon::MoveSubtreeRequest { subtree: 1, to: 0, wait: true, to_merge: false });
    request.set_timeout(Duration::from_secs(2));
    let since = Instant::now();
    let status = within(service.move_subtree(request)).await.unwrap_err();
    assert_eq!(pando_proto::Error::from_tonic(&status).reason, Reason::Timeout, "{status}");
    assert!(status.message().contains("still on its way"), "{status}");
    assert!(since.elapsed() >= Duration::from_millis(1700), "{:?}", since.elapsed());
    mon.stop().await;
}

/// R12: what a source must not take as refused.
#[tokio::test]
async fn a_handover_without_an_answer_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let (mon, client) = with_ranks(dir.path(), 2).await;
    let (move_id, _) = client.admin().move_subtree(ROOT_SUBTREE, Rank(1), false).await.unwrap();
    let hasty = MonClient::new(Env::system().net, vec![mon.address()]).unwrap().with_limit(Duration::from_millis(300));
    hasty.get_map(Epoch(0)).await.unwrap();
    mon.stop().await;
    let outcome = within(hasty.commit_move(ROOT_SUBTREE, Rank(0), Epoch(1), move_id)).await;
    assert!(matches!(outcome, MoveOutcome::Unknown(_)), "{outcome:?}");
}

/// A rank that does what a map and hints ask of it, without any files: directories below the root want so much of it.
struct FakeRank {
    env: Env,
    lease: Arc<Lease>,
}

/// Thousandths of a rank's time that each directory wants.
type Wanted = Arc<BTreeMap<u64, u32>>;

fn holder(map: &ClusterMap, dir: u64) -> SubtreeId {
    let own = map.subtrees.iter().find(|(_, subtree)| subtree.root == Ino(dir));
    own.map_or(ROOT_SUBTREE, |(id, _)| *id)
}

fn load_of(map: &ClusterMap, rank: Rank, wanted: &BTreeMap<u64, u32>) -> RankLoad {
    let own = map.subtrees.iter().filter(|(_, subtree)| subtree.owner == rank);
    let subtree = |id: SubtreeId| {
        let dirs = wanted.iter().filter(|(dir, _)| holder(map, **dir) == id);
        let total: u32 = dirs.clone().map(|(_, wanted)| wanted).sum();
        let hot = dirs.filter(|_| id == ROOT_SUBTREE).map(|(dir, wanted)| mon::HotDirectory {
            ino: *dir,
            name: format!("d{dir}").into(),
            ops_per_s: f64::from(*wanted),
        });
        SubtreeLoad {
            subtree: id.0,
            ops_per_s: f64::from(total),
            busy_permille: total.min(1000),
            cached_inodes: 1,
            hot: hot.collect(),
        }
    };
    let subtrees: Vec<SubtreeLoad> = own.map(|(id, _)| subtree(*id)).collect();
    let ops: f64 = subtrees.iter().map(|subtree| subtree.ops_per_s).sum();
    RankLoad { busy_permille: (ops as u32).min(1000), ops_per_s: ops, subtrees, ..RankLoad::default() }
}

impl FakeRank {
    async fn start(client: &MonClient, number: u32, wanted: &Wanted) -> Self {
        let env = Env::system();
        let lease = Arc::new(Lease::new(Arc::clone(&env.clock)));
        let registered = client.register_rank(numbered(number)).await.unwrap();
        let map = Arc::new(ClusterMap::from_proto_field(registered.map.as_ref()).unwrap());
        let current = Arc::new(Mutex::new(Arc::clone(&map)));
        let (asked, mut asks) = tokio::sync::mpsc::unbounded_channel::<SplitRequest>();
        let load = {
            let (current, wanted) = (Arc::clone(&current), Arc::clone(wanted));
            Arc::new(move || load_of(&current.lock().unwrap(), Rank(number), &wanted))
        };
        let hints = Arc::new(move |splits: Vec<SplitRequest>, _: Vec<u64>| {
            for split in splits {
                let _ = asked.send(split);
            }
        });
        client.heartbeat_rank(Rank(number), registered.incarnation, Arc::clone(&lease), &env, load, hints);
        let (mut watch, client) = (client.watch(map, env.shutdown.clone()), client.clone());
        let shutdown = env.shutdown.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = shutdown.stopped() => return,
                    map = watch.changed() => {
                        *current.lock().unwrap() = Arc::clone(&map);
                        for (id, one) in map.subtrees.iter().filter(|(_, one)| one.owner == Rank(number) && one.move_id != 0) {
                            client.commit_move(*id, one.owner, one.epoch, one.move_id).await;
                        }
                    }
                    Some(ask) = asks.recv() => {
                        let map = client.get_map(Epoch(0)).await.unwrap();
                        let epoch = map.subtrees[&SubtreeId(ask.subtree)].epoch.0;
                        let _ = client.split_subtree(split(SubtreeId(ask.subtree), epoch, ask.dir)).await;
                    }
                }
            }
        });
        Self { env, lease }
    }
}

fn wanted_in(map: &ClusterMap, subtree: SubtreeId, wanted: &BTreeMap<u64, u32>) -> u32 {
    wanted.iter().filter(|(dir, _)| holder(map, **dir) == subtree).map(|(_, wanted)| wanted).sum()
}

fn wanted_of(map: &ClusterMap, rank: u32, wanted: &BTreeMap<u64, u32>) -> u32 {
    let own = wanted.iter().filter(|(dir, _)| map.subtrees[&holder(map, **dir)].owner == Rank(rank));
    own.map(|(_, wanted)| wanted).sum()
}

/// The loop through heartbeats, hints and moves: sixteen clients' directories come to three ranks, and a rank that
/// dies leaves its share to the others, evenly.
#[tokio::test]
async fn the_balancer_spreads_load_and_a_dead_ranks_share_goes_to_all_others() {
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    let client = mon.client();
    let admin = client.admin();
    admin.set_setting("lease_millis", "1000").await.unwrap();
    admin.set_setting("balancer_interval_millis", "500").await.unwrap();
    let wanted: Wanted = Arc::new((50..66).map(|dir| (dir, 120)).collect());
    let mut ranks = Vec::new();
    for number in 0..3 {
        ranks.push(FakeRank::start(&client, number, &wanted).await);
    }
    let (mut watch, _stop) = watch(&client).await;
    // It rests where another move would gain little, and the first ones are planned by what was told before the splits:
    // one rank may be left with four or seven of the directories.
    let is_spread = |map: &ClusterMap| {
        let still = map.subtrees.values().all(|subtree| subtree.move_id == 0);
        still && (0..3).all(|rank| (480..=840).contains(&wanted_of(map, rank, &wanted)))
    };
    let map = map_when(&mut watch, is_spread).await;
    assert!(map.subtrees.len() > 5, "hot directories were split off");
    let loads = admin.list_loads().await.unwrap();
    assert_eq!(loads.len(), 3);
    assert!(loads.iter().all(|one| one.age_millis < 60_000 && one.load.is_some()));
    let decisions = admin.list_decisions(0).await.unwrap();
    assert!(decisions.iter().any(|one| !one.splits.is_empty()), "{decisions:?}");
    let moved: usize = decisions.iter().map(|one| one.moves.len()).sum();
    assert!((3..=16).contains(&moved), "{moved}: {decisions:?}");
    assert!(decisions.iter().all(|one| !one.reason.is_empty() && !one.ranks.is_empty()), "{decisions:?}");
    assert_eq!(admin.list_decisions(1).await.unwrap().len(), 1);

    // R13: it stops before its share is given away, and that at once as a whole.
    ranks[1].env.shutdown.stop();
    let map = map_when(&mut watch, |map| !map.ranks[&Rank(1)].up).await;
    assert!(!ranks[1].lease.is_valid());
    let (one, two) = (wanted_of(&map, 0, &wanted), wanted_of(&map, 2, &wanted));
    assert_eq!(wanted_of(&map, 1, &wanted), 0);
    // What was not split goes to one of them as it is; the root may be such a piece.
    let given = map.subtrees.iter().filter(|(_, subtree)| subtree.taken_from == Some(Rank(1)));
    let heaviest = given.map(|(id, _)| wanted_in(&map, *id, &wanted)).max().unwrap();
    assert!(one.abs_diff(two) <= heaviest, "{one} {two}, and the heaviest piece {heaviest}");

    // Emptied on demand, and nothing is left behind.
    admin.drain_rank(Rank(2), true).await.unwrap();
    let map = map_when(&mut watch, |map| map.subtrees.values().all(|subtree| subtree.owner == Rank(0))).await;
    assert!(map.ranks[&Rank(2)].up);
    admin.pin_subtree(ROOT_SUBTREE, Some(Rank(0))).await.unwrap();
    ranks.iter().for_each(|rank| rank.env.shutdown.stop());
    mon.stop().await;
}

/// R13: a new leader knows of no lease, and waits for the longest that may be held.
#[tokio::test]
async fn a_new_leader_gives_nothing_away_before_the_leases_of_its_predecessor_have_ended() {
    let mut group = Group::start(1000).await;
    let client = group.client();
    within(client.admin().set_setting("lease_millis", "3000")).await.unwrap();
    let wanted: Wanted = Arc::new((50..54).map(|dir| (dir, 10)).collect());
    let first = within(FakeRank::start(&client, 0, &wanted)).await;
    let second = within(FakeRank::start(&client, 1, &wanted)).await;
    within(async {
        while !first.lease.is_valid() || !second.lease.is_valid() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let (mut watch, _stop) = watch(&client).await;
    let leader = client.admin().status().await.unwrap().leader_id;
    // The rank falls silent just before the leader dies: its lease is nearly over when another is elected, but that
    // one cannot know.
    first.env.shutdown.stop();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    group.stop_mon(leader).await;
    let stopped = Instant::now();
    let map = map_when(&mut watch, |map| !map.ranks[&Rank(0)].up).await;
    assert!(stopped.elapsed() >= Duration::from_millis(3250), "lease x 1.05 + 100 ms: {:?}", stopped.elapsed());
    assert!(!first.lease.is_valid());
    let root = map.root_subtree().unwrap();
    assert_eq!((root.owner, root.epoch), (Rank(1), Epoch(2)), "I3");
    assert!(map.ranks[&Rank(1)].up && second.lease.is_valid());
    second.env.shutdown.stop();
    group.stop().await;
}

/// A clean stop takes the same way, without the wait.
#[tokio::test]
async fn a_rank_that_stops_cleanly_leaves_its_subtrees_to_others_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (mon, client) = with_ranks(dir.path(), 3).await;
    for (number, root) in (50..55).enumerate() {
        client.split_subtree(split(ROOT_SUBTREE, 1 + number as u64, root)).await.unwrap();
    }
    let (move_id, _) = client.admin().move_subtree(SubtreeId(2), Rank(1), false).await.unwrap();
    client.release_lease(Daemon::Rank(Rank(0)), 1).await.unwrap();
    let map = client.get_map(Epoch(0)).await.unwrap();
    let count = |rank| map.subtrees.values().filter(|subtree| subtree.owner == Rank(rank)).count();
    assert_eq!([count(0), count(1), count(2)], [0, 3, 3]);
    let late = client.commit_move(SubtreeId(2), Rank(0), Epoch(1), move_id).await;
    assert!(matches!(late, MoveOutcome::Refused(_)), "{late:?}");
    mon.stop().await;
}
