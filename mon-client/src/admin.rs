//! The calls of `pando.mon.v1.AdminService`.

use pando_proto::mon::admin_service_client::AdminServiceClient;
use pando_proto::{Epoch, Error, MAX_MESSAGE_BYTES, OsdId, PoolId, Rank, mon};
use tonic::transport::Channel;

use crate::MonClient;

/// What people and tools ask. Clones share connections with the [`MonClient`].
#[derive(Clone)]
pub struct AdminClient {
    client: MonClient,
}

fn service(channel: Channel) -> AdminServiceClient<Channel> {
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
}
