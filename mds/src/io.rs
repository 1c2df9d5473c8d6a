//! What a subtree needs from outside, behind small traits: records, objects and
//! the mons. Tests put memory behind them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use pando_cluster_map::{Decision, TransactionId};
use pando_mon_client::{ClusterStamp, MonClient, MoveOutcome};
use pando_osd_client::{ObjectClient, RecordClient};
use pando_proto::mds::namespace_service_client::NamespaceServiceClient;
use pando_proto::mds::subtree_service_client::SubtreeServiceClient;
use pando_proto::mds::{
    AwaitMapRequest, ImportFrame, ImportResponse, MergeRequest, PrepareRequest, PrepareResponse, StatRequest, Target,
};
use pando_proto::mon::{CommitMoveRequest, DecideTransactionRequest, MergeSubtreeRequest, SplitSubtreeRequest};
use pando_proto::osd::{CommitRequest, CommitResponse, ObjectId, RaiseFenceResponse, TrimKind};
use pando_proto::{ClientId, Epoch, Error, Ino, MAX_MESSAGE_BYTES, Rank, Reason, ShardId, SubtreeId};
use pando_rpc::Net;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

/// Connections to other ranks.
const MAX_CHANNELS: usize = 256;

/// Something under way on the rank's own thread.
pub type Io<T> = LocalBoxFuture<'static, Result<T, Error>>;

/// A page of a scan, and where to go on.
pub type Page = (Vec<(Bytes, Bytes)>, Option<Bytes>);

/// The metadata pool.
pub trait Records {
    /// Commits a part of a batch; ends only with a definite outcome (R7).
    fn commit(&self, request: CommitRequest) -> Io<CommitResponse>;
    /// Raises a subtree's fence in a shard.
    fn raise_fence(&self, shard: ShardId, subtree: SubtreeId, epoch: Epoch) -> Io<RaiseFenceResponse>;
    /// Values of `keys`, in their order.
    fn get(&self, shard: ShardId, keys: Vec<Bytes>) -> Io<Vec<Option<Bytes>>>;
    /// Records from `start` to before `end`.
    fn scan(&self, shard: ShardId, start: Bytes, end: Bytes, limit: u32) -> Io<Page>;
}

/// The data pool.
pub trait Objects {
    /// Writes durably (R22).
    fn write(&self, object: ObjectId, generation: u64, offset: u64, data: Bytes) -> Io<()>;
    /// Cuts or deletes durably.
    fn trim(&self, object: ObjectId, generation: u64, kind: TrimKind, offset: u64) -> Io<()>;
    /// The first object of a file in each placement group, if there are more objects in the range than groups.
    fn firsts(&self, pool: u32, ino: Ino, indexes: Range<u64>) -> Option<Vec<u64>>;
}

/// The mons.
pub trait Mons {
    /// A range of inos for a shard (R20).
    fn allocate_inos(&self, shard: ShardId, count: u64) -> Io<(Ino, u64)>;
    /// Total and used bytes of all OSDs.
    fn usage(&self) -> Io<(u64, u64)>;
    /// Evicts a session.
    fn evict(&self, client: ClientId) -> Io<()>;
    /// A directory becomes a subtree: its id, and the map's epoch (R11).
    fn split(&self, request: SplitSubtreeRequest) -> Io<(SubtreeId, Epoch)>;
    /// A subtree becomes part of its parent (R11).
    fn merge(&self, request: MergeSubtreeRequest) -> Io<Epoch>;
    /// An epoch of a subtree ends, and with it what was proposed under it; a map in which it has another one (R11).
    fn renew(&self, subtree: SubtreeId, epoch: Epoch) -> Io<Epoch>;
    /// A subtree is handed over (R12).
    fn commit_move(&self, request: CommitMoveRequest) -> Io<Epoch>;
    /// It is not handed over (R12).
    fn cancel_move(&self, subtree: SubtreeId, move_id: u64) -> Io<Epoch>;
    /// Moves a subtree to this rank, and waits for it.
    fn fetch_subtree(&self, subtree: SubtreeId, rank: Rank) -> Io<()> {
        let _ = (subtree, rank);
        Box::pin(async { Err(Error::new(Reason::InvalidRequest, "nothing moves here")) })
    }
    /// The way to subtrees changes; the map that says so (R16).
    fn raise_routes(&self, subtrees: Vec<SubtreeId>) -> Io<Epoch>;
    /// A transaction between subtrees is decided: the decision that stands, and a map that has it (R18).
    fn decide(&self, request: DecideTransactionRequest) -> Io<(Decision, Epoch)>;
    /// A subtree has done, under this epoch, what was decided.
    fn finish(&self, subtree: SubtreeId, epoch: Epoch, transactions: Vec<TransactionId>) -> Io<Epoch>;
}

/// Other ranks.
pub trait Peers {
    /// Sends a part of a copy of a cache; ends when the last frame was taken, or the copy refused.
    fn import(&self, address: String, frames: mpsc::Receiver<ImportFrame>) -> Io<ImportResponse>;
    /// Ends when the rank has this map.
    fn await_map(&self, address: String, epoch: Epoch) -> Io<()>;
    /// Entries of the root directory of a subtree of the rank.
    fn entries(&self, address: String, root: Ino) -> Io<u64> {
        drop((address, root));
        Box::pin(async { Err(Error::new(Reason::InvalidRequest, "there is no other rank")) })
    }
    /// A subtree of the rank becomes part of its parent.
    fn merge(&self, address: String, subtree: SubtreeId) -> Io<()> {
        drop((address, subtree));
        Box::pin(async { Err(Error::new(Reason::InvalidRequest, "there is no other rank")) })
    }
    /// A name is to come to a subtree of the rank (R18).
    fn prepare(&self, address: String, request: PrepareRequest) -> Io<PrepareResponse>;
}

/// All of them.
#[derive(Clone)]
pub struct Outside {
    /// The metadata pool.
    pub records: Rc<dyn Records>,
    /// The data pool.
    pub objects: Rc<dyn Objects>,
    /// The mons.
    pub mons: Rc<dyn Mons>,
    /// Other ranks.
    pub peers: Rc<dyn Peers>,
}

impl Records for RecordClient {
    fn commit(&self, request: CommitRequest) -> Io<CommitResponse> {
        let client = self.clone();
        Box::pin(async move { RecordClient::commit(&client, request).await })
    }

    fn raise_fence(&self, shard: ShardId, subtree: SubtreeId, epoch: Epoch) -> Io<RaiseFenceResponse> {
        let client = self.clone();
        Box::pin(async move { RecordClient::raise_fence(&client, shard, subtree, epoch).await })
    }

    fn get(&self, shard: ShardId, keys: Vec<Bytes>) -> Io<Vec<Option<Bytes>>> {
        let client = self.clone();
        Box::pin(async move { RecordClient::get(&client, shard, keys).await })
    }

    fn scan(&self, shard: ShardId, start: Bytes, end: Bytes, limit: u32) -> Io<Page> {
        let client = self.clone();
        Box::pin(async move { RecordClient::scan(&client, shard, start, end, limit).await })
    }
}

impl Objects for ObjectClient {
    fn write(&self, object: ObjectId, generation: u64, offset: u64, data: Bytes) -> Io<()> {
        let client = self.clone();
        Box::pin(async move { ObjectClient::write(&client, object, generation, offset, data).await.map(|_| ()) })
    }

    fn trim(&self, object: ObjectId, generation: u64, kind: TrimKind, offset: u64) -> Io<()> {
        let client = self.clone();
        Box::pin(async move { ObjectClient::trim(&client, object, generation, kind, offset, 0).await })
    }

    fn firsts(&self, pool: u32, ino: Ino, indexes: Range<u64>) -> Option<Vec<u64>> {
        ObjectClient::firsts(self, pool, ino.0, indexes)
    }
}

/// The mons, on behalf of one rank incarnation.
pub(crate) struct RankMons {
    pub client: MonClient,
    pub rank: Rank,
    pub incarnation: u64,
}

impl Mons for RankMons {
    fn allocate_inos(&self, shard: ShardId, count: u64) -> Io<(Ino, u64)> {
        let (client, rank, incarnation) = (self.client.clone(), self.rank, self.incarnation);
        Box::pin(async move { client.allocate_inos(shard, rank, incarnation, count).await })
    }

    fn usage(&self) -> Io<(u64, u64)> {
        let client = self.client.clone();
        Box::pin(async move {
            let status = client.admin().status().await?;
            Ok((status.total_bytes, status.used_bytes))
        })
    }

    fn evict(&self, client_id: ClientId) -> Io<()> {
        let client = self.client.clone();
        Box::pin(async move { client.end_session(client_id, true).await.map(|_| ()) })
    }

    fn split(&self, request: SplitSubtreeRequest) -> Io<(SubtreeId, Epoch)> {
        let client = self.client.clone();
        Box::pin(async move { client.split_subtree(request).await })
    }

    fn merge(&self, request: MergeSubtreeRequest) -> Io<Epoch> {
        let client = self.client.clone();
        Box::pin(async move {
            let (child, child_epoch, parent_epoch) = (request.child, request.child_epoch, request.parent_epoch);
            client.merge_subtree(SubtreeId(child), Epoch(child_epoch), Epoch(parent_epoch)).await
        })
    }

    fn renew(&self, subtree: SubtreeId, epoch: Epoch) -> Io<Epoch> {
        let client = self.client.clone();
        Box::pin(async move { client.renew_subtree(subtree, epoch).await })
    }

    fn commit_move(&self, request: CommitMoveRequest) -> Io<Epoch> {
        let client = self.client.clone();
        Box::pin(async move {
            let (subtree, from) = (SubtreeId(request.subtree), Rank(request.from));
            match client.commit_move(subtree, from, Epoch(request.epoch), request.move_id).await {
                MoveOutcome::Done(epoch) => Ok(epoch),
                MoveOutcome::Refused(error) => Err(Error { reason: Reason::StaleEpoch, ..error }),
                MoveOutcome::Unknown(error) => Err(Error { reason: Reason::Unavailable, ..error }),
            }
        })
    }

    fn cancel_move(&self, subtree: SubtreeId, move_id: u64) -> Io<Epoch> {
        let client = self.client.clone();
        Box::pin(async move { client.cancel_move(subtree, move_id).await })
    }

    fn fetch_subtree(&self, subtree: SubtreeId, rank: Rank) -> Io<()> {
        let client = self.client.clone();
        Box::pin(async move { client.admin().fetch_subtree(subtree, rank).await.map(|_| ()) })
    }

    fn raise_routes(&self, subtrees: Vec<SubtreeId>) -> Io<Epoch> {
        let client = self.client.clone();
        Box::pin(async move { client.raise_routes(subtrees).await })
    }

    fn decide(&self, request: DecideTransactionRequest) -> Io<(Decision, Epoch)> {
        let client = self.client.clone();
        Box::pin(async move { client.decide_transaction(request).await })
    }

    fn finish(&self, subtree: SubtreeId, epoch: Epoch, transactions: Vec<TransactionId>) -> Io<Epoch> {
        let client = self.client.clone();
        Box::pin(async move { client.finish_transactions(subtree, epoch, transactions).await })
    }
}

/// Other ranks, by connections that are made when they are needed, and stay: a subtree that moves stands still while
/// one is made.
pub(crate) struct RankPeers {
    net: Arc<dyn Net>,
    stamp: ClusterStamp,
    channels: RefCell<BTreeMap<String, RankChannel>>,
}

/// To another rank; each call says which cluster is meant: its subtrees and epochs mean something else in another one
/// (I10).
type RankChannel = InterceptedService<Channel, ClusterStamp>;

impl RankPeers {
    pub fn new(net: Arc<dyn Net>, cluster: &[u8; 16]) -> Self {
        let stamp = ClusterStamp::default();
        stamp.bind(cluster);
        Self { net, stamp, channels: RefCell::default() }
    }

    fn channel(&self, address: &str) -> Result<RankChannel, Error> {
        let mut channels = self.channels.borrow_mut();
        if let Some(known) = channels.get(address) {
            return Ok(known.clone());
        }
        if channels.len() >= MAX_CHANNELS {
            // Some are of processes that are no more; what is under way keeps its own.
            channels.clear();
        }
        let channel = InterceptedService::new(pando_rpc::channel(&self.net, address)?, self.stamp.clone());
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// What another rank answered. One of another cluster only says that the address is no longer that of ours; a newer map
/// tells where that is.
fn told(status: Status) -> Error {
    let error = Error::from_tonic(&status);
    if error.reason == Reason::WrongCluster { Error::new(Reason::Unavailable, error.message) } else { error }
}

impl Peers for RankPeers {
    fn import(&self, address: String, frames: mpsc::Receiver<ImportFrame>) -> Io<ImportResponse> {
        let channel = self.channel(&address);
        Box::pin(async move {
            let mut service = SubtreeServiceClient::new(channel?).max_encoding_message_size(MAX_MESSAGE_BYTES);
            Ok(service.import(ReceiverStream::new(frames)).await.map_err(told)?.into_inner())
        })
    }

    fn await_map(&self, address: String, epoch: Epoch) -> Io<()> {
        let channel = self.channel(&address);
        Box::pin(async move {
            let mut service = SubtreeServiceClient::new(channel?);
            service.await_map(AwaitMapRequest { map_epoch: epoch.0 }).await.map_err(told)?;
            Ok(())
        })
    }

    fn entries(&self, address: String, root: Ino) -> Io<u64> {
        let channel = self.channel(&address);
        Box::pin(async move {
            let mut service = NamespaceServiceClient::new(channel?);
            let target = Some(Target { base: root.0, ..Target::default() });
            let answer =
                service.stat(StatRequest { caller: None, target, follow: false }).await.map_err(told)?.into_inner();
            Ok(answer.attr.map_or(0, |attr| attr.entries))
        })
    }

    fn merge(&self, address: String, subtree: SubtreeId) -> Io<()> {
        let channel = self.channel(&address);
        Box::pin(async move {
            let mut service = SubtreeServiceClient::new(channel?);
            service.merge(MergeRequest { subtree: subtree.0 }).await.map_err(told)?;
            Ok(())
        })
    }

    fn prepare(&self, address: String, request: PrepareRequest) -> Io<PrepareResponse> {
        let channel = self.channel(&address);
        Box::pin(async move {
            let mut service = SubtreeServiceClient::new(channel?).max_encoding_message_size(MAX_MESSAGE_BYTES);
            Ok(service.prepare(request).await.map_err(told)?.into_inner())
        })
    }
}
