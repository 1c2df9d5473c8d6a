//! A pool that is full (I9, R5, R7).

use pando_mds_core::records::Key;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::{GrantSizeRequest, OpenFlag, SetAttrRequest, WriteRequest};
use pando_proto::{Errno, Error, Reason, ShardId};

use crate::fake::Gate;
use crate::harness::*;

const CACHE: u64 = 64 << 20;

#[test]
fn only_changes_of_the_refused_batch_are_told_that_there_is_no_space() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("ready", b"")).await.unwrap();
        world.records.set_gate(Gate::Closed);
        let refused = client.send(vec![write_file("refused", b"1")]).await[0];
        world.records.commits_wait(1).await;
        let later = client.send(vec![write_file("later", b"2")]).await[0];
        assert!(client.is_unanswered(later).await);
        world.records.refuse_next(Error::new(Reason::NoSpace, "full"));
        world.records.set_gate(Gate::Open);
        assert_eq!(result(client.reply(refused).await).unwrap_err().reason, Reason::NoSpace, "I9");
        assert_eq!(result(client.reply(later).await).unwrap_err().reason, Reason::Unavailable, "R7: it is run again");
        client.repeat(later, write_file("later", b"2")).await;
        let mut reply = result(client.reply(later).await);
        while reply.is_err() {
            client.repeat(later, write_file("later", b"2")).await;
            reply = result(client.reply(later).await);
        }
        assert_eq!(client.call(stat("refused")).await.unwrap_err().errno, Errno::ENOENT);
        rank.stop().await;
    });
}

#[test]
fn a_durable_truncation_that_waits_for_its_cut_is_never_told_that_there_is_no_space() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let (mut client, mut other) = (rank.connect(1).await, rank.connect(2).await);
        client.call(write_file("file", b"small")).await.unwrap();
        client.call(open("file", 1, &[OpenFlag::Read, OpenFlag::Write])).await.unwrap();
        let write =
            WriteRequest { handle: 1, offset: 5, data: vec![1; 8000].into(), append: false, ..Default::default() };
        let Reply::Write(outgrown) = client.call(Op::Write(write)).await.unwrap() else { panic!() };
        let (ino, placement) = (outgrown.attr.unwrap().ino, outgrown.placement.unwrap());
        let size = placement.object_size + 100;
        client.call(Op::GrantSize(GrantSizeRequest { handle: 1, size, ..Default::default() })).await.unwrap();
        world.objects.put(ino, 0, placement.generation, b"0123456789");
        world.objects.fail_trims(1_000_000);
        let truncate =
            SetAttrRequest { caller: root(), target: at("file"), size: Some(4), ..SetAttrRequest::default() };
        let truncate = Op::SetAttr(truncate);
        let cut = client.send(vec![truncate.clone()]).await[0];
        while world.records.keys(|key| matches!(key, Key::Purge(_))).is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(client.is_unanswered(cut).await, "R22");
        world.records.refuse_next(Error::new(Reason::NoSpace, "full"));
        assert_eq!(other.call(write_file("refused", b"")).await.unwrap_err().reason, Reason::NoSpace);
        assert_eq!(result(client.reply(cut).await).unwrap_err().reason, Reason::Unavailable, "it is done");
        world.objects.fail_trims(0);
        client.call(stat("file")).await.unwrap();
        client.repeat(cut, truncate).await;
        assert!(result(client.reply(cut).await).is_ok(), "R9: answered from q/");
        while world.objects.object(ino, 0).unwrap().1 != b"0123"[..] {
            tokio::task::yield_now().await;
        }
        rank.stop().await;
    });
}

/// Makes directories until the second part of one hangs; its name.
async fn half_a_mkdir(world: &World, client: &mut Client) -> String {
    world.records.set_gate(Gate::Shards((1..(1 << 15)).map(ShardId).collect()));
    for n in 0..256 {
        let name = format!("next{n}");
        // The names of an earlier call are there already.
        let id = client.send(vec![mkdir(&name)]).await[0];
        let made = result(client.reply(id).await).is_ok();
        if made && world.records.waiting() > 0 {
            return name;
        }
    }
    panic!("no directory near the root was spread to another shard");
}

#[test]
fn later_parts_and_repairs_use_the_space_in_reserve() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("file", b"")).await.unwrap();
        half_a_mkdir(&world, &mut client).await;
        world.records.set_full(true);
        world.records.set_gate(Gate::Open);
        while world.records.waiting() > 0 {
            tokio::task::yield_now().await;
        }
        // Opening the subtree anew would end the stream.
        client.call(unlink("file")).await.expect("R5: no later part is refused");
        world.records.set_full(false);
        let name = half_a_mkdir(&world, &mut client).await;
        rank.stop().await;
        world.records.set_full(true);
        world.records.set_gate(Gate::Open);
        let rank = TestRank::start(&world, 2, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(stat(&name)).await.expect("R5: a full pool takes the repair");
        rank.stop().await;
    });
}

#[test]
fn i9_a_full_pool_refuses_what_is_known_not_to_fit_before_it_is_in_memory() {
    const MANY: usize = 200;
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        for number in 0..MANY {
            client.call(write_file(&format!("old{number}"), b"")).await.unwrap();
        }
        world.records.set_full(true);
        assert_eq!(client.call(write_file("new", b"1")).await.unwrap_err().reason, Reason::NoSpace);
        let mut client = rank.connect(2).await;
        for number in 0..MANY {
            let error = client.call(write_file("new", b"1")).await.unwrap_err();
            assert_eq!((error.reason, error.errno), (Reason::NoSpace, Errno::ENOSPC));
            client.call(stat(&format!("old{number}"))).await.expect("I9: it is read");
            client.call(unlink(&format!("old{number}"))).await.expect("I9: it is deleted");
        }
        // At times one tries again.
        assert!(world.records.refusals() < MANY / 2, "R7: the subtree is not opened anew for each");
        world.records.set_full(false);
        client.call_when_there_is_room(write_file("new", b"1")).await.expect("I9: it recovers");
        rank.stop().await;
    });
}
