//! Numbers of requests: unique, rising, and never too many open (R9).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Room that a rank has and requests leave free: for reclaims, which do not wait for it.
pub(crate) const RESERVED: u32 = 4;
/// Until a rank says otherwise.
const FIRST_LIMIT: usize = 1024 - RESERVED as usize;
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

    fn try_take(self: &Arc<Self>) -> Option<Number> {
        let mut state = self.lock();
        if state.done.len() >= state.limit {
            state.waiting = true;
            return None;
        }
        Some(self.push(&mut state))
    }

    fn push(self: &Arc<Self>, state: &mut State) -> Number {
        state.done.push_back(false);
        Number { window: Arc::clone(self), id: state.lowest + state.done.len() as u64 - 1 }
    }

    /// The next number, as soon as the span of unanswered ones is below its limit.
    pub async fn take(self: &Arc<Self>) -> Number {
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

    /// The next number, at once: for what requests wait for, and which can therefore not wait for them.
    pub fn take_beyond_limit(self: &Arc<Self>) -> Number {
        self.push(&mut self.lock())
    }

    /// Nobody waits for this number's answer any more.
    fn done(&self, number: u64) {
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
        let limit = limit.saturating_sub(RESERVED);
        let mut state = self.lock();
        state.limit = (limit as usize).clamp(1, MAX_LIMIT).min(state.limit.max(1));
    }
}

/// An open number. It is done with when this is dropped, however that comes about:
/// a number that stayed open would hold up the window, and all `q/` entries after it, for ever.
pub(crate) struct Number {
    window: Arc<Window>,
    id: u64,
}

impl Number {
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.window.done(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_moves_only_over_what_is_done() {
        let window = Arc::new(Window::new());
        let mut numbers: Vec<_> = (0..4).filter_map(|_| window.try_take()).collect();
        assert_eq!(numbers.iter().map(Number::id).collect::<Vec<_>>(), [1, 2, 3, 4]);
        drop(numbers.remove(1));
        assert_eq!(window.lowest(), 1, "R9: 1 is unanswered");
        drop(numbers.remove(0));
        assert_eq!(window.lowest(), 3);
        window.done(1);
        window.done(99);
        drop(numbers);
        assert_eq!(window.lowest(), 5);
        assert_eq!(window.try_take().map(|number| number.id()), Some(5));
        assert_eq!(window.lowest(), 6, "R9: a number that is dropped is done with");
    }

    #[tokio::test]
    async fn a_full_window_waits_for_the_oldest() {
        let window = Arc::new(Window::new());
        window.limit(2 + RESERVED);
        let (first, second) = (window.try_take(), window.try_take());
        assert!(first.is_some() && second.is_some() && window.try_take().is_none());
        drop(second);
        assert!(window.try_take().is_none(), "R9: the span counts, not the number");
        let waiter = tokio::spawn({
            let window = Arc::clone(&window);
            async move { window.take().await.id() }
        });
        tokio::task::yield_now().await;
        drop(first);
        assert_eq!(waiter.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_reclaim_needs_no_room() {
        let window = Arc::new(Window::new());
        window.limit(1);
        let first = window.take().await;
        assert_eq!(window.take_beyond_limit().id(), 2);
        assert_eq!((first.id(), window.lowest()), (1, 1));
        drop(first);
        assert_eq!(window.lowest(), 3);
    }
}
