//! Where an OSD keeps its bytes: one trait, several back ends, one test suite.
//!
//! An engine stores, for each placement group, *records* (an ordered map of
//! bytes) and *objects* (sparse byte arrays with a header). Everything enters by
//! [`Engine::commit`]: a list of transactions, each atomic, all durable when it
//! returns. Engines know nothing of replication, fences or generations: those
//! are records and header fields that the caller puts into the same transaction.

use bytes::Bytes;
use pando_proto::{Ino, PgId};

/// Names an object within its PG; ordered as [`Engine::list_objects`] lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// File it belongs to.
    pub ino: Ino,
    /// Stripe number.
    pub index: u64,
}

/// What is known of an object beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectHeader {
    /// Bytes up to its end; holes count.
    pub size: u64,
    /// Mutations of a lower data generation are refused (R22). Set by trims.
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
    /// Cuts or extends (with a hole) to `size`. Bytes beyond a cut read as zeros if it grows again.
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

/// Changes of one PG that become durable together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Whose they are.
    pub pg: PgId,
    /// Applied in order.
    pub changes: Vec<Change>,
}

/// One page of a range scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPage {
    /// Records in key order.
    pub records: Vec<(Bytes, Bytes)>,
    /// Where to go on; `None` at the end.
    pub next: Option<Bytes>,
}

/// Bytes in use and in all on the engine's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Capacity in bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
}

/// What can go wrong in an engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The operating system or the store failed. The engine is to be considered dead after a failed commit.
    #[error("storage engine failed: {0}")]
    Io(String),
    /// A checksum does not match (I10): the bytes on disk are not those that were written.
    #[error("stored bytes of {what} are corrupt: restore this copy from another replica")]
    Corrupt {
        /// Record key or object block.
        what: String,
    },
    /// The data directory is not usable by this program.
    #[error("{0}")]
    Directory(String),
}

/// A back end. Calls block: they run on the OSD's commit and read threads, never on its network thread.
pub trait Engine: Send + Sync + 'static {
    /// Applies transactions in order; every one is atomic, all are durable (fdatasync) on return.
    fn commit(&self, transactions: &[Transaction]) -> Result<(), EngineError>;

    /// One record.
    fn get(&self, pg: PgId, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// Records with `start <= key < end` (`end` empty: to the end of the PG), at most `limit` and about `max_bytes`
    /// (always at least one, if there is one).
    fn scan(&self, pg: PgId, start: &[u8], end: &[u8], limit: usize, max_bytes: usize)
    -> Result<ScanPage, EngineError>;

    /// Header of an object, tombstones included.
    fn header(&self, pg: PgId, object: ObjectKey) -> Result<Option<ObjectHeader>, EngineError>;

    /// Bytes `[offset, offset + length)` cut at the object's size; holes are zeros. Checks the blocks' CRC32C.
    fn read(&self, pg: PgId, object: ObjectKey, offset: u64, length: u64) -> Result<Bytes, EngineError>;

    /// Bytes stored for an object.
    fn stored_bytes(&self, pg: PgId, object: ObjectKey) -> Result<u64, EngineError>;

    /// Objects (tombstones included) after `after`, in order, at most `limit`.
    fn list_objects(
        &self,
        pg: PgId,
        after: Option<ObjectKey>,
        limit: usize,
    ) -> Result<Vec<(ObjectKey, ObjectHeader)>, EngineError>;

    /// PGs of which anything is stored.
    fn pgs(&self) -> Result<Vec<PgId>, EngineError>;

    /// Space, as the disk below tells.
    fn usage(&self) -> Result<Usage, EngineError>;
}
