//! What a rank hears first, and that nothing of it holds up the window.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_proto::Reason;
use pando_proto::mds::{KeepAlive, ReclaimRequest, operation::Op, server_frame};

use super::fake::{self, Act, Fake, Seen};
use super::{correct, error, op};

fn reclaim(seen: &Seen) -> Option<&ReclaimRequest> {
    match op(seen) {
        Op::Reclaim(reclaim) => Some(reclaim),
        _ => None,
    }
}

#[tokio::test]
async fn r19_each_new_process_hears_that_there_are_no_more_handles() {
    let fake = Fake::start(|seen| match (seen.stream, op(seen)) {
        (1, Op::Stat(_)) => vec![Act::Break],
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    fake.script_last_reclaim();
    let (client, _map) = fake.client();
    let file = client.open("/x").await.unwrap();
    fake.set_incarnation(2);
    client.metadata("/y").await.unwrap();
    let reclaims = |seen: &[Seen]| -> Vec<_> {
        let told = seen.iter().filter_map(|seen| Some((seen.stream, reclaim(seen)?.handles.len())));
        told.collect()
    };
    let seen = fake.wait_seen(|seen| reclaims(seen).len() >= 3).await;
    assert_eq!(reclaims(&seen), [(1, 0), (2, 1), (2, 0)], "all handles, then that there are no more");
    file.close().await.unwrap();
}

#[tokio::test]
async fn an_idle_client_keeps_a_stream_open() {
    let fake = Fake::start(|seen| vec![Act::Answer(correct(seen))]).await;
    fake.script_last_reclaim();
    let mut unowned = fake.map(2);
    unowned.subtrees.clear();
    let (_client, map) = fake::client(unowned);

    map.send_replace(Arc::new(fake.map(3)));
    let seen = fake.wait_seen(|seen| !seen.is_empty()).await;
    assert_eq!(reclaim(&seen[0]).map(|reclaim| reclaim.handles.len()), Some(0));
}

#[tokio::test]
async fn r19_a_rank_that_still_waits_for_us_is_told_again() {
    let mut told = false;
    let fake = Fake::start(move |seen| {
        let mut acts = vec![Act::Answer(correct(seen))];
        if matches!(op(seen), Op::Stat(_)) && !std::mem::replace(&mut told, true) {
            let awaiting = KeepAlive { awaiting: vec![99, 1], ..KeepAlive::default() };
            acts.insert(0, Act::Frame(server_frame::Frame::KeepAlive(awaiting)));
        }
        acts
    })
    .await;
    fake.script_last_reclaim();
    let (client, _map) = fake.client();
    let reclaims = |seen: &[Seen]| seen.iter().filter(|seen| reclaim(seen).is_some()).count();
    fake.wait_seen(|seen| reclaims(seen) == 1).await;
    client.metadata("/x").await.unwrap();
    fake.wait_seen(|seen| reclaims(seen) == 2).await;
}

#[tokio::test]
async fn r9_a_reclaim_that_breaks_off_gives_up_its_number() {
    let mut not_ready = 2;
    let fake = Fake::start(move |seen| match seen.stream {
        1 | 2 => vec![Act::Break],
        _ if reclaim(seen).is_some() && not_ready > 0 => {
            not_ready -= 1;
            vec![Act::Answer(error(Reason::Unavailable))]
        }
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    fake.script_last_reclaim();
    let (client, _map) = fake.client();

    fake.wait_seen(|seen| seen.iter().any(|seen| seen.stream == 2)).await;
    client.read("/x").await.unwrap();
    client.read("/y").await.unwrap();
    let last = fake.seen().pop().unwrap();
    assert!(last.request.id > 3);
    assert_eq!(last.lowest, last.request.id);
}

#[tokio::test]
async fn r9_an_echo_that_is_given_up_gives_up_its_number() {
    let fake = Fake::start(|seen| vec![Act::Answer(correct(seen))]).await;
    let (client, map) = fake.client();
    let mut lost = fake.map(2);
    lost.ranks.clear();
    map.send_replace(Arc::new(lost));
    let hurried = client.with_deadline(Duration::from_millis(100));
    hurried.echo(Bytes::from_static(b"x")).await.unwrap_err();
    map.send_replace(Arc::new(fake.map(3)));
    client.read("/x").await.unwrap();
    let seen = fake.seen();
    assert_eq!((seen[0].request.id, seen[0].lowest), (2, 2));
}

#[tokio::test]
async fn a_reclaim_does_not_wait_for_the_requests_that_wait_for_it() {
    // A window of two.
    let fake = Fake::start_rank(0, 6, |seen| match (seen.stream, op(seen)) {
        (1, Op::Stat(_)) => vec![Act::Break],
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let (client, _map) = fake.client();
    let file = client.open("/x").await.unwrap();
    fake.set_incarnation(2);
    let stats = (0..9).map(|number| {
        let client = client.clone();
        tokio::spawn(async move { client.metadata(format!("/{number}")).await })
    });
    for stat in stats.collect::<Vec<_>>() {
        stat.await.unwrap().unwrap();
    }
    assert!(fake.seen().iter().any(|seen| seen.stream == 2 && reclaim(seen).is_some()));
    file.close().await.unwrap();
}

#[tokio::test]
async fn a_call_leaves_a_rank_that_is_gone_for_the_new_owner() {
    let old = Fake::start(|seen| vec![Act::Answer(correct(seen))]).await;
    let new = Fake::start_rank(1, 64, |seen| vec![Act::Answer(correct(seen))]).await;
    let (client, map) = old.client();
    let mut gone = old.map(2);
    gone.ranks.clear();
    map.send_replace(Arc::new(gone));
    let read = tokio::spawn(async move { client.read("/x").await });
    tokio::task::yield_now().await;
    map.send_replace(Arc::new(new.map(3)));
    assert_eq!(read.await.unwrap().unwrap(), "x");
}
