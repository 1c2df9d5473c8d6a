//! One batch while it fills and on its way.

use std::collections::BTreeMap;

use bytes::{BufMut as _, Bytes, BytesMut};
use pando_proto::ShardId;
use pando_proto::mds::{Completed, CompletedRecord, RedoPart, RedoPut, RedoRecord};
use pando_proto::osd::Record;
use prost::Message;
use smallvec::SmallVec;

use super::Limits;
use crate::api::{BatchId, Reads, Write};
use crate::records::{FORMAT, Key};

/// Where a batch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Takes changes.
    Open,
    /// Takes no more, and was not sent.
    Closed,
    /// Its first part is in flight.
    Sent,
    /// Its first part is durable: the point of no return (R5).
    Durable,
}

/// The last write of each key.
type Part = BTreeMap<Bytes, Option<Bytes>>;

/// Whether a write makes room, or is on the way to that (I9): a delete, or a record that goes again and without which
/// nothing could be removed. Such a record says that a shard is used, what is to happen in several subtrees, or what is
/// to be purged; it is small, and there are few.
pub fn makes_room(write: &Write) -> bool {
    write.value.is_none() || matches!(write.key, Key::ShardList(..) | Key::Transaction(..) | Key::Purge(_))
}

#[derive(Debug)]
pub(super) struct Batch {
    pub stage: Stage,
    /// The shard that takes the first part, `r/` and `q/`.
    pub first: ShardId,
    /// Undurable batches it was built on; lower numbers only.
    pub needs: Reads,
    /// Parts that are not in their shard yet.
    pub outstanding: usize,
    pub bytes: usize,
    /// It does, in one of its shards (I9).
    pub makes_room: bool,
    operations: usize,
    parts: SmallVec<[(ShardId, Part); 1]>,
    completed: Vec<Completed>,
}

/// What an addition did.
pub(super) struct Grown {
    pub bytes: usize,
    pub remembers: bool,
}

impl Batch {
    /// `shards` in order, at least one.
    pub fn new(shards: &[ShardId]) -> Self {
        Self {
            stage: Stage::Open,
            first: shards[0],
            needs: Reads::new(),
            outstanding: shards.len(),
            bytes: 0,
            makes_room: false,
            operations: 0,
            parts: shards.iter().map(|shard| (*shard, Part::new())).collect(),
            completed: Vec::new(),
        }
    }

    pub fn shards(&self) -> SmallShards {
        self.parts.iter().map(|(shard, _)| *shard).collect::<SmallVec<[ShardId; 4]>>().into_iter()
    }

    pub fn is_multi(&self) -> bool {
        self.parts.len() > 1
    }

    pub fn is_full(&self, limits: &Limits) -> bool {
        self.bytes >= limits.bytes || self.operations >= limits.operations
    }

    pub fn add(&mut self, own: BatchId, writes: &[Write], needs: &[BatchId], completed: Option<Completed>) -> Grown {
        debug_assert!(needs.iter().all(|need| *need <= own), "R6: a batch depends on lower numbers only");
        for need in needs.iter().filter(|need| **need != own) {
            if !self.needs.contains(need) {
                self.needs.push(*need);
            }
        }
        let mut bytes = 0;
        for write in writes {
            let (shard, key) = (write.key.shard(), write.key.encode());
            self.makes_room |= makes_room(write);
            bytes += key.len() + write.value.as_ref().map_or(0, Bytes::len);
            if let Some((_, part)) = self.parts.iter_mut().find(|(known, _)| *known == shard) {
                part.insert(key, write.value.clone());
            }
        }
        let remembers = completed.is_some();
        if let Some(completed) = completed {
            bytes += completed.result.len() + 24;
            self.completed.push(completed);
        }
        self.bytes += bytes;
        self.operations += 1;
        Grown { bytes, remembers }
    }

    /// The records of a part, which leaves it empty.
    pub fn take_part(&mut self, shard: ShardId) -> (Vec<Record>, Vec<Bytes>) {
        let (mut puts, mut deletes) = (Vec::new(), Vec::new());
        if let Some((_, part)) = self.parts.iter_mut().find(|(known, _)| *known == shard) {
            for (key, value) in std::mem::take(part) {
                match value {
                    Some(value) => puts.push(Record { key, value }),
                    None => deletes.push(key),
                }
            }
        }
        (puts, deletes)
    }

    /// The other parts, for `r/`; `None` for a batch in one shard.
    pub fn redo_record(&self) -> Option<Bytes> {
        if !self.is_multi() {
            return None;
        }
        let others = self.parts.iter().filter(|(shard, _)| *shard != self.first);
        let parts = others.map(|(shard, part)| redo_part(*shard, part)).collect();
        Some(encode(&RedoRecord { parts }))
    }

    /// For `q/`; `None` if nobody is to be remembered.
    pub fn completed_record(&mut self) -> Option<Bytes> {
        let completed = std::mem::take(&mut self.completed);
        (!completed.is_empty()).then(|| encode(&CompletedRecord { completed }))
    }
}

pub(super) type SmallShards = smallvec::IntoIter<[ShardId; 4]>;

fn redo_part(shard: ShardId, part: &Part) -> RedoPart {
    let put = |(key, value): (&Bytes, &Option<Bytes>)| {
        value.as_ref().map(|value| RedoPut { key: key.clone(), value: value.clone() })
    };
    let puts = part.iter().filter_map(put).collect();
    let deletes = part.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key.clone()).collect();
    RedoPart { shard: u32::from(shard.0), puts, deletes }
}

/// A record value: the format byte and the message.
pub(super) fn encode(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::with_capacity(1 + message.encoded_len());
    bytes.put_u8(FORMAT);
    bytes.put_slice(&message.encode_to_vec());
    bytes.freeze()
}
