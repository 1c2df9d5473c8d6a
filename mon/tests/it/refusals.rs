use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_mon::{Error, Storage};
use pando_mon_client::Daemon;
use pando_proto::mon::cluster_service_client::ClusterServiceClient;
use pando_proto::mon::raft_service_client::RaftServiceClient;
use pando_proto::mon::{self, DeliverRequest, HeartbeatRequest, ProposeRequest, RegisterRankRequest};
use pando_proto::{Epoch, OsdId, Rank, Reason};
use pando_rpc::{Env, Lease};

use crate::support::*;

#[tokio::test]
async fn directories_of_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    mon.client().get_map(Epoch(1)).await.unwrap();
    let start = |config| pando_mon::start(config, Env::system());
    assert!(matches!(start(single(dir.path())).await, Err(Error::InUse)));
    mon.stop().await;

    let mut other_mon = single(dir.path());
    other_mon.id = 2;
    assert!(matches!(start(other_mon).await, Err(Error::WrongMon { found: 1, wanted: 2 })));

    let mut other_cluster = single(dir.path());
    other_cluster.cluster_id = Some([9; 16]);
    let error = start(other_cluster).await.err().unwrap();
    assert!(matches!(error, Error::WrongCluster { .. }));
    assert_eq!(pando_proto::Error::from(error).reason, Reason::WrongCluster);

    let mut other_group = single(dir.path());
    other_group.peers = (1..=3).map(|id| (id, format!("127.0.0.1:{}", 9200 + id))).collect();
    assert!(matches!(start(other_group).await, Err(Error::OtherMembers { .. })));
}

/// The mons of a cluster have gone, and another cluster has been made at their address: its rank 0 is not the rank 0
/// that ran before, although their numbers are equal, and its clients are others.
#[tokio::test]
async fn daemons_of_a_cluster_that_is_gone_are_refused_and_stop() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mon = TestMon::start(single(first.path())).await;
    let address = mon.address();
    let client = mon.client();
    let old = client.register_rank(rank(1)).await.unwrap();
    let (session, _) = client.register_client("a client").await.unwrap();
    let (watched, session_over) = watch(&client).await;
    let env = Env::system();
    let lease = Arc::new(Lease::new(Arc::clone(&env.clock)));
    let (load, hints) = (Arc::new(mon::RankLoad::default), Arc::new(|_: Vec<mon::SplitRequest>, _: Vec<u64>| {}));
    client.heartbeat_rank(Rank(0), old.incarnation, Arc::clone(&lease), &env, load, hints);
    within(async {
        while !lease.is_valid() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    mon.stop().await;

    let mut other = single(second.path());
    other.listen = address.parse().unwrap();
    let mon = TestMon::start(other).await;
    let theirs = mon.client();
    let new = theirs.register_rank(rank(2)).await.unwrap();
    let (their_session, _) = theirs.register_client("another client").await.unwrap();
    assert_eq!((new.incarnation, their_session), (old.incarnation, session), "they can be told apart by nothing else");
    within(env.shutdown.stopped()).await;
    within(session_over.stopped()).await;
    assert_eq!(watched.lost().map(|error| error.reason), Some(Reason::WrongCluster));
    assert_eq!(client.end_session(session, true).await.unwrap_err().reason, Reason::WrongCluster);
    let error = client.admin().set_setting("inline_limit", "0").await.unwrap_err();
    assert!(error.reason == Reason::WrongCluster && error.message.contains("check the mon addresses"), "{error}");
    let map = theirs.get_map(Epoch(0)).await.unwrap();
    assert!(map.session_is_live(their_session));
    mon.stop().await;
}

/// The address of one mon may be somebody else's by now, while the others are only away.
#[tokio::test]
async fn one_mon_of_another_cluster_ends_no_session() {
    let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mon, foreign) = (TestMon::start(single(own.path())).await, TestMon::start(single(other.path())).await);
    let address = mon.address();
    // It has a cluster of its own by now.
    foreign.client().get_map(Epoch(1)).await.unwrap();
    let client = client(vec![mon.address(), foreign.address()]);
    let (mut watched, session_over) = watch(&client).await;
    // From here on the watch is refused by the one and does not reach the other.
    mon.stop().await;
    let mut again = single(own.path());
    again.listen = address.parse().unwrap();
    let mon = TestMon::start(again).await;
    let (_, newer) = mon.client().register_client("another").await.unwrap();
    map_when(&mut watched, |map| map.epoch >= newer.epoch).await;
    assert!(!session_over.is_stopping() && watched.lost().is_none());
    mon.stop().await;
    foreign.stop().await;
}

/// A rank that is told to which cluster it belongs.
#[tokio::test]
async fn a_rank_of_another_cluster_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    let client = mon.client();
    let of_another = RegisterRankRequest { cluster_id: vec![9; 16].into(), ..rank(1) };
    let error = client.register_rank(of_another).await.unwrap_err();
    assert_eq!(error.reason, Reason::WrongCluster, "{error}");
    assert!(client.get_map(Epoch(0)).await.unwrap().ranks.is_empty());
    mon.stop().await;
}

#[tokio::test]
async fn a_newer_format_and_a_damaged_directory_are_refused() {
    const META: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("meta");
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    mon.stop().await;
    let overwrite = |value: &[u8]| {
        let database = redb::Database::open(dir.path().join("mon.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("superblock", value).unwrap();
        transaction.commit().unwrap();
    };
    overwrite(b"pando-mon\x02\0\0\0whatever comes");
    let error = pando_mon::start(single(dir.path()), Env::system()).await.err().unwrap();
    assert!(matches!(error, Error::NewerFormat { found: 2, known: 1 }));
    assert!(error.to_string().contains("at least as new"), "{error}");
    overwrite(b"something else");
    let error = pando_mon::start(single(dir.path()), Env::system()).await.err().unwrap();
    assert!(matches!(error, Error::Damaged(_)), "{error}");
}

#[tokio::test]
async fn configurations_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = async |change: &dyn Fn(&mut pando_mon::Config)| {
        let mut config = single(&dir.path().join("x"));
        change(&mut config);
        pando_mon::start(config, Env::system()).await.err().expect("refused")
    };
    assert!(matches!(refused(&|config| config.id = 0).await, Error::Config(_)));
    assert!(matches!(refused(&|config| config.listen = "0.0.0.0:0".parse().unwrap()).await, Error::Config(_)));
    let two = |config: &mut pando_mon::Config| config.peers = [(1, "a:1".to_owned()), (2, "b:1".to_owned())].into();
    assert!(matches!(refused(&two).await, Error::Config(_)));
    let not_me = |config: &mut pando_mon::Config| config.peers = [(7, "a:1".to_owned())].into();
    assert!(matches!(refused(&not_me).await, Error::Config(_)));
    let taken = std::net::TcpListener::bind(any_port()).unwrap();
    let address = taken.local_addr().unwrap();
    assert!(matches!(refused(&|config| config.listen = address).await, Error::Listen(_)));
    std::fs::write(dir.path().join("file"), b"").unwrap();
    let path = dir.path().join("file");
    let no_directory = |config: &mut pando_mon::Config| config.data = Storage::Dir(path.clone());
    assert!(matches!(refused(&no_directory).await, Error::Directory { .. }));
}

#[tokio::test]
async fn requests_that_make_no_sense_get_typed_errors() {
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    let client = mon.client();
    client.get_map(Epoch(1)).await.unwrap();
    let mut foreign = osd(1, 1);
    foreign.cluster_id = vec![9; 16].into();
    assert_eq!(client.register_osd(foreign).await.unwrap_err().reason, Reason::WrongCluster);
    let mut nowhere = osd(1, 1);
    nowhere.address = "nowhere".into();
    assert_eq!(client.register_osd(nowhere).await.unwrap_err().reason, Reason::InvalidRequest);

    let channel = pando_rpc::channel(&mon.env.net, &mon.address()).unwrap();
    let mut service = ClusterServiceClient::new(channel.clone());
    let reason = |status: tonic::Status| pando_proto::Error::from_tonic(&status).reason;
    let nobody = HeartbeatRequest::default();
    assert_eq!(reason(service.heartbeat(nobody).await.unwrap_err()), Reason::InvalidRequest);
    let unknown = HeartbeatRequest {
        daemon: Some(pando_proto::mon::heartbeat_request::Daemon::OsdId(77)),
        ..HeartbeatRequest::default()
    };
    assert_eq!(reason(service.heartbeat(unknown).await.unwrap_err()), Reason::UnknownId);

    let mut raft = RaftServiceClient::new(channel);
    let garbage = DeliverRequest { cluster_id: Bytes::new(), messages: vec![Bytes::from_static(b"\xff\xff\xff")] };
    assert_eq!(reason(raft.deliver(garbage).await.unwrap_err()), Reason::InvalidRequest);
    // A message that is well formed, but from nobody in the group.
    let stranger =
        DeliverRequest { cluster_id: Bytes::new(), messages: vec![Bytes::from_static(b"\x08\x00\x10\x01\x18\x09")] };
    raft.deliver(stranger).await.unwrap();
    let foreign = DeliverRequest { cluster_id: vec![9; 16].into(), messages: vec![] };
    assert_eq!(reason(raft.deliver(foreign).await.unwrap_err()), Reason::WrongCluster);
    let garbage = ProposeRequest { cluster_id: Bytes::new(), command: Bytes::from_static(b"\x63") };
    assert_eq!(reason(raft.propose(garbage).await.unwrap_err()), Reason::InvalidRequest);
    client.register_osd(osd(1, 1)).await.unwrap();
    mon.stop().await;
}

/// What was registered by mistake can be taken off the map again, and what is needed cannot (R13, R26).
#[tokio::test]
async fn only_daemons_that_nobody_needs_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    let (client, admin) = (mon.client(), mon.client().admin());
    // Rank 0 sends no heartbeats here, and keeps its subtree.
    admin.set_setting("lease_millis", "60000").await.unwrap();
    client.register_rank(rank(1)).await.unwrap();
    let mistyped = pando_proto::mon::RegisterRankRequest { rank: 5, ..rank(1) };
    let registered = client.register_rank(mistyped.clone()).await.unwrap();
    let five = Rank(5);
    let error = admin.remove_rank(five).await.unwrap_err();
    assert_eq!((error.reason, error.errno), (Reason::InUse, pando_proto::Errno::EBUSY), "{error:?}");
    client.release_lease(Daemon::Rank(five), registered.incarnation).await.unwrap();
    let warnings = admin.status().await.unwrap().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("`pando rank rm 5`")), "{warnings:?}");
    let epoch = admin.remove_rank(five).await.unwrap();
    assert_eq!(admin.remove_rank(five).await.unwrap(), epoch, "idempotent");
    assert_eq!(admin.list_ranks().await.unwrap().len(), 1);
    let again = client.register_rank(mistyped).await.unwrap();
    assert!(again.incarnation > registered.incarnation, "R13");

    let registered = client.register_osd(osd(1, 1)).await.unwrap();
    let id = OsdId(registered.osd_id);
    assert_eq!(admin.remove_osd(id).await.unwrap_err().reason, Reason::InUse);
    client.release_lease(Daemon::Osd(id), registered.incarnation).await.unwrap();
    let warnings = admin.status().await.unwrap().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("`pando osd rm 1`")), "{warnings:?}");
    admin.remove_osd(id).await.unwrap();
    admin.remove_osd(id).await.unwrap();
    assert!(admin.list_osds().await.unwrap().is_empty());
    assert_eq!(admin.remove_osd(OsdId(9)).await.unwrap_err().reason, Reason::UnknownId);
    mon.stop().await;
}
