//! The rank's one memory budget, shared by the caches of its subtrees (I8).
//!
//! While all together fit, nobody evicts. Beyond that, those that have more than an even share give way. So it is with
//! what operations hold beside the caches: see [`Share`].

mod share;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pando_mds_core::api::CacheUsage;
use pando_proto::SubtreeId;
use tokio::sync::{Notify, watch};

use share::Totals;
pub(crate) use share::{Kind, Share};

/// Part of the budget that may be pinned before operations that need more records are refused.
const PINNED_SHARE: u64 = 2;

/// What the caches of a rank hold.
#[derive(Clone)]
pub(crate) struct Memory(Rc<Inner>);

/// Bytes of the copies that came here and are not adopted yet. Who keeps the copies counts them.
#[derive(Default)]
pub(crate) struct Imported {
    bytes: AtomicU64,
    grown: Notify,
}

impl Imported {
    /// So many from now on.
    pub fn set(&self, bytes: u64) {
        if self.bytes.swap(bytes, Ordering::Relaxed) < bytes {
            self.grown.notify_one();
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

struct Inner {
    budget: u64,
    imports: Arc<Imported>,
    used: RefCell<BTreeMap<SubtreeId, CacheUsage>>,
    /// Sum of all.
    all: Cell<CacheUsage>,
    told: watch::Sender<CacheUsage>,
    /// Somebody is over its share and may not know.
    pressed: Notify,
    totals: Rc<Totals>,
}

fn bytes(usage: &CacheUsage) -> u64 {
    usage.meta_bytes + usage.body_bytes
}

/// `sum` with `new` in place of `old`, which is part of it.
fn replaced(sum: CacheUsage, old: CacheUsage, new: CacheUsage) -> CacheUsage {
    CacheUsage {
        meta_bytes: sum.meta_bytes - old.meta_bytes + new.meta_bytes,
        body_bytes: sum.body_bytes - old.body_bytes + new.body_bytes,
        pinned_bytes: sum.pinned_bytes - old.pinned_bytes + new.pinned_bytes,
        inodes: sum.inodes - old.inodes + new.inodes,
        bodies: sum.bodies - old.bodies + new.bodies,
    }
}

impl Memory {
    pub fn new(budget: u64, imports: Arc<Imported>) -> (Self, watch::Receiver<CacheUsage>) {
        let (told, usage) = watch::channel(CacheUsage::default());
        let inner = Inner {
            budget,
            imports,
            used: RefCell::default(),
            all: Cell::default(),
            told,
            pressed: Notify::new(),
            totals: Rc::default(),
        };
        (Self(Rc::new(inner)), usage)
    }

    /// A subtree has so much now. Yields what it may have.
    pub fn report(&self, subtree: SubtreeId, usage: CacheUsage) -> u64 {
        let old = self.0.used.borrow_mut().insert(subtree, usage);
        let all = self.count(old.unwrap_or_default(), usage);
        let imports = self.0.imports.bytes();
        let total = bytes(&all) + imports;
        if total <= self.0.budget {
            return self.0.budget - (total - bytes(&usage));
        }
        let used = self.0.used.borrow();
        let share = self.0.budget.saturating_sub(imports) / (used.len() as u64);
        if used.iter().any(|(id, other)| *id != subtree && bytes(other) > share) {
            self.0.pressed.notify_one();
        }
        share.max(bytes(&usage).saturating_sub(total - self.0.budget))
    }

    /// The subtree is served here no more.
    pub fn forget(&self, subtree: SubtreeId) {
        let old = self.0.used.borrow_mut().remove(&subtree);
        self.count(old.unwrap_or_default(), CacheUsage::default());
    }

    fn count(&self, old: CacheUsage, new: CacheUsage) -> CacheUsage {
        let all = replaced(self.0.all.get(), old, new);
        self.0.all.set(all);
        self.0.told.send_replace(all);
        all
    }

    /// Whether so much of the budget is pinned, `own` of it by this subtree at the moment, that operations that need
    /// more have to wait.
    pub fn is_pinned(&self, subtree: SubtreeId, own: u64) -> bool {
        let used = self.0.used.borrow();
        let told = used.get(&subtree).map_or(0, |usage| usage.pinned_bytes);
        let most = self.0.budget / PINNED_SHARE;
        self.0.all.get().pinned_bytes - told + own > most && own > most / (used.len().max(1) as u64)
    }

    /// Ends when somebody should look at what it may have: also one that is idle, for a copy takes its place.
    pub async fn pressed(&self) {
        loop {
            tokio::select! {
                () = self.0.pressed.notified() => return,
                () = self.0.imports.grown.notified() => {
                    if bytes(&self.0.all.get()) + self.0.imports.bytes() > self.0.budget {
                        return;
                    }
                }
            }
        }
    }

    /// What a subtree starts with.
    pub fn budget(&self) -> u64 {
        self.0.budget
    }

    /// For what the operations of one more subtree hold.
    pub fn share(&self) -> Share {
        Share::new(&self.0.totals)
    }
}

#[cfg(test)]
mod tests;
