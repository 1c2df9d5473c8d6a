//! Whole groups under faults, from seeds.

use crate::world::World;

fn run(seed: u64, steps: usize) -> (u64, u64, u64) {
    let mut world = World::new(seed);
    for _ in 0..steps {
        world.step();
    }
    world.settle();
    world.check();
    (world.acknowledged, world.purged, world.losses)
}

/// Crashes, isolation, broken streams, late copies, slow maps, a disk that lost its last writes: what was acknowledged, or only read, stays, and in
/// the end all copies are equal (I1, I2, R2, R22, R25, R26). Another range of seeds: `PANDO_SEEDS=1000..5000`.
#[test]
fn i1_acknowledged_writes_survive_and_copies_end_equal() {
    let range = std::env::var("PANDO_SEEDS").unwrap_or_else(|_| "0..400".to_owned());
    let (from, to) = range.split_once("..").expect("a range");
    let (mut acknowledged, mut purged, mut losses) = (0, 0, 0);
    for seed in from.parse::<u64>().unwrap()..to.parse().unwrap() {
        let result = std::panic::catch_unwind(|| run(seed, 3000));
        match result {
            Ok((count, purges, lost)) => {
                acknowledged += count;
                purged += purges;
                losses += lost;
            }
            Err(panic) => {
                eprintln!("seed {seed} failed");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(acknowledged > 10_000, "the faults left no room for work: {acknowledged}");
    assert!(purged > 1000, "the faults left no room for purges: {purged}");
    assert!(losses > 100, "hardly a disk lost anything: {losses}");
}

#[test]
fn without_faults_everything_is_acknowledged() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.faults = false;
        for _ in 0..2000 {
            world.step();
        }
        world.settle();
        world.check();
        assert!(world.acknowledged > 100);
    }
}
