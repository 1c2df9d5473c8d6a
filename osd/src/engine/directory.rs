//! The data directory of an OSD: who it is, which format and engine its data is
//! in, and a lock so that only one process has it open.
//!
//! ```text
//! pando-osd.toml   the superblock, replaced as a whole
//! pando-osd.lock   locked while a process has the directory open
//! fjall/ or records.redb and objects/   the engine's
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pando_rpc::directory::{create_data_directory, sync as sync_directory};
use rustix::fs::{FlockOperation, flock, statvfs};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{EngineError, EngineKind, Usage};

/// The newest format this program reads; it writes the same.
pub const FORMAT: u32 = 1;
const SUPERBLOCK: &str = "pando-osd.toml";
const SUPERBLOCK_NEW: &str = "pando-osd.toml.new";
const LOCK: &str = "pando-osd.lock";
/// What a superblock may grow to before it is called damaged unread.
const MAX_SUPERBLOCK_BYTES: u64 = 64 * 1024;

/// Why a data directory cannot be used, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum DirectoryError {
    /// It belongs to another cluster.
    #[error("{dir} belongs to cluster {found}, not to {asked}: give this osd the directory of that cluster or an empty one, or name the mons of its own cluster", dir = dir.display(), found = found.simple(), asked = asked.simple())]
    OtherCluster { dir: PathBuf, found: Uuid, asked: Uuid },
    /// A newer program wrote it.
    #[error("{dir} has format {found}, newer than this program reads: start it with the newer pando that wrote it", dir = dir.display())]
    NewerFormat { dir: PathBuf, found: String },
    /// Another engine wrote it.
    #[error("{dir} was made for engine `{found}`, not `{asked}`: start with `{found}`, or use an empty directory", dir = dir.display())]
    OtherEngine { dir: PathBuf, found: String, asked: EngineKind },
    /// Another process has it open.
    #[error("{dir} is in use by another process: stop that one first, or use another directory", dir = dir.display())]
    Locked { dir: PathBuf },
    /// The path names something else.
    #[error("{dir} is not a directory: name a directory, or a path where one can be made", dir = dir.display())]
    NotADirectory { dir: PathBuf },
    /// The process may not write there.
    #[error("{dir} is not writable for this user: change its owner or mode, or use another directory", dir = dir.display())]
    NotWritable { dir: PathBuf },
    /// It is neither empty nor an OSD's.
    #[error("{dir} is not empty and holds no {SUPERBLOCK}: it is not an osd's data directory, use an empty one", dir = dir.display())]
    NotOurs { dir: PathBuf },
    /// The superblock makes no sense.
    #[error("{dir}/{SUPERBLOCK} is damaged ({why}): restore the file, or remove the directory and let the osd start anew from its replicas", dir = dir.display())]
    Damaged { dir: PathBuf, why: String },
    /// A journal is damaged before its end.
    #[error("{file} is damaged at byte {at}, and later commits would be lost with it: check the disk, then remove the osd's data directory (the one that holds {dir}) and start it again: it joins anew and its replicas bring it everything", file = file.display(), dir = dir.display())]
    DamagedJournal { dir: PathBuf, file: PathBuf, at: usize },
    /// The disk is full.
    #[error("the disk of {dir} is full: free some space on it first", dir = dir.display())]
    Full { dir: PathBuf },
    /// Anything else the operating system says.
    #[error("{dir} cannot be used: {error}", dir = dir.display())]
    Io { dir: PathBuf, error: String },
}

impl DirectoryError {
    pub(crate) fn from_io(dir: &Path, error: &io::Error) -> Self {
        let dir = dir.to_owned();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { dir },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::NotWritable { dir },
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => Self::NotADirectory { dir },
            io::ErrorKind::WouldBlock => Self::Locked { dir },
            _ => Self::Io { dir, error: error.to_string() },
        }
    }
}

/// Its keys are part of the format: one more of them needs a higher number, for it is rewritten as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Superblock {
    format: u32,
    engine: String,
    #[serde(with = "text")]
    uuid: Uuid,
    #[serde(with = "optional_text", default, skip_serializing_if = "Option::is_none")]
    cluster: Option<Uuid>,
}

mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(uuid: &Uuid, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(uuid)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        Uuid::parse_str(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

mod optional_text {
    use serde::{Deserializer, Serializer};
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(uuid: &Option<Uuid>, out: S) -> Result<S::Ok, S::Error> {
        match uuid {
            Some(uuid) => out.collect_str(uuid),
            None => out.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Uuid>, D::Error> {
        super::text::deserialize(from).map(Some)
    }
}

/// The format alone, readable whatever else a newer superblock holds.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

/// An open, locked data directory. Dropping it releases the lock.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    superblock: Mutex<Superblock>,
    /// `None` for an engine in memory.
    locked: Option<File>,
}

impl Directory {
    /// Opens and locks `dir`; makes it, or its superblock, if it does not exist or is empty.
    ///
    /// # Errors
    /// See [`DirectoryError`].
    pub fn open(dir: &Path, engine: EngineKind, cluster: Option<[u8; 16]>) -> Result<Self, DirectoryError> {
        let io = |e: io::Error| DirectoryError::from_io(dir, &e);
        create_data_directory(dir).map_err(io)?;
        let found = read_superblock(dir)?;
        if found.is_none() && !is_empty(dir).map_err(io)? {
            return Err(DirectoryError::NotOurs { dir: dir.to_owned() });
        }
        let lock = File::options().create(true).truncate(false).write(true).open(dir.join(LOCK)).map_err(io)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|e| io(e.into()))?;
        // Once more under the lock: another process may just have made it.
        let superblock = match read_superblock(dir)? {
            Some(found) => check(dir, found, engine, cluster)?,
            None => create(dir, engine).map_err(io)?,
        };
        Ok(Self { path: dir.to_owned(), superblock: Mutex::new(superblock), locked: Some(lock) })
    }

    /// The directory of an engine in memory: a new identity, and nothing on disk.
    pub fn in_memory() -> Self {
        Self::in_memory_as(*Uuid::new_v4().as_bytes())
    }

    /// As [`in_memory`](Self::in_memory) with a given identity (simulation).
    pub fn in_memory_as(uuid: [u8; 16]) -> Self {
        let superblock = Superblock {
            format: FORMAT,
            engine: EngineKind::Memory.to_string(),
            uuid: Uuid::from_bytes(uuid),
            cluster: None,
        };
        Self { path: PathBuf::new(), superblock: Mutex::new(superblock), locked: None }
    }

    /// Where it is; empty for an engine in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Identity of this disk. An OSD that lost its disk has a new one (R26).
    pub fn uuid(&self) -> [u8; 16] {
        *self.lock().uuid.as_bytes()
    }

    /// The cluster it belongs to, once it has joined one.
    pub fn cluster(&self) -> Option<[u8; 16]> {
        self.lock().cluster.map(Uuid::into_bytes)
    }

    /// Binds the directory to a cluster, durably; to the same again is fine.
    ///
    /// # Errors
    /// [`DirectoryError::OtherCluster`] if it belongs to another one.
    pub fn set_cluster(&self, cluster: [u8; 16]) -> Result<(), DirectoryError> {
        let asked = Uuid::from_bytes(cluster);
        let mut superblock = self.lock();
        match superblock.cluster {
            Some(found) if found == asked => return Ok(()),
            Some(found) => return Err(DirectoryError::OtherCluster { dir: self.path.clone(), found, asked }),
            None => {}
        }
        let bound = Superblock { cluster: Some(asked), ..superblock.clone() };
        if self.locked.is_some() {
            write_superblock(&self.path, &bound).map_err(|e| DirectoryError::from_io(&self.path, &e))?;
        }
        *superblock = bound;
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Superblock> {
        self.superblock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check(
    dir: &Path,
    found: Superblock,
    engine: EngineKind,
    cluster: Option<[u8; 16]>,
) -> Result<Superblock, DirectoryError> {
    let dir = dir.to_owned();
    if found.engine != engine.to_string() {
        return Err(DirectoryError::OtherEngine { dir, found: found.engine, asked: engine });
    }
    match (found.cluster, cluster.map(Uuid::from_bytes)) {
        (Some(found), Some(asked)) if found != asked => Err(DirectoryError::OtherCluster { dir, found, asked }),
        _ => Ok(found),
    }
}

fn create(dir: &Path, engine: EngineKind) -> io::Result<Superblock> {
    let superblock = Superblock { format: FORMAT, engine: engine.to_string(), uuid: Uuid::new_v4(), cluster: None };
    write_superblock(dir, &superblock)?;
    Ok(superblock)
}

fn read_superblock(dir: &Path) -> Result<Option<Superblock>, DirectoryError> {
    let path = dir.join(SUPERBLOCK);
    let damaged = |why: String| DirectoryError::Damaged { dir: dir.to_owned(), why };
    let length = match fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(DirectoryError::from_io(dir, &e)),
    };
    if length > MAX_SUPERBLOCK_BYTES {
        return Err(damaged(format!("{length} bytes long")));
    }
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(damaged("not text".to_owned())),
        Err(e) => return Err(DirectoryError::from_io(dir, &e)),
    };
    let say = |e: toml::de::Error| damaged(e.message().to_owned());
    let format = toml::from_str::<FormatOnly>(&text).map_err(say)?.format;
    if format > FORMAT {
        return Err(DirectoryError::NewerFormat { dir: dir.to_owned(), found: format.to_string() });
    }
    toml::from_str(&text).map(Some).map_err(say)
}

fn write_superblock(dir: &Path, superblock: &Superblock) -> io::Result<()> {
    let text = toml::to_string(superblock).map_err(io::Error::other)?;
    let new = dir.join(SUPERBLOCK_NEW);
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, dir.join(SUPERBLOCK))?;
    sync_directory(dir)
}

/// Nothing but what an interrupted first start, or the file system itself, leaves.
fn is_empty(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name != LOCK && name != SUPERBLOCK_NEW && name != "lost+found" {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What the file system of `path` says.
pub(crate) fn disk_usage(path: &Path) -> Result<Usage, EngineError> {
    let stat = statvfs(path).map_err(|e| EngineError::Io(e.to_string()))?;
    let total_bytes = stat.f_blocks.saturating_mul(stat.f_frsize);
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    Ok(Usage { total_bytes, used_bytes: total_bytes.saturating_sub(free) })
}
