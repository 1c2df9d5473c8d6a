//! How keys, headers and checksums look on disk, the same for every back end.
//!
//! Every stored value is *sealed*: preceded by a CRC32C over its space, its full
//! key and its bytes, so that a value that turns up under another key is noticed
//! as well as one whose bits rotted (I10).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pando_proto::{Ino, PgId, PoolId};

use super::{EngineError, ObjectHeader, ObjectKey};

/// Bytes of an object block; fixed in the disk format. Large enough that a block's key, checksum and tree entry are
/// noise (0.3 %), small enough that changing a few bytes of a block rewrites little.
pub const BLOCK_BYTES: usize = 16 * 1024;
/// Bytes of a record key, without the PG. Names have at most 255 bytes; fjall's limit is 65536.
pub const MAX_KEY_BYTES: usize = 4096;
/// Bytes of a record value.
pub const MAX_VALUE_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of an object: far above any stripe, far below where block numbers (32 bits) or files (16 TiB in ext4) end.
pub const MAX_OBJECT_BYTES: u64 = 1 << 40;
/// Bytes that one [`super::Engine::read`] returns; holes cost memory too.
pub const MAX_READ_BYTES: u64 = 64 * 1024 * 1024;

/// Bytes of the checksum before a value.
const SEAL_BYTES: usize = 4;
const PG_BYTES: usize = 8;
const OBJECT_BYTES: usize = PG_BYTES + 16;
const HEADER_BYTES: usize = 25;

/// The three kinds of stored values; the byte enters their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Space {
    /// Records.
    Records = b'r',
    /// Object headers.
    Headers = b'h',
    /// Object blocks.
    Blocks = b'b',
}

pub(crate) fn pg_key(pg: PgId) -> [u8; PG_BYTES] {
    pg_number(pg).to_be_bytes()
}

/// PGs as numbers in the order of their keys.
pub(crate) fn pg_number(pg: PgId) -> u64 {
    u64::from(pg.pool.0) << 32 | u64::from(pg.index)
}

pub(crate) fn pg_from_number(number: u64) -> PgId {
    PgId { pool: PoolId((number >> 32) as u32), index: number as u32 }
}

/// First key behind all keys of `pg`; `None` for the last PG there can be.
pub(crate) fn pg_end(pg: PgId) -> Option<Vec<u8>> {
    pg_number(pg).checked_add(1).map(|next| next.to_be_bytes().to_vec())
}

pub(crate) fn record_key(pg: PgId, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(PG_BYTES + key.len());
    full.extend_from_slice(&pg_key(pg));
    full.extend_from_slice(key);
    full
}

/// Bounds `[start, end)` of full keys; `end` empty: to the end of the PG.
pub(crate) fn record_range(pg: PgId, start: &[u8], end: &[u8]) -> (Vec<u8>, Option<Vec<u8>>) {
    let end = if end.is_empty() { pg_end(pg) } else { Some(record_key(pg, end)) };
    (record_key(pg, start), end)
}

pub(crate) fn object_key(pg: PgId, object: ObjectKey) -> Vec<u8> {
    let mut full = Vec::with_capacity(OBJECT_BYTES + 4);
    full.put_u64(pg_number(pg));
    full.put_u64(object.ino.0);
    full.put_u64(object.index);
    full
}

pub(crate) fn block_key(pg: PgId, object: ObjectKey, block: u32) -> Vec<u8> {
    let mut full = object_key(pg, object);
    full.put_u32(block);
    full
}

/// The PG of any full key.
pub(crate) fn decode_pg(key: &[u8]) -> Result<PgId, EngineError> {
    key.get(..PG_BYTES).map(|mut pg| pg_from_number(pg.get_u64())).ok_or_else(|| corrupt_key(key))
}

/// The record key behind the PG.
pub(crate) fn decode_record_key(key: &Bytes) -> Result<Bytes, EngineError> {
    if key.len() < PG_BYTES {
        return Err(corrupt_key(key));
    }
    Ok(key.slice(PG_BYTES..))
}

pub(crate) fn decode_object_key(key: &[u8]) -> Result<ObjectKey, EngineError> {
    if key.len() < OBJECT_BYTES {
        return Err(corrupt_key(key));
    }
    let mut rest = &key[PG_BYTES..];
    Ok(ObjectKey { ino: Ino(rest.get_u64()), index: rest.get_u64() })
}

pub(crate) fn decode_block_number(key: &[u8]) -> Result<u32, EngineError> {
    if key.len() != OBJECT_BYTES + 4 {
        return Err(corrupt_key(key));
    }
    Ok((&key[OBJECT_BYTES..]).get_u32())
}

pub(crate) fn encode_header(header: &ObjectHeader) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let mut out = &mut bytes[..];
    out.put_u64_le(header.size);
    out.put_u64_le(header.generation);
    out.put_u8(u8::from(header.deleted));
    out.put_u64_le(header.sessions_before);
    bytes
}

pub(crate) fn decode_header(key: &[u8], mut bytes: &[u8]) -> Result<ObjectHeader, EngineError> {
    if bytes.len() != HEADER_BYTES {
        return Err(corrupt(Space::Headers, key));
    }
    Ok(ObjectHeader {
        size: bytes.get_u64_le(),
        generation: bytes.get_u64_le(),
        deleted: bytes.get_u8() != 0,
        sessions_before: bytes.get_u64_le(),
    })
}

/// CRC32C that binds a value to its place.
pub(crate) fn checksum(space: Space, key: &[u8], value: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(space as u32, key);
    crc32c::crc32c_append(crc, value)
}

/// The value as it is stored: checksum and bytes.
pub(crate) fn seal(space: Space, key: &[u8], value: &[u8]) -> Bytes {
    let mut sealed = BytesMut::with_capacity(SEAL_BYTES + value.len());
    sealed.put_u32_le(checksum(space, key, value));
    sealed.extend_from_slice(value);
    sealed.freeze()
}

/// The bytes of a stored value, if they are those that were sealed under this key.
pub(crate) fn unseal(space: Space, key: &[u8], sealed: &Bytes) -> Result<Bytes, EngineError> {
    let Some(mut crc) = sealed.get(..SEAL_BYTES) else {
        return Err(corrupt(space, key));
    };
    if crc.get_u32_le() != checksum(space, key, &sealed[SEAL_BYTES..]) {
        return Err(corrupt(space, key));
    }
    Ok(sealed.slice(SEAL_BYTES..))
}

/// Bytes of the value inside a stored value of this length.
pub(crate) fn unsealed_len(sealed: usize) -> u32 {
    sealed.saturating_sub(SEAL_BYTES) as u32
}

/// The error for a stored value that is not what was written.
pub(crate) fn corrupt(space: Space, key: &[u8]) -> EngineError {
    let pg = decode_pg(key).map_or_else(|_| "?".to_owned(), |pg| pg.to_string());
    let what = match (space, decode_object_key(key)) {
        (Space::Records, _) | (_, Err(_)) => {
            let name = key.get(PG_BYTES..).unwrap_or(key);
            format!("record {} of pg {pg}", name.escape_ascii())
        }
        (Space::Headers, Ok(object)) => format!("the header of object {object} of pg {pg}"),
        (Space::Blocks, Ok(object)) => {
            let block = decode_block_number(key).unwrap_or_default();
            format!("block {block} of object {object} of pg {pg}")
        }
    };
    EngineError::Corrupt { what }
}

fn corrupt_key(key: &[u8]) -> EngineError {
    EngineError::Corrupt { what: format!("the stored key {}", key.escape_ascii()) }
}

/// Block that holds this offset. Offsets are below [`MAX_OBJECT_BYTES`].
pub(crate) fn block_of(offset: u64) -> u32 {
    (offset / BLOCK_BYTES as u64) as u32
}

/// Offset of a block's first byte.
pub(crate) fn block_start(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES as u64
}

#[cfg(test)]
mod tests;
