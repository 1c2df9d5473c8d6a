//! Metadata records: commits, fences, reads and scans.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pando_mon_client::MapWatch;
use pando_proto::osd::{
    CommitRequest, CommitResponse, GetRequest, RaiseFenceRequest, RaiseFenceResponse, ScanRequest, record_reply,
    record_request,
};
use pando_proto::{Epoch, Error, Reason, ShardId, SubtreeId};
use pando_rpc::{Net, Shutdown};

use crate::connections::Connections;
use crate::retry::{Backoff, Stopped, check_size, is_definite};

/// One attempt; after it the same call is sent again.
const ATTEMPT: Duration = Duration::from_secs(5);
/// How long a read is repeated before it fails with [`Reason::Timeout`].
const READ_LIMIT: Duration = Duration::from_secs(30);

struct Shared {
    connections: Connections,
    map: MapWatch,
    shutdown: Shutdown,
    next_id: AtomicU64,
}

/// Reads and commits records; clones share the streams.
#[derive(Clone)]
pub struct RecordClient(Arc<Shared>);

impl RecordClient {
    /// A client that follows `map`. After `shutdown` nothing is repeated; what has no answer by then never ends: an error
    /// would say that nothing was written.
    pub fn new(net: Arc<dyn Net>, map: MapWatch, shutdown: Shutdown) -> Self {
        Self(Arc::new(Shared { connections: Connections::new(net), map, shutdown, next_id: AtomicU64::new(1) }))
    }

    /// Commits a batch; the same batch is repeated until it is done or fenced (R7).
    ///
    /// Errors: only those that say for certain that nothing was written.
    pub async fn commit(&self, request: CommitRequest) -> Result<CommitResponse, Error> {
        let shard = shard(request.shard)?;
        let reply = self.until_definite(shard, |epoch| {
            record_request::Call::Commit(CommitRequest { map_epoch: epoch, ..request.clone() })
        });
        match reply.await? {
            record_reply::Result::Commit(response) => Ok(response),
            _ => Err(mismatch()),
        }
    }

    /// Raises a subtree's fence in a shard; repeated until answered.
    pub async fn raise_fence(
        &self,
        shard: ShardId,
        subtree: SubtreeId,
        epoch: Epoch,
    ) -> Result<RaiseFenceResponse, Error> {
        let reply = self.until_definite(shard, |map_epoch| {
            record_request::Call::RaiseFence(RaiseFenceRequest {
                shard: shard.0.into(),
                subtree: subtree.0,
                epoch: epoch.0,
                map_epoch,
            })
        });
        match reply.await? {
            record_reply::Result::RaiseFence(response) => Ok(response),
            _ => Err(mismatch()),
        }
    }

    /// Values of `keys`, in their order; `None` for absent ones.
    ///
    /// Errors: [`Reason::Timeout`] if the shard's PG does not answer for 30 s.
    pub async fn get(&self, shard: ShardId, keys: Vec<Bytes>) -> Result<Vec<Option<Bytes>>, Error> {
        let count = keys.len();
        let reply = self.read(shard, |map_epoch| {
            record_request::Call::Get(GetRequest { shard: shard.0.into(), keys: keys.clone(), map_epoch })
        });
        match reply.await? {
            record_reply::Result::Get(response) if response.records.len() == count => {
                Ok(response.records.into_iter().map(|record| record.value).collect())
            }
            _ => Err(mismatch()),
        }
    }

    /// Records from `start` (inclusive) to `end` (exclusive, empty: no end), and where to go on.
    ///
    /// Errors: as [`get`](Self::get).
    pub async fn scan(
        &self,
        shard: ShardId,
        start: Bytes,
        end: Bytes,
        limit: u32,
    ) -> Result<(Vec<(Bytes, Bytes)>, Option<Bytes>), Error> {
        let reply = self.read(shard, |map_epoch| {
            let (start, end) = (start.clone(), end.clone());
            record_request::Call::Scan(ScanRequest { shard: shard.0.into(), start, end, limit, map_epoch })
        });
        match reply.await? {
            record_reply::Result::Scan(response) => {
                let next = (!response.next.is_empty()).then_some(response.next);
                Ok((response.records.into_iter().map(|record| (record.key, record.value)).collect(), next))
            }
            _ => Err(mismatch()),
        }
    }

    async fn read(
        &self,
        shard: ShardId,
        call: impl Fn(u64) -> record_request::Call,
    ) -> Result<record_reply::Result, Error> {
        match tokio::time::timeout(READ_LIMIT, self.until_definite(shard, call)).await {
            Ok(result) => result,
            Err(_) => Err(Error::new(Reason::Timeout, format!("{shard}: its placement group did not answer for 30 s"))),
        }
    }

    async fn until_definite(
        &self,
        shard: ShardId,
        call: impl Fn(u64) -> record_request::Call,
    ) -> Result<record_reply::Result, Error> {
        let mut backoff = None;
        loop {
            let error = match self.attempt(shard, &call).await {
                Ok(result) => return Ok(result),
                Err(error) if is_definite(&error) => return Err(error),
                Err(error) => error,
            };
            let new = || Backoff::new(self.0.map.clone(), self.0.shutdown.clone());
            if let Err(Stopped) = backoff.get_or_insert_with(new).wait(&shard, &error).await {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn attempt(
        &self,
        shard: ShardId,
        call: &impl Fn(u64) -> record_request::Call,
    ) -> Result<record_reply::Result, Error> {
        let map = self.0.map.current();
        let pg = map.pg_of_shard(shard);
        let Some((_, address)) = map.primary(pg) else {
            return Err(Error::new(Reason::Unavailable, format!("placement group {pg} has no live primary")));
        };
        let call = call(map.epoch.0);
        check_size(call.encoded_len())?;
        let attempt = async {
            let pipe = self.0.connections.records(address, &map.cluster_id).await?;
            pipe.call(self.0.next_id.fetch_add(1, Ordering::Relaxed), call).await
        };
        match tokio::time::timeout(ATTEMPT, attempt).await {
            Ok(result) => result,
            Err(_) => Err(Error::new(Reason::Timeout, format!("{address} did not answer for 5 s"))),
        }
    }
}

fn shard(number: u32) -> Result<ShardId, Error> {
    u16::try_from(number)
        .ok()
        .filter(|shard| u32::from(*shard) < pando_proto::ids::SHARDS)
        .map(ShardId)
        .ok_or_else(|| Error::new(Reason::InvalidRequest, format!("{number} is no shard: there are 32768")))
}

fn mismatch() -> Error {
    Error::new(Reason::Internal, "the OSD's reply does not belong to the call")
}
