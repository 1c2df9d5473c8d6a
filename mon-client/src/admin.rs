//! The calls of `pando.mon.v1.AdminService`.

use std::time::Duration;

use pando_proto::mon::admin_service_client::AdminServiceClient;
use pando_proto::{ClientId, Epoch, Error, MAX_MESSAGE_BYTES, OsdId, PgId, PoolId, Rank, SubtreeId, mon};

use crate::MonClient;
use crate::targets::MonChannel;

/// How long a caller waits for the end of a move.
const MOVE_LIMIT: Duration = Duration::from_secs(60);

/// What people and tools ask. Clones share connections with the [`MonClient`].
#[derive(Clone)]
pub struct AdminClient {
    client: MonClient,
}

fn service(channel: MonChannel) -> AdminServiceClient<MonChannel> {
    AdminServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

impl AdminClient {
    pub(crate) fn new(client: MonClient) -> Self {
        Self { client }
    }

    /// The cluster at a glance.
    pub async fn status(&self) -> Result<mon::GetStatusResponse, Error> {
        let call = |channel| async move { service(channel).get_status(mon::GetStatusRequest {}).await };
        self.client.targets().call(self.client.limit(), call).await
    }

    /// All OSDs, with what they use.
    pub async fn list_osds(&self) -> Result<Vec<mon::Osd>, Error> {
        let call = |channel| async move { service(channel).list_osds(mon::ListOsdsRequest {}).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| response.osds)
    }

    /// The PGs of a pool, or of all.
    pub async fn list_pgs(&self, pool: Option<PoolId>) -> Result<Vec<mon::PlacementGroup>, Error> {
        let request = mon::ListPgsRequest { pool: pool.map_or(0, |pool| pool.0) };
        let call = |channel| async move { service(channel).list_pgs(request).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| response.pgs)
    }

    /// All ranks.
    pub async fn list_ranks(&self) -> Result<Vec<mon::Rank>, Error> {
        let call = |channel| async move { service(channel).list_ranks(mon::ListRanksRequest {}).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| response.ranks)
    }

    /// All subtrees.
    pub async fn list_subtrees(&self) -> Result<Vec<mon::Subtree>, Error> {
        let call = |channel| async move { service(channel).list_subtrees(mon::ListSubtreesRequest {}).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| response.subtrees)
    }

    /// All settings, those at their default included.
    pub async fn list_settings(&self) -> Result<Vec<mon::Setting>, Error> {
        let call = |channel| async move { service(channel).list_settings(mon::ListSettingsRequest {}).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| response.settings)
    }

    /// A setting's value.
    ///
    /// Errors: `UNKNOWN_ID` for a name that is none; the message lists those that are.
    pub async fn get_setting(&self, name: &str) -> Result<String, Error> {
        let request = mon::GetSettingRequest { name: name.to_owned() };
        let call = |channel| {
            let request = request.clone();
            async move { service(channel).get_setting(request).await }
        };
        let response = self.client.targets().call(self.client.limit(), call).await?;
        Ok(response.setting.unwrap_or_default().value)
    }

    /// Changes a setting. Returns the epoch in which it holds.
    ///
    /// Errors: `INVALID_REQUEST` for a value out of range; the message says the range.
    pub async fn set_setting(&self, name: &str, value: &str) -> Result<Epoch, Error> {
        let request = mon::SetSettingRequest { name: name.to_owned(), value: value.to_owned() };
        let call = |channel| {
            let request = request.clone();
            async move { service(channel).set_setting(request).await }
        };
        self.client.targets().call(self.client.limit(), call).await.map(|response| Epoch(response.map_epoch))
    }

    /// Takes an OSD off the map. Idempotent. Returns an epoch in which it is gone.
    ///
    /// Errors: `IN_USE` while it may hold a lease or a placement group needs it, `UNKNOWN_ID` for an id never given.
    pub async fn remove_osd(&self, osd: OsdId) -> Result<Epoch, Error> {
        let request = mon::RemoveOsdRequest { osd_id: osd.0 };
        let call = |channel| async move { service(channel).remove_osd(request).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| Epoch(response.map_epoch))
    }

    /// Takes a rank off the map. Idempotent. Returns an epoch in which it is gone.
    ///
    /// Errors: `IN_USE` while it may hold a lease or owns a subtree, `UNKNOWN_ID` for a number that is no rank.
    pub async fn remove_rank(&self, rank: Rank) -> Result<Epoch, Error> {
        let request = mon::RemoveRankRequest { rank: rank.0 };
        let call = |channel| async move { service(channel).remove_rank(request).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| Epoch(response.map_epoch))
    }

    /// Makes one copy of a PG the one that counts, though it may lack what was acknowledged (R26). `config` is the
    /// configuration that was seen. Returns the epoch in which it is so.
    ///
    /// Errors: without `accept_data_loss` always `INVALID_REQUEST`, which says what would be lost; the same for an OSD
    /// that is down or holds no copy; `STALE_EPOCH` for another configuration by now.
    pub async fn override_pg(&self, pg: PgId, config: u64, osd: OsdId, accept_data_loss: bool) -> Result<Epoch, Error> {
        let (pool, index, osd_id) = (pg.pool.0, pg.index, osd.0);
        let request = mon::OverridePlacementGroupRequest { pool, index, config, osd_id, accept_data_loss };
        let call = |channel| async move { service(channel).override_placement_group(request).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| Epoch(response.map_epoch))
    }

    /// Moves a subtree to another rank, live. Returns the id of the move, 0 if the rank owns the subtree already, and
    /// an epoch: with `wait`, of a map in which the subtree is there, else of one in which the move has begun.
    ///
    /// Errors: `UNKNOWN_ID` for a subtree or rank that the map does not know, `INVALID_REQUEST` for a rank that is down
    /// or draining, `IN_USE` while it moves to yet another rank, `STALE_EPOCH` when the move was given up.
    pub async fn move_subtree(&self, subtree: SubtreeId, rank: Rank, wait: bool) -> Result<(u64, Epoch), Error> {
        self.start_move(mon::MoveSubtreeRequest { subtree: subtree.0, to: rank.0, wait, to_merge: false }).await
    }

    /// As [`move_subtree`](Self::move_subtree), and waits for its end: the subtree is to be merged into its parent
    /// there, for its directory is to be removed. It is pinned no more.
    pub async fn fetch_subtree(&self, subtree: SubtreeId, rank: Rank) -> Result<Epoch, Error> {
        let request = mon::MoveSubtreeRequest { subtree: subtree.0, to: rank.0, wait: true, to_merge: true };
        self.start_move(request).await.map(|(_, epoch)| epoch)
    }

    async fn start_move(&self, request: mon::MoveSubtreeRequest) -> Result<(u64, Epoch), Error> {
        let wait = request.wait;
        let call = |channel| async move { service(channel).move_subtree(request).await };
        let response = if wait {
            self.client.targets().call_patiently(MOVE_LIMIT, MOVE_LIMIT, call).await?
        } else {
            self.client.targets().call(self.client.limit(), call).await?
        };
        Ok((response.move_id, Epoch(response.map_epoch)))
    }

    /// Pins a subtree to a rank, or takes the pin away. The balancer moves it there.
    pub async fn pin_subtree(&self, subtree: SubtreeId, rank: Option<Rank>) -> Result<Epoch, Error> {
        let request = mon::PinSubtreeRequest { subtree: subtree.0, rank: rank.map(|rank| rank.0) };
        let call = |channel| async move { service(channel).pin_subtree(request).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| Epoch(response.map_epoch))
    }

    /// Has the child directories of a subtree's root dealt over the ranks, or no longer.
    pub async fn spread_subtree(&self, subtree: SubtreeId, spread: bool) -> Result<Epoch, Error> {
        let request = mon::SpreadSubtreeRequest { subtree: subtree.0, spread };
        let call = |channel| async move { service(channel).spread_subtree(request).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| Epoch(response.map_epoch))
    }

    /// Has a rank emptied and kept empty, or no longer.
    pub async fn drain_rank(&self, rank: Rank, draining: bool) -> Result<Epoch, Error> {
        let request = mon::DrainRankRequest { rank: rank.0, draining };
        let call = |channel| async move { service(channel).drain_rank(request).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| Epoch(response.map_epoch))
    }

    /// What the balancer decided lately, newest first; `limit` 0 for all that is kept.
    pub async fn list_decisions(&self, limit: u32) -> Result<Vec<mon::Decision>, Error> {
        let request = mon::ListDecisionsRequest { limit };
        let call = |channel| async move { service(channel).list_decisions(request).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| response.decisions)
    }

    /// Why a subtree is where it is.
    pub async fn explain_subtree(&self, subtree: SubtreeId) -> Result<mon::ExplainSubtreeResponse, Error> {
        let request = mon::ExplainSubtreeRequest { subtree: subtree.0 };
        let call = |channel| async move { service(channel).explain_subtree(request).await };
        self.client.targets().call(self.client.limit(), call).await
    }

    /// The sessions of clients and ranks.
    pub async fn list_sessions(&self) -> Result<Vec<mon::SessionInfo>, Error> {
        let call = |channel| async move { service(channel).list_sessions(mon::ListSessionsRequest {}).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| response.sessions)
    }

    /// Ends the session of a client. Idempotent. Returns an epoch in which it is gone.
    ///
    /// Errors: `UNKNOWN_ID` for an id never given, `IN_USE` for the session of a rank that is up.
    pub async fn evict_session(&self, client: ClientId) -> Result<Epoch, Error> {
        let request = mon::EvictSessionRequest { client_id: client.0 };
        let call = |channel| async move { service(channel).evict_session(request).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| Epoch(response.map_epoch))
    }

    /// What the ranks said of their load last.
    pub async fn list_loads(&self) -> Result<Vec<mon::RankLoadOf>, Error> {
        let call = |channel| async move { service(channel).list_loads(mon::ListLoadsRequest {}).await };
        self.client.targets().call(self.client.limit(), call).await.map(|response| response.ranks)
    }
}
