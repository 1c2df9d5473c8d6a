//! What goes wrong, and when: drawn from the seed before the run, or ordered while it lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use turmoil::Sim;

use crate::board::Board;
use crate::process::Processes;

/// The cluster needs about this long to come up; faults start later.
const QUIET: Duration = Duration::from_millis(2500);
/// From one fault's beginning to the next one's, at most; they may overlap.
const BETWEEN_MILLIS: u64 = 4000;
/// Shortest and longest fault: well below and well above a lease.
const LENGTH_MILLIS: std::ops::Range<u64> = 100..6000;
/// The client that dies does so this long after the others have begun.
const DEATH_MILLIS: std::ops::Range<u64> = 1000..8000;
/// How long connections are kept from being read: shorter and longer than whoever waits for an answer does.
const KEEP_MILLIS: std::ops::Range<u64> = 500..15_000;
/// How far a wall clock jumps at most, in seconds.
const JUMP_SECONDS: i64 = 100_000;

/// The host of a client that dies, for good.
pub(crate) const MORTAL: &str = "mortal";

/// One event of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A host loses its power.
    Crash(String),
    /// A crashed host starts again.
    Start(String),
    /// Two hosts no longer hear each other.
    Cut(String, String),
    /// The second no longer hears the first.
    CutOneWay(String, String),
    /// They do again.
    Heal(String, String),
    /// What two hosts say to each other is held back.
    Hold(String, String),
    /// It arrives, late.
    Release(String, String),
    /// A host stands still, as by SIGSTOP or while its hypervisor moves it.
    Freeze(String),
    /// It goes on as if nothing had been.
    Thaw(String),
    /// All connections of a host break; requests have arrived, and answers have not.
    Reset(String),
    /// What has arrived, and arrives, by some connections of a host waits unread; later connections work.
    Keep(String, u64),
    /// The same of all that comes to a host from another one.
    KeepFrom(String, String),
    /// It is read, late.
    LetGo(String),
    /// Somebody sets the wall clock of a host by so many seconds.
    Jump(String, i64),
}

/// Which hosts there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hosts {
    pub mons: u64,
    pub osds: u64,
    pub ranks: u32,
    pub clients: u64,
}

impl Hosts {
    fn any(&self, kinds: &[Kind], dice: &mut ChaCha8Rng) -> String {
        match kinds[dice.random_range(0..kinds.len())] {
            Kind::Mon => format!("mon-{}", dice.random_range(1..=self.mons)),
            Kind::Osd => format!("osd-{}", dice.random_range(1..=self.osds)),
            Kind::Rank => format!("mds-{}", dice.random_range(0..self.ranks)),
            Kind::Client => format!("client-{}", dice.random_range(0..self.clients)),
        }
    }

    fn pair(&self, dice: &mut ChaCha8Rng) -> (String, String) {
        let one = self.any(&[Kind::Rank, Kind::Rank, Kind::Rank, Kind::Mon, Kind::Osd], dice);
        loop {
            let other = self.any(&[Kind::Mon, Kind::Osd, Kind::Rank, Kind::Client], dice);
            if other != one {
                return (one, other);
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Mon,
    Osd,
    Rank,
    Client,
}

/// A fault, and what ends it so much later.
pub(crate) type Window = (Fault, Option<(Duration, Fault)>);

/// A fault of any kind anywhere, or several that have one cause.
pub(crate) fn draw(hosts: &Hosts, dice: &mut ChaCha8Rng) -> Vec<Window> {
    match dice.random_range(0..30) {
        0 => blackout(hosts, dice),
        1..=3 => {
            // What stands in one rack.
            let pair = [hosts.any(&[Kind::Rank], dice), hosts.any(&[Kind::Osd], dice)];
            pair.map(|host| crash(host, Duration::from_millis(dice.random_range(LENGTH_MILLIS)))).into()
        }
        _ => vec![draw_one(hosts, dice)],
    }
}

/// All daemons lose their power, and come back one by one.
fn blackout(hosts: &Hosts, dice: &mut ChaCha8Rng) -> Vec<Window> {
    let mons = (1..=hosts.mons).map(|mon| format!("mon-{mon}"));
    let osds = (1..=hosts.osds).map(|osd| format!("osd-{osd}"));
    let ranks = (0..hosts.ranks).map(|rank| format!("mds-{rank}"));
    let mut length = || Duration::from_millis(dice.random_range(LENGTH_MILLIS));
    mons.chain(osds).chain(ranks).map(|host| crash(host, length())).collect()
}

fn draw_one(hosts: &Hosts, dice: &mut ChaCha8Rng) -> Window {
    let length = Duration::from_millis(dice.random_range(LENGTH_MILLIS));
    let daemons = [Kind::Rank, Kind::Rank, Kind::Mon, Kind::Osd];
    match dice.random_range(0..15) {
        0..=2 => crash(hosts.any(&daemons, dice), length),
        3..=4 => freeze(hosts.any(&[Kind::Rank, Kind::Rank, Kind::Mon, Kind::Osd, Kind::Client], dice), length),
        12..=14 => keep(hosts.any(&daemons, dice), dice),
        5 => (Fault::Reset(hosts.any(&[Kind::Rank, Kind::Mon, Kind::Osd, Kind::Client], dice)), None),
        6 => {
            let seconds = dice.random_range(-JUMP_SECONDS..JUMP_SECONDS);
            (Fault::Jump(hosts.any(&[Kind::Rank, Kind::Mon, Kind::Osd, Kind::Client], dice), seconds), None)
        }
        _ => between(hosts.pair(dice), length, dice),
    }
}

pub(crate) fn crash(host: String, length: Duration) -> Window {
    (Fault::Crash(host.clone()), Some((length, Fault::Start(host))))
}

pub(crate) fn freeze(host: String, length: Duration) -> Window {
    (Fault::Freeze(host.clone()), Some((length, Fault::Thaw(host))))
}

fn keep(host: String, dice: &mut ChaCha8Rng) -> Window {
    let length = Duration::from_millis(dice.random_range(KEEP_MILLIS));
    (Fault::Keep(host.clone(), dice.random_range(0..u64::from(u32::MAX))), Some((length, Fault::LetGo(host))))
}

/// A fault of the network between two hosts.
pub(crate) fn between((one, other): (String, String), length: Duration, dice: &mut ChaCha8Rng) -> Window {
    let (a, b) = (one.clone(), other.clone());
    match dice.random_range(0..5) {
        0..=1 => (Fault::Hold(one, other), Some((length, Fault::Release(a, b)))),
        2 => (Fault::CutOneWay(one, other), Some((length, Fault::Heal(a, b)))),
        3 => (Fault::CutOneWay(other, one), Some((length, Fault::Heal(a, b)))),
        _ => (Fault::Cut(one, other), Some((length, Fault::Heal(a, b)))),
    }
}

/// The faults of one run in order of time.
#[derive(Default)]
pub(crate) struct Schedule {
    coming: BTreeMap<(Duration, u64), Fault>,
    next: u64,
    done: Vec<Fault>,
    down: BTreeSet<String>,
    frozen: BTreeSet<String>,
    kept: BTreeSet<String>,
    links: BTreeSet<(String, String)>,
}

impl Schedule {
    pub(crate) fn new(count: u32, hosts: &Hosts, dice: &mut ChaCha8Rng) -> Self {
        let mut schedule = Self::default();
        let mut at = QUIET;
        for _ in 0..count {
            at += Duration::from_millis(dice.random_range(0..BETWEEN_MILLIS));
            for window in draw(hosts, dice) {
                schedule.add(at, window);
            }
        }
        schedule.push(QUIET + Duration::from_millis(dice.random_range(DEATH_MILLIS)), Fault::Crash(MORTAL.to_owned()));
        schedule
    }

    pub(crate) fn add(&mut self, at: Duration, (begin, end): Window) {
        self.push(at, begin);
        if let Some((length, end)) = end {
            self.push(at + length, end);
        }
    }

    fn push(&mut self, at: Duration, fault: Fault) {
        self.coming.insert((at, self.next), fault);
        self.next += 1;
    }

    /// Does what is due.
    pub(crate) fn run(&mut self, sim: &mut Sim<'_>, processes: &Processes, board: &Board) {
        while let Some(entry) = self.coming.first_entry()
            && entry.key().0 <= sim.elapsed()
        {
            let fault = entry.remove();
            self.apply(fault, sim, processes, board);
        }
    }

    /// Ends all faults, those to come as well.
    pub(crate) fn heal(&mut self, sim: &mut Sim<'_>, processes: &Processes, board: &Board) {
        self.coming.clear();
        for (one, other) in std::mem::take(&mut self.links) {
            sim.release(one.as_str(), other.as_str());
            sim.repair(one.as_str(), other.as_str());
        }
        for host in self.frozen.clone() {
            self.apply(Fault::Thaw(host), sim, processes, board);
        }
        for host in self.kept.clone() {
            self.apply(Fault::LetGo(host), sim, processes, board);
        }
        for host in self.down.clone().into_iter().filter(|host| host != MORTAL) {
            self.apply(Fault::Start(host), sim, processes, board);
        }
    }

    fn apply(&mut self, fault: Fault, sim: &mut Sim<'_>, processes: &Processes, board: &Board) {
        match &fault {
            Fault::Crash(host) => {
                if !self.down.insert(host.clone()) {
                    return;
                }
                board.power_cut(host);
                processes.kill(host);
                sim.crash(host.as_str());
                if !self.frozen.contains(host) {
                    board.gate(host).thaw();
                }
            }
            Fault::Start(host) => {
                if !self.down.remove(host) {
                    return;
                }
                sim.bounce(host.as_str());
            }
            Fault::Cut(one, other) => sim.partition(one.as_str(), other.as_str()),
            Fault::CutOneWay(one, other) => sim.partition_oneway(one.as_str(), other.as_str()),
            Fault::Heal(one, other) => sim.repair(one.as_str(), other.as_str()),
            Fault::Hold(one, other) => sim.hold(one.as_str(), other.as_str()),
            Fault::Release(one, other) => sim.release(one.as_str(), other.as_str()),
            Fault::Freeze(host) => {
                self.frozen.insert(host.clone());
                board.gate(host).freeze();
            }
            Fault::Thaw(host) => {
                self.frozen.remove(host);
                board.gate(host).thaw();
            }
            Fault::Reset(host) => board.gate(host).reset(),
            Fault::Keep(host, which) => {
                self.kept.insert(host.clone());
                board.gate(host).keep(*which);
            }
            Fault::KeepFrom(host, peer) => {
                self.kept.insert(host.clone());
                board.gate(host).keep_from(peer);
            }
            Fault::LetGo(host) => {
                self.kept.remove(host);
                board.gate(host).let_go();
            }
            Fault::Jump(host, seconds) => board.gate(host).jump(seconds.saturating_mul(1_000_000_000)),
        }
        if let Fault::Cut(one, other) | Fault::CutOneWay(one, other) | Fault::Hold(one, other) = &fault {
            self.links.insert((one.clone(), other.clone()));
        }
        self.done.push(fault);
    }

    pub(crate) fn done(&self) -> Vec<Fault> {
        self.done.clone()
    }
}
