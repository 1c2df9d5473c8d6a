//! The loop behind [`GroupCommit`](super::GroupCommit), on a thread or on a task.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::{CommitError, Outcome, Queue, Shared};
use crate::engine::{Engine, EngineError, Transaction};

/// Those who wait for one commit, and how it went.
pub(super) struct Handout {
    waiters: Vec<oneshot::Sender<Outcome>>,
    outcome: Outcome,
}

impl Handout {
    fn deliver(self) {
        for waiter in self.waiters {
            // Whoever no longer listens does not mind.
            let _ = waiter.send(self.outcome.clone());
        }
    }
}

/// Wakes the waiters on their own runtime: from the commit thread each would cost a system call.
pub(super) async fn hand_out(mut outcomes: mpsc::UnboundedReceiver<Handout>) {
    // As bounded as the queue that the waiters stood in.
    while let Some(handout) = outcomes.recv().await {
        handout.deliver();
    }
}

/// The commit thread.
pub(super) fn thread(shared: &Shared, engine: Arc<dyn Engine>, outcomes: &mpsc::UnboundedSender<Handout>) {
    loop {
        let mut queue = shared.lock();
        while queue.waiting.is_empty() && !queue.closed {
            queue = shared.work.wait(queue).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        let Some(batch) = take(&mut queue, shared) else { break };
        drop(queue);
        let handout = commit(shared, &*engine, batch);
        if let Err(mpsc::error::SendError(handout)) = outcomes.send(handout) {
            handout.deliver();
        }
    }
    end(shared, engine);
}

/// The same on a task, for simulation.
pub(super) async fn task(shared: Arc<Shared>, engine: Arc<dyn Engine>, sync_latency: Duration) {
    loop {
        let batch = {
            let mut queue = shared.lock();
            match take(&mut queue, &shared) {
                Some(batch) => Some(batch),
                None if queue.closed => break,
                None => None,
            }
        };
        let Some(batch) = batch else {
            shared.work_inline.notified().await;
            continue;
        };
        if !sync_latency.is_zero() {
            tokio::time::sleep(sync_latency).await;
        }
        commit(&shared, &*engine, batch).deliver();
    }
    end(&shared, engine);
}

struct Batch {
    transactions: Vec<Transaction>,
    waiters: Vec<oneshot::Sender<Outcome>>,
    bytes: usize,
    /// Set if the batch is not to be committed at all.
    poisoned: Option<EngineError>,
}

/// All that waits, up to the bounds of a batch; `None` if nothing does.
fn take(queue: &mut Queue, shared: &Shared) -> Option<Batch> {
    let mut batch = Batch { transactions: Vec::new(), waiters: Vec::new(), bytes: 0, poisoned: queue.poisoned.clone() };
    while let Some(next) = queue.waiting.front() {
        let full = batch.transactions.len() >= shared.limits.batch_transactions.max(1)
            || batch.bytes + next.bytes > shared.limits.batch_bytes;
        if full && !batch.transactions.is_empty() {
            break;
        }
        let Some(next) = queue.waiting.pop_front() else { break };
        queue.bytes -= next.bytes;
        batch.bytes += next.bytes;
        batch.transactions.push(next.transaction);
        batch.waiters.push(next.done);
    }
    if batch.transactions.is_empty() {
        return None;
    }
    shared.room.notify_waiters();
    Some(batch)
}

fn commit(shared: &Shared, engine: &dyn Engine, batch: Batch) -> Handout {
    let Batch { transactions, waiters, bytes, poisoned } = batch;
    if let Some(error) = poisoned {
        return Handout { waiters, outcome: Err(CommitError::Poisoned(error)) };
    }
    // A panic in a back end is its failure, not ours: those who wait must hear of it.
    let result = catch_unwind(AssertUnwindSafe(|| engine.commit(&transactions)))
        .unwrap_or_else(|_| Err(EngineError::Io("the storage engine panicked".to_owned())));
    if let Err(error) = result {
        tracing::error!(%error, transactions = transactions.len(), "commit failed: nothing more is written");
        shared.lock().poisoned = Some(error.clone());
        shared.room.notify_waiters();
        return Handout { waiters, outcome: Err(CommitError::Failed(error)) };
    }
    let (counters, count) = (&shared.counters, transactions.len() as u64);
    counters.commits.fetch_add(1, Ordering::Relaxed);
    counters.transactions.fetch_add(count, Ordering::Relaxed);
    counters.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    counters.max_batch.fetch_max(count, Ordering::Relaxed);
    Handout { waiters, outcome: Ok(()) }
}

fn end(shared: &Shared, engine: Arc<dyn Engine>) {
    drop(engine);
    shared.lock().ended = true;
    shared.room.notify_waiters();
}
