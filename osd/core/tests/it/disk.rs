//! The simplest engine there can be, as a disk that survives crashes.

use std::collections::BTreeMap;

use bytes::Bytes;
use pando_osd_core::{
    Change, Cursor, ObjectCopy, ObjectHeader, ObjectKey, Page, PageQuery, PageRange, Part, Stored, keys,
};

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Disk {
    pub records: BTreeMap<Bytes, Bytes>,
    pub objects: BTreeMap<ObjectKey, (ObjectHeader, Vec<u8>)>,
}

/// Small pages, so that walks have many steps.
const PAGE: usize = 3;

impl Disk {
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            self.apply_one(change);
        }
    }

    fn apply_one(&mut self, change: &Change) {
        match change {
            Change::Put { key, value } => drop(self.records.insert(key.clone(), value.clone())),
            Change::Delete { key } => drop(self.records.remove(key)),
            Change::DeleteRange { start, end } => {
                self.records.retain(|key, _| key < start || (!end.is_empty() && key >= end));
            }
            Change::Write { object, offset, data } => {
                let (header, bytes) = self.objects.entry(*object).or_default();
                let end = *offset as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset as usize..end].copy_from_slice(data);
                header.size = bytes.len() as u64;
            }
            Change::Zero { object, offset, length } => {
                let (_, bytes) = self.objects.get_mut(object).unwrap();
                let end = (offset + length).min(bytes.len() as u64) as usize;
                bytes[*offset as usize..end].fill(0);
            }
            Change::Truncate { object, size } => {
                let (header, bytes) = self.objects.entry(*object).or_default();
                bytes.resize(*size as usize, 0);
                header.size = *size;
            }
            Change::SetHeader { object, generation, deleted, sessions_before } => {
                let (header, bytes) = self.objects.entry(*object).or_default();
                if *deleted {
                    bytes.clear();
                }
                *header = ObjectHeader {
                    size: bytes.len() as u64,
                    generation: *generation,
                    deleted: *deleted,
                    sessions_before: *sessions_before,
                };
            }
            Change::Forget { object } => drop(self.objects.remove(object)),
        }
    }

    pub fn stored(&self) -> Stored {
        Stored::decode(self.records.get(&keys::POSITION).cloned()).unwrap()
    }

    /// Everything but what a copy knows of itself.
    pub fn replicated(&self) -> Self {
        let mut disk = self.clone();
        disk.records.remove(&keys::POSITION);
        disk
    }

    pub fn sessions(&self) -> Vec<(Bytes, Bytes)> {
        let range = self.records.range(keys::REPLICATED..keys::SESSIONS_END);
        range.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    pub fn page(&self, query: &PageQuery) -> Page {
        let (range, content) = match query {
            PageQuery::Range { range, content } => (range.clone(), *content),
            PageQuery::From { cursor: Cursor::Records(start), content } => {
                let end = self.records.range(start.clone()..).nth(PAGE).map(|(key, _)| key.clone());
                (PageRange::Records { start: start.clone(), end: end.unwrap_or_default() }, *content)
            }
            PageQuery::From { cursor: Cursor::Objects(after), content } => {
                let mut later = self.objects.keys().filter(|key| after.is_none_or(|after| **key > after));
                let through = later.nth(PAGE - 1).copied().filter(|_| later.next().is_some());
                (PageRange::Objects { after: *after, through }, *content)
            }
            PageQuery::From { cursor: Cursor::End, .. } => panic!("nobody asks for what is after the end"),
        };
        self.range(range, content)
    }

    fn range(&self, range: PageRange, content: bool) -> Page {
        let mut part = Part { range: range.clone(), records: Vec::new(), objects: Vec::new() };
        match &range {
            PageRange::Records { start, end } => {
                let found = self.records.range(start.clone()..).take_while(|(key, _)| end.is_empty() || *key < end);
                part.records = found.map(|(key, value)| (key.clone(), value.clone())).collect();
            }
            PageRange::Objects { after, through } => {
                for (object, (header, bytes)) in &self.objects {
                    if after.is_none_or(|after| *object > after) && through.is_none_or(|through| *object <= through) {
                        let pieces = vec![(0, Bytes::copy_from_slice(bytes))];
                        part.objects.push(ObjectCopy { object: *object, header: *header, pieces });
                    }
                }
            }
        }
        // No hash collides less than the thing itself.
        let digest = Bytes::from(format!("{:?}{:?}", part.records, part.objects));
        let objects = part.objects.iter().map(|copy| copy.object).collect();
        Page { range, digest, objects, part: content.then_some(part) }
    }
}
