//! Making a new inode with its first name; shared by open, write_file, mkdir and symlink.

use std::sync::Arc;

use pando_proto::mds::{DataHome, FileKind};
use pando_proto::{Errno, Ino, ShardId};

use crate::inode::{Dentry, Inode, MODE_BITS, S_ISGID, modified};
use crate::permission::{EXECUTE, WRITE, Who};
use crate::resolve::Entry;
use crate::stop::Step;
use crate::view::View;

/// Directories at most this deep are spread; the root has depth 0.
const SPREAD_DEPTH: u32 = 2;

/// Stages the name and its directory's change; returns the new inode for the caller to stage.
pub(crate) fn make(view: &mut View<'_>, who: Who<'_>, entry: &Entry, kind: FileKind, mode: u32) -> Step<(Ino, Inode)> {
    let dir = &entry.dir_inode;
    // R21: nothing is made in a directory that was removed.
    if dir.dead {
        return Err(Errno::ENOENT.into());
    }
    who.check(dir, WRITE | EXECUTE)?;
    let is_dir = kind == FileKind::Directory;
    let shard = if is_dir { directory_shard(view, entry)? } else { entry.dir.shard() };
    let ino = view.take_ino(entry.dir, shard)?;
    let now = view.now();
    let (gid, mode) = group_and_mode(who, dir, kind, mode & MODE_BITS);
    let inode = Inode {
        kind: kind as i32,
        mode,
        uid: who.uid,
        gid,
        nlink: if is_dir { 2 } else { 1 },
        atime: now,
        mtime: now,
        ctime: now,
        birth_time: now,
        version: 1,
        parent: entry.dir.0,
        name: bytes::Bytes::copy_from_slice(&entry.name),
        home: if kind == FileKind::File { DataHome::Inline } else { DataHome::Unspecified } as i32,
        inline_limit_plus_one: if is_dir { dir.inline_limit_plus_one } else { 0 },
        ..Inode::default()
    };
    view.put_name(entry.dir, &entry.name, Some(Dentry { ino, kind, remote: false }));
    let mut parent = (**dir).clone();
    parent.entries += 1;
    parent.nlink += u32::from(is_dir);
    modified(&mut parent, now);
    view.put_inode(entry.dir, Arc::new(parent));
    Ok((ino, inode))
}

/// A setgid directory hands its group down (inode(7)); what is made there by somebody
/// outside the group does not run with the group's rights.
fn group_and_mode(who: Who<'_>, dir: &Inode, kind: FileKind, mode: u32) -> (u32, u32) {
    if dir.mode & S_ISGID == 0 {
        return (who.gid, mode);
    }
    let mode = match kind {
        FileKind::Directory => mode | S_ISGID,
        _ if mode & (S_ISGID | 0o010) == (S_ISGID | 0o010) && !who.is_root() && !who.in_group(dir.gid) => {
            mode & !S_ISGID
        }
        _ => mode,
    };
    (dir.gid, mode)
}

/// A new directory goes to its parent's shard; near the root, where load has to part, it is spread
/// by a stable mix of parent and name (R1, DESIGN.md §3).
fn directory_shard(view: &mut View<'_>, entry: &Entry) -> Step<ShardId> {
    let (root, mut above, mut inode, mut depth) = (view.root(), entry.dir, Arc::clone(&entry.dir_inode), 1);
    while above != root && depth <= SPREAD_DEPTH {
        depth += 1;
        above = Ino(inode.parent);
        if above != root && depth <= SPREAD_DEPTH {
            inode = view.inode(above)?;
        }
    }
    if depth > SPREAD_DEPTH {
        return Ok(entry.dir.shard());
    }
    let shards = view.ns.config.spread_shards.clamp(1, pando_proto::ids::SHARDS);
    Ok(ShardId((mix(entry.dir.0, &entry.name) % u64::from(shards)) as u16))
}

/// FNV-1a with a final mix (splitmix64), the same in every version: it decides nothing but a spread.
fn mix(parent: u64, name: &[u8]) -> u64 {
    let bytes = parent.to_le_bytes().into_iter().chain(name.iter().copied());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
