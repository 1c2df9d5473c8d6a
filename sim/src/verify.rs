//! What has to hold when all is quiet again (I1 to I7): read by a client that knows nothing, and from the OSDs' own
//! records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use pando_client::Client;
use pando_cluster_map::ClusterMap;
use pando_mds_core::pipeline::redo::decode_record;
use pando_mds_core::records::Key;
use pando_osd::engine::Engine;
use pando_proto::ids::{DATA_POOL, METADATA_POOL};
use pando_proto::mds::{DentryRecord, FileKind, InodeRecord};
use pando_proto::{Ino, OsdId, ShardId};

use crate::board::{Board, lock};
use crate::history::{self, Verdict};

/// What is cleared away in the background is gone after this long.
const GRACE: Duration = Duration::from_secs(90);
const AGAIN: Duration = Duration::from_secs(1);
const PAGE: usize = 1000;
/// First byte of a record's engine key, before the shard.
const RECORD: u8 = 2;

/// All checks.
///
/// Errors: the first that failed.
pub(crate) async fn verify(client: &Client, board: &Board) -> Result<(), String> {
    let files = lock(&board.files).clone();
    for (path, want) in files {
        match client.read(&path).await {
            Ok(data) if data == want => {}
            Ok(data) => return Err(format!("I1: a cold client reads {} other bytes in {path}", data.len())),
            Err(error) => return Err(format!("I1: a cold client cannot read: {error}")),
        }
    }
    for (dir, events) in &*lock(&board.histories) {
        match history::check(events) {
            Verdict::Linearizable => {}
            Verdict::Not(why) => return Err(format!("I5: {dir}: {why}")),
            Verdict::Undecided => {
                println!("I5: {dir}: too many orders of {} events to look at", events.len());
                board.undecided.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    verify_records(client, board).await
}

/// What the OSDs hold is one tree, and nothing else.
///
/// Errors: the first that is wrong, still after a grace for what is cleared away in the background.
pub(crate) async fn verify_records(client: &Client, board: &Board) -> Result<(), String> {
    let begun = tokio::time::Instant::now();
    loop {
        match Pool::load(board, &client.map()).and_then(|pool| pool.check()) {
            Ok(()) => return Ok(()),
            Err(error) if begun.elapsed() > GRACE => return Err(error),
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// All records and objects, as the primaries hold them.
#[derive(Default)]
struct Pool {
    inodes: BTreeMap<Ino, InodeRecord>,
    dentries: BTreeMap<(Ino, Bytes), DentryRecord>,
    bodies: BTreeSet<Ino>,
    orphans: BTreeSet<Ino>,
    purges: BTreeSet<Ino>,
    /// Files with objects.
    objects: BTreeSet<Ino>,
}

fn engine_of<'a>(board: &'a Board, map: &ClusterMap, osd: OsdId) -> Option<&'a Arc<dyn Engine>> {
    let uuid = map.osds.get(&osd)?.uuid;
    board.engines.get(usize::from(uuid[0]).checked_sub(1)?)
}

impl Pool {
    fn load(board: &Board, map: &ClusterMap) -> Result<Self, String> {
        let mut pool = Self::default();
        for (id, pg) in &map.pgs {
            let primary = pg.members.first().ok_or_else(|| format!("{id} has no members"))?;
            let engine = engine_of(board, map, *primary).ok_or_else(|| format!("{id}: there is no {primary}"))?;
            if id.pool == METADATA_POOL {
                let mut start = vec![RECORD];
                loop {
                    let page = engine.scan(*id, &start, &[RECORD + 1], PAGE, usize::MAX);
                    let page = page.map_err(|error| error.to_string())?;
                    for (key, value) in &page.records {
                        pool.add(key, value)?;
                    }
                    match page.next {
                        Some(next) => start = next.to_vec(),
                        None => break,
                    }
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
        let failed = |error: pando_proto::Error| error.to_string();
        match Key::decode(ShardId(u16::from_be_bytes([high, low])), &key.slice(3..)) {
            Some(Key::Inode(ino)) => drop(self.inodes.insert(ino, decode_record(value).map_err(failed)?)),
            Some(Key::Dentry(dir, name)) => {
                self.dentries.insert((dir, name), decode_record(value).map_err(failed)?);
            }
            Some(Key::Body(ino)) => drop(self.bodies.insert(ino)),
            Some(Key::Orphan(ino)) => drop(self.orphans.insert(ino)),
            Some(Key::Purge(ino)) => drop(self.purges.insert(ino)),
            _ => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
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
