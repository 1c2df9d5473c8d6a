//! Keys of the metadata records (DESIGN.md §3), as they stand within a shard.
//!
//! One byte of kind, then big-endian numbers, so that byte order is numeric
//! order and the dentries of a directory are neighbours.

use bytes::{BufMut as _, Bytes, BytesMut};
use pando_proto::{Epoch, Ino, ShardId, SubtreeId};

/// First byte of every record value: the version of its format.
pub const FORMAT: u8 = 1;

/// A record of the namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// `i/<ino>`
    Inode(Ino),
    /// `d/<dir>/<name>`
    Dentry(Ino, Bytes),
    /// `b/<ino>`
    Body(Ino),
    /// `l/<ino>/<dir>/<name>`
    BackLink(Ino, Ino, Bytes),
    /// `o/<ino>`
    Orphan(Ino),
    /// `p/<ino>`
    Purge(Ino),
    /// `q/<subtree>/<epoch>/<batch>` in `shard`
    Completed(ShardId, SubtreeId, Epoch, u64),
    /// `r/<subtree>/<epoch>/<batch>` in `shard`
    Redo(ShardId, SubtreeId, Epoch, u64),
    /// `s/<subtree>` in its home shard
    ShardList(ShardId, SubtreeId),
    /// `x/<subtree>/<coordinator>/<epoch>/<number>` in the subtree's home shard
    Transaction(ShardId, SubtreeId, SubtreeId, Epoch, u64),
}

impl Key {
    /// The shard that stores it (R1).
    pub fn shard(&self) -> ShardId {
        match self {
            Self::Inode(ino) | Self::Dentry(ino, _) | Self::Body(ino) => ino.shard(),
            Self::BackLink(ino, ..) | Self::Orphan(ino) | Self::Purge(ino) => ino.shard(),
            Self::Completed(shard, ..) | Self::Redo(shard, ..) | Self::ShardList(shard, _) => *shard,
            Self::Transaction(shard, ..) => *shard,
        }
    }

    /// Its bytes within the shard.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Inode(ino) => prefix(b'i', &[ino.0]).freeze(),
            Self::Dentry(dir, name) => with(prefix(b'd', &[dir.0]), name),
            Self::Body(ino) => prefix(b'b', &[ino.0]).freeze(),
            Self::BackLink(ino, dir, name) => with(prefix(b'l', &[ino.0, dir.0]), name),
            Self::Orphan(ino) => prefix(b'o', &[ino.0]).freeze(),
            Self::Purge(ino) => prefix(b'p', &[ino.0]).freeze(),
            Self::Completed(_, subtree, epoch, batch) => prefix(b'q', &[subtree.0, epoch.0, *batch]).freeze(),
            Self::Redo(_, subtree, epoch, batch) => prefix(b'r', &[subtree.0, epoch.0, *batch]).freeze(),
            Self::ShardList(_, subtree) => prefix(b's', &[subtree.0]).freeze(),
            Self::Transaction(_, subtree, coordinator, epoch, number) => {
                prefix(b'x', &[subtree.0, coordinator.0, epoch.0, *number]).freeze()
            }
        }
    }

    /// Reads a key back; `None` for bytes that are no key of ours.
    pub fn decode(shard: ShardId, bytes: &Bytes) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let number = |at: usize| -> Option<u64> {
            let slice = rest.get(at * 8..at * 8 + 8)?;
            Some(u64::from_be_bytes(slice.try_into().ok()?))
        };
        let exact = |numbers: usize| (rest.len() == numbers * 8).then_some(());
        let tail = |numbers: usize| bytes.slice(1 + numbers * 8..);
        Some(match kind {
            b'i' => exact(1).and(Some(Self::Inode(Ino(number(0)?))))?,
            b'd' => Self::Dentry(Ino(number(0)?), tail(1)),
            b'b' => exact(1).and(Some(Self::Body(Ino(number(0)?))))?,
            b'l' => Self::BackLink(Ino(number(0)?), Ino(number(1)?), tail(2)),
            b'o' => exact(1).and(Some(Self::Orphan(Ino(number(0)?))))?,
            b'p' => exact(1).and(Some(Self::Purge(Ino(number(0)?))))?,
            b'q' => exact(3).and(Some(Self::Completed(shard, SubtreeId(number(0)?), Epoch(number(1)?), number(2)?)))?,
            b'r' => exact(3).and(Some(Self::Redo(shard, SubtreeId(number(0)?), Epoch(number(1)?), number(2)?)))?,
            b's' => exact(1).and(Some(Self::ShardList(shard, SubtreeId(number(0)?))))?,
            b'x' => {
                let (subtree, coordinator) = (SubtreeId(number(0)?), SubtreeId(number(1)?));
                exact(4).and(Some(Self::Transaction(shard, subtree, coordinator, Epoch(number(2)?), number(3)?)))?
            }
            _ => return None,
        })
    }

    /// Start (inclusive) and end (exclusive) of all dentries of a directory whose names come after `after`.
    pub fn dentries_after(dir: Ino, after: &[u8]) -> (Bytes, Bytes) {
        let start = if after.is_empty() {
            prefix(b'd', &[dir.0]).freeze()
        } else {
            // The least key above `after` is `after` followed by a zero byte.
            let mut start = prefix(b'd', &[dir.0]);
            start.put_slice(after);
            start.put_u8(0);
            start.freeze()
        };
        (start, prefix(b'd', &[dir.0 + 1]).freeze())
    }

    /// Start (inclusive) and end (exclusive) of all back links of an inode after `after`
    /// (eight bytes of directory ino, then the name; empty: from the start).
    pub fn back_links_after(ino: Ino, after: &[u8]) -> (Bytes, Bytes) {
        let mut start = prefix(b'l', &[ino.0]);
        if !after.is_empty() {
            start.put_slice(after);
            start.put_u8(0);
        }
        (start.freeze(), prefix(b'l', &[ino.0 + 1]).freeze())
    }
}

fn prefix(kind: u8, numbers: &[u64]) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(1 + numbers.len() * 8 + 32);
    bytes.put_u8(kind);
    for number in numbers {
        bytes.put_u64(*number);
    }
    bytes
}

fn with(mut bytes: BytesMut, name: &Bytes) -> Bytes {
    bytes.put_slice(name);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back() {
        let (name, shard) = (Bytes::from_static(b"na\xff\x01"), ShardId(5));
        let ino = Ino::new(shard, 77).unwrap();
        for key in [
            Key::Inode(ino),
            Key::Dentry(ino, name.clone()),
            Key::Body(ino),
            Key::BackLink(ino, Ino::ROOT, name),
            Key::Orphan(ino),
            Key::Purge(ino),
            Key::Completed(shard, SubtreeId(1), Epoch(2), 3),
            Key::Redo(shard, SubtreeId(1), Epoch(2), 3),
            Key::ShardList(shard, SubtreeId(1)),
            Key::Transaction(shard, SubtreeId(1), SubtreeId(2), Epoch(3), 4),
        ] {
            assert_eq!(Key::decode(shard, &key.encode()), Some(key.clone()), "{key:?}");
            assert_eq!(key.shard(), shard);
        }
    }

    #[test]
    fn strange_bytes_are_no_keys() {
        for bytes in [&b""[..], b"z12345678", b"i1234567", b"i123456789", b"q12345678"] {
            assert_eq!(Key::decode(ShardId(0), &Bytes::from_static(bytes)), None);
        }
    }

    #[test]
    fn a_page_of_dentries_starts_right_after_the_cursor() {
        let dir = Ino(9);
        let key = |name: &'static [u8]| Key::Dentry(dir, Bytes::from_static(name)).encode();
        let (start, end) = Key::dentries_after(dir, b"b");
        assert!(key(b"b") < start && start <= key(b"b\0") && key(b"ba") > start && key(b"\xff\xff") < end);
        assert!(Key::Dentry(Ino(10), Bytes::new()).encode() >= end);
    }
}
