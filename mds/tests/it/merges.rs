//! A subtree becomes part of its parent (R11).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pando_cluster_map::{ClusterMap, Lineage, Subtree};
use pando_mds_core::records::{FORMAT, Key};
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::subtree_service_client::SubtreeServiceClient;
use pando_proto::mds::{self, MergeRequest, PurgeRecord};
use pando_proto::{Epoch, Errno, Error, Ino, Rank, Reason, SubtreeId};

use prost::Message as _;

use crate::harness::*;

const CACHE: u64 = 64 << 20;
pub const CHILD: SubtreeId = SubtreeId(2);

pub fn split(map: &mut ClusterMap, root: Ino) {
    let parent = map.subtrees.get_mut(&ROOT_SUBTREE).unwrap();
    parent.epoch.0 += 1;
    let split_from = Some((ROOT_SUBTREE, parent.epoch));
    let child = Subtree {
        root,
        parent: Some(ROOT_SUBTREE),
        parent_dir: Some(Ino::ROOT),
        name: b"dir".to_vec(),
        owner: Rank(0),
        epoch: Epoch(1),
        route: 1,
        split_from,
        ..Subtree::default()
    };
    map.subtrees.insert(CHILD, child);
    map.next_subtree_id = 3;
}

fn merge(map: &mut ClusterMap) {
    let child = map.subtrees.remove(&CHILD).unwrap();
    let parent = map.subtrees.get_mut(&ROOT_SUBTREE).unwrap();
    parent.epoch.0 += 1;
    map.lineage.push(Lineage {
        child: CHILD,
        parent: ROOT_SUBTREE,
        epoch: Epoch(map.epoch.0 + 1),
        merged: true,
        child_fence: Epoch(child.epoch.0 + 1),
        child_root: child.root,
    });
}

/// An operation on what is in the child, sent there.
pub async fn call_child(
    rank: &TestRank,
    client: &mut Client,
    root: Ino,
    op: impl Fn(mds::Target) -> mds::operation::Op,
) {
    loop {
        let id = client.send_to(CHILD, op(mds::Target { base: root.0, path: "in".into() })).await;
        match result(client.reply(id).await) {
            Err(error) if error.retry_after.is_some() => tokio::time::sleep(Duration::from_millis(5)).await,
            other => break drop(other.unwrap()),
        }
        assert!(rank.map.borrow().subtrees.contains_key(&CHILD));
    }
}

/// `dir`, which is a subtree, with `in`, and `out` beside it; all of it is in memory. The root of `dir`, and the inode
/// of `out`.
pub async fn two_subtrees(rank: &TestRank, client: &mut Client) -> (Ino, Ino) {
    client.call(mkdir("dir")).await.unwrap();
    client.call(write_file("dir/in", b"inside")).await.unwrap();
    client.call(write_file("out", b"outside")).await.unwrap();
    let mut inos = Vec::new();
    for path in ["dir", "out"] {
        let Reply::Stat(found) = client.call(stat(path)).await.unwrap() else { panic!("no attributes") };
        inos.push(Ino(found.attr.unwrap().ino));
    }
    rank.change_map(|map| split(map, inos[0]));
    let read = |target| mds::operation::Op::ReadFile(mds::ReadFileRequest { caller: root(), target: Some(target) });
    call_child(rank, client, inos[0], read).await;
    assert_eq!(body_of(client.call(read_file("out")).await.unwrap()).unwrap(), "outside");
    (inos[0], inos[1])
}

async fn ask_to_merge(rank: &TestRank) -> Result<u64, Error> {
    let mut service = SubtreeServiceClient::new(rank.channel().await);
    let merged = service.merge(MergeRequest { subtree: CHILD.0 }).await;
    merged.map(|merged| merged.into_inner().map_epoch).map_err(|status| Error::from_tonic(&status))
}

#[test]
fn r11_what_was_in_memory_of_both_is_there_after_a_merge() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        two_subtrees(&rank, &mut client).await;
        let map = rank.map.clone();
        let merging = move |request: pando_proto::mon::MergeSubtreeRequest| {
            let known = map.borrow().clone();
            assert_eq!((request.child_epoch, request.parent_epoch), (1, known.subtrees[&ROOT_SUBTREE].epoch.0));
            change(&map, merge);
            Ok(map.borrow().epoch)
        };
        *world.mons.merging.borrow_mut() = Some(Box::new(merging));
        ask_to_merge(&rank).await.unwrap();
        // Whoever is answered finds it open; the takeover has read what it needs.
        client.call(stat("")).await.unwrap();
        let gets = world.records.gets();
        assert_eq!(body_of(client.call(read_file("out")).await.unwrap()).unwrap(), "outside");
        assert_eq!(body_of(client.call(read_file("dir/in")).await.unwrap()).unwrap(), "inside");
        assert_eq!(client.call(stat("dir/nothing")).await.unwrap_err().errno, Errno::ENOENT);
        assert_eq!(world.records.gets(), gets, "nothing was fetched again");
        client.call(write_file("dir/in", b"changed")).await.unwrap();
        assert_eq!(body_of(client.call(read_file("dir/in")).await.unwrap()).unwrap(), "changed");
        rank.stop().await;
    });
}

#[test]
fn r11_a_cache_is_not_used_if_more_than_the_merge_has_happened() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let (_, out) = two_subtrees(&rank, &mut client).await;
        let (map, records, asked) = (rank.map.clone(), world.records.clone(), Rc::new(Cell::new(0)));
        let count = Rc::clone(&asked);
        let merging = move |_| {
            count.set(count.get() + 1);
            if count.get() == 1 {
                // It takes effect, but its answer is lost; until the next one comes somebody else has had the parent.
                change(&map, merge);
                records.change_inode(out, |inode| inode.mode = 0o600);
                change(&map, |map| map.subtrees.get_mut(&ROOT_SUBTREE).unwrap().epoch.0 += 1);
                return Err(Error::new(Reason::Unavailable, "no answer came"));
            }
            Ok(map.borrow().epoch)
        };
        *world.mons.merging.borrow_mut() = Some(Box::new(merging));
        ask_to_merge(&rank).await.unwrap();
        assert_eq!(asked.get(), 2, "it was repeated until it was definite");
        let Reply::Stat(found) = client.call(stat("out")).await.unwrap() else { panic!("no attributes") };
        assert_eq!(found.attr.unwrap().mode, 0o600, "what was in memory is old");
        assert_eq!(body_of(client.call(read_file("dir/in")).await.unwrap()).unwrap(), "inside");
        rank.stop().await;
    });
}

/// A copy of a try without an answer may come when nothing speaks against it any more.
#[test]
fn r11_a_merge_that_is_refused_after_a_try_without_an_answer_never_happens() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let (dir, _) = two_subtrees(&rank, &mut client).await;
        let parent_epoch = rank.map.borrow().subtrees[&ROOT_SUBTREE].epoch.0;
        let answers = [Reason::Unavailable, Reason::InUse, Reason::StaleEpoch];
        let mut answers = answers.into_iter().map(|reason| Error::new(reason, "as the test says"));
        *world.mons.merging.borrow_mut() = Some(Box::new(move |_| Err(answers.next().expect("three tries"))));
        let (map, renewed) = (rank.map.clone(), Rc::new(Cell::new(None)));
        let note = Rc::clone(&renewed);
        let renewing = move |subtree: SubtreeId, epoch: Epoch| {
            note.set(Some((subtree, epoch)));
            change(&map, |map| map.subtrees.get_mut(&subtree).unwrap().epoch.0 += 1);
            Ok(map.borrow().epoch)
        };
        *world.mons.renewing.borrow_mut() = Some(Box::new(renewing));
        assert_eq!(ask_to_merge(&rank).await.unwrap_err().reason, Reason::InUse, "why it was refused");
        assert_eq!(renewed.get(), Some((CHILD, Epoch(1))), "the epoch that the late copy names");
        let read = |target| mds::operation::Op::ReadFile(mds::ReadFileRequest { caller: root(), target: Some(target) });
        call_child(&rank, &mut client, dir, read).await;
        assert_eq!(world.records.fence(dir.shard(), CHILD), 2, "it is served under its next epoch");
        client.call(write_file("out", b"changed")).await.unwrap();
        assert_eq!(world.records.fence(Ino::ROOT.shard(), ROOT_SUBTREE), parent_epoch, "the parent goes on as it was");
        rank.stop().await;
    });
}

#[test]
fn r11_a_merge_that_is_refused_changes_nothing() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        two_subtrees(&rank, &mut client).await;
        let gets = world.records.gets();
        *world.mons.merging.borrow_mut() = Some(Box::new(|_| Err(Error::new(Reason::StaleEpoch, "not this one"))));
        assert_eq!(ask_to_merge(&rank).await.unwrap_err().reason, Reason::StaleEpoch);
        assert_eq!(body_of(client.call(read_file("out")).await.unwrap()).unwrap(), "outside");
        assert_eq!(world.records.gets(), gets, "it goes on as it was");
        rank.stop().await;
    });
}

#[test]
fn r22_purges_of_what_was_merged_are_those_of_its_successor() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let (dir, _) = two_subtrees(&rank, &mut client).await;
        let key = Key::Purge(dir);
        let record =
            PurgeRecord { object_size: 4096, max_size: 4096, generation: 3, subtree: CHILD.0, ..Default::default() };
        let mut value = vec![FORMAT];
        record.encode(&mut value).unwrap();
        world.records.put(&key, value.into());
        world.objects.stick(dir.0);
        rank.change_map(merge);
        let claimed = || {
            let value = world.records.value(&key).expect("it goes when the objects are gone");
            PurgeRecord::decode(&value[1..]).unwrap()
        };
        while claimed().subtree == CHILD.0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(claimed(), PurgeRecord { subtree: 0, ..record }, "0 is the root");
        rank.stop().await;
    });
}
