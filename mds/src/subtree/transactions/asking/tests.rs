//! What the coordinator makes of the answers of others.

use std::cell::Cell;
use std::sync::Arc;

use pando_cluster_map::{ClusterMap, RankInfo, Subtree};
use pando_proto::Rank;
use pando_proto::mds::{ImportFrame, ImportResponse};
use tokio::sync::mpsc;

use super::*;
use crate::io::Io;

const THERE: SubtreeId = SubtreeId(2);

/// The first try has no answer; to others it says that there are other locks.
#[derive(Default)]
struct Slow {
    asked: Cell<u32>,
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
        let answer = Some(prepare_response::Answer::Busy(true));
        Box::pin(async move { Ok(PrepareResponse { answer, ..PrepareResponse::default() }) })
    }
}

async fn asked(map: ClusterMap) -> (Result<Ready, Not>, Asked) {
    let (maps, _sender) = MapWatch::fixed(Arc::new(map));
    let peers: Rc<dyn Peers> = Rc::new(Slow::default());
    let mut request = PrepareRequest { subtree: THERE.0, ..PrepareRequest::default() };
    let mut doubtful = Asked::new();
    let ready = prepare(&peers, &maps, &mut request, Instant::now() + PATIENCE, &mut doubtful).await;
    (ready, doubtful)
}

#[tokio::test(start_paused = true)]
async fn r18_who_gave_no_answer_once_may_be_prepared_whatever_it_says_then() {
    let mut map = ClusterMap::default();
    let info = RankInfo { address: "there:1".to_owned(), up: true, ..RankInfo::default() };
    map.ranks.insert(Rank(3), info);
    map.subtrees.insert(THERE, Subtree { owner: Rank(3), ..Subtree::default() });
    let (ready, doubtful) = asked(map).await;
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
