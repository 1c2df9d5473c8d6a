//! Against a scripted OSD: what a dropped mutation leaves behind (R22).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::{ClusterMap, Osd, Pg, Pool};
use pando_mon_client::MapWatch;
use pando_proto::ids::DATA_POOL;
use pando_proto::osd::object_service_server::{ObjectService, ObjectServiceServer};
use pando_proto::osd::{
    ListRequest, ListResponse, Mutation, ObjectId, ReadRequest, ReadResponse, StatRequest, StatResponse, TrimKind,
    TrimRequest, TrimResponse, WriteRequest, WriteResponse,
};
use pando_proto::{ClientId, Error, OsdId, PgId, Reason};
use pando_rpc::{Net, Shutdown, TcpNet};
use tokio::sync::watch;
use tonic::{Code, Request, Response, Status};

use crate::ObjectClient;

/// A mutation as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    object: ObjectId,
    mutation: Mutation,
    /// `None`: a trim that changes nothing.
    data: Option<Bytes>,
}

type Script = Box<dyn FnMut(&Seen) -> Act + Send>;

enum Act {
    Answer,
    Refuse(Reason),
    /// An error that the transport made up.
    Break(Code),
    /// No answer until the caller goes.
    Hold,
}

struct Fake {
    script: Mutex<Script>,
    seen: watch::Sender<Vec<Seen>>,
}

impl Fake {
    async fn judge(&self, seen: Seen) -> Result<(), Status> {
        let act = (self.script.lock().unwrap())(&seen);
        self.seen.send_modify(|all| all.push(seen));
        match act {
            Act::Answer => Ok(()),
            Act::Refuse(reason) => Err(Error::new(reason, "by the script").to_tonic()),
            Act::Break(code) => Err(Status::new(code, "h2 protocol error")),
            Act::Hold => std::future::pending().await,
        }
    }
}

struct Service(Arc<Fake>);

#[tonic::async_trait]
impl ObjectService for Service {
    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let WriteRequest { object, mutation, data, .. } = request.into_inner();
        self.0.judge(Seen { object: object.unwrap(), mutation: mutation.unwrap(), data: Some(data) }).await?;
        Ok(Response::new(WriteResponse { size: 1 }))
    }

    async fn trim(&self, request: Request<TrimRequest>) -> Result<Response<TrimResponse>, Status> {
        let request = request.into_inner();
        assert_eq!((request.kind(), request.length), (TrimKind::Zero, 0));
        let TrimRequest { object, mutation, .. } = request;
        self.0.judge(Seen { object: object.unwrap(), mutation: mutation.unwrap(), data: None }).await?;
        Ok(Response::new(TrimResponse {}))
    }

    async fn read(&self, _: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn stat(&self, _: Request<StatRequest>) -> Result<Response<StatResponse>, Status> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn list(&self, _: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        Err(Status::unimplemented("not in these tests"))
    }
}

struct Rig {
    fake: Arc<Fake>,
    client: ObjectClient,
    /// Ends it.
    session: Shutdown,
    _map: watch::Sender<Arc<ClusterMap>>,
    shutdown: Shutdown,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shutdown.stop();
    }
}

impl Rig {
    async fn start(pgs: u32, script: impl FnMut(&Seen) -> Act + Send + 'static) -> Self {
        let net: Arc<dyn Net> = Arc::new(TcpNet);
        let listener = pando_rpc::bind(&net, "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let fake = Arc::new(Fake { script: Mutex::new(Box::new(script)), seen: watch::Sender::default() });
        let mut map = ClusterMap::default();
        let address = listener.local.to_string();
        map.osds.insert(OsdId(1), Osd { address, up: true, ..Osd::default() });
        map.pools.insert(DATA_POOL, Pool { pg_count: pgs, ..Pool::default() });
        for index in 0..pgs {
            map.pgs.insert(PgId { pool: DATA_POOL, index }, Pg { members: vec![OsdId(1)], ..Pg::default() });
        }
        let shutdown = Shutdown::default();
        let routes = tonic::service::Routes::new(ObjectServiceServer::new(Service(Arc::clone(&fake))));
        tokio::spawn(pando_rpc::serve(listener, routes, shutdown.clone()));
        let (watch, _map) = MapWatch::fixed(Arc::new(map));
        let session = Shutdown::default();
        let client = ObjectClient::new(net, watch, ClientId(7), session.clone());
        Self { fake, client, session, _map, shutdown }
    }

    async fn wait_seen(&self, enough: impl FnMut(&Vec<Seen>) -> bool) -> Vec<Seen> {
        let mut seen = self.fake.seen.subscribe();
        let waiting = seen.wait_for(enough);
        tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("within 10 s").unwrap().clone()
    }

    /// Of each copy that arrived: its number, and whether it is more than nothing.
    fn numbers(&self) -> Vec<(u64, bool)> {
        self.fake.seen.borrow().iter().map(|seen| (seen.mutation.sequence, seen.data.is_some())).collect()
    }

    /// Starts a write, and drops it once the OSD has it.
    async fn abandon(&self, object: ObjectId, data: &'static str) {
        let client = self.client.clone();
        let write = tokio::spawn(async move { client.write(object, 1, 0, data.into()).await });
        self.wait_seen(|seen| seen.iter().any(|seen| seen.data.as_deref() == Some(data.as_bytes()))).await;
        write.abort();
        assert!(write.await.is_err());
    }
}

fn object(index: u64) -> ObjectId {
    ObjectId { pool: DATA_POOL.0, ino: 9, index }
}

#[tokio::test]
async fn r22_a_dropped_write_is_called_off_before_a_later_one_begins() {
    let mut refusals = 3;
    let rig = Rig::start(1, move |seen| match &seen.data {
        Some(data) if data == "slow" || data == "dropped" => Act::Hold,
        None if refusals > 0 => {
            refusals -= 1;
            Act::Refuse(Reason::Unavailable)
        }
        _ => Act::Answer,
    })
    .await;
    let slow = tokio::spawn({
        let client = rig.client.clone();
        async move { client.write(object(1), 1, 0, Bytes::from_static(b"slow")).await }
    });
    rig.wait_seen(|seen| !seen.is_empty()).await;
    rig.abandon(object(2), "dropped").await;
    // Another object does not wait.
    rig.client.write(object(3), 1, 0, Bytes::from_static(b"other")).await.unwrap();
    rig.client.write(object(2), 1, 0, Bytes::from_static(b"later")).await.unwrap();
    let seen = rig.fake.seen.borrow().clone();
    let dropped = seen.iter().find(|seen| seen.data.as_deref() == Some(b"dropped")).unwrap();
    let nothings: Vec<_> = seen.iter().filter(|seen| seen.data.is_none()).collect();
    assert_eq!(nothings.len(), 4, "repeated until definite");
    assert!(nothings.iter().all(|seen| seen.mutation == dropped.mutation && seen.object == dropped.object));
    let later = seen.last().unwrap();
    assert_eq!((later.data.as_deref(), later.mutation.low_water), (Some(&b"later"[..]), 1), "the slow one is open");
    // What the OSD remembers keeps a late copy out: the number is among the done ones.
    assert!(later.mutation.sequence > dropped.mutation.sequence);
    slow.abort();
}

#[tokio::test]
async fn r22_a_refusal_of_one_copy_does_not_settle_an_earlier_one() {
    for reason in [Reason::NoSpace, Reason::Corrupt, Reason::TooLarge, Reason::InvalidRequest] {
        let mut answers = [Act::Refuse(Reason::Unavailable), Act::Refuse(reason)].into_iter();
        let rig = Rig::start(1, move |_| answers.next().unwrap_or(Act::Answer)).await;
        let refused = rig.client.write(object(1), 1, 0, Bytes::from_static(b"one")).await.unwrap_err();
        assert_eq!(refused.reason, reason);
        rig.client.write(object(1), 1, 0, Bytes::from_static(b"two")).await.unwrap();
        assert_eq!(rig.numbers(), [(1, true), (1, true), (1, false), (2, true)]);
    }
}

#[tokio::test]
async fn r22_a_calling_off_ends_only_with_what_meets_every_copy() {
    let acts = || {
        let passing =
            [Reason::Corrupt, Reason::TooLarge, Reason::NoSpace, Reason::InvalidRequest, Reason::WrongCluster];
        let passing = passing.map(Act::Refuse).into_iter();
        passing.chain([Code::ResourceExhausted, Code::Unimplemented, Code::OutOfRange, Code::DataLoss].map(Act::Break))
    };
    let ends_with = |last| async move {
        let mut ends = acts().chain([last]);
        let rig = Rig::start(1, move |seen| match &seen.data {
            Some(data) if data == "dropped" => Act::Hold,
            None => ends.next().unwrap_or(Act::Answer),
            _ => Act::Answer,
        })
        .await;
        rig.abandon(object(1), "dropped").await;
        rig.client.write(object(1), 1, 0, Bytes::from_static(b"later")).await.unwrap();
        rig.numbers().iter().filter(|(_, has_data)| !has_data).count()
    };
    let lasts = [Act::Answer, Act::Refuse(Reason::StaleGeneration), Act::Refuse(Reason::StaleSession)];
    assert_eq!(futures_util::future::join_all(lasts.map(ends_with)).await, [acts().count() + 1; 3]);
}

#[tokio::test]
async fn r7_what_the_transport_says_is_no_outcome() {
    let codes = [Code::ResourceExhausted, Code::OutOfRange, Code::DataLoss, Code::Unimplemented, Code::InvalidArgument];
    let mut answers = codes.into_iter().map(Act::Break);
    let rig = Rig::start(1, move |_| answers.next().unwrap_or(Act::Answer)).await;
    rig.client.write(object(1), 1, 0, Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(rig.numbers(), [(1, true); 6]);
}

#[tokio::test]
async fn what_no_message_can_hold_is_refused_and_not_sent() {
    let rig = Rig::start(1, |_| Act::Answer).await;
    let refused = rig.client.write(object(1), 1, 0, Bytes::from(vec![0; 17 << 20])).await.unwrap_err();
    assert_eq!(refused.reason, Reason::TooLarge);
    assert!(rig.fake.seen.borrow().is_empty());
}

#[tokio::test]
async fn r22_a_client_of_a_cluster_that_is_gone_ends_with_its_session() {
    let rig = Rig::start(1, |seen| match &seen.data {
        Some(data) if data == "dropped" => Act::Hold,
        _ => Act::Refuse(Reason::WrongCluster),
    })
    .await;
    rig.abandon(object(1), "dropped").await;
    let write = |index, data| {
        let client = rig.client.clone();
        tokio::spawn(async move { client.write(object(index), 1, 0, Bytes::from_static(data)).await })
    };
    // One is repeated, one waits for the number that is called off.
    let (repeated, waiting) = (write(2, b"repeated"), write(1, b"waiting"));
    let is = |seen: &Seen, data: Option<&[u8]>| seen.data.as_deref() == data;
    let often = |seen: &Vec<Seen>, data| seen.iter().filter(|seen| is(seen, data)).count() > 2;
    rig.wait_seen(|seen| often(seen, Some(b"repeated")) && often(seen, None)).await;
    rig.session.stop();
    for write in [repeated, waiting] {
        let ended = tokio::time::timeout(Duration::from_secs(10), write).await.expect("it ends").unwrap();
        assert_eq!(ended.unwrap_err().reason, Reason::StaleSession);
    }
    // Given up by its task, and taken on by none.
    let given_up = async {
        while !rig.client.sequences().has_orphans() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), given_up).await.expect("it ends");
    rig.client.call_off_abandoned();
    assert!(rig.client.sequences().has_orphans());
}

#[tokio::test]
async fn a_write_that_was_never_sent_leaves_nothing() {
    let rig = Rig::start(1, |_| Act::Answer).await;
    let nowhere = ObjectClient::new(Arc::new(TcpNet), MapWatch::fixed(down()).0, ClientId(7), Shutdown::default());
    let write = nowhere.write(object(1), 1, 0, Bytes::from_static(b"x"));
    assert!(tokio::time::timeout(Duration::from_millis(50), write).await.is_err());
    assert!(!nowhere.sequences().has_orphans());
    assert_eq!(nowhere.sequences().lowest_open(|_| true), None);
    assert!(rig.fake.seen.borrow().is_empty());
}

/// A map whose only PG has nobody.
fn down() -> Arc<ClusterMap> {
    let mut map = ClusterMap::default();
    map.pools.insert(DATA_POOL, Pool { pg_count: 1, ..Pool::default() });
    Arc::new(map)
}

#[test]
fn r22_a_number_whose_runtime_ends_before_it_is_called_off_stays_open() {
    let build = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (serving, first) = (build(), build());
    let rig = serving.block_on(Rig::start(1, |seen| match &seen.data {
        Some(data) if data == "dropped" => Act::Hold,
        _ => Act::Answer,
    }));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = std::thread::spawn(move || serving.block_on(stopped));
    let client = rig.client.clone();
    first.spawn(async move { client.write(object(1), 1, 0, Bytes::from_static(b"dropped")).await });
    first.block_on(rig.wait_seen(|seen| !seen.is_empty()));
    drop(first);
    let orphans = rig.client.sequences().take_orphans();
    assert_eq!(orphans.iter().map(|begun| begun.number).collect::<Vec<_>>(), [1]);
    assert_eq!(rig.client.sequences().lowest_open(|_| true), Some(1));
    drop(stop);
    let _ = server.join();
}

#[tokio::test]
async fn each_pg_has_its_own_low_water_mark() {
    let rig = Rig::start(8, |seen| match &seen.data {
        Some(data) if data == "slow" => Act::Hold,
        _ => Act::Answer,
    })
    .await;
    let slow = tokio::spawn({
        let client = rig.client.clone();
        async move { client.write(object(0), 1, 0, Bytes::from_static(b"slow")).await }
    });
    rig.wait_seen(|seen| !seen.is_empty()).await;
    for index in 1..40 {
        rig.client.write(object(index), 1, 0, Bytes::from_static(b"x")).await.unwrap();
    }
    let seen = rig.fake.seen.borrow().clone();
    let marks: BTreeSet<bool> = seen[1..].iter().map(|seen| seen.mutation.low_water == 1).collect();
    assert_eq!(marks.len(), 2, "held back in the PG of the slow one, nowhere else");
    assert!(seen[1..].iter().all(|seen| [1, seen.mutation.sequence].contains(&seen.mutation.low_water)));
    slow.abort();
}
