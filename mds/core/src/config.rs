//! What a namespace is told when it starts.

use pando_proto::{Ino, PoolId, SubtreeId};

/// Limits and policies of one namespace.
#[derive(Clone, Debug)]
pub struct Config {
    /// The subtree.
    pub subtree: SubtreeId,
    /// Root directory of the subtree.
    pub root: Ino,
    /// Memory for inodes, dentries, bodies and handles, in bytes (I8).
    pub budget_bytes: u64,
    /// Largest inline body, in bytes.
    pub inline_limit: u64,
    /// Shards over which directories near the root are spread (R3: the list of a subtree is kept short).
    pub spread_shards: u32,
    /// Bytes in one object, for files that move to objects from now on.
    pub object_size: u64,
    /// Pool of the objects of such files.
    pub data_pool: PoolId,
    /// Open handles a session may have (EMFILE beyond).
    pub max_handles_per_session: usize,
    /// Largest file in bytes (EFBIG beyond).
    pub max_file_size: u64,
    /// Bytes of all xattrs of an inode, names included (ENOSPC beyond).
    pub max_xattr_bytes: usize,
    /// Hard links of a file (EMLINK beyond).
    pub max_links: u32,
    /// Entries in one page of a listing.
    pub max_page_entries: u32,
    /// Bytes of bodies in one page of a listing.
    pub max_page_body_bytes: usize,
}

impl Config {
    /// The subtree as `o/` and `p/` records name it: 0 is the root subtree.
    pub(crate) fn tag(&self) -> u64 {
        if self.subtree == pando_proto::ids::ROOT_SUBTREE { 0 } else { self.subtree.0 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            subtree: pando_proto::ids::ROOT_SUBTREE,
            root: Ino::ROOT,
            budget_bytes: 256 << 20,
            inline_limit: 4096,
            spread_shards: 64,
            object_size: 4 << 20,
            data_pool: pando_proto::ids::DATA_POOL,
            max_handles_per_session: 65_536,
            max_file_size: 1 << 50,
            max_xattr_bytes: 64 << 10,
            max_links: 65_000,
            max_page_entries: 1024,
            max_page_body_bytes: 1 << 20,
        }
    }
}
