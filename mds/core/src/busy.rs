//! Inos whose data is being moved or cut.

/// Why an ino is blocked. One at a time: `p/<ino>` has room for one purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    /// Its body moves to objects (R24): no writes; reads of the body go on.
    Spill,
    /// Its objects are cut at the new size (R22): no data operations.
    Cut,
    /// Objects of an earlier generation are purged; data goes on in the next generation,
    /// but no other purge may begin.
    Purge,
}
