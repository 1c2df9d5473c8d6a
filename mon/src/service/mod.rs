//! The gRPC services.

mod admin;
mod cluster;
mod raft;
mod subtree;
mod watch;

use std::sync::Arc;

use pando_proto::MAX_MESSAGE_BYTES;
use pando_proto::mon::admin_service_server::AdminServiceServer;
use pando_proto::mon::cluster_service_server::ClusterServiceServer;
use pando_proto::mon::raft_service_server::RaftServiceServer;
use tonic::service::Routes;

use crate::mon::Mon;

/// All that a mon serves.
pub(crate) async fn routes(mon: &Arc<Mon>) -> Routes {
    let cluster = ClusterServiceServer::new(cluster::Cluster(Arc::clone(mon)));
    let admin = AdminServiceServer::new(admin::Admin(Arc::clone(mon)));
    let raft = RaftServiceServer::new(raft::Group(Arc::clone(mon)));
    pando_rpc::standard_routes("pando.mon.v1")
        .await
        .add_service(cluster.max_encoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(admin.max_encoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(raft.max_decoding_message_size(MAX_MESSAGE_BYTES))
}
