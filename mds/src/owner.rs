//! Who looks after the subtrees that the map gives to this rank: one task for each, which takes it over, hands maps
//! to its actor, and sees to its splits, merges and moves, one at a time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use pando_cluster_map::ClusterMap;
use pando_mds_core::Namespace;
use pando_proto::mds::Target;
use pando_proto::{Epoch, Error, Ino, Rank, Reason, SubtreeId};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::doors::{self, Doors};
use crate::full::Full;
use crate::memory::Memory;
use crate::moving::{self, Task, millis};
use crate::rank::{Parts, Served, Shared};
use crate::subtree::{self, MapChanged, Press, Stop, Subtree};
use crate::takeover::{Ownership, take_over};
use crate::trees::Trees;

/// For the map of a command that was done.
const MAP_WAIT: Duration = Duration::from_secs(10);
/// Wait before a takeover is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// Before a subtree is opened again and again because the pool refuses something: a full cluster still deletes (I9).
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// An actor that lived so long did not end at once.
const LONG_LIFE: Duration = Duration::from_secs(1);
/// Of a subtree that was just split off.
const FIRST_EPOCH: Epoch = Epoch(1);
/// Between two looks at who is over its share of the memory.
const PRESS_PAUSE: Duration = Duration::from_millis(10);
/// Requests of administrators that may wait for one subtree.
const CONTROLS: usize = 16;

/// What a person, or the balancer, wants of a subtree.
pub(crate) enum Control {
    /// Split this directory off; `automatic` if no person asks for it.
    Split { target: Target, automatic: bool, reply: Reply },
    /// Merge the subtree into its parent.
    Merge(Reply),
}

/// The new subtree (or that which is left), and the map in which it stands.
pub(crate) type Reply = oneshot::Sender<Result<(SubtreeId, Epoch), Error>>;

/// What all owners of a rank share.
#[derive(Clone)]
pub(crate) struct Common {
    pub shared: Arc<Shared>,
    pub parts: Rc<Parts>,
    pub memory: Memory,
    pub trees: Trees,
    doors: Doors,
    pub nursery: Nursery,
    /// The last number of a transaction.
    pub numbers: Rc<Cell<u64>>,
    pub full: Rc<Full>,
}

/// Caches of subtrees that were just split off, or that others were merged into, until they are opened.
#[derive(Clone, Default)]
pub(crate) struct Nursery(Rc<Cradle>);

#[derive(Default)]
struct Cradle {
    /// Roots of subtrees that are about to appear in the map: nobody opens them before their cache is here.
    awaited: RefCell<BTreeSet<Ino>>,
    ready: RefCell<BTreeMap<SubtreeId, Namespace>>,
    changed: Notify,
    /// Subtrees of which a merge decides what becomes of their caches.
    claimed: RefCell<BTreeSet<SubtreeId>>,
    unclaimed: Notify,
    joined: RefCell<BTreeMap<SubtreeId, Warm>>,
}

/// A merge into a subtree is about to be proposed: until this is dropped, whoever looks after that subtree opens it no
/// more.
pub(crate) struct Claim {
    cradle: Rc<Cradle>,
    subtree: SubtreeId,
}

impl Claim {
    /// The subtree is to be opened with this.
    pub fn leave(self, warm: Warm) {
        self.cradle.joined.borrow_mut().insert(self.subtree, warm);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.cradle.claimed.borrow_mut().remove(&self.subtree);
        self.cradle.unclaimed.notify_waiters();
    }
}

impl Nursery {
    pub fn await_birth(&self, root: Ino) {
        self.0.awaited.borrow_mut().insert(root);
    }

    /// With the cache, or, if nothing was born or it is cold, without.
    pub fn born(&self, root: Ino, born: Option<(SubtreeId, Namespace)>) {
        self.0.awaited.borrow_mut().remove(&root);
        self.0.ready.borrow_mut().extend(born);
        self.0.changed.notify_one();
    }

    /// One merge into a subtree at a time: it is frozen by it.
    pub fn claim(&self, subtree: SubtreeId) -> Claim {
        self.0.claimed.borrow_mut().insert(subtree);
        Claim { cradle: Rc::clone(&self.0), subtree }
    }

    /// Ends when no merge into it is under way.
    async fn unclaimed(&self, subtree: SubtreeId) {
        loop {
            let changed = self.0.unclaimed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.0.claimed.borrow().contains(&subtree) {
                return;
            }
            changed.await;
        }
    }

    fn take_joined(&self, subtree: SubtreeId) -> Option<Warm> {
        self.0.joined.borrow_mut().remove(&subtree)
    }

    fn is_awaited(&self, root: Ino) -> bool {
        self.0.awaited.borrow().contains(&root)
    }

    fn take(&self, subtree: SubtreeId) -> Option<Warm> {
        let namespace = self.0.ready.borrow_mut().remove(&subtree)?;
        Some(Warm { epoch: FIRST_EPOCH, namespace })
    }

    /// A cache is good for one epoch of its subtree only: what is not opened in it is of no use.
    fn forget_missed(&self, map: &ClusterMap, parts: &Parts) {
        let mut ready = self.0.ready.borrow_mut();
        let epoch_of = |subtree| ownership(map, subtree, parts.rank, parts.incarnation).map(|own| own.epoch);
        ready.retain(|subtree, _| epoch_of(*subtree) == Some(FIRST_EPOCH));
        // The map of a merge may still be on its way.
        let mut joined = self.0.joined.borrow_mut();
        joined.retain(|subtree, warm| epoch_of(*subtree).is_some_and(|epoch| epoch <= warm.epoch));
    }
}

/// A cache with which a subtree is opened: exact in this epoch, and in no other.
pub(crate) struct Warm {
    pub epoch: Epoch,
    pub namespace: Namespace,
}

/// Keeps a task for each subtree that is ours, until the rank stops.
pub(crate) async fn own_all(shared: Arc<Shared>, parts: Parts, memory: Memory) {
    let crowd = Arc::clone(&shared);
    let common = Common {
        shared,
        parts: Rc::new(parts),
        memory,
        trees: Trees::default(),
        doors: Doors::new(move |subtree| crowd.crowd(subtree)),
        nursery: Nursery::default(),
        numbers: Rc::default(),
        full: Rc::default(),
    };
    let mut map = common.parts.map.clone();
    let mut owners = JoinSet::new();
    let mut owned = BTreeSet::new();
    loop {
        let current = map.current();
        if !common.shared.shutdown.is_stopping() {
            for subtree in ours(&current, &common.parts) {
                let root = current.subtrees.get(&subtree).map_or(Ino(0), |subtree| subtree.root);
                if common.nursery.is_awaited(root) || !owned.insert(subtree) {
                    continue;
                }
                let warm = common.nursery.take(subtree);
                let owner = Owner { common: common.clone(), subtree, before: None, pause: Duration::ZERO, warm };
                owners.spawn_local(owner.run());
            }
            common.nursery.forget_missed(&current, &common.parts);
            common.shared.imports.forget_missed(&current, common.parts.rank);
        } else if owners.is_empty() {
            return;
        }
        tokio::select! {
            _ = map.changed() => {}
            () = common.nursery.0.changed.notified() => {}
            Some(ended) = owners.join_next() => {
                match ended {
                    Ok(subtree) => drop(owned.remove(&subtree)),
                    Err(error) => common.shared.break_down(format!("who looks after a subtree has ended: {error}")),
                }
            }
            () = common.memory.pressed() => {
                for (_, served) in common.shared.all_served() {
                    // A full mailbox means that it has turns enough.
                    let _ = served.address.try_send(Press);
                }
                tokio::time::sleep(PRESS_PAUSE).await;
            }
            () = common.shared.shutdown.stopped(), if !common.shared.shutdown.is_stopping() => {}
        }
    }
}

fn ours(map: &ClusterMap, parts: &Parts) -> Vec<SubtreeId> {
    map.subtrees
        .keys()
        .copied()
        .filter(|subtree| ownership(map, *subtree, parts.rank, parts.incarnation).is_some())
        .collect()
}

/// What the map says this incarnation owns.
pub(crate) fn ownership(map: &ClusterMap, subtree: SubtreeId, rank: Rank, incarnation: u64) -> Option<Ownership> {
    let ours = map.ranks.get(&rank).is_some_and(|info| info.incarnation == incarnation);
    let found = map.subtrees.get(&subtree).filter(|found| ours && found.owner == rank)?;
    Some(Ownership { subtree, epoch: found.epoch, root: found.root })
}

/// Looks after one subtree.
pub(crate) struct Owner {
    pub common: Common,
    pub subtree: SubtreeId,
    /// The last ownership under which it was served here.
    before: Option<Ownership>,
    /// Before it is opened again, if its actor does not live long.
    pause: Duration,
    warm: Option<Warm>,
}

/// What a split, merge or move that has ended leaves behind.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The cache with which the subtree goes on here.
    pub warm: Option<Warm>,
}

/// A split, merge or move under way.
struct Work {
    future: Pin<Box<dyn Future<Output = Outcome>>>,
    /// It has proposed, or is about to: its outcome is awaited, whatever the map says (R12).
    committing: Rc<Cell<bool>>,
}

impl Owner {
    async fn run(mut self) -> SubtreeId {
        let mut map = self.common.parts.map.clone();
        let shared = Arc::clone(&self.common.shared);
        while !shared.shutdown.is_stopping() {
            let current = map.current();
            let Some(own) = self.ownership(&current) else { break };
            if !self.common.parts.lease.is_valid() {
                tokio::select! {
                    _ = map.changed() => {}
                    () = tokio::time::sleep(RETRY) => {}
                    () = shared.shutdown.stopped() => {}
                }
                continue;
            }
            if self.before == Some(own) {
                self.renew(own).await;
                continue;
            }
            let began = Instant::now();
            self.open(own, &current).await;
            if began.elapsed() >= LONG_LIFE {
                self.pause = Duration::ZERO;
            }
        }
        shared.turn_out(self.subtree);
        self.common.memory.forget(self.subtree);
        self.common.parts.loads.forget(self.subtree);
        self.subtree
    }

    fn ownership(&self, map: &ClusterMap) -> Option<Ownership> {
        ownership(map, self.subtree, self.common.parts.rank, self.common.parts.incarnation)
    }

    /// It was served here under this epoch, and ended because the pool refused something. What was then under way, what
    /// was told to clients (who has named its handles, R19) and which batch numbers were used (R2) was the affair of an
    /// actor that is no more: the next one gets an epoch of its own.
    async fn renew(&mut self, own: Ownership) {
        // What ends again and again asks the mons for less and less.
        let pause = self.pause;
        self.pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        let renewing = async {
            tokio::time::sleep(pause).await;
            let wait = match self.common.parts.outside.mons.renew(own.subtree, own.epoch).await {
                Ok(_) => MAP_WAIT,
                Err(error) => {
                    tracing::warn!(subtree = %own.subtree, %error, "the mons do not begin its next epoch; tried again");
                    RETRY
                }
            };
            tokio::time::sleep(wait).await;
        };
        tokio::select! {
            () = renewing => {}
            () = self.superseded(own) => {}
            () = self.common.shared.shutdown.stopped() => {}
        }
    }

    /// Takes the subtree over and serves it until that ends.
    async fn open(&mut self, own: Ownership, map: &Arc<ClusterMap>) {
        let (shared, parts) = (Arc::clone(&self.common.shared), Rc::clone(&self.common.parts));
        // Whatever is opened now: it is as old as what ended.
        if let Some(joined) = self.common.nursery.take_joined(self.subtree) {
            self.warm = Some(joined);
        }
        let records = Rc::clone(&parts.outside.records);
        // What was served here a moment ago is not one of many that come at once.
        let is_new = self.before.is_none() && self.warm.is_none();
        let taking = async {
            let pass = if is_new { Some(self.common.doors.enter(self.subtree).await) } else { None };
            let taking = take_over(records, own, map, shared.clock.wall_nanos());
            tokio::pin!(taking);
            if let Ok(opened) = tokio::time::timeout(doors::PATIENCE, &mut taking).await {
                return opened;
            }
            // It waits for a placement group that is down: the others need not.
            drop(pass);
            taking.await
        };
        let opened = tokio::select! {
            opened = taking => opened,
            () = self.superseded(own) => return,
            () = shared.shutdown.stopped() => return,
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(subtree = %own.subtree, epoch = %own.epoch, %error, "taking over failed; it is tried again");
                return tokio::time::sleep(RETRY).await;
            }
        };
        let copied = shared.imports.take(own.subtree, map);
        let kept = self.warm.take().filter(|warm| warm.epoch == own.epoch).map(|warm| warm.namespace);
        let warm = kept.or(copied);
        tracing::info!(
            subtree = %own.subtree, epoch = %own.epoch, shards = opened.shards, warm = warm.is_some(),
            fences_ms = millis(opened.took.fences), reading_ms = millis(opened.took.reading),
            adopting_ms = millis(opened.took.adopting), "a subtree is served"
        );
        let (control, controls) = mpsc::channel(CONTROLS);
        let launch = subtree::Parts {
            own,
            rank: parts.rank,
            outside: parts.outside.clone(),
            clock: Arc::clone(&shared.clock),
            lease: Arc::clone(&parts.lease),
            // The sessions of this map were known at the takeover (R19); newer maps follow at once.
            map: Arc::clone(map),
            maps: parts.map.clone(),
            incarnation: parts.incarnation,
            memory: self.common.memory.clone(),
            trees: self.common.trees.clone(),
            sessions: shared.sessions.clone(),
            gauge: parts.loads.gauge(own.subtree),
            warm,
            control: control.clone(),
            numbers: Rc::clone(&self.common.numbers),
            full: Rc::clone(&self.common.full),
        };
        let (address, ended) = Subtree::launch(launch, opened);
        shared.serve(own.subtree, Some(Served { address: address.clone(), control }));
        let ended = self.attend(own, &address, ended, controls).await;
        shared.serve(own.subtree, None);
        self.common.memory.forget(own.subtree);
        match ended {
            Some(()) => self.before = Some(own),
            // Nobody knows what of it is in flight, and what else in this process it has left as it should not be (I4):
            // only another incarnation may open the subtree.
            None => shared.break_down(format!("the actor of {} has panicked", own.subtree)),
        }
    }

    /// Ends when the map gives the subtree to somebody else, or to us anew.
    async fn superseded(&self, own: Ownership) {
        let mut map = self.common.parts.map.clone();
        while self.ownership(&map.current()) == Some(own) {
            map.changed().await;
        }
    }

    /// Hands maps to the actor until it ends, or has to.
    async fn attend(
        &mut self,
        own: Ownership,
        address: &Addr<Subtree>,
        mut ended: oneshot::Receiver<()>,
        mut controls: mpsc::Receiver<Control>,
    ) -> Option<()> {
        let mut map = self.common.parts.map.clone();
        let mut work: Option<Work> = None;
        let mut tried = 0;
        loop {
            let current = map.current();
            if let Some(reason) = self.reason_to_stop(&current, own) {
                self.conclude(work).await;
                // The newer map says where to redirect what waits.
                let _ = address.send(MapChanged(map.current())).await;
                let _ = address.send(Stop(reason)).await;
                return ended.await.ok();
            }
            if work.is_none()
                && let Some(wanted) = moving::wanted(&current, own, tried)
            {
                tried = wanted.move_id;
                work = Some(self.begin(own, address, |task| Box::pin(moving::migrate(task, wanted))));
            }
            let _ = address.send(MapChanged(current)).await;
            tokio::select! {
                _ = map.changed() => {}
                () = self.common.shared.shutdown.stopped() => {}
                gone = &mut ended => {
                    self.conclude(work).await;
                    return gone.ok();
                }
                outcome = done(&mut work) => {
                    work = None;
                    self.warm = outcome.warm;
                }
                Some(control) = controls.recv() => match control {
                    Control::Split { reply, .. } | Control::Merge(reply) if work.is_some() => {
                        let _ = reply.send(Err(busy(self.subtree)));
                    }
                    Control::Split { target, automatic, reply } => {
                        let split = |task| -> Pin<Box<dyn Future<Output = Outcome>>> {
                            Box::pin(moving::split(task, target, automatic, reply))
                        };
                        work = Some(self.begin(own, address, split));
                    }
                    Control::Merge(reply) => {
                        work = Some(self.begin(own, address, |task| Box::pin(moving::merge(task, reply))));
                    }
                },
            }
        }
    }

    fn begin(
        &self,
        own: Ownership,
        address: &Addr<Subtree>,
        work: impl FnOnce(Task) -> Pin<Box<dyn Future<Output = Outcome>>>,
    ) -> Work {
        let committing = Rc::new(Cell::new(false));
        let task =
            Task { common: self.common.clone(), own, address: address.clone(), committing: Rc::clone(&committing) };
        Work { future: work(task), committing }
    }

    /// The subtree ends here. What was proposed comes to its end first: it knows what becomes of the cache.
    async fn conclude(&mut self, work: Option<Work>) {
        let shutdown = self.common.shared.shutdown.clone();
        if let Some(work) = work.filter(|work| work.committing.get()) {
            tokio::select! {
                outcome = work.future => self.warm = outcome.warm,
                () = shutdown.stopped() => {}
            }
        }
        // A child may be merging into it.
        tokio::select! {
            () = self.common.nursery.unclaimed(self.subtree) => {}
            () = shutdown.stopped() => {}
        }
    }

    fn reason_to_stop(&self, map: &ClusterMap, own: Ownership) -> Option<Error> {
        if self.common.shared.shutdown.is_stopping() {
            return Some(Error::new(Reason::Unavailable, "this rank is stopping"));
        }
        if self.ownership(map) == Some(own) {
            return None;
        }
        let message = "the subtree has another owner or epoch";
        Some(Error::new(Reason::Unavailable, message).with_epoch(own.epoch.0).retry_after(Duration::from_millis(1)))
    }
}

async fn done(work: &mut Option<Work>) -> Outcome {
    match work {
        Some(work) => work.future.as_mut().await,
        None => std::future::pending().await,
    }
}

fn busy(subtree: SubtreeId) -> Error {
    Error::new(Reason::InUse, format!("{subtree} is being split, merged or moved: try again afterwards"))
}
