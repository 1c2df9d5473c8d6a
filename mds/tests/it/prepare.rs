//! What other subtrees ask of this one (R15, R18).

use std::collections::BTreeSet;
use std::time::Duration;

use pando_cluster_map::{ClusterMap, Decision, Subtree, Transaction, TransactionId};
use pando_mon_client::ClusterStamp;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::prepare_response::Answer;
use pando_proto::mds::subtree_service_client::SubtreeServiceClient;
use pando_proto::mds::{
    LinkChange, NameComes, PrepareRequest, RenameRequest, SymlinkRequest, Target, TransactionRecord,
};
use pando_proto::{Epoch, Error, Ino, Rank, Reason, SubtreeId};

use crate::harness::*;
use crate::merges::split;

const CACHE: u64 = 64 << 20;
const OTHER: SubtreeId = SubtreeId(2);

pub async fn ask(rank: &TestRank, request: PrepareRequest) -> Result<Answer, Error> {
    let mut service = SubtreeServiceClient::new(rank.channel().await);
    Ok(service.prepare(request).await?.into_inner().answer.unwrap())
}

async fn refused(rank: &TestRank, request: PrepareRequest) -> Error {
    match ask(rank, request).await.unwrap() {
        Answer::Refused(status) => Error::from_rpc_status(status),
        other => panic!("{other:?}"),
    }
}

/// The inode gets a name in the other subtree.
pub fn linked(number: u64, ino: u64) -> PrepareRequest {
    let come = LinkChange { ino, come_dir: 4711, come_name: "there".into(), ..LinkChange::default() };
    let record = TransactionRecord {
        coordinator: OTHER.0,
        epoch: 1,
        number,
        participants: vec![OTHER.0, ROOT_SUBTREE.0],
        links: vec![come],
        ..TransactionRecord::default()
    };
    PrepareRequest { subtree: ROOT_SUBTREE.0, record: Some(record), ..PrepareRequest::default() }
}

fn decide(rank: &TestRank, number: u64, decision: Decision) {
    let id = TransactionId { coordinator: OTHER, epoch: Epoch(1), number };
    let participants = BTreeSet::from([OTHER, ROOT_SUBTREE]);
    rank.change_map(|map| {
        map.transactions.insert(id, Transaction { decision, participants, finished: BTreeSet::new() });
    });
}

pub fn attr(reply: Reply) -> (u64, u32) {
    let Reply::Stat(reply) = reply else { panic!("{reply:?}") };
    let attr = reply.attr.unwrap();
    (attr.ino, attr.nlink)
}

#[test]
fn r18_what_is_prepared_waits_for_the_decision_and_outlives_a_crash() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("f", b"f")).await.unwrap();
        let (ino, _) = attr(client.call(stat("f")).await.unwrap());
        for (number, decision, links) in [(1, Decision::Committed, 2), (2, Decision::Aborted, 2)] {
            assert_eq!(ask(&rank, linked(number, ino)).await.unwrap(), Answer::PreparedEpoch(1));
            assert_eq!(ask(&rank, linked(number, ino)).await.unwrap(), Answer::PreparedEpoch(1), "asked again");
            assert_eq!(ask(&rank, linked(77, ino)).await.unwrap(), Answer::Busy(true), "by another transaction");
            let waits = client.send(vec![stat("f")]).await[0];
            assert!(client.is_unanswered(waits).await, "R18: nobody sees half of it");
            decide(&rank, number, decision);
            assert_eq!(attr(client.reply(waits).await), (ino, links));
        }
        assert_eq!(ask(&rank, linked(3, ino)).await.unwrap(), Answer::PreparedEpoch(1));
        rank.stop().await;
        *world.mons.decided.borrow_mut() = Some(Decision::Committed);
        let rank = TestRank::start(&world, 2, CACHE).await;
        let mut client = rank.connect(1).await;
        assert_eq!(attr(client.call(stat("f")).await.unwrap()), (ino, 3), "before anything is served");
        rank.stop().await;
    });
}

/// A rank of a cluster that was here before asks by numbers that mean something else here (I10).
#[test]
fn a_rank_of_another_cluster_prepares_nothing_here() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("f", b"f")).await.unwrap();
        let (ino, _) = attr(client.call(stat("f")).await.unwrap());
        let channel = rank.channel().await;
        let ask_of = |cluster: [u8; 16]| {
            let stamp = ClusterStamp::default();
            stamp.bind(&cluster);
            let mut service = SubtreeServiceClient::with_interceptor(channel.clone(), stamp);
            async move { service.prepare(linked(1, ino)).await.map_err(|status| Error::from_tonic(&status)) }
        };
        assert_eq!(ask_of([9; 16]).await.unwrap_err().reason, Reason::WrongCluster);
        assert_eq!(attr(client.call(stat("f")).await.unwrap()), (ino, 1), "nothing waits for a decision");
        let of_ours = ask_of([7; 16]).await.unwrap();
        assert_eq!(of_ours.into_inner().answer, Some(Answer::PreparedEpoch(1)));
        rank.stop().await;
    });
}

/// Asks until the subtree is open.
async fn ask_patiently(rank: &TestRank, request: PrepareRequest) -> Answer {
    loop {
        match ask(rank, request.clone()).await {
            Ok(answer) => return answer,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The map has forgotten them by the time that a late copy of what was asked comes.
#[test]
fn r18_what_is_over_does_not_begin_anew() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("f", b"f")).await.unwrap();
        let (ino, _) = attr(client.call(stat("f")).await.unwrap());
        assert_eq!(ask(&rank, linked(1, ino)).await.unwrap(), Answer::PreparedEpoch(1));
        decide(&rank, 1, Decision::Aborted);
        assert_eq!(attr(client.call(stat("f")).await.unwrap()), (ino, 1), "it has ended");
        // Given up before anything of it came here.
        decide(&rank, 2, Decision::Aborted);
        let error = ask(&rank, linked(2, ino)).await.unwrap_err();
        assert!(error.is_retryable(), "it is decided: {error}");
        rank.change_map(|map| map.transactions.clear());
        for number in [1, 2] {
            assert_eq!(ask_patiently(&rank, linked(number, ino)).await, Answer::Busy(true), "{number} is over");
        }
        rank.stop().await;
    });
}

/// The coordinator asks again when it has no answer, and both copies wait for what has to be read.
#[test]
fn r18_copies_of_what_is_asked_do_not_meet_the_locks_of_each_other() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("f", b"f")).await.unwrap();
        let (ino, _) = attr(client.call(stat("f")).await.unwrap());
        rank.stop().await;
        let rank = TestRank::start(&world, 2, CACHE).await;
        // It is open.
        rank.connect(1).await.call(write_file("g", b"g")).await.unwrap();
        let asked = (0..16).map(|_| ask(&rank, linked(1, ino)));
        for answer in futures_util::future::join_all(asked).await {
            assert_eq!(answer.unwrap(), Answer::PreparedEpoch(2));
        }
        rank.stop().await;
    });
}

#[test]
fn r18_what_a_coordinator_prepared_that_is_superseded_or_gone_is_aborted_at_once() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let other = Subtree { root: Ino(4711), owner: Rank(5), epoch: Epoch(1), ..Subtree::default() };
        let other = Subtree { parent: Some(ROOT_SUBTREE), ..other };
        rank.change_map(|map| drop(map.subtrees.insert(OTHER, other)));
        let mut client = rank.connect(1).await;
        client.call(write_file("f", b"f")).await.unwrap();
        let (ino, _) = attr(client.call(stat("f")).await.unwrap());
        *world.mons.decided.borrow_mut() = Some(Decision::Aborted);
        let ends: [&dyn Fn(&mut ClusterMap); 2] =
            [&|map| map.subtrees.get_mut(&OTHER).unwrap().epoch = Epoch(2), &|map| drop(map.subtrees.remove(&OTHER))];
        for (epoch, end) in (1..).zip(ends) {
            let mut request = linked(epoch, ino);
            request.record.as_mut().unwrap().epoch = epoch;
            assert_eq!(ask(&rank, request).await.unwrap(), Answer::PreparedEpoch(1));
            let waits = client.send(vec![stat("f")]).await[0];
            assert!(client.is_unanswered(waits).await);
            rank.change_map(end);
            let answered = tokio::time::timeout(Duration::from_secs(4), client.reply(waits)).await;
            assert_eq!(attr(answered.expect("not after the whole silence")), (ino, 1));
        }
        rank.stop().await;
    });
}

#[test]
fn r18_who_is_superseded_does_not_say_that_transactions_have_ended() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        rank.connect(1).await.call(write_file("f", b"f")).await.unwrap();
        // The next owner, here or elsewhere, has it in its `x/`.
        let id = TransactionId { coordinator: OTHER, epoch: Epoch(1), number: 1 };
        let participants = BTreeSet::from([OTHER, ROOT_SUBTREE]);
        let committed = Transaction { decision: Decision::Committed, participants, finished: BTreeSet::new() };
        rank.change_map(|map| {
            map.transactions.insert(id, committed);
            map.subtrees.get_mut(&ROOT_SUBTREE).unwrap().epoch = Epoch(2);
        });
        let mut told = world.mons.told.subscribe();
        let told = told.wait_for(|told| !told.is_empty()).await.unwrap().clone();
        assert_eq!(told[0], (ROOT_SUBTREE, Epoch(2), vec![id]), "I6: only the present owner knows");
        rank.stop().await;
    });
}

fn comes(name: &'static str) -> NameComes {
    NameComes { dir: Ino::ROOT.0, name: name.into(), ino: 4711, kind: 1, ..NameComes::default() }
}

#[test]
fn r16_the_way_to_the_other_name_is_judged_where_it_leads() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        rank.connect(1).await.call(write_file("f", b"f")).await.unwrap();
        rank.change_map(|map| map.subtrees.get_mut(&ROOT_SUBTREE).unwrap().route = 5);
        let by = |number, route, subtree: SubtreeId| {
            let mut request = PrepareRequest { route, route_subtree: subtree.0, ..linked(number, 4711) };
            let record = request.record.as_mut().unwrap();
            record.links.clear();
            record.comes = Some(comes("new"));
            request
        };
        let root = ROOT_SUBTREE;
        for (route, to) in [(4, root), (6, root), (5, OTHER)] {
            let error = refused(&rank, by(1, route, to)).await;
            assert_eq!(error.reason, Reason::StaleRoute, "{route} {to}");
        }
        for (number, route) in [(2, 5), (3, 0)] {
            assert_eq!(ask(&rank, by(number, route, root)).await.unwrap(), Answer::PreparedEpoch(1), "{route}");
            decide(&rank, number, Decision::Aborted);
            while ask(&rank, by(number, route, root)).await.is_ok_and(|answer| answer != Answer::Busy(true)) {
                tokio::task::yield_now().await;
            }
        }
        rank.stop().await;
    });
}

#[test]
fn r16_who_coordinates_says_by_which_way_its_client_came() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        let symlink = SymlinkRequest { caller: root(), target: at("f"), link_target: "there".into() };
        client.call(Op::Symlink(symlink)).await.unwrap();
        client.call(mkdir("dir")).await.unwrap();
        let (dir, _) = attr(client.call(stat("dir")).await.unwrap());
        rank.change_map(|map| split(map, Ino(dir)));
        client.second_way = (7, OTHER);
        let rename = |base, path: &str| {
            let to = Some(Target { base, path: path.to_owned().into() });
            Op::Rename(RenameRequest { caller: root(), from: at("f"), to, mode: 0 })
        };
        while !matches!(client.call(stat("dir/new")).await, Ok(Reply::Redirect(_))) {
            tokio::task::yield_now().await;
        }
        let told = client.call(rename(dir, "new")).await;
        assert!(told.is_err(), "there is no other rank: {told:?}");
        let asked = world.peers.asked.borrow_mut().pop().unwrap();
        assert_eq!((asked.route, asked.route_subtree), (7, OTHER.0));
        // A way that leads here is judged here.
        client.second_way = (7, ROOT_SUBTREE);
        assert_eq!(client.call(rename(dir, "new")).await.unwrap_err().reason, Reason::StaleRoute);
        assert!(world.peers.asked.borrow().is_empty());
        rank.stop().await;
    });
}

#[test]
fn requests_that_make_no_sense_change_nothing() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("f", b"f")).await.unwrap();
        let (ino, _) = attr(client.call(stat("f")).await.unwrap());
        let good = linked(1, ino);
        let with = |change: &dyn Fn(&mut TransactionRecord)| {
            let mut request = good.clone();
            request.record.as_mut().map(change).unwrap();
            request
        };
        let nonsense = [
            PrepareRequest { record: None, ..good.clone() },
            with(&|record| record.participants = vec![]),
            with(&|record| record.participants = vec![OTHER.0]),
            with(&|record| record.participants = (1..9).collect()),
            with(&|record| record.links.clear()),
            with(&|record| record.links = vec![record.links[0].clone(); 3]),
            with(&|record| record.links[0].come_dir = 0),
            with(&|record| record.links[0].come_name = "a/b".into()),
            with(&|record| record.links[0].ino = 1 << 63),
            with(&|record| record.comes = Some(comes(".."))),
            with(&|record| record.comes = Some(NameComes { adopts: true, ..comes("f") })),
            with(&|record| (record.coordinator, record.comes) = (ROOT_SUBTREE.0, Some(comes("x")))),
            PrepareRequest { how: 9, ..with(&|record| record.comes = Some(comes("x"))) },
            PrepareRequest { how: 1, ..with(&|record| record.comes = Some(comes("x"))) },
            PrepareRequest { refused_after: 9, ..good.clone() },
        ];
        for request in nonsense {
            assert_eq!(refused(&rank, request.clone()).await.reason, Reason::InvalidRequest, "{request:?}");
        }
        // A directory has one name; an inode that is not there has none.
        let (root, _) = attr(client.call(stat("")).await.unwrap());
        assert_eq!(refused(&rank, linked(1, root)).await.reason, Reason::Corrupt);
        assert!(matches!(ask(&rank, linked(1, 4711)).await, Ok(Answer::Busy(true))));
        assert_eq!(attr(client.call(stat("f")).await.unwrap()), (ino, 1));
        rank.stop().await;
    });
}
