//! Requests come in, sessions come and go (R9, R10, R19).

use std::sync::Arc;

use pando_cluster_map::ClusterMap;
use pando_proto::mds::operation::Op;
use pando_proto::mds::{OperationResult, Request};
use pando_proto::{ClientId, Error, Reason};
use prost::Message as _;

use super::dedup::Verdict;
use super::job::{To, Work};
use super::reply::error_result;
use super::turn::overloaded;
use super::{Call, Submit, Subtree};
use crate::session::{Connection, stale_session};

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
        self.is_back(client, requests.first());
        for request in requests {
            self.accept(&connection, request);
        }
    }

    fn accept(&mut self, connection: &Arc<Connection>, request: Request) {
        let (client, id) = (connection.client, request.id);
        let to = || To::Stream(Arc::clone(connection));
        let error = match self.dedup.judge(client, id, connection) {
            Verdict::Attached => return,
            Verdict::Answer(result) => {
                // Only results that were encoded here are in the table or in `q/`.
                let result = OperationResult::decode(result).unwrap_or_else(|_| error_result(&unreadable()));
                return self.answer(to(), id, result);
            }
            Verdict::Run => match self.check(&request) {
                Ok(()) => {
                    let operation = request.operation.unwrap_or_default();
                    let job = self.new_job(Work::Operation(operation), client, id, to());
                    return self.enqueue(job);
                }
                Err(error) => error,
            },
            Verdict::Stale => Error::new(Reason::StaleSession, format!("request {id} was answered and confirmed")),
            Verdict::Full => overloaded("too many requests of this session are unanswered"),
        };
        self.answer(to(), id, error_result(&error));
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

    /// A session of the time before the takeover speaks again. Its first request is the reclaim of its handles;
    /// anything else says that it has none.
    fn is_back(&mut self, client: ClientId, first: Option<&Request>) {
        if !self.awaited.contains(&client) {
            return;
        }
        let reclaims = first.and_then(|request| request.operation.as_ref()).map(|operation| &operation.op);
        if !matches!(reclaims, Some(Some(Op::Reclaim(_)))) {
            self.registered(client);
        }
    }

    /// All handles of the session are known.
    pub(super) fn registered(&mut self, client: ClientId) {
        if self.awaited.remove(&client) {
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
        self.namespace.set_object_size(self.map.object_size());
        let known = self.dedup.clients().chain(self.awaited.iter().copied());
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

fn unreadable() -> Error {
    Error::new(Reason::Corrupt, "the remembered result of this request cannot be read")
}
