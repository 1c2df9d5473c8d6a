//! The default engine: everything in one LSM tree database.
//!
//! One commit is one batch over three keyspaces, written to fjall's journal and
//! synced with fdatasync before it becomes visible: atomic, durable, and no
//! reader ever sees what could still be lost. Blocks are kept apart from their
//! keys (key-value separation), so that compaction does not rewrite file data.

use std::ops::Bound;
use std::path::Path;
use std::sync::Mutex;

use bytes::Bytes;
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, LsmError, PersistMode, Readable,
    Snapshot,
};
use pando_proto::PgId;
use pando_rpc::directory::{create_data_directory, sync};

use super::format::{self, Space, seal};
use super::stage::{Staged, stage};
use super::view::{self, KeyValues, KvView, View};
use super::{
    DirectoryError, Engine, EngineError, EngineOptions, ObjectHeader, ObjectKey, ScanPage, Transaction, Usage,
};

/// Threads that write tables and compact.
const WORKER_THREADS: usize = 2;
/// Journal bytes at which fjall forces memtables out; its smallest value keeps reopening quick.
const MAX_JOURNAL_BYTES: u64 = 256 << 20;

/// See the [module](self).
pub struct FjallEngine {
    database: Database,
    records: Keyspace,
    headers: Keyspace,
    blocks: Keyspace,
    /// One commit reads what it builds on and writes the outcome: no other may come between.
    committing: Mutex<()>,
    path: std::path::PathBuf,
}

impl FjallEngine {
    /// Opens the database in `dir`, which is made if it does not exist.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] if its files are damaged, [`EngineError::Directory`] if another process has it open or
    /// a journal is damaged so that acknowledged commits would be lost.
    pub fn open(dir: &Path, options: &EngineOptions) -> Result<Self, EngineError> {
        let io = |error: std::io::Error| DirectoryError::from_io(dir, &error);
        // fjall syncs what it makes below, but not this one into the directory above.
        create_data_directory(dir).map_err(io)?;
        super::journal::check(dir)?;
        let database = Database::builder(dir)
            .cache_size(options.cache_bytes)
            .worker_threads(WORKER_THREADS)
            .max_journaling_size(MAX_JOURNAL_BYTES)
            // File data is mostly compressed or small already, and the journal is on the path of every commit.
            .journal_compression(CompressionType::None)
            .open()
            .map_err(|e| open_error(dir, e))?;
        let keyspace = |name: &str, config: KeyspaceCreateOptions| {
            let config = config.max_memtable_size(options.memtable_bytes.max(1 << 20));
            database.keyspace(name, || config).map_err(|e| open_error(dir, e))
        };
        let separate = KvSeparationOptions::default().compression(CompressionType::None);
        let engine = Self {
            records: keyspace("records", KeyspaceCreateOptions::default())?,
            headers: keyspace("headers", KeyspaceCreateOptions::default())?,
            blocks: keyspace("blocks", KeyspaceCreateOptions::default().with_kv_separation(Some(separate)))?,
            database,
            committing: Mutex::new(()),
            path: dir.to_owned(),
        };
        // Nor the directories of new keyspaces.
        sync(&dir.join("keyspaces")).map_err(io)?;
        Ok(engine)
    }

    /// Writes the memtables into tables now; what is read next comes from there. For tests and measurements.
    ///
    /// # Errors
    /// As [`Engine::commit`].
    pub fn flush(&self) -> Result<(), EngineError> {
        for keyspace in [&self.records, &self.headers, &self.blocks] {
            keyspace.rotate_memtable_and_wait().map_err(engine_error)?;
        }
        Ok(())
    }

    fn view(&self) -> KvView<FjallView<'_>> {
        KvView(FjallView { engine: self, snapshot: self.database.snapshot() })
    }

    fn space(&self, space: Space) -> &Keyspace {
        match space {
            Space::Records => &self.records,
            Space::Headers => &self.headers,
            Space::Blocks => &self.blocks,
        }
    }

    fn write(&self, staged: &Staged) -> Result<(), EngineError> {
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        let mut set = |space: Space, key: Vec<u8>, value: Option<&[u8]>| match value {
            Some(value) => {
                let sealed = seal(space, &key, value);
                batch.insert(self.space(space), key, sealed);
            }
            None => batch.remove(self.space(space), key),
        };
        for ((pg, key), value) in &staged.records {
            set(Space::Records, format::record_key(*pg, key), value.as_deref());
        }
        for ((pg, object), header) in &staged.headers {
            let header = header.as_ref().map(format::encode_header);
            set(Space::Headers, format::object_key(*pg, *object), header.as_ref().map(|bytes| &bytes[..]));
        }
        for ((pg, object, block), content) in &staged.blocks {
            set(Space::Blocks, format::block_key(*pg, *object, *block), content.as_deref());
        }
        batch.commit().map_err(|error| match engine_error(error) {
            // Only staging may say that something is corrupt and nothing was done.
            EngineError::Corrupt { what } => EngineError::Io(format!("cannot write to {what}")),
            other => other,
        })
    }
}

struct FjallView<'e> {
    engine: &'e FjallEngine,
    snapshot: Snapshot,
}

impl FjallView<'_> {
    fn iter(&self, space: Space, start: &[u8], end: Option<&[u8]>) -> Option<fjall::Iter> {
        if end.is_some_and(|end| end <= start) {
            return None;
        }
        let bounds = (Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded));
        Some(self.snapshot.range::<&[u8], _>(self.engine.space(space), bounds))
    }
}

impl KeyValues for FjallView<'_> {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let value = self.snapshot.get(self.engine.space(space), key);
        Ok(value.map_err(|e| value_error(space, key, e))?.map(Bytes::from))
    }

    fn range(
        &self,
        space: Space,
        start: &[u8],
        end: Option<&[u8]>,
        visit: &mut dyn FnMut(Bytes, Bytes) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError> {
        for guard in self.iter(space, start, end).into_iter().flatten() {
            let (key, value) = guard.into_inner().map_err(|e| value_error(space, start, e))?;
            if !visit(key.into(), value.into())? {
                break;
            }
        }
        Ok(())
    }

    fn lengths(
        &self,
        space: Space,
        start: &[u8],
        end: Option<&[u8]>,
        visit: &mut dyn FnMut(Bytes, usize) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError> {
        for guard in self.iter(space, start, end).into_iter().flatten() {
            let (key, length) = key_and_length(self, space, guard).map_err(|e| value_error(space, start, e))?;
            if !visit(key, length)? {
                break;
            }
        }
        Ok(())
    }
}

/// Separated values stay unread: their length is kept beside the key.
fn key_and_length(view: &FjallView<'_>, space: Space, guard: fjall::Guard) -> fjall::Result<(Bytes, usize)> {
    if space != Space::Blocks {
        let (key, value) = guard.into_inner()?;
        return Ok((key.into(), value.len()));
    }
    let key = guard.key()?;
    let length = view.snapshot.size_of(view.engine.space(space), &key)?;
    Ok((key.into(), length.unwrap_or_default() as usize))
}

impl Engine for FjallEngine {
    fn commit(&self, transactions: &[Transaction]) -> Result<(), EngineError> {
        let _one = self.committing.lock().map_err(|_| EngineError::Io("an earlier commit panicked".to_owned()))?;
        let staged = stage(&self.view(), transactions)?;
        self.write(&staged)
    }

    fn get(&self, pg: PgId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        // One value needs no snapshot: a batch becomes visible only after its sync.
        let key = format::record_key(pg, key);
        let sealed = self.records.get(&key).map_err(|e| value_error(Space::Records, &key, e))?;
        sealed.map(|sealed| format::unseal(Space::Records, &key, &sealed.into())).transpose()
    }

    fn scan(
        &self,
        pg: PgId,
        start: &[u8],
        end: &[u8],
        limit: usize,
        max_bytes: usize,
    ) -> Result<ScanPage, EngineError> {
        view::scan(&self.view(), pg, start, end, limit, max_bytes)
    }

    fn header(&self, pg: PgId, object: ObjectKey) -> Result<Option<ObjectHeader>, EngineError> {
        self.view().header(pg, object)
    }

    fn read(&self, pg: PgId, object: ObjectKey, offset: u64, length: u64) -> Result<Bytes, EngineError> {
        view::read(&self.view(), pg, object, offset, length)
    }

    fn stored_bytes(&self, pg: PgId, object: ObjectKey) -> Result<u64, EngineError> {
        view::stored_bytes(&self.view(), pg, object)
    }

    fn list_objects(
        &self,
        pg: PgId,
        after: Option<ObjectKey>,
        limit: usize,
    ) -> Result<Vec<(ObjectKey, ObjectHeader)>, EngineError> {
        self.view().headers(pg, after, limit)
    }

    fn pgs(&self) -> Result<Vec<PgId>, EngineError> {
        view::pgs(&self.view())
    }

    fn usage(&self) -> Result<Usage, EngineError> {
        super::directory::disk_usage(&self.path)
    }
}

/// An error in reading a value: a checksum of fjall's own speaks for ours.
fn value_error(space: Space, key: &[u8], error: fjall::Error) -> EngineError {
    match engine_error(error) {
        EngineError::Corrupt { .. } => format::corrupt(space, key),
        other => other,
    }
}

fn engine_error(error: fjall::Error) -> EngineError {
    let corrupt = |error: &fjall::Error| EngineError::Corrupt { what: format!("the database ({error})") };
    match &error {
        fjall::Error::Io(e) | fjall::Error::Storage(LsmError::Io(e)) => super::io_error(e),
        fjall::Error::Storage(_)
        | fjall::Error::JournalRecovery(_)
        | fjall::Error::Decompress(_)
        | fjall::Error::InvalidTrailer
        | fjall::Error::InvalidTag(_)
        | fjall::Error::Unrecoverable => corrupt(&error),
        fjall::Error::Poisoned => EngineError::Io("an earlier write failed: start the osd again".to_owned()),
        _ => EngineError::Io(error.to_string()),
    }
}

fn open_error(dir: &Path, error: fjall::Error) -> EngineError {
    match error {
        fjall::Error::Locked => DirectoryError::Locked { dir: dir.to_owned() }.into(),
        fjall::Error::InvalidVersion(version) => {
            let found = format!("{version:?}");
            DirectoryError::NewerFormat { dir: dir.to_owned(), found }.into()
        }
        fjall::Error::Io(e) => DirectoryError::from_io(dir, &e).into(),
        other => engine_error(other),
    }
}
