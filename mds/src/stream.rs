//! The stream of a session: many requests a frame in, many replies a frame out.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use pando_mon_client::ClusterStamp;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::client_frame::Frame as Incoming;
use pando_proto::mds::server_frame::Frame as Outgoing;
use pando_proto::mds::session_service_server::{SessionService, SessionServiceServer};
use pando_proto::mds::{
    self, ClientFrame, Echo, Hello, KeepAlive, OperationResult, Replies, Requests, ServerFrame, Welcome,
};
use pando_proto::{ClientId, Epoch, Error, MAX_MESSAGE_BYTES, Reason, SubtreeId};
use pando_rpc::queue;
use prost::Message as _;
use tonic::{Request, Response, Status, Streaming};

use actix::dev::SendError;

use crate::rank::Shared;
use crate::session::{Concerned, Connection, Meter, OUTGOING, Out, WINDOW, stale_session};
use crate::subtree::{KeptAlive, Submit, error_result};

/// Items of one frame at most.
const FRAME_ITEMS: usize = 512;
/// A frame of replies closes when it is this large.
const FRAME_BYTES: usize = 1 << 20;
/// How long a request may wait for a map that the client has and the rank has not (R14).
const MAP_WAIT: Duration = Duration::from_secs(5);
/// The first frame comes within this time.
const HELLO_WAIT: Duration = Duration::from_secs(10);

/// The service of one rank.
pub(crate) struct Sessions(Arc<Shared>);

pub(crate) fn service(shared: &Arc<Shared>) -> SessionServiceServer<Sessions> {
    SessionServiceServer::new(Sessions(Arc::clone(shared)))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

#[tonic::async_trait]
impl SessionService for Sessions {
    type StreamStream = Frames;

    async fn stream(&self, request: Request<Streaming<ClientFrame>>) -> Result<Response<Frames>, Status> {
        let (sender, receiver) = queue::coalescing(OUTGOING, FRAME_ITEMS);
        let shared = Arc::clone(&self.0);
        let meter = Arc::new(Meter::new(Arc::clone(&shared.queued_bytes)));
        let (failed, broken) = tokio::sync::oneshot::channel();
        let frames = Frames {
            items: receiver,
            ready: VecDeque::new(),
            shared: Arc::clone(&shared),
            meter: Arc::clone(&meter),
            broken: Some(broken),
        };
        tokio::spawn(async move {
            let shutdown = shared.shutdown.clone();
            let ended = tokio::select! {
                ended = read(shared, request.into_inner(), sender, meter) => ended,
                () = shutdown.stopped() => Err(Error::new(Reason::Unavailable, "this rank is stopping")),
            };
            if let Err(error) = ended {
                let _ = failed.send(error);
            }
        });
        Ok(Response::new(frames))
    }
}

/// Reads frames until the client ends its half. Replies under way still leave.
async fn read(
    shared: Arc<Shared>,
    mut incoming: Streaming<ClientFrame>,
    sender: queue::Sender<Out>,
    meter: Arc<Meter>,
) -> Result<(), Error> {
    let hello = tokio::time::timeout(HELLO_WAIT, next(&mut incoming)).await;
    let hello = hello.map_err(|_| Error::new(Reason::Timeout, "the stream begins with a hello"))?;
    let Some(Incoming::Hello(hello)) = hello? else {
        return Err(Error::new(Reason::InvalidRequest, "the first frame of a stream is a hello"));
    };
    let client = greet(&shared, &hello).await?;
    let connection = Arc::new(Connection::new(client, sender, meter));
    shared.sessions.attach(&connection, shared.clock.boottime());
    connection.send(Out::Frame(frame(Outgoing::Welcome(welcome(&shared)))));
    // Replies under way still leave when this ends.
    loop {
        let frame = tokio::select! {
            frame = next(&mut incoming) => frame?,
            () = connection.replaced() => return Err(replaced()),
        };
        let Some(frame) = frame else { break };
        shared.sessions.heard(client, shared.clock.boottime());
        take(&shared, &connection, frame).await?;
        if connection.is_closed() {
            break;
        }
        if connection.has_lost() {
            return Err(not_reading());
        }
    }
    Ok(())
}

async fn next(incoming: &mut Streaming<ClientFrame>) -> Result<Option<Incoming>, Error> {
    let frame = incoming.message().await.map_err(|status| Error::from_tonic(&status))?;
    frame
        .map(|frame| frame.frame.ok_or_else(|| Error::new(Reason::InvalidRequest, "a frame of an unknown kind")))
        .transpose()
}

/// Checks who is there (R9, R14).
async fn greet(shared: &Shared, hello: &Hello) -> Result<ClientId, Error> {
    let map = catch_up(shared, hello.map_epoch).await?;
    if hello.cluster_id.is_empty() {
        return Err(Error::new(Reason::InvalidRequest, "a Hello names the cluster that is meant: it is empty"));
    }
    if hello.cluster_id[..] != map.cluster_id[..] {
        return Err(other_cluster());
    }
    let client = ClientId(hello.client_id);
    if !map.session_is_live(client) {
        return Err(stale_session().with_epoch(map.epoch.0));
    }
    shared.sessions.heard(client, shared.clock.boottime());
    Ok(client)
}

fn other_cluster() -> Error {
    Error::new(Reason::WrongCluster, "this rank belongs to another cluster: check the addresses")
}

/// Of calls without a Hello: other ranks name the cluster that they mean, people and their tools need not (I10).
pub(crate) fn check_cluster(
    shared: &Arc<Shared>,
) -> impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone + use<> {
    let shared = Arc::clone(shared);
    move |request| {
        let named = ClusterStamp::of(&request);
        if named.is_empty() || named[..] == shared.map.current().cluster_id[..] {
            return Ok(request);
        }
        Err(other_cluster().into())
    }
}

async fn catch_up(shared: &Shared, epoch: u64) -> Result<Arc<pando_cluster_map::ClusterMap>, Error> {
    let map = shared.map.current();
    if map.epoch.0 >= epoch {
        return Ok(map);
    }
    shared.map.wait_for(Epoch(epoch), MAP_WAIT).await
}

fn welcome(shared: &Shared) -> Welcome {
    let map = shared.map.current();
    Welcome {
        rank: shared.rank.0,
        incarnation: shared.incarnation,
        map_epoch: map.epoch.0,
        session_timeout_millis: map.setting_u64(pando_cluster_map::settings::SESSION_TIMEOUT_MILLIS),
        window: WINDOW as u32,
    }
}

async fn take(shared: &Arc<Shared>, connection: &Arc<Connection>, incoming: Incoming) -> Result<(), Error> {
    match incoming {
        Incoming::Requests(requests) => submit(shared, connection, requests).await,
        Incoming::Echo(echo) => {
            // The floor of the transport: the same frames, queue and batching as requests.
            for item in echo.items {
                if !connection.send(Out::Echo(item)) {
                    return Err(not_reading());
                }
            }
            Ok(())
        }
        Incoming::KeepAlive(alive) => {
            keep_alive(shared, connection, alive.lowest_unanswered).await;
            Ok(())
        }
        Incoming::Hello(_) => Err(Error::new(Reason::InvalidRequest, "a second hello")),
    }
}

/// What is confirmed is confirmed to all (R9), but few are concerned. A session that is waited for is told so: it has
/// not heard yet that the subtree was opened anew, or has not come to it since (R19).
async fn keep_alive(shared: &Shared, connection: &Connection, lowest_unanswered: u64) {
    let client = connection.client;
    let Concerned { behind, awaited } = shared.sessions.confirm(client, lowest_unanswered);
    let awaiting = awaited.into_iter().map(|subtree| subtree.0).collect();
    let answer = KeepAlive { map_epoch: shared.map.current().epoch.0, awaiting, ..KeepAlive::default() };
    connection.send(Out::Frame(frame(Outgoing::KeepAlive(answer))));
    for subtree in behind {
        let Some(served) = shared.served(subtree) else { continue };
        if let Err(SendError::Full(kept_alive)) = served.address.try_send(KeptAlive(client)) {
            // This stream waits, and so its client. An actor that has ended remembers nothing.
            let _ = served.address.send(kept_alive).await;
        }
    }
}

async fn submit(shared: &Arc<Shared>, connection: &Arc<Connection>, requests: Requests) -> Result<(), Error> {
    if requests.map_epoch > shared.map.current().epoch.0
        && let Err(error) = catch_up(shared, requests.map_epoch).await
    {
        refuse(connection, &requests.requests, &error_result(&error));
        return Ok(());
    }
    let Requests { lowest_unanswered, requests, .. } = requests;
    let mut rest = requests;
    while let Some(first) = rest.first() {
        // Most frames are for one subtree.
        let asked = first.subtree;
        let (these, others) = if rest.iter().all(|request| request.subtree == asked) {
            (rest, Vec::new())
        } else {
            rest.into_iter().partition(|request| request.subtree == asked)
        };
        hand_in(shared, connection, asked_subtree(asked), lowest_unanswered, these).await?;
        rest = others;
    }
    Ok(())
}

/// 0 is the root subtree.
fn asked_subtree(subtree: u64) -> SubtreeId {
    if subtree == 0 { ROOT_SUBTREE } else { SubtreeId(subtree) }
}

/// Gives requests to the actor of their subtree.
async fn hand_in(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    subtree: SubtreeId,
    lowest_unanswered: u64,
    requests: Vec<mds::Request>,
) -> Result<(), Error> {
    let submit = Submit { connection: Arc::clone(connection), lowest_unanswered, requests };
    let Some(served) = shared.served(subtree) else {
        shared.submit_absent(subtree, submit);
        return Ok(());
    };
    match served.address.try_send(submit) {
        Ok(()) => Ok(()),
        // The mailbox is full: this stream waits, and so its client.
        Err(SendError::Full(submit)) => served.address.send(submit).await.map_err(|_| moved()),
        Err(SendError::Closed(submit)) => {
            shared.submit_absent(subtree, submit);
            Ok(())
        }
    }
}

pub(crate) fn refuse(connection: &Connection, requests: &[mds::Request], result: &OperationResult) {
    let bytes = result.encoded_len();
    for request in requests {
        connection.reply(request.id, result.clone(), bytes);
    }
}

fn moved() -> Error {
    Error::new(Reason::Unavailable, "the subtree was given up meanwhile: connect again")
}

fn replaced() -> Error {
    Error::new(Reason::Unavailable, "a later stream of this session has taken the place of this one")
}

fn not_reading() -> Error {
    Error::new(Reason::Overloaded, "the client does not read its replies")
}

fn frame(frame: Outgoing) -> ServerFrame {
    ServerFrame { frame: Some(frame) }
}

/// The frames of a connection: whatever waits leaves together.
pub(crate) struct Frames {
    items: queue::Receiver<Out>,
    ready: VecDeque<ServerFrame>,
    shared: Arc<Shared>,
    meter: Arc<Meter>,
    /// Why the reading half ended, if it failed.
    broken: Option<tokio::sync::oneshot::Receiver<Error>>,
}

impl Frames {
    fn pack(&mut self, items: Vec<Out>) {
        let map_epoch = self.shared.map.current().epoch.0;
        let (mut replies, mut echoes, mut bytes) = (Vec::new(), Vec::new(), 0);
        for item in items {
            match item {
                Out::Reply(reply, size) => {
                    bytes += size;
                    self.meter.sent(size);
                    replies.push(reply);
                    if bytes >= FRAME_BYTES {
                        let replies = std::mem::take(&mut replies);
                        self.ready.push_back(frame(Outgoing::Replies(Replies { map_epoch, replies })));
                        bytes = 0;
                    }
                }
                Out::Echo(item) => echoes.push(item),
                Out::Frame(frame) => self.ready.push_back(frame),
            }
        }
        if !replies.is_empty() {
            self.ready.push_back(frame(Outgoing::Replies(Replies { map_epoch, replies })));
        }
        if !echoes.is_empty() {
            self.ready.push_back(frame(Outgoing::Echo(Echo { items: echoes })));
        }
    }

    /// The error of the reading half, once it has failed.
    fn failure(&mut self, cx: &mut Context<'_>) -> Option<Error> {
        let broken = self.broken.as_mut()?;
        match Pin::new(broken).poll(cx) {
            Poll::Pending => None,
            Poll::Ready(ended) => {
                self.broken = None;
                ended.ok()
            }
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.meter.ended();
    }
}

impl Stream for Frames {
    type Item = Result<ServerFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if let Some(error) = self.failure(cx) {
                return Poll::Ready(Some(Err(error.to_tonic())));
            }
            match Pin::new(&mut self.items).poll_next(cx) {
                Poll::Ready(Some(items)) => self.pack(items),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
