use pando_rpc::SystemClock;
use raft::Storage as _;
use tokio::task::JoinSet;

use super::*;
use crate::Config;
use crate::peers::Senders;

const LIMIT: Duration = Duration::from_secs(20);

/// Mon 1 of three, of which no other can be reached.
fn config(dir: &std::path::Path) -> Config {
    let mut config = Config::new(1, ([127, 0, 0, 1], 0).into(), crate::Storage::Dir(dir.to_owned()));
    config.peers = (1..=3).map(|id| (id, format!("127.0.0.1:{id}"))).collect();
    config
}

fn open(dir: &std::path::Path) -> RaftStorage {
    RaftStorage::open(&config(dir), crate::Storage::Dir(dir.to_owned()), || [5; 16]).unwrap()
}

fn node(dir: &std::path::Path, inputs: mpsc::Sender<Input>) -> Node {
    let senders =
        Senders { channels: Arc::default(), cluster: watch::channel([5; 16]).1, inputs, shutdown: Shutdown::default() };
    let config = config(dir);
    let parts = Parts {
        id: config.id,
        tick: config.tick,
        compact_every: config.compact_every,
        election_seed: None,
        clock: Arc::new(SystemClock),
        storage: open(dir),
        peers: Peers::spawn(&senders, &mut JoinSet::new()),
        map: watch::Sender::default(),
        leadership: watch::Sender::default(),
        cluster: watch::Sender::default(),
    };
    Node::new(parts).unwrap()
}

#[tokio::test]
async fn a_mon_whose_disk_was_set_back_stops_and_votes_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (inputs, receiver) = mpsc::channel(INPUTS);
    let node = node(dir.path(), inputs.clone());
    let from_2 = |kind| Message { msg_type: kind, from: 2, to: 1, term: 7, ..Message::default() };
    let heartbeat = Message { commit: 9, ..from_2(MessageType::MsgHeartbeat) };
    let campaign = Message { from: 3, term: 8, index: 9, log_term: 7, ..from_2(MessageType::MsgRequestVote) };
    for message in [heartbeat, campaign] {
        inputs.send(Input::Message(message)).await.unwrap();
    }
    let ended = tokio::time::timeout(LIMIT, node.run(receiver, Shutdown::default())).await.expect("it stops");
    let error = ended.unwrap_err();
    assert!(matches!(error, crate::Error::LostLog { confirmed: 9, last: 1 }), "{error:?}");
    assert!(error.to_string().contains("empty directory"), "{error}");
    let state = open(dir.path()).initial_state().unwrap().hard_state;
    assert_eq!((state.vote, state.term < 7), (0, true), "{state:?}");
}
