//! The database of the file engine: its tables, and a view of one state of them.

use std::ops::Bound;
use std::path::Path;

use bytes::{Buf, BufMut, Bytes};
use pando_proto::PgId;
use pando_rpc::directory::sync as sync_directory;
use redb::{Database, ReadOnlyTable, ReadableDatabase, Table, TableDefinition, WriteTransaction};

use super::files::Files;
use crate::engine::format::{self, Space};
use crate::engine::view::{KeyValues, KvView, View};
use crate::engine::{DirectoryError, EngineError, ObjectHeader, ObjectKey, io_error};

const DATABASE: &str = "records.redb";

type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;
type Reader = ReadOnlyTable<&'static [u8], &'static [u8]>;
pub(super) type Writer<'t> = Table<'t, &'static [u8], &'static [u8]>;

const RECORDS: Definition = TableDefinition::new("records");
const HEADERS: Definition = TableDefinition::new("headers");
/// Which blocks exist: checksum and length.
const BLOCKS: Definition = TableDefinition::new("blocks");
/// Bytes of those that are not in their file yet.
const DEFERRED: Definition = TableDefinition::new("deferred");

pub(super) struct Tables {
    database: Database,
}

/// All tables, open for one atomic, durable change.
pub(super) struct Writers<'t> {
    pub records: Writer<'t>,
    pub headers: Writer<'t>,
    pub blocks: Writer<'t>,
    pub deferred: Writer<'t>,
}

impl Tables {
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<Self, EngineError> {
        let path = dir.join(DATABASE);
        let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        let database = Database::builder().set_cache_size(cache_bytes).create(&path).map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => DirectoryError::Locked { dir: dir.to_owned() }.into(),
            redb::DatabaseError::UpgradeRequired(version) => {
                DirectoryError::NewerFormat { dir: dir.to_owned(), found: format!("redb {version}") }.into()
            }
            other => redb_error(other),
        })?;
        let tables = Self { database };
        // Makes the tables, so that a reader always finds them.
        tables.change(|_| Ok(()))?;
        // Also if it was there: a start that was cut short may have made it.
        sync_directory(dir).map_err(|e| io_error(&e))?;
        Ok(tables)
    }

    /// Runs `change` and makes its outcome durable, all or nothing.
    pub fn change(
        &self,
        change: impl FnOnce(&mut Writers<'_>) -> Result<(), redb::StorageError>,
    ) -> Result<(), EngineError> {
        let transaction = self.database.begin_write().map_err(redb_error)?;
        let mut writers = writers(&transaction).map_err(redb_error)?;
        change(&mut writers).map_err(redb_error)?;
        drop(writers);
        // The default durability is `Immediate`: synced on return.
        transaction.commit().map_err(redb_error)
    }

    /// One record, without opening the other tables.
    pub fn record(&self, pg: PgId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let transaction = self.database.begin_read().map_err(redb_error)?;
        let table = transaction.open_table(RECORDS).map_err(redb_error)?;
        let key = format::record_key(pg, key);
        let sealed = get(&table, &key)?;
        sealed.map(|sealed| format::unseal(Space::Records, &key, &sealed)).transpose()
    }

    pub fn view<'f>(&self, files: &'f Files) -> Result<FileView<'f>, EngineError> {
        let transaction = self.database.begin_read().map_err(redb_error)?;
        let open = |definition| transaction.open_table(definition).map_err(redb_error);
        let readers = Readers {
            records: open(RECORDS)?,
            headers: open(HEADERS)?,
            blocks: open(BLOCKS)?,
            deferred: open(DEFERRED)?,
        };
        Ok(FileView { tables: KvView(readers), files })
    }
}

fn writers(transaction: &WriteTransaction) -> Result<Writers<'_>, redb::TableError> {
    Ok(Writers {
        records: transaction.open_table(RECORDS)?,
        headers: transaction.open_table(HEADERS)?,
        blocks: transaction.open_table(BLOCKS)?,
        deferred: transaction.open_table(DEFERRED)?,
    })
}

struct Readers {
    records: Reader,
    headers: Reader,
    blocks: Reader,
    deferred: Reader,
}

impl Readers {
    fn space(&self, space: Space) -> &Reader {
        match space {
            Space::Records => &self.records,
            Space::Headers => &self.headers,
            Space::Blocks => &self.blocks,
        }
    }
}

/// A row of the block table.
#[derive(Clone, Copy)]
pub(super) struct BlockRow {
    pub checksum: u32,
    pub length: u32,
}

impl BlockRow {
    pub fn of(key: &[u8], content: &[u8]) -> Self {
        Self { checksum: format::checksum(Space::Blocks, key, content), length: content.len() as u32 }
    }

    pub fn encode(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        let mut out = &mut bytes[..];
        out.put_u32_le(self.checksum);
        out.put_u32_le(self.length);
        bytes
    }

    fn decode(key: &[u8], mut bytes: &[u8]) -> Result<Self, EngineError> {
        if bytes.len() != 8 {
            return Err(format::corrupt(Space::Blocks, key));
        }
        let row = Self { checksum: bytes.get_u32_le(), length: bytes.get_u32_le() };
        if row.length as usize > format::BLOCK_BYTES {
            return Err(format::corrupt(Space::Blocks, key));
        }
        Ok(row)
    }
}

/// One state of the tables, with the files they speak of.
pub(super) struct FileView<'f> {
    tables: KvView<Readers>,
    files: &'f Files,
}

impl FileView<'_> {
    pub fn row(&self, key: &[u8]) -> Result<Option<BlockRow>, EngineError> {
        let row = get(&self.tables.0.blocks, key)?;
        row.map(|row| BlockRow::decode(key, &row)).transpose()
    }

    /// Keys of the deferred blocks with their bytes, in order; stops after about `max_bytes`.
    pub fn deferred(&self, max_bytes: usize) -> Result<Vec<(Bytes, Bytes)>, EngineError> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        visit(&self.tables.0.deferred, &[], None, &mut |key, value| {
            let value = Bytes::copy_from_slice(value);
            bytes += value.len();
            found.push((Bytes::copy_from_slice(key), value));
            Ok(bytes < max_bytes)
        })?;
        Ok(found)
    }
}

impl View for FileView<'_> {
    fn record(&self, pg: PgId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.tables.record(pg, key)
    }

    fn records(
        &self,
        pg: PgId,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(Bytes, Bytes) -> bool,
    ) -> Result<(), EngineError> {
        self.tables.records(pg, start, end, visit)
    }

    fn record_keys(&self, pg: PgId, start: &[u8], end: &[u8]) -> Result<Vec<Bytes>, EngineError> {
        self.tables.record_keys(pg, start, end)
    }

    fn header(&self, pg: PgId, object: ObjectKey) -> Result<Option<ObjectHeader>, EngineError> {
        self.tables.header(pg, object)
    }

    fn headers(
        &self,
        pg: PgId,
        after: Option<ObjectKey>,
        limit: usize,
    ) -> Result<Vec<(ObjectKey, ObjectHeader)>, EngineError> {
        self.tables.headers(pg, after, limit)
    }

    fn block(&self, pg: PgId, object: ObjectKey, block: u32) -> Result<Option<Bytes>, EngineError> {
        let key = format::block_key(pg, object, block);
        let Some(row) = self.row(&key)? else { return Ok(None) };
        let content = match get(&self.tables.0.deferred, &key)? {
            Some(deferred) => deferred,
            None => match self.files.read(pg, object, format::block_start(block), row.length as usize)? {
                Some(content) => content,
                None => return Err(format::corrupt(Space::Blocks, &key)),
            },
        };
        if content.len() != row.length as usize || BlockRow::of(&key, &content).checksum != row.checksum {
            return Err(format::corrupt(Space::Blocks, &key));
        }
        Ok(Some(content))
    }

    fn blocks(&self, pg: PgId, object: ObjectKey, first: u32, last: u32) -> Result<Vec<(u32, u32)>, EngineError> {
        let start = format::block_key(pg, object, first);
        let end = [format::block_key(pg, object, last), vec![0]].concat();
        let mut found = Vec::new();
        visit(&self.tables.0.blocks, &start, Some(&end), &mut |key, row| {
            found.push((format::decode_block_number(key)?, BlockRow::decode(key, row)?.length));
            Ok(true)
        })?;
        Ok(found)
    }

    fn pg_from(&self, pg: PgId) -> Result<Option<PgId>, EngineError> {
        self.tables.pg_from(pg)
    }
}

impl KeyValues for Readers {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        get(self.space(space), key)
    }

    fn range(
        &self,
        space: Space,
        start: &[u8],
        end: Option<&[u8]>,
        each: &mut dyn FnMut(Bytes, Bytes) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError> {
        let copy = Bytes::copy_from_slice;
        visit(self.space(space), start, end, &mut |key, value| each(copy(key), copy(value)))
    }

    fn lengths(
        &self,
        space: Space,
        start: &[u8],
        end: Option<&[u8]>,
        each: &mut dyn FnMut(Bytes, usize) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError> {
        visit(self.space(space), start, end, &mut |key, value| each(Bytes::copy_from_slice(key), value.len()))
    }
}

fn get(table: &Reader, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
    let value = table.get(key).map_err(redb_error)?;
    Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
}

/// Sees a key and its value; says whether to go on.
type EachRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool, EngineError> + 'a;

fn visit(table: &Reader, start: &[u8], end: Option<&[u8]>, each: &mut EachRow<'_>) -> Result<(), EngineError> {
    if end.is_some_and(|end| end <= start) {
        return Ok(());
    }
    let bounds = (Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded));
    for row in table.range::<&[u8]>(bounds).map_err(redb_error)? {
        let (key, value) = row.map_err(redb_error)?;
        if !each(key.value(), value.value())? {
            break;
        }
    }
    Ok(())
}

pub(super) fn redb_error(error: impl Into<redb::Error>) -> EngineError {
    match error.into() {
        redb::Error::Io(e) => io_error(&e),
        redb::Error::Corrupted(why) => EngineError::Corrupt { what: format!("the database ({why})") },
        redb::Error::PreviousIo => EngineError::Io("an earlier write failed: start the osd again".to_owned()),
        other => EngineError::Io(other.to_string()),
    }
}
