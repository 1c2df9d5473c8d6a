//! Crashes and new owners (R3, R5, R19).

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use pando_mds_core::records::{FORMAT, Key};
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::client_frame::Frame as Up;
use pando_proto::mds::operation::Op;
use pando_proto::mds::server_frame::Frame as Down;
use pando_proto::mds::{
    CloseRequest, Completed, CompletedRecord, KeepAlive, OpenFlag, ReclaimRequest, ReclaimedHandle,
};
use pando_proto::{ClientId, Epoch, Error, Ino, Reason, ShardId};
use prost::Message as _;

use crate::fake::Gate;
use crate::harness::*;

const CACHE: u64 = 64 << 20;

#[test]
fn a_crash_between_the_parts_of_a_mkdir_leaves_it_whole() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        // Directories near the root are spread: find one that lies elsewhere.
        let mut spread = None;
        for n in 0..32 {
            client.call(mkdir(&format!("dir{n}"))).await.unwrap();
            let dirs = world.records.keys(|key| matches!(key, Key::Inode(ino) if ino.shard() != ShardId(0)));
            if let Some(key) = dirs.first() {
                spread = Some(key.shard());
                break;
            }
        }
        assert!(spread.is_some(), "no directory was spread");
        // All shards but the first refuse to answer: second parts hang.
        world.records.set_gate(Gate::Shards((1..(1 << 15)).map(ShardId).collect::<BTreeSet<_>>()));
        let mut made = Vec::new();
        for n in 0..8 {
            let name = format!("next{n}");
            let id = client.send(vec![mkdir(&name)]).await[0];
            if result(client.reply(id).await).is_ok() {
                made.push(name);
            }
            if !world.records.keys(|key| matches!(key, Key::Redo(..))).is_empty() {
                break;
            }
        }
        let redos = world.records.keys(|key| matches!(key, Key::Redo(..))).len();
        assert!(redos > 0, "R5: a redo record waits for its second part");
        rank.stop().await;
        world.records.set_gate(Gate::Open);
        let rank = TestRank::start(&world, 2, CACHE).await;
        let mut client = rank.connect(1).await;
        for name in &made {
            client.call(stat(name)).await.expect("I1: acknowledged with the first part");
            client.call(write_file(&format!("{name}/file"), b"x")).await.unwrap();
        }
        rank.stop().await;
    });
}

#[test]
fn a_restart_finds_everything_without_replay() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        for dir in 0..10 {
            client.call(mkdir(&format!("d{dir}"))).await.unwrap();
            client.call(mkdir(&format!("d{dir}/sub"))).await.unwrap();
            client.call(write_file(&format!("d{dir}/sub/f"), format!("body {dir}").as_bytes())).await.unwrap();
        }
        rank.stop().await;
        for generation in 2..4 {
            let rank = TestRank::start(&world, generation, CACHE).await;
            let mut client = rank.connect(1).await;
            for dir in 0..10 {
                let read = client.call(read_file(&format!("d{dir}/sub/f"))).await.unwrap();
                assert_eq!(body_of(read).as_deref(), Some(format!("body {dir}").as_bytes()));
            }
            client.call(write_file(&format!("d0/sub/more{generation}"), b"")).await.unwrap();
            rank.stop().await;
        }
    });
}

fn orphans(world: &World) -> usize {
    world.records.keys(|key| matches!(key, Key::Orphan(_))).len()
}

async fn unlinked_but_open(world: &World, client: &mut Client) -> u64 {
    client.call(write_file("file", b"still here")).await.unwrap();
    let opened = client.call(open("file", 5, &[OpenFlag::Read])).await.unwrap();
    let pando_proto::mds::operation_result::Result::Open(opened) = opened else { panic!("{opened:?}") };
    client.call(unlink("file")).await.unwrap();
    assert_eq!(orphans(world), 1);
    opened.attr.unwrap().ino
}

#[test]
fn an_unlinked_open_file_lives_through_a_restart_until_its_session_ends() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let ino = unlinked_but_open(&world, &mut rank.connect(1).await).await;
        rank.stop().await;
        let rank = TestRank::start(&world, 2, CACHE).await;
        // Everyone else goes; client 1 comes back with its handle (R19).
        rank.change_map(|map| map.sessions.retain(|client, _| *client == ClientId(1)));
        let mut client = rank.connect(1).await;
        client.call(reclaim(vec![ReclaimedHandle { handle: 5, ino, flags: 1 }])).await.unwrap();
        let read = Op::Read(pando_proto::mds::ReadRequest { handle: 5, offset: 0, length: 100, ..Default::default() });
        let reply = client.call(read).await.unwrap();
        let pando_proto::mds::operation_result::Result::Read(read) = reply else { panic!("{reply:?}") };
        assert_eq!(read.data.as_deref(), Some(&b"still here"[..]));
        assert_eq!(orphans(&world), 1);
        // Everyone is back or gone, and it is still open.
        client.call(reclaim(vec![])).await.unwrap();
        assert_eq!(orphans(&world), 1);
        rank.change_map(|map| map.sessions.clear());
        while orphans(&world) > 0 {
            tokio::task::yield_now().await;
        }
        assert!(world.records.keys(|key| *key == Key::Inode(Ino(ino))).is_empty(), "I7");
        rank.stop().await;
    });
}

#[test]
fn orphans_wait_for_every_session_of_the_time_before() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        unlinked_but_open(&world, &mut rank.connect(1).await).await;
        rank.stop().await;
        let rank = TestRank::start(&world, 2, CACHE).await;
        let mut other = rank.connect(2).await;
        other.call(write_file("else", b"")).await.unwrap();
        other.call(reclaim(vec![])).await.unwrap();
        assert_eq!(orphans(&world), 1, "R19: client 1 may still hold it open");
        rank.change_map(|map| map.sessions.retain(|client, _| *client == ClientId(2)));
        while orphans(&world) > 0 {
            tokio::task::yield_now().await;
        }
        rank.stop().await;
    });
}

#[test]
fn i7_an_orphan_that_could_not_be_given_up_is_tried_again() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        unlinked_but_open(&world, &mut rank.connect(1).await).await;
        rank.stop().await;
        let rank = TestRank::start(&world, 2, CACHE).await;
        rank.connect(2).await.call(stat("absent")).await.unwrap_err();
        world.records.fail_reads(1);
        rank.change_map(|map| map.sessions.clear());
        while orphans(&world) > 0 {
            tokio::task::yield_now().await;
        }
        rank.stop().await;
    });
}

fn reclaim(handles: Vec<ReclaimedHandle>) -> Op {
    Op::Reclaim(ReclaimRequest { handles })
}

fn read(handle: u64) -> Op {
    Op::Read(pando_proto::mds::ReadRequest { handle, offset: 0, length: 100, ..Default::default() })
}

#[test]
fn an_unlinked_open_file_lives_through_an_opening_anew_in_the_same_process() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        rank.change_map(|map| map.sessions.retain(|client, _| client.0 <= 2));
        let (mut client, mut other) = (rank.connect(1).await, rank.connect(2).await);
        let ino = unlinked_but_open(&world, &mut client).await;
        world.records.refuse_next(Error::new(Reason::NoSpace, "full"));
        assert_eq!(other.call(write_file("refused", b"")).await.unwrap_err().reason, Reason::NoSpace);
        other.call_when_there_is_room(write_file("else", b"")).await.unwrap();
        for who in [&mut client, &mut other] {
            // Late: it is meant for the actor before.
            who.call(reclaim(vec![])).await.unwrap();
            who.learn(&rank);
        }
        other.call(reclaim(vec![])).await.unwrap();
        assert_eq!(orphans(&world), 1, "R19: client 1 is not back");
        client.call(reclaim(vec![ReclaimedHandle { handle: 5, ino, flags: 1 }])).await.unwrap();
        client.call(reclaim(vec![])).await.unwrap();
        other.call(write_file("last", b"")).await.unwrap();
        client.call(read(5)).await.expect("R19: the handle is as good as before");
        assert_eq!(orphans(&world), 1);
        client.call(Op::Close(CloseRequest { handle: 5, report: None, ..Default::default() })).await.unwrap();
        assert_eq!(orphans(&world), 0, "everyone is back, so the last close purges it");
        rank.stop().await;
    });
}

#[test]
fn r19_a_session_that_is_waited_for_is_told_so() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("file", b"")).await.unwrap();
        let mut told = Vec::new();
        for reclaims in [false, true] {
            if reclaims {
                client.call(reclaim(vec![])).await.unwrap();
            }
            client.raw(Up::KeepAlive(KeepAlive::default())).await;
            // What the actor says comes in order.
            client.call(write_file("file", b"")).await.unwrap();
            for frame in client.others() {
                if let Down::KeepAlive(alive) = frame {
                    told.extend(alive.awaiting.into_iter().map(|subtree| (reclaims, subtree)));
                }
            }
        }
        assert_eq!(told, [(false, 1)]);
        rank.stop().await;
    });
}

#[test]
fn a_keep_alive_is_not_the_end_of_reclaiming_but_an_empty_reclaim_is() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        unlinked_but_open(&world, &mut client).await;
        rank.stop().await;
        let rank = TestRank::start(&world, 2, CACHE).await;
        rank.change_map(|map| map.sessions.retain(|client, _| client.0 <= 2));
        let (mut client, mut other) = (rank.connect(1).await, rank.connect(2).await);
        other.call(write_file("else", b"")).await.unwrap();
        other.call(reclaim(vec![])).await.unwrap();
        client.raw(Up::KeepAlive(KeepAlive::default())).await;
        assert!(matches!(client.next_frame().await, Ok(Some(Down::KeepAlive(_)))));
        for name in ["more", "and", "more"] {
            other.call(write_file(name, b"")).await.unwrap();
        }
        assert_eq!(orphans(&world), 1, "R19: client 1 may be about to reclaim");
        client.call(reclaim(vec![])).await.unwrap();
        while orphans(&world) > 0 {
            tokio::task::yield_now().await;
        }
        rank.stop().await;
    });
}

/// `q/` records of an earlier epoch, each with the answer to one request of one of several clients.
fn remember(world: &World, count: u64) {
    for batch in 1..=count {
        let answer = Completed { client_id: 2 + batch % 8, request: batch, result: Bytes::from_static(b"") };
        let mut value = vec![FORMAT];
        value.extend(CompletedRecord { completed: vec![answer] }.encode_to_vec());
        world.records.put(&Key::Completed(ShardId(0), ROOT_SUBTREE, Epoch(1), batch), value.into());
    }
}

#[test]
fn r27_a_takeover_with_many_records_lets_others_run() {
    run(async {
        const RECORDS: u64 = 20_000;
        let world = World::default();
        remember(&world, RECORDS);
        let turns = std::rc::Rc::new(std::cell::Cell::new(0));
        let (count, longest) = (std::rc::Rc::clone(&turns), std::rc::Rc::new(std::cell::Cell::new(Duration::ZERO)));
        let seen = std::rc::Rc::clone(&longest);
        let others = tokio::task::spawn_local(async move {
            let mut last = std::time::Instant::now();
            loop {
                tokio::task::yield_now().await;
                count.set(count.get() + 1);
                seen.set(seen.get().max(last.elapsed()));
                last = std::time::Instant::now();
            }
        });
        let rank = TestRank::start(&world, 2, CACHE).await;
        let mut client = rank.connect(1).await;
        let before = turns.get();
        let answer = client.call(stat("nothing")).await.unwrap_err();
        assert_eq!(answer.errno, pando_proto::Errno::ENOENT);
        println!("{RECORDS} records: {} turns of others, {:?} between two at most", turns.get(), longest.get());
        assert!(turns.get() >= RECORDS / 64, "{} turns of others, {before} before the request", turns.get());
        others.abort();
        rank.stop().await;
    });
}
