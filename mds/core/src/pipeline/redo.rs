//! Bringing batches over several shards to their end after their owner died (R5).

use std::collections::BTreeMap;

use bytes::Bytes;
use pando_proto::mds::RedoRecord;
use pando_proto::osd::Record;
use pando_proto::{Epoch, Error, Reason, ShardId};

use crate::records::FORMAT;

/// Order of batches everywhere (R4).
pub type Position = (Epoch, u64);

/// A redo record as found in its shard.
#[derive(Clone, Debug)]
pub struct Redo {
    /// Where it was found.
    pub shard: ShardId,
    /// Whose it is.
    pub position: Position,
    /// The parts of the other shards.
    pub parts: RedoRecord,
}

/// What is to be applied to one shard, in one commit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Repair {
    /// Records to write.
    pub puts: Vec<Record>,
    /// Keys to delete.
    pub deletes: Vec<Bytes>,
}

/// Reads a redo record's value.
///
/// Errors: bytes that are none ([`Reason::Corrupt`], [`Reason::NewerFormat`]).
pub fn decode(value: &Bytes) -> Result<RedoRecord, Error> {
    decode_record(value)
}

/// Reads a record's value: the format byte, then the message.
///
/// Errors: bytes that are none ([`Reason::Corrupt`], [`Reason::NewerFormat`]).
pub fn decode_record<M: prost::Message + Default>(value: &Bytes) -> Result<M, Error> {
    match value.first() {
        Some(&FORMAT) => M::decode(value.slice(1..))
            .map_err(|error| Error::new(Reason::Corrupt, format!("a metadata record cannot be read: {error}"))),
        Some(format) if *format > FORMAT => Err(Error::new(
            Reason::NewerFormat,
            format!("a metadata record has format {format}, this program knows {FORMAT}: use a newer one"),
        )),
        _ => Err(Error::new(Reason::Corrupt, "a metadata record has no format byte")),
    }
}

/// What each shard still lacks, given the position up to which it has applied batches. The positions must
/// be final: asked after the fence of the new epoch was raised.
///
/// R5 wants redo parts applied under their original position, so that none is applied twice. The same is
/// reached by one commit for each shard, under the new epoch, with all it lacks in order: it is atomic, and
/// once it is in, the shard's position is above all those parts. So a fence need never let an old epoch pass.
pub fn plan(positions: &BTreeMap<ShardId, Position>, mut redos: Vec<Redo>) -> BTreeMap<ShardId, Repair> {
    redos.sort_by_key(|redo| redo.position);
    let mut lacking: BTreeMap<ShardId, BTreeMap<Bytes, Option<Bytes>>> = BTreeMap::new();
    for redo in redos {
        for part in redo.parts.parts {
            let shard = ShardId(part.shard as u16);
            if positions.get(&shard).is_some_and(|applied| *applied >= redo.position) {
                continue;
            }
            let records = lacking.entry(shard).or_default();
            records.extend(part.puts.into_iter().map(|put| (put.key, Some(put.value))));
            records.extend(part.deletes.into_iter().map(|key| (key, None)));
        }
    }
    lacking.into_iter().map(|(shard, records)| (shard, repair(records))).collect()
}

fn repair(records: BTreeMap<Bytes, Option<Bytes>>) -> Repair {
    let mut repair = Repair::default();
    for (key, value) in records {
        match value {
            Some(value) => repair.puts.push(Record { key, value }),
            None => repair.deletes.push(key),
        }
    }
    repair
}
