//! Bodies that move to objects, and objects that go (R22 to R24, I7).

use bytes::Bytes;
use pando_mds_core::records::Key;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::{DataHome, GrantSizeRequest, OpenFlag, Placement, SetAttrRequest, WriteRequest};
use pando_proto::{Errno, Reason};

use crate::harness::*;

const CACHE: u64 = 64 << 20;
const READ_WRITE: [OpenFlag; 2] = [OpenFlag::Read, OpenFlag::Write];

fn write(handle: u64, offset: u64, data: &[u8]) -> Op {
    Op::Write(WriteRequest { handle, offset, data: Bytes::copy_from_slice(data), append: false, ..Default::default() })
}

fn truncate(path: &str, size: u64) -> Op {
    let (caller, target) = (root(), at(path));
    Op::SetAttr(SetAttrRequest { caller, target, size: Some(size), ..SetAttrRequest::default() })
}

async fn outgrow(client: &mut Client, path: &str, handle: u64) -> (u64, Placement) {
    client.call(write_file(path, b"small")).await.unwrap();
    client.call(open(path, handle, &READ_WRITE)).await.unwrap();
    let Reply::Write(reply) = client.call(write(handle, 5, &[1; 8000])).await.unwrap() else { panic!() };
    assert!(!reply.written, "it belongs to objects");
    (reply.attr.unwrap().ino, reply.placement.unwrap())
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_file_that_outgrows_its_body_moves_to_objects_whole() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let (ino, placement) = outgrow(&mut client, "file", 1).await;
        assert_eq!(placement.home(), DataHome::Objects);
        let (generation, body) = world.objects.object(ino, 0).expect("R24: the body is an object now");
        assert_eq!((&body[..], generation), (&b"small"[..], placement.generation));
        let left = world.records.keys(|key| matches!(key, Key::Body(_) | Key::Purge(_)));
        assert_eq!(left, [], "never two homes for the same bytes");
        rank.stop().await;
    });
}

#[test]
fn a_spill_that_fails_leaves_the_body_where_it_was() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("file", b"small")).await.unwrap();
        client.call(open("file", 1, &READ_WRITE)).await.unwrap();
        world.objects.set_full(true);
        let error = client.call(write(1, 5, &[1; 8000])).await.unwrap_err();
        assert_eq!((error.reason, error.errno), (Reason::NoSpace, Errno::ENOSPC), "I9");
        assert_eq!(body_of(client.call(read_file("file")).await.unwrap()).as_deref(), Some(&b"small"[..]));
        world.objects.set_full(false);
        until(|| world.records.keys(|key| matches!(key, Key::Purge(_))).is_empty()).await;
        let Reply::Write(reply) = client.call(write(1, 5, &[1; 8000])).await.unwrap() else { panic!() };
        assert_eq!(reply.placement.unwrap().home(), DataHome::Objects);
        rank.stop().await;
    });
}

#[test]
fn objects_of_an_unlinked_file_are_purged_whatever_happens() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let (ino, placement) = outgrow(&mut client, "file", 1).await;
        let size = placement.object_size * 3;
        client.call(Op::GrantSize(GrantSizeRequest { handle: 1, size, ..Default::default() })).await.unwrap();
        for index in 0..3 {
            world.objects.put(ino, index, placement.generation, b"data");
        }
        client
            .call(Op::Close(pando_proto::mds::CloseRequest { handle: 1, report: None, ..Default::default() }))
            .await
            .unwrap();
        // The data pool does not answer, and then the rank dies.
        world.objects.fail_trims(1_000_000);
        client.call(unlink("file")).await.unwrap();
        assert_eq!(world.objects.count(), 3);
        rank.stop().await;
        world.objects.fail_trims(2);
        let rank = TestRank::start(&world, 2, CACHE).await;
        // Whoever may have had it open is gone (R19).
        rank.change_map(|map| map.sessions.clear());
        until(|| world.objects.count() == 0).await;
        // The record goes once that is durable.
        until(|| world.records.keys(|key| matches!(key, Key::Purge(_))).is_empty()).await;
        rank.stop().await;
    });
}

#[test]
fn a_truncation_is_answered_when_the_objects_are_cut() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let (ino, placement) = outgrow(&mut client, "file", 1).await;
        let size = placement.object_size + 100;
        client.call(Op::GrantSize(GrantSizeRequest { handle: 1, size, ..Default::default() })).await.unwrap();
        world.objects.put(ino, 0, placement.generation, b"0123456789");
        world.objects.put(ino, 1, placement.generation, b"tail");
        client.call(truncate("file", 4)).await.unwrap();
        assert_eq!(world.objects.object(ino, 0).unwrap().1, b"0123"[..], "R22: cut before the answer");
        assert_eq!(world.objects.object(ino, 1), None);
        rank.stop().await;
    });
}

#[test]
fn new_objects_wait_for_the_purge_of_the_old_ones() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let (ino, placement) = outgrow(&mut client, "file", 1).await;
        // Trims fail long enough for the grant to meet the purge.
        world.objects.fail_trims(1);
        client.call(truncate("file", 0)).await.unwrap();
        assert!(world.objects.object(ino, 0).is_some(), "the truncation does not wait for the purge");
        let size = placement.object_size;
        let Reply::GrantSize(reply) =
            client.call(Op::GrantSize(GrantSizeRequest { handle: 1, size, ..Default::default() })).await.unwrap()
        else {
            panic!()
        };
        assert_eq!(world.objects.object(ino, 0), None, "R22: what is written now is not deleted any more");
        assert_eq!(reply.placement.unwrap().max_size, size);
        rank.stop().await;
    });
}

#[test]
fn what_was_granted_and_never_reported_is_cut_before_the_next_grant() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let (ino, placement) = outgrow(&mut client, "file", 1).await;
        let size = placement.object_size * 2;
        client.call(Op::GrantSize(GrantSizeRequest { handle: 1, size, ..Default::default() })).await.unwrap();
        world.objects.put(ino, 0, placement.generation, b"smallunreported");
        world.objects.put(ino, 1, placement.generation, b"unreported");
        client
            .call(Op::Close(pando_proto::mds::CloseRequest { handle: 1, report: None, ..Default::default() }))
            .await
            .unwrap();
        client.call(open("file", 2, &READ_WRITE)).await.unwrap();
        client.call(Op::GrantSize(GrantSizeRequest { handle: 2, size, ..Default::default() })).await.unwrap();
        assert_eq!(world.objects.object(ino, 0).unwrap().1, b"small"[..], "R23");
        assert_eq!(world.objects.object(ino, 1), None);
        rank.stop().await;
    });
}

#[test]
fn a_purge_that_another_owner_has_done_ends() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let (ino, placement) = outgrow(&mut client, "file", 1).await;
        world.objects.put(ino, 0, placement.generation + 9, b"later");
        client.call(truncate("file", 0)).await.unwrap();
        until(|| world.records.keys(|key| matches!(key, Key::Purge(_))).is_empty()).await;
        assert_eq!(world.objects.object(ino, 0).unwrap().1, b"later"[..], "R22");
        rank.stop().await;
    });
}

#[test]
fn a_purge_that_somebody_waits_for_overtakes_those_that_cannot_go_on() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let (ino, placement) = outgrow(&mut client, "file", 1).await;
        // More files than are purged at once, with objects in a placement group that is down.
        for number in 0..40 {
            let path = format!("gone{number}");
            let (gone, _) = outgrow(&mut client, &path, 9).await;
            world.objects.stick(gone);
            client
                .call(Op::Close(pando_proto::mds::CloseRequest { handle: 9, report: None, ..Default::default() }))
                .await
                .unwrap();
            client.call(unlink(&path)).await.unwrap();
        }
        client.call(truncate("file", 0)).await.unwrap();
        let size = placement.object_size;
        client.call(Op::GrantSize(GrantSizeRequest { handle: 1, size, ..Default::default() })).await.unwrap();
        assert_eq!(world.objects.object(ino, 0), None);
        assert_eq!(world.objects.count(), 40);
        rank.stop().await;
    });
}

/// A byte was written at its very end, and nothing in between.
async fn sparse(world: &World, client: &mut Client, path: &str) -> u64 {
    const SIZE: u64 = 1 << 40;
    let (ino, placement) = outgrow(client, path, 1).await;
    client.call(Op::GrantSize(GrantSizeRequest { handle: 1, size: SIZE, ..Default::default() })).await.unwrap();
    for index in [0, 3, (SIZE - 1) / placement.object_size] {
        world.objects.put(ino, index, placement.generation, b"data");
    }
    ino
}

#[test]
fn i7_a_sparse_file_is_purged_by_what_is_there_not_by_what_could_be() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let ino = sparse(&world, &mut client, "file").await;
        client.call(truncate("file", 4)).await.unwrap();
        assert_eq!(world.objects.object(ino, 0).unwrap().1, b"data"[..]);
        assert_eq!(world.objects.count(), 1, "R22: cut before the answer");
        assert!(world.objects.trims() <= 9, "{} trims, for 8 groups and what is cut in two", world.objects.trims());
        let before = world.objects.trims();
        client
            .call(Op::Close(pando_proto::mds::CloseRequest { handle: 1, report: None, ..Default::default() }))
            .await
            .unwrap();
        sparse(&world, &mut client, "other").await;
        client
            .call(Op::Close(pando_proto::mds::CloseRequest { handle: 1, report: None, ..Default::default() }))
            .await
            .unwrap();
        client.call(unlink("other")).await.unwrap();
        // Whoever may have had it open is gone (R19).
        rank.change_map(|map| map.sessions.clear());
        until(|| world.objects.count() == 1).await;
        until(|| world.records.keys(|key| matches!(key, Key::Purge(_))).is_empty()).await;
        assert!(world.objects.trims() - before <= 8, "{} trims", world.objects.trims() - before);
        rank.stop().await;
    });
}
