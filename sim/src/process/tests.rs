use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::MissedTickBehavior;

use super::*;

const TICK: Duration = Duration::from_millis(1);

/// What a task of a process has seen.
#[derive(Default)]
struct Seen {
    ticks: AtomicU64,
    /// What the clock said at the last one.
    millis: AtomicU64,
}

/// Looks at its clock every 10 ms, in a task that is not a local one.
async fn look(env: Env, seen: Arc<Seen>) -> turmoil::Result {
    tokio::spawn(async move {
        let mut ticker = tokio::time::interval(10 * TICK);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticker.tick().await;
            seen.ticks.fetch_add(1, Ordering::Relaxed);
            seen.millis.store(env.clock.boottime().as_millis() as u64, Ordering::Relaxed);
        }
    });
    pending().await
}

#[test]
fn a_process_that_is_stopped_stands_still_with_all_its_tasks_and_timers() {
    let mut sim = turmoil::Builder::new().tick_duration(TICK).build();
    let (processes, gate) = (Rc::new(Processes::new(1, TICK)), Gate::new(0));
    let seen = Arc::new(Seen::default());
    let by_process = Arc::clone(&seen);
    sim.client("host", Rc::clone(&processes).run("host".to_owned(), gate.clone(), |env| look(env, by_process)));
    let mut run = |millis: u64| {
        for _ in 0..millis {
            sim.step().unwrap();
            processes.step();
        }
        (seen.ticks.load(Ordering::Relaxed), seen.millis.load(Ordering::Relaxed))
    };
    let (ticks, millis) = run(100);
    assert!((9..=11).contains(&ticks), "{ticks} ticks in 100 ms");
    gate.freeze();
    assert_eq!(run(1000), (ticks, millis), "it does nothing while it is stopped");
    gate.thaw();
    let (late, then) = run(1);
    assert_eq!(late, ticks + 1, "what was due comes once, late");
    assert!(then >= millis + 1000, "all the time has gone by: {then} ms, and {millis} ms before");
    assert!((9..=11).contains(&(run(100).0 - late)), "and it goes on as before");
}
