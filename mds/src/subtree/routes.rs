//! The way to child subtrees is about to change (R16): their routes are raised in the map, and every rank that serves
//! one of them has that map, before the change is made. Meanwhile nobody is told a way.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use pando_cluster_map::ClusterMap;
use pando_mds_core::api::{Crossings, Reads};
use pando_mon_client::MapWatch;
use pando_proto::mds::{OperationResult, Redirect, operation_result};
use pando_proto::{Epoch, Error, Rank, Reason, SubtreeId};
use smallvec::SmallVec;

use super::job::Job;
use super::reply::crossings_to_proto;
use super::turn::overloaded;
use super::{Event, Subtree};
use crate::io::{Mons, Peers};

/// Operations that may wait for a change of routes.
const MAX_WAITING: usize = 1024;
/// For one rank to confirm that it has a map.
const CONFIRM: Duration = Duration::from_secs(1);
/// For all of them.
const CONFIRM_ALL: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(20);
const MAP_WAIT: Duration = Duration::from_secs(10);

/// Changes of routes, one at a time.
#[derive(Default)]
pub(super) struct Routes {
    /// The operation that changes the way, and, while the routes are raised, itself.
    active: Option<(u64, Option<Job>)>,
    /// Others that want to.
    queue: VecDeque<Job>,
    /// Those that wait to be told a way; what they cross may change meanwhile.
    crossing: Vec<Job>,
}

impl Routes {
    pub fn is_raising(&self) -> bool {
        self.active.is_some()
    }

    pub fn waiting(&self) -> usize {
        self.queue.len() + self.crossing.len()
    }

    pub fn take_waiting(&mut self) -> Vec<Job> {
        let Self { active, queue, crossing } = std::mem::take(self);
        active.and_then(|(_, job)| job).into_iter().chain(queue).chain(crossing).collect()
    }
}

impl Subtree {
    /// The operation changes the way to these.
    pub(super) fn need_routes(&mut self, mut job: Job, subtrees: SmallVec<[SubtreeId; 2]>) {
        self.track(&mut job);
        match &mut self.routes.active {
            Some((active, _)) if *active != job.id => {
                if self.routes.waiting() >= MAX_WAITING {
                    return self.fail(job, overloaded("too many operations wait for a change of routes"));
                }
                return self.routes.queue.push_back(job);
            }
            _ => {}
        }
        self.routes.active = Some((job.id, Some(job)));
        let (mons, peers) = (Rc::clone(&self.outside.mons), Rc::clone(&self.outside.peers));
        let raising = raise(mons, peers, self.maps.clone(), subtrees);
        self.spawn(async move { Event::RoutesRaised(raising.await) });
    }

    pub(super) fn routes_raised(&mut self, raised: Result<SmallVec<[SubtreeId; 2]>, Error>) {
        let Some(mut job) = self.routes.active.as_mut().and_then(|(_, job)| job.take()) else { return };
        match raised {
            Ok(subtrees) => {
                job.routes.extend(subtrees);
                self.runnable.push_front(job);
            }
            Err(error) => self.fail(job, error),
        }
    }

    /// An operation has its outcome. If it was the one that changes routes, the others go on.
    pub(super) fn route_change_over(&mut self, job: u64) {
        self.forget_tries(job);
        if self.routes.active.as_ref().is_none_or(|(active, _)| *active != job) {
            return;
        }
        self.routes.active = None;
        self.runnable.extend(self.routes.crossing.drain(..));
        // Those that still want to queue up again.
        self.runnable.extend(self.routes.queue.drain(..));
    }

    /// The operation goes on in other subtrees: the client is told the way.
    pub(super) fn cross(&mut self, mut job: Job, crossings: Crossings, reads: Reads) {
        let own_change = self.routes.active.as_ref().is_some_and(|(active, _)| *active == job.id);
        if self.routes.is_raising() && !own_change {
            if self.routes.waiting() >= MAX_WAITING {
                return self.fail(job, overloaded("too many operations wait for a change of routes"));
            }
            self.track(&mut job);
            return self.routes.crossing.push(job);
        }
        self.route_change_over(job.id);
        if job.rounds > 0 {
            self.namespace.unpin(job.id);
        }
        let redirect = Redirect {
            subtree: self.own.subtree.0,
            subtree_epoch: self.own.epoch.0,
            rank: self.rank.0,
            map_epoch: self.map.epoch.0,
            crossings: crossings_to_proto(&self.map, &crossings),
            ..Redirect::default()
        };
        let result = OperationResult { result: Some(operation_result::Result::Redirect(redirect)) };
        self.hold(job, result, reads, None);
    }
}

/// Raises the routes and sees to it that every owner knows.
pub(super) async fn raise(
    mons: Rc<dyn Mons>,
    peers: Rc<dyn Peers>,
    maps: MapWatch,
    subtrees: SmallVec<[SubtreeId; 2]>,
) -> Result<SmallVec<[SubtreeId; 2]>, Error> {
    let epoch = mons.raise_routes(subtrees.to_vec()).await?;
    let map = maps.wait_for(epoch, MAP_WAIT).await?;
    let confirming =
        owners(&map, &subtrees).into_iter().map(|(rank, incarnation)| confirm(&peers, &maps, rank, incarnation, epoch));
    let confirmed = tokio::time::timeout(CONFIRM_ALL, join_all(confirming)).await;
    // Raised for nothing does no harm.
    confirmed.map_err(|_| {
        let message = "a rank that serves a subtree below did not confirm the change of its path: nothing was changed";
        Error::new(Reason::Unavailable, message)
    })?;
    Ok(subtrees)
}

/// Who serves these and all below them.
fn owners(map: &ClusterMap, subtrees: &[SubtreeId]) -> BTreeMap<Rank, u64> {
    let below = map.with_descendants(subtrees.iter().copied());
    let owners = below.iter().filter_map(|id| map.subtrees.get(id)).map(|subtree| subtree.owner);
    owners.filter_map(|rank| map.ranks.get(&rank).map(|info| (rank, info.incarnation))).collect()
}

/// Ends when the process has the map, or can serve nothing without a newer one: whoever owns its subtrees then
/// learned so from a later map.
async fn confirm(peers: &Rc<dyn Peers>, maps: &MapWatch, rank: Rank, incarnation: u64, epoch: Epoch) {
    loop {
        let map = maps.current();
        let Some(info) = map.ranks.get(&rank).filter(|info| info.up && info.incarnation == incarnation) else { return };
        let confirming = peers.await_map(info.address.clone(), epoch);
        match tokio::time::timeout(CONFIRM, confirming).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::debug!(%rank, %error, "a rank does not confirm a map"),
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}
