//! Changes become batches, batches become commits, commits let replies go (R2 to R7).

use pando_cluster_map::TransactionId;
use pando_mds_core::Namespace;
use pando_mds_core::api::{BatchId, Change, FollowUp, Reads};
use pando_mds_core::pipeline::{CompletedRef, makes_room};
use pando_mds_core::records::Key;
use pando_proto::mds::{Completed, OperationResult, PurgeRecord};
use pando_proto::osd::{CommitOutcome, CommitRequest, CommitResponse};
use pando_proto::{Error, Ino, Reason, ShardId};

use crate::full::no_space;
use crate::takeover::{also_fenced, raise_all};

use super::fetch::lost_fence;
use super::job::{Job, To};
use super::reply::{Remember, encode_remembered, error_result};
use super::turn::is_error;
use super::{Event, Subtree};

/// Items of a cache that go in one slice.
const DISCARD_STEPS: usize = 512;

/// The end of a commit.
pub(crate) struct Committed {
    shard: ShardId,
    batch: BatchId,
    outcome: Result<CommitResponse, Error>,
}

/// What is to be done once a batch is durable.
pub(super) enum Then {
    Purge(Ino, PurgeRecord),
    /// The intent stands: write the objects.
    Spill(Ino),
    /// The map is to decide to commit.
    Decide(TransactionId),
    /// The coordinator is to hear that this subtree is prepared.
    Prepared(TransactionId),
}

impl Subtree {
    /// Puts a decided change into its batch, and holds the reply until that is durable (I2).
    pub(super) fn change(&mut self, job: Job, result: OperationResult, reads: Reads, change: Change) {
        let of_session = matches!(job.to, To::Stream(_)) && !is_error(&result);
        let encoded = of_session.then(|| encode_remembered(&result));
        if change.writes.is_empty() {
            // Only memory: handles. Remembered in memory, so that a copy does not do it twice.
            self.namespace.commit_memory(change);
            let remember = encoded.map(|result| Remember { result, reference: None });
            return self.hold(job, result, reads, remember);
        }
        if self.has_no_room(&change) {
            let result = error_result(&self.signed(no_space()));
            return self.hold(job, result, reads, None);
        }
        let completed =
            encoded.clone().map(|result| Completed { client_id: job.client.0, request: job.request, result });
        let follow_ups = change.follow_up.clone();
        let made = change.writes.iter().find_map(|write| match write.key {
            Key::Inode(ino) => Some(ino.shard()),
            _ => None,
        });
        let batch = self.admit(change, &reads, completed);
        if let Some(shard) = made {
            self.refill_inos(shard);
        }
        let reference = CompletedRef { subtree: self.own.subtree, epoch: self.own.epoch, batch };
        let remember = encoded.map(|result| Remember { result, reference: Some(reference) });
        let mut after_purge = None;
        for FollowUp::Purge(ino, record) in follow_ups {
            if record.from > 0 {
                after_purge = Some(ino);
            }
            self.after_durable(batch, Then::Purge(ino, record));
        }
        self.hold_change(job, result, batch, remember, after_purge);
    }

    /// R7, I9: whether the pool would refuse the change, as far as is known: what makes room it takes.
    pub(super) fn has_no_room(&self, change: &Change) -> bool {
        self.meets_a_full_one(change) && !change.writes.iter().any(makes_room)
    }

    /// Whether a placement group that it goes to is known to be full.
    pub(super) fn meets_a_full_one(&self, change: &Change) -> bool {
        if self.full.is_empty() {
            return false;
        }
        let now = self.clock.boottime();
        let is_full = |shard: ShardId| self.full.has(self.map.pg_of_shard(shard), now);
        change.writes.iter().any(|write| is_full(write.key.shard()))
    }

    /// Puts a change into its batch.
    pub(super) fn admit(&mut self, change: Change, reads: &[BatchId], completed: Option<Completed>) -> BatchId {
        let batch = self.pipeline.admit(&change.writes, reads, completed);
        self.namespace.commit(change, batch);
        self.commits_due = true;
        batch
    }

    /// Puts a change of the shell itself into its batch. All it saw is its own, earlier doing.
    pub(super) fn admit_own(&mut self, change: Change) -> Option<BatchId> {
        if change.writes.is_empty() {
            self.namespace.commit_memory(change);
            return None;
        }
        Some(self.admit(change, &[], None))
    }

    pub(super) fn after_durable(&mut self, batch: BatchId, then: Then) {
        self.then.entry(batch).or_default().push(then);
    }

    /// Sends the commits that may go (R6).
    pub(super) fn send_commits(&mut self) {
        if !std::mem::take(&mut self.commits_due) {
            return;
        }
        for commit in self.pipeline.next_commits() {
            let (shard, batch) = (commit.shard, commit.batch);
            let committing = self.outside.records.commit(CommitRequest {
                shard: shard.0.into(),
                subtree: self.own.subtree.0,
                epoch: self.own.epoch.0,
                batch: batch.0,
                puts: commit.puts,
                deletes: commit.deletes,
                map_epoch: self.map.epoch.0,
                uses_reserve: commit.uses_reserve,
            });
            self.commits_in_flight += 1;
            self.spawn(async move { Event::Committed(Committed { shard, batch, outcome: committing.await }) });
        }
    }

    /// Raises the fences that the pipeline or a fetch asked for (R3).
    pub(super) fn raise_fences(&mut self) {
        for shard in self.pipeline.take_fences_wanted() {
            let raising = raise_all(&*self.outside.records, shard, self.own, &also_fenced(&self.map, self.own));
            self.spawn(async move { Event::Fenced(shard, raising.await.map(|fence| fence.fence_epoch)) });
        }
    }

    pub(super) fn fence_raised(&mut self, shard: ShardId, fence: Result<u64, Error>) {
        match fence {
            Ok(epoch) if epoch > self.own.epoch.0 => self.lose(lost_fence(epoch)),
            Ok(_) => {
                self.pipeline.fence_raised(shard);
                self.commits_due = true;
            }
            Err(error) => self.reload(error),
        }
    }

    pub(super) fn committed(&mut self, committed: Committed) {
        self.commits_in_flight = self.commits_in_flight.saturating_sub(1);
        self.commits_due = true;
        let Committed { shard, batch, outcome } = committed;
        let response = match outcome {
            Ok(response) => response,
            Err(error) => {
                if error.reason == Reason::NoSpace {
                    self.full.refused(self.map.pg_of_shard(shard), self.clock.boottime());
                    self.refused.insert(batch);
                }
                return self.reload(error);
            }
        };
        if response.outcome() != CommitOutcome::Done {
            return self.lose(lost_fence(response.fence_epoch));
        }
        let progress = self.pipeline.committed(shard, batch);
        if let Some(batch) = progress.settled {
            self.namespace.durable(batch);
            self.batch_is_settled(batch);
        }
        if let Some(batch) = progress.durable {
            self.batch_is_durable(batch);
            for then in self.then.remove(&batch).unwrap_or_default() {
                match then {
                    Then::Purge(ino, record) => self.add_purge(ino, record),
                    Then::Spill(ino) => self.write_spill(ino),
                    Then::Decide(id) => self.decide(id, true),
                    Then::Prepared(id) => self.is_prepared(id),
                }
            }
        }
    }

    /// R7, refused by the fence: nothing that waits will ever be durable here.
    pub(super) fn lose(&mut self, error: Error) {
        tracing::info!(subtree = %self.own.subtree, epoch = %self.own.epoch, %error, "a subtree is given up");
        self.commits_in_flight = 0;
        self.ending = Some(error);
    }

    /// R7, refused for another reason: the state in memory is ahead of the pool and cannot get there. What is in
    /// flight becomes definite first, then the subtree is opened again.
    pub(super) fn reload(&mut self, error: Error) {
        if self.ending.is_some() {
            return;
        }
        tracing::warn!(subtree = %self.own.subtree, %error, "the pool refused a batch; the subtree is opened again");
        let told = match error.reason {
            Reason::NoSpace => error,
            _ => Error::new(Reason::Unavailable, format!("the subtree is opened again: {error}")),
        };
        self.ending = Some(told);
    }

    /// Whether the actor has nothing left to wait for.
    pub(super) fn is_over(&self) -> bool {
        self.ending.is_some() && self.commits_in_flight == 0
    }

    /// A large cache goes in slices (R27).
    fn discard_cache(&mut self) {
        let config = self.namespace.config().clone();
        let mut namespace = std::mem::replace(&mut self.namespace, Namespace::new(config));
        tokio::task::spawn_local(async move {
            namespace.set_budget(0);
            while namespace.evict(DISCARD_STEPS) {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Drops the state and the held replies.
    pub(super) fn end(&mut self) {
        let Some(error) = self.ending.clone() else { return };
        self.tasks.abort_all();
        self.send_replies();
        self.refuse_all(&error);
        self.discard_cache();
        if let Some(ended) = self.ended.take() {
            let _ = ended.send(());
        }
    }
}
