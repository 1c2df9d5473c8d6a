//! What an engine should do, as naively as it can be written.

use std::collections::BTreeMap;

use pando_osd::engine::{Change, Engine, ObjectHeader, ObjectKey, Transaction};
use pando_proto::PgId;

#[derive(Default)]
pub struct Model {
    records: BTreeMap<(PgId, Vec<u8>), Vec<u8>>,
    objects: BTreeMap<(PgId, ObjectKey), (ObjectHeader, Vec<u8>)>,
}

impl Model {
    pub fn apply(&mut self, transaction: &Transaction) {
        for change in &transaction.changes {
            self.change(transaction.pg, change);
        }
    }

    fn change(&mut self, pg: PgId, change: &Change) {
        match change {
            Change::Put { key, value } => drop(self.records.insert((pg, key.to_vec()), value.to_vec())),
            Change::Delete { key } => drop(self.records.remove(&(pg, key.to_vec()))),
            Change::DeleteRange { start, end } => self
                .records
                .retain(|(of, key), _| *of != pg || key[..] < start[..] || (!end.is_empty() && key[..] >= end[..])),
            Change::Write { object, offset, data } => {
                let (header, bytes) = self.objects.entry((pg, *object)).or_default();
                if !data.is_empty() {
                    let end = *offset as usize + data.len();
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[*offset as usize..end].copy_from_slice(data);
                    header.size = bytes.len() as u64;
                }
            }
            Change::Zero { object, offset, length } => {
                if let Some((_, bytes)) = self.objects.get_mut(&(pg, *object)) {
                    let end = offset.saturating_add(*length).min(bytes.len() as u64) as usize;
                    let start = (*offset as usize).min(end);
                    bytes[start..end].fill(0);
                }
            }
            Change::Truncate { object, size } => {
                let (header, bytes) = self.objects.entry((pg, *object)).or_default();
                bytes.resize(*size as usize, 0);
                header.size = *size;
            }
            Change::SetHeader { object, generation, deleted, sessions_before } => {
                let (header, bytes) = self.objects.entry((pg, *object)).or_default();
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
            Change::Forget { object } => drop(self.objects.remove(&(pg, *object))),
        }
    }

    /// Panics where the engine shows anything else than the model.
    pub fn compare(&self, engine: &dyn Engine) {
        let mut pgs: Vec<PgId> = self.records.keys().map(|(pg, _)| *pg).collect();
        pgs.extend(self.objects.keys().map(|(pg, _)| *pg));
        pgs.sort();
        pgs.dedup();
        assert_eq!(engine.pgs().unwrap(), pgs);
        for pg in pgs {
            self.compare_records(engine, pg);
            self.compare_objects(engine, pg);
        }
    }

    fn compare_records(&self, engine: &dyn Engine, pg: PgId) {
        let expected: Vec<_> = self.records.iter().filter(|((of, _), _)| *of == pg).collect();
        let (mut seen, mut start) = (Vec::new(), Some(Vec::new()));
        while let Some(from) = start {
            let page = engine.scan(pg, &from, b"", 3, 40).unwrap();
            assert!(!page.records.is_empty() || page.next.is_none());
            seen.extend(page.records);
            start = page.next.map(|next| next.to_vec());
        }
        assert_eq!(seen.len(), expected.len());
        for ((key, value), ((_, expected_key), expected_value)) in seen.iter().zip(&expected) {
            assert_eq!((&key[..], &value[..]), (&expected_key[..], &expected_value[..]));
            assert_eq!(engine.get(pg, key).unwrap().unwrap(), expected_value[..]);
        }
        assert_eq!(engine.get(pg, b"never written").unwrap(), None);
    }

    fn compare_objects(&self, engine: &dyn Engine, pg: PgId) {
        let expected: Vec<_> = self.objects.iter().filter(|((of, _), _)| *of == pg).collect();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = engine.list_objects(pg, after, 2).unwrap();
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            seen.extend(page);
        }
        assert_eq!(seen, expected.iter().map(|((_, object), (header, _))| (*object, *header)).collect::<Vec<_>>());
        for ((_, object), (header, bytes)) in expected {
            assert_eq!(engine.header(pg, *object).unwrap(), Some(*header));
            let read = engine.read(pg, *object, 0, u64::MAX).unwrap();
            assert!(read == bytes[..], "object {object} of {} bytes differs", bytes.len());
            assert!(engine.stored_bytes(pg, *object).unwrap() <= header.size);
            let (from, to) = (bytes.len() / 3, bytes.len() * 2 / 3);
            let part = engine.read(pg, *object, from as u64, (to - from) as u64).unwrap();
            assert!(part == bytes[from..to], "part {from}..{to} of object {object} differs");
        }
    }
}
