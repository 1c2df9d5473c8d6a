//! Seeded runs of the whole cluster.

mod plays;

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pando_sim::cluster::{Plan, run};

/// Seeds of the short suite, as many as unoptimised code runs in three minutes on two cores (`--profile sim` runs them
/// four times as fast); PANDO_SIM_SEEDS=N runs N instead, PANDO_SIM_SEED=S only that one, in this process.
const SEEDS: u64 = 12;
/// The test below, by the name that a child process is given.
const NAME: &str = "every_seed_keeps_what_was_acknowledged";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_seed_keeps_what_was_acknowledged() {
    if let Some(seed) = number("PANDO_SIM_SEED") {
        match run(Plan::of(seed)) {
            Ok(outcome) => return println!("seed {seed}: {outcome:?}"),
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    let seeds = number("PANDO_SIM_SEEDS").unwrap_or(SEEDS);
    let (next, failed) = (AtomicU64::new(1), Mutex::new(Vec::new()));
    // A simulation has its process for itself; several of them use all the cores.
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > seeds {
                        return;
                    }
                    if let Err(output) = in_a_child(seed) {
                        println!("{output}");
                        failed.lock().unwrap().push(seed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {seeds} seeds failed: {failed:?}", failed.len());
}

/// Errors: all that the child wrote.
fn in_a_child(seed: u64) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program);
    child.args([NAME, "--exact", "--nocapture"]).env("PANDO_SIM_SEED", seed.to_string());
    let output = child.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err([output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()),
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let (first, second) = (run(Plan::short(5)), run(Plan::short(5)));
    assert_eq!(first, second);
    assert!(first.is_ok(), "{first:?}");
}
