use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use pando_proto::ClientId;
use pando_proto::mds::Request;
use pando_rpc::queue;

use super::*;
use crate::session::{Connection, Meter};

fn submit(requests: usize) -> Submit {
    let (sender, _) = queue::coalescing(1, 1);
    let meter = Arc::new(Meter::new(Arc::new(AtomicUsize::new(0))));
    let connection = Arc::new(Connection::new(ClientId(1), sender, meter));
    let requests = (1..=requests as u64).map(|id| Request { id, ..Request::default() }).collect();
    Submit { connection, lowest_unanswered: 0, requests }
}

fn sizes(submits: Vec<Submit>) -> Vec<usize> {
    submits.into_iter().map(|submit| submit.requests.len()).collect()
}

#[test]
fn they_leave_in_their_order_or_when_their_patience_ends() {
    let (lobby, one, two) = (Lobby::default(), SubtreeId(1), SubtreeId(2));
    let first = lobby.enter(one, submit(3)).ok().flatten().expect("the first of its subtree");
    assert!(matches!(lobby.enter(one, submit(1)), Ok(None)));
    let other = lobby.enter(two, submit(2)).ok().flatten().expect("the first of its subtree");
    assert_ne!(first, other);
    assert_eq!(sizes(lobby.leave(one)), [3, 1]);
    let again = lobby.enter(one, submit(4)).ok().flatten().expect("a new room");
    assert_eq!(sizes(lobby.give_up(one, first)), [0; 0], "those have left: the others wait on");
    assert_eq!(sizes(lobby.give_up(one, again)), [4]);
    assert_eq!(sizes(lobby.give_up(two, other)), [2]);
}

#[test]
fn i8_what_waits_is_bounded() {
    let lobby = Lobby::default();
    let half = MAX_REQUESTS / 2;
    for subtree in 1..=2 {
        assert!(lobby.enter(SubtreeId(subtree), submit(half)).is_ok());
    }
    let back = lobby.enter(SubtreeId(3), submit(1)).expect_err("no room");
    assert_eq!(back.requests.len(), 1);
    assert_eq!(lobby.leave(SubtreeId(1)).len(), 1);
    assert!(lobby.enter(SubtreeId(3), submit(half)).is_ok(), "there is room again");
}
