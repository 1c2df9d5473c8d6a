//! A rank that follows a script: what a correct one does, and what a hostile one might.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use pando_cluster_map::{ClusterMap, RankInfo, Subtree};
use pando_mon_client::MapWatch;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::session_service_server::{SessionService, SessionServiceServer};
use pando_proto::mds::{
    Caller, ClientFrame, Operation, OperationResult, ReclaimResponse, Replies, Reply, Request, ServerFrame, Welcome,
    client_frame, operation::Op, operation_result::Result as Answer, server_frame,
};
use pando_proto::{ClientId, Epoch, Error as ProtoError, Ino, Rank, Reason, SubtreeId};
use pando_rpc::{Net, Shutdown, SystemClock, TcpNet};
use tokio::sync::{mpsc, watch};
use tonic::{Response, Status, Streaming};

use crate::Client;
use crate::session::Core;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Streams count from 1.
    pub stream: usize,
    pub frame: usize,
    pub lowest: u64,
    pub request: Request,
}

/// What the script does about it.
pub enum Act {
    Answer(Answer),
    /// An answer under another number.
    AnswerTo(u64, Answer),
    Frame(server_frame::Frame),
    Break,
}

type Script = Box<dyn FnMut(&Seen) -> Vec<Act> + Send>;

struct Inner {
    script: Mutex<Script>,
    seen: watch::Sender<Vec<Seen>>,
    streams: AtomicUsize,
    frames: AtomicUsize,
    incarnation: AtomicU64,
    rank: u32,
    window: u32,
    refusal: Mutex<Option<Reason>>,
    refused: watch::Sender<u64>,
    /// Whether the script sees the last, empty Reclaim of each stream; else it is answered.
    scripts_last_reclaim: AtomicBool,
    dead: watch::Sender<bool>,
}

pub struct Fake {
    pub address: SocketAddr,
    inner: Arc<Inner>,
    shutdown: Shutdown,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shutdown.stop();
    }
}

impl Fake {
    pub async fn start(script: impl FnMut(&Seen) -> Vec<Act> + Send + 'static) -> Self {
        Self::start_rank(0, 64, script).await
    }

    pub async fn start_rank(rank: u32, window: u32, script: impl FnMut(&Seen) -> Vec<Act> + Send + 'static) -> Self {
        let net: Arc<dyn Net> = Arc::new(TcpNet);
        let listener = pando_rpc::bind(&net, "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local;
        let inner = Arc::new(Inner {
            script: Mutex::new(Box::new(script)),
            seen: watch::Sender::new(Vec::new()),
            streams: AtomicUsize::new(0),
            frames: AtomicUsize::new(0),
            incarnation: AtomicU64::new(1),
            rank,
            window,
            refusal: Mutex::new(None),
            refused: watch::Sender::new(0),
            scripts_last_reclaim: AtomicBool::new(false),
            dead: watch::Sender::new(false),
        });
        let shutdown = Shutdown::default();
        let service = SessionServiceServer::new(Service(Arc::clone(&inner)));
        let routes = tonic::service::Routes::new(service);
        tokio::spawn(pando_rpc::serve(listener, routes, shutdown.clone()));
        Self { address, inner, shutdown }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.inner.seen.borrow().clone()
    }

    /// Waits until the requests seen so far satisfy `enough`.
    pub async fn wait_seen(&self, enough: impl FnMut(&Vec<Seen>) -> bool) -> Vec<Seen> {
        let mut seen = self.inner.seen.subscribe();
        let waiting = seen.wait_for(enough);
        tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("within 10 s").unwrap().clone()
    }

    pub fn set_incarnation(&self, incarnation: u64) {
        self.inner.incarnation.store(incarnation, Ordering::SeqCst);
    }

    /// The script sees the empty Reclaims that end a client's start on a stream.
    pub fn script_last_reclaim(&self) {
        self.inner.scripts_last_reclaim.store(true, Ordering::SeqCst);
    }

    /// Refuses every stream from now on.
    pub fn refuse(&self, reason: Reason) {
        *self.inner.refusal.lock().unwrap() = Some(reason);
    }

    /// Waits until the client has come back after it was refused.
    pub async fn wait_refused(&self) {
        let mut refused = self.inner.refused.subscribe();
        let waiting = refused.wait_for(|streams| *streams > 1);
        tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("within 10 s").unwrap();
    }

    /// Breaks all streams, and refuses new ones.
    pub fn kill(&self) {
        self.refuse(Reason::Unavailable);
        self.inner.dead.send_replace(true);
    }

    /// A map with this rank alone, and a client that follows it.
    pub fn client(&self) -> (Client, watch::Sender<Arc<ClusterMap>>) {
        client(self.map(1))
    }

    pub fn rank(&self) -> Rank {
        Rank(self.inner.rank)
    }

    pub fn info(&self) -> RankInfo {
        RankInfo { address: self.address.to_string(), up: true, ..RankInfo::default() }
    }

    /// The map in which this rank owns the root.
    pub fn map(&self, epoch: u64) -> ClusterMap {
        map(epoch, &[self], &[Owned { owner: 0, epoch, ..Owned::root() }])
    }
}

/// A subtree as a test sees it.
#[derive(Clone, Copy, Debug)]
pub struct Owned {
    pub subtree: u64,
    pub root: u64,
    /// Index in the list of ranks.
    pub owner: usize,
    pub epoch: u64,
    pub route: u64,
    pub split_from: Option<u64>,
}

impl Owned {
    pub fn root() -> Self {
        Self { subtree: 1, root: 1, owner: 0, epoch: 1, route: 1, split_from: None }
    }
}

/// The map in which these ranks own these subtrees.
pub fn map(epoch: u64, ranks: &[&Fake], subtrees: &[Owned]) -> ClusterMap {
    let mut map = ClusterMap { epoch: Epoch(epoch), ..ClusterMap::default() };
    for rank in ranks {
        map.ranks.insert(rank.rank(), rank.info());
    }
    for owned in subtrees {
        let subtree = Subtree {
            root: Ino(owned.root),
            parent: (owned.subtree != 1).then_some(ROOT_SUBTREE),
            owner: ranks[owned.owner].rank(),
            epoch: Epoch(owned.epoch),
            route: owned.route,
            split_from: owned.split_from.map(|origin| (SubtreeId(origin), Epoch(owned.epoch))),
            ..Subtree::default()
        };
        map.subtrees.insert(SubtreeId(owned.subtree), subtree);
    }
    map
}

/// A client that follows a map which the test feeds.
pub fn client(map: ClusterMap) -> (Client, watch::Sender<Arc<ClusterMap>>) {
    let (watch, sender) = MapWatch::fixed(Arc::new(map));
    let net: Arc<dyn Net> = Arc::new(TcpNet);
    let core = Core::new(ClientId(7), net, Arc::new(SystemClock), watch, None, Shutdown::default());
    let client = Client::new(core, Caller::default(), Duration::from_secs(10));
    client.core().stay();
    (client, sender)
}

struct Service(Arc<Inner>);

#[tonic::async_trait]
impl SessionService for Service {
    type StreamStream = Pin<Box<dyn Stream<Item = Result<ServerFrame, Status>> + Send>>;

    async fn stream(
        &self,
        request: tonic::Request<Streaming<ClientFrame>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        if let Some(reason) = *self.0.refusal.lock().unwrap() {
            self.0.refused.send_modify(|streams| *streams += 1);
            return Err(ProtoError::new(reason, "by the script").to_tonic());
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move { inner.run(request.into_inner(), sender).await });
        let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|frame| (Ok(ServerFrame { frame: Some(frame) }), receiver))
        });
        Ok(Response::new(frames.boxed()))
    }
}

impl Inner {
    async fn run(&self, mut frames: Streaming<ClientFrame>, sender: mpsc::UnboundedSender<server_frame::Frame>) {
        let stream = self.streams.fetch_add(1, Ordering::SeqCst) + 1;
        let mut dead = self.dead.subscribe();
        loop {
            let frame = tokio::select! {
                frame = frames.message() => frame,
                _ = dead.wait_for(|dead| *dead) => return,
            };
            let Ok(Some(frame)) = frame else { return };
            match frame.frame {
                Some(client_frame::Frame::Hello(_)) => {
                    let welcome = Welcome {
                        rank: self.rank,
                        incarnation: self.incarnation.load(Ordering::SeqCst),
                        map_epoch: 1,
                        session_timeout_millis: 60_000,
                        window: self.window,
                    };
                    let _ = sender.send(server_frame::Frame::Welcome(welcome));
                }
                Some(client_frame::Frame::Requests(requests)) => {
                    let frame = self.frames.fetch_add(1, Ordering::SeqCst) + 1;
                    for request in requests.requests {
                        if !self.scripts_last_reclaim.load(Ordering::SeqCst) && is_last_reclaim(&request) {
                            reply(&sender, request.id, Answer::Reclaim(ReclaimResponse::default()));
                            continue;
                        }
                        let seen = Seen { stream, frame, lowest: requests.lowest_unanswered, request };
                        self.seen.send_modify(|all| all.push(seen.clone()));
                        if !self.act(&seen, &sender) {
                            return;
                        }
                    }
                }
                Some(client_frame::Frame::Echo(echo)) => {
                    let _ = sender.send(server_frame::Frame::Echo(echo));
                }
                _ => {}
            }
        }
    }

    fn act(&self, seen: &Seen, sender: &mpsc::UnboundedSender<server_frame::Frame>) -> bool {
        let acts = (self.script.lock().unwrap())(seen);
        for act in acts {
            let (id, answer) = match act {
                Act::Answer(answer) => (seen.request.id, answer),
                Act::AnswerTo(id, answer) => (id, answer),
                Act::Frame(frame) => {
                    let _ = sender.send(frame);
                    continue;
                }
                Act::Break => return false,
            };
            reply(sender, id, answer);
        }
        true
    }
}

fn reply(sender: &mpsc::UnboundedSender<server_frame::Frame>, id: u64, answer: Answer) {
    let result = Some(OperationResult { result: Some(answer) });
    let replies = Replies { map_epoch: 1, replies: vec![Reply { id, result }] };
    let _ = sender.send(server_frame::Frame::Replies(replies));
}

fn is_last_reclaim(request: &Request) -> bool {
    match &request.operation {
        Some(Operation { op: Some(Op::Reclaim(reclaim)) }) => reclaim.handles.is_empty(),
        _ => false,
    }
}
