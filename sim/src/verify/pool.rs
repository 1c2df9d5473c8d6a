//! What the primaries hold, as one tree.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_mds_core::pipeline::redo::{Position, decode_record};
use pando_mds_core::records::Key;
use pando_proto::ids::{DATA_POOL, METADATA_POOL};
use pando_proto::mds::{DentryRecord, FenceRecord, FileKind, InodeRecord, RedoRecord, ShardListRecord};
use pando_proto::{Epoch, Ino, ShardId, SubtreeId};

use super::replicas::{engine_of, records};
use crate::board::Board;

/// First byte of a record's engine key, before the shard.
const RECORD: u8 = 2;
/// First byte of a fence's key in its shard.
const FENCE: u8 = b'f';

/// A batch over several shards, of which only the first one knows (R5).
struct Redo {
    shard: ShardId,
    subtree: SubtreeId,
    position: Position,
    others: Vec<ShardId>,
}

/// All records and objects.
#[derive(Default)]
pub(super) struct Pool {
    inodes: BTreeMap<Ino, InodeRecord>,
    dentries: BTreeMap<(Ino, Bytes), DentryRecord>,
    /// Of an inode, a directory and a name.
    links: BTreeSet<(Ino, Ino, Bytes)>,
    bodies: BTreeSet<Ino>,
    orphans: BTreeSet<Ino>,
    purges: BTreeSet<Ino>,
    transactions: Vec<Key>,
    redos: Vec<Redo>,
    /// Shards that a subtree uses.
    lists: BTreeMap<SubtreeId, BTreeSet<u32>>,
    /// What was applied of a subtree in a shard.
    applied: BTreeMap<(SubtreeId, ShardId), Position>,
    /// Files with objects.
    objects: BTreeSet<Ino>,
}

impl Pool {
    pub fn load(board: &Board, map: &ClusterMap) -> Result<Self, String> {
        let mut pool = Self::default();
        for (id, pg) in &map.pgs {
            let primary = pg.members.first().ok_or_else(|| format!("{id} has no members"))?;
            let engine = engine_of(board, map, *primary).ok_or_else(|| format!("{id}: there is no {primary}"))?;
            if id.pool == METADATA_POOL {
                for (key, value) in &records(&**engine, *id, &[RECORD])? {
                    pool.add(key, value)?;
                }
            } else if id.pool == DATA_POOL {
                let listed = engine.list_objects(*id, None, usize::MAX).map_err(|error| error.to_string())?;
                let alive = listed.iter().filter(|(_, header)| !header.deleted && header.size > 0);
                pool.objects.extend(alive.map(|(object, _)| object.ino));
            }
        }
        Ok(pool)
    }

    fn add(&mut self, key: &Bytes, value: &Bytes) -> Result<(), String> {
        let Some(&[_, high, low]) = key.get(..3).and_then(|prefix| <&[u8; 3]>::try_from(prefix).ok()) else {
            return Err(format!("{key:?} is no key"));
        };
        let (shard, key) = (ShardId(u16::from_be_bytes([high, low])), key.slice(3..));
        let failed = |error: pando_proto::Error| error.to_string();
        match Key::decode(shard, &key) {
            Some(Key::Inode(ino)) => drop(self.inodes.insert(ino, decode_record(value).map_err(failed)?)),
            Some(Key::Dentry(dir, name)) => {
                self.dentries.insert((dir, name), decode_record(value).map_err(failed)?);
            }
            Some(Key::BackLink(ino, dir, name)) => drop(self.links.insert((ino, dir, name))),
            Some(Key::Body(ino)) => drop(self.bodies.insert(ino)),
            Some(Key::Orphan(ino)) => drop(self.orphans.insert(ino)),
            Some(Key::Purge(ino)) => drop(self.purges.insert(ino)),
            Some(Key::Redo(shard, subtree, epoch, batch)) => {
                let record: RedoRecord = decode_record(value).map_err(failed)?;
                let others = record.parts.iter().map(|part| ShardId(part.shard as u16)).collect();
                self.redos.push(Redo { shard, subtree, position: (epoch, batch), others });
            }
            Some(Key::ShardList(_, subtree)) => {
                let list: ShardListRecord = decode_record(value).map_err(failed)?;
                self.lists.insert(subtree, list.shards.into_iter().collect());
            }
            Some(key @ Key::Transaction(..)) => self.transactions.push(key),
            Some(Key::Completed(..)) => {}
            None => self.add_fence(shard, &key, value)?,
        }
        Ok(())
    }

    fn add_fence(&mut self, shard: ShardId, key: &Bytes, value: &Bytes) -> Result<(), String> {
        let number = key.strip_prefix(&[FENCE]).and_then(|rest| rest.try_into().ok()).map(u64::from_be_bytes);
        let subtree = SubtreeId(number.ok_or_else(|| format!("{key:?} is no key"))?);
        let fence: FenceRecord = decode_record(value).map_err(|error| error.to_string())?;
        self.applied.insert((subtree, shard), (Epoch(fence.applied_epoch), fence.applied_batch));
        Ok(())
    }

    pub fn check(&self, map: &ClusterMap) -> Result<(), String> {
        self.check_tree()?;
        self.check_names()?;
        self.check_forest(map)?;
        self.check_batches(map)
    }

    /// Nothing is lost, and nothing left over (I6, I7).
    fn check_tree(&self) -> Result<(), String> {
        let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut entries: BTreeMap<Ino, u64> = BTreeMap::new();
        for ((dir, name), dentry) in &self.dentries {
            let ino = Ino(dentry.ino);
            *names.entry(ino).or_default() += 1;
            *entries.entry(*dir).or_default() += 1;
            if !self.inodes.contains_key(&ino) {
                return Err(format!("I6: {} in {dir} leads to {ino}, which is not there", name.escape_ascii()));
            }
        }
        let reached = self.reached()?;
        for (ino, inode) in &self.inodes {
            let is_directory = inode.kind() == FileKind::Directory;
            let named = names.get(ino).copied().unwrap_or(0);
            if !reached.contains(ino) {
                return Err(format!("I7: {ino} cannot be reached: {inode:?}"));
            }
            if *ino != Ino::ROOT && is_directory && named != 1 {
                return Err(format!("I6: directory {ino} has {named} names"));
            }
            if !is_directory && named != inode.nlink {
                return Err(format!("I6: {ino} has {named} names and counts {}", inode.nlink));
            }
            let there = entries.get(ino).copied().unwrap_or(0);
            if is_directory && there != inode.entries {
                return Err(format!("I6: directory {ino} has {there} entries and counts {}", inode.entries));
            }
        }
        let gone = |inos: &BTreeSet<Ino>| inos.iter().find(|ino| !self.inodes.contains_key(ino)).copied();
        if let Some(ino) = gone(&self.bodies) {
            return Err(format!("I7: a body of {ino} is left"));
        }
        if let Some(ino) = gone(&self.objects) {
            return Err(format!("I7: objects of {ino} are left"));
        }
        if let Some(ino) = self.orphans.first() {
            return Err(format!("I7: orphan {ino} was not reaped"));
        }
        match self.purges.first() {
            Some(ino) => Err(format!("I7: {ino} was not purged")),
            None => Ok(()),
        }
    }

    /// An inode knows its primary name, and a back link for each other one (R15).
    fn check_names(&self) -> Result<(), String> {
        let named = |dir: Ino, name: &Bytes| self.dentries.get(&(dir, name.clone())).map(|dentry| Ino(dentry.ino));
        for (ino, inode) in self.inodes.iter().filter(|(ino, _)| **ino != Ino::ROOT) {
            if named(Ino(inode.parent), &inode.name) != Some(*ino) {
                return Err(format!("R15: the primary name of {ino} does not lead to it: {inode:?}"));
            }
        }
        for ((dir, name), dentry) in &self.dentries {
            let ino = Ino(dentry.ino);
            let inode = self.inodes.get(&ino).ok_or_else(|| format!("I6: {ino} is not there"))?;
            let is_primary = inode.parent == dir.0 && inode.name == *name;
            if self.links.contains(&(ino, *dir, name.clone())) == is_primary {
                let wrong = if is_primary { "is primary and has a back link" } else { "has no back link" };
                return Err(format!("R15: {} in {dir}, a name of {ino}, {wrong}", name.escape_ascii()));
            }
            if inode.kind != dentry.kind {
                return Err(format!("R15: {} in {dir} says that {ino} is {:?}", name.escape_ascii(), dentry.kind()));
            }
        }
        match self.links.iter().find(|(ino, dir, name)| named(*dir, name) != Some(*ino)) {
            Some((ino, dir, name)) => {
                Err(format!("R15: a back link of {ino} is left, to {} in {dir}", name.escape_ascii()))
            }
            None => Ok(()),
        }
    }

    /// The map's tree of subtrees is that of the names (R15, R17).
    fn check_forest(&self, map: &ClusterMap) -> Result<(), String> {
        let roots: BTreeMap<Ino, SubtreeId> = map.subtrees.iter().map(|(id, subtree)| (subtree.root, *id)).collect();
        if roots.len() != map.subtrees.len() {
            return Err("R15: two subtrees have one root".to_owned());
        }
        for (id, subtree) in &map.subtrees {
            let Some(dir) = subtree.parent_dir else { continue };
            let dentry = self.dentries.get(&(dir, Bytes::copy_from_slice(&subtree.name)));
            if dentry.map(|dentry| Ino(dentry.ino)) != Some(subtree.root) {
                return Err(format!("R17: the name of {id} does not lead to its root: {subtree:?}"));
            }
            let mut at = dir;
            while !roots.contains_key(&at) {
                at = self.inodes.get(&at).map(|inode| Ino(inode.parent)).ok_or("I6: a directory is not there")?;
            }
            if roots.get(&at).copied() != subtree.parent {
                return Err(format!("R15: {id} hangs below {:?}: {subtree:?}", roots.get(&at)));
            }
        }
        Ok(())
    }

    /// No transaction is open, all batches are whole, and who uses a shard has listed it (R3, R5, R18).
    fn check_batches(&self, map: &ClusterMap) -> Result<(), String> {
        if let Some(key) = self.transactions.first() {
            return Err(format!("R18: {key:?} is left"));
        }
        for redo in &self.redos {
            let lacks = |shard: &&ShardId| self.applied.get(&(redo.subtree, **shard)) < Some(&redo.position);
            if let Some(shard) = redo.others.iter().find(lacks) {
                let Redo { shard: first, subtree, position, .. } = redo;
                return Err(format!("R5: batch {position:?} of {subtree} is in {first:?} and not in {shard:?}"));
            }
        }
        for (id, shard) in self.applied.iter().filter(|(_, applied)| applied.1 > 0).map(|(key, _)| key) {
            let Some(subtree) = map.subtrees.get(id) else { continue };
            let listed = self.lists.get(id).is_some_and(|list| list.contains(&u32::from(shard.0)));
            if !listed && subtree.root.shard() != *shard {
                return Err(format!("R3: {id} uses {shard:?}, which it has not listed"));
            }
        }
        Ok(())
    }

    /// All inodes below the root. Errors: a directory that is reached twice.
    fn reached(&self) -> Result<BTreeSet<Ino>, String> {
        let (mut reached, mut dirs) = (BTreeSet::from([Ino::ROOT]), vec![Ino::ROOT]);
        while let Some(dir) = dirs.pop() {
            for ((_, name), dentry) in self.dentries.range((dir, Bytes::new())..).take_while(|((of, _), _)| *of == dir)
            {
                let is_new = reached.insert(Ino(dentry.ino));
                if dentry.kind() == FileKind::Directory {
                    if !is_new {
                        return Err(format!("R17: {} in {dir} is reached twice", name.escape_ascii()));
                    }
                    dirs.push(Ino(dentry.ino));
                }
            }
        }
        Ok(reached)
    }
}
