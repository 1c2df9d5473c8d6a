//! Messages of the core on the wire. What comes in is hostile until it is converted.

use std::sync::Arc;

use bytes::Bytes;
use pando_osd_core::{
    Body, Change, Entry, Message, ObjectCopy, ObjectHeader, ObjectKey, PageRange, Part, Position, Told,
};
use pando_proto::osd::{self as proto, content_range, replica_message, stored_change};
use pando_proto::{Error, Ino, OsdId, PgId, PoolId, Reason};

pub(crate) fn to_proto(pg: PgId, from: OsdId, to: OsdId, message: Message) -> proto::ReplicaMessage {
    use replica_message::Body as Out;
    let body = match message.body {
        Body::Probe { ticket } => Out::Probe(proto::ReplicaProbe { ticket }),
        Body::Append(entry, decided) => {
            Out::Append(proto::ReplicaEntry { decided: position_to_proto(decided), ..entry_to_proto(&entry) })
        }
        Body::Begin { position } => Out::Begin(proto::ReplicaBegin { position: position_to_proto(position) }),
        Body::Digest { ticket, range, digest } => {
            Out::Digest(proto::ReplicaDigest { ticket, range: Some(range_to_proto(range)), digest })
        }
        Body::Install { ticket, part } => Out::Install(proto::ReplicaInstall {
            ticket,
            range: Some(range_to_proto(part.range)),
            records: part.records.into_iter().map(|(key, value)| proto::Record { key, value }).collect(),
            objects: part.objects.into_iter().map(copy_to_proto).collect(),
        }),
        Body::Finish { ticket, position } => {
            Out::Finish(proto::ReplicaFinish { ticket, position: position_to_proto(position) })
        }
        Body::Pull { ticket, after } => Out::Pull(proto::ReplicaPull { ticket, after: position_to_proto(after) }),
        Body::Position { ticket, told } => Out::Position(proto::ReplicaPosition {
            ticket,
            position: position_to_proto(told.position),
            incomplete: told.incomplete,
            decided: position_to_proto(told.decided),
            full: told.full,
        }),
        Body::Ack { position, full } => Out::Ack(proto::ReplicaAck { position: position_to_proto(position), full }),
        Body::Synced { ticket, equal } => Out::Synced(proto::ReplicaSynced { ticket, equal }),
        Body::Entries { ticket, entries } => {
            Out::Entries(proto::ReplicaEntries { ticket, entries: entries.iter().map(entry_to_proto).collect() })
        }
        Body::Refused { promised } => Out::Refused(proto::ReplicaRefused { promised }),
    };
    proto::ReplicaMessage {
        pool: pg.pool.0,
        pg_index: pg.index,
        from: from.0,
        to: to.0,
        config: message.config,
        body: Some(body),
    }
}

/// A message with whose it is and who sent it to whom.
pub(crate) struct Envelope {
    pub pg: PgId,
    pub from: OsdId,
    pub to: OsdId,
    pub message: Message,
}

pub(crate) fn from_proto(message: proto::ReplicaMessage) -> Result<Envelope, Error> {
    use replica_message::Body as In;
    let body = match message.body.ok_or_else(|| missing("body"))? {
        In::Probe(probe) => Body::Probe { ticket: probe.ticket },
        In::Append(entry) => {
            let decided = position_from_proto(entry.decided);
            Body::Append(entry_from_proto(entry)?, decided)
        }
        In::Begin(begin) => Body::Begin { position: position_from_proto(begin.position) },
        In::Digest(digest) => {
            Body::Digest { ticket: digest.ticket, range: range_from_proto(digest.range)?, digest: digest.digest }
        }
        In::Install(install) => {
            let part = Part {
                range: range_from_proto(install.range)?,
                records: install.records.into_iter().map(|record| (record.key, record.value)).collect(),
                objects: install.objects.into_iter().map(copy_from_proto).collect::<Result<_, _>>()?,
            };
            Body::Install { ticket: install.ticket, part }
        }
        In::Finish(finish) => Body::Finish { ticket: finish.ticket, position: position_from_proto(finish.position) },
        In::Pull(pull) => Body::Pull { ticket: pull.ticket, after: position_from_proto(pull.after) },
        In::Position(position) => Body::Position {
            ticket: position.ticket,
            told: Told {
                position: position_from_proto(position.position),
                decided: position_from_proto(position.decided),
                incomplete: position.incomplete,
                full: position.full,
            },
        },
        In::Ack(ack) => Body::Ack { position: position_from_proto(ack.position), full: ack.full },
        In::Synced(synced) => Body::Synced { ticket: synced.ticket, equal: synced.equal },
        In::Entries(entries) => Body::Entries {
            ticket: entries.ticket,
            entries: entries.entries.into_iter().map(entry_from_proto).collect::<Result<_, _>>()?,
        },
        In::Refused(refused) => Body::Refused { promised: refused.promised },
    };
    Ok(Envelope {
        pg: PgId { pool: PoolId(message.pool), index: message.pg_index },
        from: OsdId(message.from),
        to: OsdId(message.to),
        message: Message { config: message.config, body },
    })
}

fn missing(what: &str) -> Error {
    Error::new(Reason::InvalidRequest, format!("a replication message without {what}"))
}

fn position_to_proto(position: Position) -> Option<proto::LogPosition> {
    Some(proto::LogPosition { config: position.config, sequence: position.seq })
}

fn position_from_proto(position: Option<proto::LogPosition>) -> Position {
    position.map_or_else(Position::default, |position| Position { config: position.config, seq: position.sequence })
}

fn name_to_proto(object: ObjectKey) -> Option<proto::ObjectName> {
    Some(proto::ObjectName { ino: object.ino.0, index: object.index })
}

fn name_from_proto(name: Option<proto::ObjectName>) -> Result<ObjectKey, Error> {
    name.map(|name| ObjectKey { ino: Ino(name.ino), index: name.index }).ok_or_else(|| missing("an object's name"))
}

fn range_to_proto(range: PageRange) -> proto::ContentRange {
    let range = match range {
        PageRange::Records { start, end } => content_range::Range::Records(proto::KeyRange { start, end }),
        PageRange::Objects { after, through } => content_range::Range::Objects(proto::ObjectRange {
            after: after.and_then(name_to_proto),
            through: through.and_then(name_to_proto),
        }),
    };
    proto::ContentRange { range: Some(range) }
}

fn range_from_proto(range: Option<proto::ContentRange>) -> Result<PageRange, Error> {
    match range.and_then(|range| range.range).ok_or_else(|| missing("a range"))? {
        content_range::Range::Records(proto::KeyRange { start, end }) => {
            if start < pando_osd_core::keys::REPLICATED {
                return Err(Error::new(Reason::InvalidRequest, "a range over what is not replicated"));
            }
            Ok(PageRange::Records { start, end })
        }
        content_range::Range::Objects(range) => {
            let name = |name: proto::ObjectName| ObjectKey { ino: Ino(name.ino), index: name.index };
            Ok(PageRange::Objects { after: range.after.map(name), through: range.through.map(name) })
        }
    }
}

fn copy_to_proto(copy: ObjectCopy) -> proto::ObjectCopy {
    let piece = |(offset, data)| proto::ObjectPiece { offset, data };
    proto::ObjectCopy {
        object: name_to_proto(copy.object),
        size: copy.header.size,
        generation: copy.header.generation,
        deleted: copy.header.deleted,
        sessions_before: copy.header.sessions_before,
        pieces: copy.pieces.into_iter().map(piece).collect(),
    }
}

fn copy_from_proto(copy: proto::ObjectCopy) -> Result<ObjectCopy, Error> {
    let header = ObjectHeader {
        size: copy.size,
        generation: copy.generation,
        deleted: copy.deleted,
        sessions_before: copy.sessions_before,
    };
    let pieces = copy.pieces.into_iter().map(|piece| (piece.offset, piece.data)).collect();
    Ok(ObjectCopy { object: name_from_proto(copy.object)?, header, pieces })
}

fn entry_to_proto(entry: &Entry) -> proto::ReplicaEntry {
    proto::ReplicaEntry {
        position: position_to_proto(entry.position),
        previous: position_to_proto(entry.previous),
        changes: entry.changes.iter().map(change_to_proto).collect(),
        decided: None,
    }
}

fn entry_from_proto(entry: proto::ReplicaEntry) -> Result<Entry, Error> {
    Ok(Entry {
        position: position_from_proto(entry.position),
        previous: position_from_proto(entry.previous),
        changes: Arc::new(entry.changes.into_iter().map(change_from_proto).collect::<Result<_, _>>()?),
    })
}

fn change_to_proto(change: &Change) -> proto::StoredChange {
    use stored_change::Change as Out;
    let change = match change.clone() {
        Change::Put { key, value } => Out::Put(proto::Record { key, value }),
        Change::Delete { key } => Out::Delete(key),
        Change::DeleteRange { start, end } => Out::DeleteRange(proto::KeyRange { start, end }),
        Change::Write { object, offset, data } => {
            Out::Write(proto::ObjectExtent { object: name_to_proto(object), offset, data })
        }
        Change::Zero { object, offset, length } => {
            Out::Zero(proto::ObjectSpan { object: name_to_proto(object), offset, length })
        }
        Change::Truncate { object, size } => Out::Truncate(proto::ObjectCut { object: name_to_proto(object), size }),
        Change::SetHeader { object, generation, deleted, sessions_before } => {
            Out::SetHeader(proto::ObjectMark { object: name_to_proto(object), generation, deleted, sessions_before })
        }
        Change::Forget { object } => Out::Forget(proto::ObjectName { ino: object.ino.0, index: object.index }),
    };
    proto::StoredChange { change: Some(change) }
}

fn change_from_proto(change: proto::StoredChange) -> Result<Change, Error> {
    use stored_change::Change as In;
    Ok(match change.change.ok_or_else(|| missing("a change"))? {
        In::Put(proto::Record { key, value }) => Change::Put { key: replicated(key)?, value },
        In::Delete(key) => Change::Delete { key: replicated(key)? },
        In::DeleteRange(proto::KeyRange { start, end }) => Change::DeleteRange { start: replicated(start)?, end },
        In::Write(write) => {
            Change::Write { object: name_from_proto(write.object)?, offset: write.offset, data: write.data }
        }
        In::Zero(zero) => {
            Change::Zero { object: name_from_proto(zero.object)?, offset: zero.offset, length: zero.length }
        }
        In::Truncate(cut) => Change::Truncate { object: name_from_proto(cut.object)?, size: cut.size },
        In::SetHeader(mark) => Change::SetHeader {
            object: name_from_proto(mark.object)?,
            generation: mark.generation,
            deleted: mark.deleted,
            sessions_before: mark.sessions_before,
        },
        In::Forget(name) => Change::Forget { object: ObjectKey { ino: Ino(name.ino), index: name.index } },
    })
}

fn replicated(key: Bytes) -> Result<Bytes, Error> {
    if key < pando_osd_core::keys::REPLICATED {
        return Err(Error::new(Reason::InvalidRequest, "a change of what is not replicated"));
    }
    Ok(key)
}
