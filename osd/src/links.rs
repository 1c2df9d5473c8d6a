//! Streams to other OSDs. Ours carries what our placement groups say as primaries, and brings the answers;
//! theirs brings what they say as primaries, and carries our answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use pando_mon_client::ClusterStamp;
use pando_proto::osd::replication_service_client::ReplicationServiceClient;
use pando_proto::osd::{ReplicaFrame, ReplicaMessage};
use pando_proto::{MAX_MESSAGE_BYTES, OsdId};
use pando_rpc::{Net, queue};
use prost::Message as _;
use tokio::sync::oneshot;

use crate::pg::Input;
use crate::pgs::Osd;
use crate::wire;

/// Messages that may wait to be sent to one OSD; then the stream is broken and begun anew.
const QUEUE: usize = 32 << 10;
const MAX_FRAME_MESSAGES: usize = 256;
/// A frame ends when it has so many bytes; a single message is smaller than the rest of the limit.
pub(crate) const FRAME_BYTES: usize = 4 << 20;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const OPEN: Duration = Duration::from_secs(3);

type Queue = queue::Sender<ReplicaMessage>;

/// The streams of one OSD.
pub(crate) struct Links {
    net: Arc<dyn Net>,
    stamp: ClusterStamp,
    /// Our streams; `None` while one is not open.
    ours: Mutex<BTreeMap<OsdId, Option<Ours>>>,
    /// The newest stream that each other OSD opened to us.
    theirs: Mutex<BTreeMap<OsdId, Theirs>>,
}

/// A stream that we opened; it ends when this is dropped, whatever the other side does.
struct Ours {
    queue: Queue,
    _gone: oneshot::Sender<()>,
}

/// Streams from another OSD.
#[derive(Default)]
struct Theirs {
    /// Carries our answers; `None` while no stream is open.
    queue: Option<Queue>,
    /// Number of the newest stream; held while messages are delivered.
    newest: Arc<tokio::sync::Mutex<u64>>,
}

/// A stream that another OSD opened to us.
pub(crate) struct Incoming {
    pub from: OsdId,
    newest: Arc<tokio::sync::Mutex<u64>>,
    number: u64,
}

impl Incoming {
    /// To be held while messages of this stream are delivered; `None` once a newer one was opened. So nothing of an old
    /// stream comes after the first message of the next: its order would be broken.
    pub async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, u64>> {
        let newest = self.newest.lock().await;
        (*newest == self.number).then_some(newest)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue of messages to another OSD, and the frames that carry them.
pub(crate) fn frames() -> (Queue, impl futures_util::Stream<Item = ReplicaFrame> + Send + 'static) {
    let (sender, receiver) = queue::coalescing(QUEUE, MAX_FRAME_MESSAGES);
    let frames = receiver.flat_map(|messages| futures_util::stream::iter(cut(messages)));
    (sender, frames)
}

fn cut(messages: Vec<ReplicaMessage>) -> impl Iterator<Item = ReplicaFrame> {
    let frames = queue::cut(messages, FRAME_BYTES, ReplicaMessage::encoded_len);
    frames.into_iter().map(|messages| ReplicaFrame { messages })
}

impl Links {
    pub fn new(net: Arc<dyn Net>) -> Self {
        Self { net, stamp: ClusterStamp::default(), ours: Mutex::default(), theirs: Mutex::default() }
    }

    /// Sends over our stream; lost if it is not open: what matters is sent again when it is.
    pub fn send(&self, osd: &Arc<Osd>, to: OsdId, message: ReplicaMessage) {
        let mut ours = lock(&self.ours);
        match ours.get(&to) {
            Some(Some(open)) => {
                if open.queue.push(message).is_err() {
                    // Too much waits, or it broke: the stream ends with its queue.
                    ours.insert(to, None);
                }
            }
            Some(None) => {}
            None => {
                ours.insert(to, None);
                tokio::spawn(keep_open(Arc::clone(osd), to));
            }
        }
    }

    /// Sends over the other's stream.
    pub fn answer(&self, to: OsdId, message: ReplicaMessage) {
        if let Some(queue) = lock(&self.theirs).get(&to).and_then(|theirs| theirs.queue.as_ref()) {
            let _ = queue.push(message);
        }
    }

    /// Another OSD opened a stream to us.
    pub async fn opened(&self, by: OsdId, queue: Queue) -> Incoming {
        let newest = Arc::clone(&lock(&self.theirs).entry(by).or_default().newest);
        let mut last = newest.lock().await;
        *last += 1;
        let number = *last;
        if let Some(theirs) = lock(&self.theirs).get_mut(&by) {
            theirs.queue = Some(queue);
        }
        drop(last);
        Incoming { from: by, newest, number }
    }

    /// A stream to us ended: our side of it ends with its queue, so that the other side learns of it.
    pub async fn ended(&self, stream: &Incoming) {
        if stream.turn().await.is_some()
            && let Some(theirs) = lock(&self.theirs).get_mut(&stream.from)
        {
            theirs.queue = None;
        }
    }

    /// All streams end.
    pub fn close(&self) {
        lock(&self.ours).clear();
        lock(&self.theirs).clear();
    }
}

/// Opens a stream to another OSD, again and again.
async fn keep_open(osd: Arc<Osd>, to: OsdId) {
    let stopped = osd.shutdown.clone();
    let opening = async {
        let mut pause = FIRST_PAUSE;
        loop {
            let begun = tokio::time::Instant::now();
            if let Err(error) = one_stream(&osd, to).await {
                tracing::debug!(%to, %error, "the stream to another OSD broke");
            }
            if begun.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    };
    tokio::select! {
        () = stopped.stopped() => {}
        () = opening => {}
    }
}

async fn one_stream(osd: &Arc<Osd>, to: OsdId) -> Result<(), pando_proto::Error> {
    let map = osd.map.current();
    let Some(address) = map.osds.get(&to).map(|found| found.address.clone()) else { return Ok(()) };
    // Ids of OSDs are no proof: each cluster has an osd.1.
    osd.links.stamp.bind(&map.cluster_id);
    let channel = pando_rpc::channel(&osd.links.net, &address)?;
    let mut client = ReplicationServiceClient::with_interceptor(channel, osd.links.stamp.clone())
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let (queue, frames) = frames();
    let opened = tokio::time::timeout(OPEN, client.replicate(frames)).await;
    let mut replies = match opened {
        Ok(opened) => opened?.into_inner(),
        Err(_) => return Ok(()),
    };
    let (gone, ends) = oneshot::channel();
    lock(&osd.links.ours).insert(to, Some(Ours { queue, _gone: gone }));
    tell(osd, to, true).await;
    let broken = tokio::select! {
        broken = read_answers(osd, to, &mut replies) => broken,
        // `send` gave it up: nothing that is sent can arrive any more.
        _ = ends => Ok(()),
    };
    lock(&osd.links.ours).insert(to, None);
    tell(osd, to, false).await;
    broken
}

async fn read_answers(
    osd: &Arc<Osd>,
    to: OsdId,
    replies: &mut tonic::Streaming<ReplicaFrame>,
) -> Result<(), pando_proto::Error> {
    while let Some(frame) = replies.message().await? {
        for message in frame.messages {
            let envelope = wire::from_proto(message)?;
            if envelope.from == to && envelope.to == osd.me && !envelope.message.body.is_from_primary() {
                osd.deliver(envelope.pg, to, envelope.message).await;
            }
        }
    }
    Ok(())
}

async fn tell(osd: &Arc<Osd>, other: OsdId, up: bool) {
    for sender in osd.senders() {
        let _ = sender.send(Input::Peer(other, up)).await;
    }
}

#[cfg(test)]
mod tests;
