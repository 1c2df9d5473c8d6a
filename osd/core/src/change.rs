//! What a transaction is made of: the words that the core and the engines share.

use std::fmt;

use bytes::Bytes;
use pando_proto::Ino;

/// Names an object within its PG; ordered as engines list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// File it belongs to.
    pub ino: Ino,
    /// Stripe number.
    pub index: u64,
}

impl ObjectKey {
    /// Stands for all objects of the file that do not exist: its tombstone says below which generation none of them is
    /// made (R22). No object has this index.
    pub fn floor(ino: Ino) -> Self {
        Self { ino, index: u64::MAX }
    }

    /// Whether this is a [`floor`](Self::floor).
    pub fn is_floor(self) -> bool {
        self.index == u64::MAX
    }

    /// The last key before this one.
    pub(crate) fn previous(self) -> Option<Self> {
        match self.index.checked_sub(1) {
            Some(index) => Some(Self { index, ..self }),
            None => self.ino.0.checked_sub(1).map(|ino| Self::floor(Ino(ino))),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.ino, self.index)
    }
}

/// What is known of an object beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectHeader {
    /// Bytes up to its end; holes count.
    pub size: u64,
    /// Mutations of a lower data generation are refused (R22). Set by trims, and by the write that makes the object.
    pub generation: u64,
    /// The object is gone and only its generation is remembered.
    pub deleted: bool,
    /// For a tombstone: the map's next client id when it was made; it may be
    /// forgotten once no older session lives (R22).
    pub sessions_before: u64,
}

/// One change within a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets a record.
    Put {
        /// Its key, ordered bytewise within the PG.
        key: Bytes,
        /// Its value.
        value: Bytes,
    },
    /// Removes a record; absent ones are ignored.
    Delete {
        /// Its key.
        key: Bytes,
    },
    /// Removes all records with `start <= key < end` (`end` empty: to the end of the PG).
    DeleteRange {
        /// First key.
        start: Bytes,
        /// First key that stays.
        end: Bytes,
    },
    /// Writes bytes into an object, which is made if need be. Grows `size`, touches no other header field.
    Write {
        /// The object.
        object: ObjectKey,
        /// Where.
        offset: u64,
        /// What.
        data: Bytes,
    },
    /// Zeroes a range within the object's size; stored blocks wholly inside it are freed.
    Zero {
        /// The object.
        object: ObjectKey,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Cuts or extends (with a hole) to `size`; makes the object if need be. Bytes beyond a cut read as zeros if it grows again.
    Truncate {
        /// The object.
        object: ObjectKey,
        /// New size.
        size: u64,
    },
    /// Sets the header fields beside `size`; makes the object if need be. `deleted` drops all data and sets the size to 0.
    SetHeader {
        /// The object.
        object: ObjectKey,
        /// See [`ObjectHeader::generation`].
        generation: u64,
        /// See [`ObjectHeader::deleted`].
        deleted: bool,
        /// See [`ObjectHeader::sessions_before`].
        sessions_before: u64,
    },
    /// Removes an object with its header, as if it had never been.
    Forget {
        /// The object.
        object: ObjectKey,
    },
}
