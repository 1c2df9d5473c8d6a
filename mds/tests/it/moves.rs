//! A subtree is split off, or on its way to another rank (R11, R12).

use std::time::Duration;

use pando_cluster_map::{ClusterMap, RankInfo, Session, Subtree};
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::PrepareRequest;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::prepare_response::Answer;
use pando_proto::{ClientId, Epoch, Error, Ino, Rank, Reason, SubtreeId};

use crate::fake::Gate;
use crate::harness::*;
use crate::prepare::{ask, attr, linked};

const CACHE: u64 = 64 << 20;

fn add_rank_1(map: &mut ClusterMap) {
    let info = RankInfo { address: "elsewhere:1".to_owned(), up: true, ..RankInfo::default() };
    map.ranks.insert(Rank(1), info);
}

fn begin_move(rank: &TestRank) {
    rank.change_map(|map| {
        add_rank_1(map);
        let root = map.subtrees.get_mut(&ROOT_SUBTREE).unwrap();
        (root.move_id, root.moving_to) = (77, Rank(1));
    });
}

#[test]
fn r11_the_owner_of_a_child_fences_the_parent_it_was_split_from() {
    run(async {
        let (world, child) = (World::default(), SubtreeId(2));
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(mkdir("dir")).await.unwrap();
        let Reply::Stat(found) = client.call(stat("dir")).await.unwrap() else { panic!("no attributes") };
        let root = Ino(found.attr.unwrap().ino);
        // The parent is somebody else's, who has not opened it yet.
        rank.change_map(|map| {
            add_rank_1(map);
            let parent = map.subtrees.get_mut(&ROOT_SUBTREE).unwrap();
            (parent.owner, parent.epoch) = (Rank(1), Epoch(5));
            let subtree = Subtree {
                root,
                parent: Some(ROOT_SUBTREE),
                parent_dir: Some(Ino::ROOT),
                name: b"dir".to_vec(),
                owner: Rank(0),
                epoch: Epoch(1),
                split_from: Some((ROOT_SUBTREE, Epoch(4))),
                ..Subtree::default()
            };
            map.subtrees.insert(child, subtree);
            map.next_subtree_id = 3;
        });
        while world.records.fence(root.shard(), child) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let fence = world.records.fence(root.shard(), ROOT_SUBTREE);
        assert_eq!(fence, 4, "nothing that the parent sent before the split enters after it");
        rank.stop().await;
    });
}

#[test]
fn r12_nothing_is_handed_over_before_what_is_under_way_is_durable() {
    run(async {
        let world = World::default();
        *world.mons.handover.borrow_mut() = Some(Error::new(Reason::StaleEpoch, "not now"));
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("before", b"1")).await.unwrap();
        world.records.set_gate(Gate::Closed);
        let id = client.send(vec![write_file("under way", b"2")]).await[0];
        world.records.commits_wait(1).await;
        begin_move(&rank);
        for _ in 0..50 {
            assert!(client.is_unanswered(id).await, "R6");
        }
        assert_eq!(world.mons.handovers(), 0, "the handover waits for the batch");
        world.records.set_gate(Gate::Open);
        world.mons.are_asked(1).await;
        assert!(result(client.reply(id).await).is_ok());
        rank.stop().await;
    });
}

/// Two that drain, and have asked each other, would wait until both lose patience.
#[test]
fn r18_who_drains_lets_no_other_subtree_wait_for_what_has_not_begun() {
    run(async {
        let world = World::default();
        *world.mons.handover.borrow_mut() = Some(Error::new(Reason::StaleEpoch, "not now"));
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("f", b"1")).await.unwrap();
        let (ino, _) = attr(client.call(stat("f")).await.unwrap());
        world.records.set_gate(Gate::Closed);
        let id = client.send(vec![write_file("under way", b"2")]).await[0];
        world.records.commits_wait(1).await;
        begin_move(&rank);
        let look = PrepareRequest { probe: true, ..linked(1, ino) };
        let answer = loop {
            match ask(&rank, look.clone()).await.unwrap() {
                Answer::PreparedEpoch(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
                answer => break answer,
            }
        };
        assert_eq!(answer, Answer::Busy(true), "it waits for the batch");
        world.records.set_gate(Gate::Open);
        world.mons.are_asked(1).await;
        result(client.reply(id).await).unwrap();
        rank.stop().await;
    });
}

#[test]
fn r12_nothing_is_served_until_the_outcome_of_a_handover_is_known() {
    run(async {
        let world = World::default();
        *world.mons.handover.borrow_mut() = Some(Error::new(Reason::Unavailable, "no answer came"));
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("file", b"1")).await.unwrap();
        begin_move(&rank);
        world.mons.are_asked(1).await;
        let id = client.send(vec![stat("file")]).await[0];
        for _ in 0..50 {
            assert!(client.is_unanswered(id).await, "a read, by who may be the owner no more");
        }
        world.mons.are_asked(3).await;
        assert!(client.is_unanswered(id).await);
        *world.mons.handover.borrow_mut() = Some(Error::new(Reason::StaleEpoch, "there is no such move"));
        assert!(result(client.reply(id).await).is_ok(), "it stays here, and is served again");
        rank.stop().await;
    });
}

async fn write_some(client: &mut Client, round: usize, count: usize) {
    let files = (0..count).map(|file| write_file(&format!("file{file}"), format!("{round}").as_bytes())).collect();
    for id in client.send(files).await {
        result(client.reply(id).await).unwrap();
    }
}

#[test]
fn r12_rounds_that_never_shrink_come_to_an_end() {
    run(async {
        let world = World::default();
        *world.mons.handover.borrow_mut() = Some(Error::new(Reason::StaleEpoch, "not now"));
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        write_some(&mut client, 0, 300).await;
        world.peers.allow(Some(0));
        begin_move(&rank);
        let mut round = 1;
        while world.mons.handovers() == 0 {
            world.peers.have_begun(round).await;
            // While this part is on its way everything changes again.
            if world.mons.handovers() == 0 && round < 20 {
                write_some(&mut client, round, 300).await;
            }
            world.peers.allow(Some(round));
            round += 1;
            tokio::select! {
                () = world.peers.have_begun(round) => {}
                () = world.mons.are_asked(1) => {}
            }
            // The last part comes when it stands still: it may not wait for us.
            if round == 3 {
                world.peers.allow(None);
            }
        }
        let parts = world.peers.begun();
        assert!((3..=10).contains(&parts), "{parts} parts: the copy, rounds, the rest");
        let frames = world.peers.frames.borrow().clone();
        assert!(frames.iter().enumerate().all(|(at, (number, _))| at as u64 == *number), "numbered in their order");
        assert_eq!(frames.iter().filter(|(_, last)| *last).count(), 1);
        rank.stop().await;
    });
}

#[test]
fn r12_a_destination_that_dies_between_two_rounds_leaves_the_subtree_where_it_is() {
    run(async {
        for dies in 1..=3 {
            let world = World::default();
            *world.mons.handover.borrow_mut() = Some(Error::new(Reason::StaleEpoch, "not now"));
            world.peers.refuse_from.set(Some(dies));
            world.peers.allow(Some(0));
            let rank = TestRank::start(&world, 1, CACHE).await;
            let mut client = rank.connect(1).await;
            write_some(&mut client, 0, 200).await;
            begin_move(&rank);
            world.peers.have_begun(1).await;
            write_some(&mut client, 1, 200).await;
            world.peers.allow(None);
            world.peers.have_begun(dies).await;
            // It is served, also what was asked while it stood still.
            write_some(&mut client, 2, 200).await;
            let read = client.call(read_file("file7")).await.unwrap();
            assert_eq!(body_of(read).as_deref(), Some(&b"2"[..]), "died at {dies}");
            assert_eq!(world.mons.handovers(), 0, "nothing was proposed");
            rank.stop().await;
        }
    });
}

#[test]
fn requests_wait_for_a_subtree_that_is_being_taken_over() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("file", b"1")).await.unwrap();
        rank.stop().await;
        // Takes a while.
        let slow = World { records: world.records.clone().with_read_delay(Duration::from_millis(30)), ..world.clone() };
        let rank = TestRank::start(&slow, 2, CACHE).await;
        let mut client = rank.connect(1).await;
        let ids = client.send(vec![stat("file"), write_file("other", b"2")]).await;
        for id in ids {
            result(client.reply(id).await).expect("nobody has to come again");
        }
        rank.stop().await;
    });
}

#[test]
fn r14_a_session_that_is_newer_than_the_takeover_waits_as_well() {
    run(async {
        let world = World::default();
        let slow = World { records: world.records.clone().with_read_delay(Duration::from_millis(50)), ..world };
        let rank = TestRank::start(&slow, 1, CACHE).await;
        tokio::task::yield_now().await;
        rank.change_map(|map| {
            map.sessions.insert(ClientId(77), Session::default());
        });
        let mut client = rank.connect(77).await;
        let id = client.send(vec![write_file("file", b"1")]).await[0];
        result(client.reply(id).await).expect("the session is in the map");
        rank.stop().await;
    });
}

#[test]
fn requests_do_not_wait_for_ever_for_a_subtree_that_cannot_be_taken_over() {
    run(async {
        let world = World::default();
        let slow = World { records: world.records.clone().with_read_delay(Duration::from_secs(3600)), ..world };
        let rank = TestRank::start(&slow, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let first = client.send(vec![stat("file")]).await[0];
        let error = result(client.reply(first).await).unwrap_err();
        assert_eq!(error.reason, Reason::Unavailable, "{error}");
        assert!(error.retry_after.is_some());
        // Another rank takes it, and who waits hears of it at once.
        let second = client.send(vec![stat("file")]).await[0];
        assert!(client.is_unanswered(second).await);
        rank.change_map(|map| {
            add_rank_1(map);
            let root = map.subtrees.get_mut(&ROOT_SUBTREE).unwrap();
            (root.owner, root.epoch) = (Rank(1), Epoch(2));
        });
        let Reply::Redirect(redirect) = client.reply(second).await else { panic!("no redirect") };
        assert_eq!(redirect.rank, 1);
        rank.stop().await;
    });
}
