//! One channel and at most one record stream per OSD address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::StreamExt as _;
use pando_proto::osd::record_service_client::RecordServiceClient;
use pando_proto::osd::{RecordFrame, RecordRequest, record_reply, record_request};
use pando_proto::{Error, MAX_MESSAGE_BYTES, Reason};
use pando_rpc::Net;
use pando_rpc::pipe::{Pipe, PipeReplies, pipe};
use tonic::transport::Channel;

/// Requests that may wait to be sent to one OSD.
const PIPE_CAPACITY: usize = 4096;
const MAX_FRAME_REQUESTS: usize = 128;

pub(crate) type RecordPipe = Pipe<record_request::Call, record_reply::Result>;
type Slot = Arc<tokio::sync::Mutex<Option<RecordPipe>>>;

struct Connection {
    channel: Channel,
    pipe: Slot,
}

/// Shared by all clones of the clients.
pub(crate) struct Connections {
    net: Arc<dyn Net>,
    by_address: Mutex<BTreeMap<String, Arc<Connection>>>,
}

impl Connections {
    pub(crate) fn new(net: Arc<dyn Net>) -> Self {
        Self { net, by_address: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Connection>>> {
        self.by_address.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn connection(&self, address: &str) -> Result<Arc<Connection>, Error> {
        if let Some(known) = self.lock().get(address) {
            return Ok(Arc::clone(known));
        }
        let channel = pando_rpc::channel(&self.net, address)?;
        let connection = Arc::new(Connection { channel, pipe: Slot::default() });
        Ok(Arc::clone(self.lock().entry(address.to_owned()).or_insert(connection)))
    }

    /// The channel to an OSD, for unary calls.
    pub(crate) fn channel(&self, address: &str) -> Result<Channel, Error> {
        Ok(self.connection(address)?.channel.clone())
    }

    /// The record stream to an OSD; opened if there is none, or if the last one broke.
    pub(crate) async fn records(&self, address: &str) -> Result<RecordPipe, Error> {
        let connection = self.connection(address)?;
        let mut slot = connection.pipe.lock().await;
        if let Some(open) = slot.as_ref().filter(|open| !open.is_closed()) {
            return Ok(open.clone());
        }
        let opened = open_stream(connection.channel.clone()).await?;
        *slot = Some(opened.clone());
        Ok(opened)
    }
}

async fn open_stream(channel: Channel) -> Result<RecordPipe, Error> {
    let (calls, requests, replies) = pipe(PIPE_CAPACITY, MAX_FRAME_REQUESTS);
    let frames = requests.map(|requests: Vec<(u64, record_request::Call)>| RecordFrame {
        requests: requests.into_iter().map(|(id, call)| RecordRequest { id, call: Some(call) }).collect(),
    });
    let mut client = RecordServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let incoming = client.stream(frames).await?.into_inner();
    tokio::spawn(read_replies(incoming, replies));
    Ok(calls)
}

async fn read_replies(
    mut incoming: tonic::Streaming<pando_proto::osd::RecordReplyFrame>,
    replies: PipeReplies<record_request::Call, record_reply::Result>,
) {
    loop {
        match incoming.message().await {
            Ok(Some(frame)) => {
                for reply in frame.replies {
                    let result = match reply.result {
                        Some(record_reply::Result::Error(status)) => Err(Error::from_rpc_status(status)),
                        Some(result) => Ok(result),
                        None => Err(Error::new(Reason::Unavailable, "the OSD sent a reply without a result")),
                    };
                    replies.complete(reply.id, result);
                }
            }
            Ok(None) => return,
            Err(status) => {
                tracing::debug!(%status, "record stream to an OSD broke");
                return;
            }
        }
    }
}
