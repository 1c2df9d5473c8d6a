//! Place in the log, and what a copy of a PG durably knows of itself.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::{Change, keys};

/// The first one did not tell what was decided.
const FORMAT_1: u8 = 1;
const BYTES_1: usize = 1 + 3 * 8 + 1;
const FORMAT: u8 = 2;
const BYTES: usize = BYTES_1 + 2 * 8;

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
    /// A write that all members held, so that it, and all before it, may have been acknowledged. Others may have been too.
    pub decided: Position,
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
        value.put_u64(self.decided.config);
        value.put_u64(self.decided.seq);
        Change::Put { key: keys::POSITION, value: value.freeze() }
    }

    /// Reads the record back; an absent one is that of an empty PG, `None` means an unknown format.
    pub fn decode(value: Option<Bytes>) -> Option<Self> {
        let Some(mut value) = value else { return Some(Self::default()) };
        let length = value.len();
        let known = length > 0 && matches!((value.get_u8(), length), (FORMAT_1, BYTES_1) | (FORMAT, BYTES));
        if !known {
            return None;
        }
        let promised = value.get_u64();
        let position = Position { config: value.get_u64(), seq: value.get_u64() };
        let incomplete = value.get_u8() != 0;
        let decided = if value.has_remaining() {
            Position { config: value.get_u64(), seq: value.get_u64() }
        } else {
            Position::default()
        };
        Some(Self { promised, position, incomplete, decided })
    }
}

impl Position {
    /// Whether a copy at `other` lacks this decided write. Configurations and numbers both rise from write to write,
    /// so that a copy that lost this one lacks it also when it went on from where it was.
    pub(crate) fn is_missing_at(self, other: Self) -> bool {
        self > other || self.seq > other.seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(stored: Stored) -> Bytes {
        match stored.to_change() {
            Change::Put { value, .. } => value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_is_read_back_also_one_of_the_first_format() {
        let position = Position { config: 3, seq: 1 << 40 };
        let decided = Position { config: 2, seq: 9 };
        let stored = Stored { promised: 7, position, incomplete: true, decided };
        let bytes = value(stored);
        assert_eq!(Stored::decode(Some(bytes.clone())), Some(stored));
        assert_eq!(Stored::decode(None), Some(Stored::default()));
        let mut first = bytes[..BYTES_1].to_vec();
        first[0] = FORMAT_1;
        assert_eq!(Stored::decode(Some(first.into())), Some(Stored { decided: Position::default(), ..stored }));
        for length in [0, 1, BYTES_1, BYTES - 1] {
            assert_eq!(Stored::decode(Some(bytes.slice(..length))), None);
        }
    }

    #[test]
    fn i1_a_decided_write_is_missed_by_whoever_went_on_without_it() {
        let at = |config, seq| Position { config, seq };
        assert!(!at(5, 50).is_missing_at(at(5, 50)));
        assert!(!at(5, 50).is_missing_at(at(6, 51)));
        assert!(at(5, 50).is_missing_at(at(5, 49)));
        assert!(at(5, 50).is_missing_at(at(7, 31)), "it took writes since");
        assert!(at(5, 50).is_missing_at(at(4, 60)), "an old tail that nobody acknowledged");
    }
}
