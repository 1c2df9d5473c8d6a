//! What operations hold beside the caches, of all subtrees of a rank together.

use std::cell::Cell;
use std::rc::Rc;

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Operations that have no outcome yet. Windows of sessions keep it far below; unary calls meet it.
    Jobs,
    /// Bytes of data that they carry.
    JobBytes,
    /// Bytes of changes that are not in the pool yet.
    PendingBytes,
    /// Bytes of replies that are held or about to leave.
    ReplyBytes,
}

/// By kind.
pub(crate) type Counts = [usize; 4];

/// What a rank may hold, whatever the number of its subtrees: beyond it, operations are refused until there is less.
const MOST: Counts = [24 * 1024, 16 << 20, 32 << 20, 16 << 20];

/// Sums over the subtrees of a rank.
#[derive(Default)]
pub(super) struct Totals {
    counts: Cell<Counts>,
    subtrees: Cell<usize>,
}

impl Totals {
    fn replace(&self, old: Counts, new: Counts) {
        let mut counts = self.counts.get();
        for ((sum, old), new) in counts.iter_mut().zip(old).zip(new) {
            *sum = *sum - old + new;
        }
        self.counts.set(counts);
    }
}

/// One subtree's part of what a rank holds; nothing, once dropped.
///
/// As long as all together are below the limits, each may have what it wants. Beyond, those go on that have less than
/// an even share: one that waits for a slow placement group does not stop the others. So a rank holds twice its limits
/// at most, and one operation of each subtree.
pub(crate) struct Share {
    totals: Rc<Totals>,
    told: Counts,
}

impl Share {
    pub(super) fn new(totals: &Rc<Totals>) -> Self {
        totals.subtrees.set(totals.subtrees.get() + 1);
        Self { totals: Rc::clone(totals), told: Counts::default() }
    }

    /// The subtree holds so much now.
    pub fn tell(&mut self, now: Counts) {
        if now != self.told {
            self.totals.replace(std::mem::replace(&mut self.told, now), now);
        }
    }

    /// Whether a subtree that holds `own` at the moment may have more.
    pub fn has_room(&self, kind: Kind, own: usize) -> bool {
        let at = kind as usize;
        let (most, others) = (MOST[at], self.totals.counts.get()[at] - self.told[at]);
        others + own <= most || own <= most / self.totals.subtrees.get()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.tell(Counts::default());
        self.totals.subtrees.set(self.totals.subtrees.get() - 1);
    }
}
