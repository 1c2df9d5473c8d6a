//! `pando.osd.v1.RecordService`.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt as _;
use pando_proto::osd::record_service_server::RecordService;
use pando_proto::osd::{
    CommitRequest, CommitResponse, GetRequest, GetResponse, RaiseFenceRequest, RaiseFenceResponse, RecordFrame,
    RecordReply, RecordReplyFrame, ScanRequest, ScanResponse,
};
use pando_proto::{Error, PgId, Reason};
use pando_rpc::queue;
use prost::Message as _;
use tonic::{Request, Response, Status, Streaming};

use super::check::Checked;
use super::{Replies, check, mismatch, unary};
use crate::links::FRAME_BYTES;
use crate::pg::{Answer, Client, Responder};
use crate::pgs::Osd;

/// Replies that may wait for a client to read them; it repeats requests whose replies are lost beyond that.
const REPLIES: usize = 64 << 10;
const MAX_FRAME_REPLIES: usize = 512;

pub(crate) struct Records(pub Arc<Osd>);

/// Replies in frames that the client's limit allows.
fn cut(replies: Vec<RecordReply>) -> Vec<Result<RecordReplyFrame, Status>> {
    let mut frames = Vec::with_capacity(1);
    let mut frame = RecordReplyFrame { replies: Vec::with_capacity(replies.len()) };
    let mut bytes = 0;
    for reply in replies {
        let weight = reply.encoded_len();
        if bytes > 0 && bytes + weight > FRAME_BYTES {
            frames.push(Ok(std::mem::take(&mut frame)));
            bytes = 0;
        }
        bytes += weight;
        frame.replies.push(reply);
    }
    frames.push(Ok(frame));
    frames
}

impl Records {
    /// Sorts a frame's requests by placement group, and hands each group its share.
    async fn frame(&self, frame: RecordFrame, replies: &queue::Sender<RecordReply>) {
        let view = self.0.view();
        let mut checked = Vec::with_capacity(frame.requests.len());
        let mut bytes = 0;
        for request in frame.requests {
            let responder = Responder::Stream(replies.clone(), request.id);
            let call = request.call.ok_or_else(|| Error::new(Reason::InvalidRequest, "a request without a call"));
            match call.and_then(|call| check::record(&view.map, call)) {
                Ok(request) => {
                    bytes += request.bytes;
                    checked.push((request, responder));
                }
                Err(error) => responder.answer(Err(error)),
            }
        }
        let room = match self.0.room(bytes) {
            Ok(room) => room,
            Err(error) => return checked.into_iter().for_each(|(_, responder)| responder.answer(Err(error.clone()))),
        };
        let mut shares: BTreeMap<PgId, Vec<Client>> = BTreeMap::new();
        for (Checked { pg, map_epoch, call, .. }, responder) in checked {
            shares.entry(pg).or_default().push(Client { map_epoch, call, responder, room: Arc::clone(&room) });
        }
        for (pg, requests) in shares {
            self.0.dispatch(pg, requests).await;
        }
    }
}

#[tonic::async_trait]
impl RecordService for Records {
    type StreamStream = Replies<RecordReplyFrame>;

    async fn stream(&self, request: Request<Streaming<RecordFrame>>) -> Result<Response<Self::StreamStream>, Status> {
        let mut frames = request.into_inner();
        let (sender, receiver) = queue::coalescing(REPLIES, MAX_FRAME_REPLIES);
        let records = Self(Arc::clone(&self.0));
        let stopped = self.0.shutdown.clone();
        tokio::spawn(async move {
            let reading = async {
                // The client hears of a broken stream from its own side.
                while let Ok(Some(frame)) = frames.message().await {
                    records.frame(frame, &sender).await;
                }
            };
            tokio::select! {
                () = stopped.stopped() => {}
                () = reading => {}
            }
        });
        Ok(Response::new(Box::pin(receiver.flat_map(|replies| futures_util::stream::iter(cut(replies))))))
    }

    async fn commit(&self, request: Request<CommitRequest>) -> Result<Response<CommitResponse>, Status> {
        let call = check::commit(&self.0.view().map, request.into_inner());
        match unary(&self.0, call).await? {
            Answer::Commit(response) => Ok(Response::new(response)),
            _ => Err(mismatch()),
        }
    }

    async fn raise_fence(&self, request: Request<RaiseFenceRequest>) -> Result<Response<RaiseFenceResponse>, Status> {
        let call = check::raise_fence(&self.0.view().map, request.get_ref());
        match unary(&self.0, call).await? {
            Answer::RaiseFence(response) => Ok(Response::new(response)),
            _ => Err(mismatch()),
        }
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let call = check::get(&self.0.view().map, request.into_inner());
        match unary(&self.0, call).await? {
            Answer::Get(response) => Ok(Response::new(response)),
            _ => Err(mismatch()),
        }
    }

    async fn scan(&self, request: Request<ScanRequest>) -> Result<Response<ScanResponse>, Status> {
        let call = check::scan(&self.0.view().map, request.get_ref());
        match unary(&self.0, call).await? {
            Answer::Scan(response) => Ok(Response::new(response)),
            _ => Err(mismatch()),
        }
    }
}
