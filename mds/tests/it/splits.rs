//! A directory becomes a subtree of its own, or does not (R11).

use std::cell::Cell;
use std::rc::Rc;

use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::subtree_service_client::SubtreeServiceClient;
use pando_proto::mds::{self, SplitRequest};
use pando_proto::{Epoch, Error, Ino, Reason, SubtreeId};
use tokio::sync::watch;
use tonic::transport::Channel;

use crate::harness::*;
use crate::merges::{CHILD, call_child, split};

const CACHE: u64 = 64 << 20;

async fn ask_to_split(channel: Channel) -> Result<u64, Error> {
    let mut service = SubtreeServiceClient::new(channel);
    let asked = service.split(SplitRequest { target: at("dir") }).await;
    asked.map(|split| split.into_inner().subtree).map_err(|status| Error::from_tonic(&status))
}

fn error(reason: Reason) -> Error {
    Error::new(reason, "as the test says")
}

/// `dir` with `in`.
async fn make_dir(client: &mut Client) -> Ino {
    client.call(mkdir("dir")).await.unwrap();
    client.call(write_file("dir/in", b"inside")).await.unwrap();
    let Reply::Stat(found) = client.call(stat("dir")).await.unwrap() else { panic!("no attributes") };
    Ino(found.attr.unwrap().ino)
}

/// The first try has no answer, the second one is refused for a while; what the map says after that is up to `last`.
fn answer_splits(world: &World, last: impl Fn() -> Result<(SubtreeId, Epoch), Error> + 'static) -> Rc<Cell<u32>> {
    let tries = Rc::new(Cell::new(0));
    let count = Rc::clone(&tries);
    let splitting = move |request: pando_proto::mon::SplitSubtreeRequest| {
        assert_eq!((request.parent, request.parent_epoch), (ROOT_SUBTREE.0, 1));
        count.set(count.get() + 1);
        match count.get() {
            1 => Err(error(Reason::Unavailable)),
            2 => Err(error(Reason::InUse)),
            _ => last(),
        }
    };
    *world.mons.splitting.borrow_mut() = Some(Box::new(splitting));
    tries
}

#[test]
fn r11_a_refusal_after_a_try_without_an_answer_counts_when_the_epoch_has_ended() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        make_dir(&mut client).await;
        let tries = answer_splits(&world, || Err(error(Reason::StaleEpoch)));
        let (map, may) = (rank.map.clone(), Rc::new(Cell::new(false)));
        let (asked, mut renewals) = watch::channel(0);
        let allowed = Rc::clone(&may);
        let renewing = move |subtree: SubtreeId, epoch: Epoch| {
            assert_eq!((subtree, epoch), (ROOT_SUBTREE, Epoch(1)));
            asked.send_modify(|count| *count += 1);
            if !allowed.get() {
                return Err(error(Reason::Unavailable));
            }
            change(&map, |map| map.subtrees.get_mut(&ROOT_SUBTREE).unwrap().epoch.0 += 1);
            Ok(map.borrow().epoch)
        };
        *world.mons.renewing.borrow_mut() = Some(Box::new(renewing));
        let splitting = tokio::task::spawn_local(ask_to_split(rank.channel().await));
        renewals.wait_for(|count| *count >= 2).await.unwrap();
        let id = client.send(vec![stat("dir")]).await[0];
        for _ in 0..20 {
            assert!(client.is_unanswered(id).await, "I3: the first try may still take effect");
        }
        may.set(true);
        assert_eq!(splitting.await.unwrap().unwrap_err().reason, Reason::InUse, "why it was refused");
        assert_eq!(tries.get(), 3, "the last word is of a time when no copy counts");
        client.reply(id).await;
        client.call(write_file("dir/in", b"changed")).await.unwrap();
        assert_eq!(body_of(client.call(read_file("dir/in")).await.unwrap()).unwrap(), "changed");
        assert_eq!(world.records.fence(Ino::ROOT.shard(), ROOT_SUBTREE), 2, "it is served under its next epoch");
        rank.stop().await;
    });
}

#[test]
fn r11_a_try_that_comes_before_the_epoch_ends_has_made_the_split() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let dir = make_dir(&mut client).await;
        let map = rank.map.clone();
        let epoch = rank.map.clone();
        answer_splits(&world, move || Ok((CHILD, epoch.borrow().epoch)));
        let renewing = move |_, _| {
            // The late copy. There is nothing left to be ended.
            change(&map, |map| split(map, dir));
            Ok(map.borrow().epoch)
        };
        *world.mons.renewing.borrow_mut() = Some(Box::new(renewing));
        assert_eq!(ask_to_split(rank.channel().await).await.unwrap(), CHILD.0);
        let read = |target| mds::operation::Op::ReadFile(mds::ReadFileRequest { caller: root(), target: Some(target) });
        call_child(&rank, &mut client, dir, read).await;
        client.call(write_file("out", b"outside")).await.unwrap();
        let fences = [CHILD, ROOT_SUBTREE].map(|subtree| world.records.fence(dir.shard(), subtree));
        assert_eq!(fences, [1, 2]);
        rank.stop().await;
    });
}

#[test]
fn r11_a_split_that_is_refused_at_once_changes_nothing() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        make_dir(&mut client).await;
        *world.mons.splitting.borrow_mut() = Some(Box::new(|_| Err(error(Reason::InUse))));
        *world.mons.renewing.borrow_mut() = Some(Box::new(|_, _| panic!("nothing is on its way")));
        assert_eq!(ask_to_split(rank.channel().await).await.unwrap_err().reason, Reason::InUse);
        let gets = world.records.gets();
        assert_eq!(body_of(client.call(read_file("dir/in")).await.unwrap()).unwrap(), "inside");
        assert_eq!(world.records.gets(), gets, "it goes on as it was");
        assert_eq!(world.records.fence(Ino::ROOT.shard(), ROOT_SUBTREE), 1);
        rank.stop().await;
    });
}
