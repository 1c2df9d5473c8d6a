//! The loop behind [`GroupCommit`](super::GroupCommit), on a thread or on a task.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::{CommitError, Outcome, Queue, Shared};
use crate::engine::{Engine, EngineError, Transaction};

/// Those who wait for one commit, each with how it went.
pub(super) struct Handout(Vec<(oneshot::Sender<Outcome>, Outcome)>);

impl Handout {
    fn deliver(self) {
        for (waiter, outcome) in self.0 {
            // Whoever no longer listens does not mind.
            let _ = waiter.send(outcome);
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

#[derive(Default)]
struct Batch {
    transactions: Vec<Transaction>,
    waiters: Vec<oneshot::Sender<Outcome>>,
    bytes: usize,
}

/// All that waits, up to the bounds of a batch; `None` if nothing does.
fn take(queue: &mut Queue, shared: &Shared) -> Option<Batch> {
    let mut batch = Batch::default();
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
    let of_damaged = {
        let queue = shared.lock();
        batch.transactions.iter().any(|transaction| queue.damaged.contains_key(&transaction.pg))
    };
    if of_damaged {
        return one_by_one(shared, engine, batch);
    }
    match commit_some(shared, engine, &batch.transactions, batch.bytes) {
        Err(CommitError::Damaged(_)) => one_by_one(shared, engine, batch),
        outcome => Handout(batch.waiters.into_iter().map(|waiter| (waiter, outcome.clone())).collect()),
    }
}

/// One of them builds on a rotten block: finds out which, for the others are not to suffer.
fn one_by_one(shared: &Shared, engine: &dyn Engine, batch: Batch) -> Handout {
    let waiters = batch.transactions.iter().zip(batch.waiters).map(|(transaction, waiter)| {
        let known = shared.lock().damaged.get(&transaction.pg).cloned();
        let outcome = match known {
            Some(error) => Err(CommitError::Damaged(error)),
            None => commit_some(shared, engine, std::slice::from_ref(transaction), transaction.bytes()),
        };
        if let Err(CommitError::Damaged(error)) = &outcome {
            shared.lock().damaged.insert(transaction.pg, error.clone());
        }
        (waiter, outcome)
    });
    Handout(waiters.collect())
}

/// One engine commit. `Damaged` means that nothing was done, and does not poison.
fn commit_some(shared: &Shared, engine: &dyn Engine, transactions: &[Transaction], bytes: usize) -> Outcome {
    if let Some(error) = shared.lock().poisoned.clone() {
        return Err(CommitError::Poisoned(error));
    }
    // A panic in a back end is its failure, not ours: those who wait must hear of it.
    let result = catch_unwind(AssertUnwindSafe(|| engine.commit(transactions)))
        .unwrap_or_else(|_| Err(EngineError::Io("the storage engine panicked".to_owned())));
    match result {
        Ok(()) => {
            count(shared, transactions.len() as u64, bytes as u64);
            Ok(())
        }
        Err(error @ (EngineError::Corrupt { .. } | EngineError::Invalid(_))) => Err(CommitError::Damaged(error)),
        Err(error) => {
            tracing::error!(%error, transactions = transactions.len(), "commit failed: nothing more is written");
            shared.lock().poisoned = Some(error.clone());
            shared.room.notify_waiters();
            Err(CommitError::Failed(error))
        }
    }
}

fn count(shared: &Shared, transactions: u64, bytes: u64) {
    let counters = &shared.counters;
    counters.commits.fetch_add(1, Ordering::Relaxed);
    counters.transactions.fetch_add(transactions, Ordering::Relaxed);
    counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    counters.max_batch.fetch_max(transactions, Ordering::Relaxed);
}

fn end(shared: &Shared, engine: Arc<dyn Engine>) {
    drop(engine);
    shared.lock().ended = true;
    shared.room.notify_waiters();
}
