//! Reads of clients, evaluated on the engine.

use bytes::Bytes;
use pando_osd_core::{ObjectHeader, ObjectKey, Reads, check_read_generation, keys, later};
use pando_proto::osd::{
    GetResponse, ListResponse, MaybeRecord, ObjectId, ReadResponse, Record, ScanResponse, StatResponse,
};
use pando_proto::{Error, PgId, Reason};

use super::Answer;
use crate::engine::{Engine, EngineError};

/// Bytes of values in one answer.
const MAX_ANSWER_BYTES: usize = 8 << 20;
/// Bytes of a page of records, about.
const SCAN_BYTES: usize = 2 << 20;

/// A read, checked for form. Keys are engine keys.
#[derive(Clone, Debug)]
pub(crate) enum Fetch {
    Get { keys: Vec<Bytes> },
    Scan { start: Bytes, end: Bytes, limit: usize },
    Read { object: ObjectKey, offset: u64, length: u64, generation: u64 },
    Stat { object: ObjectKey },
    List { pool: u32, after: Option<ObjectKey>, limit: usize },
}

impl Fetch {
    /// What it looks at.
    pub fn reads(&self) -> Reads {
        match self {
            Self::Get { keys } => Reads::Keys(keys.clone()),
            Self::Scan { start, end, .. } => Reads::Range { start: start.clone(), end: end.clone() },
            Self::Read { object, .. } | Self::Stat { object } => Reads::Object(*object),
            Self::List { .. } => Reads::Objects,
        }
    }

    /// Asks the engine. Blocks.
    pub fn evaluate(&self, engine: &dyn Engine, pg: PgId) -> Result<Answer, Error> {
        match self {
            Self::Get { keys } => get(engine, pg, keys),
            Self::Scan { start, end, limit } => scan(engine, pg, start, end, *limit),
            Self::Read { object, offset, length, generation } => {
                let header = header(engine, pg, *object).map_err(engine_error)?;
                check_read_generation(header, *generation)?;
                let object_size = header.filter(|header| !header.deleted).map_or(0, |header| header.size);
                let data = if *offset < object_size {
                    engine.read(pg, *object, *offset, *length).map_err(engine_error)?
                } else {
                    Bytes::new()
                };
                Ok(Answer::Read(ReadResponse { data, object_size }))
            }
            Self::Stat { object } => {
                let header = header(engine, pg, *object).map_err(engine_error)?;
                let alive = header.filter(|header| !header.deleted);
                let stored_bytes = match alive {
                    Some(_) => engine.stored_bytes(pg, *object).map_err(engine_error)?,
                    None => 0,
                };
                Ok(Answer::Stat(StatResponse {
                    exists: alive.is_some(),
                    size: alive.map_or(0, |header| header.size),
                    stored_bytes,
                    generation: header.map_or(0, |header| header.generation),
                }))
            }
            Self::List { pool, after, limit } => list(engine, pg, *pool, *after, *limit),
        }
    }
}

/// R22: the zeros of an object that does not live are shown only to those who know that it was purged. The floor is read
/// after the object: it is written before any object goes for its sake.
fn header(engine: &dyn Engine, pg: PgId, object: ObjectKey) -> Result<Option<ObjectHeader>, EngineError> {
    match engine.header(pg, object)? {
        Some(own) if !own.deleted => Ok(Some(own)),
        own => Ok(later(own, engine.header(pg, ObjectKey::floor(object.ino))?)),
    }
}

fn get(engine: &dyn Engine, pg: PgId, keys: &[Bytes]) -> Result<Answer, Error> {
    let mut records = Vec::with_capacity(keys.len());
    let mut bytes = 0;
    for key in keys {
        let value = engine.get(pg, key).map_err(engine_error)?;
        bytes += value.as_ref().map_or(0, Bytes::len);
        if bytes > MAX_ANSWER_BYTES {
            return Err(Error::new(Reason::TooLarge, "the values do not fit into one answer: ask for fewer keys"));
        }
        records.push(MaybeRecord { value });
    }
    Ok(Answer::Get(GetResponse { records }))
}

fn scan(engine: &dyn Engine, pg: PgId, start: &Bytes, end: &Bytes, limit: usize) -> Result<Answer, Error> {
    if start >= end {
        return Ok(Answer::Scan(ScanResponse::default()));
    }
    let page = engine.scan(pg, start, end, limit, SCAN_BYTES).map_err(engine_error)?;
    let strip = |key: Bytes| key.slice(keys::SHARD_PREFIX_BYTES.min(key.len())..);
    let records = page.records.into_iter().map(|(key, value)| Record { key: strip(key), value }).collect();
    Ok(Answer::Scan(ScanResponse { records, next: page.next.map(strip).unwrap_or_default() }))
}

fn list(engine: &dyn Engine, pg: PgId, pool: u32, after: Option<ObjectKey>, limit: usize) -> Result<Answer, Error> {
    let mut objects = Vec::new();
    let mut last = after;
    loop {
        let page = engine.list_objects(pg, last, limit).map_err(engine_error)?;
        let more = page.len() == limit;
        last = page.last().map(|(object, _)| *object).or(last);
        let alive = page.into_iter().filter(|(_, header)| !header.deleted);
        objects.extend(alive.map(|(object, _)| ObjectId { pool, ino: object.ino.0, index: object.index }));
        if !more || objects.len() >= limit {
            // A page of tombstones only may make it longer than asked for: then the rest follows in the next.
            let more = more || objects.len() > limit;
            objects.truncate(limit);
            return Ok(Answer::List(ListResponse { objects, more }));
        }
    }
}

/// What a client is told of a failing engine.
pub(crate) fn engine_error(error: EngineError) -> Error {
    let reason = match &error {
        EngineError::Corrupt { .. } => {
            tracing::error!(%error, "corrupt data");
            Reason::Corrupt
        }
        EngineError::Invalid(_) => Reason::InvalidRequest,
        EngineError::Full => Reason::NoSpace,
        EngineError::Io(_) | EngineError::Directory(_) => {
            tracing::error!(%error, "the engine failed");
            Reason::Storage
        }
    };
    Error::new(reason, error.to_string())
}
