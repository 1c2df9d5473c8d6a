//! One channel and at most one record stream per OSD address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::StreamExt as _;
use pando_mon_client::ClusterStamp;
use pando_proto::osd::record_service_client::RecordServiceClient;
use pando_proto::osd::{RecordFrame, RecordRequest, record_reply, record_request};
use pando_proto::{Error, MAX_MESSAGE_BYTES, Reason};
use pando_rpc::pipe::{Pipe, PipeReplies, pipe};
use pando_rpc::{Net, queue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use crate::retry::answered;

/// Requests that may wait to be sent to one OSD.
const PIPE_CAPACITY: usize = 4096;
const MAX_FRAME_REQUESTS: usize = 128;
/// A frame ends when it has so many bytes; a single request is smaller than the rest of the limit.
pub(crate) const FRAME_BYTES: usize = 4 << 20;

/// To an OSD; each call says which cluster is meant: its session, epochs and inodes mean something else in another one
/// (I10).
pub(crate) type OsdChannel = InterceptedService<Channel, ClusterStamp>;

pub(crate) type RecordPipe = Pipe<record_request::Call, record_reply::Result>;
type Slot = Arc<tokio::sync::Mutex<Option<RecordPipe>>>;

struct Connection {
    channel: Channel,
    pipe: Slot,
}

/// Shared by all clones of the clients.
pub(crate) struct Connections {
    net: Arc<dyn Net>,
    stamp: ClusterStamp,
    by_address: Mutex<BTreeMap<String, Arc<Connection>>>,
}

impl Connections {
    pub(crate) fn new(net: Arc<dyn Net>) -> Self {
        Self { net, stamp: ClusterStamp::default(), by_address: Mutex::default() }
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

    fn stamped(&self, channel: &Channel, cluster: &[u8; 16]) -> OsdChannel {
        self.stamp.bind(cluster);
        InterceptedService::new(channel.clone(), self.stamp.clone())
    }

    /// The channel to an OSD of `cluster`, for unary calls.
    pub(crate) fn channel(&self, address: &str, cluster: &[u8; 16]) -> Result<OsdChannel, Error> {
        Ok(self.stamped(&self.connection(address)?.channel, cluster))
    }

    /// The record stream to an OSD of `cluster`; opened if there is none, or if the last one broke.
    pub(crate) async fn records(&self, address: &str, cluster: &[u8; 16]) -> Result<RecordPipe, Error> {
        let connection = self.connection(address)?;
        let mut slot = connection.pipe.lock().await;
        if let Some(open) = slot.as_ref().filter(|open| !open.is_closed()) {
            return Ok(open.clone());
        }
        let opened = open_stream(self.stamped(&connection.channel, cluster)).await?;
        *slot = Some(opened.clone());
        Ok(opened)
    }
}

/// Requests in frames that the OSD's limit allows: else the stream breaks, and again when they are repeated together.
fn cut(requests: Vec<(u64, record_request::Call)>) -> impl Iterator<Item = RecordFrame> {
    let frames = queue::cut(requests, FRAME_BYTES, |(_, call)| call.encoded_len());
    frames.into_iter().map(|requests| RecordFrame {
        requests: requests.into_iter().map(|(id, call)| RecordRequest { id, call: Some(call) }).collect(),
    })
}

async fn open_stream(channel: OsdChannel) -> Result<RecordPipe, Error> {
    let (calls, requests, replies) = pipe(PIPE_CAPACITY, MAX_FRAME_REQUESTS);
    let frames = requests.flat_map(|requests| futures_util::stream::iter(cut(requests)));
    let mut client = RecordServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let incoming = client.stream(frames).await.map_err(|status| answered(&status))?.into_inner();
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
