//! Messages to the other mons: one task and one bounded queue for each. Loss is allowed; order is kept.
//!
//! Only the loss of a snapshot has to be told: after it Raft sends that peer nothing more until it hears what became of
//! it, and heartbeats do not change that. So whoever drops a message here asks first whether it is one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pando_proto::MAX_MESSAGE_BYTES;
use pando_proto::mon::DeliverRequest;
use pando_proto::mon::raft_service_client::RaftServiceClient;
use pando_rpc::Shutdown;
use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::node::Input;

/// Messages that may wait for a peer; more are dropped.
const QUEUE: usize = 512;
/// Messages in one call.
const BATCH: usize = 64;
/// A call ends before this size unless one message alone is larger.
const BATCH_BYTES: usize = 4 << 20;
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Wait after a failed call, so that a dead peer costs little.
const PAUSE: Duration = Duration::from_millis(50);

struct Peer {
    queue: mpsc::Sender<Message>,
    reachable: Arc<AtomicBool>,
}

/// The sending side of all peers.
pub(crate) struct Peers(BTreeMap<u64, Peer>);

/// What the sender tasks need besides their queue.
#[derive(Clone)]
pub(crate) struct Senders {
    pub(crate) channels: Arc<BTreeMap<u64, Channel>>,
    pub(crate) cluster: watch::Receiver<[u8; 16]>,
    pub(crate) inputs: mpsc::Sender<Input>,
    pub(crate) shutdown: Shutdown,
}

impl Peers {
    /// Starts a task for each channel.
    pub(crate) fn spawn(senders: &Senders, tasks: &mut JoinSet<()>) -> Self {
        let start = |(id, channel): (&u64, &Channel)| {
            let (queue, receiver) = mpsc::channel(QUEUE);
            let reachable = Arc::new(AtomicBool::new(true));
            let sender = Sender {
                to: *id,
                client: RaftServiceClient::new(channel.clone()).max_encoding_message_size(MAX_MESSAGE_BYTES),
                senders: senders.clone(),
                reachable: Arc::clone(&reachable),
            };
            tasks.spawn(sender.run(receiver));
            (*id, Peer { queue, reachable })
        };
        Self(senders.channels.iter().map(start).collect())
    }

    /// Queues a message, or drops it; names the peer if that was a snapshot, for Raft has to hear of it.
    #[must_use]
    pub(crate) fn send(&self, message: Message) -> Option<u64> {
        let (to, is_snapshot) = (message.to, is_snapshot(&message));
        let queued = self.0.get(&to).is_some_and(|peer| peer.queue.try_send(message).is_ok());
        if !queued {
            tracing::debug!(mon = to, "a message to another mon was dropped: its queue is full");
        }
        (is_snapshot && !queued).then_some(to)
    }

    /// Peers that did not answer lately.
    pub(crate) fn unreachable(&self) -> Vec<u64> {
        let silent = self.0.iter().filter(|(_, peer)| !peer.reachable.load(Ordering::Relaxed));
        silent.map(|(id, _)| *id).collect()
    }
}

struct Sender {
    to: u64,
    client: RaftServiceClient<Channel>,
    senders: Senders,
    reachable: Arc<AtomicBool>,
}

impl Sender {
    async fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let shutdown = self.senders.shutdown.clone();
        tokio::select! {
            () = shutdown.stopped() => {}
            () = self.send_all(&mut queue) => {}
        }
    }

    async fn send_all(&mut self, queue: &mut mpsc::Receiver<Message>) {
        let mut waiting: Vec<Message> = Vec::new();
        loop {
            if waiting.is_empty() && queue.recv_many(&mut waiting, BATCH).await == 0 {
                return;
            }
            let (batch, mut has_snapshot) = take_batch(&mut waiting);
            let sent = self.send_batch(batch).await;
            if !sent {
                // What came with it is dropped, too.
                has_snapshot |= waiting.drain(..).any(|message| is_snapshot(&message));
            }
            self.note(sent, has_snapshot).await;
            if !sent {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn send_batch(&mut self, messages: Vec<Bytes>) -> bool {
        let cluster = *self.senders.cluster.borrow();
        let cluster_id = if cluster == [0; 16] { Bytes::new() } else { Bytes::copy_from_slice(&cluster) };
        let call = self.client.deliver(DeliverRequest { cluster_id, messages });
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(_)) => true,
            Ok(Err(status)) => {
                let error = pando_proto::Error::from_tonic(&status);
                if error.reason == pando_proto::Reason::WrongCluster {
                    tracing::error!(mon = self.to, %error, "another mon refuses this one");
                } else {
                    tracing::debug!(mon = self.to, %error, "another mon cannot be reached");
                }
                false
            }
            Err(_) => false,
        }
    }

    async fn note(&self, sent: bool, has_snapshot: bool) {
        self.reachable.store(sent, Ordering::Relaxed);
        if has_snapshot {
            // Unless Raft hears of the failure it waits for that peer for ever.
            let _ = self.senders.inputs.send(Input::SnapshotSent { to: self.to, arrived: sent }).await;
        } else if !sent {
            let _ = self.senders.inputs.try_send(Input::Unreachable(self.to));
        }
    }
}

fn is_snapshot(message: &Message) -> bool {
    message.get_msg_type() == MessageType::MsgSnapshot
}

fn take_batch(waiting: &mut Vec<Message>) -> (Vec<Bytes>, bool) {
    let mut batch = Vec::new();
    let (mut bytes, mut has_snapshot, mut taken) = (0, false, 0);
    for message in waiting.iter() {
        let Ok(encoded) = message.write_to_bytes() else {
            taken += 1;
            has_snapshot |= is_snapshot(message);
            continue;
        };
        if !batch.is_empty() && bytes + encoded.len() > BATCH_BYTES {
            break;
        }
        taken += 1;
        bytes += encoded.len();
        has_snapshot |= is_snapshot(message);
        batch.push(Bytes::from(encoded));
    }
    waiting.drain(..taken);
    (batch, has_snapshot)
}

#[cfg(test)]
mod tests;
