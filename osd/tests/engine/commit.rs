//! The group commit, over an engine that waits for a sign before it commits.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use pando_osd::engine::commit::{Limits, Stats};
use pando_osd::engine::memory::MemoryEngine;
use pando_osd::engine::{
    CommitError, Engine, EngineError, GroupCommit, ObjectHeader, ObjectKey, ScanPage, Transaction, Usage,
};
use pando_proto::PgId;
use tokio::time::{Instant, timeout};

use crate::store::{OTHER_PG, PG, object, put, transaction, write};

const DEADLINE: Duration = Duration::from_secs(20);

/// Lets commits through one by one.
#[derive(Default)]
struct Gate {
    state: Mutex<(u64, Vec<usize>)>,
    moved: Condvar,
}

impl Gate {
    fn allow(&self, commits: u64) {
        self.state.lock().unwrap().0 += commits;
        self.moved.notify_all();
    }

    fn sizes(&self) -> Vec<usize> {
        self.state.lock().unwrap().1.clone()
    }

    /// Waits until the engine was asked for so many commits.
    fn asked(&self, commits: usize) {
        let state = self.state.lock().unwrap();
        let (_state, late) =
            self.moved.wait_timeout_while(state, DEADLINE, |(_, asked)| asked.len() < commits).unwrap();
        assert!(!late.timed_out());
    }
}

struct Gated {
    inner: Arc<MemoryEngine>,
    gate: Arc<Gate>,
}

impl Engine for Gated {
    fn commit(&self, transactions: &[Transaction]) -> Result<(), EngineError> {
        let mut state = self.gate.state.lock().unwrap();
        state.1.push(transactions.len());
        self.gate.moved.notify_all();
        let (mut state, late) =
            self.gate.moved.wait_timeout_while(state, DEADLINE, |(allowed, _)| *allowed == 0).unwrap();
        assert!(!late.timed_out());
        state.0 -= 1;
        drop(state);
        self.inner.commit(transactions)
    }
    fn get(&self, pg: PgId, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.inner.get(pg, key)
    }
    fn scan(&self, pg: PgId, start: &[u8], end: &[u8], limit: usize, bytes: usize) -> Result<ScanPage, EngineError> {
        self.inner.scan(pg, start, end, limit, bytes)
    }
    fn header(&self, pg: PgId, object: ObjectKey) -> Result<Option<ObjectHeader>, EngineError> {
        self.inner.header(pg, object)
    }
    fn read(&self, pg: PgId, object: ObjectKey, offset: u64, length: u64) -> Result<Bytes, EngineError> {
        self.inner.read(pg, object, offset, length)
    }
    fn stored_bytes(&self, pg: PgId, object: ObjectKey) -> Result<u64, EngineError> {
        self.inner.stored_bytes(pg, object)
    }
    fn list_objects(
        &self,
        pg: PgId,
        after: Option<ObjectKey>,
        limit: usize,
    ) -> Result<Vec<(ObjectKey, ObjectHeader)>, EngineError> {
        self.inner.list_objects(pg, after, limit)
    }
    fn pgs(&self) -> Result<Vec<PgId>, EngineError> {
        self.inner.pgs()
    }
    fn usage(&self) -> Result<Usage, EngineError> {
        self.inner.usage()
    }
}

fn gated(limits: Limits) -> (GroupCommit, Arc<MemoryEngine>, Arc<Gate>) {
    let (inner, gate) = (Arc::new(MemoryEngine::new(1 << 20)), Arc::new(Gate::default()));
    let engine = Arc::new(Gated { inner: Arc::clone(&inner), gate: Arc::clone(&gate) });
    (GroupCommit::threaded(engine, limits).unwrap(), inner, gate)
}

fn numbered(number: u32) -> Transaction {
    transaction(vec![put(b"last", &number.to_be_bytes()), put(&number.to_be_bytes(), b"")])
}

#[tokio::test]
async fn what_waits_during_a_sync_shares_the_next() {
    let (commit, engine, gate) = gated(Limits::default());
    let first = commit.submit(numbered(0));
    gate.asked(1);
    let rest: Vec<_> = (1..=100).map(|number| commit.submit(numbered(number))).collect();
    assert_eq!(commit.waiting(), (100, 100 * 12));
    assert_eq!(engine.get(PG, b"last").unwrap(), None, "nothing is visible before its commit");
    gate.allow(2);
    timeout(DEADLINE, first).await.unwrap().unwrap();
    let outcomes = timeout(DEADLINE, join_all(rest)).await.unwrap();
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(gate.sizes(), [1, 100]);
    assert_eq!(engine.get(PG, b"last").unwrap().unwrap(), 100u32.to_be_bytes()[..], "in the order of submission");
    let stats = Stats { commits: 2, transactions: 101, bytes: 101 * 12, max_batch: 100 };
    assert_eq!(commit.stats(), stats);
    timeout(DEADLINE, commit.close()).await.unwrap();
    assert_eq!(timeout(DEADLINE, commit.submit(numbered(0))).await.unwrap(), Err(CommitError::Closed));
}

#[tokio::test]
async fn a_failed_commit_poisons_all_that_come_later() {
    let (commit, engine, gate) = gated(Limits::default());
    let failure = EngineError::Io("the disk went".to_owned());
    let fine = commit.submit(numbered(0));
    gate.allow(1);
    timeout(DEADLINE, fine).await.unwrap().unwrap();
    engine.fail_next_commit(failure.clone());
    let doomed = commit.submit(numbered(1));
    gate.asked(2);
    let queued = commit.submit(numbered(2));
    gate.allow(5);
    assert_eq!(timeout(DEADLINE, doomed).await.unwrap(), Err(CommitError::Failed(failure.clone())));
    assert_eq!(timeout(DEADLINE, queued).await.unwrap(), Err(CommitError::Poisoned(failure.clone())));
    let poisoned = Err(CommitError::Poisoned(failure.clone()));
    assert_eq!(timeout(DEADLINE, commit.submit(numbered(3))).await.unwrap(), poisoned);
    assert_eq!(commit.ready().await, poisoned);
    assert_eq!(commit.poisoned(), Some(failure));
    assert_eq!(engine.get(PG, b"last").unwrap().unwrap(), 0u32.to_be_bytes()[..], "nothing was written after it");
    timeout(DEADLINE, commit.close()).await.unwrap();
}

#[tokio::test]
async fn a_rotten_block_stops_its_pg_and_no_other() {
    let (commit, engine, gate) = gated(Limits::default());
    gate.allow(1);
    timeout(DEADLINE, commit.submit(transaction(vec![write(object(0), 0, &[1; 100])]))).await.unwrap().unwrap();
    assert!(engine.corrupt_block(PG, object(0), 0));
    let first = commit.submit(numbered(1));
    gate.asked(2);
    // These share a commit, which cannot be: the middle one would have to keep the rotten bytes around its own.
    let elsewhere = Transaction { pg: OTHER_PG, changes: vec![put(b"k", b"v")] };
    let batch = [
        commit.submit(numbered(2)),
        commit.submit(transaction(vec![write(object(0), 5, b"x"), put(b"torn", b"")])),
        commit.submit(elsewhere.clone()),
        commit.submit(numbered(3)),
    ];
    gate.allow(10);
    timeout(DEADLINE, first).await.unwrap().unwrap();
    let outcomes = timeout(DEADLINE, join_all(batch)).await.unwrap();
    let damaged =
        |outcome: &Result<(), CommitError>| matches!(outcome, Err(CommitError::Damaged(EngineError::Corrupt { .. })));
    assert!(outcomes[0].is_ok() && damaged(&outcomes[1]) && outcomes[2].is_ok() && damaged(&outcomes[3]));
    assert_eq!(engine.get(PG, b"torn").unwrap(), None);
    assert_eq!(engine.get(PG, b"last").unwrap().unwrap(), 2u32.to_be_bytes()[..], "nothing overtook what was refused");
    assert!(damaged(&timeout(DEADLINE, commit.submit(numbered(4))).await.unwrap()));
    timeout(DEADLINE, commit.submit(elsewhere)).await.unwrap().unwrap();
    // Repaired by the whole block.
    commit.heal(PG);
    timeout(DEADLINE, commit.submit(transaction(vec![write(object(0), 0, &[2; 100])]))).await.unwrap().unwrap();
    assert_eq!(engine.read(PG, object(0), 0, 100).unwrap(), [2; 100][..]);
    assert_eq!(commit.poisoned(), None);
}

#[tokio::test]
async fn an_invalid_transaction_harms_no_other() {
    let (commit, _, gate) = gated(Limits::default());
    gate.allow(10);
    let invalid = commit.submit(transaction(vec![put(&[0; 100_000], b"")]));
    assert!(matches!(timeout(DEADLINE, invalid).await.unwrap(), Err(CommitError::Invalid(_))));
    timeout(DEADLINE, commit.submit(numbered(1))).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_full_queue_holds_back_and_then_refuses() {
    let limits = Limits { queue_transactions: 2, batch_transactions: 3, ..Limits::default() };
    let (commit, _, gate) = gated(limits);
    let first = commit.submit(numbered(0));
    gate.asked(1);
    let waiting: Vec<_> = (1..=8).map(|number| commit.submit(numbered(number))).collect();
    assert_eq!(timeout(DEADLINE, commit.submit(numbered(9))).await.unwrap(), Err(CommitError::Busy));
    let ready = tokio::spawn({
        let commit = commit.clone();
        async move { commit.ready().await }
    });
    tokio::task::yield_now().await;
    assert!(!ready.is_finished());
    gate.allow(4);
    timeout(DEADLINE, ready).await.unwrap().unwrap().unwrap();
    timeout(DEADLINE, first).await.unwrap().unwrap();
    assert!(timeout(DEADLINE, join_all(waiting)).await.unwrap().iter().all(Result::is_ok));
    assert_eq!(gate.sizes(), [1, 3, 3, 2], "a batch is bounded");
    // R25: what was refused leaves no gap. Other groups go on.
    assert!(!commit.is_over_its_bounds());
    assert_eq!(timeout(DEADLINE, commit.submit(numbered(10))).await.unwrap(), Err(CommitError::Busy));
    let mut other = numbered(11);
    other.pg.index += 1;
    gate.allow(1);
    assert_eq!(timeout(DEADLINE, commit.submit(other)).await.unwrap(), Ok(()));
}

#[tokio::test]
async fn what_waits_at_the_end_is_still_committed() {
    let (commit, engine, gate) = gated(Limits::default());
    let first = commit.submit(numbered(0));
    gate.asked(1);
    let second = commit.submit(numbered(1));
    drop(commit);
    gate.allow(2);
    timeout(DEADLINE, async { (first.await.unwrap(), second.await.unwrap()) }).await.unwrap();
    assert_eq!(engine.get(PG, b"last").unwrap().unwrap(), 1u32.to_be_bytes()[..]);
}

#[tokio::test]
async fn a_back_end_that_panics_is_a_failed_commit() {
    let (inner, gate) = (Arc::new(MemoryEngine::new(1 << 20)), Arc::new(Gate::default()));
    let poison = Arc::clone(&gate);
    // Poisons the mutex inside the engine, so that its next commit panics.
    let _ = std::thread::spawn(move || {
        let _held = poison.state.lock().unwrap();
        panic!("on purpose");
    })
    .join();
    let commit = GroupCommit::threaded(Arc::new(Gated { inner, gate }), Limits::default()).unwrap();
    let outcome = timeout(DEADLINE, commit.submit(numbered(0))).await.unwrap();
    assert!(matches!(outcome, Err(CommitError::Failed(EngineError::Io(_)))), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn inline_commits_take_simulated_time_and_share_it() {
    let engine = Arc::new(MemoryEngine::new(1 << 20));
    let commit = GroupCommit::inline(Arc::clone(&engine) as Arc<dyn Engine>, Duration::from_millis(10));
    let start = Instant::now();
    let first = commit.submit(numbered(0));
    tokio::time::sleep(Duration::from_millis(5)).await;
    let rest: Vec<_> = (1..=5).map(|number| commit.submit(numbered(number))).collect();
    assert_eq!(engine.get(PG, b"last").unwrap(), None);
    first.await.unwrap();
    assert_eq!(start.elapsed().as_millis(), 10);
    join_all(rest).await.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(start.elapsed().as_millis(), 20);
    assert_eq!((commit.stats().commits, commit.stats().max_batch), (2, 5));
    commit.close().await;
    assert_eq!(commit.submit(numbered(6)).await, Err(CommitError::Closed));
    assert_eq!(Arc::strong_count(&engine), 1, "the engine is let go of");
}
