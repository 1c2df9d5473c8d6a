//! The cache on its way to another rank (R12): a copy in slices, then, in rounds, what changed since.
//!
//! The copy goes through the directories by the names in memory. Only what is durable is copied; what is not, and what
//! changes later, is noted, and comes with the next round, as it is then. A round that is sent while operations run
//! leaves out what is not durable, for the round after it. The last round, the delta, is sent when all is durable and
//! nothing runs: with it the copy is exact.

use std::collections::VecDeque;
use std::collections::hash_set::IntoIter;
use std::sync::Arc;

use bytes::Bytes;
use pando_proto::mds::cache_item::Item;
use pando_proto::mds::{CacheItem, CachedEntry, CachedName, CachedNames, CachedRecord};
use pando_proto::{Error, Ino, Reason, is_file_name};

use crate::Namespace;
use crate::cache::Slot;
use crate::cache::copy::Said;
use crate::cache::names::{Lookup, State};
use crate::cache::noted::Note;
use crate::inode::{self, Dentry, Inode, encode, encode_body, encode_dentry};

/// Most names looked at in one go, and about the bytes of one with what is behind it.
const NAMES: usize = 128;
const NAME_BYTES: usize = 128;

/// A copy of the cache under way. Ends with [`Namespace::export_delta`] or [`Namespace::cancel_export`].
#[derive(Debug)]
pub struct Export {
    /// Directories still to come.
    dirs: VecDeque<Ino>,
    /// The one under way.
    dir: Option<Dir>,
}

#[derive(Debug)]
struct Dir {
    ino: Ino,
    after: Bytes,
    /// All names were known when it was begun.
    complete: bool,
}

/// What changed since the last round.
#[derive(Debug)]
pub struct DeltaSlices {
    notes: IntoIter<Note>,
}

/// Items up to about so many bytes.
struct Slice {
    items: Vec<CacheItem>,
    room: usize,
}

impl Slice {
    fn new(max_bytes: usize) -> Self {
        Self { items: Vec::new(), room: max_bytes.max(1) }
    }

    fn push(&mut self, item: Item, bytes: usize) {
        self.items.push(CacheItem { item: Some(item) });
        self.room = self.room.saturating_sub(bytes + 24);
    }
}

impl DeltaSlices {
    /// The next slice of about `max_bytes`; `None` at the end.
    pub fn next(&mut self, ns: &mut Namespace, max_bytes: usize) -> Option<Vec<CacheItem>> {
        let items = ns.slice_of(&mut self.notes, max_bytes, false);
        (!items.is_empty()).then_some(items)
    }
}

impl Namespace {
    /// Begins to copy the cache: from now on it is noted what changes.
    pub fn begin_export(&mut self) -> Export {
        self.cache.noted.begin();
        Export { dirs: VecDeque::from([self.config.root]), dir: None }
    }

    /// The next slice of about `max_bytes`; `None` when everything was copied once. May be empty.
    pub fn export_slice(&mut self, export: &mut Export, max_bytes: usize) -> Option<Vec<CacheItem>> {
        let mut slice = Slice::new(max_bytes);
        while slice.room > 0 {
            let Some(mut dir) = export.dir.take().or_else(|| self.next_dir(export, &mut slice)) else {
                return (!slice.items.is_empty()).then_some(slice.items);
            };
            if self.export_names(export, &mut dir, &mut slice) {
                export.dir = Some(dir);
            }
        }
        Some(slice.items)
    }

    /// What changed since the last round began, or since the start: the next slice of about `max_bytes`, `None` at
    /// the end of the round. Operations go on: what they change, and what is not durable yet, waits for another round.
    /// Meant for the time when everything was copied once. Slices may be empty.
    pub fn export_round(&mut self, _export: &mut Export, max_bytes: usize) -> Option<Vec<CacheItem>> {
        let noted = &mut self.cache.noted;
        let mut round = noted.round().or_else(|| {
            noted.begin_round();
            noted.round()
        })?;
        let items = self.slice_of(&mut round, max_bytes, true);
        let more = !items.is_empty() || round.len() > 0;
        self.cache.noted.go_on(more.then_some(round));
        more.then_some(items)
    }

    /// What became of these, up to about `max_bytes`. While operations run, what is not durable is noted again.
    fn slice_of(&mut self, notes: &mut IntoIter<Note>, max_bytes: usize, running: bool) -> Vec<CacheItem> {
        let mut slice = Slice::new(max_bytes);
        while slice.room > 0 {
            let Some(note) = notes.next() else { break };
            if running && self.is_undurable(&note) {
                self.cache.noted.note(|| note);
                // Costs time all the same (R27).
                slice.room = slice.room.saturating_sub(8);
            } else {
                let (item, bytes) = self.changed(note);
                slice.push(item, bytes);
            }
        }
        slice.items
    }

    fn is_undurable(&self, note: &Note) -> bool {
        match note {
            Note::Inode(ino) => self.cache.peek(*ino).is_some_and(|node| node.stamp.batch.is_some()),
            Note::Body(ino) => self.cache.peek_body(*ino).is_some_and(|body| body.stamp.batch.is_some()),
            Note::Name(dir, name) => self.cache.peek(*dir).is_some_and(|node| match &node.names {
                Some(names) => names.batch_of(name).is_some(),
                // That there is none is what the inode says.
                None => node.stamp.batch.is_some(),
            }),
        }
    }

    /// Changes that wait for the next round.
    pub fn noted(&self) -> usize {
        self.cache.noted.len()
    }

    /// What changed since the last round. All batches are durable, and nothing runs any more.
    pub fn export_delta(&mut self, _export: Export) -> DeltaSlices {
        debug_assert!(self.cache.is_clean(), "R12: drained before the delta");
        DeltaSlices { notes: self.cache.noted.end() }
    }

    /// Nobody wants the copy any more.
    pub fn cancel_export(&mut self, _export: Export) {
        self.cache.noted.end();
    }

    fn next_dir(&mut self, export: &mut Export, slice: &mut Slice) -> Option<Dir> {
        let ino = export.dirs.pop_front()?;
        self.export_inode(ino, slice);
        let names = self.cache.peek(ino).and_then(|node| node.names.as_ref());
        let complete = names.is_some_and(|names| names.is_complete());
        Some(Dir { ino, after: Bytes::new(), complete })
    }

    /// Some names of a directory with the files behind them; true: there are more.
    fn export_names(&mut self, export: &mut Export, dir: &mut Dir, slice: &mut Slice) -> bool {
        let Some(names) = self.cache.peek(dir.ino).and_then(|node| node.names.as_ref()) else { return false };
        let limit = (slice.room / NAME_BYTES).clamp(1, NAMES);
        let (mut seen, mut found, mut dirty) = (0, Vec::new(), Vec::new());
        let after = dir.after.clone();
        for (name, entry) in names.entries_after(&after, limit) {
            seen += 1;
            dir.after = name.clone();
            match entry.state {
                _ if entry.stamp.batch.is_some() => dirty.push(name.clone()),
                State::Present(dentry) => found.push((name.clone(), dentry)),
                State::Absent | State::Unknown => {}
            }
            // Of what is not durable the name waits; what is behind it may be copied, if that is.
            if let State::Present(dentry) = entry.state
                && dentry.kind == pando_proto::mds::FileKind::Directory
                && !self.tree.forest.roots.contains_key(&dentry.ino)
            {
                export.dirs.push_back(dentry.ino);
            }
        }
        // Names that are skipped cost time all the same (R27).
        slice.room = slice.room.saturating_sub(8 * seen);
        let more = seen == limit;
        let complete = !more && dir.complete && names.is_complete() && !self.cache.noted.is_cut(dir.ino);
        for name in dirty {
            self.cache.noted.note(|| Note::Name(dir.ino, name));
        }
        let bytes = found.iter().map(|(name, _)| name.len() + 24).sum();
        let entry =
            |(name, dentry): &(Bytes, Dentry)| CachedEntry { name: name.clone(), record: encode_dentry(*dentry) };
        let entries: Vec<_> = found.iter().map(entry).collect();
        if complete || !entries.is_empty() {
            slice.push(Item::Names(CachedNames { dir: dir.ino.0, complete, entries }), bytes);
        }
        for (_, dentry) in found {
            if dentry.kind != pando_proto::mds::FileKind::Directory {
                self.export_inode(dentry.ino, slice);
                self.export_body(dentry.ino, slice);
            }
        }
        more
    }

    fn export_inode(&mut self, ino: Ino, slice: &mut Slice) {
        let Some(node) = self.cache.peek(ino) else { return };
        if node.stamp.batch.is_some() {
            self.cache.noted.note(|| Note::Inode(ino));
        } else if let Slot::Present(inode) = &node.inode {
            let record = encode(inode.as_ref());
            let bytes = record.len();
            slice.push(Item::Inode(CachedRecord { ino: ino.0, record: Some(record) }), bytes);
        }
    }

    fn export_body(&mut self, ino: Ino, slice: &mut Slice) {
        let Some(body) = self.cache.peek_body(ino) else { return };
        if body.stamp.batch.is_some() {
            self.cache.noted.note(|| Note::Body(ino));
        } else if let Slot::Present(data) = &body.data {
            let record = encode_body(self.inline_version(ino), data.clone()).0;
            let bytes = record.len();
            slice.push(Item::Body(CachedRecord { ino: ino.0, record: Some(record) }), bytes);
        }
    }

    fn inline_version(&self, ino: Ino) -> u64 {
        match self.cache.peek(ino).map(|node| &node.inode) {
            Some(Slot::Present(inode)) => inode.inline_version,
            _ => 0,
        }
    }

    /// What became of it, and about its bytes.
    fn changed(&mut self, note: Note) -> (Item, usize) {
        match note {
            Note::Inode(ino) => {
                let record = match self.cache.peek(ino).map(|node| &node.inode) {
                    Some(Slot::Present(inode)) => Some(Some(encode(inode.as_ref()))),
                    Some(Slot::Absent) => Some(None),
                    Some(Slot::Unknown) | None => None,
                };
                record_item(ino, record, Item::Inode, Item::UnknownInode)
            }
            Note::Body(ino) => {
                let record = match self.cache.peek_body(ino).map(|body| &body.data) {
                    Some(Slot::Present(data)) => Some(Some(data.clone())),
                    Some(Slot::Absent) => Some(None),
                    Some(Slot::Unknown) | None => None,
                };
                let version = self.inline_version(ino);
                let record = record.map(|data| data.map(|data| encode_body(version, data).0));
                record_item(ino, record, Item::Body, Item::UnknownBody)
            }
            Note::Name(dir, name) => {
                let bytes = name.len() + 32;
                let known = self.lookup_cached(dir, &name);
                let record = known.flatten().map(encode_dentry);
                let item = CachedName { dir: dir.0, name, record };
                (if known.is_some() { Item::Name(item) } else { Item::UnknownName(item) }, bytes)
            }
        }
    }

    fn lookup_cached(&mut self, dir: Ino, name: &[u8]) -> Option<Option<Dentry>> {
        let node = self.cache.node(dir)?;
        match (&mut node.names, &node.inode) {
            (Some(names), _) => match names.lookup(name) {
                Lookup::Present(dentry, _) => Some(Some(dentry)),
                Lookup::Absent(_) => Some(None),
                Lookup::Unknown => None,
            },
            (None, Slot::Present(inode)) if inode.entries == 0 => Some(None),
            (None, _) => None,
        }
    }

    /// Takes a slice in, in the order they were made, into a namespace that has run nothing yet. What is beyond the
    /// budget is left out.
    ///
    /// # Errors
    /// `Corrupt`, `NewerFormat` or `InvalidRequest` for what is no item: the namespace is to be thrown away.
    pub fn import(&mut self, items: Vec<CacheItem>) -> Result<(), Error> {
        for item in items {
            self.import_one(item.item.ok_or_else(|| refused("is empty or of a newer kind"))?)?;
        }
        Ok(())
    }

    fn import_one(&mut self, item: Item) -> Result<(), Error> {
        match item {
            Item::Inode(item) => {
                let ino = checked(item.ino)?;
                let decode = |value: Bytes| inode::decode_inode(ino, &value).map(Arc::<Inode>::new);
                self.cache.copy_inode(ino, said(item.record.map(decode).transpose()?));
            }
            Item::Body(item) => {
                let ino = checked(item.ino)?;
                let decode = |value: Bytes| inode::decode_body(ino, &value).map(|body| body.data);
                self.cache.copy_body(ino, said(item.record.map(decode).transpose()?));
            }
            Item::Names(item) => {
                let dir = checked(item.dir)?;
                let decode =
                    |entry: CachedEntry| Ok((checked_name(entry.name)?, inode::decode_dentry(dir, &entry.record)?));
                let entries = item.entries.into_iter().map(decode).collect::<Result<Vec<_>, Error>>()?;
                self.cache.copy_names(dir, &entries, item.complete);
            }
            Item::Name(item) => {
                let (dir, name) = (checked(item.dir)?, checked_name(item.name)?);
                let dentry = item.record.map(|value| inode::decode_dentry(dir, &value)).transpose()?;
                self.cache.copy_name(dir, &name, said(dentry));
            }
            Item::UnknownInode(item) => self.cache.copy_inode(checked(item.ino)?, Said::Unknown),
            Item::UnknownBody(item) => self.cache.copy_body(checked(item.ino)?, Said::Unknown),
            Item::UnknownName(item) => {
                let (dir, name) = (checked(item.dir)?, checked_name(item.name)?);
                self.cache.copy_name(dir, &name, Said::Unknown);
            }
        }
        Ok(())
    }
}

fn record_item(
    ino: Ino,
    record: Option<Option<Bytes>>,
    known: impl FnOnce(CachedRecord) -> Item,
    unknown: impl FnOnce(CachedRecord) -> Item,
) -> (Item, usize) {
    let bytes = record.as_ref().and_then(Option::as_ref).map_or(0, Bytes::len);
    match record {
        Some(record) => (known(CachedRecord { ino: ino.0, record }), bytes),
        None => (unknown(CachedRecord { ino: ino.0, record: None }), bytes),
    }
}

fn said<T>(value: Option<T>) -> Said<T> {
    value.map_or(Said::Absent, Said::Present)
}

fn checked(ino: u64) -> Result<Ino, Error> {
    if Ino(ino).is_valid() { Ok(Ino(ino)) } else { Err(refused("names no inode")) }
}

/// Copied, so that it does not keep the message alive (I8).
fn checked_name(name: Bytes) -> Result<Bytes, Error> {
    if is_file_name(&name) {
        Ok(Bytes::copy_from_slice(&name))
    } else {
        Err(refused("has a name that no file can have"))
    }
}

fn refused(what: &str) -> Error {
    Error::new(Reason::InvalidRequest, format!("an item of the copied cache {what}: the subtree starts cold"))
}
