//! Requests over one bidirectional stream, matched by id: the client's half.
//!
//! A pipe lives as long as one stream. When that breaks, every waiting call
//! gets [`Reason::Unavailable`] and the owner opens another; what to send again
//! is the owner's decision (R9, R22).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use pando_proto::{Error, Reason};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use crate::queue;

/// Calls by id, each with where its reply goes.
type Waiting<R> = FxHashMap<u64, Reply<R>>;
type Reply<R> = oneshot::Sender<Result<R, Error>>;

struct Shared<Q, R> {
    outgoing: queue::Sender<(u64, Q)>,
    waiting: Mutex<Waiting<R>>,
    closed: AtomicBool,
}

impl<Q, R> Shared<Q, R> {
    fn waiting(&self) -> MutexGuard<'_, Waiting<R>> {
        // Nothing that can panic runs under the lock.
        self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The calling end; clones share the stream.
pub struct Pipe<Q, R>(Arc<Shared<Q, R>>);

/// The end that hands in what the stream brought; dropping it fails all calls that wait.
pub struct PipeReplies<Q, R>(Arc<Shared<Q, R>>);

impl<Q, R> Clone for Pipe<Q, R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Requests with their ids, in the frames to send.
pub type Outgoing<Q> = queue::Receiver<(u64, Q)>;

/// A pipe, the stream of requests to send in frames of up to `max_frame`, and the end for replies.
/// `capacity` bounds the requests that wait to be sent.
pub fn pipe<Q, R>(capacity: usize, max_frame: usize) -> (Pipe<Q, R>, Outgoing<Q>, PipeReplies<Q, R>) {
    let (outgoing, receiver) = queue::coalescing(capacity, max_frame);
    let shared =
        Arc::new(Shared { outgoing, waiting: Mutex::new(FxHashMap::default()), closed: AtomicBool::new(false) });
    (Pipe(Arc::clone(&shared)), receiver, PipeReplies(shared))
}

impl<Q, R> Pipe<Q, R> {
    /// Sends `request` under `id`, which must not be in use, and waits for its reply.
    ///
    /// Errors: [`Reason::Unavailable`] when the stream breaks, [`Reason::Overloaded`] when too much waits.
    pub async fn call(&self, id: u64, request: Q) -> Result<R, Error> {
        self.start(id, request)?.await.unwrap_or_else(|_| Err(broken()))
    }

    /// Sends `request` and returns where its reply will arrive.
    pub fn start(&self, id: u64, request: Q) -> Result<oneshot::Receiver<Result<R, Error>>, Error> {
        let (sender, receiver) = oneshot::channel();
        self.0.waiting().insert(id, sender);
        let refused = match self.0.outgoing.push((id, request)) {
            Ok(()) if !self.0.closed.load(Ordering::SeqCst) => return Ok(receiver),
            Ok(()) | Err(queue::PushError::Closed(_)) => broken(),
            Err(queue::PushError::Full(_)) => {
                Error::new(Reason::Overloaded, "too many requests wait to be sent on this connection")
            }
        };
        self.0.waiting().remove(&id);
        Err(refused)
    }

    /// Whether the stream is gone.
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::SeqCst) || self.0.outgoing.is_closed()
    }

    /// Calls that wait for their reply.
    pub fn in_flight(&self) -> usize {
        self.0.waiting().len()
    }
}

impl<Q, R> PipeReplies<Q, R> {
    /// Hands in a reply. False if nobody waits for it (a late or made-up one).
    pub fn complete(&self, id: u64, reply: Result<R, Error>) -> bool {
        let waiter = self.0.waiting().remove(&id);
        waiter.is_some_and(|waiter| waiter.send(reply).is_ok())
    }
}

impl<Q, R> Drop for PipeReplies<Q, R> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.0.waiting());
        for waiter in waiting.into_values() {
            let _ = waiter.send(Err(broken()));
        }
    }
}

fn broken() -> Error {
    Error::new(Reason::Unavailable, "the connection broke before the answer came")
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt as _;

    #[tokio::test]
    async fn replies_find_their_calls_in_any_order() {
        let (pipe, mut frames, replies) = pipe::<&str, u32>(8, 8);
        let (one, two) = (pipe.start(1, "a").unwrap(), pipe.start(2, "b").unwrap());
        assert_eq!(frames.next().await, Some(vec![(1, "a"), (2, "b")]));
        assert!(replies.complete(2, Ok(20)));
        assert!(replies.complete(1, Ok(10)));
        assert!(!replies.complete(3, Ok(0)), "nobody asked");
        assert_eq!((one.await.unwrap(), two.await.unwrap()), (Ok(10), Ok(20)));
    }

    #[tokio::test]
    async fn a_broken_stream_fails_waiting_and_later_calls() {
        let (pipe, _frames, replies) = pipe::<(), ()>(8, 8);
        let waiting = pipe.start(1, ()).unwrap();
        drop(replies);
        assert_eq!(waiting.await.unwrap().unwrap_err().reason, Reason::Unavailable);
        assert_eq!(pipe.call(2, ()).await.unwrap_err().reason, Reason::Unavailable);
        assert!(pipe.is_closed());
        assert_eq!(pipe.in_flight(), 0);
    }

    #[tokio::test]
    async fn too_much_waiting_is_refused() {
        let (pipe, _frames, _replies) = pipe::<(), ()>(1, 1);
        let _first = pipe.start(1, ()).unwrap();
        assert_eq!(pipe.start(2, ()).unwrap_err().reason, Reason::Overloaded);
        assert_eq!(pipe.in_flight(), 1);
    }
}
