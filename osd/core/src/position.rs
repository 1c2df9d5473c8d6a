//! Place in the log, and what a copy of a PG durably knows of itself.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::{Change, keys};

const FORMAT: u8 = 1;
const BYTES: usize = 1 + 3 * 8 + 1;

/// A write's place: one primary assigns each number once within a configuration, so that equal positions mean equal
/// content. Numbers go on rising over configurations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Configuration in which it was written.
    pub config: u64,
    /// Its number.
    pub seq: u64,
}

/// What a copy of a PG knows of itself; written in the transaction of each write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Highest configuration it was asked to join; lower ones are refused (R25).
    pub promised: u64,
    /// Last write applied.
    pub position: Position,
    /// Being overwritten by another copy: neither the old content nor the new.
    pub incomplete: bool,
}

impl Stored {
    /// Its record.
    pub fn to_change(self) -> Change {
        let mut value = BytesMut::with_capacity(BYTES);
        value.put_u8(FORMAT);
        value.put_u64(self.promised);
        value.put_u64(self.position.config);
        value.put_u64(self.position.seq);
        value.put_u8(self.incomplete.into());
        Change::Put { key: keys::POSITION, value: value.freeze() }
    }

    /// Reads the record back; an absent one is that of an empty PG, `None` means an unknown format.
    pub fn decode(value: Option<Bytes>) -> Option<Self> {
        let Some(mut value) = value else { return Some(Self::default()) };
        if value.len() != BYTES || value.get_u8() != FORMAT {
            return None;
        }
        let promised = value.get_u64();
        let position = Position { config: value.get_u64(), seq: value.get_u64() };
        Some(Self { promised, position, incomplete: value.get_u8() != 0 })
    }
}
