//! Replies are held until all that they reveal is durable (I2, R6), and leave together.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_mds_core::api::{BatchId, Crossings, Reads};
use pando_mds_core::pipeline::CompletedRef;
use pando_proto::mds::{Crossing, OpenResponse, OperationResult, Redirect, operation_result};
use pando_proto::{ClientId, Error, Ino, Rank, Reason, SubtreeId};
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
    /// It answers a change, not a read.
    changes: bool,
    /// Encoded size.
    bytes: usize,
}

/// Replies by what they wait for.
#[derive(Default)]
pub(super) struct Held {
    batches: BTreeMap<BatchId, Vec<Reply>>,
    purges: BTreeMap<Ino, Vec<Reply>>,
    bytes: usize,
}

/// Replies of this turn.
#[derive(Default)]
pub(super) struct Outgoing {
    replies: Vec<Ready>,
    bytes: usize,
}

struct Ready {
    to: To,
    request: u64,
    result: OperationResult,
    bytes: usize,
}

/// What makes a reply worth remembering.
pub(super) struct Remember {
    pub result: Bytes,
    pub reference: Option<CompletedRef>,
}

impl Subtree {
    /// Answers a job once `reads` are durable; at once if they are.
    pub(super) fn hold(&mut self, job: Job, result: OperationResult, reads: Reads, remember: Option<Remember>) {
        let reply = self.prepare(job, result, reads, remember);
        self.settle(reply);
    }

    /// The same for a change: `batch` carries it, and `after_purge` is cut before the reply leaves.
    pub(super) fn hold_change(
        &mut self,
        job: Job,
        result: OperationResult,
        batch: BatchId,
        remember: Option<Remember>,
        after_purge: Option<Ino>,
    ) {
        // Its own batch is durable only after all that it saw.
        let reads = Reads::from_slice(&[batch]);
        let reply = self.prepare(job, result, reads, remember);
        self.settle(Reply { after_purge, changes: true, ..reply });
    }

    fn prepare(&mut self, job: Job, result: OperationResult, reads: Reads, remember: Option<Remember>) -> Reply {
        let Job { to, client, request, tracked, bytes, .. } = job;
        self.job_is_over(bytes);
        let remember = remember.map(|remember| (remember.result, remember.reference));
        let bytes = result.encoded_len();
        Reply { to, client, request, result, reads, remember, after_purge: None, tracked, changes: false, bytes }
    }

    /// Bytes of replies that are held or about to leave.
    pub(super) fn reply_bytes(&self) -> usize {
        self.held.bytes + self.outgoing.bytes
    }

    /// Bytes of replies of this turn.
    pub(super) fn outgoing_bytes(&self) -> usize {
        self.outgoing.bytes
    }

    fn settle(&mut self, mut reply: Reply) {
        if let Some(batch) = self.pipeline.first_undurable(&reply.reads) {
            self.track_reply(&mut reply);
            self.held.bytes += reply.bytes;
            self.held.batches.entry(batch).or_default().push(reply);
        } else if let Some(ino) = reply.after_purge {
            self.track_reply(&mut reply);
            self.held.bytes += reply.bytes;
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
                Some((result, reference)) => {
                    let latest = self.dedup.complete(reply.client, reply.request, result, reference);
                    if let (None, Some(reference)) = (&latest, reference)
                        && !self.dedup.knows(reply.client)
                    {
                        // Evicted or given up meanwhile: nobody is left to repeat it (R9).
                        self.pipeline.forget(reference);
                    }
                    latest
                }
                None if reply.tracked => self.dedup.finished(reply.client, reply.request),
                None => None,
            };
            if let Some(latest) = latest {
                reply.to = To::Stream(latest);
            }
        }
        let Reply { to, request, result, bytes, .. } = reply;
        self.outgoing.bytes += bytes;
        self.outgoing.replies.push(Ready { to, request, result, bytes });
    }

    /// Lets go what waited for a batch.
    pub(super) fn batch_is_durable(&mut self, batch: BatchId) {
        for reply in self.held.batches.remove(&batch).unwrap_or_default() {
            self.held.bytes -= reply.bytes;
            self.settle(reply);
        }
    }

    /// Lets go what waited for objects to be cut.
    pub(super) fn objects_are_cut(&mut self, ino: Ino) {
        for mut reply in self.held.purges.remove(&ino).unwrap_or_default() {
            self.held.bytes -= reply.bytes;
            reply.after_purge = None;
            self.settle(reply);
        }
    }

    /// An answer that needs no operation.
    pub(super) fn answer(&mut self, to: To, request: u64, result: OperationResult) {
        let bytes = result.encoded_len();
        self.outgoing.bytes += bytes;
        self.outgoing.replies.push(Ready { to, request, result, bytes });
    }

    /// R13: the lease is asked after the reads were evaluated, once for all replies of the turn.
    pub(super) fn send_replies(&mut self) {
        if self.outgoing.replies.is_empty() {
            return;
        }
        let valid = self.lease.is_valid() && self.is_still_ours();
        self.outgoing.bytes = 0;
        for mut ready in self.outgoing.replies.drain(..) {
            if !valid {
                ready.result = error_result(&no_lease());
                ready.bytes = ready.result.encoded_len();
            }
            deliver(ready);
        }
    }

    /// Answers all that waits with `error`: the actor ends.
    pub(super) fn refuse_all(&mut self, error: &Error) {
        let moved = redirect(&self.map, self.own.subtree, self.rank);
        let result = moved.unwrap_or_else(|| error_result(&self.signed(error.clone())));
        let held = std::mem::take(&mut self.held);
        // Only a change of a batch that the pool refused is told why (I9: reads go on); the rest comes again. What
        // waits for objects to be cut is durable: its repetition is answered from `q/`.
        let full = error.reason == Reason::NoSpace;
        let again = match full {
            true => error_result(&self.signed(Error::new(Reason::Unavailable, error.message.clone()))),
            false => result.clone(),
        };
        for (batch, replies) in held.batches {
            let refused = full && self.refused.contains(&batch);
            for reply in replies {
                let told = if refused && reply.changes { &result } else { &again };
                self.refuse(reply.to, reply.client, reply.request, told.clone());
            }
        }
        for reply in held.purges.into_values().flatten() {
            self.refuse(reply.to, reply.client, reply.request, again.clone());
        }
        let jobs = self.take_all_jobs();
        debug_assert_eq!(self.jobs, jobs.len(), "each operation is counted until it has its outcome");
        for job in jobs {
            self.refuse(job.to, job.client, job.request, again.clone());
        }
    }

    fn refuse(&mut self, to: To, client: ClientId, request: u64, result: OperationResult) {
        let bytes = result.encoded_len();
        deliver(Ready { to: self.latest(to, client, request), request, result, bytes });
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

fn deliver(ready: Ready) {
    let Ready { to, request, result, bytes } = ready;
    match to {
        To::Stream(connection) => connection.reply(request, result, bytes),
        // The caller may have gone away.
        To::Unary(reply) => drop(reply.send(result)),
        To::Finder(reply) => drop(reply.send(Err(error_of(result)))),
        To::Preparer(reply) => drop(reply.send(Err(error_of(result)))),
        To::Nobody => {}
    }
}

/// Crossings as the client is told them.
pub(super) fn crossings_to_proto(map: &ClusterMap, crossings: &Crossings) -> Vec<Crossing> {
    let to_proto = |crossing: &pando_mds_core::api::Crossing| {
        let subtree = map.subtrees.get(&crossing.subtree);
        let (rank, address) = map.owner(crossing.subtree).unwrap_or((subtree.map_or(Rank(0), |s| s.owner), ""));
        Crossing {
            target: crossing.target,
            subtree: crossing.subtree.0,
            subtree_epoch: subtree.map_or(0, |subtree| subtree.epoch.0),
            rank: rank.0,
            address: address.to_owned(),
            base: crossing.base.0,
            path: crossing.path.clone(),
            consumed: crossing.consumed,
            route: subtree.map_or(0, |subtree| subtree.route),
        }
    };
    crossings.iter().map(to_proto).collect()
}

/// Where a subtree is served, if the map says another rank (R14: the client fetches that map first). One that was
/// merged away is served as what it was merged into (R10).
pub(crate) fn redirect(map: &ClusterMap, subtree: SubtreeId, own: Rank) -> Option<OperationResult> {
    let served_as = map.successor(subtree).unwrap_or(subtree);
    let (rank, address) = map.owner(served_as).filter(|(rank, _)| *rank != own)?;
    let subtree_epoch = map.subtrees.get(&served_as).map_or(0, |subtree| subtree.epoch.0);
    let redirect = Redirect {
        subtree: subtree.0,
        subtree_epoch,
        rank: rank.0,
        address: address.to_owned(),
        map_epoch: map.epoch.0,
        ..Default::default()
    };
    Some(OperationResult { result: Some(operation_result::Result::Redirect(redirect)) })
}

/// The error of a result that is none of success.
fn error_of(result: OperationResult) -> Error {
    match result.result {
        Some(operation_result::Result::Error(status)) => Error::from_rpc_status(status),
        _ => Error::new(Reason::NotOwner, "the subtree has another owner by now: ask again"),
    }
}

pub(crate) fn error_result(error: &Error) -> OperationResult {
    OperationResult { result: Some(operation_result::Result::Error(error.to_rpc_status())) }
}

pub(super) fn encode(result: &OperationResult) -> Bytes {
    result.encode_to_vec().into()
}

/// What a repetition is answered. A body that came along with an open is no part of it: it may be large (I8), and whoever
/// does not get one reads it.
pub(super) fn encode_remembered(result: &OperationResult) -> Bytes {
    match &result.result {
        Some(operation_result::Result::Open(opened)) if opened.body.is_some() => {
            let opened = OpenResponse { body: None, ..opened.clone() };
            encode(&OperationResult { result: Some(operation_result::Result::Open(opened)) })
        }
        _ => encode(result),
    }
}

fn no_lease() -> Error {
    Error::new(Reason::Unavailable, "this rank has no lease from the mons at the moment")
}
