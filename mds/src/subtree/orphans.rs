//! Unlinked inodes that nobody has open any more are given up, a few at a time (I7, R19).

use std::collections::BTreeSet;
use std::time::Duration;

use pando_proto::{ClientId, Ino};

use super::job::{To, Work};
use super::{Event, Subtree};

/// Inodes that are being given up at once: what else is to be done goes on meanwhile, and they leave it room to wait for
/// records.
const MAX_REAPING: usize = 64;
/// After one could not be: it lacked room, or a placement group did not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// Those of one subtree.
#[derive(Default)]
pub(super) struct Orphans {
    /// Of the time before the opening; they may be open somewhere (R19).
    before: BTreeSet<Ino>,
    /// To be given up now.
    due: BTreeSet<Ino>,
    /// Those that could not be; the others come first.
    failed: BTreeSet<Ino>,
    running: usize,
    pausing: bool,
}

impl Orphans {
    /// As the takeover found them.
    pub fn found(before: BTreeSet<Ino>) -> Self {
        Self { before, ..Self::default() }
    }
}

impl Subtree {
    /// R19: orphans go only when everyone who may have them open has come back or is gone.
    pub(super) fn reap_if_all_are_back(&mut self) {
        if !self.awaited.is_empty() {
            return;
        }
        let deferred = self.namespace.end_grace();
        self.orphans.due.append(&mut self.orphans.before);
        self.orphans.due.extend(deferred);
        self.start_reaping();
    }

    /// Nobody has it open any more, as far as is known.
    pub(super) fn reap(&mut self, ino: Ino) {
        self.orphans.due.insert(ino);
        self.start_reaping();
    }

    fn start_reaping(&mut self) {
        while self.orphans.running < MAX_REAPING && !self.orphans.pausing {
            if self.orphans.due.is_empty() {
                std::mem::swap(&mut self.orphans.due, &mut self.orphans.failed);
            }
            let Some(ino) = self.orphans.due.pop_first() else { return };
            self.orphans.running += 1;
            let job = self.new_job(Work::Reap(ino), ClientId(0), 0, To::Nobody);
            self.runnable.push_back(job);
        }
    }

    /// It was given up, or need not be.
    pub(super) fn reaped(&mut self) {
        self.orphans.running -= 1;
        self.start_reaping();
    }

    /// It could not be: until somebody tries again nobody else would find it before the next opening.
    pub(super) fn not_reaped(&mut self, ino: Ino) {
        self.orphans.running -= 1;
        self.orphans.failed.insert(ino);
        if !std::mem::replace(&mut self.orphans.pausing, true) {
            self.spawn(async {
                tokio::time::sleep(PAUSE).await;
                Event::ReapOn
            });
        }
    }

    pub(super) fn reap_on(&mut self) {
        self.orphans.pausing = false;
        self.start_reaping();
    }
}
