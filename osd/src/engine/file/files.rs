//! The files of the objects: where they are, open handles, locks, syncs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use lru::LruCache;
use pando_proto::{Ino, PgId, PoolId};
use pando_rpc::directory::{create_data_directory, create_durably, sync as sync_directory};
use rustix::fs::{FallocateFlags, fallocate, syncfs};

use crate::engine::format::{BLOCK_BYTES, block_start, object_key};
use crate::engine::{EngineError, ObjectKey, io_error};

/// Objects share locks; more than this would not let more threads read.
const LOCKS: usize = 64;
/// Open files that are kept.
const OPEN_FILES: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// Files from which on one sync of the whole file system is quicker than one each.
const SYNC_ALL_FROM: usize = 16;

type Name = (PgId, ObjectKey);

pub(super) struct Files {
    root: PathBuf,
    open: Mutex<LruCache<Name, Arc<File>>>,
    locks: [RwLock<()>; LOCKS],
}

/// Files written and directories that got names, not synced yet.
#[derive(Default)]
pub(super) struct Unsynced {
    files: BTreeMap<Name, Arc<File>>,
    directories: BTreeSet<PathBuf>,
}

impl Files {
    pub fn open(dir: &Path) -> Result<Self, EngineError> {
        let root = dir.join("objects");
        create_data_directory(&root).map_err(|e| io_error(&e))?;
        // A crash may have left names that were never synced, under blocks that the tables promise.
        File::open(&root).and_then(|root| Ok(syncfs(root)?)).map_err(|e| io_error(&e))?;
        let locks = std::array::from_fn(|_| RwLock::new(()));
        Ok(Self { root, open: Mutex::new(LruCache::new(OPEN_FILES)), locks })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// While it is held the file of the object does not change.
    pub fn read_lock(&self, pg: PgId, object: ObjectKey) -> RwLockReadGuard<'_, ()> {
        self.locks[hash(pg, object) as usize % LOCKS].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_lock(&self, pg: PgId, object: ObjectKey) -> RwLockWriteGuard<'_, ()> {
        self.locks[hash(pg, object) as usize % LOCKS].write().unwrap_or_else(PoisonError::into_inner)
    }

    fn handles(&self) -> MutexGuard<'_, LruCache<Name, Arc<File>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `length` bytes at `offset`; `None` if the file does not have them.
    pub fn read(&self, pg: PgId, object: ObjectKey, offset: u64, length: usize) -> Result<Option<Bytes>, EngineError> {
        let Some(file) = self.existing(pg, object).map_err(|e| io_error(&e))? else { return Ok(None) };
        let mut bytes = vec![0; length];
        match file.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(Some(bytes.into())),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(io_error(&e)),
        }
    }

    /// Writes blocks of one object, not durable before [`Unsynced::sync`].
    pub fn write(
        &self,
        (pg, object): Name,
        blocks: &[(u32, Bytes)],
        unsynced: &mut Unsynced,
    ) -> Result<(), EngineError> {
        let _changing = self.write_lock(pg, object);
        let file = self.existing_or_new(pg, object, unsynced).map_err(|e| io_error(&e))?;
        for (block, content) in blocks {
            file.write_all_at(content, block_start(*block)).map_err(|e| io_error(&e))?;
        }
        unsynced.files.insert((pg, object), file);
        Ok(())
    }

    /// Gives the room of blocks back to the file system, if it can take it; they are in no table any more.
    pub fn free(&self, (pg, object): Name, blocks: &[u32]) -> io::Result<()> {
        let _changing = self.write_lock(pg, object);
        let Some(file) = self.existing(pg, object)? else { return Ok(()) };
        let mut rest = blocks;
        while let [first, ..] = rest {
            let run = (0u32..).zip(rest).take_while(|(step, block)| first + step == **block).count();
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match fallocate(&*file, flags, block_start(*first), (run * BLOCK_BYTES) as u64) {
                Err(rustix::io::Errno::OPNOTSUPP) => return Ok(()),
                other => other?,
            }
            rest = &rest[run..];
        }
        Ok(())
    }

    /// Removes the file of an object of which nothing is in the tables any more.
    pub fn remove(&self, (pg, object): Name) -> io::Result<()> {
        let _changing = self.write_lock(pg, object);
        self.handles().pop(&(pg, object));
        match fs::remove_file(self.path(pg, object)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Removes what a crash left behind: files of objects that `known` does not know.
    pub fn remove_unless(
        &self,
        known: impl Fn(PgId, ObjectKey) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError> {
        let list = |dir: &Path| fs::read_dir(dir).map_err(|e| io_error(&e));
        for pg_dir in list(&self.root)? {
            let pg_dir = pg_dir.map_err(|e| io_error(&e))?;
            let Some(pg) = parse_pg(&pg_dir.file_name()) else { continue };
            for fan in list(&pg_dir.path())? {
                for file in list(&fan.map_err(|e| io_error(&e))?.path())? {
                    let path = file.map_err(|e| io_error(&e))?.path();
                    let Some(object) = path.file_name().and_then(parse_object) else { continue };
                    if path != self.path(pg, object) || !known(pg, object)? {
                        fs::remove_file(&path).map_err(|e| io_error(&e))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn existing(&self, pg: PgId, object: ObjectKey) -> io::Result<Option<Arc<File>>> {
        if let Some(file) = self.handles().get(&(pg, object)) {
            return Ok(Some(Arc::clone(file)));
        }
        match File::options().read(true).write(true).open(self.path(pg, object)) {
            Ok(file) => Ok(Some(self.keep(pg, object, file))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn existing_or_new(&self, pg: PgId, object: ObjectKey, unsynced: &mut Unsynced) -> io::Result<Arc<File>> {
        if let Some(file) = self.existing(pg, object)? {
            return Ok(file);
        }
        let path = self.path(pg, object);
        let parent = path.parent().unwrap_or(&self.root);
        create_durably(parent)?;
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        unsynced.directories.insert(parent.to_owned());
        Ok(self.keep(pg, object, file))
    }

    fn keep(&self, pg: PgId, object: ObjectKey, file: File) -> Arc<File> {
        let file = Arc::new(file);
        self.handles().put((pg, object), Arc::clone(&file));
        file
    }

    /// Fanned out by 256, so that no directory grows with all objects of a PG.
    fn path(&self, pg: PgId, object: ObjectKey) -> PathBuf {
        let fan = format!("{:02x}", hash(pg, object) as u8);
        let name = format!("{:016x}.{:x}", object.ino.0, object.index);
        self.root.join(pg.to_string()).join(fan).join(name)
    }
}

impl Unsynced {
    /// Makes all of it durable.
    pub fn sync(self, files: &Files) -> Result<(), EngineError> {
        let all = || {
            if self.files.len() + self.directories.len() >= SYNC_ALL_FROM {
                return syncfs(File::open(&files.root)?).map_err(io::Error::from);
            }
            self.files.values().try_for_each(|file| file.sync_data())?;
            self.directories.iter().try_for_each(|dir| sync_directory(dir))
        };
        all().map_err(|e| io_error(&e))
    }
}

/// Part of the disk format: it names the directories.
fn hash(pg: PgId, object: ObjectKey) -> u32 {
    crc32c::crc32c(&object_key(pg, object))
}

fn parse_pg(name: &OsStr) -> Option<PgId> {
    let (pool, index) = name.to_str()?.split_once('.')?;
    Some(PgId { pool: PoolId(pool.parse().ok()?), index: index.parse().ok()? })
}

fn parse_object(name: &OsStr) -> Option<ObjectKey> {
    let (ino, index) = name.to_str()?.split_once('.')?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    Some(ObjectKey { ino: Ino(hex(ino)?), index: hex(index)? })
}
