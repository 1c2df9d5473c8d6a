//! The objects of files, as OSDs keep them.

use super::*;

/// An object as the OSD keeps it: only trims, and the write that makes it, set its generation.
#[derive(Clone, Debug, Default)]
pub(super) struct Object {
    generation: u64,
    deleted: bool,
    bytes: Vec<u8>,
}

/// The data pool.
#[derive(Clone, Debug, Default)]
pub struct Objects(BTreeMap<(Ino, u64), Object>);

impl Objects {
    /// False: refused as stale (R22).
    pub fn write(&mut self, ino: Ino, index: u64, generation: u64, offset: usize, data: &[u8]) -> bool {
        let object = self.0.entry((ino, index)).or_insert(Object { deleted: true, ..Object::default() });
        if generation < object.generation {
            return false;
        }
        if object.deleted {
            *object = Object { generation, ..Object::default() };
        }
        let end = offset + data.len();
        if object.bytes.len() < end {
            object.bytes.resize(end, 0);
        }
        object.bytes[offset..end].copy_from_slice(data);
        true
    }

    /// Cuts to `size`, or deletes. Refused as stale: it was done before.
    pub(super) fn trim(&mut self, ino: Ino, index: u64, generation: u64, size: Option<usize>) {
        let object = self.0.entry((ino, index)).or_insert(Object { deleted: true, ..Object::default() });
        if generation < object.generation {
            return;
        }
        object.generation = generation;
        match size {
            Some(size) if !object.deleted => object.bytes.truncate(size),
            _ => *object = Object { generation, deleted: true, bytes: Vec::new() },
        }
    }

    pub(super) fn living(&self, ino: Ino) -> impl Iterator<Item = (u64, &Object)> {
        self.0.range((ino, 0)..=(ino, u64::MAX)).filter(|(_, o)| !o.deleted).map(|((_, index), o)| (*index, o))
    }

    /// Files with objects.
    pub fn inos(&self) -> BTreeSet<Ino> {
        self.0.iter().filter(|(_, object)| !object.deleted).map(|((ino, _), _)| *ino).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.inos().is_empty()
    }

    /// Highest generation of the living objects of a file, and their bytes as one run.
    pub fn file(&self, ino: Ino) -> (u64, Vec<u8>) {
        let (mut generation, mut bytes) = (0, Vec::new());
        for (index, object) in self.living(ino) {
            generation = generation.max(object.generation);
            bytes.resize((index * OBJECT_SIZE) as usize, 0);
            bytes.extend_from_slice(&object.bytes);
        }
        (generation, bytes)
    }
}
