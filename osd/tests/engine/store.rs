//! An engine in a directory of its own that can be closed and opened again.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pando_osd::engine::{
    self, Change, Directory, DirectoryError, Engine, EngineError, EngineKind, EngineOptions, ObjectKey, Transaction,
};
use pando_proto::{Ino, PgId, PoolId};
use tempfile::TempDir;

pub const PG: PgId = PgId { pool: PoolId(2), index: 5 };
pub const OTHER_PG: PgId = PgId { pool: PoolId(1), index: u32::MAX };

/// For others to let go of a directory.
const DEADLINE: Duration = Duration::from_secs(20);

pub struct Store {
    kind: EngineKind,
    dir: TempDir,
    open: Option<(Arc<dyn Engine>, Directory)>,
}

impl Store {
    pub fn new(kind: EngineKind) -> Self {
        let mut store = Self { kind, dir: tempfile::tempdir().unwrap(), open: None };
        store.reopen();
        store
    }

    /// Closes and opens; memory has nothing to open again.
    pub fn reopen(&mut self) {
        if self.kind == EngineKind::Memory && self.open.is_some() {
            return;
        }
        self.close();
        let began = Instant::now();
        self.open = loop {
            match engine::open(self.kind, self.dir.path(), &options()) {
                // A process that another test starts at this moment holds what was open here until its program runs.
                Err(EngineError::Directory(DirectoryError::Locked { .. })) if began.elapsed() < DEADLINE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                opened => break Some(opened.unwrap()),
            }
        };
    }

    pub fn close(&mut self) {
        self.open = None;
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.open.as_ref().unwrap().0
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn commit(&self, changes: Vec<Change>) {
        self.engine().commit(&[transaction(changes)]).unwrap();
    }

    pub fn read(&self, object: ObjectKey, offset: u64, length: u64) -> Bytes {
        self.engine().read(PG, object, offset, length).unwrap()
    }

    pub fn size(&self, object: ObjectKey) -> u64 {
        self.engine().header(PG, object).unwrap().unwrap().size
    }

    pub fn stored(&self, object: ObjectKey) -> u64 {
        self.engine().stored_bytes(PG, object).unwrap()
    }
}

pub fn options() -> EngineOptions {
    EngineOptions { cache_bytes: 4 << 20, memtable_bytes: 1 << 20, ..EngineOptions::default() }
}

pub fn transaction(changes: Vec<Change>) -> Transaction {
    Transaction { pg: PG, changes }
}

pub fn object(index: u64) -> ObjectKey {
    ObjectKey { ino: Ino(77), index }
}

pub fn put(key: &[u8], value: &[u8]) -> Change {
    Change::Put { key: Bytes::copy_from_slice(key), value: Bytes::copy_from_slice(value) }
}

pub fn write(object: ObjectKey, offset: u64, data: &[u8]) -> Change {
    Change::Write { object, offset, data: Bytes::copy_from_slice(data) }
}

pub fn delete_range(start: &'static [u8], end: &'static [u8]) -> Change {
    Change::DeleteRange { start: Bytes::from_static(start), end: Bytes::from_static(end) }
}
