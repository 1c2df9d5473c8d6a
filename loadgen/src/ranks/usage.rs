//! What a measurement itself takes of the machine: it says whether what was to be measured had room.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Counters at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    own: Duration,
    machine: Option<Machine>,
}

/// Of all processors since the start of the machine, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Machine {
    busy: u64,
    all: u64,
}

/// Between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Used {
    /// CPU of this process: the clients, and the daemons in it.
    pub(super) own_cpu: Duration,
    /// All processors, whoever used them; `None` where `/proc` does not tell.
    pub(super) machine_busy_percent: Option<f64>,
}

impl Usage {
    pub(super) fn now() -> Self {
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own = Duration::new(own.tv_sec.unsigned_abs(), u32::try_from(own.tv_nsec).unwrap_or_default());
        let machine = std::fs::read_to_string("/proc/stat").ok().and_then(|text| machine(&text));
        Self { own, machine }
    }

    pub(super) fn since(&self, before: &Self) -> Used {
        let percent = |now: Machine, before: Machine| {
            let all = now.all.saturating_sub(before.all).max(1);
            100.0 * now.busy.saturating_sub(before.busy) as f64 / all as f64
        };
        Used {
            own_cpu: self.own.saturating_sub(before.own),
            machine_busy_percent: self.machine.zip(before.machine).map(|(now, before)| percent(now, before)),
        }
    }
}

/// From the text of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal; what follows is
/// counted in those already.
fn machine(text: &str) -> Option<Machine> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|number| number.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all: u64 = ticks.iter().sum();
    Some(Machine { busy: all - idle, all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_busy_when_it_neither_idles_nor_waits_for_a_disk() {
        let text = "cpu  10 1 9 70 5 2 2 1 4 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(machine(text), Some(Machine { busy: 25, all: 100 }));
        assert_eq!((machine("cpu 1 2 3"), machine("intr 5")), (None, None));
        let usage = |own, busy, all| Usage { own: Duration::from_secs(own), machine: Some(Machine { busy, all }) };
        let used = usage(5, 75, 300).since(&usage(2, 25, 100));
        assert_eq!((used.own_cpu, used.machine_busy_percent), (Duration::from_secs(3), Some(25.0)));
    }

    #[test]
    fn the_own_cpu_counts_what_this_process_did() {
        let before = Usage::now();
        let mut sum = 0u64;
        while Usage::now().since(&before).own_cpu < Duration::from_millis(5) {
            sum = sum.wrapping_add(1);
        }
        assert!(sum > 0);
    }
}
