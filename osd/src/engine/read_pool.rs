//! Where reads run: on a few threads, because they may wait for the disk, or in
//! place, in simulation.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, oneshot};

use super::{Engine, EngineError};

/// Reads that wait or run, over all threads; more wait their turn in order.
const MAX_QUEUED: usize = 1024;

type Job = Box<dyn FnOnce(&dyn Engine) + Send>;

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
    threads: usize,
}

struct Shared {
    jobs: Mutex<Jobs>,
    work: Condvar,
    room: Arc<Semaphore>,
    ended: tokio::sync::Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        // Nothing that can panic runs under the lock.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs closures on an engine. Clones share the threads, which end when the last clone is gone.
#[derive(Clone)]
pub struct ReadPool(Arc<Kind>);

enum Kind {
    Threads(Arc<Shared>),
    Inline(Arc<dyn Engine>),
}

impl Drop for Kind {
    fn drop(&mut self) {
        if let Self::Threads(shared) = self {
            shared.lock().closed = true;
            shared.work.notify_all();
        }
    }
}

impl ReadPool {
    /// `threads` threads, at least one.
    ///
    /// # Errors
    /// [`EngineError::Io`] if a thread cannot be started.
    pub fn threaded(engine: &Arc<dyn Engine>, threads: usize) -> Result<Self, EngineError> {
        let shared = Arc::new(Shared {
            jobs: Mutex::default(),
            work: Condvar::new(),
            room: Arc::new(Semaphore::new(MAX_QUEUED)),
            ended: tokio::sync::Notify::new(),
        });
        let pool = Self(Arc::new(Kind::Threads(Arc::clone(&shared))));
        for number in 0..threads.max(1) {
            let (shared, engine) = (Arc::clone(&shared), Arc::clone(engine));
            shared.lock().threads += 1;
            let of_thread = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("pando-read-{number}"))
                .spawn(move || serve(&of_thread, engine))
                .map_err(|e| {
                shared.lock().threads -= 1;
                EngineError::Io(format!("cannot start a read thread: {e}"))
            })?;
        }
        Ok(pool)
    }

    /// Runs each closure where it is asked for: no threads (simulation).
    pub fn inline(engine: Arc<dyn Engine>) -> Self {
        Self(Arc::new(Kind::Inline(engine)))
    }

    /// Runs `read` and returns its outcome. Dropping the future does not stop a read that waits or runs.
    ///
    /// # Errors
    /// Those of `read`; [`EngineError::Io`] if it panicked or the pool is closed.
    pub async fn run<T, F>(&self, read: F) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: FnOnce(&dyn Engine) -> Result<T, EngineError> + Send + 'static,
    {
        let shared = match &*self.0 {
            Kind::Inline(engine) => return read(&**engine),
            Kind::Threads(shared) => shared,
        };
        let closed = || EngineError::Io("the read pool is closed".to_owned());
        let place = Arc::clone(&shared.room).acquire_owned().await.map_err(|_| closed())?;
        let (done, outcome) = oneshot::channel();
        let job: Job = Box::new(move |engine| {
            // Kept by the job, not by the caller, who may go first.
            let _place = place;
            let _ = done.send(read(engine));
        });
        {
            let mut jobs = shared.lock();
            if jobs.closed {
                return Err(closed());
            }
            jobs.waiting.push_back(job);
        }
        shared.work.notify_one();
        outcome.await.map_err(|_| EngineError::Io("the storage engine panicked in a read".to_owned()))?
    }

    /// Runs what waits, then ends the threads; resolves when they let go of the engine.
    pub async fn close(&self) {
        let Kind::Threads(shared) = &*self.0 else { return };
        shared.lock().closed = true;
        shared.work.notify_all();
        loop {
            let ended = shared.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if shared.lock().threads == 0 {
                return;
            }
            ended.await;
        }
    }
}

fn serve(shared: &Shared, engine: Arc<dyn Engine>) {
    loop {
        let mut jobs = shared.lock();
        while jobs.waiting.is_empty() && !jobs.closed {
            jobs = shared.work.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(job) = jobs.waiting.pop_front() else { break };
        drop(jobs);
        // The sender inside goes with the panic, so that the caller hears of it.
        let _ = catch_unwind(AssertUnwindSafe(|| job(&*engine)));
    }
    drop(engine);
    shared.lock().threads -= 1;
    shared.ended.notify_waiters();
}
