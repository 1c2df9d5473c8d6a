//! What makes no sense gets a typed error, and the OSD lives on.

use std::sync::Arc;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_mon_client::MapWatch;
use pando_osd_client::{ObjectClient, RecordClient};
use pando_proto::mon::RegisterRankRequest;
use pando_proto::osd::object_service_client::ObjectServiceClient;
use pando_proto::osd::record_service_client::RecordServiceClient;
use pando_proto::osd::replication_service_client::ReplicationServiceClient;
use pando_proto::osd::{
    CommitRequest, GetRequest, ListRequest, LogPosition, Mutation, ObjectId, RaiseFenceRequest, ReadRequest, Record,
    RecordFrame, RecordRequest, ReplicaEntry, ReplicaFrame, ReplicaMessage, ReplicaProbe, TrimRequest, WriteRequest,
    record_reply, replica_message,
};
use pando_proto::{Epoch, Error, MAX_MESSAGE_BYTES, Reason, ShardId, SubtreeId};
use pando_rpc::Shutdown;

use crate::cluster::{Cluster, DEADLINE, batch, bytes};

fn reason<T: std::fmt::Debug>(result: Result<T, tonic::Status>) -> Reason {
    Error::from_tonic(&result.unwrap_err()).reason
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_make_no_sense_get_typed_errors() {
    let cluster = Cluster::new(1, 1).await;
    let address = cluster.nodes[0].as_ref().unwrap().address.clone();
    let channel = cluster.channel(&address);
    let records = cluster.records();
    records.commit(batch(3, 1, 1, &[("k", "v")])).await.unwrap();

    let mut service = RecordServiceClient::new(channel.clone()).max_encoding_message_size(MAX_MESSAGE_BYTES * 2);
    let commit = |change: &dyn Fn(&mut CommitRequest)| {
        let mut request = batch(3, 1, 2, &[("k", "evil")]);
        change(&mut request);
        request
    };
    let large = Record { key: bytes("k"), value: Bytes::from(vec![0; 9 << 20]) };
    for (request, expected) in [
        (commit(&|request| request.shard = 1 << 15), Reason::InvalidRequest),
        (commit(&|request| request.subtree = 0), Reason::InvalidRequest),
        (commit(&|request| request.epoch = 0), Reason::InvalidRequest),
        (commit(&|request| request.puts[0].key = Bytes::new()), Reason::InvalidRequest),
        (commit(&|request| request.puts[0].key = Bytes::from(vec![b'k'; 513])), Reason::InvalidRequest),
        (commit(&|request| request.puts[0].key = bytes("f12345678")), Reason::InvalidRequest),
        (commit(&|request| request.deletes.push(bytes("f12345678"))), Reason::InvalidRequest),
        (commit(&|request| request.puts.push(large.clone())), Reason::TooLarge),
        (commit(&|request| request.map_epoch = u64::MAX), Reason::Unavailable),
    ] {
        assert_eq!(reason(service.commit(request).await), expected);
    }
    let keys = vec![bytes("k"); 5000];
    assert_eq!(reason(service.get(GetRequest { shard: 3, keys, map_epoch: 0 }).await), Reason::TooLarge);

    let mut service = ObjectServiceClient::new(channel.clone()).max_encoding_message_size(MAX_MESSAGE_BYTES * 2);
    let object = Some(ObjectId { pool: 2, ino: 9, index: 0 });
    let mutation = Some(Mutation { session: cluster.client.0, sequence: 1, low_water: 1, generation: 0, map_epoch: 0 });
    let good = WriteRequest { object, mutation, offset: 0, data: bytes("x") };
    for (request, expected) in [
        (WriteRequest { object: None, ..good.clone() }, Reason::InvalidRequest),
        (WriteRequest { object: Some(ObjectId { pool: 1, ino: 9, index: 0 }), ..good.clone() }, Reason::InvalidRequest),
        (WriteRequest { object: Some(ObjectId { pool: 7, ino: 9, index: 0 }), ..good.clone() }, Reason::UnknownId),
        (WriteRequest { object: Some(ObjectId { pool: 2, ino: 0, index: 0 }), ..good.clone() }, Reason::InvalidRequest),
        (WriteRequest { mutation: None, ..good.clone() }, Reason::InvalidRequest),
        (WriteRequest { offset: u64::MAX, ..good.clone() }, Reason::TooLarge),
        (WriteRequest { offset: 8 << 20, ..good.clone() }, Reason::TooLarge),
        (
            WriteRequest { mutation: mutation.map(|good| Mutation { session: 999, ..good }), ..good.clone() },
            Reason::StaleSession,
        ),
    ] {
        assert_eq!(reason(service.write(request).await), expected);
    }
    let read = ReadRequest { object, offset: 0, length: u64::MAX, map_epoch: 0, generation: 0 };
    assert_eq!(reason(service.read(read).await), Reason::TooLarge);
    let trim = TrimRequest { object, mutation, kind: 77, offset: 0, length: 0 };
    assert_eq!(reason(service.trim(trim).await), Reason::InvalidRequest);
    let list = ListRequest { pool: 2, pg_index: 99, after: None, limit: 0, map_epoch: 0 };
    assert_eq!(reason(service.list(list).await), Reason::UnknownId);

    // A peer that talks nonsense loses its stream, nothing else.
    let mut replication = ReplicationServiceClient::new(channel.clone());
    let nonsense = ReplicaFrame { messages: vec![ReplicaMessage { to: u32::MAX, ..ReplicaMessage::default() }] };
    let mut answers = replication.replicate(futures_util::stream::iter([nonsense])).await.unwrap().into_inner();
    assert!(!matches!(answers.message().await, Ok(Some(_))));

    assert_eq!(records.get(ShardId(3), vec![bytes("k")]).await.unwrap(), [Some(bytes("v"))]);
}

/// I1, I10, R22: sessions, numbers, epochs and inodes of another cluster are those of others here.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_another_cluster_is_refused_before_anything_is_done() {
    let cluster = Cluster::new(1, 1).await;
    let object = ObjectId { pool: 2, ino: 9, index: 0 };
    cluster.objects().write(object, 0, 0, bytes("own")).await.unwrap();
    cluster.records().commit(batch(3, 1, 1, &[("k", "v")])).await.unwrap();
    let address = cluster.nodes[0].as_ref().unwrap().address.clone();
    // No cluster has this id. Nor is one that names none let in.
    for other in [[7; 16], [0; 16]] {
        let channel = cluster.channel_of(&address, &other);
        let mutation = Mutation { session: cluster.client.0, sequence: 9, low_water: 9, generation: 0, map_epoch: 0 };
        let (id, mutation) = (Some(object), Some(mutation));
        let mut objects = ObjectServiceClient::new(channel.clone());
        let write = WriteRequest { object: id, mutation, offset: 0, data: bytes("evil") };
        assert_eq!(reason(objects.write(write).await), Reason::WrongCluster);
        let trim = TrimRequest { object: id, mutation, kind: 3, offset: 0, length: 0 };
        assert_eq!(reason(objects.trim(trim).await), Reason::WrongCluster);
        let mut records = RecordServiceClient::new(channel.clone());
        assert_eq!(reason(records.commit(batch(3, 1, 2, &[("k", "evil")])).await), Reason::WrongCluster);
        let frames = futures_util::stream::pending::<RecordFrame>();
        assert_eq!(reason(records.stream(frames).await.map(|_| ())), Reason::WrongCluster);
        let frames = futures_util::stream::pending::<ReplicaFrame>();
        let replicated = ReplicationServiceClient::new(channel).replicate(frames).await;
        assert_eq!(reason(replicated.map(|_| ())), Reason::WrongCluster);
    }
    assert_eq!(cluster.objects().read(object, 0, 0, 9).await.unwrap(), "own");
    assert_eq!(cluster.records().get(ShardId(3), vec![bytes("k")]).await.unwrap(), [Some(bytes("v"))]);
}

/// A client of a cluster that was here before has the numbers of a session of this one.
#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a_cluster_that_is_gone_write_nothing_into_the_next_and_end_with_their_session() {
    let cluster = Cluster::new(1, 1).await;
    let object = ObjectId { pool: 2, ino: 9, index: 0 };
    let mut former = ClusterMap::clone(&cluster.map.current());
    former.cluster_id = [7; 16];
    let (map, _map) = MapWatch::fixed(Arc::new(former));
    let session = Shutdown::default();
    let client = ObjectClient::new(Arc::clone(&cluster.net), map.clone(), cluster.client, session.clone());
    let records = RecordClient::new(Arc::clone(&cluster.net), map, session.clone());
    let write = tokio::spawn(async move { client.write(object, 0, 0, bytes("evil")).await });
    let commit = tokio::spawn(async move { records.commit(batch(3, 1, 1, &[("k", "evil")])).await });
    // What the cluster's own client does meanwhile has its numbers for itself.
    cluster.objects().write(object, 0, 0, bytes("own")).await.unwrap();
    cluster.records().commit(batch(3, 1, 1, &[("k", "v")])).await.unwrap();
    session.stop();
    let ended = tokio::time::timeout(DEADLINE, write).await.expect("it ends").unwrap();
    assert_eq!(ended.unwrap_err().reason, Reason::StaleSession);
    assert_eq!(cluster.objects().read(object, 0, 0, 9).await.unwrap(), "own");
    assert_eq!(cluster.records().get(ShardId(3), vec![bytes("k")]).await.unwrap(), [Some(bytes("v"))]);
    commit.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_in_a_frame_spoils_no_other() {
    let cluster = Cluster::new(1, 1).await;
    cluster.records().commit(batch(3, 1, 1, &[("k", "v")])).await.unwrap();
    let address = cluster.nodes[0].as_ref().unwrap().address.clone();
    let channel = cluster.channel(&address);
    let get = |id, key: &str| RecordRequest {
        id,
        call: Some(pando_proto::osd::record_request::Call::Get(GetRequest {
            shard: 3,
            keys: vec![bytes(key)],
            map_epoch: 0,
        })),
    };
    let frame = RecordFrame { requests: vec![get(1, ""), RecordRequest { id: 2, call: None }, get(3, "k")] };
    let requests = futures_util::StreamExt::chain(futures_util::stream::iter([frame]), futures_util::stream::pending());
    let mut replies = RecordServiceClient::new(channel).stream(requests).await.unwrap().into_inner();
    let mut found = std::collections::BTreeMap::new();
    while found.len() < 3 {
        for reply in replies.message().await.unwrap().unwrap().replies {
            let ok = match reply.result.unwrap() {
                record_reply::Result::Error(status) => Err(Error::from_rpc_status(status).reason),
                record_reply::Result::Get(response) => Ok(response.records[0].value.clone()),
                other => panic!("{other:?}"),
            };
            found.insert(reply.id, ok);
        }
    }
    assert_eq!(found[&1], Err(Reason::InvalidRequest));
    assert_eq!(found[&2], Err(Reason::InvalidRequest));
    assert_eq!(found[&3], Ok(Some(bytes("v"))));
}

/// R26: who is primary is in the map; a promise of a configuration that will never come would be for ever.
#[tokio::test(flavor = "multi_thread")]
async fn another_osd_that_poses_as_primary_is_ignored() {
    let mut cluster = Cluster::new(2, 2).await;
    cluster.records().commit(batch(3, 1, 1, &[("k", "v")])).await.unwrap();
    let map = cluster.map.current();
    let pg = map.pg_of_shard(ShardId(3));
    let (config, members) = (map.pgs[&pg].config, map.pgs[&pg].members.clone());
    for to in &members {
        let other = members.iter().find(|osd| *osd != to).unwrap();
        let message = |from: u32, config, body| ReplicaMessage {
            pool: pg.pool.0,
            pg_index: pg.index,
            from,
            to: to.0,
            config,
            body: Some(body),
        };
        let probe = || replica_message::Body::Probe(ReplicaProbe { ticket: 1 });
        let position = |sequence| Some(LogPosition { config, sequence });
        let entry = ReplicaEntry { position: position(2), previous: position(1), ..ReplicaEntry::default() };
        let messages = vec![
            message(other.0, u64::MAX, probe()),
            message(other.0, u64::MAX, replica_message::Body::Append(entry.clone())),
            message(77, config + 1, probe()),
        ];
        let strangers = vec![message(77, config, probe()), message(77, config, replica_message::Body::Append(entry))];
        for mut messages in [messages, strangers] {
            // Ends the stream when all before was handed on.
            messages.push(ReplicaMessage { to: u32::MAX, ..ReplicaMessage::default() });
            let channel = cluster.channel(&map.osds[to].address);
            let frames = messages.into_iter().map(|message| ReplicaFrame { messages: vec![message] });
            let frames: Vec<_> = frames.collect();
            let opened = ReplicationServiceClient::new(channel).replicate(futures_util::stream::iter(frames)).await;
            let mut answers = opened.unwrap().into_inner();
            while let Ok(Some(_)) = answers.message().await {}
        }
    }
    let records = cluster.records();
    let committed = records.commit(batch(3, 1, 2, &[("k", "w")]));
    tokio::time::timeout(DEADLINE, committed).await.expect("service goes on").unwrap();
    for number in 0..2 {
        cluster.kill(number);
        cluster.start(number).await;
    }
    let committed = records.commit(batch(3, 1, 3, &[("k", "x")]));
    tokio::time::timeout(DEADLINE, committed).await.expect("no promise was left behind").unwrap();
}

/// R2: a fence that nobody owns would lock the owner out for good.
#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_the_map_gave_to_nobody_is_refused() {
    let cluster = Cluster::new(1, 1).await;
    let registered = |boot: u8| {
        let rank = RegisterRankRequest {
            cluster_id: Bytes::new(),
            rank: 0,
            boot_id: Bytes::from(vec![boot]),
            address: "127.0.0.1:1".to_owned(),
        };
        cluster.mon.register_rank(rank)
    };
    registered(1).await.unwrap();
    let map = cluster.map_with("the root subtree", |map| map.subtrees.contains_key(&SubtreeId(1))).await;
    let epoch = map.subtrees[&SubtreeId(1)].epoch;
    let address = cluster.nodes[0].as_ref().unwrap().address.clone();
    let channel = cluster.channel(&address);
    let mut service = RecordServiceClient::new(channel);
    let map_epoch = map.epoch.0;
    for (subtree, epoch) in [(1, epoch.0 + 1), (1, u64::MAX), (99, 1)] {
        let fence = RaiseFenceRequest { shard: 3, subtree, epoch, map_epoch };
        assert_eq!(reason(service.raise_fence(fence).await), Reason::Unavailable);
        let commit = CommitRequest { subtree, epoch, map_epoch, ..batch(3, 1, 1, &[("k", "evil")]) };
        assert_eq!(reason(service.commit(commit).await), Reason::Unavailable);
    }
    let records = cluster.records();
    assert_eq!(records.raise_fence(ShardId(3), SubtreeId(1), epoch).await.unwrap().fence_epoch, epoch.0);
    // R14: a new owner may be faster than the OSD's map; its request waits for the map that it names.
    registered(2).await.unwrap();
    let map = cluster.map_with("a new owner", |map| map.subtrees[&SubtreeId(1)].epoch > epoch).await;
    let newer: Epoch = map.subtrees[&SubtreeId(1)].epoch;
    let fence = RaiseFenceRequest { shard: 3, subtree: 1, epoch: newer.0, map_epoch: map.epoch.0 };
    assert_eq!(service.raise_fence(fence).await.unwrap().into_inner().fence_epoch, newer.0);
    records.commit(batch(3, newer.0, 1, &[("k", "v")])).await.unwrap();
}
