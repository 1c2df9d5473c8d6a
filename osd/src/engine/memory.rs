//! An engine that keeps everything in memory: for tests, for the simulator, and
//! for data that may go with the process. It stores the same sealed values under
//! the same keys as the engine on fjall, so faults can be put into it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use bytes::Bytes;
use pando_proto::PgId;

use super::format::{self, Space, seal};
use super::stage::{Staged, stage};
use super::view::{self, KeyValues, KvView, View};
use super::{Change, Engine, EngineError, ObjectHeader, ObjectKey, ScanPage, Transaction, Usage};

/// See the [module](self).
#[derive(Debug)]
pub struct MemoryEngine {
    state: RwLock<State>,
    capacity: u64,
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<Bytes, Bytes>,
    headers: BTreeMap<Bytes, Bytes>,
    blocks: BTreeMap<Bytes, Bytes>,
    used: u64,
    fail: Option<EngineError>,
}

impl MemoryEngine {
    /// An empty engine that is full with `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self { state: RwLock::default(), capacity }
    }

    /// The next commit does nothing and fails with this error.
    pub fn fail_next_commit(&self, error: EngineError) {
        self.write().fail = Some(error);
    }

    /// Flips a bit of a stored record; false if there is none.
    pub fn corrupt_record(&self, pg: PgId, key: &[u8]) -> bool {
        self.write().corrupt(Space::Records, &format::record_key(pg, key))
    }

    /// Flips a bit of the stored block that holds `offset`; false if there is none.
    pub fn corrupt_block(&self, pg: PgId, object: ObjectKey, offset: u64) -> bool {
        self.write().corrupt(Space::Blocks, &format::block_key(pg, object, format::block_of(offset)))
    }

    fn with<T>(&self, read: impl FnOnce(&KvView<&State>) -> T) -> T {
        // A commit only inserts ready values: a panic elsewhere leaves nothing half done.
        read(&KvView(&self.state.read().unwrap_or_else(PoisonError::into_inner)))
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn space(&self, space: Space) -> &BTreeMap<Bytes, Bytes> {
        match space {
            Space::Records => &self.records,
            Space::Headers => &self.headers,
            Space::Blocks => &self.blocks,
        }
    }

    fn space_mut(&mut self, space: Space) -> &mut BTreeMap<Bytes, Bytes> {
        match space {
            Space::Records => &mut self.records,
            Space::Headers => &mut self.headers,
            Space::Blocks => &mut self.blocks,
        }
    }

    fn set(&mut self, space: Space, key: Vec<u8>, value: Option<&[u8]>) {
        let sealed = value.map(|value| seal(space, &key, value));
        let added = sealed.as_ref().map_or(0, Bytes::len);
        let old = match sealed {
            Some(sealed) => self.space_mut(space).insert(key.into(), sealed),
            None => self.space_mut(space).remove(&key[..]),
        };
        self.used = self.used + added as u64 - old.map_or(0, |old| old.len() as u64);
    }

    fn apply(&mut self, staged: &Staged) {
        for ((pg, key), value) in &staged.records {
            self.set(Space::Records, format::record_key(*pg, key), value.as_deref());
        }
        for ((pg, object), header) in &staged.headers {
            let header = header.as_ref().map(format::encode_header);
            self.set(Space::Headers, format::object_key(*pg, *object), header.as_ref().map(|bytes| &bytes[..]));
        }
        for ((pg, object, block), content) in &staged.blocks {
            self.set(Space::Blocks, format::block_key(*pg, *object, *block), content.as_deref());
        }
    }

    fn corrupt(&mut self, space: Space, key: &[u8]) -> bool {
        let Some(sealed) = self.space_mut(space).get_mut(key) else { return false };
        let mut bytes = sealed.to_vec();
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        *sealed = bytes.into();
        true
    }
}

impl KeyValues for &State {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Ok(self.space(space).get(key).cloned())
    }

    fn range(
        &self,
        space: Space,
        start: &[u8],
        end: Option<&[u8]>,
        visit: &mut dyn FnMut(Bytes, Bytes) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError> {
        if end.is_some_and(|end| end <= start) {
            return Ok(());
        }
        let bounds = (Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded));
        for (key, value) in self.space(space).range::<[u8], _>(bounds) {
            if !visit(key.clone(), value.clone())? {
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
        self.range(space, start, end, &mut |key, value| visit(key, value.len()))
    }
}

impl Engine for MemoryEngine {
    fn commit(&self, transactions: &[Transaction]) -> Result<(), EngineError> {
        let mut state = self.write();
        if let Some(error) = state.fail.take() {
            return Err(error);
        }
        if state.used >= self.capacity && transactions.iter().any(grows) {
            return Err(EngineError::Full);
        }
        let staged = stage(&KvView(&*state), transactions)?;
        state.apply(&staged);
        Ok(())
    }

    fn get(&self, pg: PgId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.with(|view| view.record(pg, key))
    }

    fn scan(
        &self,
        pg: PgId,
        start: &[u8],
        end: &[u8],
        limit: usize,
        max_bytes: usize,
    ) -> Result<ScanPage, EngineError> {
        self.with(|view| view::scan(view, pg, start, end, limit, max_bytes))
    }

    fn header(&self, pg: PgId, object: ObjectKey) -> Result<Option<ObjectHeader>, EngineError> {
        self.with(|view| view.header(pg, object))
    }

    fn read(&self, pg: PgId, object: ObjectKey, offset: u64, length: u64) -> Result<Bytes, EngineError> {
        self.with(|view| view::read(view, pg, object, offset, length))
    }

    fn stored_bytes(&self, pg: PgId, object: ObjectKey) -> Result<u64, EngineError> {
        self.with(|view| view::stored_bytes(view, pg, object))
    }

    fn list_objects(
        &self,
        pg: PgId,
        after: Option<ObjectKey>,
        limit: usize,
    ) -> Result<Vec<(ObjectKey, ObjectHeader)>, EngineError> {
        self.with(|view| view.headers(pg, after, limit))
    }

    fn pgs(&self) -> Result<Vec<PgId>, EngineError> {
        self.with(|view| view::pgs(view))
    }

    fn usage(&self) -> Result<Usage, EngineError> {
        let used_bytes = self.with(|view| view.0.used);
        Ok(Usage { total_bytes: self.capacity, used_bytes: used_bytes.min(self.capacity) })
    }
}

/// A full engine still deletes (I9).
fn grows(transaction: &Transaction) -> bool {
    transaction.changes.iter().any(|change| matches!(change, Change::Put { .. } | Change::Write { .. }))
}
