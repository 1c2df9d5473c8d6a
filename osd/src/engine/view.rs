//! What a back end lets the shared code see: one consistent state of its store.
//!
//! Semantics are written once: reads here, changes in [`super::stage`]. A back
//! end brings a [`View`] and a way to make a set of values durable together.

use bytes::{Bytes, BytesMut};
use pando_proto::PgId;

use super::format::{self, BLOCK_BYTES, MAX_READ_BYTES, Space, block_of, block_start};
use super::{EngineError, ObjectHeader, ObjectKey, ScanPage};

/// One state of the store, between two commits.
pub(crate) trait View {
    fn record(&self, pg: PgId, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// Shows the records of a range in order, until `visit` says false.
    fn records(
        &self,
        pg: PgId,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(Bytes, Bytes) -> bool,
    ) -> Result<(), EngineError>;

    /// Record keys of a range; values are not looked at, so that rot does not stop a delete.
    fn record_keys(&self, pg: PgId, start: &[u8], end: &[u8]) -> Result<Vec<Bytes>, EngineError>;

    fn header(&self, pg: PgId, object: ObjectKey) -> Result<Option<ObjectHeader>, EngineError>;

    fn headers(
        &self,
        pg: PgId,
        after: Option<ObjectKey>,
        limit: usize,
    ) -> Result<Vec<(ObjectKey, ObjectHeader)>, EngineError>;

    /// The stored bytes of a block, checked; those missing up to [`BLOCK_BYTES`] are zeros.
    fn block(&self, pg: PgId, object: ObjectKey, block: u32) -> Result<Option<Bytes>, EngineError>;

    /// Numbers and stored bytes of the blocks from `first` to `last`.
    fn blocks(&self, pg: PgId, object: ObjectKey, first: u32, last: u32) -> Result<Vec<(u32, u32)>, EngineError>;

    /// The first PG at or after `pg` of which anything is stored.
    fn pg_from(&self, pg: PgId) -> Result<Option<PgId>, EngineError>;
}

/// Keys and sealed values in order: what a back end on a key-value store has to bring for a [`View`].
pub(crate) trait KeyValues {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// Shows `[start, end)` in order until `visit` says false.
    fn range(
        &self,
        space: Space,
        start: &[u8],
        end: Option<&[u8]>,
        visit: &mut dyn FnMut(Bytes, Bytes) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError>;

    /// As [`range`](Self::range), with the lengths of the values only.
    fn lengths(
        &self,
        space: Space,
        start: &[u8],
        end: Option<&[u8]>,
        visit: &mut dyn FnMut(Bytes, usize) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError>;
}

/// A [`View`] of sealed values in the key layout of [`super::format`].
pub(crate) struct KvView<T>(pub T);

impl<T: KeyValues> View for KvView<T> {
    fn record(&self, pg: PgId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let key = format::record_key(pg, key);
        let sealed = self.0.get(Space::Records, &key)?;
        sealed.map(|sealed| format::unseal(Space::Records, &key, &sealed)).transpose()
    }

    fn records(
        &self,
        pg: PgId,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(Bytes, Bytes) -> bool,
    ) -> Result<(), EngineError> {
        let (start, end) = format::record_range(pg, start, end);
        self.0.range(Space::Records, &start, end.as_deref(), &mut |key, sealed| {
            let value = format::unseal(Space::Records, &key, &sealed)?;
            Ok(visit(format::decode_record_key(&key)?, value))
        })
    }

    fn record_keys(&self, pg: PgId, start: &[u8], end: &[u8]) -> Result<Vec<Bytes>, EngineError> {
        let (start, end) = format::record_range(pg, start, end);
        let mut keys = Vec::new();
        self.0.lengths(Space::Records, &start, end.as_deref(), &mut |key, _| {
            keys.push(format::decode_record_key(&key)?);
            Ok(true)
        })?;
        Ok(keys)
    }

    fn header(&self, pg: PgId, object: ObjectKey) -> Result<Option<ObjectHeader>, EngineError> {
        let key = format::object_key(pg, object);
        let Some(sealed) = self.0.get(Space::Headers, &key)? else { return Ok(None) };
        format::decode_header(&key, &format::unseal(Space::Headers, &key, &sealed)?).map(Some)
    }

    fn headers(
        &self,
        pg: PgId,
        after: Option<ObjectKey>,
        limit: usize,
    ) -> Result<Vec<(ObjectKey, ObjectHeader)>, EngineError> {
        let start = match after {
            // The next key there can be: the same with a zero byte behind it.
            Some(object) => [format::object_key(pg, object), vec![0]].concat(),
            None => format::pg_key(pg).to_vec(),
        };
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        self.0.range(Space::Headers, &start, format::pg_end(pg).as_deref(), &mut |key, sealed| {
            let header = format::decode_header(&key, &format::unseal(Space::Headers, &key, &sealed)?)?;
            found.push((format::decode_object_key(&key)?, header));
            Ok(found.len() < limit)
        })?;
        Ok(found)
    }

    fn block(&self, pg: PgId, object: ObjectKey, block: u32) -> Result<Option<Bytes>, EngineError> {
        let key = format::block_key(pg, object, block);
        let sealed = self.0.get(Space::Blocks, &key)?;
        sealed.map(|sealed| format::unseal(Space::Blocks, &key, &sealed)).transpose()
    }

    fn blocks(&self, pg: PgId, object: ObjectKey, first: u32, last: u32) -> Result<Vec<(u32, u32)>, EngineError> {
        let start = format::block_key(pg, object, first);
        let end = [format::block_key(pg, object, last), vec![0]].concat();
        let mut found = Vec::new();
        if first > last {
            return Ok(found);
        }
        self.0.lengths(Space::Blocks, &start, Some(&end), &mut |key, length| {
            found.push((format::decode_block_number(&key)?, format::unsealed_len(length)));
            Ok(true)
        })?;
        Ok(found)
    }

    fn pg_from(&self, pg: PgId) -> Result<Option<PgId>, EngineError> {
        let mut found = None;
        for space in [Space::Records, Space::Headers] {
            let mut first = None;
            self.0.lengths(space, &format::pg_key(pg), None, &mut |key, _| {
                first = Some(format::decode_pg(&key)?);
                Ok(false)
            })?;
            found = match (found, first) {
                (Some(a), Some(b)) => Some(std::cmp::min(a, b)),
                (a, b) => a.or(b),
            };
        }
        Ok(found)
    }
}

/// See [`super::Engine::scan`].
pub(crate) fn scan(
    view: &impl View,
    pg: PgId,
    start: &[u8],
    end: &[u8],
    limit: usize,
    max_bytes: usize,
) -> Result<ScanPage, EngineError> {
    let mut page = ScanPage::default();
    let (limit, mut bytes) = (limit.max(1), 0);
    view.records(pg, start, end, &mut |key, value| {
        bytes += key.len() + value.len();
        if page.records.len() == limit || (bytes > max_bytes && !page.records.is_empty()) {
            page.next = Some(key);
            return false;
        }
        page.records.push((key, value));
        true
    })?;
    Ok(page)
}

/// See [`super::Engine::read`].
pub(crate) fn read(
    view: &impl View,
    pg: PgId,
    object: ObjectKey,
    offset: u64,
    length: u64,
) -> Result<Bytes, EngineError> {
    let size = view.header(pg, object)?.map_or(0, |header| header.size);
    let end = size.min(offset.saturating_add(length));
    if offset >= end {
        return Ok(Bytes::new());
    }
    if end - offset > MAX_READ_BYTES {
        return Err(EngineError::Invalid(format!(
            "a read of {} bytes: ask for at most {MAX_READ_BYTES}",
            end - offset
        )));
    }
    let (first, last) = (block_of(offset), block_of(end - 1));
    if first == last {
        return read_in_block(view, pg, object, first, offset, end);
    }
    let mut bytes = BytesMut::with_capacity((end - offset) as usize);
    for block in first..=last {
        let from = offset.max(block_start(block));
        let to = end.min(block_start(block) + BLOCK_BYTES as u64);
        let part = stored_part(view.block(pg, object, block)?, block, from, to);
        bytes.extend_from_slice(&part);
        bytes.resize((to - offset) as usize, 0);
    }
    Ok(bytes.freeze())
}

/// Without a copy, where no zeros have to be added.
fn read_in_block(
    view: &impl View,
    pg: PgId,
    object: ObjectKey,
    block: u32,
    from: u64,
    to: u64,
) -> Result<Bytes, EngineError> {
    let part = stored_part(view.block(pg, object, block)?, block, from, to);
    let length = (to - from) as usize;
    if part.len() == length {
        return Ok(part);
    }
    let mut bytes = BytesMut::with_capacity(length);
    bytes.extend_from_slice(&part);
    bytes.resize(length, 0);
    Ok(bytes.freeze())
}

fn stored_part(stored: Option<Bytes>, block: u32, from: u64, to: u64) -> Bytes {
    let stored = stored.unwrap_or_default();
    let from = ((from - block_start(block)) as usize).min(stored.len());
    let to = ((to - block_start(block)) as usize).min(stored.len());
    stored.slice(from..to)
}

/// See [`super::Engine::stored_bytes`].
pub(crate) fn stored_bytes(view: &impl View, pg: PgId, object: ObjectKey) -> Result<u64, EngineError> {
    let blocks = view.blocks(pg, object, 0, u32::MAX)?;
    Ok(blocks.iter().map(|(_, length)| u64::from(*length)).sum())
}

/// See [`super::Engine::pgs`].
pub(crate) fn pgs(view: &impl View) -> Result<Vec<PgId>, EngineError> {
    let mut found = Vec::new();
    let mut from = Some(0);
    while let Some(number) = from {
        let Some(pg) = view.pg_from(format::pg_from_number(number))? else { break };
        found.push(pg);
        from = format::pg_number(pg).checked_add(1);
    }
    Ok(found)
}
