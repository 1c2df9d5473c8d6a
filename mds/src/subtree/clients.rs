//! Requests come in, sessions come and go (R9, R10, R19).

use std::sync::Arc;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_proto::mds::operation::Op;
use pando_proto::mds::{Operation, OperationResult, Request};
use pando_proto::{ClientId, Error, Reason};
use prost::Message as _;

use super::dedup::Verdict;
use super::job::{Job, To, Work};
use super::reply::error_result;
use super::turn::overloaded;
use super::{Call, Submit, Subtree};
use crate::session::{Connection, stale_session};

/// A session of the time before the takeover.
#[derive(Default)]
pub(super) struct Awaited {
    /// Reclaims of it that have no outcome yet.
    reclaims: u32,
    /// It said that there are no more reclaims: see [`ends_reclaiming`].
    spoke: bool,
}

impl Subtree {
    pub(super) fn submit(&mut self, submit: Submit) {
        let Submit { connection, lowest_unanswered, requests } = submit;
        let client = connection.client;
        if !self.map.session_is_live(client) {
            let result = error_result(&stale_session());
            for request in requests {
                self.answer(To::Stream(Arc::clone(&connection)), request.id, result.clone());
            }
            return;
        }
        for reference in self.dedup.confirm(client, lowest_unanswered) {
            self.pipeline.forget(reference);
        }
        let spoke = !self.awaited.is_empty() && ends_reclaiming(&requests);
        for request in requests {
            self.accept(&connection, request);
        }
        if spoke {
            self.is_back(client);
        }
    }

    fn accept(&mut self, connection: &Arc<Connection>, request: Request) {
        let (client, id) = (connection.client, request.id);
        let to = To::Stream(Arc::clone(connection));
        let perhaps_copy = match self.dedup.judge(client, id, connection) {
            Verdict::Run => false,
            Verdict::RunIfNew => true,
            verdict => return self.tell(verdict, to, id),
        };
        if let Err(error) = self.check(&request) {
            let result = error_result(&self.signed(error));
            return self.answer(to, id, result);
        }
        let operation = request.operation.unwrap_or_default();
        self.reclaim_begins(client, &operation);
        let job = self.new_job(Work::Operation(operation), client, id, to);
        self.enqueue(Job { perhaps_copy, ..job });
    }

    /// Answers a request that is not to be run.
    fn tell(&mut self, verdict: Verdict, to: To, id: u64) {
        let error = match verdict {
            // Its reply goes to this connection.
            Verdict::Attached | Verdict::Run | Verdict::RunIfNew => return,
            Verdict::Answer(result) => return self.answer(to, id, remembered(result)),
            Verdict::Stale => Error::new(Reason::StaleSession, format!("request {id} was answered and confirmed")),
            Verdict::Full => overloaded("too many requests of this session are unanswered"),
        };
        let result = error_result(&self.signed(error));
        self.answer(to, id, result);
    }

    /// What may have happened while an operation waited: its session was evicted (R9), or an earlier copy of it
    /// ran (I4). Asked only of those to which it can have happened.
    pub(super) fn still_to_run(&mut self, job: Job) -> Option<Job> {
        let To::Stream(connection) = &job.to else { return Some(job) };
        if job.seen != self.map.epoch && !self.map.session_is_live(job.client) {
            self.fail(job, stale_session());
            return None;
        }
        if !job.perhaps_copy || job.tracked {
            return Some(job);
        }
        match self.dedup.judge(job.client, job.request, connection) {
            Verdict::Run | Verdict::RunIfNew => Some(job),
            verdict => {
                self.reclaim_ended(&job);
                self.job_bytes -= job.bytes;
                self.tell(verdict, job.to, job.request);
                None
            }
        }
    }

    fn check(&self, request: &Request) -> Result<(), Error> {
        if request.id == 0 {
            return Err(Error::new(Reason::InvalidRequest, "request numbers start at 1"));
        }
        if request.subtree != 0 && request.subtree != self.own.subtree.0 {
            let message = format!("subtree {} is not served here", request.subtree);
            return Err(Error::new(Reason::NotOwner, message).with_epoch(self.own.epoch.0));
        }
        Ok(())
    }

    pub(super) fn call(&mut self, call: Call) {
        let Call { operation, reply } = call;
        let job = self.new_job(Work::Operation(operation), ClientId(0), 0, To::Unary(reply));
        self.enqueue(job);
    }

    /// A session of the time before the takeover said that there are no more reclaims of it.
    fn is_back(&mut self, client: ClientId) {
        if let Some(awaited) = self.awaited.get_mut(&client) {
            awaited.spoke = true;
            self.register_if_done(client);
        }
    }

    /// A reclaim is about to run.
    fn reclaim_begins(&mut self, client: ClientId, operation: &Operation) {
        if let (Some(awaited), Some(Op::Reclaim(_))) = (self.awaited.get_mut(&client), &operation.op) {
            awaited.reclaims += 1;
        }
    }

    /// An operation has its outcome.
    pub(super) fn reclaim_ended(&mut self, job: &Job) {
        if self.awaited.is_empty() {
            return;
        }
        if let Work::Operation(Operation { op: Some(Op::Reclaim(_)) }) = &job.work
            && let Some(awaited) = self.awaited.get_mut(&job.client)
        {
            awaited.reclaims = awaited.reclaims.saturating_sub(1);
            // Its handles are in memory only after this turn's commit of the outcome.
            self.due_to_register.push(job.client);
        }
    }

    /// At the end of a turn: reclaims of it have taken effect.
    pub(super) fn register_due(&mut self) {
        for client in std::mem::take(&mut self.due_to_register) {
            self.register_if_done(client);
        }
    }

    fn register_if_done(&mut self, client: ClientId) {
        if self.awaited.get(&client).is_some_and(|awaited| awaited.spoke && awaited.reclaims == 0) {
            self.registered(client);
        }
    }

    /// All handles of the session are known.
    fn registered(&mut self, client: ClientId) {
        if self.awaited.remove(&client).is_some() {
            self.reap_if_all_are_back();
        }
    }

    /// R19: orphans go only when everyone who may have them open has come back or is gone.
    pub(super) fn reap_if_all_are_back(&mut self) {
        if !self.awaited.is_empty() {
            return;
        }
        let deferred = self.namespace.end_grace();
        let mut orphans = std::mem::take(&mut self.orphans);
        orphans.extend(deferred);
        for ino in orphans {
            self.reap(ino);
        }
    }

    fn reap(&mut self, ino: pando_proto::Ino) {
        let job = self.new_job(Work::Reap(ino), ClientId(0), 0, To::Nobody);
        self.runnable.push_back(job);
    }

    pub(super) fn map_changed(&mut self, map: Arc<ClusterMap>) {
        if map.epoch <= self.map.epoch {
            return;
        }
        self.map = map;
        self.namespace.set_inline_limit(self.map.inline_limit());
        self.namespace.set_spread_shards(self.map.spread_shards());
        self.namespace.set_object_size(self.map.object_size());
        let known = self.dedup.clients().chain(self.awaited.keys().copied());
        let mut gone: Vec<ClientId> = known.filter(|client| !self.map.session_is_live(*client)).collect();
        gone.sort_unstable();
        gone.dedup();
        for client in gone {
            for reference in self.dedup.session_gone(client) {
                self.pipeline.forget(reference);
            }
            for ino in self.namespace.session_gone(client) {
                self.reap(ino);
            }
            self.registered(client);
        }
    }
}

/// Whether a frame shows that its session has no more handles to reclaim (R19): by an operation of another kind, or
/// by an empty reclaim. A keep-alive shows nothing: its sender may be about to begin.
fn ends_reclaiming(requests: &[Request]) -> bool {
    requests.iter().any(|request| match &request.operation {
        Some(Operation { op: Some(Op::Reclaim(reclaim)) }) => reclaim.handles.is_empty(),
        _ => true,
    })
}

/// Only results that were encoded here are in the table or in `q/`.
fn remembered(result: Bytes) -> OperationResult {
    OperationResult::decode(result).unwrap_or_else(|_| error_result(&unreadable()))
}

fn unreadable() -> Error {
    Error::new(Reason::Corrupt, "the remembered result of this request cannot be read")
}
