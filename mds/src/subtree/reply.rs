//! Replies are held until all that they reveal is durable (I2, R6), and leave together.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_mds_core::api::{BatchId, Reads};
use pando_mds_core::pipeline::CompletedRef;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::{OperationResult, Redirect, operation_result};
use pando_proto::{ClientId, Error, Ino, Rank, Reason};
use prost::Message as _;

use super::Subtree;
use super::job::{Job, To};

/// A reply that waits.
pub(super) struct Reply {
    to: To,
    client: ClientId,
    request: u64,
    result: OperationResult,
    reads: Reads,
    /// To be remembered: the encoded result and its `q/` record.
    remember: Option<(Bytes, Option<CompletedRef>)>,
    /// Objects of this inode are to be cut first.
    pub(super) after_purge: Option<Ino>,
    tracked: bool,
}

/// Replies by what they wait for.
#[derive(Default)]
pub(super) struct Held {
    batches: BTreeMap<BatchId, Vec<Reply>>,
    purges: BTreeMap<Ino, Vec<Reply>>,
}

/// Replies of this turn.
#[derive(Default)]
pub(super) struct Outgoing(Vec<(To, u64, OperationResult)>);

/// What makes a reply worth remembering.
pub(super) struct Remember {
    pub result: Bytes,
    pub reference: Option<CompletedRef>,
}

impl Subtree {
    /// Answers a job once `reads` are durable; at once if they are.
    pub(super) fn hold(&mut self, job: Job, result: OperationResult, reads: Reads, remember: Option<Remember>) {
        self.hold_for(job, result, reads, remember, None);
    }

    pub(super) fn hold_for(
        &mut self,
        job: Job,
        result: OperationResult,
        reads: Reads,
        remember: Option<Remember>,
        after_purge: Option<Ino>,
    ) {
        let Job { to, client, request, tracked, .. } = job;
        let remember = remember.map(|remember| (remember.result, remember.reference));
        self.settle(Reply { to, client, request, result, reads, remember, after_purge, tracked });
    }

    fn settle(&mut self, mut reply: Reply) {
        if let Some(batch) = self.pipeline.first_undurable(&reply.reads) {
            self.track_reply(&mut reply);
            self.held.batches.entry(batch).or_default().push(reply);
        } else if let Some(ino) = reply.after_purge {
            self.track_reply(&mut reply);
            self.held.purges.entry(ino).or_default().push(reply);
        } else {
            self.release(reply);
        }
    }

    /// The reply cannot leave at once: copies of the request attach to it from now on (R9).
    fn track_reply(&mut self, reply: &mut Reply) {
        if let (To::Stream(connection), false) = (&reply.to, reply.tracked) {
            self.dedup.running(reply.client, reply.request, connection);
            reply.tracked = true;
        }
    }

    /// The same for an operation.
    pub(super) fn track(&mut self, job: &mut Job) {
        if let (To::Stream(connection), false) = (&job.to, job.tracked) {
            self.dedup.running(job.client, job.request, connection);
            job.tracked = true;
        }
    }

    fn release(&mut self, mut reply: Reply) {
        if let To::Stream(_) = reply.to {
            let latest = match reply.remember {
                Some((result, reference)) => self.dedup.complete(reply.client, reply.request, result, reference),
                None if reply.tracked => self.dedup.finished(reply.client, reply.request),
                None => None,
            };
            if let Some(latest) = latest {
                reply.to = To::Stream(latest);
            }
        }
        self.outgoing.0.push((reply.to, reply.request, reply.result));
    }

    /// Lets go what waited for a batch.
    pub(super) fn batch_is_durable(&mut self, batch: BatchId) {
        for reply in self.held.batches.remove(&batch).unwrap_or_default() {
            self.settle(reply);
        }
    }

    /// Lets go what waited for objects to be cut.
    pub(super) fn objects_are_cut(&mut self, ino: Ino) {
        for mut reply in self.held.purges.remove(&ino).unwrap_or_default() {
            reply.after_purge = None;
            self.settle(reply);
        }
    }

    /// An answer that needs no operation.
    pub(super) fn answer(&mut self, to: To, request: u64, result: OperationResult) {
        self.outgoing.0.push((to, request, result));
    }

    /// R13: the lease is asked after the reads were evaluated, once for all replies of the turn.
    pub(super) fn send_replies(&mut self) {
        if self.outgoing.0.is_empty() {
            return;
        }
        let valid = self.lease.is_valid();
        for (to, request, result) in self.outgoing.0.drain(..) {
            let result = if valid { result } else { error_result(&no_lease()) };
            deliver(to, request, result);
        }
    }

    /// Answers all that waits with `error`: the actor ends.
    pub(super) fn refuse_all(&mut self, error: &Error) {
        let moved = redirect(&self.map, self.rank);
        let result = moved.unwrap_or_else(|| error_result(&self.signed(error.clone())));
        let held = std::mem::take(&mut self.held);
        for reply in held.batches.into_values().chain(held.purges.into_values()).flatten() {
            deliver(self.latest(reply.to, reply.client, reply.request), reply.request, result.clone());
        }
        for job in self.take_all_jobs() {
            deliver(self.latest(job.to, job.client, job.request), job.request, result.clone());
        }
    }

    fn latest(&mut self, to: To, client: ClientId, request: u64) -> To {
        match to {
            To::Stream(connection) => {
                let latest: Option<Arc<_>> = self.dedup.finished(client, request);
                To::Stream(latest.unwrap_or(connection))
            }
            other => other,
        }
    }
}

fn deliver(to: To, request: u64, result: OperationResult) {
    match to {
        To::Stream(connection) => connection.reply(request, result),
        // The caller may have gone away.
        To::Unary(reply) => drop(reply.send(result)),
        To::Nobody => {}
    }
}

/// Where the root subtree is served, if the map says another rank (R14: the client fetches that map first).
pub(crate) fn redirect(map: &ClusterMap, own: Rank) -> Option<OperationResult> {
    let (rank, address) = map.owner(ROOT_SUBTREE).filter(|(rank, _)| *rank != own)?;
    let subtree_epoch = map.root_subtree().map_or(0, |root| root.epoch.0);
    let redirect = Redirect {
        subtree: ROOT_SUBTREE.0,
        subtree_epoch,
        rank: rank.0,
        address: address.to_owned(),
        map_epoch: map.epoch.0,
    };
    Some(OperationResult { result: Some(operation_result::Result::Redirect(redirect)) })
}

pub(crate) fn error_result(error: &Error) -> OperationResult {
    OperationResult { result: Some(operation_result::Result::Error(error.to_rpc_status())) }
}

pub(super) fn encode(result: &OperationResult) -> Bytes {
    result.encode_to_vec().into()
}

fn no_lease() -> Error {
    Error::new(Reason::Unavailable, "this rank has no lease from the mons at the moment")
}
