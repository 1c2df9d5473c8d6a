//! Splits, merges and moves of a subtree that this rank serves (R11, R12).
//!
//! All go the same way: the actor is frozen and drained, one compare-and-set in the map decides, and whoever the map
//! then names opens the subtree anew under its next epoch. A proposal whose answer is lost is repeated until the
//! answer is definite; until then nothing is served.

mod merge;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix::Addr;
use pando_cluster_map::ClusterMap;
use pando_mds_core::Namespace;
use pando_proto::mds::{CacheItem, ImportFrame, Target};
use pando_proto::mon::{CommitMoveRequest, SplitSubtreeRequest};
use pando_proto::{Epoch, Error, Rank, Reason, SubtreeId};
use tokio::sync::{mpsc, oneshot};

use crate::io::Io;
use crate::owner::{Common, Outcome, Reply, Warm};
use crate::subtree::{self, ExportStep, Find, Found, Freeze, Place, Release, Released, Subtree, Thaw, Token};
use crate::takeover::Ownership;
pub(crate) use merge::merge;

/// For the commits under way to come to their end.
const DRAIN: Duration = Duration::from_secs(10);
/// For the destination to take the last part of the cache, while nothing is served.
const LAST_PART: Duration = Duration::from_secs(2);
/// For files that are on their way to objects, before a subtree is frozen.
const PATIENCE: Duration = Duration::from_secs(2);
/// Before a proposal without an answer is repeated.
const REPEAT: Duration = Duration::from_millis(20);
/// For the map in which a proposal of ours stands.
const MAP_WAIT: Duration = Duration::from_secs(10);
/// Bytes of records in one frame of an import.
const FRAME_BYTES: usize = 128 << 10;
/// Frames on their way.
const FRAMES: usize = 4;
/// Nodes that change hands in one slice of a split (R27).
const SPLIT_SLICE: usize = 512;

/// A split, merge or move of one subtree.
pub(crate) struct Task {
    pub common: Common,
    pub own: Ownership,
    pub address: Addr<Subtree>,
    /// Set while its outcome has to be awaited.
    pub committing: Rc<Cell<bool>>,
}

/// A move that the map wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub move_id: u64,
    to: Rank,
}

/// The move of this subtree that has begun in the map and that was not `tried`.
pub(crate) fn wanted(map: &ClusterMap, own: Ownership, tried: u64) -> Option<Wanted> {
    let subtree = map.subtrees.get(&own.subtree)?;
    let fresh = subtree.move_id != 0 && subtree.move_id != tried;
    fresh.then_some(Wanted { move_id: subtree.move_id, to: subtree.moving_to })
}

/// Repeats a proposal until its outcome is known. It names what it builds on, so that it takes effect once.
async fn definite<T>(propose: impl Fn() -> Io<T>) -> Result<T, Error> {
    let mut unknown = false;
    loop {
        match propose().await {
            Ok(decided) => return Ok(decided),
            Err(error) if is_definite(&error) => return Err(error),
            // It was not proposed, and no earlier try may still be under way.
            Err(error) if error.reason == Reason::Overloaded && !unknown => return Err(error),
            Err(error) => {
                unknown = true;
                tracing::debug!(%error, "a proposal without an answer is repeated");
                tokio::time::sleep(error.retry_after.unwrap_or(REPEAT)).await;
            }
        }
    }
}

/// The map refused it, and always will.
fn is_definite(error: &Error) -> bool {
    use Reason::{InUse, InvalidRequest, StaleEpoch, TooLarge, UnknownId, WrongCluster};
    matches!(error.reason, StaleEpoch | InvalidRequest | InUse | UnknownId | TooLarge | WrongCluster)
}

fn gone() -> Error {
    Error::new(Reason::Unavailable, "the subtree was given up meanwhile")
}

/// A frozen subtree. It runs again when this is dropped, unless it ends before.
struct Ice {
    address: Addr<Subtree>,
    token: Token,
}

impl Ice {
    /// Nothing runs from now on, and all that ran is durable. Tried again for a moment while files are on their way
    /// to objects, or being cut.
    async fn new(address: &Addr<Subtree>, purges_may_go_on: bool) -> Result<Self, Error> {
        let began = tokio::time::Instant::now();
        loop {
            match Self::try_new(address, purges_may_go_on).await {
                Err(error) if error.reason == Reason::Unavailable && began.elapsed() < PATIENCE => {
                    tokio::time::sleep(REPEAT).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_new(address: &Addr<Subtree>, purges_may_go_on: bool) -> Result<Self, Error> {
        let (reply, drained) = oneshot::channel();
        let token = Token::default();
        let ice = Self { address: address.clone(), token: token.clone() };
        address.send(Freeze { reply, token, purges_may_go_on }).await.map_err(|_| gone())?;
        match tokio::time::timeout(DRAIN, drained).await {
            Ok(drained) => drained.map_err(|_| gone())?.map(|()| ice),
            Err(_) => Err(Error::new(Reason::Timeout, "commits under way did not end in time: nothing was changed")),
        }
    }

    /// It ends as it is: the map has decided.
    fn keep(self) {
        self.token.keep();
    }
}

impl Drop for Ice {
    fn drop(&mut self) {
        if self.token.is_kept() {
            return;
        }
        let (address, token) = (self.address.clone(), self.token.clone());
        tokio::task::spawn_local(async move {
            // Gone is as good.
            let _ = address.send(Thaw(token)).await;
        });
    }
}

impl Task {
    async fn find(&self, target: &Target) -> Result<Place, Error> {
        let (reply, found) = oneshot::channel();
        self.address.send(Find { target: target.clone(), reply }).await.map_err(|_| gone())?;
        match found.await.map_err(|_| gone())?? {
            Found::Here(place) => Ok(place),
            Found::Elsewhere(crossing) => {
                let message = format!("the directory is in {} by now: try again", crossing.subtree);
                Err(Error::new(Reason::NotOwner, message))
            }
        }
    }

    async fn await_map(&self, epoch: Epoch) {
        // Without it the task would go on by an older map, which does no harm; the wait only spares a round.
        let _ = self.common.parts.map.wait_for(epoch, MAP_WAIT).await;
    }

    /// Splits `target` off. With the cache of what is left.
    async fn split(&self, target: &Target, automatic: bool) -> Result<(SubtreeId, Epoch, Option<Warm>), Error> {
        // What is wrong costs nothing, and the records are there when nothing is served.
        self.find(target).await?;
        let ice = Ice::new(&self.address, false).await?;
        let place = self.find(target).await?;
        match self.propose_split(&place, automatic).await {
            Ok((child, epoch)) => {
                let left = self.divide(&place, child, epoch).await;
                ice.keep();
                Ok((child, epoch, left))
            }
            Err(error) => {
                self.committing.set(false);
                Err(error)
            }
        }
    }

    async fn propose_split(&self, place: &Place, automatic: bool) -> Result<(SubtreeId, Epoch), Error> {
        let request = SplitSubtreeRequest {
            parent: self.own.subtree.0,
            parent_epoch: self.own.epoch.0,
            root_ino: place.ino.0,
            parent_dir: place.parent_dir.0,
            name: place.name.clone(),
            path_hint: place.path_hint.clone(),
            adopted: place.adopted.iter().map(|subtree| subtree.0).collect(),
            automatic,
        };
        let mons = Rc::clone(&self.common.parts.outside.mons);
        self.common.nursery.await_birth(place.ino);
        self.committing.set(true);
        let decided = definite(|| mons.split(request.clone())).await;
        if decided.is_err() {
            self.common.nursery.born(place.ino, None);
        }
        decided
    }

    /// The map has it: each part of the cache goes to its subtree.
    async fn divide(&self, place: &Place, child: SubtreeId, epoch: Epoch) -> Option<Warm> {
        self.await_map(epoch).await;
        let (reply, released) = oneshot::channel();
        let sent = self.address.send(Release(reply)).await;
        let Some(Released { namespace: mut whole, .. }) = (if sent.is_ok() { released.await.ok() } else { None })
        else {
            self.common.nursery.born(place.ino, None);
            return None;
        };
        let map = self.common.parts.map.current();
        let own = Ownership { subtree: child, epoch: Epoch(1), root: place.ino };
        let mut splitting = whole.begin_split(place.ino, subtree::config(own, &map, self.common.memory.budget()));
        while whole.split_slice(&mut splitting, SPLIT_SLICE) {
            tokio::task::yield_now().await;
        }
        let mut part = whole.end_split(splitting);
        part.begin_epoch();
        whole.begin_epoch();
        self.common.nursery.born(place.ino, Some((child, part)));
        // R11: the split has raised the epoch by one. If more has happened since, the cache is of no use.
        Some(Warm { epoch: Epoch(self.own.epoch.0 + 1), namespace: whole })
    }

    /// Hands the subtree over (R12).
    async fn hand_over(&self, wanted: Wanted) -> Result<(), Error> {
        let ice = self.copy(wanted).await?;
        let request = CommitMoveRequest {
            subtree: self.own.subtree.0,
            from: self.common.shared.rank.0,
            epoch: self.own.epoch.0,
            move_id: wanted.move_id,
        };
        let mons = Rc::clone(&self.common.parts.outside.mons);
        // From here on nothing is served until the outcome is known.
        self.committing.set(true);
        let epoch = definite(|| mons.commit_move(request)).await?;
        self.await_map(epoch).await;
        ice.keep();
        Ok(())
    }

    /// Copies the cache; the subtree is frozen when this ends well.
    async fn copy(&self, wanted: Wanted) -> Result<Ice, Error> {
        let map = self.common.parts.map.current();
        let to = map.ranks.get(&wanted.to).filter(|rank| rank.up);
        let to = to.ok_or_else(|| Error::new(Reason::Unavailable, format!("{} is down", wanted.to)))?;
        // The destination has taken all of it before anything stands still.
        self.send(wanted, &to.address, ExportStep::Slice(FRAME_BYTES)).await?;
        let ice = Ice::new(&self.address, true).await?;
        let sent = tokio::time::timeout(LAST_PART, self.send(wanted, &to.address, ExportStep::Delta(FRAME_BYTES)));
        sent.await.map_err(|_| Error::new(Reason::Timeout, "the destination did not take the copy in time"))??;
        Ok(ice)
    }

    /// Sends a part of the cache, and waits until it is taken.
    async fn send(&self, wanted: Wanted, address: &str, step: ExportStep) -> Result<(), Error> {
        let (frames, receiver) = mpsc::channel(FRAMES);
        let importing = self.common.parts.outside.peers.import(address.to_owned(), receiver);
        tokio::pin!(importing);
        let last = matches!(step, ExportStep::Delta(_));
        let sending = async {
            self.send_cache(wanted, &frames, step).await?;
            if last { self.send_frame(wanted, &frames, Vec::new(), true).await } else { Ok(()) }
        };
        tokio::select! {
            taken = &mut importing => {
                taken?;
                return Err(Error::new(Reason::Internal, "the destination ended the copy early"));
            }
            sent = sending => sent?,
        }
        drop(frames);
        importing.await.map(|_| ())
    }

    async fn send_cache(
        &self,
        wanted: Wanted,
        frames: &mpsc::Sender<ImportFrame>,
        step: ExportStep,
    ) -> Result<(), Error> {
        loop {
            let (reply, items) = oneshot::channel();
            self.address.send(subtree::Export(step, reply)).await.map_err(|_| gone())?;
            match items.await.map_err(|_| gone())? {
                Some(items) => self.send_frame(wanted, frames, items, false).await?,
                None => return Ok(()),
            }
        }
    }

    async fn send_frame(
        &self,
        wanted: Wanted,
        frames: &mpsc::Sender<ImportFrame>,
        items: Vec<CacheItem>,
        last: bool,
    ) -> Result<(), Error> {
        let Ownership { subtree, epoch, .. } = self.own;
        let frame = ImportFrame { subtree: subtree.0, epoch: epoch.0, move_id: wanted.move_id, items, last };
        let lost = |_| Error::new(Reason::Unavailable, "the destination takes no more of the copy");
        frames.send(frame).await.map_err(lost)
    }
}

/// Splits a directory off.
pub(crate) async fn split(task: Task, target: Target, automatic: bool, reply: Reply) -> Outcome {
    let (result, warm) = match task.split(&target, automatic).await {
        Ok((child, epoch, warm)) => (Ok((child, epoch)), warm),
        Err(error) => (Err(error), None),
    };
    if let Err(error) = &result {
        tracing::info!(subtree = %task.own.subtree, %error, "a split was refused");
    }
    let _ = reply.send(result);
    Outcome { warm }
}

/// Moves to another rank; if that fails all is as before, and the move is cancelled.
pub(crate) async fn migrate(task: Task, wanted: Wanted) -> Outcome {
    let subtree = task.own.subtree;
    match task.hand_over(wanted).await {
        Ok(()) => tracing::info!(%subtree, to = %wanted.to, move_id = wanted.move_id, "a subtree was handed over"),
        Err(error) => {
            tracing::warn!(%subtree, to = %wanted.to, move_id = wanted.move_id, %error, "a move was given up");
            task.committing.set(false);
            let _ = task.address.send(subtree::Export(ExportStep::Cancel, oneshot::channel().0)).await;
            let mons = Rc::clone(&task.common.parts.outside.mons);
            // Refused only if it is over anyhow.
            let _ = definite(|| mons.cancel_move(subtree, wanted.move_id)).await;
        }
    }
    Outcome::default()
}

/// Caches that were copied here, by subtree, until the map says whose they are.
#[derive(Default)]
pub(crate) struct Imports(Mutex<BTreeMap<SubtreeId, Import>>);

/// Copies under way at once.
const MAX_IMPORTS: usize = 16;
/// Share of the rank's memory that copies may take before they are adopted (I8).
const IMPORT_SHARE: u64 = 2;

struct Import {
    epoch: Epoch,
    move_id: u64,
    namespace: Namespace,
    complete: bool,
}

impl Import {
    /// The move that brings it is under way, or has just made the subtree ours.
    fn is_wanted(&self, subtree: SubtreeId, map: &ClusterMap, rank: Rank) -> bool {
        let Some(found) = map.subtrees.get(&subtree) else { return false };
        let under_way = found.move_id == self.move_id && found.moving_to == rank && found.epoch == self.epoch;
        let here = found.last_move == self.move_id && found.owner == rank && found.epoch.0 == self.epoch.0 + 1;
        under_way || here
    }

    fn bytes(&self) -> u64 {
        let usage = self.namespace.usage();
        usage.meta_bytes + usage.body_bytes
    }
}

impl Imports {
    /// What was given up meanwhile takes no more memory.
    pub fn forget_missed(&self, map: &ClusterMap, rank: Rank) {
        self.lock().retain(|subtree, import| import.is_wanted(*subtree, map, rank));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SubtreeId, Import>> {
        // What may panic under the lock is the cache itself, which is dropped then.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A frame has come. True if it was the last.
    ///
    /// Errors: the map knows no such move to this rank; the items make no sense.
    pub fn take_frame(
        &self,
        frame: ImportFrame,
        map: &ClusterMap,
        rank: Rank,
        cache_bytes: u64,
    ) -> Result<bool, Error> {
        let subtree = SubtreeId(frame.subtree);
        let known = map.subtrees.get(&subtree).filter(|found| {
            found.move_id == frame.move_id
                && found.moving_to == rank
                && found.epoch.0 == frame.epoch
                && frame.move_id != 0
        });
        let Some(found) = known else {
            let message = format!("map {} knows no move {} of {subtree} to {rank}", map.epoch, frame.move_id);
            return Err(Error::new(Reason::StaleEpoch, message));
        };
        let mut imports = self.lock();
        imports.retain(|id, import| *id == subtree || import.is_wanted(*id, map, rank));
        if imports.len() >= MAX_IMPORTS && !imports.contains_key(&subtree) {
            return Err(Error::new(Reason::Overloaded, "too many subtrees are on their way to this rank"));
        }
        let taken: u64 = imports.iter().filter(|(id, _)| **id != subtree).map(|(_, import)| import.bytes()).sum();
        let fresh = || {
            let own = Ownership { subtree, epoch: Epoch(frame.epoch + 1), root: found.root };
            let room = (cache_bytes / IMPORT_SHARE).saturating_sub(taken).max(cache_bytes / IMPORT_SHARE / 16);
            let config = subtree::config(own, map, room);
            Import {
                epoch: Epoch(frame.epoch),
                move_id: frame.move_id,
                namespace: Namespace::new(config),
                complete: false,
            }
        };
        let import = imports.entry(subtree).or_insert_with(fresh);
        if (import.epoch.0, import.move_id) != (frame.epoch, frame.move_id) || import.complete {
            *import = fresh();
        }
        import.namespace.import(frame.items)?;
        import.complete = frame.last;
        Ok(frame.last)
    }

    /// A copy that ended early is of no use.
    pub fn abandon(&self, subtree: SubtreeId, move_id: u64) {
        let mut imports = self.lock();
        if imports.get(&subtree).is_some_and(|import| import.move_id == move_id && !import.complete) {
            imports.remove(&subtree);
        }
    }

    /// The cache of a subtree that is ours by this map, if the move that made it so brought all of it (R12).
    pub fn take(&self, subtree: SubtreeId, map: &ClusterMap) -> Option<Namespace> {
        let import = self.lock().remove(&subtree)?;
        let found = map.subtrees.get(&subtree)?;
        let exact = import.complete && found.last_move == import.move_id && found.epoch.0 == import.epoch.0 + 1;
        exact.then_some(import.namespace)
    }
}
