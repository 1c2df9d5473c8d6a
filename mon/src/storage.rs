//! The mon's disk: superblock, Raft log, hard state and the latest snapshot, in redb with durable commits.
//!
//! The log since the last truncation is also in memory: it is short, and Raft reads it all the time. The map is
//! on disk only as of the snapshot; what came later is applied again from the log at the start.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_rpc::directory::{create_data_directory, sync};
use prost::Message as _;
use protobuf::Message as _;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, StorageError};
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::{Config, Error, Storage};

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
const FILE: &str = "mon.redb";
const MAGIC: &[u8] = b"pando-mon";
/// Of the superblock and all else on the disk.
const FORMAT: u32 = 1;
/// Where the log of a new group begins: all members start from the same (empty) snapshot there.
const ORIGIN: u64 = 1;

/// Identifies the directory.
#[derive(Clone, PartialEq, prost::Message)]
struct Superblock {
    #[prost(uint64, tag = "1")]
    mon_id: u64,
    /// Empty until the cluster is known.
    #[prost(bytes = "vec", tag = "2")]
    cluster_id: Vec<u8>,
}

/// The state machine at one index.
#[derive(Clone, PartialEq, prost::Message)]
struct SnapshotRecord {
    #[prost(uint64, tag = "1")]
    index: u64,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(uint64, repeated, tag = "3")]
    voters: Vec<u64>,
    #[prost(bytes = "vec", tag = "4")]
    map: Vec<u8>,
    /// The log begins after this entry.
    #[prost(uint64, tag = "5")]
    truncated_index: u64,
    #[prost(uint64, tag = "6")]
    truncated_term: u64,
}

/// Index and term of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) index: u64,
    pub(crate) term: u64,
}

/// The disk, with the log in memory.
pub(crate) struct RaftStorage {
    database: Database,
    superblock: Superblock,
    voters: Vec<u64>,
    hard_state: HardState,
    truncated: Position,
    snapshot: Position,
    log: VecDeque<Entry>,
    applied: Position,
    /// At `applied`.
    map: Arc<ClusterMap>,
}

#[derive(Debug)]
struct Boxed(Box<dyn redb::StorageBackend>);

impl redb::StorageBackend for Boxed {
    fn len(&self) -> Result<u64, std::io::Error> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> Result<(), std::io::Error> {
        self.0.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.0.write(offset, data)
    }
    fn close(&self) -> Result<(), std::io::Error> {
        self.0.close()
    }
}

fn open_database(data: Storage) -> Result<Database, Error> {
    let opened = match data {
        Storage::Dir(path) => {
            let directory = |source| Error::Directory { path: path.clone(), source };
            create_data_directory(&path).map_err(directory)?;
            let opened = Database::create(path.join(FILE));
            // A new file is durable only with its directory.
            sync(&path).map_err(directory)?;
            opened
        }
        Storage::Backend(backend) => Database::builder().create_with_backend(Boxed(backend)),
    };
    opened.map_err(|error| match error {
        redb::DatabaseError::DatabaseAlreadyOpen => Error::InUse,
        redb::DatabaseError::Storage(redb::StorageError::Corrupted(what)) => Error::Damaged(what),
        other => Error::Disk(other.into()),
    })
}

impl RaftStorage {
    /// Opens the mon's disk, or makes it. `new_cluster_id` is for a new disk of the mon that makes the cluster.
    pub(crate) fn open(
        config: &Config,
        data: Storage,
        new_cluster_id: impl FnOnce() -> [u8; 16],
    ) -> Result<Self, Error> {
        let database = open_database(data)?;
        let fresh = {
            let transaction = database.begin_read()?;
            match transaction.open_table(META) {
                Ok(table) => table.get("superblock")?.is_none(),
                Err(redb::TableError::TableDoesNotExist(_)) => true,
                Err(error) => return Err(error.into()),
            }
        };
        if fresh {
            let cluster_id = config.cluster_id.or_else(|| config.is_first().then(new_cluster_id));
            format(&database, config, cluster_id)?;
        }
        let storage = Self::load(database)?;
        storage.check(config)?;
        Ok(storage)
    }

    fn load(database: Database) -> Result<Self, Error> {
        let transaction = database.begin_read()?;
        let meta = transaction.open_table(META)?;
        let read = |name: &str| -> Result<Vec<u8>, Error> {
            let value = meta.get(name)?.ok_or_else(|| Error::Damaged(format!("no {name}")))?;
            Ok(value.value().to_vec())
        };
        let damaged = |what: &str| Error::Damaged(format!("the {what} cannot be read"));
        let superblock = read_superblock(&read("superblock")?)?;
        let record = SnapshotRecord::decode(read("snapshot")?.as_slice()).map_err(|_| damaged("snapshot"))?;
        let mut hard_state = HardState::default();
        hard_state.merge_from_bytes(&read("hard_state")?).map_err(|_| damaged("hard state"))?;
        let mut log = VecDeque::new();
        for row in transaction.open_table(LOG)?.iter()? {
            let (index, bytes) = row?;
            let entry = Entry::parse_from_bytes(bytes.value()).map_err(|_| damaged("log"))?;
            if entry.index != index.value() || entry.index != record.truncated_index + 1 + log.len() as u64 {
                return Err(damaged("log (entries are missing)"));
            }
            log.push_back(entry);
        }
        let snapshot = Position { index: record.index, term: record.term };
        drop(meta);
        drop(transaction);
        Ok(Self {
            database,
            superblock,
            voters: record.voters,
            hard_state,
            truncated: Position { index: record.truncated_index, term: record.truncated_term },
            snapshot,
            log,
            applied: snapshot,
            map: Arc::new(read_map(&record.map).ok_or_else(|| damaged("snapshot's map"))?),
        })
    }

    fn check(&self, config: &Config) -> Result<(), Error> {
        if self.superblock.mon_id != config.id {
            return Err(Error::WrongMon { found: self.superblock.mon_id, wanted: config.id });
        }
        if let (Some(wanted), Some(found)) = (config.cluster_id, self.cluster_id())
            && wanted != found
        {
            return Err(Error::WrongCluster { found: hex(&found), wanted: hex(&wanted) });
        }
        if self.voters != config.members() {
            return Err(Error::OtherMembers { found: self.voters.clone(), wanted: config.members() });
        }
        Ok(())
    }

    /// The cluster that this disk belongs to, once known.
    pub(crate) fn cluster_id(&self) -> Option<[u8; 16]> {
        self.superblock.cluster_id.as_slice().try_into().ok()
    }

    /// Makes the disk one of this cluster.
    pub(crate) fn set_cluster_id(&mut self, id: [u8; 16]) -> Result<(), Error> {
        self.superblock.cluster_id = id.to_vec();
        let transaction = self.database.begin_write()?;
        transaction.open_table(META)?.insert("superblock", write_superblock(&self.superblock).as_slice())?;
        transaction.commit()?;
        Ok(())
    }

    /// The map as of the latest snapshot, or as last set, and where in the log that is.
    pub(crate) fn applied(&self) -> (Position, Arc<ClusterMap>) {
        (self.applied, Arc::clone(&self.map))
    }

    /// Tells what a snapshot made from now on is to hold.
    pub(crate) fn set_applied(&mut self, applied: Position, map: Arc<ClusterMap>) {
        self.applied = applied;
        self.map = map;
    }

    /// The commit index that Raft told outside a Ready; on the disk with the next write.
    pub(crate) fn set_commit(&mut self, commit: u64) {
        self.hard_state.commit = commit;
    }

    /// Makes durable what one Ready brought. Returns the map if it brought a snapshot.
    pub(crate) fn persist(
        &mut self,
        entries: Vec<Entry>,
        hard_state: Option<&HardState>,
        snapshot: &Snapshot,
    ) -> Result<Option<Arc<ClusterMap>>, Error> {
        if let Some(hard_state) = hard_state {
            self.hard_state = hard_state.clone();
        }
        let transaction = self.database.begin_write()?;
        let mut installed = None;
        if !snapshot.is_empty() {
            installed = Some(self.install(&transaction, snapshot)?);
        }
        if let Some(first) = entries.first() {
            let keep = first.index.saturating_sub(self.truncated.index + 1) as usize;
            self.log.truncate(keep);
            let mut table = transaction.open_table(LOG)?;
            table.retain_in(first.index.., |_, _| false)?;
            for entry in &entries {
                table.insert(entry.index, encode(entry)?.as_slice())?;
            }
            self.log.extend(entries);
        }
        transaction.open_table(META)?.insert("hard_state", encode(&self.hard_state)?.as_slice())?;
        transaction.commit()?;
        Ok(installed)
    }

    fn install(&mut self, transaction: &redb::WriteTransaction, snapshot: &Snapshot) -> Result<Arc<ClusterMap>, Error> {
        let metadata = snapshot.get_metadata();
        let position = Position { index: metadata.index, term: metadata.term };
        let map = read_map(snapshot.get_data())
            .ok_or_else(|| Error::Damaged("a snapshot that came from the leader cannot be read".to_owned()))?;
        self.voters = metadata.get_conf_state().voters.clone();
        self.log.clear();
        (self.truncated, self.snapshot, self.applied) = (position, position, position);
        self.map = Arc::new(map);
        // Else Raft finds a commit index before the log at the next start.
        self.hard_state.commit = self.hard_state.commit.max(position.index);
        transaction.open_table(LOG)?.retain(|_, _| false)?;
        self.write_snapshot(transaction)?;
        Ok(Arc::clone(&self.map))
    }

    fn write_snapshot(&self, transaction: &redb::WriteTransaction) -> Result<(), Error> {
        let record = SnapshotRecord {
            index: self.snapshot.index,
            term: self.snapshot.term,
            voters: self.voters.clone(),
            map: write_map(&self.map),
            truncated_index: self.truncated.index,
            truncated_term: self.truncated.term,
        };
        transaction.open_table(META)?.insert("snapshot", record.encode_to_vec().as_slice())?;
        Ok(())
    }

    /// Writes a snapshot at the applied index and drops the log before it, but for `keep` entries, so that a
    /// member that is a little behind needs no snapshot.
    pub(crate) fn compact(&mut self, keep: u64) -> Result<(), Error> {
        self.snapshot = self.applied;
        let upto = self.applied.index.saturating_sub(keep);
        if upto > self.truncated.index {
            let count = (upto - self.truncated.index) as usize;
            if let Some(last) = self.log.drain(..count).next_back() {
                self.truncated = Position { index: last.index, term: last.term };
            }
        }
        // The map on the disk must not be ahead of the commit index there.
        self.hard_state.commit = self.hard_state.commit.max(self.applied.index);
        let transaction = self.database.begin_write()?;
        transaction.open_table(LOG)?.retain_in(..=self.truncated.index, |_, _| false)?;
        transaction.open_table(META)?.insert("hard_state", encode(&self.hard_state)?.as_slice())?;
        self.write_snapshot(&transaction)?;
        transaction.commit()?;
        Ok(())
    }

    /// Applied entries since the last snapshot.
    pub(crate) fn since_snapshot(&self) -> u64 {
        self.applied.index - self.snapshot.index
    }

    fn last(&self) -> u64 {
        self.truncated.index + self.log.len() as u64
    }

    fn conf_state(&self) -> ConfState {
        ConfState { voters: self.voters.clone(), ..ConfState::default() }
    }
}

impl raft::Storage for RaftStorage {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.truncated.index {
            return Err(StorageError::Compacted.into());
        }
        if high > self.last() + 1 {
            return Err(StorageError::Unavailable.into());
        }
        let at = |index: u64| (index - self.truncated.index - 1) as usize;
        let mut entries: Vec<Entry> =
            self.log.range((Bound::Included(at(low)), Bound::Excluded(at(high)))).cloned().collect();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.truncated.index {
            return Ok(self.truncated.term);
        }
        if index < self.truncated.index {
            return Err(StorageError::Compacted.into());
        }
        let entry = self.log.get((index - self.truncated.index - 1) as usize);
        entry.map(|entry| entry.term).ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.truncated.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, _: u64) -> raft::Result<Snapshot> {
        if self.applied.index < request_index {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        let mut snapshot = Snapshot { data: write_map(&self.map).into(), ..Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        metadata.index = self.applied.index;
        metadata.term = self.applied.term;
        metadata.set_conf_state(self.conf_state());
        Ok(snapshot)
    }
}

fn format(database: &Database, config: &Config, cluster_id: Option<[u8; 16]>) -> Result<(), Error> {
    let superblock = Superblock { mon_id: config.id, cluster_id: cluster_id.map(|id| id.to_vec()).unwrap_or_default() };
    let record = SnapshotRecord {
        index: ORIGIN,
        term: ORIGIN,
        voters: config.members(),
        map: write_map(&ClusterMap::default()),
        truncated_index: ORIGIN,
        truncated_term: ORIGIN,
    };
    let hard_state = HardState { term: ORIGIN, commit: ORIGIN, ..HardState::default() };
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert("superblock", write_superblock(&superblock).as_slice())?;
        meta.insert("snapshot", record.encode_to_vec().as_slice())?;
        meta.insert("hard_state", encode(&hard_state)?.as_slice())?;
        transaction.open_table(LOG)?;
    }
    transaction.commit()?;
    Ok(())
}

fn encode(message: &impl protobuf::Message) -> Result<Vec<u8>, Error> {
    message.write_to_bytes().map_err(|error| Error::Raft(error.into()))
}

fn write_superblock(superblock: &Superblock) -> Vec<u8> {
    [MAGIC, &FORMAT.to_le_bytes(), &superblock.encode_to_vec()].concat()
}

fn read_superblock(bytes: &[u8]) -> Result<Superblock, Error> {
    let damaged = || Error::Damaged("its superblock cannot be read".to_owned());
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(damaged)?;
    let (format, body) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
    let found = u32::from_le_bytes(*format);
    if found > FORMAT {
        return Err(Error::NewerFormat { found, known: FORMAT });
    }
    Superblock::decode(body).map_err(|_| damaged())
}

/// A format byte and the map's wire form.
fn write_map(map: &ClusterMap) -> Vec<u8> {
    let mut bytes = vec![1];
    map.to_proto().encode_raw(&mut bytes);
    bytes
}

fn read_map(bytes: &[u8]) -> Option<ClusterMap> {
    let (1, body) = bytes.split_first().map(|(format, body)| (*format, body))? else { return None };
    let proto = pando_proto::mon::ClusterMap::decode(Bytes::copy_from_slice(body)).ok()?;
    ClusterMap::from_proto(&proto).ok()
}

/// An id for people.
pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
