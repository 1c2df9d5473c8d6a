//! A file that outgrows its inline body moves to objects (R24): intent, objects, finish. What waits for it
//! runs again afterwards; a crash in between leaves a purge record, so nobody else's bytes are ever seen.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use pando_mds_core::api::{Change, Fetch};
use pando_mds_core::pipeline::redo::decode_record;
use pando_mds_core::records::Key;
use pando_proto::mds::PurgeRecord;
use pando_proto::osd::ObjectId;
use pando_proto::{Error, Ino, Reason};

use super::commit::Then;
use super::job::Job;
use super::turn::overloaded;
use super::{Event, Subtree};
use crate::full::no_space;
use crate::io::Objects;

/// Files on their way at once; others wait by being refused for a moment.
const MAX_SPILLS: usize = 256;
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

struct Spill {
    layout: PurgeRecord,
    body: Bytes,
    waiting: Vec<Job>,
}

/// Files on their way to objects.
#[derive(Default)]
pub(super) struct Spills(BTreeMap<Ino, Spill>);

impl Spills {
    pub fn take_waiting(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.0).into_values().flat_map(|spill| spill.waiting).collect()
    }
}

impl Subtree {
    pub(super) fn need_spill(&mut self, mut job: Job, ino: Ino) {
        self.track(&mut job);
        if let Some(spill) = self.spills.0.get_mut(&ino) {
            return spill.waiting.push(job);
        }
        if self.namespace.is_blocked(ino) {
            return self.wait_for_ino(job, ino);
        }
        if self.spills.0.len() >= MAX_SPILLS {
            return self.fail(job, overloaded("too many files move to objects"));
        }
        let context = self.context_of_shell();
        // No grant beyond the body: what a writer never reported is not there to be cut (R23).
        match self.namespace.spill_intent(ino, 0, &context) {
            Ok((change, _)) if self.meets_a_full_one(&change) => self.fail(job, no_space()),
            Ok((change, body)) => self.begin_spill(job, ino, change, body),
            Err(error) if error.is_retryable() => {
                // Evicted between the decision and now: bring it back and decide again.
                job.rounds += 1;
                let records = [Fetch::Record(Key::Inode(ino)), Fetch::Record(Key::Body(ino))];
                self.fetch(job, records.into_iter().collect());
            }
            Err(error) => self.fail(job, error),
        }
    }

    fn begin_spill(&mut self, job: Job, ino: Ino, change: Change, body: Bytes) {
        // The purge record of the intent says where the objects lie.
        let purge = change.writes.iter().find(|write| write.key == Key::Purge(ino));
        let layout = purge.and_then(|write| write.value.as_ref()).map(decode_record::<PurgeRecord>);
        let Some(Ok(layout)) = layout else {
            return self.fail(job, Error::new(Reason::Internal, "R24: an intent without a purge record"));
        };
        self.spills.0.insert(ino, Spill { layout, body, waiting: vec![job] });
        if let Some(batch) = self.admit_own(change) {
            self.after_durable(batch, Then::Spill(ino));
        }
    }

    /// The intent is durable.
    pub(super) fn write_spill(&mut self, ino: Ino) {
        let Some(spill) = self.spills.0.get(&ino) else { return };
        let writing = write_body(Rc::clone(&self.outside.objects), ino, spill.layout, spill.body.clone());
        self.spawn(async move { Event::Spilled(ino, writing.await) });
    }

    pub(super) fn spilled(&mut self, ino: Ino, outcome: Result<(), Error>) {
        let Some(spill) = self.spills.0.remove(&ino) else { return };
        let ended = match &outcome {
            Ok(()) => self.namespace.spill_finish(ino),
            Err(_) => self.namespace.spill_abort(ino),
        };
        match ended {
            Ok(change) => self.end_spill(change),
            Err(error) => tracing::error!(%ino, %error, "R24: a spill that nobody began"),
        }
        for job in spill.waiting {
            match &outcome {
                Ok(()) => self.runnable.push_back(job),
                Err(error) => self.fail(job, error.clone()),
            }
        }
        self.wake(ino);
    }

    fn end_spill(&mut self, change: Change) {
        let follow_ups = change.follow_up.clone();
        if let Some(batch) = self.admit_own(change) {
            for pando_mds_core::api::FollowUp::Purge(ino, record) in follow_ups {
                self.after_durable(batch, Then::Purge(ino, record));
            }
        }
    }
}

async fn write_body(objects: Rc<dyn Objects>, ino: Ino, layout: PurgeRecord, body: Bytes) -> Result<(), Error> {
    let size = usize::try_from(layout.object_size.max(1)).unwrap_or(usize::MAX);
    // One above any write before; the deletes of a purge come one above this.
    let generation = layout.generation.saturating_sub(1);
    let mut backoff = BACKOFF_MIN;
    for (index, at) in (0..body.len()).step_by(size).enumerate() {
        let object = ObjectId { pool: layout.pool, ino: ino.0, index: index as u64 };
        let data = body.slice(at..body.len().min(at.saturating_add(size)));
        loop {
            match objects.write(object, generation, 0, data.clone()).await {
                Ok(()) => break,
                Err(error) if error.is_retryable() => {
                    tracing::debug!(%ino, %error, "repeating a write of a spill");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
