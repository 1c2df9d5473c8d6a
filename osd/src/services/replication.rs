//! `pando.osd.v1.ReplicationService`: streams that other OSDs open to us.

use std::sync::Arc;

use futures_util::StreamExt as _;
use pando_proto::osd::ReplicaFrame;
use pando_proto::osd::replication_service_server::ReplicationService;
use tonic::{Request, Response, Status, Streaming};

use super::Replies;
use crate::pgs::Osd;
use crate::{links, wire};

type Queue = pando_rpc::queue::Sender<pando_proto::osd::ReplicaMessage>;

pub(crate) struct Replication(pub Arc<Osd>);

#[tonic::async_trait]
impl ReplicationService for Replication {
    type ReplicateStream = Replies<ReplicaFrame>;

    async fn replicate(
        &self,
        request: Request<Streaming<ReplicaFrame>>,
    ) -> Result<Response<Self::ReplicateStream>, Status> {
        let incoming = request.into_inner();
        let (queue, frames) = links::frames();
        let osd = Arc::clone(&self.0);
        let stopped = osd.shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stopped.stopped() => {}
                () = read(osd, incoming, queue) => {}
            }
        });
        Ok(Response::new(Box::pin(frames.map(Ok))))
    }
}

async fn read(osd: Arc<Osd>, incoming: Streaming<ReplicaFrame>, queue: Queue) {
    let mut stream = None;
    read_on(&osd, incoming, queue, &mut stream).await;
    if let Some(stream) = stream {
        osd.links.ended(&stream).await;
    }
}

async fn read_on(
    osd: &Arc<Osd>,
    mut incoming: Streaming<ReplicaFrame>,
    queue: Queue,
    stream: &mut Option<links::Incoming>,
) {
    let mut queue = Some(queue);
    // A broken stream is opened again by the other side.
    while let Ok(Some(frame)) = incoming.message().await {
        for message in frame.messages {
            let envelope = match wire::from_proto(message) {
                Ok(envelope) => envelope,
                Err(error) => return tracing::warn!(%error, "another OSD sent what makes no sense"),
            };
            if envelope.to != osd.me || !envelope.message.body.is_from_primary() {
                // An address that was another OSD's before.
                return tracing::debug!(to = %envelope.to, "a replication stream for another OSD");
            }
            if let Some(queue) = queue.take() {
                *stream = Some(osd.links.opened(envelope.from, queue).await);
            }
            let Some(stream) = stream.as_ref().filter(|stream| stream.from == envelope.from) else { return };
            let Some(_turn) = stream.turn().await else { return };
            osd.deliver(envelope.pg, envelope.from, envelope.message).await;
        }
    }
}
