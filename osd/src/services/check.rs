//! Requests are checked for form here, once; what passes makes sense to the core.

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_osd_core::{Batch, Change, Mutation, MutationKind, ObjectKey, Purge, Request, keys};
use pando_proto::osd::{
    CommitRequest, GetRequest, ListRequest, Mutation as ProtoMutation, ObjectId, RaiseFenceRequest, ReadRequest,
    ScanRequest, StatRequest, TrimKind, TrimRequest, WriteRequest, record_request,
};
use pando_proto::{ClientId, Epoch, Error, Ino, PgId, PoolId, Reason, ShardId, SubtreeId};

use crate::pg::Call;
use crate::pg::fetch::Fetch;

const MAX_KEY_BYTES: usize = 512;
const MAX_BATCH_BYTES: usize = 8 << 20;
const MAX_BATCH_RECORDS: usize = 64 << 10;
const MAX_KEYS: usize = 4096;
const MAX_SCAN: usize = 4096;
const DEFAULT_SCAN: usize = 1024;
const MAX_LIST: usize = 4096;
/// Largest object, and largest write or read.
const MAX_OBJECT_BYTES: u64 = 8 << 20;

/// A request that makes sense, and where it goes.
pub(crate) struct Checked {
    pub pg: PgId,
    pub map_epoch: Epoch,
    pub call: Call,
    /// About what it takes in memory, with its answer.
    pub bytes: usize,
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Reason::InvalidRequest, message)
}

fn shard(number: u32) -> Result<ShardId, Error> {
    match u16::try_from(number) {
        Ok(shard) if number < pando_proto::ids::SHARDS => Ok(ShardId(shard)),
        _ => Err(invalid(format!("{number} is no shard: there are {}", pando_proto::ids::SHARDS))),
    }
}

fn key(key: &Bytes) -> Result<(), Error> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(invalid(format!("a key has 1 to {MAX_KEY_BYTES} bytes, not {}", key.len())));
    }
    Ok(())
}

fn writable(bytes: &Bytes) -> Result<(), Error> {
    key(bytes)?;
    if bytes.first() == Some(&keys::FENCE) {
        return Err(invalid("records of fences are written by the OSD only (R2)"));
    }
    Ok(())
}

/// A call of the record service.
pub(crate) fn record(map: &ClusterMap, call: record_request::Call) -> Result<Checked, Error> {
    match call {
        record_request::Call::Commit(request) => commit(map, request),
        record_request::Call::RaiseFence(request) => raise_fence(map, &request),
        record_request::Call::Get(request) => get(map, request),
        record_request::Call::Scan(request) => scan(map, &request),
    }
}

pub(crate) fn commit(map: &ClusterMap, request: CommitRequest) -> Result<Checked, Error> {
    let shard = shard(request.shard)?;
    if request.subtree == 0 || request.epoch == 0 || request.batch == 0 {
        return Err(invalid("subtree, epoch and batch of a commit count from 1"));
    }
    if request.puts.len() + request.deletes.len() > MAX_BATCH_RECORDS {
        return Err(Error::new(Reason::TooLarge, format!("a batch has at most {MAX_BATCH_RECORDS} records")));
    }
    let mut bytes = 0;
    let mut changes = Vec::with_capacity(request.puts.len() + request.deletes.len() + 1);
    for record in request.puts {
        writable(&record.key)?;
        bytes += record.key.len() + record.value.len();
        changes.push(Change::Put { key: keys::record(shard, &record.key), value: record.value });
    }
    for deleted in request.deletes {
        writable(&deleted)?;
        bytes += deleted.len();
        changes.push(Change::Delete { key: keys::record(shard, &deleted) });
    }
    if bytes > MAX_BATCH_BYTES {
        return Err(Error::new(Reason::TooLarge, format!("a batch has at most {MAX_BATCH_BYTES} bytes, not {bytes}")));
    }
    let (subtree, uses_reserve) = (SubtreeId(request.subtree), request.uses_reserve);
    let batch = Batch { shard, subtree, epoch: request.epoch, batch: request.batch, changes, uses_reserve };
    Ok(Checked {
        pg: map.pg_of_shard(shard),
        map_epoch: Epoch(request.map_epoch),
        call: Call::Write(Request::Commit(batch)),
        bytes,
    })
}

pub(crate) fn raise_fence(map: &ClusterMap, request: &RaiseFenceRequest) -> Result<Checked, Error> {
    let shard = shard(request.shard)?;
    if request.subtree == 0 {
        return Err(invalid("subtrees count from 1"));
    }
    let subtree = SubtreeId(request.subtree);
    Ok(Checked {
        pg: map.pg_of_shard(shard),
        map_epoch: Epoch(request.map_epoch),
        call: Call::Write(Request::RaiseFence { shard, subtree, epoch: request.epoch }),
        bytes: 0,
    })
}

pub(crate) fn get(map: &ClusterMap, request: GetRequest) -> Result<Checked, Error> {
    let shard = shard(request.shard)?;
    if request.keys.len() > MAX_KEYS {
        return Err(Error::new(Reason::TooLarge, format!("a get has at most {MAX_KEYS} keys")));
    }
    request.keys.iter().try_for_each(key)?;
    let keys: Vec<_> = request.keys.iter().map(|key| keys::record(shard, key)).collect();
    let bytes = keys.iter().map(Bytes::len).sum();
    Ok(Checked {
        pg: map.pg_of_shard(shard),
        map_epoch: Epoch(request.map_epoch),
        call: Call::Read(Fetch::Get { keys }),
        bytes,
    })
}

pub(crate) fn scan(map: &ClusterMap, request: &ScanRequest) -> Result<Checked, Error> {
    let shard = shard(request.shard)?;
    if request.start.len() > MAX_KEY_BYTES + 1 || request.end.len() > MAX_KEY_BYTES + 1 {
        return Err(invalid(format!("a key has at most {MAX_KEY_BYTES} bytes")));
    }
    let limit = match request.limit as usize {
        0 => DEFAULT_SCAN,
        limit => limit.min(MAX_SCAN),
    };
    let end = if request.end.is_empty() { keys::shard_end(shard) } else { keys::record(shard, &request.end) };
    let start = keys::record(shard, &request.start);
    Ok(Checked {
        pg: map.pg_of_shard(shard),
        map_epoch: Epoch(request.map_epoch),
        call: Call::Read(Fetch::Scan { start, end, limit }),
        bytes: 0,
    })
}

fn object(map: &ClusterMap, id: Option<ObjectId>) -> Result<(PgId, ObjectKey), Error> {
    let id = id.ok_or_else(|| invalid("the request names no object"))?;
    let pool = PoolId(id.pool);
    if !map.pools.contains_key(&pool) {
        return Err(Error::new(Reason::UnknownId, format!("there is no pool {}", id.pool)));
    }
    if pool == pando_proto::ids::METADATA_POOL {
        return Err(invalid("objects do not live in the metadata pool"));
    }
    let ino = Ino(id.ino);
    if !ino.is_valid() {
        return Err(invalid(format!("{} is no inode number", id.ino)));
    }
    let object = ObjectKey { ino, index: id.index };
    if object.is_floor() {
        return Err(invalid(format!("no object has the index {}", id.index)));
    }
    Ok((map.pg_of_object(pool, ino, id.index), object))
}

fn mutation(
    map: &ClusterMap,
    id: Option<ObjectId>,
    mutation: Option<ProtoMutation>,
    kind: MutationKind,
) -> Result<(PgId, Epoch, Mutation), Error> {
    let (pg, object) = object(map, id)?;
    let mutation = mutation.ok_or_else(|| invalid("the request does not say whose mutation it is (R22)"))?;
    if mutation.sequence == 0 {
        return Err(invalid("mutations of a session count from 1"));
    }
    let checked = Mutation {
        session: ClientId(mutation.session),
        sequence: mutation.sequence,
        low_water: mutation.low_water,
        generation: mutation.generation,
        object,
        kind,
    };
    Ok((pg, Epoch(mutation.map_epoch), checked))
}

fn too_large() -> Error {
    Error::new(Reason::TooLarge, format!("an object has at most {MAX_OBJECT_BYTES} bytes"))
}

pub(crate) fn write(map: &ClusterMap, request: WriteRequest) -> Result<Checked, Error> {
    let end = request.offset.checked_add(request.data.len() as u64);
    if end.is_none_or(|end| end > MAX_OBJECT_BYTES) {
        return Err(too_large());
    }
    let bytes = request.data.len();
    let kind = MutationKind::Write { offset: request.offset, data: request.data };
    let (pg, map_epoch, mutation) = mutation(map, request.object, request.mutation, kind)?;
    Ok(Checked { pg, map_epoch, call: Call::Write(Request::Mutate(mutation)), bytes })
}

pub(crate) fn trim(map: &ClusterMap, request: &TrimRequest) -> Result<Checked, Error> {
    let kind = match request.kind() {
        TrimKind::Unspecified => return Err(invalid("the kind of the trim is missing or unknown")),
        TrimKind::Zero => MutationKind::Zero { offset: request.offset, length: request.length },
        TrimKind::Truncate => MutationKind::Truncate { size: request.offset },
        TrimKind::Delete | TrimKind::DeleteFrom => MutationKind::Delete,
    };
    let (pg, map_epoch, mutation) = mutation(map, request.object, request.mutation, kind)?;
    let request = match request.kind() {
        TrimKind::DeleteFrom => Request::Purge(Box::new(Purge::new(mutation))),
        _ => Request::Mutate(mutation),
    };
    Ok(Checked { pg, map_epoch, call: Call::Write(request), bytes: 0 })
}

pub(crate) fn read(map: &ClusterMap, request: &ReadRequest) -> Result<Checked, Error> {
    if request.length > MAX_OBJECT_BYTES {
        return Err(Error::new(Reason::TooLarge, format!("a read has at most {MAX_OBJECT_BYTES} bytes")));
    }
    let (pg, object) = object(map, request.object)?;
    let fetch = Fetch::Read { object, offset: request.offset, length: request.length, generation: request.generation };
    let bytes = request.length as usize;
    Ok(Checked { pg, map_epoch: Epoch(request.map_epoch), call: Call::Read(fetch), bytes })
}

pub(crate) fn stat(map: &ClusterMap, request: &StatRequest) -> Result<Checked, Error> {
    let (pg, object) = object(map, request.object)?;
    Ok(Checked { pg, map_epoch: Epoch(request.map_epoch), call: Call::Read(Fetch::Stat { object }), bytes: 0 })
}

pub(crate) fn list(map: &ClusterMap, request: &ListRequest) -> Result<Checked, Error> {
    let pg = PgId { pool: PoolId(request.pool), index: request.pg_index };
    if !map.pgs.contains_key(&pg) {
        return Err(Error::new(Reason::UnknownId, format!("the map knows no placement group {pg}")));
    }
    let after = request.after.map(|id| ObjectKey { ino: Ino(id.ino), index: id.index });
    let limit = match request.limit as usize {
        0 => MAX_LIST,
        limit => limit.min(MAX_LIST),
    };
    let fetch = Fetch::List { pool: request.pool, after, limit };
    Ok(Checked { pg, map_epoch: Epoch(request.map_epoch), call: Call::Read(fetch), bytes: 0 })
}
