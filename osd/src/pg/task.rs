//! The task that owns a placement group: takes inputs in batches, asks the core, does what it says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use pando_cluster_map::Pg as MapPg;
use pando_osd_core::{Action, Body, Change, Message, Pg, Reply, Request, Token, Verdict};
use pando_proto::osd::{CommitOutcome, CommitResponse, RaiseFenceResponse, TrimResponse, WriteResponse};
use pando_proto::{Error, OsdId, PgId, Reason};
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::fetch::Fetch;
use super::jobs::Done;
use super::{Answer, Call, Client, Input, MapView, Responder, Room};
use crate::engine::commit::Submitted;
use crate::engine::{CommitError, Transaction};
use crate::pgs::Osd;

/// Inputs that may wait for a placement group; senders then wait.
const QUEUE: usize = 1024;
/// Inputs handled in one turn.
const TURN: usize = 64;
/// Requests not answered yet.
const MAX_OPEN: usize = 32 << 10;
/// Requests that wait for a newer map (R14).
const MAX_BEHIND: usize = 4096;
/// How long they wait.
const BEHIND: Duration = Duration::from_secs(3);
/// How often the core may look after what it waits for.
const TICK: Duration = Duration::from_millis(500);
/// A transaction from this size on waits for room at the disk first.
const LARGE: usize = 64 << 10;

/// Starts the task of a placement group.
pub(crate) fn spawn(osd: &Arc<Osd>, id: PgId, view: Arc<MapView>) -> mpsc::Sender<Input> {
    let (sender, inputs) = mpsc::channel(QUEUE);
    let osd = Arc::clone(osd);
    tokio::spawn(async move {
        let stopped = osd.shutdown.clone();
        tokio::select! {
            () = stopped.stopped() => {}
            () = run(osd, id, view, inputs) => {}
        }
    });
    sender
}

async fn run(osd: Arc<Osd>, id: PgId, view: Arc<MapView>, mut inputs: mpsc::Receiver<Input>) {
    let pg = match super::damage::copy(&osd, id, &view).await {
        Ok(pg) => pg,
        Err(error) => return osd.fail(error),
    };
    let mut task = Task {
        pg,
        id,
        osd,
        view: Arc::clone(&view),
        commits: VecDeque::new(),
        jobs: FuturesUnordered::new(),
        open: FxHashMap::default(),
        next_token: 0,
        behind: VecDeque::new(),
        probes: BTreeMap::new(),
        discarding: false,
        damages: 0,
    };
    task.map(view);
    task.act().await;
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut turn = Vec::with_capacity(TURN);
    loop {
        tokio::select! {
            biased;
            committed = next_commit(&mut task.commits) => {
                let outcome = match committed.and_then(|()| task.committed()) {
                    Err(CommitError::Damaged(error)) => task.damaged(error).await,
                    outcome => outcome.map_err(|error| Error::new(Reason::Storage, error.to_string())),
                };
                if let Err(error) = outcome {
                    return task.osd.fail(error);
                }
            }
            Some(done) = task.jobs.next(), if !task.jobs.is_empty() => task.done(done),
            count = inputs.recv_many(&mut turn, TURN) => {
                if count == 0 {
                    return;
                }
                task.pg.set_full(task.osd.full.load(Ordering::Relaxed));
                for input in turn.drain(..) {
                    task.input(input);
                }
            }
            _ = tick.tick() => task.tick(),
        }
        task.act().await;
    }
}

/// The outcome of the oldest commit; waits for ever if there is none.
async fn next_commit(commits: &mut VecDeque<Submitted>) -> Result<(), CommitError> {
    match commits.front_mut() {
        Some(first) => first.await,
        None => std::future::pending().await,
    }
}

/// A request that is not answered yet; its room is free again with it.
pub(super) struct Open {
    /// Of a read.
    fetch: Option<Arc<Fetch>>,
    pub(super) responder: Responder,
    _room: Room,
}

pub(super) struct Task {
    pub(super) id: PgId,
    pub(super) osd: Arc<Osd>,
    pub(super) pg: Pg,
    pub(super) view: Arc<MapView>,
    pub(super) commits: VecDeque<Submitted>,
    pub(super) jobs: FuturesUnordered<BoxFuture<'static, Done>>,
    pub(super) open: FxHashMap<Token, Open>,
    next_token: Token,
    behind: VecDeque<(Instant, Client)>,
    /// Probes of primaries whose map is newer.
    probes: BTreeMap<OsdId, Message>,
    pub(super) discarding: bool,
    /// How often its copy was found damaged since it was complete.
    pub(super) damages: u32,
}

impl Task {
    fn input(&mut self, input: Input) {
        match input {
            Input::Requests(requests) => {
                let lease = self.osd.lease.is_valid();
                for request in requests {
                    self.client(request, lease);
                }
            }
            Input::Message(from, message) => self.message(from, message),
            Input::Peer(osd, true) => self.pg.peer_connected(osd),
            Input::Peer(osd, false) => self.pg.peer_disconnected(osd),
            Input::Map(view) => self.map(view),
        }
    }

    fn map(&mut self, view: Arc<MapView>) {
        if view.map.epoch < self.view.map.epoch {
            return;
        }
        self.pg.set_sessions(Arc::clone(&view.sessions));
        self.pg.configure(view.configuration(self.id));
        self.view = view;
        let lease = self.osd.lease.is_valid();
        for (_, client) in std::mem::take(&mut self.behind) {
            self.client(client, lease);
        }
        for (from, probe) in std::mem::take(&mut self.probes) {
            self.message(from, probe);
        }
    }

    /// A message of another OSD. Who is primary is in the map, and nowhere else (R26): a probe of a configuration that is
    /// not there yet waits for it (R14), and nothing else comes before the probe is answered.
    fn message(&mut self, from: OsdId, message: Message) {
        if message.body.is_from_primary() {
            let found = self.view.map.pgs.get(&self.id);
            let config = found.map_or(0, |pg| pg.config);
            if message.config > config {
                if matches!(message.body, Body::Probe { .. }) && self.view.map.osds.contains_key(&from) {
                    // One of each: a later one of the same OSD takes its place.
                    self.probes.insert(from, message);
                }
                return;
            }
            if message.config == config && found.and_then(MapPg::primary) != Some(from) {
                tracing::warn!(pg = %self.id, %from, config, "not the primary, and talks as if it were: ignored");
                return;
            }
        }
        self.pg.message(from, message);
    }

    fn client(&mut self, client: Client, lease: bool) {
        if client.map_epoch > self.view.map.epoch || self.is_behind() {
            return self.wait_for_map(client);
        }
        let refused = if !lease {
            Some(Error::new(Reason::Unavailable, "this OSD has no lease from the mon: try again"))
        } else if let Some(error) = self.unknown_owner(&client.call) {
            Some(error)
        } else if self.open.len() >= MAX_OPEN {
            Some(Error::new(Reason::Overloaded, format!("too many requests wait for placement group {}", self.id)))
        } else {
            None
        };
        if let Some(error) = refused {
            return client.responder.answer(Err(error));
        }
        self.next_token += 1;
        let token = self.next_token;
        let (request, fetch) = match client.call {
            Call::Write(request) => (request, None),
            Call::Read(fetch) => (Request::Read(fetch.reads()), Some(Arc::new(fetch))),
        };
        self.open.insert(token, Open { fetch, responder: client.responder, _room: client.room });
        self.pg.request(token, request);
    }

    /// An epoch of a subtree that the map does not give to anybody: whoever claims it would lock the owner out for good.
    /// The sender knows no newer map than this, so there is nothing to wait for (R14). What the map knew once may be
    /// fenced still.
    fn unknown_owner(&self, call: &Call) -> Option<Error> {
        let (subtree, epoch) = match call {
            Call::Write(Request::Commit(batch)) => (batch.subtree, batch.epoch),
            Call::Write(Request::RaiseFence { subtree, epoch, .. }) => (*subtree, *epoch),
            _ => return None,
        };
        let map = &self.view.map;
        let known = match map.subtrees.get(&subtree) {
            Some(found) => epoch <= found.epoch.0,
            None => subtree.0 < map.next_subtree_id,
        };
        let message = || format!("the map has no epoch {epoch} of {subtree}: fetch a newer map and try again");
        (!known).then(|| Error::new(Reason::Unavailable, message()).with_epoch(map.epoch.0))
    }

    /// A newer map is on its way through this process. The lease may have been granted under it (R13).
    fn is_behind(&self) -> bool {
        self.osd.map.current().epoch > self.view.map.epoch
    }

    /// R14: the sender knows a newer map.
    fn wait_for_map(&mut self, client: Client) {
        if self.behind.len() < MAX_BEHIND {
            self.behind.push_back((Instant::now() + BEHIND, client));
        } else {
            client.responder.answer(Err(Error::new(Reason::Overloaded, "too many requests wait for a newer map")));
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        while self.behind.front().is_some_and(|(deadline, _)| *deadline <= now) {
            if let Some((_, client)) = self.behind.pop_front() {
                let message = format!("this OSD has not got map {} yet: try again", client.map_epoch);
                client.responder.answer(Err(Error::new(Reason::Unavailable, message)));
            }
        }
        self.pg.set_full(self.osd.full.load(Ordering::Relaxed));
        if !self.pg.status().incomplete {
            self.damages = 0;
        }
        self.pg.tick();
        self.discard_leftover();
    }

    /// Begins to give up what is left of a placement group that others hold.
    fn discard_leftover(&mut self) {
        if !self.pg.is_leftover() || self.discarding || !self.is_held_by_others() || !self.osd.lease.is_valid() {
            return;
        }
        self.discarding = true;
        self.list_leftover();
    }

    /// The map shows all wanted members alive, and no place for this OSD.
    fn is_held_by_others(&self) -> bool {
        let map = &self.view.map;
        let Some(pg) = map.pgs.get(&self.id) else { return false };
        let size = map.pools.get(&self.id.pool).map_or(usize::MAX, |pool| pool.size as usize);
        let up = |osd: &OsdId| map.osds.get(osd).is_some_and(|osd| osd.up);
        let place = pg.members.iter().chain(&pg.joining).chain(&pg.absent).any(|osd| *osd == self.osd.me);
        !place && pg.members.len() >= size && pg.members.iter().all(up) && !self.is_behind()
    }

    /// The oldest commit is durable, and perhaps those behind it; what failed stays the oldest.
    fn committed(&mut self) -> Result<(), CommitError> {
        let mut count = 1;
        self.commits.pop_front();
        let mut failed = Ok(());
        while let Some(first) = self.commits.front_mut() {
            match first.now_or_never() {
                Some(Ok(())) => {}
                Some(error) => {
                    failed = error;
                    break;
                }
                None => break,
            }
            self.commits.pop_front();
            count += 1;
        }
        self.pg.committed(count);
        failed
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Fetched(results) => {
                // R13: after evaluating, before replying.
                let lease = self.osd.lease.is_valid();
                for (token, result) in results {
                    self.fetched(token, result, lease);
                }
            }
            Done::Loaded(ticket, load, result) => self.pg.loaded(ticket, load, result),
            Done::Sessions(ticket, result) => self.pg.sessions_loaded(ticket, result),
            Done::Tombstones(ticket, Ok((found, next))) => self.pg.tombstones_listed(ticket, found, next),
            Done::Tombstones(ticket, Err(error)) => {
                tracing::warn!(pg = %self.id, %error, "cannot list objects to find what may be forgotten");
                self.pg.tombstones_listed(ticket, Vec::new(), None);
            }
            Done::Objects(ticket, listed) => self.pg.objects_listed(ticket, listed),
            Done::Leftover(listed) => {
                self.discarding = false;
                if let Ok(objects) = listed
                    && self.is_held_by_others()
                {
                    tracing::info!(pg = %self.id, objects = objects.len(), "giving up a copy that has moved away");
                    self.pg.discard(objects);
                }
            }
            Done::Page(ticket, page) => self.pg.page(ticket, page),
            Done::Told => {}
        }
    }

    fn fetched(&mut self, token: Token, result: Result<Answer, Error>, lease: bool) {
        let verdict = match &result {
            Err(error) if matches!(error.reason, Reason::Corrupt | Reason::Storage) => self.pg.unreadable(token, error),
            _ => self.pg.fetched(token),
        };
        match verdict {
            Verdict::Drop => {}
            Verdict::Send => {
                let result = if lease && !self.is_behind() {
                    result
                } else {
                    Err(Error::new(Reason::Unavailable, "this OSD lost its lease: try again"))
                };
                self.answer(token, result);
            }
        }
    }

    pub(super) fn answer(&mut self, token: Token, result: Result<Answer, Error>) {
        if let Some(open) = self.open.remove(&token) {
            open.responder.answer(result);
        }
    }

    /// Does what the core wants, until it wants no more.
    async fn act(&mut self) {
        let mut reads = Vec::new();
        let mut commits = 0;
        loop {
            let actions = self.pg.take_actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    Action::Commit(changes) => {
                        commits += 1;
                        self.submit(changes, commits).await;
                    }
                    Action::Send(to, message) => self.osd.send(self.id, to, message),
                    Action::Reply(token, result) => self.answer(token, result.map(answer_of)),
                    Action::Fetch(token) => {
                        if let Some(fetch) = self.open.get(&token).and_then(|open| open.fetch.clone()) {
                            reads.push((token, fetch));
                        }
                    }
                    Action::Load { ticket, load } => self.load(ticket, load),
                    Action::LoadSessions(ticket) => self.load_sessions(ticket),
                    Action::ListTombstones { ticket, after } => self.list_tombstones(ticket, after),
                    Action::ListObjects { ticket, after } => self.list_objects(ticket, after),
                    Action::Page { ticket, query } => self.page(ticket, query),
                    Action::Confirm(osd) => self.confirm(osd),
                    Action::Demote(osd) => self.demote(osd),
                    Action::Lost(osd) => self.lost(osd),
                }
            }
        }
        if !reads.is_empty() {
            self.fetch(reads);
        }
    }

    async fn submit(&mut self, changes: Vec<Change>, number: usize) {
        let bytes: usize = changes.iter().map(change_bytes).sum();
        let commits = &self.osd.commits;
        if bytes >= LARGE || number.is_multiple_of(TURN) || commits.is_over_its_bounds() {
            // An error shows again when the transaction is submitted.
            let _ = self.osd.commits.ready().await;
        }
        self.commits.push_back(self.osd.commits.submit(Transaction { pg: self.id, changes }));
    }
}

fn change_bytes(change: &Change) -> usize {
    match change {
        Change::Put { key, value } => key.len() + value.len(),
        Change::Write { data, .. } => data.len(),
        _ => 64,
    }
}

fn answer_of(reply: Reply) -> Answer {
    match reply {
        Reply::Committed { fence_epoch } => {
            Answer::Commit(CommitResponse { outcome: CommitOutcome::Done.into(), fence_epoch })
        }
        Reply::Fenced { fence_epoch } => {
            Answer::Commit(CommitResponse { outcome: CommitOutcome::Fenced.into(), fence_epoch })
        }
        Reply::Raised(fence) => Answer::RaiseFence(RaiseFenceResponse {
            fence_epoch: fence.epoch,
            applied_epoch: fence.applied.0,
            applied_batch: fence.applied.1,
        }),
        Reply::Written { size } => Answer::Write(WriteResponse { size }),
        Reply::Trimmed => Answer::Trim(TrimResponse {}),
    }
}
