use std::collections::BTreeMap;
use std::sync::OnceLock;

use pando_cluster_map::{ClusterMap, Osd as MapOsd, Pg as MapPg, Pool};
use pando_mon_client::{MapWatch, MonClient};
use pando_osd_core::{Body, Message};
use pando_proto::osd::replication_service_server::{ReplicationService, ReplicationServiceServer};
use pando_proto::{Epoch, PgId, PoolId};
use pando_rpc::{Lease, Shutdown, SystemClock, TcpNet};
use tonic::{Request, Response, Status, Streaming};

use super::*;
use crate::engine::memory::MemoryEngine;
use crate::engine::{Engine, GroupCommit, ReadPool};
use crate::pg::MapView;

const DEADLINE: Duration = Duration::from_secs(20);
const PG: PgId = PgId { pool: PoolId(1), index: 0 };
const ME: OsdId = OsdId(1);
const OTHER: OsdId = OsdId(2);

/// The OSD [`ME`], as it would be with this other one.
fn osd(other: &str) -> Arc<Osd> {
    let address = |address: &str| MapOsd { address: address.to_owned(), up: true, ..MapOsd::default() };
    let map = Arc::new(ClusterMap {
        epoch: Epoch(1),
        osds: BTreeMap::from([(ME, address("127.0.0.1:1")), (OTHER, address(other))]),
        pools: BTreeMap::from([(PG.pool, Pool { size: 2, min_size: 2, pg_count: 1, ..Pool::default() })]),
        pgs: BTreeMap::from([(PG, MapPg { config: 1, members: vec![OTHER, ME], ..MapPg::default() })]),
        ..ClusterMap::default()
    });
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new(1 << 20));
    let net: Arc<dyn Net> = Arc::new(TcpNet);
    Arc::new(Osd {
        me: ME,
        commits: GroupCommit::inline(Arc::clone(&engine), Duration::ZERO),
        reads: ReadPool::inline(engine),
        lease: Arc::new(Lease::new(Arc::new(SystemClock))),
        full: Arc::default(),
        map: MapWatch::fixed(Arc::clone(&map)).0,
        mon: MonClient::new(Arc::clone(&net), vec!["127.0.0.1:1".to_owned()]).unwrap(),
        links: Links::new(net),
        shutdown: Shutdown::default(),
        header_cache: 16,
        room: Arc::new(tokio::sync::Semaphore::new(1024)),
        failure: Arc::new(OnceLock::new()),
        pgs: dashmap::DashMap::default(),
        view: Mutex::new(MapView::new(map)),
    })
}

/// Serves until the returned sign.
async fn serve(routes: tonic::service::Routes) -> (String, Shutdown) {
    let net: Arc<dyn Net> = Arc::new(TcpNet);
    let listener = pando_rpc::bind(&net, ([127, 0, 0, 1], 0).into()).await.unwrap();
    let (address, shutdown) = (listener.local.to_string(), Shutdown::default());
    tokio::spawn(pando_rpc::serve(listener, routes, shutdown.clone()));
    (address, shutdown)
}

fn probe(config: u64, ticket: u64) -> ReplicaMessage {
    wire::to_proto(PG, OTHER, ME, Message { config, body: Body::Probe { ticket } })
}

/// Opens a stream as [`OTHER`].
async fn open(address: &str) -> (Queue, Streaming<ReplicaFrame>) {
    let channel = pando_rpc::channel(&(Arc::new(TcpNet) as Arc<dyn Net>), address).unwrap();
    let (queue, frames) = frames();
    let replies = ReplicationServiceClient::new(channel).replicate(frames).await.unwrap().into_inner();
    (queue, replies)
}

async fn next(replies: &mut Streaming<ReplicaFrame>) -> Option<Vec<Message>> {
    let frame = tokio::time::timeout(DEADLINE, replies.message()).await.expect("something comes").unwrap();
    frame.map(|frame| frame.messages.into_iter().map(|message| wire::from_proto(message).unwrap().message).collect())
}

#[tokio::test]
async fn our_side_of_a_stream_ends_with_theirs_and_a_newer_stream_ends_the_older() {
    let osd = osd("127.0.0.1:1");
    let (address, shutdown) = serve(crate::services::routes(&osd).await).await;
    let (first, mut replies) = open(&address).await;
    first.push(probe(1, 7)).unwrap();
    let answer = next(&mut replies).await.expect("a position");
    assert!(matches!(answer[..], [Message { config: 1, body: Body::Position { ticket: 7, .. } }]), "{answer:?}");
    drop(first);
    assert_eq!(next(&mut replies).await, None, "the reply stream ends too");

    let (second, mut of_second) = open(&address).await;
    second.push(probe(1, 8)).unwrap();
    assert!(next(&mut of_second).await.is_some());
    let (third, mut of_third) = open(&address).await;
    third.push(probe(1, 9)).unwrap();
    assert!(next(&mut of_third).await.is_some());
    // Late: would be a promise of configuration 2.
    second.push(probe(2, 10)).unwrap();
    assert_eq!(next(&mut of_second).await, None);
    third.push(probe(1, 11)).unwrap();
    let answer = next(&mut of_third).await.expect("a position");
    assert!(matches!(answer[..], [Message { config: 1, body: Body::Position { ticket: 11, .. } }]), "{answer:?}");
    osd.shutdown.stop();
    shutdown.stop();
}

/// Takes streams, and neither reads nor answers.
struct Deaf(tokio::sync::mpsc::UnboundedSender<Streaming<ReplicaFrame>>);

#[tonic::async_trait]
impl ReplicationService for Deaf {
    type ReplicateStream = futures_util::stream::Pending<Result<ReplicaFrame, Status>>;

    async fn replicate(
        &self,
        request: Request<Streaming<ReplicaFrame>>,
    ) -> Result<Response<Self::ReplicateStream>, Status> {
        self.0.send(request.into_inner()).unwrap();
        Ok(Response::new(futures_util::stream::pending()))
    }
}

#[tokio::test]
async fn a_stream_whose_queue_is_full_is_opened_again() {
    let (streams, mut opened) = tokio::sync::mpsc::unbounded_channel();
    let routes = pando_rpc::standard_routes("pando.osd.v1").await;
    let (address, shutdown) = serve(routes.add_service(ReplicationServiceServer::new(Deaf(streams)))).await;
    let osd = osd(&address);
    let message = || wire::to_proto(PG, ME, OTHER, Message { config: 1, body: Body::Probe { ticket: 1 } });
    osd.links.send(&osd, OTHER, message());
    let _first = tokio::time::timeout(DEADLINE, opened.recv()).await.expect("a stream").unwrap();
    let flood = async {
        while opened.is_empty() {
            for _ in 0..1000 {
                osd.links.send(&osd, OTHER, message());
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, flood).await.expect("a second stream");
    osd.shutdown.stop();
    shutdown.stop();
}
