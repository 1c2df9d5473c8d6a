//! A directory that is the root of a child subtree is to be removed (R21): if it is empty, the child becomes part of
//! this subtree again, and the operation finds a plain directory.

use std::collections::BTreeMap;
use std::rc::Rc;

use pando_mon_client::MapWatch;
use pando_proto::{Errno, Error, Rank, Reason, SubtreeId};

use super::job::Job;
use super::turn::{AT_ONCE, overloaded};
use super::{Event, Subtree};
use crate::io::{Mons, Peers};

/// Operations that may wait for merges.
const MAX_WAITING: usize = 1024;

/// Children that are about to be merged, and who waits.
#[derive(Default)]
pub(super) struct Merging(BTreeMap<SubtreeId, Vec<Job>>);

impl Merging {
    pub fn waiting(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    pub fn take_waiting(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.0).into_values().flatten().collect()
    }
}

impl Subtree {
    pub(super) fn need_merge(&mut self, mut job: Job, child: SubtreeId) {
        if self.merging.waiting() >= MAX_WAITING {
            return self.fail(job, overloaded("too many operations wait for subtrees to be merged"));
        }
        self.track(&mut job);
        let waiting = self.merging.0.entry(child).or_default();
        waiting.push(job);
        if waiting.len() > 1 {
            return;
        }
        let (mons, peers) = (Rc::clone(&self.outside.mons), Rc::clone(&self.outside.peers));
        let merging = merge(mons, peers, self.maps.clone(), self.rank, child);
        self.spawn(async move { Event::Merged(child, merging.await) });
    }

    /// After a merge the actor ends, and those who wait come again; this is for all other cases.
    pub(super) fn merged(&mut self, child: SubtreeId, outcome: Result<(), Error>) {
        for job in self.merging.0.remove(&child).unwrap_or_default() {
            match &outcome {
                Ok(()) => {
                    let message = "the directory is part of this subtree again: once more";
                    self.fail(job, Error::new(Reason::Unavailable, message).retry_after(AT_ONCE));
                }
                Err(error) => self.fail(job, error.clone()),
            }
        }
    }
}

async fn merge(
    mons: Rc<dyn Mons>,
    peers: Rc<dyn Peers>,
    maps: MapWatch,
    rank: Rank,
    child: SubtreeId,
) -> Result<(), Error> {
    let again = |message: &str| Error::new(Reason::Unavailable, message).retry_after(AT_ONCE);
    let map = maps.current();
    let Some(found) = map.subtrees.get(&child) else { return Err(again("the subtree is gone")) };
    // Subtrees below it are no reason: the name of each, or of a directory above it, is one of the entries; and our map
    // may be behind that of whoever renamed the last of them away.
    let owner = map.owner(child).ok_or_else(|| again("the subtree in this directory is served by nobody"))?;
    if peers.entries(owner.1.to_owned(), found.root).await? > 0 {
        return Err(Error::posix(Errno::ENOTEMPTY));
    }
    if owner.0 != rank {
        mons.fetch_subtree(child, rank).await.map_err(|error| match error.reason {
            // This rank is being drained: the directory is removed where it goes to.
            Reason::InvalidRequest => again(&error.message),
            _ => error,
        })?;
    }
    let own = map.ranks.get(&rank).map(|info| info.address.clone()).unwrap_or_default();
    peers.merge(own, child).await.map_err(|error| match error.reason {
        // Somebody else is at it, or was.
        Reason::InUse | Reason::StaleEpoch | Reason::UnknownId | Reason::NotOwner => again(&error.message),
        _ => error,
    })
}
