use std::cell::RefCell;
use std::collections::VecDeque;

use pando_rpc::Env;

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

fn failed(reason: Reason) -> Error {
    Error::new(reason, "as the test says")
}

/// Calls mons that answer so, one try after the other, and then with the last one for ever. `None` is no answer.
async fn call(answers: impl IntoIterator<Item = Option<Reason>>) -> Error {
    call_as(false, answers).await
}

async fn call_strictly(answers: impl IntoIterator<Item = Option<Reason>>) -> Error {
    call_as(true, answers).await
}

async fn call_as(strictly: bool, answers: impl IntoIterator<Item = Option<Reason>>) -> Error {
    let targets = Targets::new(Env::system().net, vec!["a:1".into(), "b:1".into()]).unwrap();
    let answers = RefCell::new(answers.into_iter().collect::<VecDeque<_>>());
    let next = || {
        let mut answers = answers.borrow_mut();
        if answers.len() > 1 { answers.pop_front().flatten() } else { answers[0] }
    };
    let asked = |_| {
        let answer = next();
        async move {
            match answer {
                Some(reason) => Err::<Response<()>, _>(failed(reason).to_tonic()),
                None => std::future::pending().await,
            }
        }
    };
    let called = if strictly { targets.call_strictly(LIMIT, asked).await } else { targets.call(LIMIT, asked).await };
    called.unwrap_err()
}

/// R11, R12: whoever is told "overloaded" serves on, and must not be overtaken by a try that is still on its way.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_only_if_no_try_was_left_open() {
    use Reason::{NotOwner, Overloaded, Timeout, Unavailable};
    assert_eq!(call([Some(Overloaded)]).await.reason, Overloaded);
    assert_eq!(call([Some(NotOwner), Some(Overloaded)]).await.reason, Overloaded, "neither was taken");
    for open in [None, Some(Timeout), Some(Unavailable)] {
        for last in [Overloaded, NotOwner] {
            let error = call([Some(Overloaded), open, Some(last)]).await;
            assert_eq!(error.reason, Timeout, "{open:?}, then {last:?}");
            assert!(error.message.contains("may or may not") && error.message.contains("as the test says"), "{error}");
        }
        assert!(leaves_open(&call([Some(Overloaded), open]).await));
    }
    assert_eq!(call([Some(Unavailable)]).await, failed(Unavailable), "as it was told");
}

/// R11: a split or merge that is refused now may be taken when an earlier try comes.
#[tokio::test(start_paused = true)]
async fn what_may_be_refused_for_a_while_is_open_after_a_try_without_an_answer() {
    for refusal in [Reason::StaleEpoch, Reason::InvalidRequest, Reason::InUse, Reason::UnknownId] {
        let began = Instant::now();
        let error = call_strictly([None, Some(refusal)]).await;
        assert!(error.reason == Reason::Timeout && error.message.contains("may or may not"), "{error}");
        assert!(began.elapsed() < LIMIT / 2, "who asks decides what to do about it");
        assert_eq!(call_strictly([Some(Reason::Overloaded), Some(refusal)]).await, failed(refusal), "none is open");
    }
}

/// Other refusals of the map are final whatever happened before: they name what never comes back.
#[tokio::test(start_paused = true)]
async fn what_the_map_refuses_is_told_at_once() {
    for refusal in [Reason::StaleEpoch, Reason::InvalidRequest, Reason::InUse, Reason::UnknownId] {
        let began = Instant::now();
        assert_eq!(call([None, Some(refusal)]).await, failed(refusal));
        assert!(began.elapsed() < LIMIT / 2);
    }
}

/// An address may have gone to another cluster's mon. The others still know; and what an earlier try left open stays so
/// (R12).
#[tokio::test(start_paused = true)]
async fn one_mon_of_another_cluster_is_passed_over() {
    use Reason::{InUse, Timeout, Unavailable, WrongCluster};
    assert_eq!(call([Some(WrongCluster), Some(InUse)]).await.reason, InUse);
    assert_eq!(call([Some(WrongCluster)]).await, failed(WrongCluster), "all are");
    assert_eq!(call([Some(Unavailable), Some(WrongCluster)]).await.reason, Timeout);
}

/// What answers at the address may be something else of a cluster, or anything that speaks gRPC.
#[tokio::test]
async fn who_is_no_mon_is_named_and_passed_over() {
    let env = Env::system();
    let listener = pando_rpc::bind(&env.net, std::net::SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local.to_string();
    let routes = pando_rpc::standard_routes("pando.osd.v1").await;
    let serving = tokio::spawn(pando_rpc::serve(listener, routes, env.shutdown.clone()));
    let status = |channel| async move { AdminServiceClient::new(channel).get_status(GetStatusRequest {}).await };
    let alone = Targets::new(Arc::clone(&env.net), vec![address.clone()]).unwrap();
    let (began, error) = (Instant::now(), alone.call(LIMIT, status).await.unwrap_err());
    assert!(error == no_mon(&address) && error.message.contains(&address), "{error}");
    assert!(began.elapsed() < LIMIT / 2, "it is told at once");

    let both = Targets::new(Arc::clone(&env.net), vec![address, "b:1".into()]).unwrap();
    let tries = std::cell::Cell::new(0);
    let asked = |channel| {
        let first = tries.replace(tries.get() + 1) == 0;
        async move { if first { status(channel).await } else { Err(failed(Reason::InUse).to_tonic()) } }
    };
    assert_eq!(both.call(LIMIT, asked).await.unwrap_err(), failed(Reason::InUse), "the other one knows");
    env.shutdown.stop();
    serving.await.unwrap().unwrap();
}
