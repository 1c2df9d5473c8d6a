use pando_rpc::{Net, TcpNet};
use raft::eraftpb::Entry;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);
const PEER: u64 = 2;

/// To a peer at which nobody listens. Its task does not run before the test waits for something.
fn to_nobody(tasks: &mut JoinSet<()>) -> (Peers, mpsc::Receiver<Input>) {
    let net: Arc<dyn Net> = Arc::new(TcpNet);
    let (inputs, reports) = mpsc::channel(QUEUE);
    let senders = Senders {
        channels: Arc::new(BTreeMap::from([(PEER, pando_rpc::channel(&net, "127.0.0.1:1").unwrap())])),
        cluster: watch::channel([0; 16]).1,
        inputs,
        shutdown: Shutdown::default(),
    };
    (Peers::spawn(&senders, tasks), reports)
}

fn append() -> Message {
    let entry = Entry { data: vec![0; 8].into(), ..Entry::default() };
    Message { msg_type: MessageType::MsgAppend, to: PEER, entries: vec![entry].into(), ..Message::default() }
}

fn snapshot(bytes: usize) -> Message {
    let mut message = Message { msg_type: MessageType::MsgSnapshot, to: PEER, ..Message::default() };
    message.mut_snapshot().data = vec![0; bytes].into();
    message
}

/// Waits for the report of a snapshot that was lost; whose it was.
async fn lost(reports: &mut mpsc::Receiver<Input>) -> u64 {
    loop {
        match tokio::time::timeout(LIMIT, reports.recv()).await.expect("a report") {
            Some(Input::SnapshotSent { to, arrived: false }) => return to,
            Some(Input::Unreachable(PEER)) => {}
            _ => panic!("another report"),
        }
    }
}

#[tokio::test]
async fn a_snapshot_that_finds_no_room_is_told_of() {
    let mut tasks = JoinSet::new();
    let (peers, _reports) = to_nobody(&mut tasks);
    for _ in 0..QUEUE {
        assert_eq!(peers.send(append()), None);
    }
    assert_eq!(peers.send(append()), None, "Raft repeats these by itself");
    assert_eq!(peers.send(snapshot(8)), Some(PEER));
    assert_eq!(peers.send(Message { to: 77, ..snapshot(8) }), Some(77), "nobody is there");
}

#[tokio::test]
async fn a_snapshot_that_is_dropped_with_the_call_before_it_is_told_of() {
    let mut tasks = JoinSet::new();
    let (peers, mut reports) = to_nobody(&mut tasks);
    // Taken from the queue together; the snapshot has no room in the call of the other.
    assert_eq!(peers.send(append()), None);
    assert_eq!(peers.send(snapshot(BATCH_BYTES)), None);
    assert_eq!(lost(&mut reports).await, PEER);
}

#[tokio::test]
async fn a_snapshot_whose_own_call_fails_is_told_of() {
    let mut tasks = JoinSet::new();
    let (peers, mut reports) = to_nobody(&mut tasks);
    assert_eq!(peers.send(snapshot(8)), None);
    assert_eq!(lost(&mut reports).await, PEER);
}
