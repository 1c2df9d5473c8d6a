//! What makes no sense gets a typed error, and the OSD lives on.

use bytes::Bytes;
use pando_proto::osd::object_service_client::ObjectServiceClient;
use pando_proto::osd::record_service_client::RecordServiceClient;
use pando_proto::osd::replication_service_client::ReplicationServiceClient;
use pando_proto::osd::{
    CommitRequest, GetRequest, ListRequest, Mutation, ObjectId, ReadRequest, Record, RecordFrame, RecordRequest,
    ReplicaFrame, ReplicaMessage, TrimRequest, WriteRequest, record_reply,
};
use pando_proto::{Error, MAX_MESSAGE_BYTES, Reason, ShardId};

use crate::cluster::{Cluster, batch, bytes};

fn reason<T: std::fmt::Debug>(result: Result<T, tonic::Status>) -> Reason {
    Error::from_tonic(&result.unwrap_err()).reason
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_make_no_sense_get_typed_errors() {
    let cluster = Cluster::new(1, 1).await;
    let address = cluster.nodes[0].as_ref().unwrap().address.clone();
    let channel = pando_rpc::channel(&cluster.net, &address).unwrap();
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

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_in_a_frame_spoils_no_other() {
    let cluster = Cluster::new(1, 1).await;
    cluster.records().commit(batch(3, 1, 1, &[("k", "v")])).await.unwrap();
    let address = cluster.nodes[0].as_ref().unwrap().address.clone();
    let channel = pando_rpc::channel(&cluster.net, &address).unwrap();
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
