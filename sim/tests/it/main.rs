//! Seeded runs of the whole cluster.

mod plays;

use pando_sim::cluster::{Plan, run};

/// Seeds of the short suite; PANDO_SIM_SEEDS=N runs N instead, PANDO_SIM_SEED=S only that one.
const SEEDS: u64 = 8;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_seed_keeps_what_was_acknowledged() {
    let seeds: Vec<u64> = match number("PANDO_SIM_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("PANDO_SIM_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let mut failed = Vec::new();
    for seed in &seeds {
        match run(Plan::short(*seed)) {
            Ok(outcome) => {
                println!("seed {seed}: {:?}, {} faults, {:?}", outcome.elapsed, outcome.faults.len(), outcome.tallies);
            }
            Err(error) => {
                println!("seed {seed}: {error}");
                failed.push(*seed);
            }
        }
    }
    assert!(failed.is_empty(), "{} of {} seeds failed: {failed:?}", failed.len(), seeds.len());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let (first, second) = (run(Plan::short(4)), run(Plan::short(4)));
    assert_eq!(first, second);
    assert!(first.is_ok(), "{first:?}");
}
