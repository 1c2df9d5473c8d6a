//! Objects of unlinked and cut files are deleted (I7, R22, R23): never before the record that says so is
//! durable, and that record goes only after the deletes are.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use pando_mds_core::api::{Change, FollowUp};
use pando_proto::mds::PurgeRecord;
use pando_proto::osd::{ObjectId, TrimKind};
use pando_proto::{Ino, Reason};
use rustc_hash::FxHashMap;

use super::commit::Then;
use super::job::Job;
use super::{Event, Subtree};
use crate::full::no_space;
use crate::io::Objects;

/// Files purged at once.
const MAX_RUNNING: usize = 16;
/// The same while somebody waits for it: objects in a placement group that is down hold up no other file.
const MAX_URGENT: usize = 256;
/// Objects, or placement groups, of one file trimmed at once.
const TRIMS: usize = 4;
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Purges under way and those that wait. The queue is as long as the row of `p/` records in the pool, and drains
/// at the rate of the data pool.
#[derive(Default)]
pub(super) struct Purges {
    /// What is done to these files waits for it, or is about to. They go first.
    urgent: VecDeque<(Ino, PurgeRecord)>,
    records: FxHashMap<Ino, PurgeRecord>,
    /// Order of `records`; those that have become urgent are skipped.
    waiting: VecDeque<Ino>,
    running: usize,
}

impl Purges {
    fn add(&mut self, ino: Ino, record: PurgeRecord) {
        self.records.insert(ino, record);
        self.waiting.push_back(ino);
    }

    fn hurry(&mut self, ino: Ino) {
        if let Some(record) = self.records.remove(&ino) {
            self.urgent.push_back((ino, record));
        }
    }

    fn next(&mut self) -> Option<(Ino, PurgeRecord)> {
        if self.running < MAX_URGENT
            && let Some(urgent) = self.urgent.pop_front()
        {
            return Some(urgent);
        }
        while self.running < MAX_RUNNING {
            let ino = self.waiting.pop_front()?;
            if let Some(record) = self.records.remove(&ino) {
                return Some((ino, record));
            }
        }
        None
    }
}

impl Subtree {
    /// What a takeover found goes on as it was (R24: interrupted spills are purged as well).
    pub(super) fn resume_purges(&mut self, found: Vec<(Ino, PurgeRecord)>) {
        for (ino, record) in found {
            if let Some(change) = self.namespace.claim(ino, &record) {
                self.admit_own(change);
            }
            let FollowUp::Purge(ino, record) = self.namespace.recover(ino, &record);
            self.purges.add(ino, record);
        }
    }

    pub(super) fn add_purge(&mut self, ino: Ino, record: PurgeRecord) {
        if self.namespace.is_blocked(ino) {
            // The file lives on: sooner or later somebody waits.
            self.purges.urgent.push_back((ino, record));
        } else {
            self.purges.add(ino, record);
        }
        self.start_purges();
    }

    /// Somebody waits for the ino.
    pub(super) fn hurry_purge(&mut self, ino: Ino) {
        self.purges.hurry(ino);
        self.start_purges();
    }

    /// What was granted above a file's size goes, in a batch of its own; then the operation runs again (R23).
    pub(super) fn cut_first(&mut self, job: Job, ino: Ino, change: Change) {
        if self.has_no_room(&change) {
            return self.fail(job, no_space());
        }
        let follow_ups = change.follow_up.clone();
        if let Some(batch) = self.admit_own(change) {
            for FollowUp::Purge(ino, record) in follow_ups {
                self.after_durable(batch, Then::Purge(ino, record));
            }
        }
        self.wait_for_ino(job, ino);
    }

    pub(super) fn start_purges(&mut self) {
        while let Some((ino, record)) = self.purges.next() {
            self.purges.running += 1;
            let objects = Rc::clone(&self.outside.objects);
            self.spawn(async move {
                purge(objects, ino, record).await;
                Event::Purged(ino)
            });
        }
    }

    /// The trims are durable, or refused because the object is of a later life. The ino is unblocked before the
    /// removal of `p/` is durable: what is granted from now on is in a later batch of the same shard, and before the file
    /// goes to another subtree that removal is waited for.
    pub(super) fn purged(&mut self, ino: Ino) {
        self.purges.running -= 1;
        let change = self.namespace.purge_done(ino);
        self.admit_own(change);
        self.objects_are_cut(ino);
        self.wake(ino);
        self.start_purges();
    }
}

/// What it costs is bounded by the placement groups and by what they hold, not by `max_size`: a sparse file takes no
/// more of the pool, of the row of purges and of the time in which it is blocked than the bytes that are in it (R23).
async fn purge(objects: Rc<dyn Objects>, ino: Ino, record: PurgeRecord) {
    if record.object_size == 0 {
        // Never written by us; without a size of objects nothing can be found.
        tracing::error!(%ino, "a purge record without an object size");
        return;
    }
    let whole = record.from.div_ceil(record.object_size)..record.max_size.div_ceil(record.object_size);
    let cut = (!record.from.is_multiple_of(record.object_size)).then(|| record.from / record.object_size);
    let firsts = objects.firsts(record.pool, ino, whole.clone());
    let deletes: Box<dyn Iterator<Item = (TrimKind, u64)>> = match firsts {
        Some(firsts) => Box::new(firsts.into_iter().map(|index| (TrimKind::DeleteFrom, index))),
        None => Box::new(whole.map(|index| (TrimKind::Delete, index))),
    };
    let objects = &objects;
    let trims =
        cut.map(|index| (TrimKind::Truncate, index)).into_iter().chain(deletes).map(|(kind, index)| async move {
            let object = ObjectId { pool: record.pool, ino: ino.0, index };
            let offset = if kind == TrimKind::Truncate { record.from % record.object_size } else { 0 };
            trim(objects, object, record.generation, kind, offset).await;
        });
    stream::iter(trims).buffer_unordered(TRIMS).collect::<()>().await;
}

/// Repeats until it is done: an object that is not deleted is space lost (I7). An object of a higher generation was
/// trimmed before, and belongs to what came after: another owner has done this purge (R22). The one at the boundary of a
/// cut keeps the generation of that cut; the OSD knows by it that the cut was done.
async fn trim(objects: &Rc<dyn Objects>, object: ObjectId, generation: u64, kind: TrimKind, offset: u64) {
    let mut backoff = BACKOFF_MIN;
    while let Err(error) = objects.trim(object, generation, kind, offset).await {
        if error.reason == Reason::StaleGeneration {
            tracing::info!(ino = object.ino, index = object.index, generation, "a purge that was done before");
            return;
        }
        tracing::warn!(ino = object.ino, index = object.index, %error, "a purge is repeated");
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}
