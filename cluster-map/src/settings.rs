//! The cluster's settings: names, defaults and ranges. They live in the map.

/// Largest file kept inline, in bytes; 0 switches inline bodies off.
pub const INLINE_LIMIT: &str = "inline_limit";
/// Bytes in one object of a new file.
pub const OBJECT_SIZE: &str = "object_size";
/// Lease of OSDs and ranks, in milliseconds.
pub const LEASE_MILLIS: &str = "lease_millis";
/// Silence after which a client session is evicted, in milliseconds.
pub const SESSION_TIMEOUT_MILLIS: &str = "session_timeout_millis";
/// How long an OSD may be down before others take its places, in milliseconds.
pub const DOWN_OUT_MILLIS: &str = "down_out_millis";
/// Whether the mons move subtrees for the sake of load: see [`BALANCER_OFF`] and the like.
pub const BALANCER_MODE: &str = "balancer_mode";
/// Time between two looks at the ranks' load, in milliseconds.
pub const BALANCER_INTERVAL_MILLIS: &str = "balancer_interval_millis";
/// How busy a rank has to be before load moves away from it, in thousandths.
pub const BALANCER_SATURATION_PERMILLE: &str = "balancer_saturation_permille";
/// Subtrees that the cluster may have.
pub const MAX_SUBTREES: &str = "max_subtrees";

/// Only draining ranks are emptied.
pub const BALANCER_OFF: u64 = 0;
/// Draining and pins are obeyed; what load would ask for is only recorded.
pub const BALANCER_MANUAL: u64 = 1;
/// Subtrees are moved, split and merged as the load asks for.
pub const BALANCER_AUTO: u64 = 2;

/// A setting with its default and the values it may take.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Name in the map.
    pub name: &'static str,
    /// Value when not set.
    pub default: u64,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// One line for people.
    pub help: &'static str,
}

/// All settings.
pub const ALL: [Definition; 9] = [
    Definition {
        name: INLINE_LIMIT,
        default: 4096,
        min: 0,
        max: 256 << 10,
        help: "largest file kept with its inode, in bytes; 0 keeps every file in objects",
    },
    Definition {
        name: OBJECT_SIZE,
        default: 4 << 20,
        min: 64 << 10,
        max: 8 << 20,
        help: "bytes in one object of a new file",
    },
    Definition {
        name: LEASE_MILLIS,
        default: 2000,
        min: 200,
        max: 60_000,
        help: "lease of OSDs and ranks in milliseconds",
    },
    Definition {
        name: SESSION_TIMEOUT_MILLIS,
        default: 60_000,
        min: 5_000,
        max: 86_400_000,
        help: "silence after which a client session is evicted, in milliseconds",
    },
    Definition {
        name: DOWN_OUT_MILLIS,
        default: 600_000,
        min: 1_000,
        max: 30 * 86_400_000,
        help: "how long an OSD may be down before others take its places, in milliseconds",
    },
    Definition {
        name: BALANCER_MODE,
        default: BALANCER_AUTO,
        min: BALANCER_OFF,
        max: BALANCER_AUTO,
        help: "0 only empties draining ranks; 1 obeys pins too, and records what it would do for load; 2 does it",
    },
    Definition {
        name: BALANCER_INTERVAL_MILLIS,
        default: 5000,
        min: 100,
        max: 3_600_000,
        help: "time between two looks at the load of the ranks, in milliseconds",
    },
    Definition {
        name: BALANCER_SATURATION_PERMILLE,
        default: 700,
        min: 1,
        max: 1000,
        help: "how busy a rank has to be, in thousandths, before load moves away from it",
    },
    Definition {
        name: MAX_SUBTREES,
        default: 4096,
        min: 1,
        max: 4096,
        help: "subtrees that the cluster may have; with as many, a directory that would have to become one does not move \
               to another subtree",
    },
];

/// The definition of a name.
pub fn find(name: &str) -> Option<&'static Definition> {
    ALL.iter().find(|definition| definition.name == name)
}

/// A number from its text in the map; the default when absent or (from a newer mon) unreadable.
pub fn number(name: &str, value: Option<&str>) -> u64 {
    let default = find(name).map_or(0, |definition| definition.default);
    value.and_then(|text| text.parse().ok()).unwrap_or(default)
}
