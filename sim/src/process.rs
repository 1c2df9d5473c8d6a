//! Processes: each has a runtime of its own, beside that of turmoil's host, which only carries its connections. So the
//! simulation can let it run for a while after each step of the network, or not at all: a process that is stopped stands
//! still with all its tasks and timers, whatever they are. When it goes on, all the time that it missed has gone by at
//! once, as after SIGSTOP and SIGCONT.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use pando_rpc::{Env, Shutdown};
use tokio::runtime::{Builder, RngSeed, Runtime, UnhandledPanic};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::Instant;

use crate::gate::{Gate, SimClock};
use crate::net;

/// Wall clock at the start of every process.
pub(crate) const WALL_START_NANOS: i64 = 1_700_000_000_000_000_000;

/// All processes of a simulation, by host.
pub(crate) struct Processes {
    tick: Duration,
    seed: u64,
    /// How many there ever were.
    born: Cell<u64>,
    /// Those that begin with the next step.
    coming: RefCell<Vec<Birth>>,
    running: RefCell<BTreeMap<String, Process>>,
}

struct Birth {
    host: String,
    gate: Gate,
    main: LocalBoxFuture<'static, ()>,
}

impl Processes {
    /// `tick`: how long each runs at a step.
    pub fn new(seed: u64, tick: Duration) -> Self {
        Self { tick, seed, born: Cell::new(0), coming: RefCell::default(), running: RefCell::default() }
    }

    /// Runs a process, and carries its connections. To be awaited on its host.
    ///
    /// Errors: those of `main`.
    pub async fn run<F>(
        self: Rc<Self>,
        host: String,
        gate: Gate,
        main: impl FnOnce(Env) -> F + 'static,
    ) -> turmoil::Result
    where
        F: Future<Output = turmoil::Result> + 'static,
    {
        let (net, wires) = net::attach(gate.clone());
        let (ended, end) = oneshot::channel();
        let clock_gate = gate.clone();
        let main = Box::pin(async move {
            let clock = Arc::new(SimClock::new(clock_gate, WALL_START_NANOS));
            let env = Env { net: Arc::new(net), clock, shutdown: Shutdown::default() };
            // Nobody hears it when the host has lost its power.
            let _ = ended.send(main(env).await);
        });
        self.coming.borrow_mut().push(Birth { host, gate, main });
        drop(self);
        tokio::select! {
            biased;
            ended = end => ended.unwrap_or_else(|_| Err("a process ended by itself".into())),
            never = wires.carry() => match never {},
        }
    }

    /// The network has made a step: all that run do so for a tick.
    pub fn step(&self) {
        let mut running = self.running.borrow_mut();
        for birth in self.coming.take() {
            let number = self.born.replace(self.born.get() + 1);
            running.insert(birth.host, Process::new(birth.gate, birth.main, self.seed, number));
        }
        for process in running.values_mut() {
            process.step(self.tick);
        }
        running.retain(|_, process| !process.main.is_finished());
    }

    /// Ends the one of a host, as it stands.
    pub fn kill(&self, host: &str) {
        self.coming.borrow_mut().retain(|birth| birth.host != host);
        let killed = self.running.borrow_mut().remove(host);
        drop(killed);
    }
}

struct Process {
    local: LocalSet,
    runtime: Runtime,
    main: JoinHandle<()>,
    gate: Gate,
    /// Up to here it has run, or would have if it had not been stopped.
    due: Instant,
}

impl Process {
    fn new(gate: Gate, main: LocalBoxFuture<'static, ()>, seed: u64, number: u64) -> Self {
        let dice = [seed.to_be_bytes(), number.to_be_bytes()].concat();
        let mut builder = Builder::new_current_thread();
        builder.enable_time().start_paused(true).rng_seed(RngSeed::from_bytes(&dice));
        builder.unhandled_panic(UnhandledPanic::ShutdownRuntime);
        let runtime = builder.build().expect("a runtime without sockets needs nothing that could be missing");
        let mut local = LocalSet::new();
        local.unhandled_panic(UnhandledPanic::ShutdownRuntime);
        let due = runtime.block_on(async {
            // From here on time goes by in whole milliseconds, as turmoil's does.
            tokio::time::sleep(Duration::from_millis(1)).await;
            Instant::now()
        });
        let main = local.spawn_local(main);
        Self { local, runtime, main, gate, due }
    }

    fn step(&mut self, tick: Duration) {
        let (from, until) = (self.due, self.due + tick);
        self.due = until;
        if self.gate.is_frozen() {
            return;
        }
        let gate = self.gate.clone();
        let turn = async move {
            let missed = from.saturating_duration_since(Instant::now());
            if !missed.is_zero() {
                tokio::time::advance(missed).await;
            }
            tokio::select! {
                biased;
                () = gate.frozen() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        };
        self.runtime.block_on(self.local.run_until(turn));
    }
}

#[cfg(test)]
mod tests;
