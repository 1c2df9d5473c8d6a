//! What a commit does to the store, worked out before anything is written.
//!
//! Transactions are run in order against a [`View`] overlaid with what earlier
//! ones of the same commit did. The outcome names each touched value once, with
//! its final content: stores need not order changes within a commit.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::{Bytes, BytesMut};
use pando_proto::PgId;

use super::format::{BLOCK_BYTES, MAX_KEY_BYTES, MAX_OBJECT_BYTES, MAX_VALUE_BYTES, block_of, block_start};
use super::view::View;
use super::{Change, EngineError, ObjectHeader, ObjectKey, Transaction};

/// Final contents of all that a commit touches; `None`: gone.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    pub records: BTreeMap<(PgId, Bytes), Option<Bytes>>,
    pub headers: BTreeMap<(PgId, ObjectKey), Option<ObjectHeader>>,
    /// Blocks hold at most [`BLOCK_BYTES`] and no byte beyond the object's size.
    pub blocks: BTreeMap<(PgId, ObjectKey, u32), Option<Bytes>>,
}

/// Works out what `transactions` do to `view`.
pub(crate) fn stage(view: &impl View, transactions: &[Transaction]) -> Result<Staged, EngineError> {
    for transaction in transactions {
        transaction.check()?;
    }
    let mut stage = Stage { view, out: Staged::default() };
    for transaction in transactions {
        for change in &transaction.changes {
            stage.apply(transaction.pg, change)?;
        }
    }
    Ok(stage.out)
}

impl Transaction {
    /// Whether its sizes are within the limits of the disk format; a commit with one that is not does nothing at all.
    ///
    /// # Errors
    /// [`EngineError::Invalid`].
    pub fn check(&self) -> Result<(), EngineError> {
        self.changes.iter().try_for_each(check)
    }

    /// Bytes of keys and data in it.
    pub fn bytes(&self) -> usize {
        self.changes.iter().map(bytes_of).sum()
    }
}

fn bytes_of(change: &Change) -> usize {
    match change {
        Change::Put { key, value } => key.len() + value.len(),
        Change::Delete { key } => key.len(),
        Change::DeleteRange { start, end } => start.len() + end.len(),
        Change::Write { data, .. } => data.len(),
        Change::Zero { .. } | Change::Truncate { .. } | Change::SetHeader { .. } | Change::Forget { .. } => 0,
    }
}

fn check(change: &Change) -> Result<(), EngineError> {
    let key = |key: &Bytes| limit("a record key", key.len() as u64, MAX_KEY_BYTES as u64);
    match change {
        Change::Put { key: name, value } => {
            key(name)?;
            limit("a record value", value.len() as u64, MAX_VALUE_BYTES as u64)
        }
        Change::Delete { key: name } => key(name),
        Change::DeleteRange { start, end } => key(start).and_then(|()| key(end)),
        Change::Write { offset, data, .. } => {
            limit("an object", offset.saturating_add(data.len() as u64), MAX_OBJECT_BYTES)
        }
        Change::Truncate { size, .. } => limit("an object", *size, MAX_OBJECT_BYTES),
        Change::Zero { .. } | Change::SetHeader { .. } | Change::Forget { .. } => Ok(()),
    }
}

fn limit(what: &str, bytes: u64, most: u64) -> Result<(), EngineError> {
    if bytes <= most {
        return Ok(());
    }
    Err(EngineError::Invalid(format!("{what} of {bytes} bytes: at most {most} are stored")))
}

struct Stage<'v, V> {
    view: &'v V,
    out: Staged,
}

impl<V: View> Stage<'_, V> {
    fn apply(&mut self, pg: PgId, change: &Change) -> Result<(), EngineError> {
        match change {
            Change::Put { key, value } => {
                self.out.records.insert((pg, key.clone()), Some(value.clone()));
                Ok(())
            }
            Change::Delete { key } => {
                self.out.records.insert((pg, key.clone()), None);
                Ok(())
            }
            Change::DeleteRange { start, end } => self.delete_range(pg, start, end),
            Change::Write { object, offset, data } => self.write(pg, *object, *offset, data),
            Change::Zero { object, offset, length } => self.zero(pg, *object, *offset, *length),
            Change::Truncate { object, size } => self.truncate(pg, *object, *size),
            Change::SetHeader { object, generation, deleted, sessions_before } => {
                let mut header = self.header(pg, *object)?.unwrap_or_default();
                (header.generation, header.deleted) = (*generation, *deleted);
                header.sessions_before = *sessions_before;
                if *deleted {
                    self.drop_blocks(pg, *object, 0, u32::MAX)?;
                    header.size = 0;
                }
                self.set_header(pg, *object, header);
                Ok(())
            }
            Change::Forget { object } => {
                self.drop_blocks(pg, *object, 0, u32::MAX)?;
                self.out.headers.insert((pg, *object), None);
                Ok(())
            }
        }
    }

    fn delete_range(&mut self, pg: PgId, start: &Bytes, end: &Bytes) -> Result<(), EngineError> {
        if !end.is_empty() && end <= start {
            return Ok(());
        }
        let upper = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded((pg, end.clone())) };
        let staged = self.out.records.range_mut((Bound::Included((pg, start.clone())), upper));
        for (_, value) in staged.take_while(|((of, _), _)| *of == pg) {
            *value = None;
        }
        for key in self.view.record_keys(pg, start, end)? {
            self.out.records.insert((pg, key), None);
        }
        Ok(())
    }

    fn header(&self, pg: PgId, object: ObjectKey) -> Result<Option<ObjectHeader>, EngineError> {
        match self.out.headers.get(&(pg, object)) {
            Some(staged) => Ok(*staged),
            None => self.view.header(pg, object),
        }
    }

    fn set_header(&mut self, pg: PgId, object: ObjectKey, header: ObjectHeader) {
        self.out.headers.insert((pg, object), Some(header));
    }

    fn block(&mut self, pg: PgId, object: ObjectKey, block: u32) -> Result<Option<Bytes>, EngineError> {
        // Taken out, so that its buffer has one owner and can be changed in place; the caller puts a block back.
        match self.out.blocks.get_mut(&(pg, object, block)) {
            Some(staged) => Ok(staged.take()),
            None => self.view.block(pg, object, block),
        }
    }

    fn write(&mut self, pg: PgId, object: ObjectKey, offset: u64, data: &Bytes) -> Result<(), EngineError> {
        let mut header = self.header(pg, object)?.unwrap_or_default();
        if data.is_empty() {
            self.set_header(pg, object, header);
            return Ok(());
        }
        let end = offset + data.len() as u64;
        for block in block_of(offset)..=block_of(end - 1) {
            let start = block_start(block);
            let (from, to) = (offset.max(start), end.min(start + BLOCK_BYTES as u64));
            let part = data.slice((from - offset) as usize..(to - offset) as usize);
            // Nothing is stored beyond the size, so what covers all up to there needs no look at the old block.
            let covers = from == start && (part.len() == BLOCK_BYTES || to >= header.size);
            let old = if covers || start >= header.size { None } else { self.block(pg, object, block)? };
            let content = if covers { part } else { overwrite(old, (from - start) as usize, &part) };
            self.out.blocks.insert((pg, object, block), Some(content));
        }
        header.size = header.size.max(end);
        self.set_header(pg, object, header);
        Ok(())
    }

    fn zero(&mut self, pg: PgId, object: ObjectKey, offset: u64, length: u64) -> Result<(), EngineError> {
        let Some(header) = self.header(pg, object)? else { return Ok(()) };
        let end = header.size.min(offset.saturating_add(length));
        if offset >= end {
            return Ok(());
        }
        let (first, last) = (block_of(offset), block_of(end - 1));
        self.zero_in_block(pg, object, first, offset, end)?;
        if last > first {
            self.drop_blocks(pg, object, first + 1, last - 1)?;
            self.zero_in_block(pg, object, last, block_start(last), end)?;
        }
        Ok(())
    }

    fn zero_in_block(
        &mut self,
        pg: PgId,
        object: ObjectKey,
        block: u32,
        from: u64,
        to: u64,
    ) -> Result<(), EngineError> {
        let from = (from - block_start(block)) as usize;
        let to = ((to - block_start(block)) as usize).min(BLOCK_BYTES);
        if from == 0 && to == BLOCK_BYTES {
            return self.drop_blocks(pg, object, block, block);
        }
        let Some(mut content) = self.block(pg, object, block)? else { return Ok(()) };
        if to >= content.len() {
            content.truncate(from);
        } else {
            content = overwrite(Some(content), from, &ZEROS[..to - from]);
        }
        self.out.blocks.insert((pg, object, block), Some(content).filter(|content| !content.is_empty()));
        Ok(())
    }

    fn truncate(&mut self, pg: PgId, object: ObjectKey, size: u64) -> Result<(), EngineError> {
        let mut header = self.header(pg, object)?.unwrap_or_default();
        if size < header.size {
            let first_gone = size.div_ceil(BLOCK_BYTES as u64) as u32;
            self.drop_blocks(pg, object, first_gone, u32::MAX)?;
            if !size.is_multiple_of(BLOCK_BYTES as u64) {
                self.zero_in_block(pg, object, block_of(size), size, header.size)?;
            }
        }
        header.size = size;
        self.set_header(pg, object, header);
        Ok(())
    }

    /// Frees the blocks from `first` to `last`.
    fn drop_blocks(&mut self, pg: PgId, object: ObjectKey, first: u32, last: u32) -> Result<(), EngineError> {
        if first > last {
            return Ok(());
        }
        for (_, content) in self.out.blocks.range_mut((pg, object, first)..=(pg, object, last)) {
            *content = None;
        }
        for (block, _) in self.view.blocks(pg, object, first, last)? {
            self.out.blocks.insert((pg, object, block), None);
        }
        Ok(())
    }
}

static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// `old`, zero-filled as far as need be, with `part` at `at`.
fn overwrite(old: Option<Bytes>, at: usize, part: &[u8]) -> Bytes {
    let old = old.unwrap_or_default();
    let mut content = old.try_into_mut().unwrap_or_else(|shared| {
        let mut copy = BytesMut::with_capacity(shared.len().max(at + part.len()));
        copy.extend_from_slice(&shared);
        copy
    });
    if content.len() < at + part.len() {
        content.resize(at + part.len(), 0);
    }
    content[at..at + part.len()].copy_from_slice(part);
    content.freeze()
}
