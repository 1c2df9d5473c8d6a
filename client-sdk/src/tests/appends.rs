//! Appends to a file that is cut meanwhile (R22, R23).

use std::sync::{Arc, Mutex};

use pando_cluster_map::{ClusterMap, Osd, Pg, Pool};
use pando_proto::ids::DATA_POOL;
use pando_proto::mds::{
    Attr, DataHome, GrantSizeResponse, OpenResponse, Placement, ReportSizeResponse, WriteResponse, operation::Op,
    operation_result::Result as Answer,
};
use pando_proto::osd::object_service_server::{ObjectService, ObjectServiceServer};
use pando_proto::osd::{
    ListRequest, ListResponse, ReadRequest, ReadResponse, StatRequest, StatResponse, TrimRequest, TrimResponse,
    WriteRequest,
};
use pando_proto::{Error as ProtoError, OsdId, PgId, Reason};
use pando_rpc::{Net, Shutdown, TcpNet};
use tonic::{Request, Response, Status};

use super::fake::{self, Act, Fake, Seen};
use super::{attr, correct, op};
use crate::{Client, File, OpenOptions};

/// (generation, offset, data)
type Written = (u64, u64, String);

/// An OSD whose objects were trimmed under a generation.
#[derive(Clone)]
struct Objects {
    trimmed: u64,
    written: Arc<Mutex<Vec<Written>>>,
}

#[tonic::async_trait]
impl ObjectService for Objects {
    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<pando_proto::osd::WriteResponse>, Status> {
        let WriteRequest { mutation, offset, data, .. } = request.into_inner();
        let generation = mutation.unwrap().generation;
        if generation < self.trimmed {
            return Err(ProtoError::new(Reason::StaleGeneration, "trimmed").to_tonic());
        }
        self.written.lock().unwrap().push((generation, offset, String::from_utf8(data.to_vec()).unwrap()));
        Ok(Response::new(pando_proto::osd::WriteResponse { size: 1 }))
    }

    async fn trim(&self, _: Request<TrimRequest>) -> Result<Response<TrimResponse>, Status> {
        Err(Status::unimplemented("not in these tests"))
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

struct Osds {
    objects: Objects,
    address: String,
    shutdown: Shutdown,
}

impl Drop for Osds {
    fn drop(&mut self) {
        self.shutdown.stop();
    }
}

impl Osds {
    async fn start(trimmed: u64) -> Self {
        let net: Arc<dyn Net> = Arc::new(TcpNet);
        let listener = pando_rpc::bind(&net, "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (address, shutdown) = (listener.local.to_string(), Shutdown::default());
        let objects = Objects { trimmed, written: Arc::default() };
        let routes = tonic::service::Routes::new(ObjectServiceServer::new(objects.clone()));
        tokio::spawn(pando_rpc::serve(listener, routes, shutdown.clone()));
        Self { objects, address, shutdown }
    }

    fn add_to(&self, mut map: ClusterMap) -> ClusterMap {
        map.osds.insert(OsdId(1), Osd { address: self.address.clone(), up: true, ..Osd::default() });
        map.pools.insert(DATA_POOL, Pool { pg_count: 1, ..Pool::default() });
        map.pgs.insert(PgId { pool: DATA_POOL, index: 0 }, Pg { members: vec![OsdId(1)], ..Pg::default() });
        map
    }

    fn written(&self) -> Vec<Written> {
        self.objects.written.lock().unwrap().clone()
    }
}

/// The file after so many cuts, each of which has changed it for good.
fn state(cuts: u64, size: u64) -> (Option<Attr>, Option<Placement>) {
    let placement = Placement {
        home: DataHome::Objects.into(),
        inline_version: 1,
        generation: 1 + 2 * cuts,
        pool: DATA_POOL.0,
        object_size: 1 << 20,
        max_size: 1 << 20,
        truncate_seq: cuts,
    };
    (Some(Attr { size, version: 1 + cuts, ..attr() }), Some(placement))
}

fn appended(cuts: u64, offset: u64) -> Answer {
    let (attr, placement) = state(cuts, offset);
    Answer::Write(WriteResponse { written: false, attr, placement, offset })
}

/// What a correct rank says of a file that was cut so often.
fn answer(seen: &Seen, cuts: u64, end: u64) -> Answer {
    let (attr, placement) = state(cuts, end);
    match op(seen) {
        Op::Open(_) => Answer::Open(OpenResponse { attr, placement, ..OpenResponse::default() }),
        Op::Write(_) => appended(cuts, end),
        Op::ReportSize(_) => Answer::ReportSize(ReportSizeResponse { attr, placement }),
        _ => correct(seen),
    }
}

async fn opened(client: &Client) -> Arc<File> {
    Arc::new(OpenOptions::new().append(true).open(client, "/log").await.unwrap())
}

fn append(file: &Arc<File>, data: &'static str) -> tokio::task::JoinHandle<crate::Result<u64>> {
    let file = Arc::clone(file);
    tokio::spawn(async move { file.append_at_end(data).await })
}

fn writes(seen: &[Seen]) -> Vec<u64> {
    seen.iter().filter(|seen| matches!(op(seen), Op::Write(_))).map(|seen| seen.request.id).collect()
}

/// The first append is given offset 100; the file is cut to 10; the second is given that. The answers arrive in the
/// other order. `trimmed`: whether the OSD has heard of the cut when the first one writes.
async fn a_late_answer(trimmed: u64) -> Vec<Written> {
    let osds = Osds::start(trimmed).await;
    let (mut first, mut count) = (0, 0);
    let fake = Fake::start(move |seen| {
        let is_append = matches!(op(seen), Op::Write(_));
        count += u32::from(is_append);
        match (is_append, count) {
            (false, 0) => vec![Act::Answer(answer(seen, 0, 100))],
            (true, 1) => {
                first = seen.request.id;
                vec![]
            }
            (true, 2) => vec![Act::Answer(appended(1, 10))],
            // The second one is over.
            (false, 2) => vec![Act::Answer(answer(seen, 1, 16)), Act::AnswerTo(first, appended(0, 100))],
            (true, 3) => vec![Act::Answer(appended(1, 16))],
            _ => vec![Act::Answer(answer(seen, 1, 21))],
        }
    })
    .await;
    let (client, _map) = fake::client(osds.add_to(fake.map(1)));
    let file = opened(&client).await;
    let late = append(&file, "first");
    fake.wait_seen(|seen| writes(seen).len() == 1).await;
    assert_eq!(append(&file, "second").await.unwrap().unwrap(), 10);
    assert_eq!(late.await.unwrap().unwrap(), 16, "the end by then");
    osds.written()
}

#[tokio::test]
async fn r22_an_append_whose_offset_is_of_before_a_cut_goes_to_the_new_end() {
    let (second, first) = ((3, 10, "second".to_owned()), (3, 16, "first".to_owned()));
    assert_eq!(a_late_answer(3).await, [second.clone(), first.clone()]);
    // What goes below the generation of the cut is cut with all else.
    assert_eq!(a_late_answer(1).await, [second, (1, 100, "first".to_owned()), first]);
}

#[tokio::test]
async fn an_append_that_was_given_no_room_is_an_error() {
    let osds = Osds::start(1).await;
    let fake = Fake::start(|seen| {
        let Answer::Write(mut write) = appended(0, 1 << 20) else { panic!() };
        write.placement.as_mut().unwrap().max_size = 1 << 20;
        vec![Act::Answer(if matches!(op(seen), Op::Write(_)) { Answer::Write(write) } else { answer(seen, 0, 0) })]
    })
    .await;
    let (client, _map) = fake::client(osds.add_to(fake.map(1)));
    let error = append(&opened(&client).await, "x").await.unwrap().unwrap_err();
    assert!(error.message().contains("nothing may be written"), "{error}");
    assert_eq!(osds.written(), []);
}

/// A grant tells of no version, so that the placement has to.
#[tokio::test]
async fn r22_a_late_grant_does_not_bring_back_what_was_before_a_cut() {
    let osds = Osds::start(1).await;
    let far = |cuts| {
        let placement = state(cuts, 0).1.map(|known| Placement { max_size: 1 << 22, ..known });
        Act::Answer(Answer::GrantSize(GrantSizeResponse { placement }))
    };
    let (mut grant, mut reports) = (None, 0);
    let fake = Fake::start(move |seen| {
        reports += u32::from(matches!(op(seen), Op::ReportSize(_)));
        match (op(seen), grant) {
            (Op::GrantSize(_), None) => {
                grant = Some(seen.request.id);
                vec![]
            }
            (Op::GrantSize(_), _) => vec![far(1)],
            // The cut comes after the first grant, and is known when that is answered.
            (Op::ReportSize(_), Some(grant)) if reports == 2 => {
                let Act::Answer(late) = far(0) else { panic!() };
                vec![Act::Answer(answer(seen, 1, 10)), Act::AnswerTo(grant, late)]
            }
            _ => vec![Act::Answer(answer(seen, reports.min(1).into(), 10))],
        }
    })
    .await;
    let (client, _map) = fake::client(osds.add_to(fake.map(1)));
    let file = Arc::new(OpenOptions::new().write(true).open(&client, "/log").await.unwrap());
    let write = tokio::spawn({
        let file = Arc::clone(&file);
        async move { file.write_at((1 << 20) + 5, "far").await }
    });
    fake.wait_seen(|seen| seen.iter().any(|seen| matches!(op(seen), Op::GrantSize(_)))).await;
    file.write_at(0, "near").await.unwrap();
    write.await.unwrap().unwrap();
    let (near, far) = (|generation| (generation, 0, "near".to_owned()), (3, 5, "far".to_owned()));
    assert_eq!(osds.written(), [near(1), near(3), far]);
}
