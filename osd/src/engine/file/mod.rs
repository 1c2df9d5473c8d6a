//! Objects in plain files, everything else in a small B-tree database.
//!
//! ```text
//! records.redb                                       records, headers, block table, deferred blocks
//! objects/<pool>.<pg>/<2 hex digits>/<ino>.<index>   block n of the object at n * 16 KiB
//! ```
//!
//! The *block table* says which blocks exist, and their lengths and checksums; what a file holds beside them means
//! nothing. So a block that is not in the table can be written into the file at leisure: the bytes are synced before
//! the database commits the table's new row. A block that is in the table must never be torn, so its new bytes go
//! into the database with the row, as a *deferred* block, and from there into the file later: when many wait, and at
//! open. Reads take a deferred block before the file. Small new blocks are deferred too: one sync instead of two.
//!
//! Files change only under the write lock of their object; a read takes its view of the table under the read lock,
//! so that what the view speaks of stays in the file until the read is done.

mod commit;
mod files;
mod tables;

use std::path::Path;
use std::sync::Mutex;

use bytes::Bytes;
use pando_proto::PgId;

use super::stage::stage;
use super::view::{self, View};
use super::{Engine, EngineError, EngineOptions, ObjectHeader, ObjectKey, ScanPage, Transaction, Usage};
use commit::Committing;
use files::Files;
use tables::{FileView, Tables};

/// See the [module](self).
pub struct FileEngine {
    tables: Tables,
    files: Files,
    /// One commit reads what it builds on and writes the outcome: no other may come between.
    committing: Mutex<Committing>,
}

impl FileEngine {
    /// Opens the engine in `dir`, which exists; brings deferred blocks into their files and removes left over files.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] if its database is damaged, [`EngineError::Directory`] if another process has it open.
    pub fn open(dir: &Path, options: &EngineOptions) -> Result<Self, EngineError> {
        let tables = Tables::open(dir, options.cache_bytes)?;
        let files = Files::open(dir)?;
        let engine = Self { tables, files, committing: Mutex::default() };
        engine.bring_home()?;
        let view = engine.view()?;
        engine.files.remove_unless(|pg, object| Ok(!view.blocks(pg, object, 0, u32::MAX)?.is_empty()))?;
        drop(view);
        Ok(engine)
    }

    fn view(&self) -> Result<FileView<'_>, EngineError> {
        self.tables.view(&self.files)
    }

    fn lock(&self) -> Result<std::sync::MutexGuard<'_, Committing>, EngineError> {
        self.committing.lock().map_err(|_| EngineError::Io("an earlier commit panicked".to_owned()))
    }
}

impl Engine for FileEngine {
    fn commit(&self, transactions: &[Transaction]) -> Result<(), EngineError> {
        let mut committing = self.lock()?;
        committing.check()?;
        let view = self.view()?;
        let staged = stage(&view, transactions)?;
        self.write(&view, &staged, &mut committing).map_err(|error| {
            // After a failed sync nobody knows what is in the page cache and what on the disk.
            committing.failed = true;
            match error {
                // Only staging may say that something is corrupt and nothing was done.
                EngineError::Corrupt { what } => EngineError::Io(format!("cannot write to {what}")),
                other => other,
            }
        })
    }

    fn get(&self, pg: PgId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.tables.record(pg, key)
    }

    fn scan(
        &self,
        pg: PgId,
        start: &[u8],
        end: &[u8],
        limit: usize,
        max_bytes: usize,
    ) -> Result<ScanPage, EngineError> {
        view::scan(&self.view()?, pg, start, end, limit, max_bytes)
    }

    fn header(&self, pg: PgId, object: ObjectKey) -> Result<Option<ObjectHeader>, EngineError> {
        self.view()?.header(pg, object)
    }

    fn read(&self, pg: PgId, object: ObjectKey, offset: u64, length: u64) -> Result<Bytes, EngineError> {
        let _unchanged = self.files.read_lock(pg, object);
        view::read(&self.view()?, pg, object, offset, length)
    }

    fn stored_bytes(&self, pg: PgId, object: ObjectKey) -> Result<u64, EngineError> {
        view::stored_bytes(&self.view()?, pg, object)
    }

    fn list_objects(
        &self,
        pg: PgId,
        after: Option<ObjectKey>,
        limit: usize,
    ) -> Result<Vec<(ObjectKey, ObjectHeader)>, EngineError> {
        self.view()?.headers(pg, after, limit)
    }

    fn pgs(&self) -> Result<Vec<PgId>, EngineError> {
        view::pgs(&self.view()?)
    }

    fn usage(&self) -> Result<Usage, EngineError> {
        super::directory::disk_usage(self.files.root())
    }
}
