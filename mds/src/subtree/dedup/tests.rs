use super::*;
use crate::session::{Meter, Sessions};
use pando_mds_core::api::BatchId;
use pando_proto::Epoch;

const CLIENT: ClientId = ClientId(3);

fn connection() -> Arc<Connection> {
    Arc::new(Connection::new(CLIENT, pando_rpc::queue::coalescing(8, 8).0, Arc::new(Meter::new(Arc::default()))))
}

fn reference(batch: u64) -> CompletedRef {
    CompletedRef { subtree: pando_proto::ids::ROOT_SUBTREE, epoch: Epoch(1), batch: BatchId(batch) }
}

#[test]
fn a_copy_of_a_running_request_attaches_and_gets_the_reply() {
    let (mut dedup, first, second) = (Dedup::default(), connection(), connection());
    assert_eq!(dedup.judge(CLIENT, 5, &first), Verdict::Run);
    dedup.running(CLIENT, 5, &first);
    assert_eq!(dedup.judge(CLIENT, 5, &second), Verdict::Attached);
    let latest = dedup.complete(CLIENT, 5, Bytes::from_static(b"r"), Some(reference(1))).unwrap();
    assert!(Arc::ptr_eq(&latest, &second));
    assert_eq!(dedup.judge(CLIENT, 5, &first), Verdict::Answer(Bytes::from_static(b"r")));
}

#[test]
fn confirmed_requests_are_forgotten_and_then_refused() {
    let (mut dedup, connection) = (Dedup::default(), connection());
    for request in 1..4 {
        dedup.running(CLIENT, request, &connection);
    }
    dedup.complete(CLIENT, 1, Bytes::new(), Some(reference(1)));
    dedup.complete(CLIENT, 2, Bytes::new(), None);
    assert_eq!(dedup.confirm(CLIENT, 3), [reference(1)]);
    assert_eq!(dedup.judge(CLIENT, 2, &connection), Verdict::Stale, "R9");
    assert_eq!(dedup.judge(CLIENT, 3, &connection), Verdict::Attached);
    assert_eq!(dedup.confirm(CLIENT, 1), [], "the mark never goes back");
}

#[test]
fn the_window_is_bounded() {
    let (mut dedup, connection) = (Dedup::default(), connection());
    for request in 1..=(WINDOW + BEYOND_WINDOW) as u64 {
        dedup.running(CLIENT, request, &connection);
    }
    assert_eq!(dedup.judge(CLIENT, 5000, &connection), Verdict::Full);
    for request in 1..=(WINDOW + BEYOND_WINDOW) as u64 {
        dedup.finished(CLIENT, request);
    }
    assert_eq!(
        dedup.judge(CLIENT, 5000, &connection),
        Verdict::Full,
        "I8: those between may all have been let through"
    );
    dedup.confirm(CLIENT, 4500);
    assert_eq!(dedup.judge(CLIENT, 5000, &connection), Verdict::Run);
    assert_eq!(dedup.judge(CLIENT, 5000, &connection), Verdict::RunIfNew, "I4: the first copy may not have run yet");
}

#[test]
fn r9_a_client_that_never_asked_has_no_table() {
    let (mut dedup, connection) = (Dedup::default(), connection());
    assert_eq!(dedup.keep_alive(CLIENT, 100), []);
    assert_eq!(dedup.clients().count(), 0);
    // What it sends later is judged by what the rank knows.
    assert_eq!(dedup.confirm(CLIENT, 100), []);
    assert_eq!(dedup.judge(CLIENT, 99, &connection), Verdict::Stale, "R9");
    assert_eq!(dedup.judge(CLIENT, 100, &connection), Verdict::Run);
}

#[test]
fn r9_a_table_stays_as_long_as_it_says_more_than_the_rank_knows() {
    let (mut dedup, connection) = (Dedup::default(), connection());
    assert_eq!(dedup.judge(CLIENT, 5, &connection), Verdict::Run);
    assert_eq!(dedup.keep_alive(CLIENT, 5), []);
    assert_eq!(dedup.judge(CLIENT, 5, &connection), Verdict::RunIfNew, "I4: the first copy may not have run yet");
    dedup.running(CLIENT, 5, &connection);
    assert_eq!(dedup.keep_alive(CLIENT, 6), []);
    assert!(dedup.knows(CLIENT), "it is under way, though its client has given it up");
    dedup.complete(CLIENT, 5, Bytes::new(), Some(reference(1)));
    assert_eq!(dedup.keep_alive(CLIENT, 6), [reference(1)]);
    assert!(!dedup.knows(CLIENT));
    // What came with a request may be ahead of the last keep-alive.
    assert_eq!(dedup.confirm(CLIENT, 9), []);
    assert_eq!(dedup.keep_alive(CLIENT, 8), []);
    assert_eq!(dedup.judge(CLIENT, 8, &connection), Verdict::Stale, "R9: the mark never goes back");
    assert_eq!(dedup.keep_alive(CLIENT, 9), []);
    assert!(!dedup.knows(CLIENT));
}

#[test]
fn r9_the_rank_knows_which_sessions_have_tables() {
    let sessions = Sessions::default();
    let mut dedup = Dedup::default();
    dedup.adopt(CLIENT, 5, Bytes::new(), reference(1));
    dedup.listen(&Rc::new(Interest::new(sessions.clone(), pando_proto::ids::ROOT_SUBTREE)));
    assert_eq!(sessions.tables_of(CLIENT), 1, "adopted before it was served");
    dedup.keep_alive(CLIENT, 6);
    assert_eq!(sessions.tables_of(CLIENT), 0);
    dedup.running(CLIENT, 5, &connection());
    assert_eq!(sessions.tables_of(CLIENT), 1, "given up, and under way all the same");
    dedup.session_gone(CLIENT);
    assert_eq!(sessions.tables_of(CLIENT), 0);
    dedup.confirm(CLIENT, 7);
    assert_eq!(sessions.tables_of(CLIENT), 1);
    drop(dedup);
    assert_eq!(sessions.tables_of(CLIENT), 0, "the actor is gone");
}
