//! Group commit: everything that arrives while one sync runs shares the next.
//!
//! Neither engine coalesces syncs by itself, so one place does: transactions
//! queue in the order of their submission, one commit at a time takes all that
//! wait, and whoever submitted learns the outcome when it is durable. Outcomes
//! cross threads once per commit, not once per transaction.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use pando_proto::PgId;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{Engine, EngineError, Transaction};

mod run;

/// Why a transaction is not durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The commit it was part of failed; whether it is on disk shows when the engine is opened again.
    #[error("the commit failed: {0}")]
    Failed(EngineError),
    /// An earlier commit failed: nothing more is written until the engine is opened again.
    #[error("refused, for an earlier commit failed: {0}")]
    Poisoned(EngineError),
    /// It can never be committed; nothing was done, and others are not affected.
    #[error(transparent)]
    Invalid(EngineError),
    /// It, or an earlier one of its PG, builds on a stored block that rotted; nothing was done. Lest a later change of the
    /// PG overtakes a lost one, all of the PG are refused until [`GroupCommit::heal`]. Other PGs are not affected.
    #[error("refused, for this copy of the pg is damaged: {0}")]
    Damaged(EngineError),
    /// Too much waited already; nothing was done. [`GroupCommit::ready`] waits for room. Lest a later change of the PG
    /// overtakes it, none of the PG is taken any more.
    #[error("too many transactions wait for the disk")]
    Busy,
    /// The group commit was closed; nothing was done.
    #[error("the osd is stopping")]
    Closed,
}

/// Bounds of the queue.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Transactions of one commit.
    pub batch_transactions: usize,
    /// Bytes of one commit (a single larger transaction is its own).
    pub batch_bytes: usize,
    /// Waiting transactions from which on [`GroupCommit::ready`] waits.
    pub queue_transactions: usize,
    /// Waiting bytes from which on [`GroupCommit::ready`] waits.
    pub queue_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { batch_transactions: 4096, batch_bytes: 32 << 20, queue_transactions: 8192, queue_bytes: 64 << 20 }
    }
}

/// `submit` refuses only from this many times the queue's bounds on, so that those who passed `ready` together all fit.
const OVERCOMMIT: usize = 4;

/// What was committed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits, that is syncs.
    pub commits: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Bytes of keys and data in them.
    pub bytes: u64,
    /// Most transactions of one commit.
    pub max_batch: u64,
}

#[derive(Debug, Default)]
struct Counters {
    commits: AtomicU64,
    transactions: AtomicU64,
    bytes: AtomicU64,
    max_batch: AtomicU64,
}

type Outcome = Result<(), CommitError>;

struct Waiting {
    transaction: Transaction,
    bytes: usize,
    done: oneshot::Sender<Outcome>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    poisoned: Option<EngineError>,
    damaged: BTreeMap<PgId, EngineError>,
    /// Of which one was refused for want of room: none that was submitted after it may go first.
    overrun: BTreeSet<PgId>,
    closed: bool,
    /// No commit will come any more and the engine is let go of.
    ended: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    limits: Limits,
    counters: Counters,
    /// Work for the thread.
    work: Condvar,
    /// Work for the task.
    work_inline: Notify,
    /// Room in the queue, or its end.
    room: Notify,
}

impl Shared {
    fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::default(),
            limits,
            counters: Counters::default(),
            work: Condvar::new(),
            work_inline: Notify::new(),
            room: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing that can panic runs under the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands transactions to an engine, many at a time. Clones share one queue. When the last clone is gone, what waits is
/// still committed.
#[derive(Clone)]
pub struct GroupCommit {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    inline: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

impl Handle {
    fn close(&self) {
        self.shared.lock().closed = true;
        self.wake();
    }

    fn wake(&self) {
        if self.inline { self.shared.work_inline.notify_one() } else { self.shared.work.notify_one() }
    }
}

impl GroupCommit {
    /// Commits on a thread of its own. To be called within a tokio runtime, where outcomes are handed out.
    ///
    /// # Errors
    /// [`EngineError::Io`] if the thread cannot be started.
    pub fn threaded(engine: Arc<dyn Engine>, limits: Limits) -> Result<Self, EngineError> {
        let shared = Shared::new(limits);
        let (outcomes, to_hand_out) = mpsc::unbounded_channel();
        tokio::spawn(run::hand_out(to_hand_out));
        let thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("pando-commit".to_owned())
            .spawn(move || run::thread(&thread, engine, &outcomes))
            .map_err(|e| EngineError::Io(format!("cannot start the commit thread: {e}")))?;
        Ok(Self { handle: Arc::new(Handle { shared, inline: false }) })
    }

    /// Commits on a task of the current runtime, each after a sleep of `sync_latency` on tokio's clock: for simulation.
    /// A crash (the runtime goes) during the sleep loses the batch, as a crash during a sync may.
    pub fn inline(engine: Arc<dyn Engine>, sync_latency: Duration) -> Self {
        let shared = Shared::new(Limits::default());
        tokio::spawn(run::task(Arc::clone(&shared), engine, sync_latency));
        Self { handle: Arc::new(Handle { shared, inline: true }) }
    }

    /// Queues a transaction behind all submitted before, at the time of the call. The future resolves when it is
    /// durable; it may be dropped without harm to the transaction.
    pub fn submit(&self, transaction: Transaction) -> Submitted {
        let (done, outcome) = oneshot::channel();
        match transaction.check() {
            Err(error) => drop(done.send(Err(CommitError::Invalid(error)))),
            Ok(()) => self.enqueue(transaction, done),
        }
        Submitted(outcome)
    }

    fn enqueue(&self, transaction: Transaction, done: oneshot::Sender<Outcome>) {
        let shared = &self.handle.shared;
        let bytes = transaction.bytes();
        let mut queue = shared.lock();
        if let Err(refused) = admit(&mut queue, &shared.limits, transaction.pg) {
            drop(queue);
            drop(done.send(Err(refused)));
            return;
        }
        let first = queue.waiting.is_empty();
        queue.bytes += bytes;
        queue.waiting.push_back(Waiting { transaction, bytes, done });
        drop(queue);
        if first {
            self.handle.wake();
        }
    }

    /// Waits until the queue is below its bounds: back pressure, to be asked for before `submit`.
    ///
    /// # Errors
    /// [`CommitError::Poisoned`] and [`CommitError::Closed`]: no use in waiting.
    pub async fn ready(&self) -> Result<(), CommitError> {
        let shared = &self.handle.shared;
        loop {
            let room = shared.room.notified();
            tokio::pin!(room);
            // Enabled before the look, so that no wakeup falls between.
            room.as_mut().enable();
            {
                let queue = shared.lock();
                refuse(&queue)?;
                let limits = &shared.limits;
                if queue.waiting.len() < limits.queue_transactions && queue.bytes < limits.queue_bytes {
                    return Ok(());
                }
            }
            room.await;
        }
    }

    /// Takes no more transactions, commits those that wait, and resolves when the engine is let go of.
    pub async fn close(&self) {
        self.handle.close();
        loop {
            let ended = self.handle.shared.room.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.handle.shared.lock().ended {
                return;
            }
            ended.await;
        }
    }

    /// Takes transactions of a damaged PG again: its caller has given up what was refused, and means to repair it.
    pub fn heal(&self, pg: PgId) {
        self.handle.shared.lock().damaged.remove(&pg);
    }

    /// Why nothing is written any more, if so.
    pub fn poisoned(&self) -> Option<EngineError> {
        self.handle.shared.lock().poisoned.clone()
    }

    /// Whether [`ready`](Self::ready) would wait.
    pub fn is_over_its_bounds(&self) -> bool {
        let (queue, limits) = (self.handle.shared.lock(), &self.handle.shared.limits);
        queue.waiting.len() >= limits.queue_transactions || queue.bytes >= limits.queue_bytes
    }

    /// Transactions and bytes that wait for the next commit.
    pub fn waiting(&self) -> (usize, usize) {
        let queue = self.handle.shared.lock();
        (queue.waiting.len(), queue.bytes)
    }

    /// What was committed so far.
    pub fn stats(&self) -> Stats {
        self.stats_reader().read()
    }

    /// Tells the same without keeping the group commit open.
    pub fn stats_reader(&self) -> StatsReader {
        StatsReader(Arc::clone(&self.handle.shared))
    }
}

/// Reads what a [`GroupCommit`] has committed, also after its end.
#[derive(Clone)]
pub struct StatsReader(Arc<Shared>);

impl StatsReader {
    /// What was committed so far.
    pub fn read(&self) -> Stats {
        let counters = &self.0.counters;
        Stats {
            commits: counters.commits.load(Ordering::Relaxed),
            transactions: counters.transactions.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            max_batch: counters.max_batch.load(Ordering::Relaxed),
        }
    }
}

fn refuse(queue: &Queue) -> Result<(), CommitError> {
    if let Some(error) = &queue.poisoned {
        return Err(CommitError::Poisoned(error.clone()));
    }
    if queue.closed { Err(CommitError::Closed) } else { Ok(()) }
}

fn admit(queue: &mut Queue, limits: &Limits, pg: PgId) -> Result<(), CommitError> {
    refuse(queue)?;
    if let Some(error) = queue.damaged.get(&pg) {
        return Err(CommitError::Damaged(error.clone()));
    }
    let full = queue.waiting.len() >= limits.queue_transactions.saturating_mul(OVERCOMMIT)
        || queue.bytes >= limits.queue_bytes.saturating_mul(OVERCOMMIT);
    if full {
        queue.overrun.insert(pg);
    }
    if queue.overrun.contains(&pg) { Err(CommitError::Busy) } else { Ok(()) }
}

/// Resolves when a submitted transaction is durable, or to why it is not.
#[derive(Debug)]
#[must_use = "the outcome tells whether it is durable"]
pub struct Submitted(oneshot::Receiver<Outcome>);

impl Future for Submitted {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        Pin::new(&mut self.0).poll(cx).map(|received| {
            // A sender that went without a word went with its runtime.
            let lost =
                || CommitError::Failed(EngineError::Io("its outcome is not known, for its runtime ended".into()));
            received.unwrap_or_else(|_| Err(lost()))
        })
    }
}
