//! What clients and other OSDs call.

mod check;
mod objects;
mod records;
mod replication;

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use pando_mon_client::{CLUSTER_HEADER, ClusterStamp};
use pando_proto::osd::object_service_server::ObjectServiceServer;
use pando_proto::osd::record_service_server::RecordServiceServer;
use pando_proto::osd::replication_service_server::ReplicationServiceServer;
use pando_proto::{Error, MAX_MESSAGE_BYTES, Reason};
use tokio::sync::oneshot;
use tonic::Request;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;

use self::objects::Objects;
use self::records::Records;
use self::replication::Replication;

use crate::pg::{Answer, Client, Responder};
use crate::pgs::Osd;

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, tonic::Status>> + Send + 'static>>;

/// All that an OSD serves.
pub(crate) async fn routes(osd: &Arc<Osd>) -> Routes {
    let records = RecordServiceServer::new(Records(Arc::clone(osd)))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let objects = ObjectServiceServer::new(Objects(Arc::clone(osd)))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let replication = ReplicationServiceServer::new(Replication(Arc::clone(osd)))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let check = {
        let osd = Arc::clone(osd);
        move |request: Request<()>| {
            check_cluster(&osd, &ClusterStamp::of(&request))?;
            Ok(request)
        }
    };
    pando_rpc::standard_routes("pando.osd.v1")
        .await
        .add_service(InterceptedService::new(records, check.clone()))
        .add_service(InterceptedService::new(objects, check.clone()))
        .add_service(InterceptedService::new(replication, check))
}

/// Refuses what was not meant for this cluster. A process of one that was here before may go on for as long as it likes:
/// its sessions, numbers, epochs and inodes are those of others here (I1, I10, R22). Whoever calls an OSD knows its
/// cluster, for it has the map; so who names none is refused, too.
fn check_cluster(osd: &Osd, named: &[u8]) -> Result<(), Error> {
    let own = osd.map.current().cluster_id;
    // Only in tests is there a map without a cluster.
    if own == [0; 16] || named == own {
        return Ok(());
    }
    let named = match named {
        [] => format!("names none (metadata `{CLUSTER_HEADER}`, its 16 bytes; for grpcurl in base64)"),
        id => format!("names {}", hex(&id[..id.len().min(16)])),
    };
    let message = format!("this OSD belongs to cluster {}, the caller {named}", hex(&own));
    Err(Error::new(Reason::WrongCluster, message))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One call, one answer.
async fn unary(osd: &Arc<Osd>, call: Result<check::Checked, Error>) -> Result<Answer, Error> {
    let call = call?;
    let (sender, receiver) = oneshot::channel();
    let room = osd.room(call.bytes)?;
    let client = Client { map_epoch: call.map_epoch, call: call.call, responder: Responder::Unary(sender), room };
    osd.dispatch(call.pg, vec![client]).await;
    let stopping = || Error::new(Reason::Unavailable, "this OSD is stopping");
    receiver.await.unwrap_or_else(|_| Err(stopping()))
}

fn mismatch() -> tonic::Status {
    Error::new(Reason::Internal, "the answer does not belong to the call").into()
}
