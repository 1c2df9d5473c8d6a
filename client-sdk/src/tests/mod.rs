//! The session against a scripted rank: duplicates, broken streams, redirects, lies.

mod appends;
mod crossings;
mod fake;
mod handovers;
mod reclaims;
mod trees;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_proto::mds::{
    Attr, CloseResponse, DataHome, FileKind, OpenResponse, OperationResult, Placement, ReadFileResponse, ReadResponse,
    ReclaimResponse, Redirect, RenameResponse, Replies, Reply, StatResponse, UnlinkResponse, Welcome, operation::Op,
    operation_result::Result as Answer, server_frame,
};
use pando_proto::{Errno, Error as ProtoError, Reason};

use self::fake::{Act, Fake, Seen};

fn attr() -> Attr {
    Attr { ino: 42, kind: FileKind::File.into(), mode: 0o644, nlink: 1, version: 1, ..Attr::default() }
}

fn op(seen: &Seen) -> &Op {
    seen.request.operation.as_ref().unwrap().op.as_ref().unwrap()
}

/// What a correct rank says: a file's body is its path.
fn correct(seen: &Seen) -> Answer {
    match op(seen) {
        Op::ReadFile(request) => Answer::ReadFile(ReadFileResponse {
            attr: Some(attr()),
            placement: None,
            body: Some(request.target.clone().unwrap().path),
        }),
        Op::Stat(_) => Answer::Stat(StatResponse { attr: Some(attr()), placement: None }),
        Op::Open(_) => Answer::Open(OpenResponse {
            attr: Some(attr()),
            placement: Some(Placement { home: DataHome::Inline.into(), ..Placement::default() }),
            body: None,
            created: false,
        }),
        Op::Close(_) => Answer::Close(CloseResponse {}),
        Op::Read(_) => Answer::Read(ReadResponse {
            data: Some(Bytes::from_static(b"data")),
            attr: Some(attr()),
            placement: Some(Placement { home: DataHome::Inline.into(), ..Placement::default() }),
        }),
        Op::Unlink(_) => Answer::Unlink(UnlinkResponse {}),
        Op::Rename(_) => Answer::Rename(RenameResponse {}),
        Op::Reclaim(_) => Answer::Reclaim(ReclaimResponse { lost: Vec::new(), ..Default::default() }),
        other => panic!("not in these tests: {other:?}"),
    }
}

fn error(reason: Reason) -> Answer {
    Answer::Error(ProtoError::new(reason, "by the script").to_rpc_status())
}

#[tokio::test]
async fn a_read_is_one_request_and_numbers_rise() {
    let fake = Fake::start(|seen| vec![Act::Answer(correct(seen))]).await;
    let (client, _map) = fake.client();
    assert_eq!(client.read("/a/b").await.unwrap(), "a/b");
    assert_eq!(client.read("/c").await.unwrap(), "c");
    let seen = fake.seen();
    assert!(seen[0].request.id < seen[1].request.id);
    assert_eq!(seen[1].lowest, seen[1].request.id, "R9: all before was answered");
    assert!(!seen[0].request.retry);
    assert_eq!((seen[0].request.subtree, seen[0].request.subtree_epoch), (1, 1));
}

#[tokio::test]
async fn a_batch_travels_in_few_frames_and_keeps_its_order() {
    let fake = Fake::start(|seen| vec![Act::Answer(correct(seen))]).await;
    let (client, _map) = fake.client();
    client.read("/first").await.unwrap();
    let paths: Vec<_> = (0..200).map(|number| format!("/{number}")).collect();
    let bodies = client.read_many(&paths).await;
    let expected: Vec<_> = (0..200).map(|number| Bytes::from(number.to_string())).collect();
    assert_eq!(bodies.into_iter().map(Result::unwrap).collect::<Vec<_>>(), expected);
    let seen = fake.seen();
    assert_eq!(seen.len(), 201);
    assert_eq!(seen[1].frame, seen[60].frame, "the window of 64 leaves in one frame");
    assert!(seen.iter().all(|seen| seen.request.id < seen.lowest + 64), "R9: the window");
}

#[tokio::test]
async fn after_a_broken_stream_the_same_request_comes_again_and_says_so() {
    let fake = Fake::start(|seen| match seen.stream {
        1 => vec![Act::Break],
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let (client, map) = fake.client();
    let read = tokio::spawn({
        let client = client.clone();
        async move { client.read("/x").await }
    });
    fake.wait_seen(|seen| !seen.is_empty()).await;
    map.send_replace(Arc::new(fake.map(9)));
    assert_eq!(read.await.unwrap().unwrap(), "x");
    let seen = fake.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].request.id, seen[1].request.id, "R9");
    assert!(seen[1].request.retry, "R10");
    assert_eq!(seen[1].request.subtree_epoch, 1, "R10: the epoch of the first send");
}

#[tokio::test]
async fn a_retryable_error_is_retried_under_the_same_number() {
    let mut answers = [Reason::Unavailable, Reason::Overloaded, Reason::NotOwner].into_iter();
    let fake = Fake::start(move |seen| match answers.next() {
        Some(reason) => vec![Act::Answer(error(reason))],
        None => vec![Act::Answer(correct(seen))],
    })
    .await;
    let (client, _map) = fake.client();
    assert_eq!(client.read("/x").await.unwrap(), "x");
    let seen = fake.seen();
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|seen| seen.request.id == 1));
}

#[tokio::test]
async fn a_posix_error_is_final_and_names_the_path() {
    let fake =
        Fake::start(|_| vec![Act::Answer(Answer::Error(ProtoError::posix(Errno::ENOENT).to_rpc_status()))]).await;
    let (client, _map) = fake.client();
    let error = client.read("/no/such").await.unwrap_err();
    assert_eq!((error.errno(), error.path()), (Errno::ENOENT, Some(&b"/no/such"[..])));
    assert!(!client.try_exists("/no/such").await.unwrap());
    assert_eq!(fake.seen().len(), 2);
}

#[tokio::test]
async fn a_redirect_waits_for_its_map_and_goes_to_the_new_owner() {
    let old = Fake::start(|_| {
        let redirect = Redirect {
            subtree: 1,
            subtree_epoch: 5,
            rank: 1,
            address: String::new(),
            map_epoch: 5,
            ..Default::default()
        };
        vec![Act::Answer(Answer::Redirect(redirect))]
    })
    .await;
    let new = Fake::start_rank(1, 64, |seen| vec![Act::Answer(correct(seen))]).await;
    let (client, map) = old.client();
    let read = tokio::spawn(async move { client.read("/x").await });
    old.wait_seen(|seen| !seen.is_empty()).await;
    map.send_replace(Arc::new(new.map(5)));
    assert_eq!(read.await.unwrap().unwrap(), "x");
    let seen = new.seen();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].request.retry && seen[0].request.subtree_epoch == 1, "R10");
    assert_eq!(seen[0].request.id, old.seen()[0].request.id);
}

#[tokio::test]
async fn duplicate_and_made_up_replies_do_no_harm() {
    let fake = Fake::start(|seen| {
        vec![
            Act::AnswerTo(u64::MAX, correct(seen)),
            Act::AnswerTo(seen.request.id + 1, error(Reason::Internal)),
            Act::Answer(correct(seen)),
            Act::Answer(error(Reason::Internal)),
        ]
    })
    .await;
    let (client, _map) = fake.client();
    for number in 0..20 {
        let path = format!("/{number}");
        assert_eq!(client.read(&path).await.unwrap(), path[1..].to_owned());
    }
}

#[tokio::test]
async fn answers_that_make_no_sense_are_errors() {
    let mut count = 0..;
    let fake = Fake::start(move |seen| match count.next().unwrap() {
        0 => vec![Act::Answer(Answer::Close(CloseResponse {}))],
        1 => {
            let empty = Reply { id: seen.request.id, result: Some(OperationResult { result: None }) };
            vec![Act::Frame(server_frame::Frame::Replies(Replies { map_epoch: 1, replies: vec![empty] }))]
        }
        2 => vec![Act::Answer(Answer::ReadFile(ReadFileResponse::default()))],
        3 => {
            let placement = Placement { home: DataHome::Objects.into(), object_size: 0, ..Placement::default() };
            let answer = ReadFileResponse { attr: Some(attr()), placement: Some(placement), body: None };
            vec![Act::Answer(Answer::ReadFile(answer))]
        }
        _ => {
            let attr = Attr { size: u64::MAX, ..attr() };
            let placement = Placement { home: DataHome::Objects.into(), object_size: 4096, ..Placement::default() };
            let answer = ReadFileResponse { attr: Some(attr), placement: Some(placement), body: None };
            vec![Act::Answer(Answer::ReadFile(answer))]
        }
    })
    .await;
    let (client, _map) = fake.client();
    for _ in 0..4 {
        assert_eq!(client.read("/x").await.unwrap_err().errno(), Errno::EPROTO);
    }
    assert_eq!(client.read("/x").await.unwrap_err().errno(), Errno::ENOMEM);
}

#[tokio::test]
async fn a_second_welcome_breaks_the_stream_and_the_request_comes_again() {
    let fake = Fake::start(|seen| match seen.stream {
        1 => vec![Act::Frame(server_frame::Frame::Welcome(Welcome::default()))],
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let (client, _map) = fake.client();
    assert_eq!(client.read("/x").await.unwrap(), "x");
}

#[tokio::test]
async fn a_call_without_answer_ends_at_its_deadline_and_gives_up_its_number() {
    let fake = Fake::start(|seen| match seen.request.id {
        1 => vec![],
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let (client, _map) = fake.client();
    let error = client.with_deadline(Duration::from_millis(200)).read("/x").await.unwrap_err();
    assert_eq!((error.errno(), error.outcome_is_unknown()), (Errno::ETIMEDOUT, true));
    client.read("/y").await.unwrap();
    let seen = fake.seen();
    assert_eq!(seen[1].lowest, seen[1].request.id, "R9: a late copy of number 1 is refused");
}

#[tokio::test]
async fn without_any_rank_a_call_says_that_nothing_happened() {
    let fake = Fake::start(|_| vec![]).await;
    let (client, map) = fake.client();
    let mut lost = fake.map(2);
    lost.ranks.clear();
    map.send_replace(Arc::new(lost));
    let error = client.with_deadline(Duration::from_millis(200)).write("/x", "y").await.unwrap_err();
    assert!(!error.outcome_is_unknown() && error.message().contains("nothing happened"), "{error}");
}

#[tokio::test]
async fn a_new_process_of_the_rank_hears_of_open_handles_first() {
    let fake = Fake::start(|seen| match (seen.stream, op(seen)) {
        (1, Op::Stat(_)) => vec![Act::Break],
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let (client, _map) = fake.client();
    let file = client.open("/x").await.unwrap();
    fake.set_incarnation(2);
    client.metadata("/y").await.unwrap();
    let seen = fake.seen();
    let names: Vec<_> = seen.iter().filter(|seen| seen.stream == 2).collect();
    let Op::Reclaim(reclaim) = op(names[0]) else { panic!("R19: {:?}", names[0]) };
    assert_eq!((reclaim.handles.len(), reclaim.handles[0].ino), (1, 42));
    assert!(matches!(op(names[1]), Op::Stat(_)));
    file.close().await.unwrap();
    fake.set_incarnation(3);
}

#[tokio::test]
async fn an_open_that_was_answered_by_a_later_process_is_told_to_it() {
    let fake = Fake::start(|seen| match (seen.stream, op(seen)) {
        (1, _) => vec![Act::Break],
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let (client, _map) = fake.client();
    let opening = tokio::spawn({
        let client = client.clone();
        async move { client.open("/x").await }
    });
    fake.set_incarnation(1);
    fake.wait_seen(|seen| !seen.is_empty()).await;
    fake.set_incarnation(2);
    let _file = opening.await.unwrap().unwrap();
    let seen = fake.seen();
    assert!(matches!(op(&seen[1]), Op::Open(_)));
    assert!(seen[1].request.retry);
    let Op::Reclaim(reclaim) = op(&seen[2]) else { panic!("R19: {:?}", seen[2]) };
    assert_eq!(reclaim.handles.len(), 1, "its reclaim had begun before it knew of the handle");
}

#[tokio::test]
async fn an_open_that_nobody_waits_for_is_closed() {
    let (release, mut released) = tokio::sync::watch::channel(false);
    let mut held: Option<(u64, Answer)> = None;
    let fake = Fake::start(move |seen| match op(seen) {
        Op::Open(_) if !*released.borrow_and_update() => {
            held = Some((seen.request.id, correct(seen)));
            vec![]
        }
        Op::Stat(_) => {
            let (id, answer) = held.take().unwrap();
            vec![Act::Answer(correct(seen)), Act::AnswerTo(id, answer)]
        }
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let (client, _map) = fake.client();
    let opening = tokio::spawn({
        let client = client.clone();
        async move { client.open("/x").await.map(|_| ()) }
    });
    fake.wait_seen(|seen| !seen.is_empty()).await;
    release.send_replace(true);
    opening.abort();
    let seen = fake.wait_seen(|seen| seen.iter().any(|seen| matches!(op(seen), Op::Close(_)))).await;
    let Op::Open(open) = op(&seen[0]) else { panic!() };
    let closed = seen.iter().find_map(|seen| match op(seen) {
        Op::Close(close) => Some(close.handle),
        _ => None,
    });
    assert_eq!(closed, Some(open.handle));
}

#[tokio::test]
async fn a_dropped_file_is_closed_in_the_background() {
    let fake = Fake::start(|seen| vec![Act::Answer(correct(seen))]).await;
    let (client, _map) = fake.client();
    drop(client.open("/x").await.unwrap());
    fake.wait_seen(|seen| seen.iter().any(|seen| matches!(op(seen), Op::Close(_)))).await;
}

#[tokio::test]
async fn a_closed_client_refuses_at_once() {
    let fake = Fake::start(|seen| vec![Act::Answer(correct(seen))]).await;
    let (client, _map) = fake.client();
    client.read("/x").await.unwrap();
    client.clone().close().await.unwrap();
    assert_eq!(client.read("/x").await.unwrap_err().errno(), Errno::ESTALE);
}

#[tokio::test]
async fn an_echo_comes_back() {
    let fake = Fake::start(|seen| vec![Act::Answer(correct(seen))]).await;
    let (client, _map) = fake.client();
    assert_eq!(client.echo(Bytes::from_static(b"hello")).await.unwrap(), "hello");
    let calls = (0..100).map(|number: u32| client.echo(number.to_string().into()));
    for (number, echoed) in futures_util::future::join_all(calls).await.into_iter().enumerate() {
        assert_eq!(echoed.unwrap(), number.to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_work_in_a_multi_thread_runtime() {
    let fake = Fake::start(|seen| vec![Act::Answer(correct(seen))]).await;
    let (client, _map) = fake.client();
    let tasks = (0..200).map(|number| {
        let client = client.clone();
        tokio::spawn(async move { client.read(format!("/{number}")).await.unwrap() })
    });
    for (number, task) in futures_util::future::join_all(tasks).await.into_iter().enumerate() {
        assert_eq!(task.unwrap(), number.to_string());
    }
}

#[tokio::test]
async fn a_session_that_the_cluster_ended_fails_all_calls_at_once() {
    let fake = Fake::start(|_| vec![Act::Break]).await;
    let (client, _map) = fake.client();
    fake.refuse(Reason::StaleSession);
    let error = client.read("/x").await.unwrap_err();
    assert_eq!((error.errno(), error.reason()), (Errno::ESTALE, Reason::StaleSession));
    assert_eq!(client.metadata("/x").await.unwrap_err().reason(), Reason::StaleSession);
}

#[tokio::test]
async fn a_rank_of_another_cluster_at_the_address_of_ours_does_not_end_the_session() {
    let foreign = Fake::start(|_| vec![Act::Break]).await;
    foreign.refuse(Reason::WrongCluster);
    let ours = Fake::start(|seen| vec![Act::Answer(correct(seen))]).await;
    let (client, map) = foreign.client();
    let reading = tokio::spawn({
        let client = client.clone();
        async move { client.read("/x").await }
    });
    foreign.wait_refused().await;
    map.send_replace(Arc::new(ours.map(2)));
    assert_eq!(reading.await.unwrap().unwrap(), "x");
    assert_eq!(client.read("/y").await.unwrap(), "y");
}

#[tokio::test]
async fn when_the_map_shows_a_later_process_the_old_stream_is_left() {
    let fake = Fake::start(|seen| match seen.stream {
        1 => vec![],
        _ => vec![Act::Answer(correct(seen))],
    })
    .await;
    let (client, map) = fake.client();
    let read = tokio::spawn(async move { client.read("/x").await });
    fake.wait_seen(|seen| !seen.is_empty()).await;
    fake.set_incarnation(2);
    let mut next = fake.map(2);
    next.ranks.values_mut().for_each(|rank| rank.incarnation = 2);
    map.send_replace(Arc::new(next));
    assert_eq!(read.await.unwrap().unwrap(), "x");
}

#[test]
fn what_callers_hold_may_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<crate::Client>();
    shared::<crate::File>();
    shared::<crate::ReadDir>();
    shared::<crate::Error>();
}
