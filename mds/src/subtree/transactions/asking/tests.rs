//! What the coordinator makes of the answers of others.

use std::cell::Cell;
use std::sync::Arc;

use pando_cluster_map::{ClusterMap, RankInfo, Subtree};
use pando_proto::mds::{ImportFrame, ImportResponse};
use pando_proto::mon::{CommitMoveRequest, MergeSubtreeRequest, SplitSubtreeRequest};
use pando_proto::{ClientId, Ino, Rank, ShardId};
use tokio::sync::mpsc;

use super::*;
use crate::io::Io;

const THERE: SubtreeId = SubtreeId(2);

/// The first try has no answer; to others it says this.
struct Slow {
    asked: Cell<u32>,
    answer: PrepareResponse,
}

impl Slow {
    fn peers(answer: prepare_response::Answer, crossing: Option<Crossing>) -> Rc<dyn Peers> {
        let answer = PrepareResponse { answer: Some(answer), crossing, ..PrepareResponse::default() };
        Rc::new(Self { asked: Cell::new(0), answer })
    }
}

impl Peers for Slow {
    fn import(&self, _: String, _: mpsc::Receiver<ImportFrame>) -> Io<ImportResponse> {
        Box::pin(std::future::pending())
    }

    fn await_map(&self, _: String, _: Epoch) -> Io<()> {
        Box::pin(std::future::pending())
    }

    fn prepare(&self, _: String, _: PrepareRequest) -> Io<PrepareResponse> {
        self.asked.set(self.asked.get() + 1);
        if self.asked.get() == 1 {
            return Box::pin(std::future::pending());
        }
        let answer = self.answer.clone();
        Box::pin(async move { Ok(answer) })
    }
}

/// Nobody asks them.
struct Silent;

impl Mons for Silent {
    fn allocate_inos(&self, _: ShardId, _: u64) -> Io<(Ino, u64)> {
        Box::pin(std::future::pending())
    }

    fn usage(&self) -> Io<(u64, u64)> {
        Box::pin(std::future::pending())
    }

    fn evict(&self, _: ClientId) -> Io<()> {
        Box::pin(std::future::pending())
    }

    fn split(&self, _: SplitSubtreeRequest) -> Io<(SubtreeId, Epoch)> {
        Box::pin(std::future::pending())
    }

    fn merge(&self, _: MergeSubtreeRequest) -> Io<Epoch> {
        Box::pin(std::future::pending())
    }

    fn renew(&self, _: SubtreeId, _: Epoch) -> Io<Epoch> {
        Box::pin(std::future::pending())
    }

    fn commit_move(&self, _: CommitMoveRequest) -> Io<Epoch> {
        Box::pin(std::future::pending())
    }

    fn cancel_move(&self, _: SubtreeId, _: u64) -> Io<Epoch> {
        Box::pin(std::future::pending())
    }

    fn raise_routes(&self, _: Vec<SubtreeId>) -> Io<Epoch> {
        Box::pin(std::future::pending())
    }

    fn decide(&self, _: DecideTransactionRequest) -> Io<(Decision, Epoch)> {
        Box::pin(std::future::pending())
    }

    fn finish(&self, _: SubtreeId, _: Epoch, _: Vec<TransactionId>) -> Io<Epoch> {
        Box::pin(std::future::pending())
    }
}

fn there() -> ClusterMap {
    let mut map = ClusterMap::default();
    let info = RankInfo { address: "there:1".to_owned(), up: true, ..RankInfo::default() };
    map.ranks.insert(Rank(3), info);
    map.subtrees.insert(THERE, Subtree { owner: Rank(3), ..Subtree::default() });
    map
}

async fn asked(map: ClusterMap) -> (Result<Ready, Not>, Asked) {
    let (maps, _sender) = MapWatch::fixed(Arc::new(map));
    let peers = Slow::peers(prepare_response::Answer::Busy(true), None);
    let mut request = PrepareRequest { subtree: THERE.0, ..PrepareRequest::default() };
    let mut doubtful = Asked::new();
    let ready = prepare(&peers, &maps, &mut request, Instant::now() + PATIENCE, &mut doubtful).await;
    (ready, doubtful)
}

#[tokio::test(start_paused = true)]
async fn r18_who_gave_no_answer_once_may_be_prepared_whatever_it_says_then() {
    let (ready, doubtful) = asked(there()).await;
    assert!(matches!(ready, Err(Not::Busy)));
    assert_eq!(doubtful[..], [THERE], "it hears of the abort");
}

#[tokio::test(start_paused = true)]
async fn r18_nobody_waits_for_a_subtree_that_is_no_more() {
    let began = Instant::now();
    let (ready, doubtful) = asked(ClusterMap::default()).await;
    assert!(matches!(ready, Err(Not::Busy)) && doubtful.is_empty());
    assert_eq!(Instant::now(), began, "the names are locked all the time");
}

#[tokio::test(start_paused = true)]
async fn r18_who_may_be_prepared_is_named_whatever_ends_the_asking() {
    use prepare_response::Answer as Says;
    let crossing = || Some(Crossing { subtree: 7, ..Crossing::default() });
    for (says, crossing) in
        [(Says::Unchanged(true), None), (Says::Elsewhere(7), crossing()), (Says::Elsewhere(0), None)]
    {
        let (maps, _sender) = MapWatch::fixed(Arc::new(there()));
        let asking = Asking {
            mons: Rc::new(Silent),
            peers: Slow::peers(says, crossing),
            maps,
            roots: SmallVec::new(),
            request: Some(PrepareRequest { subtree: THERE.0, ..PrepareRequest::default() }),
            wanted: Vec::new(),
            bare: PrepareRequest::default(),
        };
        let asked = match asking.ask().await {
            Answer::Unchanged(asked) | Answer::Elsewhere(_, asked) | Answer::Busy(asked) => asked,
            _ => panic!("another answer than was given"),
        };
        assert_eq!(asked[..], [THERE], "its late first copy would lock until it loses patience");
    }
}
