use std::collections::BTreeSet;

use pando_cluster_map::ClusterMap;
use pando_proto::mon::cluster_service_client::ClusterServiceClient;
use pando_proto::mon::{AllocateInosRequest, RegisterClientRequest};
use pando_proto::{ClientId, Epoch, Ino, OsdId, Rank, Reason, ShardId};

use crate::support::*;

#[tokio::test]
async fn a_restart_keeps_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    let client = mon.client();
    for number in 1..=3 {
        client.register_osd(osd(number, 1)).await.unwrap();
    }
    client.register_rank(rank(1)).await.unwrap();
    let (first, _) = client.register_client("one").await.unwrap();
    client.admin().set_setting("inline_limit", "1024").await.unwrap();
    let (ino, _) = client.allocate_inos(ShardId(3), Rank(0), 1, 1000).await.unwrap();
    assert_eq!(ino, Ino::new(ShardId(3), 16).unwrap());
    let before = client.get_map(Epoch(0)).await.unwrap();
    mon.stop().await;

    let mon = TestMon::start(single(dir.path())).await;
    let client = mon.client();
    let after = client.get_map(before.epoch).await.unwrap();
    let own = |map: &ClusterMap| ClusterMap { mons: Default::default(), epoch: Epoch(0), ..map.clone() };
    assert_eq!(own(&before), own(&after), "all but the mon's new port");
    assert_eq!(after.inline_limit(), 1024);
    let (second, map) = client.register_client("two").await.unwrap();
    assert!(second > first && map.session_is_live(first) && map.session_is_live(second));
    let (next, _) = client.allocate_inos(ShardId(3), Rank(0), 1, 1).await.unwrap();
    assert_eq!(next.number(), ino.number() + 1000, "R20");
    mon.stop().await;
}

#[tokio::test]
async fn the_log_is_compacted_and_a_restart_reads_the_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let config = || {
        let mut config = single(dir.path());
        config.compact_every = 7;
        config
    };
    for round in 0..3u64 {
        let mon = TestMon::start(config()).await;
        let client = mon.client();
        for number in 1..=20 {
            let (id, _) = client.register_client("many").await.unwrap();
            assert_eq!(id, ClientId(round * 20 + number));
        }
        mon.stop().await;
    }
}

#[tokio::test]
async fn registration_is_idempotent() {
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    let client = mon.client();
    let first = client.register_osd(osd(1, 1)).await.unwrap();
    let again = client.register_osd(osd(1, 1)).await.unwrap();
    assert_eq!((first.osd_id, first.incarnation), (again.osd_id, again.incarnation));
    assert_eq!(first.cluster_id.len(), 16);
    let restarted = client.register_osd(osd(1, 2)).await.unwrap();
    assert_eq!((restarted.osd_id, restarted.incarnation), (first.osd_id, first.incarnation + 1));

    let channel = pando_rpc::channel(&mon.env.net, &mon.address()).unwrap();
    let mut service = ClusterServiceClient::new(channel);
    let request =
        RegisterClientRequest { nonce: vec![7; 16].into(), description: "twice".into(), ..Default::default() };
    let one = service.register_client(request.clone()).await.unwrap().into_inner().client_id;
    let two = service.register_client(request).await.unwrap().into_inner().client_id;
    assert_eq!(one, two);
    client.register_rank(rank(1)).await.unwrap();
    client.register_rank(rank(1)).await.unwrap();
    let request = AllocateInosRequest { shard: 0, rank: 0, incarnation: 1, count: 10, nonce: vec![7; 16].into() };
    let one = service.allocate_inos(request.clone()).await.unwrap().into_inner();
    let two = service.allocate_inos(request).await.unwrap().into_inner();
    assert_eq!((one.first_ino, one.count), (16, 10));
    assert_eq!(one, two);
    mon.stop().await;
}

#[tokio::test]
async fn sessions_end_once_and_ids_are_not_reused() {
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    let client = mon.client();
    let mut ids = BTreeSet::new();
    for _ in 0..5 {
        let (id, map) = client.register_client("short").await.unwrap();
        assert!(ids.insert(id) && map.session_is_live(id));
        let epoch = client.end_session(id, true).await.unwrap();
        assert_eq!(client.end_session(id, false).await.unwrap(), epoch);
        assert!(!client.get_map(epoch).await.unwrap().session_is_live(id));
    }
    let error = client.end_session(ClientId(1000), false).await.unwrap_err();
    assert_eq!(error.reason, Reason::UnknownId);
    mon.stop().await;
}

#[tokio::test]
async fn sessions_of_ranks_are_told_by_what_no_client_says() {
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    let client = mon.client();
    client.register_rank(rank(1)).await.unwrap();
    let error = client.register_client("mds.0").await.unwrap_err();
    assert!(error.reason == Reason::InvalidRequest && error.message.contains("otherwise"), "{error}");
    let (id, map) = client.register_client("mds.0 watcher").await.unwrap();
    assert!(!map.sessions[&id].is_of_rank());
    let stale = client.register_rank_session(Rank(0), 2).await.unwrap_err();
    assert_eq!(stale.reason, Reason::StaleEpoch);
    let (of_rank, map) = client.register_rank_session(Rank(0), 1).await.unwrap();
    assert_eq!(map.sessions[&of_rank].rank, Some(Rank(0)));
    let admin = client.admin();
    let listed = admin.list_sessions().await.unwrap();
    let found: Vec<_> = listed.iter().map(|one| (one.client_id, one.of_rank)).collect();
    assert_eq!(found, [(id.0, false), (of_rank.0, true)]);
    assert_eq!(admin.evict_session(of_rank).await.unwrap_err().reason, Reason::InUse);
    admin.evict_session(id).await.unwrap();
    mon.stop().await;
}

#[tokio::test]
async fn a_person_can_ask_and_set() {
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    let (client, admin) = (mon.client(), mon.client().admin());
    client.register_osd(osd(1, 1)).await.unwrap();
    let status = admin.status().await.unwrap();
    assert_eq!((status.leader_id, status.osds_up, status.pgs_down), (1, 1, 12));
    assert!(status.warnings.iter().any(|warning| warning.contains("1 of 3 OSDs")), "{:?}", status.warnings);
    assert!(status.warnings.iter().any(|warning| warning.contains("pando-mds")), "{:?}", status.warnings);
    client.register_osd(osd(2, 1)).await.unwrap();
    client.register_osd(osd(3, 1)).await.unwrap();
    client.register_rank(rank(1)).await.unwrap();
    let status = admin.status().await.unwrap();
    assert_eq!((status.pgs_healthy, status.warnings), (12, vec![]));
    assert_eq!(status.total_bytes, 3 << 40);
    assert_eq!(admin.list_osds().await.unwrap().len(), 3);
    assert_eq!(admin.list_pgs(None).await.unwrap().len(), 12);
    assert_eq!(admin.list_pgs(Some(pando_proto::PoolId(1))).await.unwrap().len(), 4);
    assert_eq!(admin.list_pgs(Some(pando_proto::PoolId(9))).await.unwrap_err().reason, Reason::UnknownId);
    assert_eq!(admin.list_ranks().await.unwrap()[0].incarnation, 1);
    assert_eq!(admin.list_subtrees().await.unwrap()[0].root_ino, 1);
    assert_eq!(admin.get_setting("inline_limit").await.unwrap(), "4096");
    admin.set_setting("inline_limit", "0").await.unwrap();
    assert_eq!(admin.get_setting("inline_limit").await.unwrap(), "0");
    assert!(admin.list_settings().await.unwrap().len() >= 4);
    let error = admin.set_setting("inline_limit", "much").await.unwrap_err();
    assert_eq!(error.reason, Reason::InvalidRequest);
    assert!(error.message.contains("from 0 to"), "{error}");
    let error = admin.get_setting("inline").await.unwrap_err();
    assert!(error.reason == Reason::UnknownId && error.message.contains("inline_limit"), "{error}");
    let error = client.confirm_member(pando_proto::PgId::default(), 1, OsdId(1)).await.unwrap_err();
    assert_eq!(error.reason, Reason::UnknownId);
    mon.stop().await;
}
