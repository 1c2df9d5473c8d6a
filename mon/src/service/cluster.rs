//! For daemons and clients.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use pando_cluster_map::{
    AllocateInos, ClusterMap, Command, CommandResult, CommandValue, ConfirmMember, DaemonState, EndSession, RankDown,
    RegisterClient, RegisterOsd, RegisterRank,
};
use pando_mon_client::Daemon;
use pando_proto::mon::cluster_service_server::ClusterService;
use pando_proto::mon::{self, heartbeat_request, release_lease_request};
use pando_proto::{Epoch, Error, OsdId, Rank, Reason};
use tonic::{Request, Response, Status};

use super::{subtree, watch};
use crate::mon::Mon;
use crate::node::{Beat, Input};

pub(super) struct Cluster(pub(super) Arc<Mon>);

type Answer<T> = Result<Response<T>, Status>;
type MapStream = Pin<Box<dyn Stream<Item = Result<mon::WatchMapResponse, Status>> + Send>>;

fn unexpected() -> Error {
    Error::new(Reason::Internal, "the mons answered something else than was asked")
}

fn missing_daemon() -> Error {
    Error::new(Reason::InvalidRequest, "the request names neither an OSD nor a rank")
}

impl Cluster {
    async fn propose(&self, command: Command) -> Result<CommandResult, Status> {
        self.0.propose(command).await.map_err(|error| self.0.refuse(error))
    }

    /// Proposes, and waits until this mon has the map in which the command holds.
    async fn propose_for_map(&self, command: Command) -> Result<(CommandValue, Arc<ClusterMap>), Status> {
        let result = self.propose(command).await?;
        Ok((result.value, self.0.map_at(result.epoch).await?))
    }
}

#[tonic::async_trait]
impl ClusterService for Cluster {
    async fn register_osd(&self, request: Request<mon::RegisterOsdRequest>) -> Answer<mon::RegisterOsdResponse> {
        let request = request.into_inner();
        self.0.check_cluster(&request.cluster_id)?;
        let command = Command::RegisterOsd(RegisterOsd {
            uuid: request.uuid.to_vec(),
            boot_id: request.boot_id.to_vec(),
            address: request.address,
            host: request.host,
            weight: request.weight,
            total_bytes: request.total_bytes,
        });
        let (CommandValue::Osd(osd, incarnation), map) = self.propose_for_map(command).await? else {
            return Err(unexpected().into());
        };
        Ok(Response::new(mon::RegisterOsdResponse {
            cluster_id: self.0.cluster_id_bytes(),
            osd_id: osd.0,
            incarnation,
            map: Some(map.to_proto()),
        }))
    }

    async fn register_rank(&self, request: Request<mon::RegisterRankRequest>) -> Answer<mon::RegisterRankResponse> {
        let request = request.into_inner();
        self.0.check_cluster(&request.cluster_id)?;
        let command = Command::RegisterRank(RegisterRank {
            rank: request.rank,
            boot_id: request.boot_id.to_vec(),
            address: request.address,
        });
        let (CommandValue::Rank(incarnation), map) = self.propose_for_map(command).await? else {
            return Err(unexpected().into());
        };
        Ok(Response::new(mon::RegisterRankResponse {
            cluster_id: self.0.cluster_id_bytes(),
            incarnation,
            map: Some(map.to_proto()),
        }))
    }

    async fn register_client(
        &self,
        request: Request<mon::RegisterClientRequest>,
    ) -> Answer<mon::RegisterClientResponse> {
        let request = request.into_inner();
        let command = Command::RegisterClient(RegisterClient {
            nonce: request.nonce.to_vec(),
            description: request.description,
            is_client: request.of_rank.is_none(),
            of_rank: request.of_rank.map(|of| DaemonState { id: of.rank, incarnation: of.incarnation }),
        });
        let (CommandValue::Client(client), map) = self.propose_for_map(command).await? else {
            return Err(unexpected().into());
        };
        Ok(Response::new(mon::RegisterClientResponse { client_id: client.0, map: Some(map.to_proto()) }))
    }

    async fn end_session(&self, request: Request<mon::EndSessionRequest>) -> Answer<mon::EndSessionResponse> {
        let request = request.into_inner();
        if request.evict {
            tracing::info!(client = request.client_id, "a client that was not heard of is evicted");
        }
        let result = self.propose(Command::EndSession(EndSession { client_id: request.client_id })).await?;
        Ok(Response::new(mon::EndSessionResponse { map_epoch: result.epoch.0 }))
    }

    async fn heartbeat(&self, request: Request<mon::HeartbeatRequest>) -> Answer<mon::HeartbeatResponse> {
        let arrived = self.0.clock.boottime();
        let request = request.into_inner();
        let daemon = match request.daemon.ok_or_else(missing_daemon)? {
            heartbeat_request::Daemon::OsdId(id) => Daemon::Osd(OsdId(id)),
            heartbeat_request::Daemon::Rank(rank) => Daemon::Rank(Rank(rank)),
        };
        let beat = Beat {
            daemon,
            incarnation: request.incarnation,
            arrived,
            total_bytes: request.total_bytes,
            used_bytes: request.used_bytes,
            load: request.load.map(Box::new),
        };
        let answer = self.0.ask(|reply| Input::Heartbeat { beat, reply }).await?;
        let granted = answer.map_err(|error| self.0.refuse(error))?;
        let lease_millis = u64::try_from(granted.lease.as_millis()).unwrap_or(u64::MAX);
        Ok(Response::new(mon::HeartbeatResponse {
            lease_millis,
            map_epoch: granted.epoch,
            splits: granted.hints.splits,
            merges: granted.hints.merges,
        }))
    }

    async fn release_lease(&self, request: Request<mon::ReleaseLeaseRequest>) -> Answer<mon::ReleaseLeaseResponse> {
        let request = request.into_inner();
        let incarnation = request.incarnation;
        let command = match request.daemon.ok_or_else(missing_daemon)? {
            release_lease_request::Daemon::OsdId(id) => Command::OsdDown(DaemonState { id, incarnation }),
            release_lease_request::Daemon::Rank(id) => {
                Command::RankDown(RankDown { id, incarnation, assignments: Vec::new() })
            }
        };
        let map_epoch = match self.0.propose(command).await {
            Ok(result) => result.epoch.0,
            // A newer process has it: there is nothing left to give back.
            Err(error) if error.reason == Reason::StaleEpoch => self.0.map.borrow().epoch.0,
            Err(error) => return Err(self.0.refuse(error)),
        };
        Ok(Response::new(mon::ReleaseLeaseResponse { map_epoch }))
    }

    type WatchMapStream = MapStream;

    async fn watch_map(&self, request: Request<mon::WatchMapRequest>) -> Answer<MapStream> {
        let mon = &self.0;
        let have = request.into_inner().have_epoch;
        let maps = watch::maps(mon.map.clone(), mon.leadership.clone(), mon.shutdown.clone(), have);
        Ok(Response::new(Box::pin(maps)))
    }

    async fn get_map(&self, request: Request<mon::GetMapRequest>) -> Answer<mon::GetMapResponse> {
        let min = Epoch(request.into_inner().min_epoch);
        let mut map = self.0.read().await.map_err(|error| self.0.refuse(error))?;
        if !map.exists() {
            return Err(Error::from(pando_cluster_map::CommandError::NoCluster).into());
        }
        if map.epoch < min {
            map = self.0.map_at(min).await?;
        }
        Ok(Response::new(mon::GetMapResponse { map: Some(map.to_proto()) }))
    }

    async fn allocate_inos(&self, request: Request<mon::AllocateInosRequest>) -> Answer<mon::AllocateInosResponse> {
        let request = request.into_inner();
        let command = Command::AllocateInos(AllocateInos {
            shard: request.shard,
            rank: request.rank,
            incarnation: request.incarnation,
            count: request.count,
            nonce: request.nonce.to_vec(),
        });
        match self.propose(command).await?.value {
            CommandValue::Inos(first, count) => {
                Ok(Response::new(mon::AllocateInosResponse { first_ino: first.0, count }))
            }
            _ => Err(unexpected().into()),
        }
    }

    async fn confirm_member(&self, request: Request<mon::ConfirmMemberRequest>) -> Answer<mon::ConfirmMemberResponse> {
        let request = request.into_inner();
        let command = Command::ConfirmMember(ConfirmMember {
            pool: request.pool,
            index: request.index,
            config: request.config,
            osd_id: request.osd_id,
        });
        let result = self.propose(command).await?;
        Ok(Response::new(mon::ConfirmMemberResponse { map_epoch: result.epoch.0 }))
    }

    async fn demote_member(&self, request: Request<mon::DemoteMemberRequest>) -> Answer<mon::DemoteMemberResponse> {
        let request = request.into_inner();
        let command = Command::DemoteMember(ConfirmMember {
            pool: request.pool,
            index: request.index,
            config: request.config,
            osd_id: request.osd_id,
        });
        let result = self.propose(command).await?;
        Ok(Response::new(mon::DemoteMemberResponse { map_epoch: result.epoch.0 }))
    }

    async fn split_subtree(&self, request: Request<mon::SplitSubtreeRequest>) -> Answer<mon::SplitSubtreeResponse> {
        let result = self.propose(subtree::split(request.into_inner())?).await?;
        match result.value {
            CommandValue::Subtree(id) => {
                Ok(Response::new(mon::SplitSubtreeResponse { subtree: id.0, map_epoch: result.epoch.0 }))
            }
            _ => Err(unexpected().into()),
        }
    }

    async fn merge_subtree(&self, request: Request<mon::MergeSubtreeRequest>) -> Answer<mon::MergeSubtreeResponse> {
        let result = self.propose(subtree::merge(request.into_inner())).await?;
        Ok(Response::new(mon::MergeSubtreeResponse { map_epoch: result.epoch.0 }))
    }

    async fn renew_subtree(&self, request: Request<mon::RenewSubtreeRequest>) -> Answer<mon::RenewSubtreeResponse> {
        let result = self.propose(subtree::renew(request.into_inner())).await?;
        Ok(Response::new(mon::RenewSubtreeResponse { map_epoch: result.epoch.0 }))
    }

    async fn commit_move(&self, request: Request<mon::CommitMoveRequest>) -> Answer<mon::CommitMoveResponse> {
        let result = self.propose(subtree::commit_move(request.into_inner())).await?;
        Ok(Response::new(mon::CommitMoveResponse { map_epoch: result.epoch.0 }))
    }

    async fn cancel_move(&self, request: Request<mon::CancelMoveRequest>) -> Answer<mon::CancelMoveResponse> {
        let result = self.propose(subtree::cancel_move(request.into_inner())).await?;
        Ok(Response::new(mon::CancelMoveResponse { map_epoch: result.epoch.0 }))
    }

    async fn raise_routes(&self, request: Request<mon::RaiseRoutesRequest>) -> Answer<mon::RaiseRoutesResponse> {
        let result = self.propose(subtree::raise_routes(request.into_inner())?).await?;
        Ok(Response::new(mon::RaiseRoutesResponse { map_epoch: result.epoch.0 }))
    }

    async fn decide_transaction(
        &self,
        request: Request<mon::DecideTransactionRequest>,
    ) -> Answer<mon::DecideTransactionResponse> {
        let result = self.propose(subtree::decide(request.into_inner())).await?;
        let CommandValue::Decided(decision) = result.value else { return Err(unexpected().into()) };
        let decision = decision.to_proto().into();
        Ok(Response::new(mon::DecideTransactionResponse { decision, map_epoch: result.epoch.0 }))
    }

    async fn finish_transactions(
        &self,
        request: Request<mon::FinishTransactionsRequest>,
    ) -> Answer<mon::FinishTransactionsResponse> {
        let result = self.propose(subtree::finish(&request.into_inner())?).await?;
        Ok(Response::new(mon::FinishTransactionsResponse { map_epoch: result.epoch.0 }))
    }
}
