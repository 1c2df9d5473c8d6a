//! Which mon to ask, and how often: one retry loop for every call.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pando_proto::mon::GetStatusRequest;
use pando_proto::mon::admin_service_client::AdminServiceClient;
use pando_proto::{Errno, Error, Reason};
use pando_rpc::Net;
use tokio::time::Instant;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::{ClusterStamp, LEADER_HINT, check_mons};

/// A mon that does not answer within this is left for the next one.
const ATTEMPT: Duration = Duration::from_secs(3);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// Addresses kept, those learnt from hints included.
const MAX_TARGETS: usize = 16;

/// To a mon; each call says which cluster is meant, once that is known.
pub(crate) type MonChannel = InterceptedService<Channel, ClusterStamp>;

/// The mons that are known.
pub(crate) struct Targets {
    net: Arc<dyn Net>,
    stamp: ClusterStamp,
    state: Mutex<State>,
}

struct State {
    known: Vec<(String, Channel)>,
    current: usize,
}

impl Targets {
    pub(crate) fn new(net: Arc<dyn Net>, mons: Vec<String>) -> Result<Self, Error> {
        check_mons("the list of mons", &mons)?;
        let connect = |address: String| pando_rpc::channel(&net, &address).map(|channel| (address, channel));
        let known = mons.into_iter().take(MAX_TARGETS).map(connect).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { net, stamp: ClusterStamp::default(), state: Mutex::new(State { known, current: 0 }) })
    }

    /// From now on mons of other clusters refuse what this process asks.
    pub(crate) fn bind(&self, cluster: &[u8; 16]) {
        self.stamp.bind(cluster);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The mon to ask now.
    pub(crate) fn current(&self) -> (String, MonChannel) {
        let (address, channel) = {
            let state = self.state();
            state.known[state.current].clone()
        };
        (address, InterceptedService::new(channel, self.stamp.clone()))
    }

    /// Leaves the mon at `address` for the next, unless another call did that already.
    pub(crate) fn leave(&self, address: &str) {
        let mut state = self.state();
        if state.known[state.current].0 == address {
            state.current = (state.current + 1) % state.known.len();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.state().known.len()
    }

    /// Turns to the mon that a follower named. False if there is no use in that.
    fn follow(&self, hint: &str) -> bool {
        let mut state = self.state();
        let found = state.known.iter().position(|(address, _)| address == hint);
        if found.is_none() && state.known.len() >= MAX_TARGETS {
            return false;
        }
        let Some(index) = found else {
            let Ok(channel) = pando_rpc::channel(&self.net, hint) else { return false };
            state.known.push((hint.to_owned(), channel));
            state.current = state.known.len() - 1;
            return true;
        };
        state.current = index;
        true
    }

    /// Goes where a failed call says. True if the next try may start at once.
    pub(crate) fn redirect(&self, from: &str, status: &Status) -> bool {
        let hint = status.metadata().get(LEADER_HINT).and_then(|value| value.to_str().ok());
        if let Some(hint) = hint.filter(|hint| *hint != from)
            && self.follow(hint)
        {
            return true;
        }
        self.leave(from);
        false
    }

    /// Runs `call` until it succeeds, fails for good, or `limit` has passed.
    ///
    /// Errors: `OVERLOADED` and `NOT_OWNER` say that nothing has happened, and that nothing is under way; that of the
    /// last try is told only if it holds for all of them. Else the outcome is open: `TIMEOUT`, `UNAVAILABLE`.
    /// `INVALID_REQUEST` with EPROTO where all that answer are no mons.
    pub(crate) async fn call<T, F>(&self, limit: Duration, call: impl FnMut(MonChannel) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.call_patiently(limit, ATTEMPT, call).await
    }

    /// The same for a command that the map may refuse for a while only: a refusal, too, is told only if no earlier try
    /// was left open. What the map does not do now it may do when that one comes (R11).
    pub(crate) async fn call_strictly<T, F>(
        &self,
        limit: Duration,
        call: impl FnMut(MonChannel) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.repeat(limit, ATTEMPT, false, call).await
    }

    /// The same as `call` for a call whose answer may take until `patience`.
    pub(crate) async fn call_patiently<T, F>(
        &self,
        limit: Duration,
        patience: Duration,
        call: impl FnMut(MonChannel) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.repeat(limit, patience, true, call).await
    }

    async fn repeat<T, F>(
        &self,
        limit: Duration,
        patience: Duration,
        refusals_are_final: bool,
        mut call: impl FnMut(MonChannel) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + limit;
        let mut backoff = BACKOFF_MIN;
        let mut hops = 0;
        let mut open = false;
        let mut foreign = BTreeSet::new();
        loop {
            let (address, channel) = self.current();
            let attempt = tokio::time::timeout_at(deadline.min(Instant::now() + patience), call(channel.clone()));
            let status = match attempt.await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded(format!("the mon at {address} did not answer in time")),
            };
            let other = status.code() == Code::Unimplemented && !is_mon(channel, deadline).await;
            let error = if other { no_mon(&address) } else { Error::from_tonic(&status) };
            if other || error.reason == Reason::WrongCluster {
                // One address may belong to somebody else by now; the cluster is gone only if all do.
                foreign.insert(address.clone());
                if foreign.len() < self.count() && Instant::now() < deadline {
                    self.leave(&address);
                    continue;
                }
                return Err(if open { as_open(error) } else { error });
            }
            if !is_retryable(&error) {
                return Err(if open && !refusals_are_final { as_open(error) } else { error });
            }
            open |= leaves_open(&error);
            // A fresh hint is followed at once; when hints chase each other, an election is under way.
            if self.redirect(&address, &status) && hops < 2 {
                hops += 1;
                continue;
            }
            hops = 0;
            let pause = error.retry_after.unwrap_or(backoff);
            backoff = (backoff * 2).min(BACKOFF_MAX);
            if Instant::now() + pause >= deadline {
                return Err(if open { as_open(error) } else { error });
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// Whether a mon serves there: each knows this request, whatever it answers. What it was asked before may only be too new
/// for it.
async fn is_mon(channel: MonChannel, deadline: Instant) -> bool {
    let mut service = AdminServiceClient::new(channel);
    let asked =
        tokio::time::timeout_at(deadline.min(Instant::now() + ATTEMPT), service.get_status(GetStatusRequest {}));
    !matches!(asked.await, Ok(Err(status)) if status.code() == Code::Unimplemented)
}

fn no_mon(address: &str) -> Error {
    let text = format!("{address} answers, but is not a mon: is it a rank or an OSD?");
    Error { errno: Errno::EPROTO, ..Error::new(Reason::InvalidRequest, text) }
}

/// Unlike elsewhere a stale epoch is final here: the mon's word on it is the newest.
fn is_retryable(error: &Error) -> bool {
    leaves_open(error) || matches!(error.reason, Reason::NotOwner | Reason::Overloaded)
}

/// A call that failed so may have been done, or may still be on its way: no answer came, or the leader that took it has
/// lost its place.
fn leaves_open(error: &Error) -> bool {
    matches!(error.reason, Reason::Unavailable | Reason::Timeout)
}

/// The last try was refused, but not all of them.
fn as_open(error: Error) -> Error {
    if leaves_open(&error) {
        return error;
    }
    let message =
        format!("an earlier try was not answered, and may or may not have been done; the last: {}", error.message);
    Error { retry_after: error.retry_after, ..Error::new(Reason::Timeout, message) }
}

#[cfg(test)]
mod tests;
