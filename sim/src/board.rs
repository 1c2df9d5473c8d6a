//! What the hosts of a run share behind the network's back: disks that outlive crashes, orders to the one who injects
//! faults, and what is to be checked at the end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pando_osd::engine::Engine;
use pando_osd::engine::memory::MemoryEngine;

use crate::disk::SimDisk;
use crate::faults::Window;
use crate::gate::Gate;
use crate::history::Event;
use crate::load::Tally;

const ENGINE_BYTES: u64 = 1 << 30;
/// Between two looks at the board.
const LOOK: Duration = Duration::from_millis(20);
/// Clocks run at most so much fast or slow, in millionths: two of them then differ by less than the 5 % that leases
/// allow for (R13).
const MOST_DRIFT_PPM: i64 = 20_000;

/// See the module's text.
pub(crate) struct Board {
    pub mon_disks: Vec<SimDisk>,
    pub engines: Vec<Arc<dyn Engine>>,
    gates: BTreeMap<String, Gate>,
    boots: AtomicU64,
    moments: AtomicU64,
    orders: Mutex<Vec<(Duration, Window)>>,
    /// Tasks that are not done with their steps.
    working: AtomicU64,
    /// Clients that have not yet compared their tree with their model.
    unchecked: AtomicU64,
    healed: AtomicBool,
    /// Requests of ranks arrive twice at times, as this seed has it.
    pub repeats: Option<u64>,
    /// What happens to a host that is to stop at one of its next writes, and then.
    fuse: Mutex<Option<(String, Window)>>,
    words: Mutex<Vec<String>>,
    pub tallies: Mutex<BTreeMap<String, Tally>>,
    /// Of each hot directory.
    pub histories: Mutex<BTreeMap<String, Vec<Event>>>,
    /// Files that have to be there at the end, by path.
    pub files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Histories for which no order was found, and which were not refuted either.
    pub undecided: AtomicU64,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    /// `workers` do steps, `checkers` of them have a model.
    pub fn new(seed: u64, mons: u64, osds: u64, hosts: &[String], workers: u64, checkers: u64) -> Self {
        let drift = |at: usize| {
            let spread = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32 * 7) >> 20;
            (spread % (2 * MOST_DRIFT_PPM as u64 + 1)) as i64 - MOST_DRIFT_PPM
        };
        Self {
            mon_disks: (0..mons).map(|mon| SimDisk::new(seed.wrapping_add(mon))).collect(),
            engines: (0..osds).map(|_| Arc::new(MemoryEngine::new(ENGINE_BYTES)) as Arc<dyn Engine>).collect(),
            gates: hosts.iter().enumerate().map(|(at, host)| (host.clone(), Gate::new(drift(at)))).collect(),
            boots: AtomicU64::new(seed << 16),
            moments: AtomicU64::new(0),
            orders: Mutex::default(),
            working: AtomicU64::new(workers),
            unchecked: AtomicU64::new(checkers),
            healed: AtomicBool::new(false),
            repeats: None,
            fuse: Mutex::default(),
            words: Mutex::default(),
            tallies: Mutex::default(),
            histories: Mutex::default(),
            files: Mutex::default(),
            undecided: AtomicU64::new(0),
        }
    }

    pub fn gate(&self, host: &str) -> Gate {
        self.gates.get(host).cloned().unwrap_or_default()
    }

    pub fn power_cut(&self, host: &str) {
        let mon = host.strip_prefix("mon-").and_then(|number| number.parse::<usize>().ok());
        if let Some(disk) = mon.and_then(|mon| self.mon_disks.get(mon - 1)) {
            disk.power_cut();
        }
    }

    /// A boot id for a process that starts.
    pub fn boot(&self) -> u64 {
        self.boots.fetch_add(1, Ordering::Relaxed)
    }

    /// A number above all that were given: what happens in the simulation happens in one order.
    pub fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::Relaxed)
    }

    /// A fault that begins so much later.
    pub fn order(&self, delay: Duration, window: Window) {
        lock(&self.orders).push((delay, window));
    }

    pub fn take_orders(&self) -> Vec<(Duration, Window)> {
        std::mem::take(&mut *lock(&self.orders))
    }

    /// When the host is about to write for the `writes`th time from now on, this happens to it instead.
    pub fn light_fuse(&self, host: &str, writes: u64, window: Window) {
        *lock(&self.fuse) = Some((host.to_owned(), window));
        self.gate(host).light_fuse(writes);
    }

    /// No longer. Whether it has happened.
    pub fn put_out_fuse(&self) -> bool {
        let mut fuse = lock(&self.fuse);
        let Some((host, _)) = fuse.as_ref() else { return true };
        let gate = self.gate(host);
        gate.light_fuse(0);
        if gate.is_frozen() {
            return true;
        }
        *fuse = None;
        false
    }

    /// What is to happen now, as the host has come so far.
    pub fn burnt(&self) -> Option<Window> {
        let mut fuse = lock(&self.fuse);
        let is_burnt = fuse.as_ref().is_some_and(|(host, _)| self.gate(host).is_frozen());
        if is_burnt { fuse.take().map(|(_, window)| window) } else { None }
    }

    /// One of the workers has done its steps.
    pub fn worked(&self) {
        self.working.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn working(&self) -> u64 {
        self.working.load(Ordering::Relaxed)
    }

    pub fn checked(&self) {
        self.unchecked.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
    }

    pub fn is_healed(&self) -> bool {
        self.healed.load(Ordering::Relaxed)
    }

    /// Ends when all faults are over.
    pub async fn healed(&self) {
        while !self.is_healed() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends when every client has compared its tree with its model.
    pub async fn all_checked(&self) {
        while !self.is_healed() || self.unchecked.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(LOOK).await;
        }
    }

    pub fn say(&self, word: &str) {
        lock(&self.words).push(word.to_owned());
    }

    /// Ends when somebody has said so.
    pub async fn hear(&self, word: &str) {
        while !self.was_said(word) {
            tokio::time::sleep(LOOK).await;
        }
    }

    pub fn was_said(&self, word: &str) -> bool {
        lock(&self.words).iter().any(|said| said == word)
    }
}
