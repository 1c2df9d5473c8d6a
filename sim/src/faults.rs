//! What goes wrong, and when: drawn from the seed before the run.

use std::collections::VecDeque;
use std::time::Duration;

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use turmoil::Sim;

/// The cluster needs about this long to come up; faults start later.
const QUIET: Duration = Duration::from_millis(1500);
/// From one fault's end to the next one's beginning, at least.
const BETWEEN: Duration = Duration::from_millis(500);

/// One event of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A host loses its power.
    Crash(String),
    /// A crashed host starts again.
    Start(String),
    /// Two hosts no longer hear each other.
    Cut(String, String),
    /// They do again.
    Heal(String, String),
    /// Messages between two hosts are held back, none is lost.
    Hold(String, String),
    /// They arrive, late.
    Release(String, String),
}

impl Fault {
    /// Does it.
    pub(crate) fn apply(&self, sim: &mut Sim<'_>) {
        match self {
            Self::Crash(host) => sim.crash(host.as_str()),
            Self::Start(host) => sim.bounce(host.as_str()),
            Self::Cut(one, other) => sim.partition(one.as_str(), other.as_str()),
            Self::Heal(one, other) => sim.repair(one.as_str(), other.as_str()),
            Self::Hold(one, other) => sim.hold(one.as_str(), other.as_str()),
            Self::Release(one, other) => sim.release(one.as_str(), other.as_str()),
        }
    }
}

/// The faults of one run in order of time.
pub(crate) struct Schedule {
    coming: VecDeque<(Duration, Fault)>,
    done: Vec<Fault>,
}

impl Schedule {
    pub(crate) fn new(count: u32, dice: &mut ChaCha8Rng) -> Self {
        let mut coming = VecDeque::new();
        let mut at = QUIET;
        for _ in 0..count {
            at += BETWEEN + Duration::from_millis(dice.random_range(0..2000));
            let length = Duration::from_millis(dice.random_range(100..6000));
            let (begin, end) = pair(dice);
            coming.push_back((at, begin));
            at += length;
            coming.push_back((at, end));
        }
        Self { coming, done: Vec::new() }
    }

    pub(crate) fn due(&mut self, now: Duration) -> Vec<Fault> {
        let mut due = Vec::new();
        while self.coming.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, fault)) = self.coming.pop_front() else { break };
            self.done.push(fault.clone());
            due.push(fault);
        }
        due
    }

    pub(crate) fn done(&self) -> Vec<Fault> {
        self.done.clone()
    }
}

/// A fault and what ends it.
fn pair(dice: &mut ChaCha8Rng) -> (Fault, Fault) {
    let host = |dice: &mut ChaCha8Rng| match dice.random_range(0..7) {
        number @ 1..=3 => format!("mon-{number}"),
        number @ 4..=6 => format!("osd-{}", number - 3),
        _ => "mds-0".to_owned(),
    };
    let one = host(dice);
    let mut other = host(dice);
    while other == one {
        other = host(dice);
    }
    match dice.random_range(0..4) {
        0 | 1 => (Fault::Crash(one.clone()), Fault::Start(one)),
        2 => (Fault::Cut(one.clone(), other.clone()), Fault::Heal(one, other)),
        _ => (Fault::Hold(one.clone(), other.clone()), Fault::Release(one, other)),
    }
}
