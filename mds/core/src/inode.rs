//! Inodes in memory: the record itself, with its rules.

use bytes::{BufMut as _, Bytes, BytesMut};
use pando_proto::mds::{Attr, BodyRecord, DataHome, DentryRecord, FileKind, InodeRecord, Placement};
use pando_proto::{Error, Ino, MAX_NAME_BYTES, MAX_PATH_BYTES, Reason};
use prost::Message;

use crate::records::FORMAT;
use crate::stop::corrupt;

/// An inode is its record: what is on disk is what is in memory.
pub(crate) type Inode = InodeRecord;

/// What a name points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dentry {
    pub ino: Ino,
    pub kind: FileKind,
    pub remote: bool,
}

pub(crate) const S_ISUID: u32 = 0o4000;
pub(crate) const S_ISGID: u32 = 0o2000;
pub(crate) const S_ISVTX: u32 = 0o1000;
pub(crate) const MODE_BITS: u32 = 0o7777;

pub(crate) fn is_dir(inode: &Inode) -> bool {
    inode.kind == FileKind::Directory as i32
}

pub(crate) fn is_file(inode: &Inode) -> bool {
    inode.kind == FileKind::File as i32
}

pub(crate) fn is_symlink(inode: &Inode) -> bool {
    inode.kind == FileKind::Symlink as i32
}

/// Whether the name is the one in the inode.
pub(crate) fn is_primary(inode: &Inode, dir: Ino, name: &Bytes) -> bool {
    inode.parent == dir.0 && inode.name == *name
}

pub(crate) fn in_objects(inode: &Inode) -> bool {
    inode.home == DataHome::Objects as i32
}

pub(crate) fn kind_of(inode: &Inode) -> FileKind {
    FileKind::try_from(inode.kind).unwrap_or(FileKind::Unspecified)
}

/// Marks a change of the inode itself.
pub(crate) fn touch(inode: &mut Inode, now: i64) {
    inode.ctime = now;
    inode.version += 1;
}

/// Marks a change of its content.
pub(crate) fn modified(inode: &mut Inode, now: i64) {
    inode.mtime = now;
    touch(inode, now);
}

pub(crate) fn attr(ino: Ino, inode: &Inode) -> Attr {
    Attr {
        ino: ino.0,
        kind: inode.kind,
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        nlink: inode.nlink,
        size: inode.size,
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        birth_time: inode.birth_time,
        version: inode.version,
        entries: inode.entries,
    }
}

/// Where a file's data is; `None` for what has none.
pub(crate) fn placement(inode: &Inode) -> Option<Placement> {
    is_file(inode).then_some(Placement {
        home: inode.home,
        inline_version: inode.inline_version,
        generation: inode.generation,
        pool: inode.pool,
        object_size: inode.object_size,
        max_size: inode.max_size,
        truncate_seq: inode.truncate_seq,
    })
}

/// A record's bytes: format, then message.
pub(crate) fn encode<M: Message>(message: &M) -> Bytes {
    let mut bytes = BytesMut::with_capacity(1 + message.encoded_len());
    bytes.put_u8(FORMAT);
    // A BytesMut grows; encoding into it cannot fail.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

pub(crate) fn encode_dentry(dentry: Dentry) -> Bytes {
    encode(&DentryRecord { ino: dentry.ino.0, kind: dentry.kind as i32, remote: dentry.remote })
}

/// Encodes a body and returns (record, the content as a part of it).
pub(crate) fn encode_body(inline_version: u64, data: Bytes) -> (Bytes, Bytes) {
    let length = data.len();
    // `data` is the last field, so the content is the tail of the record and is kept once in memory.
    let record = encode(&BodyRecord { inline_version, data });
    let content = record.slice(record.len() - length..);
    (record, content)
}

/// Reads a record. It is copied out of the message it came in, so that a small
/// record does not keep a large network buffer alive (I8).
fn decode<M: Message + Default>(value: &[u8], what: &str, ino: Ino) -> Result<M, Error> {
    match value.first() {
        Some(&FORMAT) => M::decode(Bytes::copy_from_slice(&value[1..])).map_err(|_| corrupt(what, ino)),
        Some(&newer) if newer > FORMAT => Err(Error::new(
            Reason::NewerFormat,
            format!("{what} of inode {ino} has format {newer}, this program knows {FORMAT}: use a newer one"),
        )),
        _ => Err(corrupt(what, ino)),
    }
}

pub(crate) fn decode_inode(ino: Ino, value: &[u8]) -> Result<Inode, Error> {
    let mut inode: Inode = decode(value, "inode record", ino)?;
    let home_known = DataHome::try_from(inode.home).is_ok();
    let kind_known = FileKind::try_from(inode.kind).is_ok_and(|kind| kind != FileKind::Unspecified);
    // Counters far beyond what a cluster can reach: checked here, so that adding to them cannot overflow.
    let counters = [
        inode.size,
        inode.max_size,
        inode.truncate_seq,
        inode.generation,
        inode.spill_generation,
        inode.version,
        inode.inline_version,
        inode.entries,
    ];
    let sane = counters.iter().all(|counter| *counter < 1 << 62) && inode.nlink < 1 << 31;
    let named = inode.name.len() <= MAX_NAME_BYTES && inode.link_target.len() <= MAX_PATH_BYTES;
    if !(kind_known && home_known && sane && named) || inode.object_size == 0 && in_objects(&inode) {
        return Err(corrupt("inode record", ino));
    }
    // An intent without its owner (R24): its objects belong to nobody and are purged through the `p/`
    // record that was written with it. What comes next is above the generation of that purge.
    if inode.spill_generation != 0 {
        inode.generation = inode.generation.max(inode.spill_generation + 2);
        inode.spill_generation = 0;
    }
    Ok(inode)
}

pub(crate) fn decode_dentry(dir: Ino, value: &[u8]) -> Result<Dentry, Error> {
    let record: DentryRecord = decode(value, "dentry record", dir)?;
    let kind = FileKind::try_from(record.kind).unwrap_or(FileKind::Unspecified);
    let ino = Ino(record.ino);
    if kind == FileKind::Unspecified || !ino.is_valid() {
        return Err(corrupt("dentry record", dir));
    }
    Ok(Dentry { ino, kind, remote: record.remote })
}

pub(crate) fn decode_body(ino: Ino, value: &[u8]) -> Result<BodyRecord, Error> {
    decode(value, "body record", ino)
}

/// Bytes of an inode in memory, with its allocations.
pub(crate) fn cost(inode: &Inode) -> usize {
    const ALLOCATION: usize = 48; // malloc header, and the shared counter of `Bytes`
    let heap = |bytes: &Bytes| if bytes.is_empty() { 0 } else { bytes.len() + ALLOCATION };
    let xattrs: usize = inode.xattrs.iter().map(|x| size_of_val(x) + heap(&x.name) + heap(&x.value)).sum();
    size_of::<Inode>() + 32 + heap(&inode.name) + heap(&inode.link_target) + xattrs
}
