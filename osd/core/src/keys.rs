//! Where a PG keeps what: the first byte of an engine key says whose it is, so
//! that no client reaches what belongs to the OSD.
//!
//! `00 "position"`: what this copy has promised and applied; never replicated.
//! `01 <session be64>`: done mutations of a session (R22).
//! `02 <shard be16> <key>`: the records of a shard.

use bytes::{BufMut as _, Bytes, BytesMut};
use pando_proto::{ClientId, ShardId, SubtreeId};

/// Key of [`Stored`](crate::Stored).
pub const POSITION: Bytes = Bytes::from_static(b"\0position");
/// First key that is the same on all members.
pub const REPLICATED: Bytes = Bytes::from_static(&[SESSION]);
/// First key after those of the sessions.
pub const SESSIONS_END: Bytes = Bytes::from_static(&[SHARD]);
/// First byte of a fence record's key within its shard: clients read but do not write them.
pub const FENCE: u8 = b'f';

const SESSION: u8 = 1;
const SHARD: u8 = 2;
/// Bytes of the engine key before a shard's own key.
pub const SHARD_PREFIX_BYTES: usize = 3;

/// Key of a session's window.
pub fn session(client: ClientId) -> Bytes {
    let mut key = BytesMut::with_capacity(9);
    key.put_u8(SESSION);
    key.put_u64(client.0);
    key.freeze()
}

/// The session of a window's key.
pub fn parse_session(key: &[u8]) -> Option<ClientId> {
    let (first, rest) = key.split_first()?;
    let number = rest.try_into().ok().map(u64::from_be_bytes)?;
    (*first == SESSION).then_some(ClientId(number))
}

/// Engine key of a shard's record.
pub fn record(shard: ShardId, key: &[u8]) -> Bytes {
    let mut full = BytesMut::with_capacity(SHARD_PREFIX_BYTES + key.len());
    full.put_u8(SHARD);
    full.put_u16(shard.0);
    full.put_slice(key);
    full.freeze()
}

/// First engine key after all records of a shard.
pub fn shard_end(shard: ShardId) -> Bytes {
    let mut key = BytesMut::with_capacity(5);
    key.put_u8(SHARD);
    // Shards have 15 bits, so this does not overflow for valid ones.
    key.put_u16(shard.0.saturating_add(1));
    key.freeze()
}

/// Engine key of `f/<subtree>` in a shard.
pub fn fence(shard: ShardId, subtree: SubtreeId) -> Bytes {
    let mut key = [FENCE; 9];
    key[1..].copy_from_slice(&subtree.0.to_be_bytes());
    record(shard, &key)
}
