//! Where an OSD keeps its bytes: one trait, several back ends, one test suite.
//!
//! An engine stores, for each placement group, *records* (an ordered map of
//! bytes) and *objects* (sparse byte arrays with a header). Everything enters by
//! [`Engine::commit`]: a list of transactions, each atomic, all durable when it
//! returns. Engines know nothing of replication, fences or generations: those
//! are records and header fields that the caller puts into the same transaction.

pub mod bench;
pub mod commit;
pub mod directory;
pub mod file;
pub mod fjall;
pub mod format;
mod journal;
pub mod memory;
pub mod read_pool;
mod stage;
mod view;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use pando_proto::PgId;

pub use commit::{CommitError, GroupCommit};
pub use directory::{Directory, DirectoryError};
pub use read_pool::ReadPool;

pub use pando_osd_core::{Change, ObjectHeader, ObjectKey};

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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// The disk is full. After a failed commit the engine is to be considered dead until it is opened again.
    #[error("the disk of the data directory is full: free some space on it, then start the osd again")]
    Full,
    /// The request is beyond the limits of the disk format ([`format`](mod@format)); nothing was done.
    #[error("refused {0}")]
    Invalid(String),
    /// The data directory is not usable by this program.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// A back end. Calls block: they run on the OSD's commit and read threads, never on its network thread.
pub trait Engine: Send + Sync + 'static {
    /// Applies transactions in order; every one is atomic, all are durable (fdatasync) on return.
    ///
    /// # Errors
    /// [`EngineError::Invalid`], and [`EngineError::Corrupt`] where a transaction builds on a stored block that rotted:
    /// nothing was done. After any other it is unknown what is on disk, and the engine is dead until opened again.
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

/// The back ends there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// An LSM tree: [`fjall::FjallEngine`].
    #[default]
    Fjall,
    /// Objects in plain files: [`file::FileEngine`].
    File,
    /// Nothing on disk, gone with the process: [`memory::MemoryEngine`].
    Memory,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fjall => "fjall",
            Self::File => "file",
            Self::Memory => "memory",
        })
    }
}

impl FromStr for EngineKind {
    type Err = EngineError;

    fn from_str(name: &str) -> Result<Self, EngineError> {
        match name {
            "fjall" => Ok(Self::Fjall),
            "file" => Ok(Self::File),
            "memory" => Ok(Self::Memory),
            other => Err(EngineError::Invalid(format!("engine `{other}`: there are `fjall`, `file` and `memory`"))),
        }
    }
}

/// How to open an engine; the default suits a small machine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Cluster the directory must belong to, if it already belongs to one.
    pub cluster: Option<[u8; 16]>,
    /// Bytes of cache for what is read from disk.
    pub cache_bytes: u64,
    /// Bytes of fresh writes that fjall holds in memory for each of its three keyspaces before it writes a table.
    pub memtable_bytes: u64,
    /// Bytes a memory engine holds before it is full.
    pub memory_bytes: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { cluster: None, cache_bytes: 64 << 20, memtable_bytes: 32 << 20, memory_bytes: 1 << 30 }
    }
}

/// Opens the engine of a data directory, which is made if it does not exist. The [`Directory`] holds the lock: keep it
/// as long as the engine.
///
/// # Errors
/// [`EngineError::Directory`] says what is wrong with the directory and what to do.
pub fn open(
    kind: EngineKind,
    dir: &Path,
    options: &EngineOptions,
) -> Result<(Arc<dyn Engine>, Directory), EngineError> {
    if kind == EngineKind::Memory {
        return Ok((Arc::new(memory::MemoryEngine::new(options.memory_bytes)), Directory::in_memory()));
    }
    let directory = Directory::open(dir, kind, options.cluster)?;
    let engine: Arc<dyn Engine> = match kind {
        EngineKind::Fjall => Arc::new(fjall::FjallEngine::open(&directory.path().join("fjall"), options)?),
        EngineKind::File => Arc::new(file::FileEngine::open(directory.path(), options)?),
        EngineKind::Memory => unreachable!("returned above"),
    };
    Ok((engine, directory))
}

/// What the operating system says, as far as callers must tell apart.
fn io_error(error: &std::io::Error) -> EngineError {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => EngineError::Full,
        // Files that end too early, or hold what no writer put there.
        ErrorKind::UnexpectedEof | ErrorKind::InvalidData => {
            EngineError::Corrupt { what: format!("the store ({error})") }
        }
        _ => EngineError::Io(error.to_string()),
    }
}
