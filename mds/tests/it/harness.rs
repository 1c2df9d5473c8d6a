//! A rank on loopback and clients that speak its stream.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::{ClusterMap, Pool, RankInfo, Session, Subtree};
use pando_mds::io::Outside;
use pando_mds::{Handle, Parts, serve};
use pando_mon_client::MapWatch;
use pando_proto::ids::{DATA_POOL, METADATA_POOL, ROOT_SUBTREE};
use pando_proto::mds::client_frame::Frame as Up;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Reply;
use pando_proto::mds::server_frame::Frame as Down;
use pando_proto::mds::session_service_client::SessionServiceClient;
use pando_proto::mds::{self, ClientFrame, Hello, Operation, Request, Requests, ServerFrame, Target, Welcome};
use pando_proto::{ClientId, Epoch, Error, Ino, Rank, Reason, SubtreeId};
use pando_rpc::{Env, Lease};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::fake::{FakeMons, FakeObjects, FakeRecords, Takers};

/// No test waits longer for anything.
const DEADLINE: Duration = Duration::from_secs(20);

/// Runs a test on the kind of runtime that a rank needs.
pub fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let outcome = local.block_on(&runtime, async { tokio::time::timeout(DEADLINE, test).await });
    outcome.expect("the test did not end in time");
}

/// What survives a crash of the rank.
#[derive(Clone, Default)]
pub struct World {
    pub records: FakeRecords,
    pub objects: FakeObjects,
    pub mons: FakeMons,
    pub peers: Takers,
    pub inline_limit: Option<u64>,
}

pub struct TestRank {
    pub handle: Handle,
    pub map: watch::Sender<Arc<ClusterMap>>,
    pub lease: Arc<Lease>,
    env: Env,
    address: SocketAddr,
}

/// A map in which rank 0 owns everything and clients 1 to 9 have sessions.
fn map(world: &World, generation: u64) -> ClusterMap {
    let pool = |name: &str| Pool { name: name.to_owned(), size: 1, min_size: 1, pg_count: 8 };
    let owner = Subtree {
        root: Ino::ROOT,
        parent: None,
        owner: Rank(0),
        epoch: Epoch(generation),
        path_hint: vec![],
        move_id: 0,
        ..Default::default()
    };
    let rank =
        RankInfo { address: String::new(), up: true, incarnation: generation, boot_id: vec![], ..Default::default() };
    let settings = world.inline_limit.map(|limit| ("inline_limit".to_owned(), limit.to_string()));
    ClusterMap {
        cluster_id: [7; 16],
        epoch: Epoch(100 * generation),
        pools: BTreeMap::from([(METADATA_POOL, pool("metadata")), (DATA_POOL, pool("data"))]),
        ranks: BTreeMap::from([(Rank(0), rank)]),
        subtrees: BTreeMap::from([(ROOT_SUBTREE, owner)]),
        sessions: (1..10).map(|client| (ClientId(client), Session::default())).collect(),
        next_client_id: 10,
        settings: settings.into_iter().collect(),
        ..ClusterMap::default()
    }
}

pub fn change(map: &watch::Sender<Arc<ClusterMap>>, change: impl FnOnce(&mut ClusterMap)) {
    map.send_modify(|map| {
        let mut next = ClusterMap::clone(map);
        change(&mut next);
        next.epoch = Epoch(next.epoch.0 + 1);
        *map = Arc::new(next);
    });
}

impl TestRank {
    /// Starts the rank's `generation`th process.
    pub async fn start(world: &World, generation: u64, cache_bytes: u64) -> Self {
        let env = Env::system();
        let (watch, map) = MapWatch::fixed(Arc::new(map(world, generation)));
        let lease = Arc::new(Lease::new(Arc::clone(&env.clock)));
        lease.renew(env.clock.boottime(), Duration::from_secs(3600));
        let outside = Outside {
            records: Rc::new(world.records.clone()),
            objects: Rc::new(world.objects.clone()),
            mons: Rc::new(world.mons.clone()),
            peers: Rc::new(world.peers.clone()),
        };
        let parts = Parts {
            rank: Rank(0),
            incarnation: generation,
            map: watch,
            lease: Arc::clone(&lease),
            outside,
            cache_bytes,
            loads: Arc::new(pando_mds::load::Loads::new(Arc::clone(&env.clock), None)),
        };
        let listener = pando_rpc::bind(&env.net, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        *world.mons.map.borrow_mut() = Some(map.clone());
        let handle = serve(parts, listener, env.clone()).await;
        let address = handle.address();
        Self { handle, map, lease, env, address }
    }

    /// The process ends; what was under way is lost.
    pub async fn stop(self) {
        self.env.shutdown.stop();
        self.handle.join().await;
    }

    pub fn change_map(&self, what: impl FnOnce(&mut ClusterMap)) {
        change(&self.map, what);
    }

    pub async fn connect(&self, client: u64) -> Client {
        Client::open(self, client).await.unwrap()
    }

    pub async fn channel(&self) -> tonic::transport::Channel {
        pando_rpc::channel(&self.env.net, &self.address.to_string()).unwrap()
    }
}

/// One stream of a session.
pub struct Client {
    up: mpsc::Sender<ClientFrame>,
    down: tonic::Streaming<ServerFrame>,
    pub welcome: Welcome,
    next: u64,
    pub lowest: u64,
    ready: BTreeMap<u64, Reply>,
    others: Vec<Down>,
    /// Of the root subtree, in the map of when the stream was opened.
    subtree_epoch: u64,
    /// By which way it comes to second targets, and where that leads (R16).
    pub second_way: (u64, SubtreeId),
}

impl Client {
    pub async fn open(rank: &TestRank, client: u64) -> Result<Self, Error> {
        let (up, frames) = mpsc::channel(64);
        let hello = Hello { cluster_id: Bytes::copy_from_slice(&[7; 16]), client_id: client, map_epoch: 0 };
        up.send(ClientFrame { frame: Some(Up::Hello(hello)) }).await.unwrap();
        let mut service = SessionServiceClient::new(rank.channel().await);
        let mut down = service.stream(ReceiverStream::new(frames)).await?.into_inner();
        let Some(ServerFrame { frame: Some(Down::Welcome(welcome)) }) = down.message().await? else {
            panic!("no welcome");
        };
        // Numbers go on rising when a session comes back to the rank's next process.
        let next = welcome.incarnation * 400;
        let subtree_epoch = rank.map.borrow().root_subtree().map_or(0, |root| root.epoch.0);
        let (ready, others) = (BTreeMap::new(), Vec::new());
        Ok(Self { up, down, welcome, next, lowest: 0, ready, others, subtree_epoch, second_way: (0, SubtreeId(0)) })
    }

    /// Knows the rank's map from now on.
    pub fn learn(&mut self, rank: &TestRank) {
        self.subtree_epoch = rank.map.borrow().root_subtree().map_or(0, |root| root.epoch.0);
    }

    /// Sends operations in one frame; their numbers.
    pub async fn send(&mut self, operations: Vec<Op>) -> Vec<u64> {
        let ids: Vec<u64> = (self.next..).take(operations.len()).collect();
        self.next += operations.len() as u64;
        let requests = ids.iter().zip(operations).map(|(id, op)| self.request(*id, op, false)).collect();
        self.frame(requests).await;
        ids
    }

    /// Sends one to another subtree than that of the root.
    pub async fn send_to(&mut self, subtree: SubtreeId, op: Op) -> u64 {
        let id = self.next;
        self.next += 1;
        let request = Request { subtree: subtree.0, subtree_epoch: 1, ..self.request(id, op, false) };
        self.frame(vec![request]).await;
        id
    }

    /// Sends one that is meant for this subtree and epoch.
    pub async fn send_for(&mut self, (to_subtree, to_epoch): (u64, u64), op: Op) -> u64 {
        let id = self.next;
        self.next += 1;
        self.frame(vec![Request { to_subtree, to_epoch, ..self.request(id, op, false) }]).await;
        id
    }

    /// Numbers go on from here.
    pub fn skip_to(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// The rank has ended the stream, or does now.
    pub async fn ended(&mut self) -> bool {
        while let Ok(Some(frame)) = self.down.message().await {
            self.keep(frame);
        }
        true
    }

    /// Sends a request and a copy of it in one frame.
    pub async fn send_twice(&mut self, op: Op) -> u64 {
        let id = self.next;
        self.next += 1;
        self.frame(vec![self.request(id, op.clone(), false), self.request(id, op, true)]).await;
        id
    }

    /// Sends one under a number of the test's choice, as a repetition.
    pub async fn repeat(&mut self, id: u64, op: Op) {
        self.next = self.next.max(id + 1);
        self.frame(vec![self.request(id, op, true)]).await;
    }

    async fn frame(&mut self, requests: Vec<Request>) {
        // As clients do: what is unanswered stays within the window (R9).
        let lowest_unanswered = self.lowest.max(self.next.saturating_sub(1000));
        let requests = Requests { lowest_unanswered, map_epoch: 0, requests };
        self.up.send(ClientFrame { frame: Some(Up::Requests(requests)) }).await.unwrap();
    }

    pub async fn raw(&mut self, frame: Up) {
        self.up.send(ClientFrame { frame: Some(frame) }).await.unwrap();
    }

    /// The next frame that is no reply.
    pub async fn next_frame(&mut self) -> Result<Option<Down>, Error> {
        Ok(self.down.message().await?.and_then(|frame| frame.frame))
    }

    pub async fn reply(&mut self, id: u64) -> Reply {
        loop {
            if let Some(reply) = self.ready.remove(&id) {
                return reply;
            }
            let frame = self.down.message().await.expect("the stream works").expect("the stream goes on");
            self.keep(frame);
        }
    }

    /// Both replies to a request that was sent twice.
    pub async fn two_replies(&mut self, id: u64) -> (Reply, Reply) {
        let mut replies = Vec::new();
        while replies.len() < 2 {
            let frame = self.down.message().await.expect("the stream works").expect("the stream goes on");
            if let Some(Down::Replies(frame)) = frame.frame {
                let ours = frame.replies.into_iter().filter(|reply| reply.id == id);
                replies.extend(ours.map(|reply| reply.result.unwrap().result.unwrap()));
            }
        }
        let second = replies.remove(1);
        (replies.remove(0), second)
    }

    /// Frames without replies that came while replies were waited for.
    pub fn others(&mut self) -> Vec<Down> {
        std::mem::take(&mut self.others)
    }

    fn keep(&mut self, frame: ServerFrame) {
        match frame.frame {
            Some(Down::Replies(replies)) => {
                for reply in replies.replies {
                    let before = self.ready.insert(reply.id, reply.result.unwrap().result.unwrap());
                    assert!(before.is_none(), "request {} is answered twice", reply.id);
                }
            }
            other => self.others.extend(other),
        }
    }

    /// Whether nothing but silence comes, as far as one round trip of an echo shows.
    pub async fn is_unanswered(&mut self, id: u64) -> bool {
        for _ in 0..3 {
            let echo = mds::Echo { items: vec![mds::EchoItem { id: 1, payload: Bytes::new() }] };
            self.raw(Up::Echo(echo)).await;
            loop {
                let frame = self.down.message().await.unwrap().unwrap();
                if matches!(frame.frame, Some(Down::Echo(_))) {
                    break;
                }
                self.keep(frame);
            }
        }
        !self.ready.contains_key(&id)
    }

    fn request(&self, id: u64, op: Op, retry: bool) -> Request {
        Request {
            id,
            subtree: 1,
            subtree_epoch: self.subtree_epoch,
            retry,
            operation: Some(Operation { op: Some(op) }),
            second_route: self.second_way.0,
            second_subtree: self.second_way.1.0,
            ..Default::default()
        }
    }

    pub async fn call(&mut self, op: Op) -> Result<Reply, Error> {
        // A rank that is just taking over says so: try again under a new number.
        loop {
            let ids = self.send(vec![op.clone()]).await;
            match result(self.reply(ids[0]).await) {
                Err(error) if error.retry_after.is_some() => tokio::time::sleep(Duration::from_millis(5)).await,
                other => return other,
            }
        }
    }

    /// The same, again and again while the rank believes that the pool is full (I9).
    pub async fn call_when_there_is_room(&mut self, op: Op) -> Result<Reply, Error> {
        loop {
            match self.call(op.clone()).await {
                Err(error) if error.reason == Reason::NoSpace => tokio::time::sleep(Duration::from_millis(5)).await,
                other => return other,
            }
        }
    }
}

/// An error reply as an error.
pub fn result(reply: Reply) -> Result<Reply, Error> {
    match reply {
        Reply::Error(status) => Err(Error::from_rpc_status(status)),
        other => Ok(other),
    }
}

pub fn at(path: &str) -> Option<Target> {
    Some(Target { base: 0, path: Bytes::copy_from_slice(path.as_bytes()) })
}

pub fn root() -> Option<mds::Caller> {
    Some(mds::Caller::default())
}

pub fn write_file(path: &str, data: &[u8]) -> Op {
    let flags = mds::OpenFlag::Create as u32 | mds::OpenFlag::Truncate as u32;
    let data = Bytes::copy_from_slice(data);
    Op::WriteFile(mds::WriteFileRequest { caller: root(), target: at(path), flags, mode: 0o644, data })
}

pub fn create_new(path: &str) -> Op {
    let flags = mds::OpenFlag::Create as u32 | mds::OpenFlag::Exclusive as u32;
    Op::WriteFile(mds::WriteFileRequest { caller: root(), target: at(path), flags, mode: 0o644, data: Bytes::new() })
}

pub fn read_file(path: &str) -> Op {
    Op::ReadFile(mds::ReadFileRequest { caller: root(), target: at(path) })
}

pub fn stat(path: &str) -> Op {
    Op::Stat(mds::StatRequest { caller: root(), target: at(path), follow: false })
}

pub fn mkdir(path: &str) -> Op {
    Op::Mkdir(mds::MkdirRequest { caller: root(), target: at(path), mode: 0o755 })
}

pub fn unlink(path: &str) -> Op {
    Op::Unlink(mds::UnlinkRequest { caller: root(), target: at(path) })
}

pub fn open(path: &str, handle: u64, flags: &[mds::OpenFlag]) -> Op {
    let flags = flags.iter().map(|flag| *flag as u32).sum();
    let (caller, target) = (root(), at(path));
    Op::Open(mds::OpenRequest { caller, target, handle, flags, mode: 0o644, want_body: false, size_hint: 0 })
}

pub fn body_of(reply: Reply) -> Option<Bytes> {
    match reply {
        Reply::ReadFile(reply) => reply.body,
        other => panic!("no body in {other:?}"),
    }
}
