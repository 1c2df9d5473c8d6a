//! Numbers of requests: unique, rising, and never too many open (R9).

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Until a rank says otherwise.
const FIRST_LIMIT: usize = 1024;
/// More than any rank allows.
const MAX_LIMIT: usize = 1 << 16;

struct State {
    /// Lowest unanswered number; every lower one is done with.
    lowest: u64,
    /// Whether `lowest + i` is done with; the front never is.
    done: VecDeque<bool>,
    limit: usize,
    waiting: bool,
}

/// The open request numbers of a client, over all its ranks.
pub(crate) struct Window {
    state: Mutex<State>,
    moved: Notify,
}

impl Window {
    pub fn new() -> Self {
        let state = State { lowest: 1, done: VecDeque::new(), limit: FIRST_LIMIT, waiting: false };
        Self { state: Mutex::new(state), moved: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next number, unless the span of unanswered ones is at its limit.
    pub fn try_take(&self) -> Option<u64> {
        let mut state = self.lock();
        if state.done.len() >= state.limit {
            state.waiting = true;
            return None;
        }
        state.done.push_back(false);
        Some(state.lowest + state.done.len() as u64 - 1)
    }

    /// The next number, as soon as the window has room.
    pub async fn take(&self) -> u64 {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if let Some(number) = self.try_take() {
                return number;
            }
            moved.await;
        }
    }

    /// Nobody waits for this number's answer any more.
    pub fn done(&self, number: u64) {
        let mut state = self.lock();
        let Some(index) = number.checked_sub(state.lowest).and_then(|index| usize::try_from(index).ok()) else {
            return;
        };
        if let Some(done) = state.done.get_mut(index) {
            *done = true;
        }
        let before = state.lowest;
        while state.done.front() == Some(&true) {
            state.done.pop_front();
            state.lowest += 1;
        }
        let wake = state.waiting && state.lowest > before;
        if wake {
            state.waiting = false;
        }
        drop(state);
        if wake {
            self.moved.notify_waiters();
        }
    }

    /// Every lower number is done with; goes along with each frame.
    pub fn lowest(&self) -> u64 {
        self.lock().lowest
    }

    /// What a rank allows. The smallest of all ranks counts.
    pub fn limit(&self, limit: u32) {
        let mut state = self.lock();
        state.limit = (limit as usize).clamp(1, MAX_LIMIT).min(state.limit.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_lowest_moves_only_over_what_is_done() {
        let window = Window::new();
        let numbers: Vec<_> = (0..4).filter_map(|_| window.try_take()).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
        window.done(2);
        assert_eq!(window.lowest(), 1, "R9: 1 is unanswered");
        window.done(1);
        assert_eq!(window.lowest(), 3);
        window.done(1);
        window.done(99);
        window.done(4);
        window.done(3);
        assert_eq!(window.lowest(), 5);
        assert_eq!(window.try_take(), Some(5));
    }

    #[tokio::test]
    async fn a_full_window_waits_for_the_oldest() {
        let window = Arc::new(Window::new());
        window.limit(2);
        assert_eq!((window.try_take(), window.try_take(), window.try_take()), (Some(1), Some(2), None));
        window.done(2);
        assert_eq!(window.try_take(), None, "R9: the span counts, not the number");
        let waiter = tokio::spawn({
            let window = Arc::clone(&window);
            async move { window.take().await }
        });
        tokio::task::yield_now().await;
        window.done(1);
        assert_eq!(waiter.await.unwrap(), 3);
    }
}
