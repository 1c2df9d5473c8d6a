//! Placement groups of the metadata pool that have no room, as far as this rank has heard.
//!
//! R7: space is checked before a change gets into memory. A batch that the pool refuses is known to be refused only when
//! others build on it, so that the whole subtree has to be opened again: once a group has refused one, changes that
//! would meet the same refusal are told so at once. I9: those that delete something pass, there as here.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use pando_proto::{Error, PgId, Reason};

/// For so long a group is taken to be full; then the next change tries. Nobody tells when there is room again.
const BELIEVED: Duration = Duration::from_secs(1);

/// Shared by all subtrees of a rank, and older than their actors. As many entries as there are groups.
#[derive(Default)]
pub(crate) struct Full(RefCell<BTreeMap<PgId, Duration>>);

impl Full {
    /// It refused a batch, for want of space.
    pub fn refused(&self, pg: PgId, now: Duration) {
        self.0.borrow_mut().insert(pg, now);
    }

    /// None has refused anything, as is usual.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Whether it would do so again.
    pub fn has(&self, pg: PgId, now: Duration) -> bool {
        self.0.borrow().get(&pg).is_some_and(|at| now.saturating_sub(*at) < BELIEVED)
    }
}

/// What the client is told; as the pool says it.
pub(crate) fn no_space() -> Error {
    Error::new(Reason::NoSpace, "the cluster is full: delete something, or add an OSD")
}

#[cfg(test)]
mod tests {
    use pando_proto::ids::METADATA_POOL;

    use super::*;

    #[test]
    fn i9_a_group_is_full_until_it_is_time_to_try() {
        let full = Full::default();
        let [one, other] = [0, 1].map(|index| PgId { pool: METADATA_POOL, index });
        let at = Duration::from_secs(9);
        assert!(!full.has(one, at));
        full.refused(one, at);
        assert!(full.has(one, at) && !full.has(other, at));
        assert!(!full.has(one, at + BELIEVED));
        full.refused(one, at + BELIEVED);
        assert!(full.has(one, at + BELIEVED));
    }
}
