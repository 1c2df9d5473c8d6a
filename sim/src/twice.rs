//! Requests of a rank that arrive twice, the second time late: also when what they asked for was done, and forgotten,
//! long ago. Nothing may come of that (R2, R12, R18).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::{Decision, TransactionId};
use pando_mds::io::{Io, Mons, Outside, Page, Peers, Records};
use pando_proto::mds::{ImportFrame, ImportResponse, PrepareRequest, PrepareResponse};
use pando_proto::mon::{CommitMoveRequest, DecideTransactionRequest, MergeSubtreeRequest, SplitSubtreeRequest};
use pando_proto::osd::{CommitRequest, CommitResponse, RaiseFenceResponse};
use pando_proto::{ClientId, Epoch, Ino, Rank, ShardId, SubtreeId};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::sync::mpsc;

/// One batch in so many.
const BATCHES_ONE_IN: u32 = 30;
/// One of the other requests in so many.
const OTHERS_ONE_IN: u32 = 6;
/// How late the second copy is: about as late as the first one, or long after.
const SOON_MILLIS: std::ops::Range<u64> = 0..100;
const LATE_MILLIS: std::ops::Range<u64> = 0..15_000;

/// Puts itself between a rank and what is outside.
pub(crate) fn twice(outside: Outside, seed: u64) -> Outside {
    let again = Again(Rc::new(RefCell::new(ChaCha8Rng::seed_from_u64(seed))));
    Outside {
        records: Rc::new(TwiceRecords { inner: outside.records, again: again.clone() }),
        mons: Rc::new(TwiceMons { inner: outside.mons, again: again.clone() }),
        peers: Rc::new(TwicePeers { inner: outside.peers, again }),
        ..outside
    }
}

/// Decides what is sent again, and when.
#[derive(Clone)]
struct Again(Rc<RefCell<ChaCha8Rng>>);

impl Again {
    /// Sends something, and perhaps again. Who sent it knows nothing of that.
    fn send<T: 'static>(&self, one_in: u32, send: impl Fn() -> Io<T>) -> Io<T> {
        let late = {
            let mut dice = self.0.borrow_mut();
            let range = if dice.random_bool(0.5) { SOON_MILLIS } else { LATE_MILLIS };
            dice.random_ratio(1, one_in).then(|| Duration::from_millis(dice.random_range(range)))
        };
        if let Some(late) = late {
            let copy = send();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(late).await;
                let _ = copy.await;
            });
        }
        send()
    }
}

struct TwiceRecords {
    inner: Rc<dyn Records>,
    again: Again,
}

impl Records for TwiceRecords {
    fn commit(&self, request: CommitRequest) -> Io<CommitResponse> {
        self.again.send(BATCHES_ONE_IN, || self.inner.commit(request.clone()))
    }
    fn raise_fence(&self, shard: ShardId, subtree: SubtreeId, epoch: Epoch) -> Io<RaiseFenceResponse> {
        self.again.send(OTHERS_ONE_IN, || self.inner.raise_fence(shard, subtree, epoch))
    }
    fn get(&self, shard: ShardId, keys: Vec<Bytes>) -> Io<Vec<Option<Bytes>>> {
        self.inner.get(shard, keys)
    }
    fn scan(&self, shard: ShardId, start: Bytes, end: Bytes, limit: u32) -> Io<Page> {
        self.inner.scan(shard, start, end, limit)
    }
}

struct TwiceMons {
    inner: Rc<dyn Mons>,
    again: Again,
}

impl Mons for TwiceMons {
    fn allocate_inos(&self, shard: ShardId, count: u64) -> Io<(Ino, u64)> {
        self.inner.allocate_inos(shard, count)
    }
    fn usage(&self) -> Io<(u64, u64)> {
        self.inner.usage()
    }
    fn evict(&self, client: ClientId) -> Io<()> {
        self.again.send(OTHERS_ONE_IN, || self.inner.evict(client))
    }
    fn split(&self, request: SplitSubtreeRequest) -> Io<(SubtreeId, Epoch)> {
        self.again.send(OTHERS_ONE_IN, || self.inner.split(request.clone()))
    }
    fn merge(&self, request: MergeSubtreeRequest) -> Io<Epoch> {
        self.again.send(OTHERS_ONE_IN, || self.inner.merge(request))
    }
    fn renew(&self, subtree: SubtreeId, epoch: Epoch) -> Io<Epoch> {
        self.again.send(OTHERS_ONE_IN, || self.inner.renew(subtree, epoch))
    }
    fn commit_move(&self, request: CommitMoveRequest) -> Io<Epoch> {
        self.again.send(OTHERS_ONE_IN, || self.inner.commit_move(request))
    }
    fn cancel_move(&self, subtree: SubtreeId, move_id: u64) -> Io<Epoch> {
        self.again.send(OTHERS_ONE_IN, || self.inner.cancel_move(subtree, move_id))
    }
    fn fetch_subtree(&self, subtree: SubtreeId, rank: Rank) -> Io<()> {
        self.inner.fetch_subtree(subtree, rank)
    }
    fn raise_routes(&self, subtrees: Vec<SubtreeId>) -> Io<Epoch> {
        self.again.send(OTHERS_ONE_IN, || self.inner.raise_routes(subtrees.clone()))
    }
    fn decide(&self, request: DecideTransactionRequest) -> Io<(Decision, Epoch)> {
        self.again.send(OTHERS_ONE_IN, || self.inner.decide(request.clone()))
    }
    fn finish(&self, subtree: SubtreeId, epoch: Epoch, transactions: Vec<TransactionId>) -> Io<Epoch> {
        self.again.send(OTHERS_ONE_IN, || self.inner.finish(subtree, epoch, transactions.clone()))
    }
}

struct TwicePeers {
    inner: Rc<dyn Peers>,
    again: Again,
}

impl Peers for TwicePeers {
    fn import(&self, address: String, frames: mpsc::Receiver<ImportFrame>) -> Io<ImportResponse> {
        self.inner.import(address, frames)
    }
    fn await_map(&self, address: String, epoch: Epoch) -> Io<()> {
        self.inner.await_map(address, epoch)
    }
    fn entries(&self, address: String, root: Ino) -> Io<u64> {
        self.inner.entries(address, root)
    }
    fn merge(&self, address: String, subtree: SubtreeId) -> Io<()> {
        self.again.send(OTHERS_ONE_IN, || self.inner.merge(address.clone(), subtree))
    }
    fn prepare(&self, address: String, request: PrepareRequest) -> Io<PrepareResponse> {
        self.again.send(OTHERS_ONE_IN, || self.inner.prepare(address.clone(), request.clone()))
    }
}
