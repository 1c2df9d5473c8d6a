//! Seeded runs of the whole cluster.

mod plays;
mod sweep;

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pando_sim::cluster::{Outcome, Plan, run};

/// Seeds of the short suite. PANDO_SIM_SEEDS=N runs N instead, from PANDO_SIM_FIRST=S on, and begins none after
/// PANDO_SIM_SECONDS=T of real time; PANDO_SIM_SEED=S runs only that one, in this process. `--profile sim` runs them
/// several times as fast. Fewer than PANDO_SIM_LEAST=N seeds are a failure, however fast time went by.
const SEEDS: u64 = 4;
/// The test below, by the name that a child process is given.
const NAME: &str = "every_seed_keeps_what_was_acknowledged";
/// A run that takes longer than this, of real time, does not end at all.
const LIMIT: Duration = Duration::from_secs(300);
/// Histories that the checker may leave undecided, out of a hundred.
const MOST_UNDECIDED_PERCENT: u64 = 2;
/// Operations on names in two subtrees that a run has at least, on average.
const LEAST_ACROSS: u64 = 5;
/// What a child says of a run that went well begins with this.
const SAID: &str = "looked at:";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What runs came to.
#[derive(Default)]
struct Sum {
    runs: u64,
    operations: u64,
    faults: u64,
    histories: u64,
    undecided: u64,
    seconds: u64,
    /// Operations on names in two subtrees on which several clients meet.
    across: u64,
    /// Runs in which a client died with files open that have no name.
    bereft: u64,
}

impl Sum {
    fn of(outcome: &Outcome) -> Self {
        Self {
            runs: 1,
            operations: outcome.operations(),
            faults: outcome.faults.len() as u64,
            histories: outcome.histories.len() as u64,
            undecided: outcome.undecided,
            seconds: outcome.elapsed.as_secs(),
            across: outcome.across(),
            bereft: u64::from(outcome.bereft),
        }
    }

    fn say(&self) -> String {
        let Self { runs, operations, faults, histories, undecided, seconds, across, bereft } = self;
        format!("{SAID} {runs} {operations} {faults} {histories} {undecided} {seconds} {across} {bereft}")
    }

    /// What a child said.
    fn heard(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix(SAID))?;
        let figures: Vec<u64> = line.split_whitespace().map_while(|figure| figure.parse().ok()).collect();
        let &[runs, operations, faults, histories, undecided, seconds, across, bereft] = figures.as_slice() else {
            return None;
        };
        Some(Self { runs, operations, faults, histories, undecided, seconds, across, bereft })
    }

    fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.operations += other.operations;
        self.faults += other.faults;
        self.histories += other.histories;
        self.undecided += other.undecided;
        self.seconds += other.seconds;
        self.across += other.across;
        self.bereft += other.bereft;
    }
}

#[test]
fn every_seed_keeps_what_was_acknowledged() {
    if let Some(seed) = number("PANDO_SIM_SEED") {
        return run_one(seed);
    }
    let first = number("PANDO_SIM_FIRST").unwrap_or(1);
    let end = first + number("PANDO_SIM_SEEDS").unwrap_or(SEEDS);
    let seconds = Duration::from_secs(number("PANDO_SIM_SECONDS").unwrap_or(u64::from(u32::MAX)));
    let (next, failed, sum) = (AtomicU64::new(first), Mutex::new(Vec::new()), Mutex::new(Sum::default()));
    let begun = Instant::now();
    // A simulation has its process for itself; several of them use all the cores.
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || begun.elapsed() > seconds {
                        return;
                    }
                    match in_a_child(seed) {
                        Ok(one) => sum.lock().unwrap().add(&one),
                        Err(output) => {
                            println!("{output}");
                            failed.lock().unwrap().push(seed);
                        }
                    }
                }
            });
        }
    });
    let (mut failed, sum) = (failed.into_inner().unwrap(), sum.into_inner().unwrap());
    println!(
        "{} of {} seeds from {first} on in {:?}: {} operations and {} faults in {} simulated seconds; {} of {} histories \
         undecided; {} operations across subtrees, {} clients died with files open",
        sum.runs,
        end - first,
        begun.elapsed(),
        sum.operations,
        sum.faults,
        sum.seconds,
        sum.undecided,
        sum.histories,
        sum.across,
        sum.bereft
    );
    failed.sort_unstable();
    let again: Vec<String> = failed.iter().map(|seed| format!("  {}", to_repeat(*seed))).collect();
    assert!(failed.is_empty(), "seeds that failed: {failed:?}. To repeat them:\n{}", again.join("\n"));
    let most = (sum.histories * MOST_UNDECIDED_PERCENT).div_ceil(100);
    assert!(sum.undecided <= most, "I5: {} of {} histories could not be judged", sum.undecided, sum.histories);
    assert!(sum.across >= sum.runs * LEAST_ACROSS, "R18: only {} operations across subtrees", sum.across);
    assert!(sum.bereft * 2 >= sum.runs, "R19: only {} of {} clients died with files open", sum.bereft, sum.runs);
    let least = number("PANDO_SIM_LEAST").unwrap_or(0);
    assert!(sum.runs >= least, "only {} seeds in {:?}; at least {least} are wanted", sum.runs, begun.elapsed());
}

/// Runs a seed in this process, and says what it came to.
fn run_one(seed: u64) {
    // It ends with the process.
    std::thread::spawn(move || {
        std::thread::sleep(LIMIT);
        eprintln!("seed {seed} does not end; {}", to_repeat(seed));
        std::process::exit(3);
    });
    match run(Plan::of(seed)) {
        Ok(outcome) => println!("seed {seed}: {outcome:?}\n{}", Sum::of(&outcome).say()),
        Err(error) => panic!("{error}\nto repeat it: {}", to_repeat(seed)),
    }
}

/// The command that runs a seed again, as this program was built.
fn to_repeat(seed: u64) -> String {
    to_repeat_with(&format!("PANDO_SIM_SEED={seed}"), NAME)
}

fn to_repeat_with(variables: &str, test: &str) -> String {
    let program = std::env::current_exe().unwrap_or_default();
    // target/<profile>/deps/<program>
    let mut above = program.ancestors().skip(1).filter_map(|path| path.file_name()?.to_str());
    let profile = match (above.next(), above.next()) {
        (Some("deps"), Some(name)) if name != "debug" => format!(" --profile {name}"),
        _ => String::new(),
    };
    format!("{variables} cargo test{profile} -p pando-sim {test} -- --nocapture")
}

/// Errors: all that the child wrote.
fn in_a_child(seed: u64) -> Result<Sum, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program);
    child.args([NAME, "--exact", "--nocapture"]).env("PANDO_SIM_SEED", seed.to_string());
    let output = child.output().map_err(|error| error.to_string())?;
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    match Sum::heard(&out).filter(|_| output.status.success()) {
        Some(sum) => Ok(sum),
        None => Err(out + &err),
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    // With the balancer on.
    let (first, second) = (run(Plan::short(9)), run(Plan::short(9)));
    assert_eq!(first, second);
    assert!(first.is_ok(), "{first:?}");
}
