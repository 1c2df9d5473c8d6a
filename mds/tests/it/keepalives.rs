//! Keep-alives: what they say counts everywhere, and costs only where something is remembered (R9, R19).

use std::collections::BTreeSet;
use std::time::Duration;

use pando_cluster_map::settings;
use pando_mds_core::records::Key;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::client_frame::Frame as Up;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::server_frame::Frame as Down;
use pando_proto::mds::{
    KeepAlive, OpenFlag, OpenRequest, Operation, ReadRequest, ReclaimRequest, Request, Requests, StatRequest, Target,
    UnlinkRequest, WriteFileRequest,
};
use pando_proto::{ClientId, Error, Ino, Reason, SubtreeId};

use crate::harness::*;
use crate::merges::{CHILD, call_child, two_subtrees};

const CACHE: u64 = 64 << 20;
const ONE: ClientId = ClientId(1);
const TWO: ClientId = ClientId(2);
/// Above all numbers that a test has used so far, and numbers to go on with after that.
const ALL: u64 = 50_000;
const MORE: u64 = 60_000;

/// A keep-alive; the subtrees that wait for the session.
async fn keep_alive(client: &mut Client, lowest_unanswered: u64) -> Vec<u64> {
    client.raw(Up::KeepAlive(KeepAlive { lowest_unanswered, ..KeepAlive::default() })).await;
    loop {
        if let Some(Down::KeepAlive(alive)) = client.next_frame().await.unwrap() {
            return alive.awaiting;
        }
    }
}

/// Ends when the rank remembers requests of a session in so many subtrees.
async fn remembered_in(rank: &TestRank, client: ClientId, count: usize) {
    while rank.handle.remembered_in(client) != count {
        tokio::task::yield_now().await;
    }
}

/// A copy of a request of long ago.
async fn repeat_in(client: &mut Client, subtree: SubtreeId, id: u64, op: Op) -> Result<Reply, Error> {
    let operation = Some(Operation { op: Some(op) });
    let request = Request { id, subtree: subtree.0, subtree_epoch: 1, retry: true, operation, ..Request::default() };
    client.raw(Up::Requests(Requests { requests: vec![request], ..Requests::default() })).await;
    result(client.reply(id).await)
}

fn inside(base: Ino) -> Option<Target> {
    Some(Target { base: base.0, path: "in".into() })
}

fn stat_inside(target: Target) -> Op {
    Op::Stat(StatRequest { caller: root(), target: Some(target), follow: false })
}

fn write_inside(target: Target) -> Op {
    let flags = OpenFlag::Create as u32;
    Op::WriteFile(WriteFileRequest { caller: root(), target: Some(target), flags, mode: 0o644, data: "x".into() })
}

fn open_inside(base: Ino, handle: u64) -> Op {
    let (flags, mode) = (OpenFlag::Read as u32, 0o644);
    Op::Open(OpenRequest { caller: root(), target: inside(base), handle, flags, mode, want_body: false, size_hint: 0 })
}

#[test]
fn r9_an_actor_has_nothing_of_a_client_that_never_asked_it() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut other = rank.connect(1).await;
        let (dir, _) = two_subtrees(&rank, &mut other).await;
        assert_eq!(rank.handle.remembered_in(ONE), 2, "client 1 has been in both");
        let mut client = rank.connect(2).await;
        for lowest in [1, 2, 3] {
            keep_alive(&mut client, lowest).await;
            // Both actors have had their turns.
            other.call(write_file("out", b"")).await.unwrap();
            call_child(&rank, &mut other, dir, write_inside).await;
        }
        assert_eq!(rank.handle.remembered_in(TWO), 0);
        client.call(stat("out")).await.unwrap();
        keep_alive(&mut client, 4).await;
        call_child(&rank, &mut other, dir, write_inside).await;
        assert_eq!(rank.handle.remembered_in(TWO), 1, "what is unanswered is of the root subtree only");
        keep_alive(&mut client, ALL).await;
        remembered_in(&rank, TWO, 0).await;
        assert_eq!(rank.handle.remembered_in(ONE), 2, "it has confirmed nothing");
        // What the keep-alive said holds where it was not told, and where nothing is left of the client.
        let late = repeat_in(&mut client, ROOT_SUBTREE, 9_000, create_new("late")).await;
        assert_eq!(late.unwrap_err().reason, Reason::StaleSession, "R9");
        let late = repeat_in(&mut client, CHILD, 9_001, stat_inside(inside(dir).unwrap())).await;
        assert_eq!(late.unwrap_err().reason, Reason::StaleSession, "R9");
        // Nor does a later stream of it begin anew.
        let mut client = rank.connect(2).await;
        let late = repeat_in(&mut client, ROOT_SUBTREE, 9_002, create_new("late")).await;
        assert_eq!(late.unwrap_err().reason, Reason::StaleSession, "R9");
        client.skip_to(MORE);
        assert!(client.call(stat("late")).await.is_err());
        client.call(stat("out")).await.unwrap();
        rank.stop().await;
    });
}

/// Records of answers.
fn completed(world: &World) -> BTreeSet<Key> {
    world.records.keys(|key| matches!(key, Key::Completed(..))).into_iter().collect()
}

#[test]
fn r9_one_keep_alive_trims_the_answers_in_every_subtree() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let (dir, _) = two_subtrees(&rank, &mut client).await;
        // What is older is perhaps in shards to which nothing is written below.
        let older = completed(&world);
        client.call(write_file("out", b"of client 1")).await.unwrap();
        call_child(&rank, &mut client, dir, write_inside).await;
        let answers: BTreeSet<Key> = completed(&world).difference(&older).cloned().collect();
        assert_eq!(answers.len(), 2, "{answers:?}");
        keep_alive(&mut client, ALL).await;
        remembered_in(&rank, ONE, 0).await;
        let mut other = rank.connect(2).await;
        // Deletes ride in the next commits.
        while !completed(&world).is_disjoint(&answers) {
            other.call(write_file("else", b"")).await.unwrap();
            call_child(&rank, &mut other, dir, write_inside).await;
        }
        rank.stop().await;
    });
}

#[test]
fn r9_a_new_owner_in_the_same_process_hears_of_what_it_has_adopted() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("file", b"")).await.unwrap();
        assert_eq!(rank.handle.remembered_in(ONE), 1);
        keep_alive(&mut client, ALL).await;
        remembered_in(&rank, ONE, 0).await;
        assert!(!completed(&world).is_empty(), "R9: nothing has been written since");
        let root_epoch = |map: &mut pando_cluster_map::ClusterMap| {
            map.subtrees.get_mut(&ROOT_SUBTREE).unwrap().epoch.0 += 1;
        };
        rank.change_map(root_epoch);
        remembered_in(&rank, ONE, 1).await;
        // The client has not asked for anything since: it says the same again.
        keep_alive(&mut client, ALL).await;
        remembered_in(&rank, ONE, 0).await;
        rank.stop().await;
    });
}

fn orphans(world: &World) -> usize {
    world.records.keys(|key| matches!(key, Key::Orphan(_))).len()
}

fn reclaim_nothing() -> Op {
    Op::Reclaim(ReclaimRequest { handles: vec![] })
}

fn read(handle: u64) -> Op {
    Op::Read(ReadRequest { handle, offset: 0, length: 100, ..ReadRequest::default() })
}

async fn to_child(client: &mut Client, op: Op) -> Result<Reply, Error> {
    let id = client.send_to(CHILD, op).await;
    result(client.reply(id).await)
}

#[test]
fn r19_handles_of_a_session_of_which_nothing_else_is_remembered_are_kept_and_released() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        rank.change_map(|map| map.sessions.retain(|client, _| [ONE, TWO].contains(client)));
        let (dir, _) = two_subtrees(&rank, &mut rank.connect(1).await).await;
        let (mut client, mut other) = (rank.connect(1).await, rank.connect(2).await);
        client.skip_to(20_000);
        for client in [&mut client, &mut other] {
            assert_eq!(keep_alive(client, 0).await, [ROOT_SUBTREE.0, CHILD.0], "R19: both were opened since");
            client.call(reclaim_nothing()).await.unwrap();
            assert_eq!(keep_alive(client, 0).await, [CHILD.0]);
            to_child(client, reclaim_nothing()).await.unwrap();
            assert_eq!(keep_alive(client, 0).await, [0; 0]);
        }
        client.call(open("out", 5, &[OpenFlag::Read])).await.unwrap();
        to_child(&mut client, open_inside(dir, 6)).await.unwrap();
        client.call(unlink("out")).await.unwrap();
        to_child(&mut client, Op::Unlink(UnlinkRequest { caller: root(), target: inside(dir) })).await.unwrap();
        keep_alive(&mut client, ALL).await;
        remembered_in(&rank, ONE, 0).await;
        other.call(write_file("else", b"")).await.unwrap();
        call_child(&rank, &mut other, dir, write_inside).await;
        assert_eq!(orphans(&world), 2, "R19: they are open");
        client.skip_to(MORE);
        assert!(client.call(read(5)).await.is_ok());
        to_child(&mut client, read(6)).await.unwrap();
        keep_alive(&mut client, 2 * MORE).await;
        remembered_in(&rank, ONE, 0).await;
        rank.change_map(|map| drop(map.sessions.remove(&ONE)));
        while orphans(&world) > 0 {
            tokio::task::yield_now().await;
        }
        other.call(stat("else")).await.unwrap();
        rank.stop().await;
    });
}

#[test]
fn r9_whoever_sends_keep_alives_is_not_evicted_and_whoever_is_silent_is() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        rank.change_map(|map| {
            map.sessions.retain(|client, _| [ONE, TWO].contains(client));
            map.settings.insert(settings::SESSION_TIMEOUT_MILLIS.to_owned(), "1000".to_owned());
        });
        let (mut client, mut silent) = (rank.connect(1).await, rank.connect(2).await);
        silent.call(write_file("file", b"")).await.unwrap();
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        while !world.mons.evicted.borrow().contains(&TWO) {
            pace.tick().await;
            keep_alive(&mut client, 0).await;
        }
        assert!(!world.mons.evicted.borrow().contains(&ONE));
        assert_eq!((rank.handle.remembered_in(ONE), rank.handle.remembered_in(TWO)), (0, 1));
        rank.change_map(|map| drop(map.sessions.remove(&TWO)));
        remembered_in(&rank, TWO, 0).await;
        rank.stop().await;
    });
}
