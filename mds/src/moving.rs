//! Splits, merges and moves of a subtree that this rank serves (R11, R12).
//!
//! All go the same way: the actor is frozen and drained, one compare-and-set in the map decides, and whoever the map
//! then names opens the subtree anew under its next epoch. A proposal whose answer is lost is repeated until the
//! answer is definite; until then nothing is served.
//!
//! A refusal is definite only if nothing of the proposal is on its way any more, or can do any harm when it comes. For
//! a move one command sees to that: it is cancelled (R12). A split or merge may be refused for a while only, because
//! the map is full or something moves. After a try without an answer the subtree goes on under another epoch, which a
//! command of the map begins ([`Task::settle`], R11).

mod imports;
mod merge;
mod migration;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use actix::Addr;
use pando_proto::mds::Target;
use pando_proto::mon::SplitSubtreeRequest;
use pando_proto::{Epoch, Error, Reason, SubtreeId};
use tokio::sync::oneshot;

use crate::io::Io;
use crate::owner::{Common, Outcome, Reply, Warm};
use crate::subtree::{self, Find, Found, Freeze, Place, Release, Released, Subtree, Thaw, Token};
use crate::takeover::Ownership;
pub(crate) use imports::Imports;
pub(crate) use merge::merge;
pub(crate) use migration::{migrate, millis, wanted};

/// For the commits under way to come to their end.
const DRAIN: Duration = Duration::from_secs(10);
/// For files that are on their way to objects, before a subtree is frozen.
const PATIENCE: Duration = Duration::from_secs(2);
/// Before a proposal without an answer is repeated.
const REPEAT: Duration = Duration::from_millis(20);
/// For the map in which a proposal of ours stands.
const MAP_WAIT: Duration = Duration::from_secs(10);
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

/// A proposal that was refused.
struct Refused {
    error: Error,
    /// A try before had no answer: it may have been done, or may still be on its way.
    open: bool,
}

/// Repeats a proposal until there is an answer. It names what it builds on, so that it takes effect once.
async fn repeat<T>(propose: impl Fn() -> Io<T>) -> Result<T, Refused> {
    let mut open = false;
    loop {
        match propose().await {
            Ok(decided) => return Ok(decided),
            // Or it was not proposed, by none of the tries of this call (`OVERLOADED` says so) or of those before.
            Err(error) if is_definite(&error) || error.reason == Reason::Overloaded && !open => {
                return Err(Refused { error, open });
            }
            Err(error) => {
                open = true;
                tracing::debug!(%error, "a proposal without an answer is repeated");
                tokio::time::sleep(error.retry_after.unwrap_or(REPEAT)).await;
            }
        }
    }
}

/// The same for what the map refuses for ever if it refuses it, whatever comes late.
async fn definite<T>(propose: impl Fn() -> Io<T>) -> Result<T, Error> {
    repeat(propose).await.map_err(|refused| refused.error)
}

/// The same; that it was not proposed for want of room is no outcome.
async fn insist<T>(propose: impl Fn() -> Io<T>) -> Result<T, Error> {
    loop {
        match definite(&propose).await {
            Err(error) if error.reason == Reason::Overloaded => {
                tokio::time::sleep(error.retry_after.unwrap_or(REPEAT)).await;
            }
            decided => return decided,
        }
    }
}

/// A split or merge that has not happened, and never will.
struct NotDone {
    error: Error,
    left: Left,
}

/// What a refused split or merge has left of the subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// All is as before.
    AsItWas,
    /// It has another epoch by now.
    Renewed,
    /// The map knows it no more: it was merged after all.
    Gone,
}

/// The map refused it.
fn is_definite(error: &Error) -> bool {
    use Reason::{InUse, InvalidRequest, StaleEpoch, TooLarge, UnknownId};
    matches!(error.reason, StaleEpoch | InvalidRequest | InUse | UnknownId | TooLarge)
}

fn gone() -> Error {
    Error::new(Reason::Unavailable, "the subtree was given up meanwhile")
}

/// A frozen subtree. It runs again when this is dropped, unless it is kept so or ends before.
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

    /// It ends as it is: the map decides, or has decided. Also if nobody waits for that: the rank stops.
    fn keep(&self) {
        self.token.keep();
    }

    /// The map has decided that all is as before.
    fn melt(self) {
        self.token.let_go();
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

    /// Repeats a proposal that builds on this epoch of this subtree until its outcome is final. The subtree is frozen.
    ///
    /// R11: what the map refuses now it may do a moment later, and the bytes of a try without an answer may arrive then,
    /// when all is served again. All that they build on is the epoch that they name: it is ended by a command before a
    /// refusal counts, and then the proposal is made once more, for an earlier try may have come before that.
    async fn settle<T>(&self, propose: impl Fn() -> Io<T>) -> Result<T, NotDone> {
        let error = match repeat(&propose).await {
            Ok(decided) => return Ok(decided),
            Err(Refused { error, open: false }) => return Err(NotDone { error, left: Left::AsItWas }),
            Err(Refused { error, open: true }) => error,
        };
        let Ownership { subtree, epoch, .. } = self.own;
        tracing::info!(%subtree, %epoch, %error, "refused after a try without an answer: the epoch is ended (R11)");
        let mons = Rc::clone(&self.common.parts.outside.mons);
        let renewed = loop {
            match insist(|| mons.renew(subtree, epoch)).await {
                Ok(epoch) => break Some(epoch),
                Err(error) if error.reason == Reason::UnknownId => break None,
                Err(error) => {
                    tracing::warn!(%subtree, %error, "the mons do not end its epoch; it is not served meanwhile");
                    tokio::time::sleep(PATIENCE).await;
                }
            }
        };
        match (insist(propose).await, renewed) {
            (Ok(decided), _) => Ok(decided),
            (Err(_), Some(renewed)) => {
                self.await_map(renewed).await;
                Err(NotDone { error, left: Left::Renewed })
            }
            (Err(error), None) => Err(NotDone { error, left: Left::Gone }),
        }
    }

    /// Splits `target` off. With the cache of what is left.
    async fn split(&self, target: &Target, automatic: bool) -> Result<(SubtreeId, Epoch, Option<Warm>), Error> {
        // What is wrong costs nothing, and the records are there when nothing is served.
        let map = self.common.parts.map.current();
        if map.is_full() {
            let message = format!("the cluster has {} subtrees, as many as it may (max_subtrees)", map.subtrees.len());
            return Err(Error::new(Reason::TooLarge, format!("{message}: merge some first")));
        }
        self.find(target).await?;
        let ice = Ice::new(&self.address, false).await?;
        let place = self.find(target).await?;
        ice.keep();
        match self.propose_split(&place, automatic).await {
            Ok((child, epoch)) => Ok((child, epoch, self.divide(&place, child, epoch).await)),
            Err(NotDone { error, left }) => {
                self.committing.set(false);
                if left == Left::AsItWas {
                    ice.melt();
                }
                Err(error)
            }
        }
    }

    async fn propose_split(&self, place: &Place, automatic: bool) -> Result<(SubtreeId, Epoch), NotDone> {
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
        let decided = self.settle(|| mons.split(request.clone())).await;
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
