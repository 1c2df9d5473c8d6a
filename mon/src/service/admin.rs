//! For people and tools.

mod explain;
mod pg;
mod session;
mod status;

use std::sync::Arc;

use pando_cluster_map::{
    ClusterMap, Command, CommandResult, CommandValue, EndSession, RemoveDaemon, SetSetting, Subtree, settings,
};
use pando_mon_client::CLUSTER_HEADER;
use pando_proto::mon::admin_service_client::AdminServiceClient;
use pando_proto::mon::admin_service_server::AdminService;
use pando_proto::{ClientId, Error, MAX_MESSAGE_BYTES, PoolId, Rank, Reason, SubtreeId, mon};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::subtree;
use crate::mon::Mon;
use crate::node::Input;

pub(super) struct Admin(pub(super) Arc<Mon>);

type Answer<T> = Result<Response<T>, Status>;

/// Marks a request that another mon passed on, so that it is not passed on for ever.
const FORWARDED: &str = "pando-forwarded";

impl Admin {
    async fn read(&self) -> Result<Arc<ClusterMap>, Status> {
        self.0.read().await.map_err(|error| self.0.refuse(error))
    }

    async fn propose(&self, command: Command) -> Result<CommandResult, Status> {
        self.0.propose(command).await.map_err(|error| self.0.refuse(error))
    }

    /// The leader's service and the request for it, when that is another mon: only the leader knows what the
    /// daemons' heartbeats say.
    fn forward<T>(&self, request: &Request<T>, message: T) -> Option<(AdminServiceClient<Channel>, Request<T>)> {
        if request.metadata().contains_key(FORWARDED) {
            return None;
        }
        let client = AdminServiceClient::new(self.0.leader_elsewhere()?).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let cluster = request.metadata().get_bin(CLUSTER_HEADER).cloned();
        let mut request = Request::new(message);
        if let Some(cluster) = cluster {
            request.metadata_mut().insert_bin(CLUSTER_HEADER, cluster);
        }
        request.metadata_mut().insert(FORWARDED, tonic::metadata::MetadataValue::from_static("1"));
        Some((client, request))
    }
}

fn setting(map: &ClusterMap, definition: &settings::Definition) -> mon::Setting {
    mon::Setting { name: definition.name.to_owned(), value: map.setting_u64(definition.name).to_string() }
}

/// With the path as it is now.
fn shown(map: &ClusterMap, id: SubtreeId, subtree: &Subtree) -> mon::Subtree {
    mon::Subtree { path_hint: map.path_of(id).into(), ..subtree.to_proto(id) }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn get_status(&self, request: Request<mon::GetStatusRequest>) -> Answer<mon::GetStatusResponse> {
        if let Some((mut client, request)) = self.forward(&request, mon::GetStatusRequest {}) {
            return client.get_status(request).await;
        }
        let map = self.read().await?;
        let known = self.0.ask(|reply| Input::Status { reply }).await?;
        let leadership = *self.0.leadership.borrow();
        Ok(Response::new(status::status(&map, &known, leadership)))
    }

    async fn list_osds(&self, request: Request<mon::ListOsdsRequest>) -> Answer<mon::ListOsdsResponse> {
        if let Some((mut client, request)) = self.forward(&request, mon::ListOsdsRequest {}) {
            return client.list_osds(request).await;
        }
        let map = self.read().await?;
        let known = self.0.ask(|reply| Input::Status { reply }).await?;
        let osds = map.osds.iter().map(|(id, osd)| {
            let (total_bytes, used_bytes) = known.usage.get(id).copied().unwrap_or((osd.total_bytes, osd.used_bytes));
            mon::Osd { total_bytes, used_bytes, ..osd.to_proto(*id) }
        });
        Ok(Response::new(mon::ListOsdsResponse { osds: osds.collect() }))
    }

    async fn list_pgs(&self, request: Request<mon::ListPgsRequest>) -> Answer<mon::ListPgsResponse> {
        let pool = PoolId(request.into_inner().pool);
        let map = self.read().await?;
        if pool.0 != 0 && !map.pools.contains_key(&pool) {
            return Err(Error::new(Reason::UnknownId, format!("there is no {pool}; 0 lists all")).into());
        }
        let pgs = map.pgs.iter().filter(|(id, _)| pool.0 == 0 || id.pool == pool);
        Ok(Response::new(mon::ListPgsResponse { pgs: pgs.map(|(id, pg)| pg.to_proto(*id)).collect() }))
    }

    async fn list_ranks(&self, _: Request<mon::ListRanksRequest>) -> Answer<mon::ListRanksResponse> {
        let map = self.read().await?;
        let ranks = map.ranks.iter().map(|(rank, info)| info.to_proto(*rank)).collect();
        Ok(Response::new(mon::ListRanksResponse { ranks }))
    }

    async fn list_subtrees(&self, _: Request<mon::ListSubtreesRequest>) -> Answer<mon::ListSubtreesResponse> {
        let map = self.read().await?;
        let subtrees = map.subtrees.iter().map(|(id, subtree)| shown(&map, *id, subtree)).collect();
        Ok(Response::new(mon::ListSubtreesResponse { subtrees }))
    }

    async fn list_settings(&self, _: Request<mon::ListSettingsRequest>) -> Answer<mon::ListSettingsResponse> {
        let map = self.read().await?;
        let settings = settings::ALL.iter().map(|definition| setting(&map, definition)).collect();
        Ok(Response::new(mon::ListSettingsResponse { settings }))
    }

    async fn get_setting(&self, request: Request<mon::GetSettingRequest>) -> Answer<mon::GetSettingResponse> {
        let name = request.into_inner().name;
        let definition = settings::find(&name).ok_or_else(|| {
            let names: Vec<&str> = settings::ALL.iter().map(|definition| definition.name).collect();
            Error::new(Reason::UnknownId, format!("no such setting; there are {}", names.join(", ")))
        })?;
        let map = self.read().await?;
        Ok(Response::new(mon::GetSettingResponse { setting: Some(setting(&map, definition)) }))
    }

    async fn set_setting(&self, request: Request<mon::SetSettingRequest>) -> Answer<mon::SetSettingResponse> {
        let mon::SetSettingRequest { name, value } = request.into_inner();
        let command = Command::SetSetting(SetSetting { name, value });
        let result = self.propose(command).await?;
        Ok(Response::new(mon::SetSettingResponse { map_epoch: result.epoch.0 }))
    }

    async fn remove_osd(&self, request: Request<mon::RemoveOsdRequest>) -> Answer<mon::RemoveOsdResponse> {
        let command = Command::RemoveOsd(RemoveDaemon { id: request.into_inner().osd_id });
        let result = self.propose(command).await?;
        Ok(Response::new(mon::RemoveOsdResponse { map_epoch: result.epoch.0 }))
    }

    async fn remove_rank(&self, request: Request<mon::RemoveRankRequest>) -> Answer<mon::RemoveRankResponse> {
        let command = Command::RemoveRank(RemoveDaemon { id: request.into_inner().rank });
        let result = self.propose(command).await?;
        Ok(Response::new(mon::RemoveRankResponse { map_epoch: result.epoch.0 }))
    }

    async fn override_placement_group(
        &self,
        request: Request<mon::OverridePlacementGroupRequest>,
    ) -> Answer<mon::OverridePlacementGroupResponse> {
        let request = request.into_inner();
        pg::check_override(&*self.read().await?, request)?;
        let result = self.propose(pg::override_command(request)).await?;
        Ok(Response::new(mon::OverridePlacementGroupResponse { map_epoch: result.epoch.0 }))
    }

    async fn move_subtree(&self, request: Request<mon::MoveSubtreeRequest>) -> Answer<mon::MoveSubtreeResponse> {
        let limit = subtree::limit(request.metadata());
        let request = request.into_inner();
        subtree::check_move(&*self.read().await?, request)?;
        let result = self.propose(subtree::start_move(request)).await?;
        let CommandValue::Move(move_id) = result.value else {
            return Err(Error::new(Reason::Internal, "the mons answered something else than was asked").into());
        };
        let mut map_epoch = result.epoch;
        if request.wait && move_id != 0 {
            let (id, to) = (SubtreeId(request.subtree), Rank(request.to));
            let awaited = subtree::Awaited { subtree: id, to, move_id, since: result.epoch };
            map_epoch = awaited.end(&self.0, limit).await?;
        }
        Ok(Response::new(mon::MoveSubtreeResponse { move_id, map_epoch: map_epoch.0 }))
    }

    async fn pin_subtree(&self, request: Request<mon::PinSubtreeRequest>) -> Answer<mon::PinSubtreeResponse> {
        let result = self.propose(subtree::pin(request.into_inner())).await?;
        Ok(Response::new(mon::PinSubtreeResponse { map_epoch: result.epoch.0 }))
    }

    async fn spread_subtree(&self, request: Request<mon::SpreadSubtreeRequest>) -> Answer<mon::SpreadSubtreeResponse> {
        let result = self.propose(subtree::spread(request.into_inner())).await?;
        Ok(Response::new(mon::SpreadSubtreeResponse { map_epoch: result.epoch.0 }))
    }

    async fn drain_rank(&self, request: Request<mon::DrainRankRequest>) -> Answer<mon::DrainRankResponse> {
        let result = self.propose(subtree::drain(request.into_inner())).await?;
        Ok(Response::new(mon::DrainRankResponse { map_epoch: result.epoch.0 }))
    }

    async fn list_decisions(&self, request: Request<mon::ListDecisionsRequest>) -> Answer<mon::ListDecisionsResponse> {
        let message = *request.get_ref();
        if let Some((mut client, request)) = self.forward(&request, message) {
            return client.list_decisions(request).await;
        }
        let limit = message.limit;
        let decisions = self.0.ask(|reply| Input::Decisions { limit, reply }).await?;
        Ok(Response::new(mon::ListDecisionsResponse { decisions }))
    }

    async fn explain_subtree(
        &self,
        request: Request<mon::ExplainSubtreeRequest>,
    ) -> Answer<mon::ExplainSubtreeResponse> {
        let message = *request.get_ref();
        if let Some((mut client, request)) = self.forward(&request, message) {
            return client.explain_subtree(request).await;
        }
        let map = self.read().await?;
        let decisions = self.0.ask(|reply| Input::Decisions { limit: 0, reply }).await?;
        let loads = self.0.ask(|reply| Input::Loads { reply }).await?;
        Ok(Response::new(explain::explain(&map, SubtreeId(message.subtree), &decisions, loads)?))
    }

    async fn list_loads(&self, request: Request<mon::ListLoadsRequest>) -> Answer<mon::ListLoadsResponse> {
        if let Some((mut client, request)) = self.forward(&request, mon::ListLoadsRequest {}) {
            return client.list_loads(request).await;
        }
        let ranks = self.0.ask(|reply| Input::Loads { reply }).await?;
        Ok(Response::new(mon::ListLoadsResponse { ranks }))
    }

    async fn list_sessions(&self, request: Request<mon::ListSessionsRequest>) -> Answer<mon::ListSessionsResponse> {
        if let Some((mut client, request)) = self.forward(&request, mon::ListSessionsRequest {}) {
            return client.list_sessions(request).await;
        }
        let map = self.read().await?;
        let loads = self.0.ask(|reply| Input::Loads { reply }).await?;
        Ok(Response::new(mon::ListSessionsResponse { sessions: session::list(&map, &loads) }))
    }

    async fn evict_session(&self, request: Request<mon::EvictSessionRequest>) -> Answer<mon::EvictSessionResponse> {
        let client_id = request.into_inner().client_id;
        session::check_eviction(&*self.read().await?, ClientId(client_id))?;
        tracing::info!(client = client_id, "a session is evicted, as an administrator asked for");
        let result = self.propose(Command::EndSession(EndSession { client_id })).await?;
        Ok(Response::new(mon::EvictSessionResponse { map_epoch: result.epoch.0 }))
    }
}
