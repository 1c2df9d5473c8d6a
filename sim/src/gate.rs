//! A host as the simulation holds it from outside: it can be frozen, its connections broken, its clocks set.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pando_rpc::Clock;
use tokio::time::Instant;

/// The handle of one host; it outlives the host's crashes.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<State>);

#[derive(Debug, Default)]
struct State {
    frozen: AtomicBool,
    /// Who lets the host run: to be woken when it is frozen.
    stopping: Mutex<Option<Waker>>,
    /// Its connections.
    places: Mutex<Vec<Weak<Place>>>,
    /// Connections that were ever made.
    made: AtomicU64,
    /// The host stops before this many more writes; 0: it does not.
    fuse: AtomicU64,
    wall_jump_nanos: AtomicI64,
    drift_ppm: AtomicI64,
}

/// Connections that are kept from being read at once: one in so many.
const KEPT_ONE_IN: u64 = 3;

/// A connection.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// Which of the host's.
    number: u64,
    /// The host at its other end.
    peer: String,
    /// What arrives by it is not read.
    kept: AtomicBool,
    broken: AtomicBool,
    wakers: Mutex<[Option<Waker>; 2]>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    /// Whether it was broken. Remembers whom to wake when that changes; one waker for each direction.
    pub fn poll_broken(&self, direction: usize, cx: &Context<'_>) -> bool {
        lock(&self.wakers)[direction] = Some(cx.waker().clone());
        self.broken.load(Ordering::Relaxed)
    }

    /// Whether what arrives waits. To be asked after [`poll_broken`](Self::poll_broken), which remembers whom to wake.
    pub fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        for waker in lock(&self.wakers).iter_mut().filter_map(Option::take) {
            waker.wake();
        }
    }
}

impl Gate {
    /// A gate whose boottime runs fast or slow by so many millionths.
    pub fn new(drift_ppm: i64) -> Self {
        let gate = Self::default();
        gate.0.drift_ppm.store(drift_ppm, Ordering::Relaxed);
        gate
    }

    /// Stops what runs behind it, as SIGSTOP does.
    pub fn freeze(&self) {
        self.0.frozen.store(true, Ordering::Relaxed);
        if let Some(waker) = lock(&self.0.stopping).take() {
            waker.wake();
        }
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.0.frozen.store(false, Ordering::Relaxed);
        self.each(|place| place.wake());
    }

    /// Breaks all connections, whatever is on its way in them.
    pub fn reset(&self) {
        self.each(|place| {
            place.broken.store(true, Ordering::Relaxed);
            place.wake();
        });
    }

    /// What arrives by some of the connections that there are now waits unread, while others work, also later ones of the
    /// same two hosts: what is sent again overtakes it.
    pub fn keep(&self, which: u64) {
        let is_one = |number: u64| number % KEPT_ONE_IN == which % KEPT_ONE_IN;
        self.each(|place| place.kept.store(is_one(place.number), Ordering::Relaxed));
    }

    /// The same of all connections that there are now to a host.
    pub fn keep_from(&self, peer: &str) {
        self.each(|place| {
            place.kept.fetch_or(place.peer == peer, Ordering::Relaxed);
        });
    }

    /// It is read now, also where the other side has given up.
    pub fn let_go(&self) {
        self.each(|place| {
            place.kept.store(false, Ordering::Relaxed);
            place.wake();
        });
    }

    /// The host stops, frozen, instead of its `writes`th write from now on. 0 takes it back.
    pub(crate) fn light_fuse(&self, writes: u64) {
        self.0.fuse.store(writes, Ordering::Relaxed);
    }

    /// The host is about to write. False: it has stopped.
    pub(crate) fn may_write(&self) -> bool {
        let left = self.0.fuse.load(Ordering::Relaxed);
        self.0.fuse.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 1 {
            self.freeze();
        }
        left != 1
    }

    /// Sets the wall clock by so much; boottime knows nothing of it.
    pub fn jump(&self, nanos: i64) {
        self.0.wall_jump_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.0.frozen.load(Ordering::Relaxed)
    }

    /// Room for a connection of the host to another one.
    pub(crate) fn connection(&self, peer: String) -> Arc<Place> {
        let number = self.0.made.fetch_add(1, Ordering::Relaxed);
        let place = Arc::new(Place { number, peer, ..Place::default() });
        let mut places = lock(&self.0.places);
        places.retain(|place| place.strong_count() > 0);
        places.push(Arc::downgrade(&place));
        place
    }

    fn each(&self, what: impl Fn(&Place)) {
        let places: Vec<_> = lock(&self.0.places).iter().filter_map(Weak::upgrade).collect();
        places.iter().for_each(|place| what(place));
    }

    /// Ends when the host is frozen.
    pub(crate) async fn frozen(&self) {
        poll_fn(|cx| {
            *lock(&self.0.stopping) = Some(cx.waker().clone());
            if self.is_frozen() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// The clocks of a host.
#[derive(Debug)]
pub(crate) struct SimClock {
    gate: Gate,
    start: Instant,
    wall_start_nanos: i64,
}

impl SimClock {
    /// To be made in a process of the host.
    pub fn new(gate: Gate, wall_start_nanos: i64) -> Self {
        Self { gate, start: Instant::now(), wall_start_nanos }
    }

    fn elapsed_nanos(&self) -> i64 {
        let nanos = i64::try_from(self.start.elapsed().as_nanos()).unwrap_or(i64::MAX);
        nanos + nanos / 1_000_000 * self.gate.0.drift_ppm.load(Ordering::Relaxed)
    }
}

impl Clock for SimClock {
    fn boottime(&self) -> Duration {
        // One second in, so that no lease compares with zero.
        Duration::from_secs(1) + Duration::from_nanos(self.elapsed_nanos().unsigned_abs())
    }

    fn wall_nanos(&self) -> i64 {
        self.wall_start_nanos + self.elapsed_nanos() + self.gate.0.wall_jump_nanos.load(Ordering::Relaxed)
    }
}
