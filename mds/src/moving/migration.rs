//! A move (R12). The cache is copied while the subtree is served, then, round after round, what changed meanwhile;
//! only the little that is left is sent while nothing is served.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pando_cluster_map::ClusterMap;
use pando_proto::mds::{CacheItem, ImportFrame};
use pando_proto::mon::CommitMoveRequest;
use pando_proto::{Error, Rank, Reason};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{Ice, Task, definite, gone, insist};
use crate::owner::Outcome;
use crate::subtree::{self, ExportStep, Part};
use crate::takeover::Ownership;

/// For the destination to take the last part of the cache, while nothing is served.
const LAST_PART: Duration = Duration::from_secs(2);
/// Bytes of records in one frame of an import: what a turn can encode (R27).
const FRAME_BYTES: usize = 64 << 10;
/// Frames on their way.
const FRAMES: usize = 4;
/// Rounds of changes that are sent while operations run, at most.
const MAX_ROUNDS: u32 = 8;
/// So few changes may wait until nothing is served.
const FEW: usize = 64;
/// Bounds of the pause after each frame while operations run, which is else as long as the frame took: the clients, and
/// who works for them, get half of the time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

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

/// How long the parts of a move took, for who reads the log.
#[derive(Debug, Default)]
struct Took {
    copy: Duration,
    items: usize,
    rounds: u32,
    round_items: usize,
    rounds_took: Duration,
    drain: Duration,
    delta: Duration,
    delta_items: usize,
    commit: Duration,
    map: Duration,
}

/// In milliseconds, with tenths.
pub(crate) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}

impl Took {
    fn log(&self, task: &Task, wanted: Wanted) {
        tracing::info!(
            subtree = %task.own.subtree, to = %wanted.to, move_id = wanted.move_id,
            copy_ms = millis(self.copy), items = self.items,
            rounds = self.rounds, rounds_ms = millis(self.rounds_took), round_items = self.round_items,
            drain_ms = millis(self.drain), delta_ms = millis(self.delta), delta_items = self.delta_items,
            commit_ms = millis(self.commit), map_ms = millis(self.map),
            frozen_ms = millis(self.drain + self.delta + self.commit + self.map),
            "a subtree was handed over"
        );
    }
}

/// Moves to another rank; if that fails all is as before, and the move is cancelled.
pub(crate) async fn migrate(task: Task, wanted: Wanted) -> Outcome {
    let subtree = task.own.subtree;
    match task.hand_over(wanted).await {
        Ok(took) => took.log(&task, wanted),
        Err(error) => {
            tracing::warn!(%subtree, to = %wanted.to, move_id = wanted.move_id, %error, "a move was given up");
            // R12: what was proposed and refused has been cancelled already.
            let cancelled = task.committing.replace(false);
            let _ = task.address.send(subtree::Export(ExportStep::Cancel, oneshot::channel().0)).await;
            let mons = Rc::clone(&task.common.parts.outside.mons);
            if !cancelled {
                // Refused only if it is over anyhow.
                let _ = definite(|| mons.cancel_move(subtree, wanted.move_id)).await;
            }
        }
    }
    Outcome::default()
}

impl Task {
    /// Hands the subtree over.
    async fn hand_over(&self, wanted: Wanted) -> Result<Took, Error> {
        let mut took = Took::default();
        let ice = self.copy(wanted, &mut took).await?;
        let request = CommitMoveRequest {
            subtree: self.own.subtree.0,
            from: self.common.shared.rank.0,
            epoch: self.own.epoch.0,
            move_id: wanted.move_id,
        };
        let mons = Rc::clone(&self.common.parts.outside.mons);
        // From here on nothing is served until the outcome is known.
        self.committing.set(true);
        ice.keep();
        let began = Instant::now();
        let epoch = match definite(|| mons.commit_move(request)).await {
            Ok(epoch) => epoch,
            Err(error) => {
                self.refused(wanted, ice).await;
                return Err(error);
            }
        };
        took.commit = began.elapsed();
        self.await_map(epoch).await;
        took.map = began.elapsed().saturating_sub(took.commit);
        Ok(took)
    }

    /// R12: a refused handover may have been committed all the same, and the subtree have moved on since. What the map
    /// says is known before anything runs again.
    async fn refused(&self, wanted: Wanted, ice: Ice) {
        let mons = Rc::clone(&self.common.parts.outside.mons);
        match insist(|| mons.cancel_move(self.own.subtree, wanted.move_id)).await {
            Ok(epoch) => {
                self.await_map(epoch).await;
                ice.melt();
            }
            // It was, or there is no such subtree any more: the map that is on its way ends it.
            Err(error) if matches!(error.reason, Reason::StaleEpoch | Reason::UnknownId) => {}
            Err(_) => ice.melt(),
        }
    }

    /// Copies the cache; the subtree is frozen when this ends well.
    async fn copy(&self, wanted: Wanted, took: &mut Took) -> Result<Ice, Error> {
        let map = self.common.parts.map.current();
        let to = map.ranks.get(&wanted.to).filter(|rank| rank.up);
        let to = to.ok_or_else(|| Error::new(Reason::Unavailable, format!("{} is down", wanted.to)))?;
        let copy = Copy { task: self, wanted, address: &to.address, frames: Cell::new(0), items: Cell::new(0) };
        // The destination has taken all of it, and nearly all that changed since, before anything stands still.
        let began = Instant::now();
        copy.send(ExportStep::Slice(FRAME_BYTES)).await?;
        (took.copy, took.items) = (began.elapsed(), copy.items.take());
        let mut noted = self.noted().await?;
        while noted > FEW && took.rounds < MAX_ROUNDS {
            copy.send(ExportStep::Round(FRAME_BYTES)).await?;
            took.rounds += 1;
            let before = std::mem::replace(&mut noted, self.noted().await?);
            if noted > before / 2 {
                // Clients change it about as fast as it is sent: more rounds gain nothing.
                break;
            }
        }
        (took.rounds_took, took.round_items) = (began.elapsed().saturating_sub(took.copy), copy.items.take());
        let began = Instant::now();
        let ice = Ice::new(&self.address, true).await?;
        took.drain = began.elapsed();
        let sent = tokio::time::timeout(LAST_PART, copy.send(ExportStep::Delta(FRAME_BYTES))).await;
        sent.map_err(|_| Error::new(Reason::Timeout, "the destination did not take the copy in time"))??;
        (took.delta, took.delta_items) = (began.elapsed().saturating_sub(took.drain), copy.items.take());
        Ok(ice)
    }

    async fn part(&self, step: ExportStep) -> Result<Part, Error> {
        let (reply, part) = oneshot::channel();
        self.address.send(subtree::Export(step, reply)).await.map_err(|_| gone())?;
        part.await.map_err(|_| gone())
    }

    /// Changes that were not sent.
    async fn noted(&self) -> Result<usize, Error> {
        Ok(self.part(ExportStep::Look).await?.noted)
    }
}

/// A copy of the cache on its way.
struct Copy<'a> {
    task: &'a Task,
    wanted: Wanted,
    address: &'a str,
    /// Sent so far.
    frames: Cell<u64>,
    items: Cell<usize>,
}

impl Copy<'_> {
    /// Sends a part of the cache, and waits until it is taken.
    async fn send(&self, step: ExportStep) -> Result<(), Error> {
        let (frames, receiver) = mpsc::channel(FRAMES);
        let importing = self.task.common.parts.outside.peers.import(self.address.to_owned(), receiver);
        tokio::pin!(importing);
        tokio::select! {
            taken = &mut importing => {
                taken?;
                return Err(Error::new(Reason::Internal, "the destination ended the copy early"));
            }
            sent = self.send_part(&frames, step) => sent?,
        }
        drop(frames);
        importing.await.map(drop)
    }

    async fn send_part(&self, frames: &mpsc::Sender<ImportFrame>, step: ExportStep) -> Result<(), Error> {
        let last = matches!(step, ExportStep::Delta(_));
        loop {
            let began = Instant::now();
            let Some(items) = self.task.part(step).await?.items else {
                return if last { self.send_frame(frames, Vec::new(), true).await } else { Ok(()) };
            };
            self.send_frame(frames, items, false).await?;
            if !last {
                tokio::time::sleep(began.elapsed().clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
            }
        }
    }

    async fn send_frame(
        &self,
        frames: &mpsc::Sender<ImportFrame>,
        items: Vec<CacheItem>,
        last: bool,
    ) -> Result<(), Error> {
        let Ownership { subtree, epoch, .. } = self.task.own;
        let number = self.frames.replace(self.frames.get() + 1);
        self.items.set(self.items.get() + items.len());
        let move_id = self.wanted.move_id;
        let frame = ImportFrame { subtree: subtree.0, epoch: epoch.0, move_id, items, last, number };
        let lost = |_| Error::new(Reason::Unavailable, "the destination takes no more of the copy");
        frames.send(frame).await.map_err(lost)
    }
}
