//! Requests come in, sessions come and go (R9, R10, R19).

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Answer;
use pando_proto::mds::{Operation, OperationResult, Redirect, Request};
use pando_proto::{ClientId, Epoch, Error, Reason, SubtreeId};
use prost::Message as _;

use super::dedup::Verdict;
use super::job::{Job, To, Work};
use super::reply::error_result;
use super::turn::{AT_ONCE, overloaded};
use super::{Call, Submit, Subtree};
use crate::owner::ownership;
use crate::session::{Connection, stale_session};
use crate::takeover::Ownership;

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
        if connection.is_replaced() {
            return;
        }
        let client = connection.client;
        if let Err(error) = self.meet(client) {
            let result = error_result(&self.signed(error));
            for request in requests {
                self.answer(To::Stream(Arc::clone(&connection)), request.id, result.clone());
            }
            return;
        }
        self.confirm(client, lowest_unanswered);
        let is_awaited = !self.awaited.is_empty() && self.awaited.contains_key(&client);
        let spoke = is_awaited && ends_reclaiming(&self.own, &requests);
        for request in requests {
            self.accept(&connection, request);
        }
        if spoke {
            self.is_back(client);
        }
    }

    /// R9: what a session has answers to is forgotten, and never run. Its keep-alives are not told to those who remember
    /// nothing of it: what they said counts all the same.
    fn confirm(&mut self, client: ClientId, lowest_unanswered: u64) {
        let lowest = lowest_unanswered.max(self.interest.lowest(client));
        for reference in self.dedup.confirm(client, lowest) {
            self.pipeline.forget(reference);
        }
    }

    /// The same, of a keep-alive.
    pub(super) fn kept_alive(&mut self, client: ClientId) {
        let lowest = self.interest.lowest(client);
        for reference in self.dedup.keep_alive(client, lowest) {
            self.pipeline.forget(reference);
        }
    }

    /// R14: whoever passed the requests on has the map in which their session was born. This actor may not have been
    /// handed it yet, which happens where a rank has many.
    fn meet(&mut self, client: ClientId) -> Result<(), Error> {
        if self.map.session_is_live(client) {
            return Ok(());
        }
        let newest = self.maps.current();
        if !newest.session_is_live(client) {
            return Err(stale_session());
        }
        if !self.is_still_ours() {
            return Err(Error::new(Reason::Unavailable, "this rank is giving the subtree up").retry_after(AT_ONCE));
        }
        self.map_changed(newest);
        Ok(())
    }

    fn accept(&mut self, connection: &Arc<Connection>, request: Request) {
        let (client, id) = (connection.client, request.id);
        let to = To::Stream(Arc::clone(connection));
        let perhaps_copy = match self.dedup.judge(client, id, connection) {
            // What was under way before the opening may turn out to be this very request (R18).
            Verdict::Run => self.transactions.is_recovering(),
            Verdict::RunIfNew => true,
            verdict => return self.tell(verdict, to, id),
        };
        if let Err(error) = self.check(&request) {
            let result = error_result(&self.signed(error));
            return self.answer(to, id, result);
        }
        if let Some(result) = self.meant_for_another(&request) {
            return self.answer(to, id, result);
        }
        let (ways, second) = ([request.route, request.second_route], SubtreeId(request.second_subtree));
        let asked = if request.subtree == 0 { ROOT_SUBTREE.0 } else { request.subtree };
        let operation = request.operation.unwrap_or_default();
        self.reclaim_begins(client, &operation);
        let job = self.new_job(Work::Operation(operation), client, id, to);
        self.enqueue(Job { perhaps_copy, ways, second, asked, ..job });
    }

    /// R10: a send takes effect in the epoch for which it was meant, or never. Its client may have been told since, by
    /// the owner of a later epoch, that its request goes on elsewhere.
    fn meant_for_another(&self, request: &Request) -> Option<OperationResult> {
        let (subtree, epoch) = (SubtreeId(request.to_subtree), Epoch(request.to_epoch));
        if request.to_subtree == 0 || (subtree, epoch) == (self.own.subtree, self.own.epoch) {
            return None;
        }
        if subtree == self.own.subtree && epoch > self.own.epoch {
            let error = Error::new(Reason::Unavailable, "this rank is opening the subtree anew").retry_after(AT_ONCE);
            return Some(error_result(&self.signed(error)));
        }
        // R14: the client fetches this map first.
        let address = self.map.ranks.get(&self.rank).map(|rank| rank.address.clone()).unwrap_or_default();
        let redirect = Redirect {
            subtree: request.subtree,
            subtree_epoch: self.own.epoch.0,
            rank: self.rank.0,
            address,
            map_epoch: self.map.epoch.0,
            crossings: Vec::new(),
        };
        Some(OperationResult { result: Some(Answer::Redirect(redirect)) })
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
        // R10: nobody has been promised anything. What is tracked has, and a copy of it finds it in the table.
        if connection.is_replaced() && !job.tracked {
            self.drop_job(&job);
            return None;
        }
        if job.seen != self.map.epoch && !self.map.session_is_live(job.client) {
            self.fail(job, stale_session());
            return None;
        }
        // R9: its caller was told that it may or may not have happened, and to look. What it then sees has to stay so.
        // A close shows nothing, and nobody else would do it.
        let shows = !matches!(&job.work, Work::Operation(Operation { op: Some(Op::Close(_)) }));
        if shows && self.dedup.is_given_up(job.client, job.request) {
            self.drop_job(&job);
            if job.tracked {
                self.dedup.finished(job.client, job.request);
            }
            return None;
        }
        if !job.perhaps_copy || job.tracked {
            return self.by_a_way_that_stands(job);
        }
        let connection = Arc::clone(connection);
        self.confirm(job.client, 0);
        match self.dedup.judge(job.client, job.request, &connection) {
            Verdict::Run | Verdict::RunIfNew => self.by_a_way_that_stands(job),
            verdict => {
                self.drop_job(&job);
                self.tell(verdict, job.to, job.request);
                None
            }
        }
    }

    fn drop_job(&mut self, job: &Job) {
        self.route_change_over(job.id);
        self.reclaim_ended(job);
        if job.rounds > 0 {
            self.namespace.unpin(job.id);
        }
        self.job_is_over(job.bytes);
    }

    /// R16: an operation whose client came by a way that has changed since is not run. Asked after dedup: what was
    /// done stays done (R10).
    fn by_a_way_that_stands(&mut self, job: Job) -> Option<Job> {
        if job.ways == [0, 0] {
            return Some(job);
        }
        let route = self.map.subtrees.get(&self.own.subtree).map_or(0, |subtree| subtree.route);
        // The way to a subtree that was merged into this one is no way to this one.
        let stale = |way: u64, to: SubtreeId| {
            let merged = || self.map.successor(to) == Some(self.own.subtree);
            way != 0 && if to == self.own.subtree { way != route } else { merged() }
        };
        // Where the second way leads elsewhere, it is judged there.
        if stale(job.ways[0], SubtreeId(job.asked)) || stale(job.ways[1], job.second) {
            self.fail(job, stale_route());
            return None;
        }
        Some(job)
    }

    fn check(&self, request: &Request) -> Result<(), Error> {
        if request.id == 0 {
            return Err(Error::new(Reason::InvalidRequest, "request numbers start at 1"));
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
            self.interest.awaits_no_more(client);
            self.reap_if_all_are_back();
        }
    }

    /// Tells the namespace where it ends, if that has changed.
    pub(super) fn learn_map(&mut self) {
        let shape = self.trees.of(&self.map);
        if self.shape.as_ref().is_some_and(|known| Rc::ptr_eq(known, &shape)) {
            return;
        }
        self.namespace.set_tree(shape.seen_from(self.own.subtree, &self.map));
        self.shape = Some(shape);
    }

    /// R13: a newer map than the one that the actor was handed may have given the subtree away.
    pub(super) fn is_still_ours(&self) -> bool {
        let newest = self.maps.current();
        newest.epoch <= self.map.epoch
            || ownership(&newest, self.own.subtree, self.rank, self.incarnation) == Some(self.own)
    }

    pub(super) fn map_changed(&mut self, map: Arc<ClusterMap>) {
        if map.epoch <= self.map.epoch {
            return;
        }
        let before = std::mem::replace(&mut self.map, map);
        self.learn_map();
        self.note_unfinished();
        if before.subtrees.len() != self.map.subtrees.len() {
            self.transactions.forget_coordinators(&self.map);
        }
        let name = |map: &ClusterMap| map.subtrees.get(&self.own.subtree).map(|own| (own.parent_dir, own.name.clone()));
        if name(&before) != name(&self.map) {
            self.rename_root_if_due();
        }
        self.namespace.set_inline_limit(self.map.inline_limit());
        self.namespace.set_spread_shards(self.map.spread_shards());
        self.namespace.set_object_size(self.map.object_size());
        let known = self.dedup.clients().chain(self.awaited.keys().copied());
        let known = known.chain(self.namespace.holding_sessions());
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

pub(super) fn stale_route() -> Error {
    Error::new(Reason::StaleRoute, "the way to this subtree has changed: resolve the path from the root again")
}

/// Whether a frame shows that its session has no more handles to reclaim (R19): by an empty reclaim. Nothing else
/// shows it: operations without handles do not wait for reclaims. Nor does one that was meant for what was merged into
/// this subtree, or for an earlier epoch: its sender did not know yet which handles belong here now.
fn ends_reclaiming(own: &Ownership, requests: &[Request]) -> bool {
    requests.iter().any(|request| match &request.operation {
        Some(Operation { op: Some(Op::Reclaim(reclaim)) }) => {
            let meant = request.subtree == own.subtree.0 && request.subtree_epoch >= own.epoch.0;
            meant && reclaim.handles.is_empty()
        }
        _ => false,
    })
}

/// Only results that were encoded here are in the table or in `q/`.
fn remembered(result: Bytes) -> OperationResult {
    OperationResult::decode(result).unwrap_or_else(|_| error_result(&unreadable()))
}

fn unreadable() -> Error {
    Error::new(Reason::Corrupt, "the remembered result of this request cannot be read")
}
