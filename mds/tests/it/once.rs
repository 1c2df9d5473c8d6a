//! Exactly once (R9, R10, I4).

use pando_cluster_map::RankInfo;
use pando_mds_core::records::Key;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::client_frame::Frame as Up;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::server_frame::Frame as Down;
use pando_proto::mds::{Hello, KeepAlive, OpenFlag};
use pando_proto::{ClientId, Epoch, Errno, Error, Rank, Reason};

use crate::fake::Gate;
use crate::harness::*;

const CACHE: u64 = 64 << 20;

#[test]
fn a_copy_of_a_running_request_gets_the_one_reply_on_the_new_connection() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut first = rank.connect(1).await;
        first.call(mkdir("dir")).await.unwrap();
        world.records.set_gate(Gate::Closed);
        let id = first.send(vec![create_new("dir/file")]).await[0];
        world.records.commits_wait(1).await;
        let mut second = rank.connect(1).await;
        second.repeat(id, create_new("dir/file")).await;
        assert!(second.is_unanswered(id).await);
        world.records.set_gate(Gate::Open);
        assert!(result(second.reply(id).await).is_ok(), "R9: not EEXIST");
        assert!(first.ended().await, "R10: a later stream has taken its place");
        // And once more, from memory.
        second.repeat(id, create_new("dir/file")).await;
        assert!(result(second.reply(id).await).is_ok());
        rank.stop().await;
    });
}

#[test]
fn r10_what_came_by_an_earlier_stream_and_has_not_begun_does_not_begin() {
    run(async {
        let world = World::default();
        *world.mons.handover.borrow_mut() = Some(Error::new(Reason::Unavailable, "no answer came"));
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut first = rank.connect(1).await;
        first.call(write_file("before", b"")).await.unwrap();
        // The subtree stands still: what comes waits.
        rank.change_map(|map| {
            let info = RankInfo { address: "elsewhere:1".to_owned(), up: true, ..RankInfo::default() };
            map.ranks.insert(Rank(1), info);
            let root = map.subtrees.get_mut(&ROOT_SUBTREE).unwrap();
            (root.move_id, root.moving_to) = (77, Rank(1));
        });
        world.mons.are_asked(1).await;
        let late = first.send(vec![create_new("late")]).await[0];
        assert!(first.is_unanswered(late).await);
        // The client does the same elsewhere, by way of what it was told to a copy of it, which this stands for.
        let mut second = rank.connect(1).await;
        *world.mons.handover.borrow_mut() = Some(Error::new(Reason::StaleEpoch, "there is no such move"));
        second.skip_to(late + 1);
        second.call(stat("before")).await.unwrap();
        assert_eq!(second.call(stat("late")).await.unwrap_err().errno, Errno::ENOENT);
        assert!(first.ended().await);
        // A copy by the stream of today is run.
        second.repeat(late, create_new("late")).await;
        assert!(result(second.reply(late).await).is_ok());
        rank.stop().await;
    });
}

#[test]
fn r10_a_send_for_an_earlier_epoch_does_not_begin() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(write_file("before", b"")).await.unwrap();
        // The subtree has been elsewhere meanwhile.
        rank.change_map(|map| map.subtrees.get_mut(&ROOT_SUBTREE).unwrap().epoch = Epoch(3));
        client.call(stat("before")).await.unwrap();
        let map_epoch = rank.map.borrow().epoch.0;
        for (subtree, epoch) in [(1, 1), (1, 2), (9, 3)] {
            let late = client.send_for((subtree, epoch), create_new("late")).await;
            match client.reply(late).await {
                Reply::Redirect(redirect) => assert_eq!((redirect.subtree_epoch, redirect.map_epoch), (3, map_epoch)),
                other => panic!("{other:?}"),
            }
        }
        // A rank that is behind says so.
        let early = client.send_for((1, 4), create_new("late")).await;
        assert_eq!(result(client.reply(early).await).unwrap_err().reason, Reason::Unavailable);
        assert_eq!(client.call(stat("late")).await.unwrap_err().errno, Errno::ENOENT);
        let now = client.send_for((1, 3), create_new("late")).await;
        assert!(result(client.reply(now).await).is_ok());
        rank.stop().await;
    });
}

#[test]
fn a_retry_after_a_restart_is_answered_from_the_pool() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(mkdir("dir")).await.unwrap();
        let id = client.send(vec![create_new("dir/file")]).await[0];
        let answer = client.reply(id).await;
        let other = client.send(vec![unlink("dir/file")]).await[0];
        assert!(result(client.reply(other).await).is_ok());
        rank.stop().await;
        let rank = TestRank::start(&world, 2, CACHE).await;
        let mut client = rank.connect(1).await;
        assert_eq!(client.welcome.incarnation, 2);
        assert_eq!(client.call(stat("dir/file")).await.unwrap_err().errno, Errno::ENOENT);
        client.repeat(id, create_new("dir/file")).await;
        assert_eq!(client.reply(id).await, answer, "I4: the result as it was");
        assert_eq!(client.call(stat("dir/file")).await.unwrap_err().errno, Errno::ENOENT, "and not done again");
        rank.stop().await;
    });
}

#[test]
fn confirmed_requests_are_trimmed_and_refused() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(mkdir("dir")).await.unwrap();
        for n in 0..20 {
            client.call(write_file(&format!("dir/{n}"), b"")).await.unwrap();
        }
        client.lowest = 20_000;
        let id = 20_000;
        client.repeat(id, write_file("dir/last", b"")).await;
        assert!(result(client.reply(id).await).is_ok());
        let left = world.records.keys(|key| matches!(key, Key::Completed(..))).len();
        assert!(left <= 2, "R9: {left} records of completed requests are left");
        client.repeat(5, create_new("dir/late")).await;
        assert_eq!(result(client.reply(5).await).unwrap_err().reason, Reason::StaleSession, "R9");
        rank.stop().await;
    });
}

#[test]
fn sessions_are_checked_at_the_door_and_on_every_request() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let Err(unknown) = Client::open(&rank, 77).await else { panic!("client 77 has no session") };
        assert_eq!(unknown.reason, Reason::StaleSession);
        let mut client = rank.connect(1).await;
        client.call(write_file("file", b"x")).await.unwrap();
        client.raw(Up::KeepAlive(KeepAlive { lowest_unanswered: 2, ..KeepAlive::default() })).await;
        assert!(matches!(client.next_frame().await, Ok(Some(Down::KeepAlive(_)))));
        rank.change_map(|map| drop(map.sessions.remove(&ClientId(1))));
        let refused = client.send(vec![stat("file")]).await[0];
        let mut reply = result(client.reply(refused).await);
        while reply.is_ok() {
            let again = client.send(vec![stat("file")]).await[0];
            reply = result(client.reply(again).await);
        }
        assert_eq!(reply.unwrap_err().reason, Reason::StaleSession, "R9");
        client.raw(Up::Hello(Hello::default())).await;
        assert_eq!(client.next_frame().await.unwrap_err().reason, Reason::InvalidRequest);
        rank.stop().await;
    });
}

#[test]
fn a_copy_that_comes_before_the_first_has_run_is_not_run() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(mkdir("dir")).await.unwrap();
        let id = client.send_twice(create_new("dir/file")).await;
        assert!(result(client.reply(id).await).is_ok(), "I4: not EEXIST");
        assert!(client.is_unanswered(id).await, "answered once");
        // A change of memory alone is answered at once: both copies get that answer.
        let id = client.send_twice(open("dir/file", 3, &[OpenFlag::Read])).await;
        let first = client.two_replies(id).await;
        assert_eq!(first.0, first.1, "I4");
        assert!(result(first.0).is_ok());
        rank.stop().await;
    });
}

#[test]
fn what_waits_of_an_evicted_session_is_not_run() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let mut client = rank.connect(1).await;
        client.call(mkdir("dir")).await.unwrap();
        rank.stop().await;
        let rank = TestRank::start(&world, 2, CACHE).await;
        let (mut client, mut other) = (rank.connect(1).await, rank.connect(2).await);
        client.call(stat("absent")).await.unwrap_err();
        world.records.hold_reads(true);
        let parked = client.send(vec![create_new("dir/file")]).await[0];
        assert!(client.is_unanswered(parked).await, "it waits for records");
        rank.change_map(|map| drop(map.sessions.remove(&ClientId(1))));
        world.records.hold_reads(false);
        assert_eq!(result(client.reply(parked).await).unwrap_err().reason, Reason::StaleSession, "R9");
        assert_eq!(other.call(stat("dir/file")).await.unwrap_err().errno, Errno::ENOENT);
        rank.stop().await;
    });
}

#[test]
fn r9_what_waits_and_was_given_up_is_not_run() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        rank.connect(1).await.call(mkdir("dir")).await.unwrap();
        rank.stop().await;
        let rank = TestRank::start(&world, 2, CACHE).await;
        let (mut client, mut other) = (rank.connect(1).await, rank.connect(2).await);
        client.call(stat("absent")).await.unwrap_err();
        world.records.hold_reads(true);
        let ids = client.send(vec![create_new("dir/file"), create_new("dir/other")]).await;
        assert!(client.is_unanswered(ids[1]).await, "both wait for records");
        // Its caller was told to look before it repeats it, and looks.
        client.lowest = ids[1];
        let looks = client.send(vec![stat("")]).await[0];
        assert!(result(client.reply(looks).await).is_ok());
        world.records.hold_reads(false);
        assert!(result(client.reply(ids[1]).await).is_ok());
        assert_eq!(other.call(stat("dir/file")).await.unwrap_err().errno, Errno::ENOENT, "R9: never run");
        client.repeat(ids[0], create_new("dir/file")).await;
        assert_eq!(
            result(client.reply(ids[0]).await).unwrap_err().reason,
            Reason::StaleSession,
            "nothing is left of it"
        );
        rank.stop().await;
    });
}

#[test]
fn nothing_is_remembered_of_a_session_that_is_evicted_before_its_answer() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, CACHE).await;
        let (mut client, mut other) = (rank.connect(1).await, rank.connect(2).await);
        client.call(write_file("ready", b"")).await.unwrap();
        let completed = || world.records.keys(|key| matches!(key, Key::Completed(..)));
        let before = completed().len();
        world.records.set_gate(Gate::Closed);
        client.send(vec![write_file("held", b"")]).await;
        world.records.commits_wait(1).await;
        rank.change_map(|map| drop(map.sessions.remove(&ClientId(1))));
        loop {
            // A read of nothing new is answered at once, until the session is over.
            let id = client.send(vec![stat("ready")]).await[0];
            if result(client.reply(id).await).is_err_and(|error| error.reason == Reason::StaleSession) {
                break;
            }
        }
        world.records.set_gate(Gate::Open);
        while completed().len() <= before {
            tokio::task::yield_now().await;
        }
        let of_the_session = completed();
        // Deletes ride in the next commits.
        for name in ["a", "b", "c"] {
            other.call(write_file(name, b"")).await.unwrap();
        }
        let left: Vec<_> = completed().into_iter().filter(|key| of_the_session.contains(key)).collect();
        assert_eq!(left, [], "R9");
        rank.stop().await;
    });
}
