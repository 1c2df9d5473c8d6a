//! What a subtree needs from outside, behind small traits: records, objects and
//! the mons. Tests put memory behind them.

use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use pando_mon_client::MonClient;
use pando_osd_client::{ObjectClient, RecordClient};
use pando_proto::osd::{CommitRequest, CommitResponse, ObjectId, RaiseFenceResponse, TrimKind};
use pando_proto::{ClientId, Epoch, Error, Ino, Rank, ShardId, SubtreeId};

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
}

/// The mons.
pub trait Mons {
    /// A range of inos for a shard (R20).
    fn allocate_inos(&self, shard: ShardId, count: u64) -> Io<(Ino, u64)>;
    /// Total and used bytes of all OSDs.
    fn usage(&self) -> Io<(u64, u64)>;
    /// Evicts a session.
    fn evict(&self, client: ClientId) -> Io<()>;
}

/// All three.
#[derive(Clone)]
pub struct Outside {
    /// The metadata pool.
    pub records: Rc<dyn Records>,
    /// The data pool.
    pub objects: Rc<dyn Objects>,
    /// The mons.
    pub mons: Rc<dyn Mons>,
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
}
