//! The actor that owns a subtree.
//!
//! Handlers only queue; the work is done in turns ([`turn`]), so that what many
//! connections sent is run together and no turn holds the rank's thread for
//! longer than a slice (R27). What takes time runs beside and comes back as an
//! [`Event`].

mod clients;
mod commit;
pub(crate) mod dedup;
mod fetch;
mod handover;
mod inos;
mod job;
mod merging;
mod orphans;
mod purge;
mod reply;
mod routes;
mod spill;
mod statfs;
mod transactions;
mod turn;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use actix::fut::ActorFuture;
use actix::{Actor, ActorContext as _, Addr, AsyncContext as _, Context, Handler, Message};
use pando_cluster_map::{ClusterMap, TransactionId};
use pando_mds_core::Namespace;
use pando_mds_core::api::{BatchId, Reads};
use pando_mds_core::pipeline::Pipeline;
use pando_mon_client::MapWatch;
use pando_proto::mds::{Operation, OperationResult, Request};
use pando_proto::{ClientId, Error, Ino, Rank, ShardId, SubtreeId};
use pando_rpc::{Clock, Lease};
use smallvec::SmallVec;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::full::Full;
use crate::io::Outside;
use crate::load::Gauge;
use crate::memory::{Memory, Share};
use crate::owner::Control;
use crate::session::{Connection, Interest, Sessions};
use crate::takeover::{Opened, Ownership};
use crate::trees::{Shape, Trees};
pub(crate) use commit::Committed;
use dedup::Dedup;
pub(crate) use handover::{
    Export, ExportStep, Find, Found, Freeze, Part, Place, Press, Release, Released, Thaw, Token,
};
use job::Job;
pub(crate) use job::is_read;
use reply::{Held, Outgoing};
pub(crate) use reply::{error_result, redirect};
pub(crate) use transactions::Prepare;
pub(crate) use turn::config;

/// Messages that may wait in the mailbox; a stream waits when it is full.
const MAILBOX: usize = 1024;

/// Requests of one frame of a connection.
pub(crate) struct Submit {
    pub connection: Arc<Connection>,
    pub lowest_unanswered: u64,
    pub requests: Vec<Request>,
}

/// A session has said how far it is, and something of it is remembered here (R9).
pub(crate) struct KeptAlive(pub ClientId);

/// One operation without a session.
pub(crate) struct Call {
    pub operation: Operation,
    pub reply: oneshot::Sender<OperationResult>,
}

/// A newer map.
pub(crate) struct MapChanged(pub Arc<ClusterMap>);

/// The subtree has another owner, or the rank stops: everything that waits is answered with this.
pub(crate) struct Stop(pub Error);

/// What came back from outside.
pub(crate) enum Event {
    Fetched(Vec<fetch::Arrived>),
    Committed(Committed),
    Fenced(ShardId, Result<u64, Error>),
    Inos(ShardId, Result<(Ino, u64), Error>),
    Spilled(Ino, Result<(), Error>),
    Purged(Ino),
    Usage(Result<(u64, u64), Error>),
    RoutesRaised(Result<SmallVec<[SubtreeId; 2]>, Error>),
    Merged(SubtreeId, Result<(), Error>),
    Transaction(TransactionId, transactions::Step),
    /// A directory became a subtree, or did not, for this job.
    Parted(u64, Result<(), transactions::Unparted>, Reads),
    /// This job is to be tried again.
    Again(u64),
    /// The map knows that these have ended.
    Told(Vec<TransactionId>),
    /// What could not be given up is to be tried again.
    ReapOn,
}

macro_rules! messages {
    ($($message:ty),*) => { $(impl Message for $message { type Result = (); })* };
}
messages!(Submit, KeptAlive, Call, MapChanged, Stop, Event, Freeze, Thaw, Release, Find, Export, Press, Prepare);

/// What a subtree is made of.
pub(crate) struct Parts {
    pub own: Ownership,
    pub rank: Rank,
    pub outside: Outside,
    pub clock: Arc<dyn Clock>,
    pub lease: Arc<Lease>,
    pub map: Arc<ClusterMap>,
    /// The newest one.
    pub maps: MapWatch,
    /// Of this process of the rank.
    pub incarnation: u64,
    /// Of the whole rank.
    pub memory: Memory,
    pub trees: Trees,
    pub sessions: Sessions,
    /// What it counts.
    pub gauge: Arc<Gauge>,
    /// The cache with which it begins.
    pub warm: Option<Namespace>,
    /// To whoever sees to its splits.
    pub control: mpsc::Sender<Control>,
    /// Of transactions; none is used twice by this process.
    pub numbers: Rc<Cell<u64>>,
    /// What the rank knows of the room in the pool.
    pub full: Rc<Full>,
}

/// See the module's text.
pub(crate) struct Subtree {
    own: Ownership,
    rank: Rank,
    outside: Outside,
    clock: Arc<dyn Clock>,
    lease: Arc<Lease>,
    map: Arc<ClusterMap>,
    maps: MapWatch,
    incarnation: u64,
    memory: Memory,
    trees: Trees,
    /// Of which sessions it has to hear.
    interest: Rc<Interest>,
    /// What the namespace was told last.
    shape: Option<Rc<Shape>>,
    gauge: Arc<Gauge>,
    /// When the heat was told.
    heat_told: std::time::Duration,
    /// How many awaited sessions the gauge was told of.
    awaited_told: Option<usize>,
    frost: handover::Frost,
    copy: handover::Copy,
    /// Directories that are looked for, also while nothing else runs.
    finds: VecDeque<Job>,
    routes: routes::Routes,
    merging: merging::Merging,
    transactions: transactions::Transactions,
    control: mpsc::Sender<Control>,
    numbers: Rc<Cell<u64>>,
    full: Rc<Full>,
    namespace: Namespace,
    pipeline: Pipeline,
    dedup: Dedup,
    /// Work that comes back as events; ends with the actor.
    tasks: JoinSet<()>,
    me: Option<Addr<Self>>,
    events: VecDeque<Event>,
    runnable: VecDeque<Job>,
    next_job: u64,
    /// Operations that have no outcome yet.
    jobs: usize,
    /// Bytes of data that they carry.
    job_bytes: usize,
    /// What all of it together is of the rank's.
    share: Share,
    /// Wall clock of this turn.
    now: i64,
    /// Something may be sent: the pipeline is to be asked.
    commits_due: bool,
    commits_in_flight: usize,
    outgoing: Outgoing,
    held: Held,
    fetching: fetch::Fetching,
    inos: inos::Inos,
    blocked: BTreeMap<Ino, Vec<Job>>,
    spills: spill::Spills,
    purges: purge::Purges,
    statfs: statfs::Statfs,
    orphans: orphans::Orphans,
    /// Sessions that may hold them open and have not registered again.
    awaited: BTreeMap<ClientId, clients::Awaited>,
    /// Sessions whose reclaims ended in this turn.
    due_to_register: Vec<ClientId>,
    /// Set when the actor can serve no longer; what waits is answered with it.
    ending: Option<Error>,
    /// Batches that the pool refused for want of space.
    refused: BTreeSet<BatchId>,
    then: AfterDurable,
    evictions_in_vain: u32,
    ended: Option<oneshot::Sender<()>>,
}

impl Subtree {
    /// Starts the actor on this thread's LocalSet. The receiver gets a message when it has ended.
    pub fn launch(parts: Parts, opened: Opened) -> (Addr<Self>, oneshot::Receiver<()>) {
        let (ended, end) = oneshot::channel();
        let subtree = Self::new(parts, opened, ended);
        (subtree.start(), end)
    }

    fn spawn(&mut self, work: impl Future<Output = Event> + 'static) {
        let Some(me) = self.me.clone() else { return };
        self.tasks.spawn_local(async move {
            let event = work.await;
            // Fails only if the actor is gone, and then nobody waits for the event.
            let _ = me.send(event).await;
        });
    }
}

impl Actor for Subtree {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        self.me = Some(ctx.address());
        self.resume();
        ctx.spawn(Turns);
    }
}

/// Polled whenever messages came in, after their handlers: runs a turn.
struct Turns;

impl ActorFuture<Subtree> for Turns {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        subtree: &mut Subtree,
        ctx: &mut Context<Subtree>,
        task: &mut TaskContext<'_>,
    ) -> Poll<()> {
        let more = subtree.turn();
        if subtree.is_over() {
            subtree.end();
            ctx.terminate();
            return Poll::Ready(());
        }
        if more {
            // The other tasks of this thread go first (R27).
            task.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Handler<Submit> for Subtree {
    type Result = ();
    fn handle(&mut self, submit: Submit, _: &mut Self::Context) {
        self.submit(submit);
    }
}

impl Handler<KeptAlive> for Subtree {
    type Result = ();
    fn handle(&mut self, KeptAlive(client): KeptAlive, _: &mut Self::Context) {
        self.kept_alive(client);
    }
}

impl Handler<Call> for Subtree {
    type Result = ();
    fn handle(&mut self, call: Call, _: &mut Self::Context) {
        self.call(call);
    }
}

impl Handler<MapChanged> for Subtree {
    type Result = ();
    fn handle(&mut self, MapChanged(map): MapChanged, _: &mut Self::Context) {
        self.map_changed(map);
    }
}

impl Handler<Stop> for Subtree {
    type Result = ();
    fn handle(&mut self, Stop(error): Stop, _: &mut Self::Context) {
        self.lose(error);
    }
}

impl Handler<Freeze> for Subtree {
    type Result = ();
    fn handle(&mut self, freeze: Freeze, _: &mut Self::Context) {
        self.freeze(freeze);
    }
}

impl Handler<Thaw> for Subtree {
    type Result = ();
    fn handle(&mut self, thaw: Thaw, _: &mut Self::Context) {
        self.thaw(thaw);
    }
}

impl Handler<Release> for Subtree {
    type Result = ();
    fn handle(&mut self, release: Release, _: &mut Self::Context) {
        self.hand_out(release);
    }
}

impl Handler<Find> for Subtree {
    type Result = ();
    fn handle(&mut self, find: Find, _: &mut Self::Context) {
        self.find(find);
    }
}

impl Handler<Export> for Subtree {
    type Result = ();
    fn handle(&mut self, export: Export, _: &mut Self::Context) {
        self.export(export);
    }
}

impl Handler<Press> for Subtree {
    type Result = ();
    fn handle(&mut self, _: Press, _: &mut Self::Context) {
        // The turn that follows evicts.
    }
}

impl Handler<Prepare> for Subtree {
    type Result = ();
    fn handle(&mut self, prepare: Prepare, _: &mut Self::Context) {
        self.prepare_asked(prepare);
    }
}

impl Handler<Event> for Subtree {
    type Result = ();
    fn handle(&mut self, event: Event, _: &mut Self::Context) {
        self.events.push_back(event);
    }
}

/// A batch with what is to be done once it is durable.
type AfterDurable = BTreeMap<BatchId, Vec<commit::Then>>;
