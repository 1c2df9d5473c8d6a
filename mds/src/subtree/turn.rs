//! A turn: a slice of events and operations, then everything that they caused leaves (R27).

use std::rc::Rc;
use std::time::Duration;

use pando_cluster_map::ClusterMap;
use pando_mds_core::Namespace;
use pando_mds_core::api::{CacheUsage, Context, Done, Outcome};
use pando_proto::mds::operation::Op;
use pando_proto::mds::{OperationResult, operation_result};
use pando_proto::{ClientId, Error, Reason};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::job::{Job, To, Work, data_bytes, is_read};
use super::orphans::Orphans;
use super::reply::error_result;
use super::{Event, Parts, Subtree};
use crate::memory::Kind;
use crate::session::{Interest, awaited};
use crate::takeover::{Opened, Ownership};

/// Operations in one turn.
const OPERATIONS_PER_TURN: usize = 128;
/// A turn that took this long ends early.
const TURN: Duration = Duration::from_micros(600);
/// Operations between two looks at the clock.
const LOOK: usize = 8;
/// Steps of eviction at the end of a turn.
const EVICTION_STEPS: usize = 64;
/// Slices of eviction in a row that may free nothing.
const MAX_IN_VAIN: u32 = 16;
/// A turn ends when its replies have so many bytes.
const MAX_TURN_BYTES: usize = 2 << 20;
/// Rounds of fetching that an operation may need before it is given up.
const MAX_ROUNDS: u32 = 20_000;
/// Between two looks at where the operations are.
const HEAT_PAUSE: Duration = Duration::from_millis(200);
const SOON: Duration = Duration::from_millis(10);
/// For what is repeated at once.
pub(super) const AT_ONCE: Duration = Duration::from_millis(1);

impl Subtree {
    pub(super) fn new(parts: Parts, opened: Opened, ended: oneshot::Sender<()>) -> Self {
        let Parts {
            own,
            rank,
            outside,
            clock,
            lease,
            map,
            maps,
            incarnation,
            memory,
            trees,
            sessions,
            gauge,
            warm,
            control,
            numbers,
            full,
        } = parts;
        let config = config(own, &map, memory.budget());
        let share = memory.share();
        let namespace = match warm {
            Some(mut warm) => {
                warm.set_budget(config.budget_bytes);
                // It was told of them by an older map.
                warm.set_inline_limit(config.inline_limit);
                warm.set_spread_shards(config.spread_shards);
                warm.set_object_size(config.object_size);
                warm
            }
            None => Namespace::new(config),
        };
        let mut subtree = Self {
            own,
            rank,
            outside,
            clock,
            lease,
            maps,
            incarnation,
            memory,
            trees,
            interest: Rc::new(Interest::new(sessions, own.subtree)),
            shape: None,
            gauge,
            heat_told: Duration::ZERO,
            awaited_told: None,
            frost: Default::default(),
            copy: Default::default(),
            finds: Default::default(),
            routes: Default::default(),
            merging: Default::default(),
            transactions: Default::default(),
            control,
            numbers,
            full,
            namespace,
            pipeline: opened.pipeline,
            dedup: opened.dedup,
            tasks: JoinSet::new(),
            me: None,
            events: Default::default(),
            runnable: Default::default(),
            next_job: 1,
            jobs: 0,
            job_bytes: 0,
            share,
            now: 0,
            commits_due: false,
            commits_in_flight: 0,
            outgoing: Default::default(),
            held: Default::default(),
            fetching: Default::default(),
            inos: Default::default(),
            blocked: Default::default(),
            spills: Default::default(),
            purges: Default::default(),
            statfs: Default::default(),
            orphans: Orphans::found(opened.orphans),
            awaited: awaited(&map, own.subtree).map(|client| (client, Default::default())).collect(),
            map,
            due_to_register: Default::default(),
            ending: None,
            refused: Default::default(),
            then: Default::default(),
            evictions_in_vain: 0,
            ended: Some(ended),
        };
        subtree.dedup.listen(&subtree.interest);
        subtree.interest.awaits(subtree.awaited.keys().copied());
        subtree.resume_purges(opened.purges);
        subtree.adopt_transactions(opened.transactions);
        if !subtree.awaited.is_empty() {
            subtree.namespace.begin_grace();
        }
        subtree.learn_map();
        subtree
    }

    /// After the start: goes on with what the takeover found.
    pub(super) fn resume(&mut self) {
        self.reap_if_all_are_back();
        self.start_purges();
        self.resume_transactions();
    }

    /// Runs a slice; true if there is more to do at once.
    pub(super) fn turn(&mut self) -> bool {
        self.now = self.clock.wall_nanos();
        let began = self.clock.boottime();
        self.namespace.note_awaited(self.awaited.len());
        let (mut left, mut ran) = (OPERATIONS_PER_TURN, 0);
        while left > 0 {
            if let Some(event) = self.events.pop_front() {
                self.on_event(event);
                left = left.saturating_sub(4);
            } else if let Some(job) = self.next_job() {
                self.run(job);
                ran += 1;
                left -= 1;
            } else {
                break;
            }
            if self.is_over() || self.outgoing_bytes() > MAX_TURN_BYTES {
                break;
            }
            if left.is_multiple_of(LOOK) && self.clock.boottime().saturating_sub(began) > TURN {
                break;
            }
        }
        let evicting = self.flush();
        self.count(began, ran);
        evicting || !self.events.is_empty() || self.has_jobs()
    }

    /// For the balancer.
    fn count(&mut self, began: Duration, ran: u64) {
        let now = self.clock.boottime();
        self.gauge.turn(ran, now.saturating_sub(began), self.namespace.usage().inodes);
        // Only ever fewer after the opening.
        if self.awaited_told.replace(self.awaited.len()) != Some(self.awaited.len()) {
            self.gauge.awaits(self.awaited.keys().copied());
        }
        if now.saturating_sub(self.heat_told) > HEAT_PAUSE {
            self.heat_told = now;
            self.gauge.warm(self.namespace.heat());
        }
    }

    fn next_job(&mut self) -> Option<Job> {
        if self.ending.is_some() {
            return None;
        }
        let found = self.finds.pop_front();
        if found.is_none() && self.may_run() { self.runnable.pop_front() } else { found }
    }

    fn has_jobs(&self) -> bool {
        self.ending.is_none() && (!self.finds.is_empty() || (self.may_run() && !self.runnable.is_empty()))
    }

    /// What the time before the opening left undone comes first (R18).
    fn may_run(&self) -> bool {
        self.is_running() && !self.transactions.is_recovering()
    }

    /// Sends what the turn caused; true if more is to be evicted.
    fn flush(&mut self) -> bool {
        if self.ending.is_none() {
            self.register_due();
            self.start_fetches();
            self.send_commits();
            self.raise_fences();
            self.tell_finished();
        }
        self.send_replies();
        while let Some(ended) = self.tasks.try_join_next() {
            // What it was to bring will never come: the actor cannot go on either.
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        self.look_if_drained();
        self.tell_share();
        self.evict()
    }

    /// What it holds for others to see (I8).
    fn tell_share(&mut self) {
        self.share.tell([self.jobs, self.job_bytes, self.pipeline.pending_bytes(), self.reply_bytes()]);
    }

    /// A slice of eviction (R27); true if another is worth it at once. When all that is left is pinned it is
    /// tried again with the next turn.
    fn evict(&mut self) -> bool {
        let total = |used: &CacheUsage| used.meta_bytes + used.body_bytes;
        let before = self.namespace.usage();
        let allowed = self.memory.report(self.own.subtree, before);
        if total(&before) <= allowed {
            return false;
        }
        self.namespace.set_budget(allowed);
        let more = self.namespace.evict(EVICTION_STEPS);
        let after = self.namespace.usage();
        self.memory.report(self.own.subtree, after);
        if total(&after) < total(&before) {
            self.evictions_in_vain = 0;
            return more;
        }
        self.evictions_in_vain = (self.evictions_in_vain + 1) % MAX_IN_VAIN;
        more && self.evictions_in_vain != 0
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Fetched(arrived) => self.fetched(arrived),
            Event::Committed(committed) => self.committed(committed),
            Event::Fenced(shard, fence) => self.fence_raised(shard, fence),
            Event::Inos(shard, range) => self.inos_arrived(shard, range),
            Event::Spilled(ino, outcome) => self.spilled(ino, outcome),
            Event::Purged(ino) => self.purged(ino),
            Event::Usage(usage) => self.usage_arrived(usage),
            Event::RoutesRaised(raised) => self.routes_raised(raised),
            Event::Merged(child, outcome) => self.merged(child, outcome),
            Event::Transaction(id, step) => self.transaction_step(id, step),
            Event::Parted(job, parted, reads) => self.parted(job, parted, reads),
            Event::Again(job) => self.try_again(job),
            Event::Told(told) => self.told(told),
            Event::ReapOn => self.reap_on(),
        }
    }

    pub(super) fn context(&self, job: &Job) -> Context {
        let awaited = !self.awaited.is_empty() && self.awaited.contains_key(&job.client);
        Context { now: self.now, client: job.client, routes: job.routes.clone(), awaited }
    }

    /// For what the shell does on its own.
    pub(super) fn context_of_shell(&self) -> Context {
        Context { now: self.now, ..Context::default() }
    }

    pub(super) fn new_job(&mut self, work: Work, client: ClientId, request: u64, to: To) -> Job {
        let id = self.next_job;
        self.next_job += 1;
        let bytes = match &work {
            Work::Operation(operation) => data_bytes(operation),
            _ => 0,
        };
        self.jobs += 1;
        self.job_bytes += bytes;
        let seen = self.map.epoch;
        Job {
            id,
            work,
            client,
            request,
            to,
            rounds: 0,
            tracked: false,
            perhaps_copy: false,
            seen,
            bytes,
            ways: [0, 0],
            second: pando_proto::SubtreeId(0),
            asked: self.own.subtree.0,
            routes: SmallVec::new(),
        }
    }

    /// A job that carried so many bytes has its outcome.
    pub(super) fn job_is_over(&mut self, bytes: usize) {
        self.jobs -= 1;
        self.job_bytes -= bytes;
    }

    /// Queues a job, or answers that there are too many.
    pub(super) fn enqueue(&mut self, job: Job) {
        if !self.share.has_room(Kind::Jobs, self.jobs) || !self.share.has_room(Kind::JobBytes, self.job_bytes) {
            return self.fail(job, overloaded("too many operations wait for their turn"));
        }
        self.runnable.push_back(job);
    }

    /// Runs an operation to its outcome.
    pub(super) fn run(&mut self, job: Job) {
        let Some(mut job) = self.still_to_run(job) else { return };
        let context = self.context(&job);
        let outcome = match &job.work {
            Work::Operation(operation) => {
                if matches!(operation.op, Some(Op::Statfs(_))) && !self.space_is_fresh() {
                    return self.statfs(job);
                }
                if job.to.is_congested() || !self.share.has_room(Kind::ReplyBytes, self.reply_bytes()) {
                    return self.fail(job, overloaded("too many replies wait to be sent"));
                }
                let pending = self.pipeline.pending_bytes();
                if !is_read(operation) && !self.share.has_room(Kind::PendingBytes, pending) {
                    return self.fail(job, overloaded("too many changes wait to be durable"));
                }
                self.namespace.apply(operation, &context)
            }
            Work::Reap(ino) => self.namespace.reap_orphan(*ino, &context),
            Work::Find(_) => match self.run_find(job) {
                Some((again, outcome)) => {
                    job = again;
                    outcome
                }
                None => return,
            },
            Work::Welcome(_) => match self.run_welcome(job) {
                Some((again, outcome)) => {
                    job = again;
                    outcome
                }
                None => return,
            },
            Work::Conclude(id) => {
                let id = *id;
                match self.run_conclude(id) {
                    Outcome::Done(done) => return self.concluded(job, id, done),
                    other => other,
                }
            }
            Work::RenameRoot => self.run_rename_root(),
        };
        match outcome {
            Outcome::Done(done) => self.done(job, done),
            Outcome::Missing(fetches) => {
                job.rounds += 1;
                if job.rounds > MAX_ROUNDS {
                    return self.fail(job, overloaded("the operation needs more of the cache than there is"));
                }
                self.fetch(job, fetches);
            }
            Outcome::Wait(ino) => self.wait_for_ino(job, ino),
            Outcome::NeedInos(shard) => self.need_inos(job, shard),
            Outcome::NeedSpill(ino) => self.need_spill(job, ino),
            Outcome::CutFirst(ino, change) => self.cut_first(job, ino, change),
            Outcome::Cross { crossings, reads } => self.cross(job, crossings, reads),
            Outcome::NeedRoutes(subtrees) => self.need_routes(job, subtrees),
            Outcome::NeedMerge(child) => self.need_merge(job, child),
            Outcome::Across(across, reads) => self.across(job, across, reads),
        }
    }

    pub(super) fn wait_for_ino(&mut self, mut job: Job, ino: pando_proto::Ino) {
        if self.parked() >= super::fetch::MAX_PARKED && !job.is_due() {
            return self.fail(job, overloaded("too many operations wait"));
        }
        self.track(&mut job);
        self.blocked.entry(ino).or_default().push(job);
        self.hurry_purge(ino);
    }

    /// Runs again what waited for an ino.
    pub(super) fn wake(&mut self, ino: pando_proto::Ino) {
        for job in self.blocked.remove(&ino).unwrap_or_default() {
            self.requeue(job);
        }
    }

    /// Runs a job again. Some go on while the subtree is frozen.
    pub(super) fn requeue(&mut self, job: Job) {
        match job.work {
            Work::Find(_) | Work::Conclude(_) | Work::RenameRoot => self.finds.push_back(job),
            Work::Welcome(ref asked) if asked.is_own() => self.finds.push_back(job),
            // Two that stand still do not wait for each other.
            Work::Welcome(_) if !self.is_running() => self.turn_away(job),
            _ => self.runnable.push_back(job),
        }
    }

    fn done(&mut self, job: Job, done: Done) {
        self.route_change_over(job.id);
        if job.rounds > 0 {
            self.namespace.unpin(job.id);
        }
        self.reclaim_ended(&job);
        if let Work::Reap(_) = job.work {
            self.reaped();
        }
        let result = match done.result {
            Ok(result) => result,
            Err(error) => error_result(&self.signed(error)),
        };
        match done.change {
            None => self.hold(job, result, done.reads, None),
            Some(change) => self.change(job, result, done.reads, change),
        }
    }

    pub(super) fn fail(&mut self, job: Job, error: Error) {
        if job.is_due() {
            // What was decided has to be done: opened again, it is tried again.
            self.job_is_over(job.bytes);
            return self.reload(error);
        }
        self.route_change_over(job.id);
        self.reclaim_ended(&job);
        if job.rounds > 0 {
            self.namespace.unpin(job.id);
        }
        if let Work::Reap(ino) = job.work {
            self.not_reaped(ino);
        }
        let result = error_result(&self.signed(error));
        self.hold(job, result, Default::default(), None);
    }

    /// Errors say who found them, and under which epoch.
    pub(super) fn signed(&self, mut error: Error) -> Error {
        error.rank = Some(self.rank.0);
        error.epoch.get_or_insert(self.own.epoch.0);
        error
    }
}

pub(super) fn overloaded(message: &str) -> Error {
    Error::new(Reason::Overloaded, message).retry_after(SOON)
}

/// Whether a result is an error.
pub(super) fn is_error(result: &OperationResult) -> bool {
    matches!(result.result, Some(operation_result::Result::Error(_)) | None)
}

/// What a namespace of this subtree is told when it starts.
pub(crate) fn config(own: Ownership, map: &ClusterMap, budget_bytes: u64) -> pando_mds_core::Config {
    pando_mds_core::Config {
        root: own.root,
        subtree: own.subtree,
        budget_bytes,
        inline_limit: map.inline_limit(),
        spread_shards: map.spread_shards(),
        object_size: map.object_size(),
        data_pool: map.data_pool(),
        ..pando_mds_core::Config::default()
    }
}
