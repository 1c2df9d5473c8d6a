//! Newtypes of the ids that travel between processes.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
        impl From<$name> for $inner {
            fn from(value: $name) -> Self {
                value.0
            }
        }
    };
}

id!(
    /// An inode number: bit 63 zero, 15 bits of shard, 48 bits of number (R1).
    Ino(u64), ""
);
id!(
    /// A virtual slice of the metadata pool, 0 to 32767.
    ShardId(u16), "shard."
);
id!(
    /// A subtree, never reused; the root subtree is 1.
    SubtreeId(u64), "subtree."
);
id!(
    /// A slot for one metadata server process.
    Rank(u32), "mds."
);
id!(
    /// An object storage daemon.
    OsdId(u32), "osd."
);
id!(
    /// A pool; 1 is `metadata`, 2 is `data`.
    PoolId(u32), "pool."
);
id!(
    /// Version of the cluster map, or of a subtree's ownership.
    Epoch(u64), ""
);
id!(
    /// A client incarnation; 0 is nobody.
    ClientId(u64), "client."
);
id!(
    /// Number of a request within a session.
    RequestId(u64), ""
);

/// A placement group: the unit of replication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgId {
    /// Pool it belongs to.
    pub pool: PoolId,
    /// Number within the pool.
    pub index: u32,
}

impl fmt::Display for PgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.pool.0, self.index)
    }
}

/// Number of virtual shards (15 bits of an ino).
pub const SHARDS: u32 = 1 << 15;
/// Bits of an ino below its shard.
pub const INO_NUMBER_BITS: u32 = 48;
/// The pool that holds records.
pub const METADATA_POOL: PoolId = PoolId(1);
/// The pool that holds objects.
pub const DATA_POOL: PoolId = PoolId(2);
/// The subtree of the root directory.
pub const ROOT_SUBTREE: SubtreeId = SubtreeId(1);

impl Ino {
    /// The root directory: number 1 in shard 0.
    pub const ROOT: Self = Self(1);

    /// Puts an ino together; `None` if `number` has more than 48 bits or is 0, or the shard more than 15.
    pub fn new(shard: ShardId, number: u64) -> Option<Self> {
        let fits = u32::from(shard.0) < SHARDS && number != 0 && number >> INO_NUMBER_BITS == 0;
        fits.then(|| Self(u64::from(shard.0) << INO_NUMBER_BITS | number))
    }

    /// The shard that stores this inode's records.
    pub fn shard(self) -> ShardId {
        ShardId(((self.0 >> INO_NUMBER_BITS) & u64::from(SHARDS - 1)) as u16)
    }

    /// The 48-bit number within the shard.
    pub fn number(self) -> u64 {
        self.0 & ((1 << INO_NUMBER_BITS) - 1)
    }

    /// False for 0, for a number of 0 and for anything with bit 63 set; such values come only from outside.
    pub fn is_valid(self) -> bool {
        self.0 >> 63 == 0 && self.number() != 0
    }
}

/// The id of a cluster as people write it: 32 hexadecimal digits, with or without dashes.
pub fn parse_cluster_id(text: &str) -> Option<[u8; 16]> {
    let digits = text.replace('-', "");
    let is_one = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_one.then(|| u128::from_str_radix(&digits, 16).ok()).flatten().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r1_an_ino_names_its_shard() {
        let ino = Ino::new(ShardId(7), 42).unwrap();
        assert_eq!((ino.shard(), ino.number()), (ShardId(7), 42));
        assert_eq!((Ino::ROOT.shard(), Ino::ROOT.number()), (ShardId(0), 1));
        assert!(ino.is_valid());
    }

    #[test]
    fn a_cluster_id_is_read_as_it_is_written() {
        let id: [u8; 16] = std::array::from_fn(|at| at as u8);
        assert_eq!(parse_cluster_id("000102030405060708090a0b0c0d0e0f"), Some(id));
        assert_eq!(parse_cluster_id("00010203-0405-0607-0809-0A0B0C0D0E0F"), Some(id));
        for bad in ["", "00", "+0010203040506070809a0b0c0d0e0f1", "000102030405060708090a0b0c0d0e0g"] {
            assert_eq!(parse_cluster_id(bad), None, "{bad}");
        }
    }

    #[test]
    fn r1_inos_out_of_range_are_refused() {
        assert_eq!(Ino::new(ShardId(1 << 15), 1), None);
        assert_eq!(Ino::new(ShardId(0), 1 << 48), None);
        assert_eq!(Ino::new(ShardId(0), 0), None);
        assert!(!Ino(1 << 63 | 1).is_valid());
        assert!(!Ino(0).is_valid());
    }
}
