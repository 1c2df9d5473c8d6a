//! A bounded queue whose reader takes all that waits at once.
//!
//! It stands between those who have one message and a stream whose frames carry
//! many: while the transport is busy messages pile up, and leave in one frame.
//! No task of its own, so no extra wakeup.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use futures_util::Stream;

struct State<T> {
    items: VecDeque<T>,
    waker: Option<Waker>,
    senders: usize,
    receiver_alive: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    capacity: usize,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Why a push was refused; the item comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum PushError<T> {
    /// `capacity` items wait already.
    Full(T),
    /// The reader is gone.
    Closed(T),
}

/// The writing end; clones write to the same queue.
pub struct Sender<T>(Arc<Shared<T>>);

/// The reading end: a stream of all that waited, oldest first, at most `max_chunk` at a time.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    max_chunk: usize,
}

/// A queue for `capacity` items, handed out in chunks of at most `max_chunk`.
pub fn coalescing<T>(capacity: usize, max_chunk: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { items: VecDeque::new(), waker: None, senders: 1, receiver_alive: true };
    let shared = Arc::new(Shared { state: Mutex::new(state), capacity });
    (Sender(Arc::clone(&shared)), Receiver { shared, max_chunk: max_chunk.max(1) })
}

/// Cuts what leaves together into frames of at most `limit` by `weight`, in order; a heavier item has one to itself.
pub fn cut<T>(items: Vec<T>, limit: usize, weight: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let (mut frames, mut last, mut total) = (Vec::new(), Vec::new(), 0);
    for item in items {
        let weight = weight(&item);
        if total > 0 && total + weight > limit {
            frames.push(std::mem::take(&mut last));
            total = 0;
        }
        total += weight;
        last.push(item);
    }
    frames.push(last);
    frames
}

impl<T> Sender<T> {
    /// Adds an item without waiting.
    pub fn push(&self, item: T) -> Result<(), PushError<T>> {
        let waker = {
            let mut state = self.0.lock();
            if !state.receiver_alive {
                return Err(PushError::Closed(item));
            }
            if state.items.len() >= self.0.capacity {
                return Err(PushError::Full(item));
            }
            state.items.push_back(item);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Items that wait.
    pub fn len(&self) -> usize {
        self.0.lock().items.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the reader is gone.
    pub fn is_closed(&self) -> bool {
        !self.0.lock().receiver_alive
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.lock();
            state.senders -= 1;
            if state.senders == 0 { state.waker.take() } else { None }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Stream for Receiver<T> {
    type Item = Vec<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Vec<T>>> {
        let mut state = self.shared.lock();
        if state.items.is_empty() {
            if state.senders == 0 {
                return Poll::Ready(None);
            }
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = state.items.len().min(self.max_chunk);
        Poll::Ready(Some(state.items.drain(..count).collect()))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.receiver_alive = false;
        let dropped = std::mem::take(&mut state.items);
        drop(state);
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt as _;

    #[tokio::test]
    async fn what_waited_leaves_together_and_in_order() {
        let (sender, mut receiver) = coalescing(10, 3);
        for item in 0..5 {
            sender.push(item).unwrap();
        }
        assert_eq!(receiver.next().await, Some(vec![0, 1, 2]));
        assert_eq!(receiver.next().await, Some(vec![3, 4]));
        drop(sender);
        assert_eq!(receiver.next().await, None);
    }

    #[test]
    fn frames_are_cut_by_weight_and_in_order() {
        let cut = |items: &[usize]| cut(items.to_vec(), 10, |item| *item);
        assert_eq!(cut(&[4, 6, 1, 30, 0, 9]), [vec![4, 6], vec![1], vec![30], vec![0, 9]].map(|frame| frame.to_vec()));
        assert_eq!(cut(&[3]), [[3]]);
    }

    #[tokio::test]
    async fn a_full_or_closed_queue_gives_the_item_back() {
        let (sender, receiver) = coalescing(1, 1);
        sender.push('a').unwrap();
        assert_eq!(sender.push('b'), Err(PushError::Full('b')));
        drop(receiver);
        assert_eq!(sender.push('c'), Err(PushError::Closed('c')));
        assert!(sender.is_closed());
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken_by_push_and_by_the_last_sender() {
        let (sender, mut receiver) = coalescing(4, 4);
        let second = sender.clone();
        let reader = tokio::spawn(async move { (receiver.next().await, receiver.next().await) });
        tokio::task::yield_now().await;
        sender.push(7).unwrap();
        tokio::task::yield_now().await;
        drop(sender);
        drop(second);
        assert_eq!(reader.await.unwrap(), (Some(vec![7]), None));
    }
}
