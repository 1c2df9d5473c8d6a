//! Time in which a client computes instead of asking, as a compiler does between its reads and writes.
//!
//! Recordings have no times. Without a pause every client always waits for an answer, so that the sum of their latencies
//! is the number of clients times the time, and tells nothing of its own.

use std::time::{Duration, Instant};

/// Timers are good to a millisecond: shorter pauses are saved up until they make one of this length.
const LEAST: Duration = Duration::from_millis(2);

/// What one client owes, and has paid.
#[derive(Debug, Default)]
pub(super) struct Thinking {
    each: Duration,
    owed: Duration,
    /// Slept too long so far: taken off the next pauses.
    ahead: Duration,
    /// In all.
    pub(super) slept: Duration,
}

impl Thinking {
    /// So much after each operation.
    pub(super) fn new(each: Duration) -> Self {
        Self { each, ..Self::default() }
    }

    /// An operation is done.
    pub(super) async fn after_one(&mut self) {
        if self.each.is_zero() {
            return;
        }
        let Some(pause) = self.due() else { return };
        let start = Instant::now();
        tokio::time::sleep(pause).await;
        self.paid(pause, start.elapsed());
    }

    /// The pause to make now, if any.
    fn due(&mut self) -> Option<Duration> {
        self.owed += self.each;
        let pause = self.owed.saturating_sub(self.ahead);
        if pause < LEAST {
            return None;
        }
        (self.owed, self.ahead) = (Duration::ZERO, Duration::ZERO);
        Some(pause)
    }

    fn paid(&mut self, pause: Duration, took: Duration) {
        self.ahead = took.saturating_sub(pause);
        self.slept += took;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn short_pauses_are_saved_up() {
        let mut thinking = Thinking::new(micros(700));
        assert_eq!((thinking.due(), thinking.due()), (None, None));
        assert_eq!(thinking.due(), Some(micros(2100)));
        assert_eq!(thinking.due(), None, "all was paid");
        assert_eq!(Thinking::new(micros(5000)).due(), Some(micros(5000)));
    }

    #[test]
    fn late_timers_do_not_add_up() {
        let mut thinking = Thinking::new(micros(1000));
        let mut slept = Duration::ZERO;
        for _ in 0..10_000 {
            if let Some(pause) = thinking.due() {
                let took = pause + micros(1300);
                thinking.paid(pause, took);
                slept += took;
            }
        }
        assert_eq!(slept, thinking.slept);
        let exact = Duration::from_secs(10);
        assert!(slept.abs_diff(exact) < Duration::from_millis(10), "{slept:?}");
    }

    #[test]
    fn nothing_is_slept_where_nothing_is_asked_for() {
        let mut thinking = Thinking::new(Duration::ZERO);
        assert!((0..100_000).all(|_| thinking.due().is_none()) && thinking.slept.is_zero());
    }
}
