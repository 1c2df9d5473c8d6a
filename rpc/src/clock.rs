//! Time as an argument: the one place that reads the machine's clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What a shell asks for the time. Cores get the answers as arguments.
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed moment, suspended time included (CLOCK_BOOTTIME): leases count on it (R13).
    fn boottime(&self) -> Duration;
    /// Nanoseconds since the Unix epoch: for the times of files, never for ordering.
    fn wall_nanos(&self) -> i64;
}

/// The clocks of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boottime(&self) -> Duration {
        timespec(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
    }

    fn wall_nanos(&self) -> i64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
    }
}

fn timespec(time: rustix::time::Timespec) -> Duration {
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Virtual time of a simulated or paused tokio runtime.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    start: tokio::time::Instant,
    wall_start_nanos: i64,
}

impl TokioClock {
    /// Starts at `wall_start_nanos`; must be called inside the runtime.
    pub fn new(wall_start_nanos: i64) -> Self {
        Self { start: tokio::time::Instant::now(), wall_start_nanos }
    }
}

impl Clock for TokioClock {
    fn boottime(&self) -> Duration {
        // One second in, so that no lease compares with zero.
        self.start.elapsed() + Duration::from_secs(1)
    }

    fn wall_nanos(&self) -> i64 {
        self.wall_start_nanos + self.start.elapsed().as_nanos() as i64
    }
}

/// A lease from the mon, as its holder sees it: it counts from the moment the
/// heartbeat was *sent* (R13), so the holder always stops before the mon gives
/// things away.
pub struct Lease {
    clock: Arc<dyn Clock>,
    until_nanos: AtomicU64,
    given_up: AtomicBool,
}

impl Lease {
    /// No lease yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, until_nanos: AtomicU64::new(0), given_up: AtomicBool::new(false) }
    }

    /// The answer to a heartbeat that was sent at `sent` (boottime). Never shortens the lease.
    pub fn renew(&self, sent: Duration, length: Duration) {
        let until = u64::try_from((sent + length).as_nanos()).unwrap_or(u64::MAX);
        self.until_nanos.fetch_max(until, Ordering::SeqCst);
    }

    /// Ends it at once and for good; used on a clean stop, before the mon is told.
    pub fn give_up(&self) {
        // Not by its end: the answer to a heartbeat that is under way would extend it again.
        self.given_up.store(true, Ordering::SeqCst);
    }

    /// Whether the holder may act. To be asked after a read was evaluated and before the reply leaves.
    pub fn is_valid(&self) -> bool {
        let now = u64::try_from(self.clock.boottime().as_nanos()).unwrap_or(u64::MAX);
        now < self.until_nanos.load(Ordering::SeqCst) && !self.given_up.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_counts_from_the_sending_of_the_heartbeat() {
        let clock = Arc::new(TokioClock::new(0));
        let lease = Lease::new(clock.clone());
        assert!(!lease.is_valid());
        let sent = clock.boottime();
        tokio::time::advance(Duration::from_millis(900)).await;
        lease.renew(sent, Duration::from_secs(1));
        assert!(lease.is_valid());
        tokio::time::advance(Duration::from_millis(100)).await;
        assert!(!lease.is_valid(), "R13: 1 s after the sending it has ended");
        lease.renew(clock.boottime(), Duration::from_secs(1));
        lease.give_up();
        lease.renew(clock.boottime(), Duration::from_secs(9));
        assert!(!lease.is_valid(), "R13: given up for good, whatever is still under way");
    }

    #[test]
    fn the_machine_has_a_boottime() {
        let first = SystemClock.boottime();
        assert!(first > Duration::ZERO && SystemClock.boottime() >= first);
        assert!(SystemClock.wall_nanos() > 1_600_000_000_000_000_000);
    }
}
