//! The calls of `pando.mon.v1.ClusterService`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::{ClusterMap, Decision, TransactionId};
use pando_proto::mon::cluster_service_client::ClusterServiceClient;
use pando_proto::mon::{self, RegisterOsdRequest, RegisterOsdResponse, RegisterRankRequest, RegisterRankResponse};
use pando_proto::{ClientId, Epoch, Error, Ino, MAX_MESSAGE_BYTES, OsdId, PgId, Rank, Reason, ShardId, SubtreeId};
use pando_rpc::{Env, Lease, Net, Shutdown};
use tokio::time::Instant;

use crate::heartbeat::Report;
use crate::targets::{MonChannel, Targets};
use crate::{AdminClient, Daemon, MapWatch, heartbeat, watch};

/// How long a call is repeated, unless it waits for something longer by its nature.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest lease plus what the mon adds: a rank's registration may have to wait it out.
const REGISTER_RANK_LIMIT: Duration = Duration::from_secs(90);
/// How often it is said that this is waited for.
const REGISTER_RANK_LOOK: Duration = Duration::from_secs(4);

/// What became of a handover (R12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveOutcome {
    /// The subtree belongs to the destination, since the map of this epoch or an earlier one.
    Done(Epoch),
    /// It was not handed over, and never will be by this move.
    Refused(Error),
    /// Nobody said. Only a linearizable read of the map, or a refused or done repetition, tells.
    Unknown(Error),
}

/// A client of the mons. Clones share connections.
#[derive(Clone)]
pub struct MonClient(Arc<Inner>);

struct Inner {
    targets: Targets,
    limit: Duration,
    /// Newest map epoch that the watch shows, 0 without one. No lease counts that was granted under a newer map.
    seen_epoch: AtomicU64,
}

pub(crate) fn service(channel: MonChannel) -> ClusterServiceClient<MonChannel> {
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
        let began = Instant::now();
        let deadline = began + REGISTER_RANK_LIMIT;
        loop {
            match self.0.targets.call(self.0.limit.min(REGISTER_RANK_LOOK), call).await {
                Err(error) if error.reason == Reason::Unavailable && Instant::now() < deadline => {
                    // Without a hint no mon answered at all: that is not worth the long wait.
                    let Some(pause) = error.retry_after else {
                        if began.elapsed() < self.0.limit {
                            continue;
                        }
                        return Err(error);
                    };
                    tracing::warn!(
                        rank = request.rank, %error,
                        "waiting; if another process is to go on as this rank, stop this one or give it another --rank"
                    );
                    tokio::time::sleep(pause).await;
                }
                other => return other,
            }
        }
    }

    /// Gets an id for this client incarnation (R9), and the map in which it exists.
    ///
    /// Errors: `INVALID_REQUEST` for a description `mds.N`, which only ranks have.
    pub async fn register_client(&self, description: &str) -> Result<(ClientId, Arc<ClusterMap>), Error> {
        self.register_session(description.to_owned(), None).await
    }

    /// The same for a rank's process, which reads and writes objects like a client.
    ///
    /// Errors: `STALE_EPOCH` when the rank has a newer process.
    pub async fn register_rank_session(
        &self,
        rank: Rank,
        incarnation: u64,
    ) -> Result<(ClientId, Arc<ClusterMap>), Error> {
        self.register_session(rank.to_string(), Some(mon::RankProcess { rank: rank.0, incarnation })).await
    }

    async fn register_session(
        &self,
        description: String,
        of_rank: Option<mon::RankProcess>,
    ) -> Result<(ClientId, Arc<ClusterMap>), Error> {
        let request = mon::RegisterClientRequest { nonce: nonce(), description, of_rank };
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

    /// Splits a directory off (R11), after a drain. Idempotent for one parent, epoch and root. Returns the new subtree
    /// and the epoch of the map in which it exists.
    ///
    /// Errors: `STALE_EPOCH` when the parent has another epoch or moves, `INVALID_REQUEST` for the root of a subtree,
    /// `IN_USE` when the map is full. Others leave it open whether the split has happened: repeat it. A refusal says
    /// that this call has not done it, not that an earlier one cannot do it any more: see `renew_subtree`.
    pub async fn split_subtree(&self, request: mon::SplitSubtreeRequest) -> Result<(SubtreeId, Epoch), Error> {
        let call = |channel| {
            let request = request.clone();
            async move { service(channel).split_subtree(request).await }
        };
        let response = self.0.targets.call_strictly(self.0.limit, call).await?;
        Ok((SubtreeId(response.subtree), Epoch(response.map_epoch)))
    }

    /// Merges a subtree into its parent (R11), after a drain of both. Idempotent. Returns the epoch of the map in which
    /// it is gone.
    ///
    /// Errors: `STALE_EPOCH` when one of them has another epoch or moves, `IN_USE` when it has children or the two have
    /// different owners, `INVALID_REQUEST` for the root subtree. Others leave it open whether it has happened. Refusals
    /// are as those of `split_subtree`.
    pub async fn merge_subtree(
        &self,
        child: SubtreeId,
        child_epoch: Epoch,
        parent_epoch: Epoch,
    ) -> Result<Epoch, Error> {
        let request =
            mon::MergeSubtreeRequest { child: child.0, child_epoch: child_epoch.0, parent_epoch: parent_epoch.0 };
        let call = |channel| async move { service(channel).merge_subtree(request).await };
        self.0.targets.call_strictly(self.0.limit, call).await.map(|response| Epoch(response.map_epoch))
    }

    /// Ends an epoch of a subtree; its owner goes on under another one (R11). Idempotent. After an answer that is no
    /// error no split, merge or handover that names this epoch is applied any more. Returns the epoch of a map in which
    /// the subtree has another one.
    ///
    /// Errors: `UNKNOWN_ID` when it was merged away. Others leave it open.
    pub async fn renew_subtree(&self, subtree: SubtreeId, epoch: Epoch) -> Result<Epoch, Error> {
        let request = mon::RenewSubtreeRequest { subtree: subtree.0, epoch: epoch.0 };
        let call = |channel| async move { service(channel).renew_subtree(request).await };
        self.0.targets.call(self.0.limit, call).await.map(|response| Epoch(response.map_epoch))
    }

    /// Hands a subtree over to the rank it is moving to: a compare-and-set on owner, epoch and move (R12). Repeated
    /// until its outcome is known or the time is over; the repetition of one that was done is "done".
    pub async fn commit_move(&self, subtree: SubtreeId, from: Rank, epoch: Epoch, move_id: u64) -> MoveOutcome {
        let request = mon::CommitMoveRequest { subtree: subtree.0, from: from.0, epoch: epoch.0, move_id };
        let call = |channel| async move { service(channel).commit_move(request).await };
        match self.0.targets.call(self.0.limit, call).await {
            Ok(response) => MoveOutcome::Done(Epoch(response.map_epoch)),
            // Once refused it stays refused, also for a former try that is still under way: moves never come back.
            Err(error) if matches!(error.reason, Reason::StaleEpoch | Reason::UnknownId) => MoveOutcome::Refused(error),
            Err(error) => MoveOutcome::Unknown(error),
        }
    }

    /// Gives a move up (R12). Idempotent. After an answer that is no error the move has not happened, and will not;
    /// the subtree is served on by the owner in the map of the returned epoch.
    ///
    /// Errors: `STALE_EPOCH` when the move was committed. Others leave it open.
    pub async fn cancel_move(&self, subtree: SubtreeId, move_id: u64) -> Result<Epoch, Error> {
        let request = mon::CancelMoveRequest { subtree: subtree.0, move_id };
        let call = |channel| async move { service(channel).cancel_move(request).await };
        self.0.targets.call(self.0.limit, call).await.map(|response| Epoch(response.map_epoch))
    }

    /// Voids the ways that clients know to these subtrees and to all below them (R16). Returns the epoch of the map
    /// that every owner of them has to have before the way is changed.
    pub async fn raise_routes(&self, subtrees: Vec<SubtreeId>) -> Result<Epoch, Error> {
        let request = mon::RaiseRoutesRequest { subtrees: subtrees.into_iter().map(|id| id.0).collect() };
        let call = |channel| {
            let request = request.clone();
            async move { service(channel).raise_routes(request).await }
        };
        self.0.targets.call(self.0.limit, call).await.map(|response| Epoch(response.map_epoch))
    }

    /// Decides a transaction between subtrees (R18). The first decision stands: this tells it, and the epoch of a map
    /// that has it. Errors leave it open; repeat it.
    ///
    /// Errors: `OVERLOADED` when the map remembers too many, `INVALID_REQUEST`.
    pub async fn decide_transaction(&self, request: mon::DecideTransactionRequest) -> Result<(Decision, Epoch), Error> {
        let call = |channel| {
            let request = request.clone();
            async move { service(channel).decide_transaction(request).await }
        };
        let response = self.0.targets.call(self.0.limit, call).await?;
        let nonsense = || Error::new(Reason::Internal, "the mon told a decision that makes no sense");
        let decision = Decision::from_proto(response.decision()).ok_or_else(nonsense)?;
        Ok((decision, Epoch(response.map_epoch)))
    }

    /// Says that a subtree has done, durably, what was decided; ignored when its epoch is no more. Idempotent.
    pub async fn finish_transactions(
        &self,
        subtree: SubtreeId,
        epoch: Epoch,
        transactions: impl IntoIterator<Item = TransactionId>,
    ) -> Result<Epoch, Error> {
        let transactions = transactions.into_iter().map(TransactionId::to_proto).collect();
        let request = mon::FinishTransactionsRequest { subtree: subtree.0, transactions, subtree_epoch: epoch.0 };
        let call = |channel| {
            let request = request.clone();
            async move { service(channel).finish_transactions(request).await }
        };
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

    /// Follows the map from `initial` on, until `shutdown`. Spawns a task. When all mons say that they are of another
    /// cluster, `shutdown` is asked to stop, and [`MapWatch::lost`] says why.
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
        heartbeat::spawn(self.clone(), daemon, incarnation, lease, env.clone(), Report::Usage(usage));
    }

    /// The same for a rank: `load` says how busy it is, `hints` gets the directories that it is asked to split off and
    /// the subtrees that it is asked to merge. Both run on the caller's runtime and have to be quick.
    pub fn heartbeat_rank(
        &self,
        rank: Rank,
        incarnation: u64,
        lease: Arc<Lease>,
        env: &Env,
        load: Arc<dyn Fn() -> mon::RankLoad + Send + Sync>,
        hints: Arc<dyn Fn(Vec<mon::SplitRequest>, Vec<u64>) + Send + Sync>,
    ) {
        let report = Report::Load { load, hints };
        heartbeat::spawn(self.clone(), Daemon::Rank(rank), incarnation, lease, env.clone(), report);
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
