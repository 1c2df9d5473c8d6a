//! The calls of `pando.mon.v1.ClusterService`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_proto::mon::cluster_service_client::ClusterServiceClient;
use pando_proto::mon::{self, RegisterOsdRequest, RegisterOsdResponse, RegisterRankRequest, RegisterRankResponse};
use pando_proto::{ClientId, Epoch, Error, Ino, MAX_MESSAGE_BYTES, OsdId, PgId, Rank, Reason, ShardId};
use pando_rpc::{Env, Lease, Net, Shutdown};
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::targets::Targets;
use crate::{AdminClient, Daemon, MapWatch, heartbeat, watch};

/// How long a call is repeated, unless it waits for something longer by its nature.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest lease plus what the mon adds: a rank's registration may have to wait it out.
const REGISTER_RANK_LIMIT: Duration = Duration::from_secs(90);

/// A client of the mons. Clones share connections.
#[derive(Clone)]
pub struct MonClient(Arc<Inner>);

struct Inner {
    targets: Targets,
    limit: Duration,
    /// Newest map epoch that the watch shows, 0 without one. No lease counts that was granted under a newer map.
    seen_epoch: AtomicU64,
}

pub(crate) fn service(channel: Channel) -> ClusterServiceClient<Channel> {
    ClusterServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

impl MonClient {
    /// A client that starts with these mons (`host:port`). Connects on first use.
    ///
    /// Errors: no mon given, or one that is no `host:port`.
    pub fn new(net: Arc<dyn Net>, mons: Vec<String>) -> Result<Self, Error> {
        let targets = Targets::new(net, mons)?;
        Ok(Self(Arc::new(Inner { targets, limit: LIMIT, seen_epoch: AtomicU64::new(0) })))
    }

    /// The same, but calls give up after `limit`. For tests and tools; to be called before the first clone.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.limit = limit;
        }
        self
    }

    pub(crate) fn targets(&self) -> &Targets {
        &self.0.targets
    }

    pub(crate) fn limit(&self) -> Duration {
        self.0.limit
    }

    pub(crate) fn saw(&self, epoch: Epoch) {
        self.0.seen_epoch.fetch_max(epoch.0, Ordering::Relaxed);
    }

    pub(crate) fn seen(&self) -> u64 {
        self.0.seen_epoch.load(Ordering::Relaxed)
    }

    /// Says that an OSD process has started. Idempotent for one `boot_id`.
    pub async fn register_osd(&self, request: RegisterOsdRequest) -> Result<RegisterOsdResponse, Error> {
        let call = |channel| {
            let request = request.clone();
            async move { service(channel).register_osd(request).await }
        };
        self.0.targets.call(self.0.limit, call).await
    }

    /// Says that an MDS process has started for a rank. Waits until no other process can hold the rank's lease.
    pub async fn register_rank(&self, request: RegisterRankRequest) -> Result<RegisterRankResponse, Error> {
        let call = |channel| {
            let request = request.clone();
            async move { service(channel).register_rank(request).await }
        };
        let deadline = Instant::now() + REGISTER_RANK_LIMIT;
        loop {
            match self.0.targets.call(self.0.limit, call).await {
                Err(error) if error.reason == Reason::Unavailable && Instant::now() < deadline => {
                    // Without a hint no mon answered at all: that is not worth the long wait.
                    let Some(pause) = error.retry_after else { return Err(error) };
                    tracing::info!(%error, "the rank's former process may still hold its lease: waiting");
                    tokio::time::sleep(pause).await;
                }
                other => return other,
            }
        }
    }

    /// Gets an id for this client incarnation (R9), and the map in which it exists.
    pub async fn register_client(&self, description: &str) -> Result<(ClientId, Arc<ClusterMap>), Error> {
        let request = mon::RegisterClientRequest { nonce: nonce(), description: description.to_owned() };
        let call = |channel| {
            let request = request.clone();
            async move { service(channel).register_client(request).await }
        };
        let response = self.0.targets.call(self.0.limit, call).await?;
        let map = ClusterMap::from_proto_field(response.map.as_ref())?;
        Ok((ClientId(response.client_id), Arc::new(map)))
    }

    /// Ends a session; `evict` when a server does it to a silent client. Returns the epoch in which it is gone.
    pub async fn end_session(&self, client: ClientId, evict: bool) -> Result<Epoch, Error> {
        let request = mon::EndSessionRequest { client_id: client.0, evict };
        let call = |channel| async move { service(channel).end_session(request).await };
        self.0.targets.call(self.0.limit, call).await.map(|response| Epoch(response.map_epoch))
    }

    /// A range of inos of a shard for a rank's process (R20): first and length, which may be below `count`.
    ///
    /// Errors: `STALE_EPOCH` when the rank has a newer process.
    pub async fn allocate_inos(
        &self,
        shard: ShardId,
        rank: Rank,
        incarnation: u64,
        count: u64,
    ) -> Result<(Ino, u64), Error> {
        let request =
            mon::AllocateInosRequest { shard: u32::from(shard.0), rank: rank.0, incarnation, count, nonce: nonce() };
        let call = |channel| {
            let request = request.clone();
            async move { service(channel).allocate_inos(request).await }
        };
        let response = self.0.targets.call(self.0.limit, call).await?;
        let first = Ino(response.first_ino);
        let last = first.number().checked_add(response.count.wrapping_sub(1));
        if !first.is_valid() || first.shard() != shard || response.count == 0 || last.is_none_or(|last| last >> 48 != 0)
        {
            return Err(Error::new(Reason::Internal, "the mon handed out a range of inos that makes no sense"));
        }
        Ok((first, response.count))
    }

    /// Says that a joiner holds all that the primary holds (R26).
    ///
    /// Errors: `STALE_EPOCH` when the PG is in another configuration.
    pub async fn confirm_member(&self, pg: PgId, config: u64, osd: OsdId) -> Result<Epoch, Error> {
        let request = mon::ConfirmMemberRequest { pool: pg.pool.0, index: pg.index, config, osd_id: osd.0 };
        let call = |channel| async move { service(channel).confirm_member(request).await };
        self.0.targets.call(self.0.limit, call).await.map(|response| Epoch(response.map_epoch))
    }

    /// Says that a member does not hold all that it should, or is about to be overwritten: it is to join anew (R26).
    ///
    /// Errors: `STALE_EPOCH` when the PG is in another configuration.
    pub async fn demote_member(&self, pg: PgId, config: u64, osd: OsdId) -> Result<Epoch, Error> {
        let request = mon::DemoteMemberRequest { pool: pg.pool.0, index: pg.index, config, osd_id: osd.0 };
        let call = |channel| async move { service(channel).demote_member(request).await };
        self.0.targets.call(self.0.limit, call).await.map(|response| Epoch(response.map_epoch))
    }

    /// One linearizable read of the map, at `min_epoch` or later.
    pub async fn get_map(&self, min_epoch: Epoch) -> Result<Arc<ClusterMap>, Error> {
        let request = mon::GetMapRequest { min_epoch: min_epoch.0 };
        let call = |channel| async move { service(channel).get_map(request).await };
        let response = self.0.targets.call(self.0.limit, call).await?;
        let map = ClusterMap::from_proto_field(response.map.as_ref())?;
        Ok(Arc::new(map))
    }

    /// Gives a lease back on a clean stop, after [`Lease::give_up`].
    pub async fn release_lease(&self, daemon: Daemon, incarnation: u64) -> Result<(), Error> {
        let holder = match daemon {
            Daemon::Osd(osd) => mon::release_lease_request::Daemon::OsdId(osd.0),
            Daemon::Rank(rank) => mon::release_lease_request::Daemon::Rank(rank.0),
        };
        let request = mon::ReleaseLeaseRequest { daemon: Some(holder), incarnation };
        let call = |channel| async move { service(channel).release_lease(request).await };
        self.0.targets.call(self.0.limit, call).await.map(drop)
    }

    /// Follows the map from `initial` on, until `shutdown`. Spawns a task.
    pub fn watch(&self, initial: Arc<ClusterMap>, shutdown: Shutdown) -> MapWatch {
        watch::spawn(self.clone(), initial, shutdown)
    }

    /// Renews a daemon's lease every quarter of it, until `env.shutdown`. When the mon says that a newer process
    /// has taken this one's place, `env.shutdown` is asked to stop. Spawns a task. `usage` gives (total, used) bytes.
    pub fn heartbeat(
        &self,
        daemon: Daemon,
        incarnation: u64,
        lease: Arc<Lease>,
        env: &Env,
        usage: Arc<dyn Fn() -> (u64, u64) + Send + Sync>,
    ) {
        heartbeat::spawn(self.clone(), daemon, incarnation, lease, env.clone(), usage);
    }

    /// The calls for people and tools.
    pub fn admin(&self) -> AdminClient {
        AdminClient::new(self.clone())
    }
}

/// Identifies a call, so that its repetition is recognised. Its value steers nothing, so that the dice do no
/// harm to a simulated run.
fn nonce() -> Bytes {
    Bytes::copy_from_slice(&rand::random::<[u8; 16]>())
}
