//! Replies and commits (I2, R6, R7, R13).

use std::time::Duration;

use pando_cluster_map::RankInfo;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::{Epoch, Errno, Error, Ino, Rank, Reason, ShardId};

use crate::fake::Gate;
use crate::harness::*;

const CACHE: u64 = 64 << 20;

#[test]
fn files_are_created_and_read_over_the_stream() {
    run(async {
        let (world, data) = (World::default(), b"inline bytes");
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(mkdir("dir")).await.unwrap();
        client.call(write_file("dir/file", data)).await.unwrap();
        let read = client.call(read_file("dir/file")).await.unwrap();
        assert_eq!(body_of(read).as_deref(), Some(&data[..]));
        let absent = client.call(stat("dir/other")).await.unwrap_err();
        assert_eq!((absent.errno, absent.rank), (Errno::ENOENT, Some(0)));
        rank.stop().await;
    });
}

#[test]
fn no_reply_leaves_before_what_it_reveals_is_durable() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let (mut writer, mut reader) = (rank.connect(1).await, rank.connect(2).await);
        writer.call(mkdir("dir")).await.unwrap();
        writer.call(write_file("dir/old", b"old")).await.unwrap();
        writer.call(mkdir("other")).await.unwrap();
        writer.call(stat("dir/old")).await.unwrap();
        world.records.set_gate(Gate::Closed);
        let written = writer.send(vec![write_file("other/new", b"x")]).await[0];
        world.records.commits_wait(1).await;
        assert!(writer.is_unanswered(written).await, "I2");
        let seen = reader.send(vec![read_file("other/new"), read_file("dir/old")]).await;
        assert!(reader.is_unanswered(seen[0]).await, "R6: the read saw an undurable file");
        assert_eq!(body_of(reader.reply(seen[1]).await).as_deref(), Some(&b"old"[..]), "clean state leaves at once");
        world.records.set_gate(Gate::Open);
        assert!(result(writer.reply(written).await).is_ok());
        assert_eq!(body_of(reader.reply(seen[0]).await).as_deref(), Some(&b"x"[..]));
        rank.stop().await;
    });
}

/// What the actor had in flight, and which numbers it used, nobody knows any more: another incarnation goes on.
#[test]
fn i4_a_rank_whose_actor_panicked_opens_the_subtree_no_more() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(mkdir("before")).await.unwrap();
        world.records.break_next();
        client.send(vec![mkdir("lost")]).await;
        let error = rank.handle.outcome().await.unwrap_err();
        assert_eq!(error.reason, Reason::Internal);
        let rank = TestRank::start(&world, 2, CACHE).await;
        let mut client = rank.connect(2).await;
        client.call(stat("before")).await.unwrap();
        client.call(mkdir("lost")).await.unwrap();
        rank.stop().await;
    });
}

#[test]
fn absence_waits_for_the_unlink_that_made_it() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let (mut writer, mut reader) = (rank.connect(1).await, rank.connect(2).await);
        writer.call(write_file("file", b"x")).await.unwrap();
        world.records.set_gate(Gate::Closed);
        let unlinked = writer.send(vec![unlink("file")]).await[0];
        world.records.commits_wait(1).await;
        let absent = reader.send(vec![stat("file")]).await[0];
        assert!(reader.is_unanswered(absent).await, "R6: ENOENT reveals the unlink");
        world.records.set_gate(Gate::Open);
        assert_eq!(result(reader.reply(absent).await).unwrap_err().errno, Errno::ENOENT);
        assert!(result(writer.reply(unlinked).await).is_ok());
        rank.stop().await;
    });
}

#[test]
fn what_comes_during_a_commit_shares_the_next_one() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(mkdir("dir")).await.unwrap();
        client.call(write_file("dir/first", b"")).await.unwrap();
        let before = world.records.commits();
        world.records.set_gate(Gate::Closed);
        let mut ids = client.send(vec![write_file("dir/a", b"1")]).await;
        world.records.commits_wait(1).await;
        ids.extend(client.send((0..200).map(|n| write_file(&format!("dir/b{n}"), b"2")).collect()).await);
        assert!(client.is_unanswered(ids[200]).await);
        world.records.set_gate(Gate::Open);
        for id in ids {
            assert!(result(client.reply(id).await).is_ok());
        }
        let commits = world.records.commits() - before;
        assert!(commits <= 3, "201 creates took {commits} commits");
        rank.stop().await;
    });
}

#[test]
fn a_refusal_by_the_fence_drops_the_held_replies_and_redirects() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("kept", b"1")).await.unwrap();
        for shard in 0..64 {
            world.records.raise(ShardId(shard), ROOT_SUBTREE, 2);
        }
        let lost = client.send(vec![write_file("lost", b"2")]).await[0];
        let error = result(client.reply(lost).await).unwrap_err();
        assert_eq!((error.reason, error.epoch), (Reason::NotOwner, Some(2)), "R7");
        rank.change_map(|map| {
            let info = RankInfo { address: "elsewhere:1".to_owned(), up: true, ..RankInfo::default() };
            map.ranks.insert(Rank(1), info);
            let root = map.subtrees.get_mut(&ROOT_SUBTREE).unwrap();
            (root.owner, root.epoch) = (Rank(1), Epoch(2));
        });
        let moved = loop {
            let refused = client.send(vec![stat("kept")]).await[0];
            match client.reply(refused).await {
                Reply::Redirect(moved) => break moved,
                other => assert!(result(other).unwrap_err().is_retryable()),
            }
        };
        assert_eq!((moved.rank, &moved.address[..], moved.subtree_epoch), (1, "elsewhere:1", 2));
        rank.stop().await;
    });
}

#[test]
fn a_batch_that_the_pool_refuses_is_undone_and_the_subtree_opened_again_under_its_next_epoch() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("kept", b"1")).await.unwrap();
        world.records.refuse_next(Error::new(Reason::NoSpace, "full"));
        let refused = client.send(vec![write_file("refused", b"2")]).await[0];
        assert_eq!(result(client.reply(refused).await).unwrap_err().errno, Errno::ENOSPC, "I9");
        assert_eq!(client.call(stat("refused")).await.unwrap_err().errno, Errno::ENOENT);
        assert_eq!(body_of(client.call(read_file("kept")).await.unwrap()).as_deref(), Some(&b"1"[..]));
        client.call_when_there_is_room(write_file("again", b"3")).await.unwrap();
        // R19: what clients have told the actor before counts for nothing.
        assert_eq!(rank.map.borrow().root_subtree().unwrap().epoch, Epoch(2));
        assert_eq!(world.records.fence(Ino::ROOT.shard(), ROOT_SUBTREE), 2);
        rank.stop().await;
    });
}

#[test]
fn a_rank_without_a_lease_says_nothing() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("file", b"x")).await.unwrap();
        rank.lease.give_up();
        let read = client.send(vec![read_file("file")]).await[0];
        let error = result(client.reply(read).await).unwrap_err();
        assert_eq!(error.reason, Reason::Unavailable, "R13: not even a read of clean state");
        rank.stop().await;
    });
}

#[test]
fn unary_methods_and_batches_do_the_same() {
    use pando_proto::mds::namespace_service_client::NamespaceServiceClient;
    use pando_proto::mds::operation::Op;
    use pando_proto::mds::{BatchRequest, OpenRequest, Operation, StatfsRequest};
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        rank.connect(1).await.call(write_file("ready", b"")).await.unwrap();
        let mut service = NamespaceServiceClient::new(rank.channel().await);
        let operations = vec![mkdir("a"), write_file("a/f", b"body"), read_file("a/f"), stat("nothing"), stat("a")];
        let operations = operations.into_iter().map(|op| Operation { op: Some(op) }).collect();
        let results = service.batch(BatchRequest { operations }).await.unwrap().into_inner().results;
        let mut results = results.into_iter().map(|one| result(one.result.unwrap()));
        assert!(matches!(results.next(), Some(Ok(Reply::Mkdir(_)))));
        assert!(matches!(results.next(), Some(Ok(Reply::WriteFile(_)))));
        assert_eq!(body_of(results.next().unwrap().unwrap()).as_deref(), Some(&b"body"[..]));
        assert_eq!(results.next().unwrap().unwrap_err().errno, Errno::ENOENT);
        assert!(matches!(results.next(), Some(Ok(Reply::Stat(_)))));
        let Op::Open(request) = open("a/f", 1, &[]) else { unreachable!() };
        let refused = service.open(OpenRequest { handle: 1, ..request }).await.unwrap_err();
        assert!(!Error::from_tonic(&refused).message.is_empty(), "no handles without a session");
        let space = service.statfs(StatfsRequest {}).await.unwrap().into_inner();
        assert_eq!((space.total_bytes, space.used_bytes), (1 << 40, 1 << 30));
        rank.stop().await;
    });
}

#[test]
fn equal_fetches_are_made_once() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("file", b"x")).await.unwrap();
        rank.stop().await;
        let world = World { records: world.records.with_read_delay(Duration::from_millis(30)), ..world };
        let rank = TestRank::start(&world, 2, CACHE).await;
        let mut client = rank.connect(1).await;
        // The cold walk to an absent name warms the root.
        client.call(stat("absent")).await.unwrap_err();
        let before = world.records.gets();
        let ids = client.send(vec![read_file("file"); 20]).await;
        for id in ids {
            assert_eq!(body_of(client.reply(id).await).as_deref(), Some(&b"x"[..]));
        }
        let gets = world.records.gets() - before;
        assert!(gets <= 3, "20 reads of one cold file made {gets} fetches");
        rank.stop().await;
    });
}
