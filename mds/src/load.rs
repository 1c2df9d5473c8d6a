//! How busy the rank and its subtrees are, for the balancer: told with each heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pando_proto::mon::{HotDirectory, RankLoad, SubtreeLoad};
use pando_proto::{ClientId, Ino, SubtreeId};
use pando_rpc::Clock;

/// Weight of the newest figure in what is told.
const NEWEST: f64 = 0.5;
/// Where time is not real no turn takes any; an operation then counts as so much work, for the balancer to see.
const NOMINAL: Duration = Duration::from_millis(10);
/// Shorter spans say nothing.
const MIN_SPAN: Duration = Duration::from_millis(100);
/// Awaited sessions told.
const MAX_AWAITED: usize = 256;
/// Hot directories told of a subtree.
const MAX_HOT: usize = 64;

/// What a subtree counts. Written by its actor, read with each heartbeat.
#[derive(Default)]
pub(crate) struct Gauge {
    operations: AtomicU64,
    busy_nanos: AtomicU64,
    inodes: AtomicU64,
    heat: Mutex<BTreeMap<Ino, (Bytes, f64)>>,
    /// Sessions that have not said yet what they have open.
    awaited: Mutex<BTreeSet<ClientId>>,
    /// What an operation counts as at least.
    nominal: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gauge {
    /// A turn has ended.
    pub fn turn(&self, operations: u64, took: Duration, inodes: u64) {
        let took = took.max(self.nominal.saturating_mul(u32::try_from(operations).unwrap_or(u32::MAX)));
        self.operations.fetch_add(operations, Ordering::Relaxed);
        self.busy_nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(0), Ordering::Relaxed);
        self.inodes.store(inodes, Ordering::Relaxed);
    }

    fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy_nanos.load(Ordering::Relaxed))
    }

    /// Whose word is awaited since the subtree was opened (R19).
    pub fn awaits(&self, sessions: impl Iterator<Item = ClientId>) {
        *lock(&self.awaited) = sessions.take(MAX_AWAITED).collect();
    }

    /// Where the operations were since the last call.
    pub fn warm(&self, directories: Vec<(Ino, Bytes, f64)>) {
        let mut heat = lock(&self.heat);
        for (ino, name, operations) in directories {
            let entry = heat.entry(ino).or_insert((name, 0.0));
            entry.1 += operations;
        }
    }
}

/// What is told of a subtree.
#[derive(Default)]
struct Told {
    operations: u64,
    busy_nanos: u64,
    ops_per_s: f64,
    busy: f64,
    hot: BTreeMap<Ino, (Bytes, f64)>,
}

#[derive(Default)]
struct State {
    gauges: BTreeMap<SubtreeId, Arc<Gauge>>,
    told: BTreeMap<SubtreeId, Told>,
    at: Duration,
    busy: Duration,
    busy_share: f64,
    /// Of subtrees that are served here no more.
    operations_before: u64,
}

/// All gauges of a rank.
pub struct Loads {
    clock: Arc<dyn Clock>,
    /// The runtime of the rank, whose busy time is its own; none where time is not real.
    runtime: Option<tokio::runtime::Handle>,
    state: Mutex<State>,
}

fn blend(old: f64, new: f64) -> f64 {
    old + (new - old) * NEWEST
}

fn permille(share: f64) -> u32 {
    (share * 1000.0).clamp(0.0, 1000.0) as u32
}

impl Loads {
    /// Nothing is counted yet. `runtime` is the rank's own.
    pub fn new(clock: Arc<dyn Clock>, runtime: Option<tokio::runtime::Handle>) -> Self {
        Self { clock, runtime, state: Mutex::default() }
    }

    /// The gauge of a subtree that is served from now on.
    pub(crate) fn gauge(&self, subtree: SubtreeId) -> Arc<Gauge> {
        let nominal = if self.runtime.is_some() { Duration::ZERO } else { NOMINAL };
        let gauge = || Arc::new(Gauge { nominal, ..Gauge::default() });
        Arc::clone(lock(&self.state).gauges.entry(subtree).or_insert_with(gauge))
    }

    /// It is served here no more.
    pub(crate) fn forget(&self, subtree: SubtreeId) {
        let mut state = lock(&self.state);
        if let Some(gauge) = state.gauges.remove(&subtree) {
            state.operations_before += gauge.operations.load(Ordering::Relaxed);
        }
        state.told.remove(&subtree);
    }

    /// The figures since the last time they were asked for, smoothed.
    pub fn report(&self) -> RankLoad {
        let (now, busy) = (self.clock.boottime(), self.busy());
        let mut state = lock(&self.state);
        let span = now.saturating_sub(state.at);
        if span >= MIN_SPAN {
            state.measure(span, busy);
            state.at = now;
        }
        let State { gauges, told, busy_share, operations_before, .. } = &*state;
        let operations = gauges.values().map(|gauge| gauge.operations.load(Ordering::Relaxed)).sum::<u64>();
        let mut awaited = BTreeSet::new();
        gauges.values().for_each(|gauge| awaited.extend(lock(&gauge.awaited).iter().map(|client| client.0)));
        RankLoad {
            busy_permille: permille(*busy_share),
            ops_per_s: told.values().map(|told| told.ops_per_s).sum(),
            subtrees: told.iter().map(|(id, told)| told.to_proto(*id, gauges.get(id))).collect(),
            operations: operations_before + operations,
            cpu_millis: if self.runtime.is_some() { cpu_millis() } else { 0 },
            awaited: awaited.into_iter().take(MAX_AWAITED).collect(),
        }
    }

    fn busy(&self) -> Duration {
        match &self.runtime {
            Some(runtime) => runtime.metrics().worker_total_busy_duration(0),
            None => lock(&self.state).gauges.values().map(|gauge| gauge.busy()).sum(),
        }
    }
}

impl State {
    fn measure(&mut self, span: Duration, busy: Duration) {
        let seconds = span.as_secs_f64();
        self.busy_share = blend(self.busy_share, busy.saturating_sub(self.busy).as_secs_f64() / seconds);
        self.busy = busy;
        for (id, gauge) in &self.gauges {
            let told = self.told.entry(*id).or_default();
            let operations = gauge.operations.load(Ordering::Relaxed);
            let nanos = gauge.busy_nanos.load(Ordering::Relaxed);
            told.ops_per_s = blend(told.ops_per_s, (operations - told.operations) as f64 / seconds);
            told.busy = blend(told.busy, Duration::from_nanos(nanos - told.busy_nanos).as_secs_f64() / seconds);
            (told.operations, told.busy_nanos) = (operations, nanos);
            let heat = std::mem::take(&mut *lock(&gauge.heat));
            told.cool();
            for (ino, (name, count)) in heat {
                let entry = told.hot.entry(ino).or_insert((name, 0.0));
                entry.1 += count / seconds * NEWEST;
            }
        }
    }
}

impl Told {
    fn cool(&mut self) {
        self.hot.retain(|_, (_, rate)| {
            *rate *= 1.0 - NEWEST;
            *rate > 0.5
        });
    }

    fn to_proto(&self, id: SubtreeId, gauge: Option<&Arc<Gauge>>) -> SubtreeLoad {
        let mut hot: Vec<HotDirectory> = self
            .hot
            .iter()
            .map(|(ino, (name, rate))| HotDirectory { ino: ino.0, name: name.clone(), ops_per_s: *rate })
            .collect();
        hot.sort_by(|one, other| other.ops_per_s.total_cmp(&one.ops_per_s));
        hot.truncate(MAX_HOT);
        SubtreeLoad {
            subtree: id.0,
            ops_per_s: self.ops_per_s,
            busy_permille: permille(self.busy),
            cached_inodes: gauge.map_or(0, |gauge| gauge.inodes.load(Ordering::Relaxed)),
            hot,
        }
    }
}

/// CPU time of this thread, which is the rank (proc(5), `schedstat`: nanoseconds on a CPU come first); 0 where that is
/// not known.
fn cpu_millis() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|field| field.parse::<u64>().ok());
    nanos.unwrap_or(0) / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_rpc::SystemClock;

    #[test]
    fn what_is_told_follows_what_is_counted() {
        let loads = Loads::new(Arc::new(SystemClock), None);
        let (one, other) = (loads.gauge(SubtreeId(1)), loads.gauge(SubtreeId(2)));
        one.turn(1000, Duration::from_millis(5), 7);
        one.warm(vec![(Ino(20), Bytes::from_static(b"hot"), 800.0), (Ino(21), Bytes::from_static(b"warm"), 100.0)]);
        other.turn(10, Duration::from_millis(1), 1);
        let load = loads.report();
        assert_eq!(load.operations, 1010);
        assert_eq!(load.subtrees.len(), 2);
        assert!(load.subtrees[0].ops_per_s > load.subtrees[1].ops_per_s);
        assert_eq!(load.subtrees[0].cached_inodes, 7);
        assert_eq!(load.subtrees[0].hot.first().map(|hot| hot.ino), Some(20));
        one.awaits([7, 8].map(ClientId).into_iter());
        other.awaits([8, 9].map(ClientId).into_iter());
        assert_eq!(loads.report().awaited, [7, 8, 9]);
        one.awaits(std::iter::empty());
        assert_eq!(loads.report().awaited, [8, 9]);
        loads.forget(SubtreeId(1));
        let load = loads.report();
        assert_eq!((load.operations, load.subtrees.len()), (1010, 1), "what was done stays counted");
    }
}
