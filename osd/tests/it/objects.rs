//! Objects through gRPC, on one OSD.

use bytes::Bytes;
use pando_proto::osd::object_service_client::ObjectServiceClient;
use pando_proto::osd::{ListRequest, Mutation, ObjectId, TrimKind, WriteRequest};
use pando_proto::{Reason, ids::DATA_POOL};

use crate::cluster::{Cluster, bytes, engines};

fn object(ino: u64, index: u64) -> ObjectId {
    ObjectId { pool: DATA_POOL.0, ino, index }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_read_are_the_bytes_written() {
    for (engine, _dir) in engines() {
        let cluster = Cluster::with_engines(vec![engine], 1).await;
        let objects = cluster.objects();
        let id = object(9, 0);
        assert_eq!(objects.read(id, 0, 0, 100).await.unwrap(), Bytes::new());
        assert_eq!(objects.write(id, 0, 100_000, bytes("tail")).await.unwrap(), 100_004);
        assert_eq!(objects.write(id, 0, 0, bytes("head")).await.unwrap(), 100_004);
        let all = objects.read(id, 0, 0, 8 << 20).await.unwrap();
        assert_eq!((all.len(), &all[..4], &all[100_000..]), (100_004, &b"head"[..], &b"tail"[..]));
        assert!(all[4..100_000].iter().all(|byte| *byte == 0));
        objects.trim(id, 0, TrimKind::Zero, 1, 2).await.unwrap();
        assert_eq!(objects.read(id, 0, 0, 5).await.unwrap(), &b"h\0\0d\0"[..]);
        objects.trim(id, 1, TrimKind::Truncate, 2, 0).await.unwrap();
        assert_eq!(objects.read(id, 1, 0, 8 << 20).await.unwrap(), &b"h\0"[..]);
        assert_eq!(objects.write(id, 1, 6, bytes("x")).await.unwrap(), 7);
        assert_eq!(objects.read(id, 1, 0, 100).await.unwrap(), &b"h\0\0\0\0\0x"[..], "no old bytes come back");
        let stat = objects.stat(id).await.unwrap();
        assert_eq!((stat.exists, stat.size, stat.generation), (true, 7, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r22_a_late_write_after_a_purge_is_refused() {
    for (engine, _dir) in engines() {
        let cluster = Cluster::with_engines(vec![engine], 1).await;
        let objects = cluster.objects();
        let id = object(9, 3);
        objects.write(id, 1, 0, bytes("data")).await.unwrap();
        objects.trim(id, 2, TrimKind::Delete, 0, 0).await.unwrap();
        assert_eq!(objects.write(id, 1, 0, bytes("late")).await.unwrap_err().reason, Reason::StaleGeneration);
        assert_eq!(objects.read(id, 1, 0, 4).await.unwrap_err().reason, Reason::StaleGeneration);
        assert!(!objects.stat(id).await.unwrap().exists);
        assert_eq!(objects.read(id, 2, 0, 4).await.unwrap(), Bytes::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r22_a_repeated_write_is_applied_once_and_an_ended_session_is_refused() {
    let cluster = Cluster::new(1, 1).await;
    let map = cluster.map.current();
    let id = object(9, 3);
    let pg = map.pg_of_object(DATA_POOL, pando_proto::Ino(9), 3);
    let channel = cluster.channel(map.primary(pg).unwrap().1);
    let mut service = ObjectServiceClient::new(channel);
    let write = |sequence, data: &str, map_epoch| WriteRequest {
        object: Some(id),
        mutation: Some(Mutation { session: cluster.client.0, sequence, low_water: 1, generation: 0, map_epoch }),
        offset: 0,
        data: bytes(data),
    };
    let objects = cluster.objects();
    // Waits until the OSD has its lease.
    objects.stat(id).await.unwrap();
    service.write(write(1, "one", 0)).await.unwrap();
    service.write(write(2, "two", 0)).await.unwrap();
    service.write(write(1, "one", 0)).await.unwrap();
    assert_eq!(objects.read(id, 0, 0, 9).await.unwrap(), "two");
    let epoch = cluster.mon.end_session(cluster.client, true).await.unwrap();
    let refused = service.write(write(3, "three", epoch.0)).await.unwrap_err();
    assert_eq!(pando_proto::Error::from_tonic(&refused).reason, Reason::StaleSession);
    assert_eq!(objects.read(id, 0, 0, 9).await.unwrap(), "two");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_listed_without_the_deleted_ones() {
    let cluster = Cluster::new(1, 1).await;
    let objects = cluster.objects();
    for index in 0..40 {
        objects.write(object(9, index), 0, 0, bytes("x")).await.unwrap();
    }
    objects.trim(object(9, 7), 1, TrimKind::Delete, 0, 0).await.unwrap();
    let map = cluster.map.current();
    let mut found = Vec::new();
    for pg_index in 0..2 {
        let pg = pando_proto::PgId { pool: DATA_POOL, index: pg_index };
        let channel = cluster.channel(map.primary(pg).unwrap().1);
        let mut service = ObjectServiceClient::new(channel);
        let mut after = None;
        loop {
            let request = ListRequest { pool: DATA_POOL.0, pg_index, after, limit: 7, map_epoch: 0 };
            let page = service.list(request).await.unwrap().into_inner();
            after = page.objects.last().copied().or(after);
            found.extend(page.objects.iter().map(|object| object.index));
            if !page.more {
                break;
            }
        }
    }
    found.sort_unstable();
    assert_eq!(found, (0..40).filter(|index| *index != 7).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn r22_what_a_file_has_from_an_object_on_is_purged_in_every_group() {
    const END: u64 = 1 << 40;
    for (engine, _dir) in engines() {
        let cluster = Cluster::with_engines(vec![engine], 1).await;
        let objects = cluster.objects();
        // More of them in a group than go in one transaction.
        let mut indexes: Vec<u64> = (0..200).collect();
        indexes.extend([5000, END - 1]);
        let write = |index| objects.write(object(9, index), 1, 0, bytes("data"));
        futures_util::future::try_join_all(indexes.iter().map(|index| write(*index))).await.unwrap();
        let other = object(10, 20);
        objects.write(other, 1, 0, bytes("other")).await.unwrap();
        let firsts = objects.firsts(DATA_POOL.0, 9, 10..END).expect("more objects than groups");
        assert_eq!(objects.firsts(DATA_POOL.0, 9, 0..firsts.len() as u64), None, "no fewer calls than objects");
        for first in firsts {
            objects.trim(object(9, first), 2, TrimKind::DeleteFrom, 0, 0).await.unwrap();
        }
        for index in indexes {
            assert_eq!(objects.stat(object(9, index)).await.unwrap().exists, index < 10, "{index}");
        }
        assert_eq!(objects.read(other, 1, 0, 9).await.unwrap(), "other");
        for index in [50, 600, END - 1, END] {
            let id = object(9, index);
            assert_eq!(objects.write(id, 1, 0, bytes("late")).await.unwrap_err().reason, Reason::StaleGeneration);
            assert_eq!(objects.read(id, 1, 0, 4).await.unwrap_err().reason, Reason::StaleGeneration);
            assert_eq!(objects.read(id, 3, 0, 4).await.unwrap(), Bytes::new());
        }
        assert_eq!(objects.write(object(9, 5), 1, 0, bytes("more")).await.unwrap(), 4, "what lives is not purged");
        assert_eq!(objects.write(object(9, 50), 3, 0, bytes("new")).await.unwrap(), 3);
        let reserved = objects.write(object(9, u64::MAX), 3, 0, bytes("x")).await.unwrap_err();
        assert_eq!(reserved.reason, Reason::InvalidRequest);
    }
}
