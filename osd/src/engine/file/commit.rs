//! How a commit of the file engine reaches the disk; the order of the steps is what makes it crash-safe.

use std::collections::BTreeMap;

use bytes::Bytes;
use pando_proto::PgId;

use super::FileEngine;
use super::files::Unsynced;
use super::tables::{BlockRow, FileView, Writer, Writers};
use crate::engine::format::{self, Space};
use crate::engine::stage::Staged;
use crate::engine::view::View;
use crate::engine::{EngineError, ObjectKey};

/// New bytes of one object from which on they go straight into its file: a second sync costs less than writing twice.
const DIRECT_BYTES: usize = 64 * 1024;
/// Deferred bytes from which on they are brought into their files.
const MAX_DEFERRED_BYTES: usize = 8 << 20;
/// Deferred blocks from which on they are brought into their files.
const MAX_DEFERRED_BLOCKS: usize = 512;

/// What the committing thread keeps between commits.
#[derive(Default)]
pub(super) struct Committing {
    pub failed: bool,
    deferred_blocks: usize,
    deferred_bytes: usize,
}

impl Committing {
    pub fn check(&self) -> Result<(), EngineError> {
        if self.failed {
            return Err(EngineError::Io("an earlier write failed: start the osd again".to_owned()));
        }
        Ok(())
    }
}

type Name = (PgId, ObjectKey);

/// Where the staged blocks go.
#[derive(Default)]
struct Plan {
    /// Not in the table so far: into the file, before the table.
    direct: BTreeMap<Name, Vec<(u32, Bytes)>>,
    /// With the table, into the file later.
    deferred: BTreeMap<Name, Vec<(u32, Bytes)>>,
    /// Out of the table, then out of the file.
    freed: BTreeMap<Name, Vec<u32>>,
}

impl FileEngine {
    pub(super) fn write(
        &self,
        view: &FileView<'_>,
        staged: &Staged,
        committing: &mut Committing,
    ) -> Result<(), EngineError> {
        let plan = plan(view, staged)?;
        let mut unsynced = Unsynced::default();
        for (name, blocks) in &plan.direct {
            self.files.write(*name, blocks, &mut unsynced)?;
        }
        unsynced.sync(&self.files)?;
        self.tables.change(|writers| {
            put_values(writers, staged)?;
            put_blocks(writers, &plan)
        })?;
        // All is durable; the rest is tidying up.
        self.give_back(&plan);
        for (_, content) in plan.deferred.values().flatten() {
            committing.deferred_blocks += 1;
            committing.deferred_bytes += content.len();
        }
        if committing.deferred_blocks > MAX_DEFERRED_BLOCKS || committing.deferred_bytes > MAX_DEFERRED_BYTES {
            self.bring_home()?;
            (committing.deferred_blocks, committing.deferred_bytes) = (0, 0);
        }
        Ok(())
    }

    /// Brings all deferred blocks into their files.
    pub(super) fn bring_home(&self) -> Result<(), EngineError> {
        loop {
            let deferred = self.view()?.deferred(MAX_DEFERRED_BYTES)?;
            if deferred.is_empty() {
                return Ok(());
            }
            let mut by_object: BTreeMap<Name, Vec<(u32, Bytes)>> = BTreeMap::new();
            for (key, content) in &deferred {
                let name = (format::decode_pg(key)?, format::decode_object_key(key)?);
                by_object.entry(name).or_default().push((format::decode_block_number(key)?, content.clone()));
            }
            let mut unsynced = Unsynced::default();
            for (name, blocks) in &by_object {
                self.files.write(*name, blocks, &mut unsynced)?;
            }
            unsynced.sync(&self.files)?;
            self.tables.change(|writers| {
                deferred.iter().try_for_each(|(key, _)| writers.deferred.remove(&key[..]).map(drop))
            })?;
        }
    }

    /// A failure here loses room, not data: the next open tries again for whole files.
    fn give_back(&self, plan: &Plan) {
        for (name, blocks) in &plan.freed {
            let left = self.view().and_then(|view| view.blocks(name.0, name.1, 0, u32::MAX));
            let outcome = match left {
                Ok(left) if left.is_empty() => self.files.remove(*name),
                Ok(_) => self.files.free(*name, blocks),
                Err(error) => Err(std::io::Error::other(error)),
            };
            if let Err(error) = outcome {
                tracing::warn!(pg = %name.0, object = %name.1, %error, "cannot give freed room back to the file system");
            }
        }
    }
}

fn plan(view: &FileView<'_>, staged: &Staged) -> Result<Plan, EngineError> {
    let mut plan = Plan::default();
    for ((pg, object, block), content) in &staged.blocks {
        let name = (*pg, *object);
        let is_stored = view.row(&format::block_key(*pg, *object, *block))?.is_some();
        match content {
            Some(content) if is_stored => {
                plan.deferred.entry(name).or_default().push((*block, content.clone()));
            }
            Some(content) => plan.direct.entry(name).or_default().push((*block, content.clone())),
            None if is_stored => plan.freed.entry(name).or_default().push(*block),
            None => {}
        }
    }
    plan.direct.retain(|name, blocks| {
        let is_worth_it = blocks.iter().map(|(_, content)| content.len()).sum::<usize>() >= DIRECT_BYTES;
        if !is_worth_it {
            plan.deferred.entry(*name).or_default().append(blocks);
        }
        is_worth_it
    });
    Ok(plan)
}

fn put_values(writers: &mut Writers<'_>, staged: &Staged) -> Result<(), redb::StorageError> {
    for ((pg, key), value) in &staged.records {
        put_value(&mut writers.records, Space::Records, &format::record_key(*pg, key), value.as_deref())?;
    }
    for ((pg, object), header) in &staged.headers {
        let header = header.as_ref().map(format::encode_header);
        let value = header.as_ref().map(|bytes| &bytes[..]);
        put_value(&mut writers.headers, Space::Headers, &format::object_key(*pg, *object), value)?;
    }
    Ok(())
}

fn put_value(table: &mut Writer<'_>, space: Space, key: &[u8], value: Option<&[u8]>) -> Result<(), redb::StorageError> {
    match value {
        Some(value) => table.insert(key, &format::seal(space, key, value)[..]).map(drop),
        None => table.remove(key).map(drop),
    }
}

fn put_blocks(writers: &mut Writers<'_>, plan: &Plan) -> Result<(), redb::StorageError> {
    for (blocks, deferred) in [(&plan.direct, false), (&plan.deferred, true)] {
        for ((pg, object), blocks) in blocks {
            for (block, content) in blocks {
                let key = format::block_key(*pg, *object, *block);
                writers.blocks.insert(&key[..], &BlockRow::of(&key, content).encode()[..])?;
                if deferred {
                    writers.deferred.insert(&key[..], &content[..])?;
                }
            }
        }
    }
    for ((pg, object), blocks) in &plan.freed {
        for block in blocks {
            let key = format::block_key(*pg, *object, *block);
            writers.blocks.remove(&key[..])?;
            writers.deferred.remove(&key[..])?;
        }
    }
    Ok(())
}
