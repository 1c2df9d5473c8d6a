//! Subtrees that move, split and merge while requests and open files are under way (R10, R12, R19).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pando_cluster_map::Lineage;
use pando_proto::mds::{
    Crossing, HandleElsewhere, ReclaimResponse, Redirect, operation::Op, operation_result::Result as Answer,
};
use pando_proto::{Epoch, Errno, Error as ProtoError, Ino, Reason, SubtreeId};

use super::crossings::{first_target, redirect, to};
use super::fake::{self, Act, Fake, Owned, Seen};
use super::{correct, error, op};

const OTHER: Owned = Owned { subtree: 2, root: 200, owner: 1, epoch: 7, route: 5, split_from: None };

fn moved(rank: u32, map_epoch: u64) -> Answer {
    Answer::Redirect(Redirect { subtree: 2, subtree_epoch: 8, rank, map_epoch, ..Redirect::default() })
}

fn into_two(seen: &Seen) -> Answer {
    let target = first_target(seen);
    let rest = target.path.strip_prefix(b"a/").expect("in these tests all is below /a");
    let crossing = to(2, 200, std::str::from_utf8(rest).unwrap());
    redirect(vec![Crossing { consumed: 1, subtree_epoch: 7, route: 5, ..crossing }])
}

/// (subtree, handles) of the reclaims.
fn reclaims(seen: &[Seen]) -> Vec<(u64, Vec<u64>)> {
    let told = |seen: &Seen| match op(seen) {
        Op::Reclaim(reclaim) => {
            let handles = reclaim.handles.iter().map(|handle| handle.handle).collect();
            Some((seen.request.subtree, handles))
        }
        _ => None,
    };
    seen.iter().filter_map(told).collect()
}

async fn plain(rank: u32) -> Fake {
    Fake::start_rank(rank, 64, |seen| vec![Act::Answer(correct(seen))]).await
}

async fn root_above_two() -> Fake {
    Fake::start(|seen| match op(seen) {
        Op::Reclaim(_) => vec![Act::Answer(correct(seen))],
        _ => vec![Act::Answer(into_two(seen))],
    })
    .await
}

#[tokio::test]
async fn r10_requests_follow_a_subtree_that_moves_as_what_they_were() {
    let one = root_above_two().await;
    // Some are answered by the source, some never, some redirected.
    let source = Fake::start_rank(1, 64, |seen| match seen.request.id % 3 {
        0 => vec![Act::Answer(correct(seen))],
        1 => vec![Act::Answer(moved(2, 9))],
        _ => vec![],
    })
    .await;
    let target = plain(2).await;
    let ranks = [&one, &source, &target];
    let (client, map) = fake::client(fake::map(1, &ranks, &[Owned::root(), OTHER]));
    let reads: Vec<_> = (0..30)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { client.read(format!("/a/{number}")).await.unwrap() })
        })
        .collect();
    source.wait_seen(|seen| seen.len() == 30).await;
    assert!(target.seen().is_empty());
    map.send_replace(Arc::new(fake::map(9, &ranks, &[Owned::root(), Owned { owner: 2, epoch: 8, ..OTHER }])));
    let redirected = target.wait_seen(|seen| seen.len() >= 10).await;
    assert!(redirected.iter().all(|seen| seen.request.id % 3 == 1));
    source.kill();
    for (number, read) in reads.into_iter().enumerate() {
        assert_eq!(read.await.unwrap(), number.to_string());
    }
    assert_eq!((target.seen().len(), one.seen().len()), (20, 30));
    for again in target.seen() {
        let first = source.seen().into_iter().find(|seen| seen.request.id == again.request.id).unwrap().request;
        assert!(again.request.retry && !first.retry);
        let same = |request: &pando_proto::mds::Request| {
            (request.subtree, request.subtree_epoch, request.route, request.operation.clone())
        };
        assert_eq!(same(&again.request), same(&first), "R10");
    }
}

#[tokio::test]
async fn r10_a_request_to_what_was_merged_away_goes_to_the_successor() {
    let merged = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&merged);
    let one = Fake::start(move |seen| {
        let here = now.load(Ordering::SeqCst);
        vec![Act::Answer(if here { correct(seen) } else { into_two(seen) })]
    })
    .await;
    let two = Fake::start_rank(1, 64, |seen| {
        let known = &first_target(seen).path[..] == b"known";
        if known { vec![Act::Answer(correct(seen))] } else { vec![] }
    })
    .await;
    let (client, map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
    client.read("/a/known").await.unwrap();
    let read = tokio::spawn({
        let client = client.clone();
        async move { client.read("/a/x").await.unwrap() }
    });
    two.wait_seen(|seen| seen.len() == 2).await;
    merged.store(true, Ordering::SeqCst);
    let mut next = fake::map(9, &[&one, &two], &[Owned { epoch: 3, ..Owned::root() }]);
    next.lineage.push(Lineage {
        child: SubtreeId(2),
        parent: SubtreeId(1),
        epoch: Epoch(9),
        merged: true,
        child_fence: Epoch(8),
        child_root: Ino(200),
    });
    map.send_replace(Arc::new(next));
    two.kill();
    assert_eq!(read.await.unwrap(), "x");
    let again = one.seen().pop().unwrap().request;
    assert_eq!((again.subtree, again.subtree_epoch, again.retry, again.route), (2, 7, true, 5));
    assert_eq!(again.id, two.seen()[1].request.id);
    // What starts now does not remember the way into it.
    client.read("/a/y").await.unwrap();
    let last = one.seen().pop().unwrap();
    assert_eq!((last.request.subtree, first_target(&last).base), (1, 0));
}

#[tokio::test]
async fn r19_open_files_go_over_to_what_was_split_off() {
    let told_two = Arc::new(Mutex::new(Vec::new()));
    let one = Fake::start(|seen| {
        let answer = match op(seen) {
            Op::Reclaim(reclaim) if !reclaim.handles.is_empty() => {
                let elsewhere = |handle: u64| HandleElsewhere { handle, subtree: 3 };
                let elsewhere = reclaim.handles.iter().map(|handle| elsewhere(handle.handle)).collect();
                Answer::Reclaim(ReclaimResponse { lost: Vec::new(), elsewhere })
            }
            _ => correct(seen),
        };
        vec![Act::Answer(answer)]
    })
    .await;
    let log = Arc::clone(&told_two);
    let two = Fake::start_rank(1, 64, move |seen| {
        log.lock().unwrap().extend(reclaims(std::slice::from_ref(seen)));
        vec![Act::Answer(correct(seen))]
    })
    .await;
    two.script_last_reclaim();
    let (client, map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root()]));
    let file = client.open("/d/f").await.unwrap();
    let child = Owned { subtree: 3, root: 300, owner: 1, epoch: 1, route: 1, split_from: Some(1) };
    map.send_replace(Arc::new(fake::map(2, &[&one, &two], &[Owned { epoch: 2, ..Owned::root() }, child])));
    two.wait_seen(|seen| reclaims(seen).len() >= 2).await;
    let handle = match op(&one.seen()[0]) {
        Op::Open(open) => open.handle,
        other => panic!("{other:?}"),
    };
    let told = told_two.lock().unwrap().clone();
    assert_eq!(told, [(3, vec![handle]), (3, vec![])], "named before it is said that there are no more");
    assert_eq!(file.read_at(0, 4).await.unwrap(), "data");
    let read = two.seen().pop().unwrap();
    let Op::Read(request) = op(&read) else { panic!("{read:?}") };
    assert_eq!((read.request.subtree, request.ino, request.handle), (3, 42, handle));
    file.close().await.unwrap();
    assert!(matches!(op(&two.seen().pop().unwrap()), Op::Close(_)));
}

/// A file that is open at one subtree was renamed to another, which is opened anew.
#[tokio::test]
async fn r19_whoever_may_know_of_a_handle_is_asked_before_it_is_said_that_there_are_no_more() {
    let one = Fake::start(|seen| {
        let answer = match op(seen) {
            Op::Reclaim(reclaim) => {
                let elsewhere = reclaim.handles.iter().map(|one| HandleElsewhere { handle: one.handle, subtree: 2 });
                Answer::Reclaim(ReclaimResponse { lost: Vec::new(), elsewhere: elsewhere.collect() })
            }
            _ => correct(seen),
        };
        vec![Act::Answer(answer)]
    })
    .await;
    let two = plain(1).await;
    [&one, &two].iter().for_each(|fake| fake.script_last_reclaim());
    let (client, map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
    let file = client.open("/x").await.unwrap();
    two.wait_seen(|seen| reclaims(seen) == [(2, vec![])]).await;
    one.wait_seen(|seen| reclaims(seen).len() == 1).await;
    map.send_replace(Arc::new(fake::map(
        2,
        &[&one, &two],
        &[Owned::root(), Owned { epoch: OTHER.epoch + 1, ..OTHER }],
    )));
    let told = reclaims(&two.wait_seen(|seen| reclaims(seen).len() >= 3).await);
    let [_, (2, handles), (2, last)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((handles.len(), last.len()), (1, 0), "named before it is said that there are no more");
    assert_eq!(reclaims(&one.seen()).last(), Some(&(1, handles.clone())), "the owner that has it no more said so");
    assert_eq!(file.read_at(0, 4).await.unwrap(), "data");
    assert_eq!(two.seen().last().unwrap().request.subtree, 2);
    file.close().await.unwrap();
}

/// Whoever was told once is asked, and not told that there are no more; and nobody's reads wait for that.
#[tokio::test]
async fn r19_an_owner_that_cannot_be_asked_holds_up_no_reads_of_others() {
    let (release, released) = tokio::sync::watch::channel(true);
    let one = Fake::start(move |seen| match op(seen) {
        Op::Reclaim(_) if !*released.borrow() => vec![Act::Answer(error(Reason::Unavailable))],
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let two = plain(1).await;
    [&one, &two].iter().for_each(|fake| fake.script_last_reclaim());
    let (client, map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
    let file = client.open("/x").await.unwrap();
    two.wait_seen(|seen| reclaims(seen) == [(2, vec![])]).await;
    one.wait_seen(|seen| reclaims(seen).len() == 1).await;
    release.send_replace(false);
    map.send_replace(Arc::new(fake::map(
        2,
        &[&one, &two],
        &[Owned::root(), Owned { epoch: OTHER.epoch + 1, ..OTHER }],
    )));
    one.wait_seen(|seen| reclaims(seen).len() >= 3).await;
    assert_eq!(file.read_at(0, 4).await.unwrap(), "data", "its owner is the same as before");
    assert_eq!(reclaims(&two.seen()), [(2, vec![])], "R19: not before the other has answered");
    release.send_replace(true);
    two.wait_seen(|seen| reclaims(seen) == [(2, vec![]), (2, vec![])]).await;
    assert!(reclaims(&one.seen())[1..].iter().all(|(_, handles)| handles.len() == 1));
    file.close().await.unwrap();
}

#[tokio::test]
async fn r15_a_crossing_for_a_handle_moves_it_and_tells_the_owner() {
    let one = Fake::start(|seen| match op(seen) {
        Op::Read(_) => vec![Act::Answer(redirect(vec![to(2, 42, "")]))],
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let two = plain(1).await;
    let (client, _map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER]));
    let file = client.open("/d/f").await.unwrap();
    for _ in 0..2 {
        assert_eq!(file.read_at(0, 4).await.unwrap(), "data");
    }
    let seen = two.seen();
    assert_eq!(reclaims(&seen), [(2, vec![1])]);
    assert!(matches!(op(&seen[0]), Op::Reclaim(_)), "R19: first the handle, then what is done by it");
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[1].request.id, one.seen()[1].request.id, "R9");
    assert_eq!(one.seen().len(), 2, "the second read goes there at once");
}

#[tokio::test]
async fn r19_reclaim_first_is_answered_once_for_all_and_the_operations_come_again() {
    let known = AtomicBool::new(false);
    let fake = Fake::start(move |seen| {
        let answer = match op(seen) {
            Op::Reclaim(reclaim) => {
                known.fetch_or(!reclaim.handles.is_empty(), Ordering::SeqCst);
                correct(seen)
            }
            Op::Read(_) if !known.load(Ordering::SeqCst) => error(Reason::ReclaimFirst),
            _ => correct(seen),
        };
        vec![Act::Answer(answer)]
    })
    .await;
    let (client, _map) = fake.client();
    let file = Arc::new(client.open("/x").await.unwrap());
    let reads: Vec<_> = (0..20)
        .map(|_| {
            let file = Arc::clone(&file);
            tokio::spawn(async move { file.read_at(0, 4).await.unwrap() })
        })
        .collect();
    for read in reads {
        assert_eq!(read.await.unwrap(), "data");
    }
    let seen = fake.seen();
    assert_eq!(reclaims(&seen), [(1, vec![1])]);
    let mut numbers: Vec<_> = seen.iter().filter(|seen| matches!(op(seen), Op::Read(_))).collect();
    let again = numbers.iter().filter(|seen| seen.request.retry).count();
    assert_eq!((numbers.len(), again), (40, 20));
    numbers.sort_by_key(|seen| seen.request.id);
    numbers.dedup_by_key(|seen| seen.request.id);
    assert_eq!(numbers.len(), 20, "R9");
}

#[tokio::test]
async fn only_operations_by_handle_wait_for_a_reclaim() {
    let (release, released) = tokio::sync::watch::channel(false);
    let fake = Fake::start(move |seen| match op(seen) {
        Op::Reclaim(_) if seen.request.subtree_epoch == 2 && !*released.borrow() => {
            vec![Act::Answer(error(Reason::Unavailable))]
        }
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let (client, map) = fake.client();
    let file = client.open("/x").await.unwrap();
    map.send_replace(Arc::new(fake.map(2)));
    fake.wait_seen(|seen| !reclaims(seen).is_empty()).await;
    let read = tokio::spawn(async move { file.read_at(0, 4).await.unwrap() });
    assert_eq!(client.read("/y").await.unwrap(), "y");
    client.metadata("/z").await.unwrap();
    let other = client.open("/other").await.unwrap();
    assert!(!read.is_finished() && fake.seen().iter().all(|seen| !matches!(op(seen), Op::Read(_))));
    release.send_replace(true);
    assert_eq!(read.await.unwrap(), "data");
    other.close().await.unwrap();
}

#[tokio::test]
async fn r19_every_owner_of_a_new_term_hears_from_us_also_without_handles() {
    let (one, two) = (plain(0).await, plain(1).await);
    [&one, &two].iter().for_each(|fake| fake.script_last_reclaim());
    let third = Owned { subtree: 3, root: 300, owner: 1, ..OTHER };
    let (_client, map) = fake::client(fake::map(1, &[&one, &two], &[Owned::root(), OTHER, third]));
    one.wait_seen(|seen| reclaims(seen) == [(1, vec![])]).await;
    two.wait_seen(|seen| seen.len() == 2).await;
    // Of the three only 2 has a new epoch, and 3 a new owner.
    let moved = [Owned::root(), Owned { epoch: 8, ..OTHER }, Owned { owner: 0, epoch: 8, ..third }];
    map.send_replace(Arc::new(fake::map(2, &[&one, &two], &moved)));
    let at_one = one.wait_seen(|seen| seen.len() == 2).await;
    let at_two = two.wait_seen(|seen| seen.len() == 3).await;
    assert_eq!(reclaims(&at_one)[1], (3, vec![]));
    assert_eq!(reclaims(&at_two)[2], (2, vec![]));
    // A change that concerns nobody's handles is not answered.
    map.send_replace(Arc::new(fake::map(3, &[&one, &two], &moved)));
    map.send_replace(Arc::new(fake::map(4, &[&one, &two], &[Owned { epoch: 2, ..Owned::root() }, moved[1], moved[2]])));
    one.wait_seen(|seen| seen.len() == 3).await;
    assert_eq!((reclaims(&one.seen())[2].0, two.seen().len()), (1, 3));
}

#[tokio::test]
async fn when_a_rank_dies_requests_and_files_go_on_at_the_survivor() {
    let one = root_above_two().await;
    let dying = Fake::start_rank(1, 64, |seen| match op(seen) {
        Op::Stat(_) => vec![],
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let survivor = plain(2).await;
    survivor.script_last_reclaim();
    let ranks = [&one, &dying, &survivor];
    let (client, map) = fake::client(fake::map(1, &ranks, &[Owned::root(), OTHER]));
    let file = client.open("/a/f").await.unwrap();
    let stat = tokio::spawn({
        let client = client.clone();
        async move { client.metadata("/a/x").await }
    });
    dying.wait_seen(|seen| seen.iter().any(|seen| matches!(op(seen), Op::Stat(_)))).await;
    dying.kill();
    let read = tokio::spawn(async move {
        let data = file.read_at(0, 4).await.unwrap();
        file.close().await.unwrap();
        data
    });
    let mut failed = fake::map(2, &ranks, &[Owned::root(), Owned { owner: 2, epoch: 8, ..OTHER }]);
    failed.ranks.get_mut(&dying.rank()).unwrap().up = false;
    map.send_replace(Arc::new(failed));
    assert!(stat.await.unwrap().unwrap().is_file());
    assert_eq!(read.await.unwrap(), "data");
    let seen = survivor.seen();
    let handles: Vec<_> = reclaims(&seen).into_iter().map(|(_, handles)| handles).collect();
    assert_eq!(handles, [vec![1], vec![]]);
    let stat = seen.iter().find(|seen| matches!(op(seen), Op::Stat(_))).unwrap();
    assert!(stat.request.retry && stat.request.subtree_epoch == 7, "R10");
}

#[tokio::test]
async fn r19_a_handle_that_is_being_closed_is_not_opened_again_by_a_reclaim() {
    let mut closes = 0;
    let fake = Fake::start(move |seen| match op(seen) {
        Op::Close(_) => {
            closes += 1;
            match closes {
                1 => vec![Act::Break],
                _ => vec![Act::Answer(Answer::Error(ProtoError::posix(Errno::EBADF).to_rpc_status()))],
            }
        }
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    fake.script_last_reclaim();
    let (client, _map) = fake.client();
    let (closed, kept) = (client.open("/x").await.unwrap(), client.open("/y").await.unwrap());
    fake.wait_seen(|seen| !reclaims(seen).is_empty()).await;
    fake.set_incarnation(2);
    closed.close().await.unwrap();
    let told: Vec<_> = reclaims(&fake.seen()).into_iter().map(|(_, handles)| handles).collect();
    assert_eq!(told, [vec![], vec![2], vec![]]);
    kept.close().await.unwrap();
}

#[tokio::test]
async fn r19_a_file_that_was_lost_says_so() {
    let fake = Fake::start(|seen| match op(seen) {
        Op::Reclaim(reclaim) if !reclaim.handles.is_empty() => {
            let lost = reclaim.handles.iter().map(|handle| handle.handle).collect();
            vec![Act::Answer(Answer::Reclaim(ReclaimResponse { lost, ..Default::default() }))]
        }
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let (client, map) = fake.client();
    let file = client.with_deadline(Duration::from_secs(5)).open("/x").await.unwrap();
    map.send_replace(Arc::new(fake.map(2)));
    fake.wait_seen(|seen| !reclaims(seen).is_empty()).await;
    let error = file.read_at(0, 4).await.unwrap_err();
    assert_eq!((error.errno(), error.reason()), (Errno::ESTALE, Reason::Posix));
    file.close().await.unwrap();
}
