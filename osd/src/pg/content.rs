//! Reading own content for other copies: pages, and their digests.

use std::hash::Hasher as _;

use bytes::{BufMut as _, Bytes, BytesMut};
use pando_osd_core::{Cursor, ObjectCopy, ObjectHeader, ObjectKey, Page, PageQuery, PageRange, Part};
use pando_proto::{OsdId, PgId};
use rustc_hash::FxHasher;

use crate::engine::{Engine, EngineError};

/// Records and bytes of a page.
const PAGE_RECORDS: usize = 1000;
const PAGE_BYTES: usize = 2 << 20;
/// Objects of a page; it ends earlier when their sizes add up to `PAGE_OBJECT_BYTES`.
const PAGE_OBJECTS: usize = 64;
const PAGE_OBJECT_BYTES: u64 = 4 << 20;
/// Objects are read, and their holes left out, in pieces of this size.
const PIECE_BYTES: u64 = 64 << 10;

/// Two independent sums over length-prefixed fields: 96 bits against accidents, not against malice.
#[derive(Default)]
struct Digest {
    fast: FxHasher,
    crc: u32,
}

impl Digest {
    fn add(&mut self, bytes: &[u8]) {
        self.fast.write_usize(bytes.len());
        self.fast.write(bytes);
        self.crc = crc32c::crc32c_append(self.crc, &(bytes.len() as u64).to_le_bytes());
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }

    fn finish(&self) -> Bytes {
        let mut digest = BytesMut::with_capacity(12);
        digest.put_u64(self.fast.finish());
        digest.put_u32(self.crc);
        digest.freeze()
    }
}

/// Reads what a core of the OSD `me` asked for. Blocks.
pub(crate) fn page(engine: &dyn Engine, pg: PgId, me: OsdId, query: &PageQuery) -> Result<Page, EngineError> {
    let (range, content) = match query {
        PageQuery::Range { range, content } => (range.clone(), *content),
        PageQuery::From { cursor: Cursor::Records(start), content } => {
            let page = engine.scan(pg, start, &[], PAGE_RECORDS, PAGE_BYTES)?;
            let range = PageRange::Records { start: start.clone(), end: page.next.unwrap_or_default() };
            return Ok(records_page(range, page.records, *content));
        }
        PageQuery::From { cursor: Cursor::Objects(after), content } => (objects_from(engine, pg, *after)?, *content),
        PageQuery::From { cursor: Cursor::End, content } => {
            (PageRange::Objects { after: Some(LAST), through: Some(LAST) }, *content)
        }
    };
    match range {
        PageRange::Records { start, end } => {
            let records = all_records(engine, pg, &start, &end)?;
            Ok(records_page(PageRange::Records { start, end }, records, content))
        }
        PageRange::Objects { after, through } => objects_page(engine, pg, me, (after, through), content),
    }
}

const LAST: ObjectKey = ObjectKey { ino: pando_proto::Ino(u64::MAX), index: u64::MAX };

fn all_records(engine: &dyn Engine, pg: PgId, start: &Bytes, end: &Bytes) -> Result<Vec<(Bytes, Bytes)>, EngineError> {
    let mut records = Vec::new();
    let mut from = start.clone();
    loop {
        let page = engine.scan(pg, &from, end, PAGE_RECORDS, PAGE_BYTES)?;
        records.extend(page.records);
        match page.next {
            Some(next) => from = next,
            None => return Ok(records),
        }
    }
}

fn records_page(range: PageRange, records: Vec<(Bytes, Bytes)>, content: bool) -> Page {
    let mut digest = Digest::default();
    for (key, value) in &records {
        digest.add(key);
        digest.add(value);
    }
    let part = content.then(|| Part { range: range.clone(), records, objects: Vec::new() });
    Page { range, digest: digest.finish(), objects: Vec::new(), part }
}

/// A range of objects of a convenient size; the last one is open.
fn objects_from(engine: &dyn Engine, pg: PgId, after: Option<ObjectKey>) -> Result<PageRange, EngineError> {
    let found = engine.list_objects(pg, after, PAGE_OBJECTS)?;
    let mut bytes = 0;
    let mut through = None;
    for (taken, (object, header)) in found.iter().enumerate() {
        bytes += header.size;
        if taken > 0 && bytes > PAGE_OBJECT_BYTES {
            return Ok(PageRange::Objects { after, through });
        }
        through = Some(*object);
    }
    if found.len() < PAGE_OBJECTS {
        through = None;
    }
    Ok(PageRange::Objects { after, through })
}

fn objects_page(
    engine: &dyn Engine,
    pg: PgId,
    me: OsdId,
    (after, through): (Option<ObjectKey>, Option<ObjectKey>),
    content: bool,
) -> Result<Page, EngineError> {
    let mut digest = Digest::default();
    let (mut objects, mut copies) = (Vec::new(), Vec::new());
    let mut last = after;
    'pages: loop {
        let found = engine.list_objects(pg, last, PAGE_OBJECTS)?;
        let more = found.len() == PAGE_OBJECTS;
        for (object, header) in found {
            if through.is_some_and(|through| object > through) {
                break 'pages;
            }
            last = Some(object);
            objects.push(object);
            let pieces = match object_pieces(engine, pg, object, header, &mut digest, content) {
                // To be replaced: its name counts, and a digest that no other copy has.
                Err(EngineError::Corrupt { what }) if !content => {
                    tracing::error!(%pg, %what, "an object is damaged: it differs from every other copy");
                    digest.add(b"damaged");
                    digest.add(&me.0.to_le_bytes());
                    Vec::new()
                }
                pieces => pieces?,
            };
            if content {
                copies.push(ObjectCopy { object, header, pieces });
            }
        }
        if !more {
            break;
        }
    }
    let range = PageRange::Objects { after, through };
    let part = content.then(|| Part { range: range.clone(), records: Vec::new(), objects: copies });
    Ok(Page { range, digest: digest.finish(), objects, part })
}

/// An object's bytes without its holes. Zeros that were written count as holes: both read the same.
fn object_pieces(
    engine: &dyn Engine,
    pg: PgId,
    object: ObjectKey,
    header: ObjectHeader,
    digest: &mut Digest,
    content: bool,
) -> Result<Vec<(u64, Bytes)>, EngineError> {
    for number in [object.ino.0, object.index, header.size, header.generation] {
        digest.add(&number.to_le_bytes());
    }
    digest.add(&[header.deleted.into()]);
    digest.add(&header.sessions_before.to_le_bytes());
    let mut pieces = Vec::new();
    let mut offset = 0;
    while offset < header.size && !header.deleted {
        let data = engine.read(pg, object, offset, PIECE_BYTES)?;
        if data.iter().any(|byte| *byte != 0) {
            digest.add(&offset.to_le_bytes());
            digest.add(&data);
            if content {
                pieces.push((offset, data));
            }
        }
        offset += PIECE_BYTES;
    }
    Ok(pieces)
}
