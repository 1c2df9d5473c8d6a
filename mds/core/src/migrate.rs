//! The cache on its way to another rank (R12): a copy in slices, then what changed since.

use pando_proto::Error;
use pando_proto::mds::CacheItem;

use crate::Namespace;

/// A copy of the cache under way.
#[derive(Debug, Default)]
pub struct Export {}

/// What changed since it was copied.
#[derive(Debug, Default)]
pub struct DeltaSlices {}

impl DeltaSlices {
    /// The next slice of about `max_bytes`; `None` at the end.
    pub fn next(&mut self, _ns: &mut Namespace, _max_bytes: usize) -> Option<Vec<CacheItem>> {
        None
    }
}

impl Namespace {
    /// Begins to copy the cache: from now on it is noted what changes.
    pub fn begin_export(&mut self) -> Export {
        Export::default()
    }

    /// The next slice of about `max_bytes`; `None` when everything was copied once. Skips what is not durable
    /// or has changed since the start: that comes with the delta.
    pub fn export_slice(&mut self, _export: &mut Export, _max_bytes: usize) -> Option<Vec<CacheItem>> {
        None
    }

    /// What changed since the start, when all batches are durable and nothing runs any more.
    pub fn export_delta(&mut self, _export: Export) -> DeltaSlices {
        DeltaSlices::default()
    }

    /// Nobody wants the copy any more.
    pub fn cancel_export(&mut self, _export: Export) {}

    /// Takes a slice in, in the order they were made, into a namespace that has run nothing yet.
    ///
    /// # Errors
    /// `Corrupt`, `NewerFormat` or `InvalidRequest` for what is no item: the namespace is to be thrown away.
    pub fn import(&mut self, _items: Vec<CacheItem>) -> Result<(), Error> {
        Ok(())
    }
}
