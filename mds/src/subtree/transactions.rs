//! Operations on names and inodes of several subtrees (R15, R17, R18).
//!
//! The subtree where the operation began coordinates: it locks, asks the others to prepare - that of the other name
//! first, which may know of more: the homes of the inodes -, keeps what is to happen in `x/`, and has one command of
//! the map decide. The others learn the decision from the map, do their parts, and say so there; then the coordinator
//! does its own and answers. Until then whoever meets what is locked waits, on all sides. Whoever opens a subtree and
//! finds an `x/` brings it to its end before it serves anything.
//!
//! What is committed the coordinator ends last: while it holds an inode that it gives away, nobody reads an old one by
//! its number. A participant that gives one away in exchange writes into its record whose it is, and holds it until
//! that stands in the pool; who gets it holds it, too.

mod asking;
mod coming;
mod over;
mod parting;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use pando_cluster_map::{ClusterMap, Decision, TransactionId};
use pando_mds_core::api::{BatchId, Done, FollowUp, Outcome, Reads};
use pando_mds_core::pipeline::CompletedRef;
use pando_mds_core::transaction::{Across, HandOver, Holders};
use pando_proto::mds::{Completed, OperationResult, RenameResponse, TransactionRecord, operation_result};
use pando_proto::mds::{PrepareResponse, operation_result::Result as OpReply};
use pando_proto::{ClientId, Epoch, Errno, Error, Reason, SubtreeId};
use smallvec::SmallVec;

use super::commit::Then;
use super::job::{Job, To, Work};
use super::reply::{Remember, encode, error_result};
use super::turn::overloaded;
use super::{Event, Subtree};
use crate::owner::ownership;
use asking::Answer;
pub(super) use coming::Asked;
pub(crate) use coming::Prepare;
use coming::Reply;
use over::Over;
pub(crate) use parting::Unparted;

/// Transactions of one subtree at once (I8).
const MAX_OPEN: usize = 1024;
/// Finished ones that one call tells.
const MAX_TOLD: usize = 256;
/// Times that an operation is tried which meets the locks of others.
const MAX_TRIES: u32 = 64;
const PAUSE: Duration = Duration::from_millis(20);

/// A step that was waited for.
pub(crate) enum Step {
    /// The other subtree has answered.
    Asked(Box<Answer>),
    /// The map has decided, and whoever goes first has done it.
    Decided(Decision),
}

/// A transaction in which this subtree takes part.
struct Open {
    record: TransactionRecord,
    /// Handles that come with an inode.
    holders: Holders,
    role: Role,
    /// What its `x/` builds on.
    reads: Reads,
    /// Batches that changed what others read from the pool, not yet in all shards.
    unsettled: SmallVec<[BatchId; 2]>,
    decision: Option<Decision>,
    /// Why it is aborted, if the client is to be told.
    refusal: Option<Error>,
}

impl Open {
    fn new(record: TransactionRecord, role: Role) -> Self {
        let (holders, reads, unsettled) = (Holders::default(), Reads::new(), SmallVec::new());
        Self { record, holders, role, reads, unsettled, decision: None, refusal: None }
    }
}

// Few are open at a time, and most are coordinators or have one: a box would save nothing.
#[allow(clippy::large_enum_variant)]
enum Role {
    /// It began here.
    Coordinator { job: Option<Job>, across: Box<Across>, epochs: SmallVec<[(SubtreeId, Epoch); 2]> },
    /// Asked by another subtree. The answer, and those who wait for it, until it is prepared.
    Participant { replies: Vec<Reply>, response: Box<PrepareResponse>, prepared: bool },
    /// Found in the pool when the subtree was opened.
    Found,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Transactions {
    open: BTreeMap<TransactionId, Open>,
    /// Those that were found and did not come to their end yet: until then nothing else runs.
    found: usize,
    /// By the batch that ends them.
    ending: BTreeMap<BatchId, Vec<TransactionId>>,
    finished: BTreeSet<TransactionId>,
    over: Over,
    telling: bool,
    /// Operations that wait for something else than a lock, by job.
    waiting: BTreeMap<u64, Job>,
    /// How often they were tried.
    tries: BTreeMap<u64, u32>,
    /// The name of the root in the map is not known to be that in its inode.
    root_is_due: bool,
}

impl Transactions {
    /// The subtree must not be frozen now.
    pub fn is_busy(&self) -> bool {
        !self.open.is_empty() || self.root_is_due
    }

    /// Something of the time before the opening has to be brought to its end first.
    pub fn is_recovering(&self) -> bool {
        self.found > 0
    }

    /// What came to its end, of coordinators that are no more (I8).
    pub fn forget_coordinators(&mut self, map: &ClusterMap) {
        self.over.keep(|coordinator| map.subtrees.contains_key(&coordinator));
    }

    pub fn waiting(&self) -> usize {
        self.open.len() + self.waiting.len()
    }

    pub fn take_jobs(&mut self) -> Vec<Job> {
        let mut jobs: Vec<Job> = std::mem::take(&mut self.waiting).into_values().collect();
        for open in std::mem::take(&mut self.open).into_values() {
            if let Role::Coordinator { job: Some(job), .. } = open.role {
                jobs.push(job);
            }
        }
        jobs
    }
}

pub(super) fn id_of(record: &TransactionRecord) -> TransactionId {
    TransactionId { coordinator: SubtreeId(record.coordinator), epoch: Epoch(record.epoch), number: record.number }
}

/// Handles as another rank tells them.
fn holders_of(handles: Vec<pando_proto::mds::HandOver>, append: (u64, bool)) -> Holders {
    let handles = handles.into_iter().map(|one| HandOver {
        client: ClientId(one.client_id),
        handle: one.handle,
        flags: one.flags,
        granted: one.granted,
        privileged: one.privileged,
    });
    Holders { handles: handles.collect(), append }
}

fn done_result() -> OperationResult {
    OperationResult { result: Some(operation_result::Result::Rename(RenameResponse {})) }
}

impl Subtree {
    /// Takes up what was found at the opening, before anything is served.
    pub(super) fn adopt_transactions(&mut self, records: Vec<TransactionRecord>) {
        for record in records {
            self.namespace.lock(&record);
            let open = Open::new(record, Role::Found);
            if self.transactions.open.insert(id_of(&open.record), open).is_none() {
                self.transactions.found += 1;
            }
        }
    }

    /// After the start: whatever is not decided yet is not to happen. A commit that is not in
    /// the map yet cannot win any more, for the epoch has risen.
    pub(super) fn resume_transactions(&mut self) {
        let found: Vec<TransactionId> = self.transactions.open.keys().copied().collect();
        for id in found {
            self.decide(id, false);
        }
        self.note_unfinished();
        self.rename_root_if_due();
    }

    /// Has the map decide, and waits until whoever goes first has done it.
    pub(super) fn decide(&mut self, id: TransactionId, commit: bool) {
        let Some(open) = self.transactions.open.get(&id) else { return };
        let epochs = |subtree: SubtreeId| match &open.role {
            Role::Coordinator { epochs, .. } if subtree != self.own.subtree => {
                epochs.iter().find(|(known, _)| *known == subtree).map_or(0, |(_, epoch)| epoch.0)
            }
            _ => self.own.epoch.0,
        };
        let request = asking::proposal(&open.record, commit, epochs);
        let own = self.own.subtree;
        let others = open.record.participants.iter().map(|id| SubtreeId(*id)).filter(|it| *it != own);
        let first: SmallVec<[SubtreeId; 2]> = others.filter(|_| id.coordinator == own).collect();
        let (mons, maps) = (Rc::clone(&self.outside.mons), self.maps.clone());
        self.spawn(async move {
            let (decision, epoch) = asking::decide(&mons, request).await;
            if decision == Decision::Committed {
                asking::await_finished(maps, id, &first, epoch).await;
            }
            Event::Transaction(id, Step::Decided(decision))
        });
    }

    pub(super) fn transaction_step(&mut self, id: TransactionId, step: Step) {
        match step {
            Step::Asked(answer) => self.answered(id, *answer),
            Step::Decided(decision) => {
                let Some(open) = self.transactions.open.get_mut(&id).filter(|open| open.decision.is_none()) else {
                    return;
                };
                open.decision = Some(decision);
                // R17: what happens now is part of the tree of that map, by which a split or merge says what lies where.
                if self.is_still_ours() {
                    self.map_changed(self.maps.current());
                }
                let job = self.new_job(Work::Conclude(id), ClientId(0), 0, To::Nobody);
                self.finds.push_back(job);
            }
        }
    }

    /// What was decided happens here.
    pub(super) fn run_conclude(&mut self, id: TransactionId) -> Outcome {
        let context = self.context_of_shell();
        let map = &self.map;
        let Some(open) = self.transactions.open.get_mut(&id) else {
            let error = Error::new(Reason::Internal, "a transaction ended twice");
            return Outcome::Done(Done { result: Err(error), reads: Reads::new(), change: None });
        };
        // A session that is gone closes nothing any more.
        open.holders.handles.retain(|one| map.session_is_live(one.client));
        let committed = open.decision == Some(Decision::Committed);
        self.namespace.conclude(&open.record, committed, &open.holders, &context)
    }

    /// It has happened, or not.
    pub(super) fn concluded(&mut self, job: Job, id: TransactionId, done: Done) {
        self.job_is_over(job.bytes);
        if job.rounds > 0 {
            self.namespace.unpin(job.id);
        }
        let (Ok(_), Some(change)) = (&done.result, done.change) else {
            let error = done.result.err().unwrap_or_else(|| Error::new(Reason::Internal, "R18: nothing to conclude"));
            tracing::error!(subtree = %self.own.subtree, ?id, %error, "R18: a decided transaction cannot be done");
            return self.reload(error);
        };
        let Some(open) = self.transactions.open.get_mut(&id) else { return };
        let committed = open.decision == Some(Decision::Committed);
        let completed = open.record.completed.clone().filter(|one| {
            let coordinates = id.coordinator == self.own.subtree;
            coordinates && committed && self.map.session_is_live(ClientId(one.client_id))
        });
        let (record, found) = (open.record.clone(), matches!(open.role, Role::Found));
        let (asked, reply) = match &mut open.role {
            Role::Coordinator { job, across, .. } => (job.take(), across.reply.take()),
            _ => (None, None),
        };
        let (decision, refusal) = (open.decision, open.refusal.take());
        let follow_ups = change.follow_up.clone();
        let batch = self.admit(change, &done.reads, completed.clone());
        for FollowUp::Purge(ino, record) in follow_ups {
            self.after_durable(batch, Then::Purge(ino, record));
        }
        self.transactions.ending.entry(batch).or_default().push(id);
        for ino in self.namespace.unlock(&record, committed) {
            self.wake(ino);
        }
        if found {
            self.transactions.found -= 1;
        }
        let reference = CompletedRef { subtree: self.own.subtree, epoch: self.own.epoch, batch };
        let refusal = refusal.or((decision == Some(Decision::Cycle)).then(|| Error::posix(Errno::EINVAL)));
        match (asked, reply) {
            (Some(asked), Some(reply)) if committed => self.did(asked, reply, batch, completed, reference),
            (Some(asked), _) => match refusal.filter(|_| !committed) {
                Some(error) => self.refuse_across(asked, error, Reads::from_slice(&[batch])),
                None => self.again(asked),
            },
            (None, _) => {
                // A repetition that came meanwhile has not run: nothing did.
                if let Some(one) = completed {
                    self.dedup.adopt(ClientId(one.client_id), one.request, one.result, reference);
                }
            }
        }
    }

    fn did(&mut self, job: Job, reply: OpReply, batch: BatchId, completed: Option<Completed>, reference: CompletedRef) {
        self.over(&job);
        let remember = completed.map(|one| Remember { result: one.result, reference: Some(reference) });
        self.hold_change(job, OperationResult { result: Some(reply) }, batch, remember, None);
    }

    /// The operation has its outcome.
    fn over(&mut self, job: &Job) {
        self.route_change_over(job.id);
        if job.rounds > 0 {
            self.namespace.unpin(job.id);
        }
    }

    pub(super) fn forget_tries(&mut self, job: u64) {
        if !self.transactions.tries.is_empty() {
            self.transactions.tries.remove(&job);
        }
    }

    fn refuse_across(&mut self, job: Job, error: Error, reads: Reads) {
        self.over(&job);
        let result = error_result(&self.signed(error));
        self.hold(job, result, reads, None);
    }

    /// Nothing of it was done, and nothing is locked for it: it is tried again in a moment. How long that is differs
    /// between subtrees and tries, so that two that meet do not meet for ever.
    fn again(&mut self, job: Job) {
        let tries = self.transactions.tries.entry(job.id).or_default();
        *tries += 1;
        let tries = *tries;
        if tries > MAX_TRIES {
            let error = overloaded("other operations between these subtrees are under way all the time");
            return self.refuse_across(job, error, Reads::new());
        }
        let spread = (self.own.subtree.0 * 7 + u64::from(tries) * (3 + self.own.subtree.0 % 5)) % 23;
        let (id, pause) = (job.id, Duration::from_millis(1 + spread));
        self.transactions.waiting.insert(id, job);
        self.spawn(async move {
            tokio::time::sleep(pause).await;
            Event::Again(id)
        });
    }

    pub(super) fn try_again(&mut self, job: u64) {
        if let Some(job) = self.transactions.waiting.remove(&job) {
            self.runnable.push_back(job);
        }
    }

    /// Everything that the batch carried is in its shards.
    pub(super) fn batch_is_settled(&mut self, batch: BatchId) {
        for id in self.transactions.ending.remove(&batch).unwrap_or_default() {
            if let Some(open) = self.transactions.open.remove(&id)
                && open.decision == Some(Decision::Committed)
            {
                for ino in self.namespace.handed_on(&open.record) {
                    self.wake(ino);
                }
            }
            self.transactions.finished.insert(id);
            self.transactions.over.add(id);
        }
        if !self.transactions.open.is_empty() {
            self.look_if_settled(batch);
        }
    }

    /// Tells the map what was done here.
    pub(super) fn tell_finished(&mut self) {
        if self.transactions.telling || self.transactions.finished.is_empty() {
            return;
        }
        self.transactions.telling = true;
        let told: Vec<TransactionId> = self.transactions.finished.iter().copied().take(MAX_TOLD).collect();
        let (mons, own) = (Rc::clone(&self.outside.mons), self.own);
        self.spawn(async move {
            match mons.finish(own.subtree, own.epoch, told.clone()).await {
                Ok(_) => Event::Told(told),
                Err(error) => {
                    tracing::debug!(%error, "the mons were not told that transactions have ended");
                    tokio::time::sleep(PAUSE).await;
                    Event::Told(Vec::new())
                }
            }
        });
    }

    pub(super) fn told(&mut self, told: Vec<TransactionId>) {
        self.transactions.telling = false;
        for id in told {
            self.transactions.finished.remove(&id);
        }
    }

    /// What the map still wants to hear of, and nobody here is at: it ended before it was told, or never began. Nor may
    /// it begin when the map has heard that, and forgotten it. Whose epoch is over knows nothing of that.
    pub(super) fn note_unfinished(&mut self) {
        if ownership(&self.map, self.own.subtree, self.rank, self.incarnation) != Some(self.own) {
            return;
        }
        let own = self.own.subtree;
        for id in self.map.transactions.keys().filter(|id| self.map.is_unfinished(**id, own)) {
            if !self.transactions.open.contains_key(id) {
                self.transactions.finished.insert(*id);
                self.transactions.over.add(*id);
            }
        }
    }

    /// R15: the inode of the root follows its name in the map.
    pub(super) fn rename_root_if_due(&mut self) {
        let has_name = self.map.subtrees.get(&self.own.subtree).is_some_and(|own| own.parent_dir.is_some());
        // R12: what stands still is clean. It is asked again at the thaw, and at each opening.
        if has_name && !self.transactions.root_is_due && !self.is_frozen() {
            self.transactions.root_is_due = true;
            let job = self.new_job(Work::RenameRoot, ClientId(0), 0, To::Nobody);
            self.finds.push_back(job);
        }
    }

    pub(super) fn run_rename_root(&mut self) -> Outcome {
        let context = self.context_of_shell();
        let own = self.map.subtrees.get(&self.own.subtree);
        let Some((dir, name)) = own.and_then(|own| Some((own.parent_dir?, bytes::Bytes::copy_from_slice(&own.name))))
        else {
            return Outcome::Done(Done { result: Ok(done_result()), reads: Reads::new(), change: None });
        };
        let outcome = self.namespace.rename_root(dir, &name, &context);
        if matches!(outcome, Outcome::Done(_)) {
            self.transactions.root_is_due = false;
        }
        outcome
    }
}

/// The result, encoded, for the session that asked.
fn completed_of(job: &Job, reply: &OpReply) -> Option<Completed> {
    let of_session = matches!(job.to, To::Stream(_));
    let result = OperationResult { result: Some(reply.clone()) };
    of_session.then(|| Completed { client_id: job.client.0, request: job.request, result: encode(&result) })
}
