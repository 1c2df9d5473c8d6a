//! Between the members of the group.

use std::sync::Arc;

use pando_cluster_map::Command;
use pando_proto::mon::raft_service_server::RaftService;
use pando_proto::mon::{DeliverRequest, DeliverResponse, ProposeRequest, ProposeResponse};
use pando_proto::{Error, Reason};
use protobuf::Message as _;
use raft::eraftpb::Message;
use tonic::{Request, Response, Status};

use crate::mon::Mon;
use crate::node::Input;

pub(super) struct Group(pub(super) Arc<Mon>);

#[tonic::async_trait]
impl RaftService for Group {
    async fn deliver(&self, request: Request<DeliverRequest>) -> Result<Response<DeliverResponse>, Status> {
        let request = request.into_inner();
        self.0.check_cluster(&request.cluster_id)?;
        for bytes in &request.messages {
            let message = Message::parse_from_bytes(bytes)
                .map_err(|_| Error::new(Reason::InvalidRequest, "no message of the Raft group"))?;
            // Waits when the node is busy: the sender's own queue then drops.
            let delivered = self.0.inputs.send(Input::Message(message)).await;
            delivered.map_err(|_| Error::new(Reason::Unavailable, "this mon is stopping"))?;
        }
        Ok(Response::new(DeliverResponse {}))
    }

    async fn propose(&self, request: Request<ProposeRequest>) -> Result<Response<ProposeResponse>, Status> {
        let request = request.into_inner();
        self.0.check_cluster(&request.cluster_id)?;
        let command = Command::from_bytes(&request.command).map_err(Error::from)?;
        let result = self.0.propose_here(command).await.map_err(|error| self.0.refuse(error))?;
        Ok(Response::new(ProposeResponse { result: result.to_bytes().into() }))
    }
}
