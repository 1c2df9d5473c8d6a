//! The rank's one memory budget, shared by the caches of its subtrees (I8).
//!
//! While all together fit, nobody evicts. Beyond that, those that have more than an even share give way.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pando_mds_core::api::CacheUsage;
use pando_proto::SubtreeId;
use tokio::sync::{Notify, watch};

/// What the caches of a rank hold.
#[derive(Clone)]
pub(crate) struct Memory(Rc<Inner>);

struct Inner {
    budget: u64,
    used: RefCell<BTreeMap<SubtreeId, CacheUsage>>,
    told: watch::Sender<CacheUsage>,
    /// Somebody is over its share and may not know.
    pressed: Notify,
}

fn bytes(usage: &CacheUsage) -> u64 {
    usage.meta_bytes + usage.body_bytes
}

impl Memory {
    pub fn new(budget: u64) -> (Self, watch::Receiver<CacheUsage>) {
        let (told, usage) = watch::channel(CacheUsage::default());
        let inner = Inner { budget, used: RefCell::default(), told, pressed: Notify::new() };
        (Self(Rc::new(inner)), usage)
    }

    /// An even share.
    fn share(&self) -> u64 {
        self.0.budget / (self.0.used.borrow().len().max(1) as u64)
    }

    /// A subtree has so much now. Yields what it may have.
    pub fn report(&self, subtree: SubtreeId, usage: CacheUsage) -> u64 {
        let (total, others_over) = {
            let mut used = self.0.used.borrow_mut();
            used.insert(subtree, usage);
            let all = used.values().fold(CacheUsage::default(), |sum, one| CacheUsage {
                meta_bytes: sum.meta_bytes + one.meta_bytes,
                body_bytes: sum.body_bytes + one.body_bytes,
                pinned_bytes: sum.pinned_bytes + one.pinned_bytes,
                inodes: sum.inodes + one.inodes,
                bodies: sum.bodies + one.bodies,
            });
            self.0.told.send_replace(all);
            let share = self.0.budget / (used.len() as u64);
            (bytes(&all), used.iter().any(|(id, other)| *id != subtree && bytes(other) > share))
        };
        if total <= self.0.budget {
            return self.0.budget - (total - bytes(&usage));
        }
        let allowed = self.share().max(bytes(&usage).saturating_sub(total - self.0.budget));
        if others_over {
            self.0.pressed.notify_one();
        }
        allowed
    }

    /// The subtree is served here no more.
    pub fn forget(&self, subtree: SubtreeId) {
        self.0.used.borrow_mut().remove(&subtree);
    }

    /// Ends when somebody should look at what it may have.
    pub async fn pressed(&self) {
        self.0.pressed.notified().await;
    }

    /// What a subtree starts with.
    pub fn budget(&self) -> u64 {
        self.0.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(meta_bytes: u64) -> CacheUsage {
        CacheUsage { meta_bytes, ..CacheUsage::default() }
    }

    #[test]
    fn the_budget_holds_for_all_together() {
        let (memory, usage) = Memory::new(100);
        let (a, b) = (SubtreeId(1), SubtreeId(2));
        assert_eq!(memory.report(a, used(90)), 100, "alone it may have all");
        assert_eq!(memory.report(b, used(5)), 10);
        assert_eq!(usage.borrow().meta_bytes, 95);
        // Over: who is below an even share keeps what it has, the other gives way.
        assert_eq!(memory.report(b, used(30)), 50);
        assert_eq!(memory.report(a, used(90)), 70);
        assert_eq!(memory.report(a, used(70)), 70);
        memory.forget(a);
        assert_eq!(memory.report(b, used(30)), 100);
    }
}
