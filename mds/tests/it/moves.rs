//! A subtree is split off, or on its way to another rank (R11, R12).

use pando_cluster_map::{ClusterMap, RankInfo, Subtree};
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::{Epoch, Error, Ino, Rank, Reason, SubtreeId};

use crate::fake::Gate;
use crate::harness::*;

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
