//! The gRPC services.

mod admin;
mod cluster;
mod raft;
mod subtree;
mod watch;

use std::sync::Arc;

use pando_mon_client::ClusterStamp;
use pando_proto::MAX_MESSAGE_BYTES;
use pando_proto::mon::admin_service_server::AdminServiceServer;
use pando_proto::mon::cluster_service_server::ClusterServiceServer;
use pando_proto::mon::raft_service_server::RaftServiceServer;
use tonic::Request;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;

use crate::mon::Mon;

/// All that a mon serves.
pub(crate) async fn routes(mon: &Arc<Mon>) -> Routes {
    let cluster = ClusterServiceServer::new(cluster::Cluster(Arc::clone(mon)));
    let admin = AdminServiceServer::new(admin::Admin(Arc::clone(mon)));
    let raft = RaftServiceServer::new(raft::Group(Arc::clone(mon)));
    // A daemon or client of another cluster may take this mon for one of its own, which were here before: its numbers
    // mean something else here, and nothing that it asks for may be done.
    let check = {
        let mon = Arc::clone(mon);
        move |request: Request<()>| {
            mon.check_cluster(&ClusterStamp::of(&request)).map_err(|error| error.to_tonic())?;
            Ok(request)
        }
    };
    let cluster = cluster.max_encoding_message_size(MAX_MESSAGE_BYTES);
    let admin = admin.max_encoding_message_size(MAX_MESSAGE_BYTES);
    pando_rpc::standard_routes("pando.mon.v1")
        .await
        .add_service(InterceptedService::new(cluster, check.clone()))
        .add_service(InterceptedService::new(admin, check))
        .add_service(raft.max_decoding_message_size(MAX_MESSAGE_BYTES))
}
