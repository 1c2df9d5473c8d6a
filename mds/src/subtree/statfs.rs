//! Space of the cluster, as the mons say it, not older than a second.

use std::time::Duration;

use pando_proto::Error;

use super::job::Job;
use super::turn::overloaded;
use super::{Event, Subtree};

/// How old an answer may be.
const FRESH: Duration = Duration::from_secs(1);
/// Requests that may wait for the mon.
const MAX_WAITING: usize = 1024;

/// The last answer, and who waits for the next.
#[derive(Default)]
pub(super) struct Statfs {
    last: Option<Duration>,
    asking: bool,
    waiting: Vec<Job>,
}

impl Statfs {
    pub fn take_waiting(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.waiting)
    }
}

impl Subtree {
    pub(super) fn space_is_fresh(&self) -> bool {
        let now = self.clock.boottime();
        self.statfs.last.is_some_and(|at| now.saturating_sub(at) < FRESH)
    }

    /// Parks a request until the mons have said what there is.
    pub(super) fn statfs(&mut self, mut job: Job) {
        if self.statfs.waiting.len() >= MAX_WAITING {
            return self.fail(job, overloaded("too many ask for the space of the cluster"));
        }
        self.track(&mut job);
        self.statfs.waiting.push(job);
        if !std::mem::replace(&mut self.statfs.asking, true) {
            let asking = self.outside.mons.usage();
            self.spawn(async move { Event::Usage(asking.await) });
        }
    }

    pub(super) fn usage_arrived(&mut self, usage: Result<(u64, u64), Error>) {
        self.statfs.asking = false;
        let waiting = self.statfs.take_waiting();
        match usage {
            Ok((total, used)) => {
                self.statfs.last = Some(self.clock.boottime());
                // Bytes of files: a byte in a pool of n replicas costs n.
                let replicas = self.map.pools.get(&self.map.data_pool()).map_or(1, |pool| u64::from(pool.size.max(1)));
                self.namespace.set_space(total / replicas, used / replicas);
                self.runnable.extend(waiting);
            }
            Err(error) => {
                for job in waiting {
                    self.fail(job, error.clone());
                }
            }
        }
    }
}
