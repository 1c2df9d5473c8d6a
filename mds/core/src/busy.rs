//! Inos whose data is being moved or cut.

/// Why an ino is blocked. One at a time: `p/<ino>` has room for one purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    /// Its body moves to objects (R24): no writes; reads of the body go on.
    Spill,
    /// Its objects are cut at the new size (R22): no data operations.
    Cut,
    /// All objects are purged. The file goes on empty or inline; nothing is granted in objects, or shown of them,
    /// and no other purge begins.
    Purge,
}
