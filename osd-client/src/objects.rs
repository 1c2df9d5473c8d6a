//! Objects: reads and writes at byte ranges, trims.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_mon_client::MapWatch;
use pando_proto::osd::object_service_client::ObjectServiceClient;
use pando_proto::osd::{
    Mutation, ObjectId, ReadRequest, StatRequest, StatResponse, TrimKind, TrimRequest, WriteRequest,
};
use pando_proto::{ClientId, Error, Ino, MAX_MESSAGE_BYTES, PoolId, Reason};
use pando_rpc::{Net, Shutdown};
use rustc_hash::FxHashSet;
use tonic::{Response, Status};

use crate::connections::{Connections, OsdChannel};
use crate::retry::{Backoff, answered, check_size, is_definite};
use crate::sequences::{Begun, CallingOff, Pending, Sequences};

/// One attempt; after it the same call is sent again.
const ATTEMPT: Duration = Duration::from_secs(10);

pub(crate) struct Shared {
    connections: Connections,
    map: MapWatch,
    session: ClientId,
    shutdown: Shutdown,
    pub(crate) sequences: Sequences,
}

/// Reads and changes objects on behalf of one session; clones share its numbers.
#[derive(Clone)]
pub struct ObjectClient(pub(crate) Arc<Shared>);

impl ObjectClient {
    /// A client that follows `map` and acts for `session`. With `shutdown` the session is over: nothing is repeated from
    /// then on, and what has no answer fails with [`Reason::StaleSession`].
    pub fn new(net: Arc<dyn Net>, map: MapWatch, session: ClientId, shutdown: Shutdown) -> Self {
        let connections = Connections::new(net);
        Self(Arc::new(Shared { connections, map, session, shutdown, sequences: Sequences::default() }))
    }

    /// Writes `data` at `offset` of an object, durable on all members when it returns; returns the object's size.
    ///
    /// Repeated under one number until the outcome is known. Errors: [`Reason::StaleGeneration`] when the file was
    /// truncated, spilled or purged meanwhile; [`Reason::StaleSession`], [`Reason::NoSpace`], [`Reason::TooLarge`].
    pub async fn write(&self, object: ObjectId, generation: u64, offset: u64, data: Bytes) -> Result<u64, Error> {
        check_size(data.len())?;
        let reply = self.mutate(object, generation, |channel, mutation| {
            let request = WriteRequest { object: Some(object), mutation: Some(mutation), offset, data: data.clone() };
            async move { client(channel).write(request).await.map(Response::into_inner) }
        });
        Ok(reply.await?.size)
    }

    /// Zeroes, cuts or deletes; lower generations are refused from then on. Repeated until the outcome is known.
    ///
    /// Errors: as [`write`](Self::write).
    pub async fn trim(
        &self,
        object: ObjectId,
        generation: u64,
        kind: TrimKind,
        offset: u64,
        length: u64,
    ) -> Result<(), Error> {
        let reply = self.mutate(object, generation, |channel, mutation| {
            let (object, mutation) = (Some(object), Some(mutation));
            let request = TrimRequest { object, mutation, kind: kind.into(), offset, length };
            async move { client(channel).trim(request).await.map(Response::into_inner) }
        });
        reply.await.map(|_| ())
    }

    /// The first of these objects in each placement group, if there are more of them than groups: a
    /// [`TrimKind::DeleteFrom`] of each deletes them all, and what lies behind.
    pub fn firsts(&self, pool: u32, ino: u64, indexes: Range<u64>) -> Option<Vec<u64>> {
        let map = self.0.map.current();
        // Without the pool nothing is known of its groups, and what is not asked is not deleted.
        let groups = map.pools.get(&PoolId(pool))?.pg_count.max(1) as usize;
        if indexes.end.saturating_sub(indexes.start) <= groups as u64 {
            return None;
        }
        let mut seen = FxHashSet::default();
        let group = |index: &u64| map.pg_of_object(PoolId(pool), Ino(ino), *index);
        Some(indexes.filter(|index| seen.insert(group(index))).take(groups).collect())
    }

    /// Bytes of an object; ends at the object's end, so what is missing up to the file's size is zeros.
    ///
    /// Errors: [`Reason::StaleGeneration`], [`Reason::Corrupt`].
    pub async fn read(&self, object: ObjectId, generation: u64, offset: u64, length: u64) -> Result<Bytes, Error> {
        let reply = self.until_definite(object, |channel, map_epoch| {
            let request = ReadRequest { object: Some(object), offset, length, map_epoch, generation };
            async move { client(channel).read(request).await.map(Response::into_inner) }
        });
        let data = reply.await?.data;
        if data.len() as u64 > length {
            return Err(Error::new(Reason::Internal, "the OSD sent more bytes than were asked for"));
        }
        Ok(data)
    }

    /// Size and generation of an object.
    ///
    /// Errors: those of the OSD.
    pub async fn stat(&self, object: ObjectId) -> Result<StatResponse, Error> {
        let reply = self.until_definite(object, |channel, map_epoch| {
            let request = StatRequest { object: Some(object), map_epoch };
            async move { client(channel).stat(request).await.map(Response::into_inner) }
        });
        reply.await
    }

    /// A mutation under one number. When this is dropped, the number is called off: see [`Sequences`].
    async fn mutate<T, F: Future<Output = Result<T, Status>>>(
        &self,
        object: ObjectId,
        generation: u64,
        call: impl Fn(OsdChannel, Mutation) -> F,
    ) -> Result<T, Error> {
        let shutdown = &self.0.shutdown;
        let number = self.0.sequences.begin(object, shutdown, || self.call_off_abandoned()).await?;
        let mut pending = Pending::new(self, Begun { number, object, generation });
        let result = self
            .until_definite(object, |channel, map_epoch| {
                pending.sends();
                call(channel, self.mutation(pending.begun, map_epoch))
            })
            .await;
        pending.settle(result.as_ref().err());
        result
    }

    fn mutation(&self, begun: Begun, map_epoch: u64) -> Mutation {
        let Begun { number, object, generation } = begun;
        let map = self.0.map.current();
        let pg = |object: ObjectId| map.pg_of_object(PoolId(object.pool), Ino(object.ino), object.index);
        // Each PG counts for itself, so a write that is stuck in another one holds nothing up here.
        let low_water = self.0.sequences.lowest_open(|other| pg(other) == pg(object)).unwrap_or(number);
        Mutation { session: self.0.session.0, sequence: number, low_water, generation, map_epoch }
    }

    pub(crate) fn sequences(&self) -> &Sequences {
        &self.0.sequences
    }

    /// Starts to call off what was abandoned, unless no runtime is there: then the next mutation does it.
    pub(crate) fn call_off_abandoned(&self) {
        if !self.0.sequences.has_orphans() || self.0.shutdown.is_stopping() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        for begun in self.0.sequences.take_orphans() {
            let calling_off = CallingOff::new(Arc::downgrade(&self.0), begun);
            runtime.spawn(calling_off.run(self.0.map.clone(), self.0.shutdown.clone()));
        }
    }

    /// Uses up a number: a mutation that changes nothing.
    pub(crate) async fn attempt_nothing(&self, begun: Begun) -> Result<(), Error> {
        let nothing = |channel: OsdChannel, map_epoch: u64| {
            let (object, mutation) = (Some(begun.object), Some(self.mutation(begun, map_epoch)));
            let request = TrimRequest { object, mutation, kind: TrimKind::Zero.into(), offset: 0, length: 0 };
            async move { client(channel).trim(request).await.map(|_| ()) }
        };
        self.attempt(begun.object, &nothing).await
    }

    async fn until_definite<T, F: Future<Output = Result<T, Status>>>(
        &self,
        object: ObjectId,
        call: impl Fn(OsdChannel, u64) -> F,
    ) -> Result<T, Error> {
        let mut backoff = None;
        loop {
            let error = match self.attempt(object, &call).await {
                Ok(result) => return Ok(result),
                Err(error) if is_definite(&error) => return Err(error),
                Err(error) => error,
            };
            let new = || Backoff::new(self.0.map.clone(), self.0.shutdown.clone());
            backoff.get_or_insert_with(new).wait(&object, &error).await?;
        }
    }

    async fn attempt<T, F: Future<Output = Result<T, Status>>>(
        &self,
        object: ObjectId,
        call: &impl Fn(OsdChannel, u64) -> F,
    ) -> Result<T, Error> {
        let map = self.0.map.current();
        let pg = map.pg_of_object(PoolId(object.pool), Ino(object.ino), object.index);
        if !map.pgs.contains_key(&pg) && !map.pools.contains_key(&pg.pool) {
            return Err(Error::new(Reason::InvalidRequest, format!("there is no pool {}", object.pool)));
        }
        let Some((_, address)) = map.primary(pg) else {
            return Err(Error::new(Reason::Unavailable, format!("placement group {pg} has no live primary")));
        };
        let channel = self.0.connections.channel(address, &map.cluster_id)?;
        match tokio::time::timeout(ATTEMPT, call(channel, map.epoch.0)).await {
            Ok(result) => result.map_err(|status| answered(&status)),
            Err(_) => Err(Error::new(Reason::Timeout, format!("{address} did not answer for 10 s"))),
        }
    }
}

fn client(channel: OsdChannel) -> ObjectServiceClient<OsdChannel> {
    ObjectServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}
