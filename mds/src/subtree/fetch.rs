//! Records that operations miss: equal fetches are made once, records of one shard in one call.

use std::collections::BTreeMap;

use bytes::Bytes;
use pando_mds_core::api::{Fetch, FetchToken, Fetched};
use pando_mds_core::records::Key;
use pando_proto::{Error, Reason, ShardId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::job::Job;
use super::turn::overloaded;
use super::{Event, Subtree};
use crate::io::Page;

/// Operations that may wait for records, inos or blocked inodes; their pins are bounded so too (I8).
pub(super) const MAX_PARKED: usize = 8 * 1024;
/// Keys in one call.
const MAX_KEYS: usize = 256;
/// Bytes before the name in the key of a dentry or back link: kind and ino.
const NAME_AT: usize = 9;

/// A fetch that has ended.
pub(crate) struct Arrived {
    fetch: Fetch,
    result: Result<Fetched, Error>,
}

struct Flight {
    token: FetchToken,
    waiters: SmallVec<[u64; 2]>,
}

struct Parked {
    job: Job,
    left: usize,
}

/// What is being fetched, and who waits.
#[derive(Default)]
pub(super) struct Fetching {
    flights: FxHashMap<Fetch, Flight>,
    /// Looked up by job; iterated only when everything ends.
    parked: BTreeMap<u64, Parked>,
    unsent: Vec<Fetch>,
}

impl Subtree {
    /// Operations that wait for something.
    pub(super) fn parked(&self) -> usize {
        self.fetching.parked.len()
            + self.blocked.values().map(Vec::len).sum::<usize>()
            + self.inos.waiting()
            + self.routes.waiting()
            + self.merging.waiting()
            + self.transactions.waiting()
    }

    /// Parks a job until its records are here.
    pub(super) fn fetch(&mut self, mut job: Job, fetches: SmallVec<[Fetch; 2]>) {
        let pinned = self.namespace.usage().pinned_bytes;
        let crowded = self.fetching.parked.len() >= MAX_PARKED
            || (job.rounds == 1 && self.memory.is_pinned(self.own.subtree, pinned));
        if crowded && !job.is_due() {
            return self.fail(job, overloaded("too many operations wait for records"));
        }
        self.track(&mut job);
        let (id, left) = (job.id, fetches.len());
        for fetch in fetches {
            self.namespace.pin(id, &fetch);
            if let Some(flight) = self.fetching.flights.get_mut(&fetch) {
                flight.waiters.push(id);
            } else {
                let token = self.namespace.begin_fetch(&fetch);
                let waiters = smallvec::smallvec![id];
                self.fetching.flights.insert(fetch.clone(), Flight { token, waiters });
                self.fetching.unsent.push(fetch);
            }
        }
        self.fetching.parked.insert(id, Parked { job, left });
    }

    /// Sends the fetches of this turn.
    pub(super) fn start_fetches(&mut self) {
        if self.fetching.unsent.is_empty() {
            return;
        }
        let mut records: BTreeMap<ShardId, Vec<Key>> = BTreeMap::new();
        for fetch in std::mem::take(&mut self.fetching.unsent) {
            let shard = shard_of(&fetch);
            if !self.pipeline.is_fenced(shard) {
                // R3: the fence first. The fetch goes when it stands.
                self.pipeline.touch(shard);
                self.fetching.unsent.push(fetch);
                continue;
            }
            match fetch {
                Fetch::Record(key) => records.entry(shard).or_default().push(key),
                page => self.start_scan(shard, page),
            }
        }
        for (shard, keys) in records {
            for keys in keys.chunks(MAX_KEYS) {
                self.start_get(shard, keys.to_vec());
            }
        }
    }

    fn start_get(&mut self, shard: ShardId, keys: Vec<Key>) {
        let getting = self.outside.records.get(shard, keys.iter().map(Key::encode).collect());
        self.spawn(async move {
            let arrived = match getting.await {
                Ok(values) => keys.into_iter().zip(values).map(record_arrived).collect(),
                Err(error) => keys
                    .into_iter()
                    .map(|key| Arrived { fetch: Fetch::Record(key), result: Err(error.clone()) })
                    .collect(),
            };
            Event::Fetched(arrived)
        });
    }

    fn start_scan(&mut self, shard: ShardId, fetch: Fetch) {
        let (start, end, limit) = match &fetch {
            Fetch::Dentries { dir, after, limit } => {
                let (start, end) = Key::dentries_after(*dir, after);
                (start, end, *limit)
            }
            Fetch::BackLinks { ino, after, limit } => {
                let (start, end) = Key::back_links_after(*ino, after);
                (start, end, *limit)
            }
            Fetch::Record(_) => return,
        };
        let scanning = self.outside.records.scan(shard, start, end, limit);
        self.spawn(async move {
            let result = scanning.await.map(|page| page_arrived(&fetch, page));
            Event::Fetched(vec![Arrived { fetch, result }])
        });
    }

    /// Installs what came, and runs again whoever has all it waited for.
    pub(super) fn fetched(&mut self, arrived: Vec<Arrived>) {
        for Arrived { fetch, result } in arrived {
            let Some(flight) = self.fetching.flights.remove(&fetch) else { continue };
            let failed = match result {
                Ok(fetched) => self.namespace.install(flight.token, fetched).err(),
                Err(error) => {
                    self.namespace.abandon_fetch(flight.token);
                    Some(error)
                }
            };
            for waiter in flight.waiters {
                self.arrived_for(waiter, failed.as_ref());
            }
        }
    }

    fn arrived_for(&mut self, waiter: u64, failed: Option<&Error>) {
        let Some(parked) = self.fetching.parked.get_mut(&waiter) else { return };
        parked.left -= 1;
        if parked.left > 0 && failed.is_none() {
            return;
        }
        let Some(Parked { job, .. }) = self.fetching.parked.remove(&waiter) else { return };
        match failed {
            Some(error) => self.fail(job, error.clone()),
            None => self.requeue(job),
        }
    }

    /// Everything that waits or is to be run.
    pub(super) fn take_all_jobs(&mut self) -> Vec<Job> {
        let mut jobs: Vec<Job> = self.runnable.drain(..).collect();
        jobs.extend(std::mem::take(&mut self.fetching).parked.into_values().map(|parked| parked.job));
        jobs.extend(std::mem::take(&mut self.blocked).into_values().flatten());
        jobs.extend(self.inos.take_waiting());
        jobs.extend(self.statfs.take_waiting());
        jobs.extend(self.spills.take_waiting());
        jobs.extend(self.routes.take_waiting());
        jobs.extend(self.merging.take_waiting());
        jobs.extend(self.transactions.take_jobs());
        jobs.extend(self.finds.drain(..));
        jobs
    }
}

fn shard_of(fetch: &Fetch) -> ShardId {
    match fetch {
        Fetch::Record(key) => key.shard(),
        Fetch::Dentries { dir, .. } => dir.shard(),
        Fetch::BackLinks { ino, .. } => ino.shard(),
    }
}

fn record_arrived((key, value): (Key, Option<Bytes>)) -> Arrived {
    Arrived { fetch: Fetch::Record(key.clone()), result: Ok(Fetched::Record(key, value)) }
}

fn page_arrived(fetch: &Fetch, (records, next): Page) -> Fetched {
    let end = next.is_none();
    let tail = |key: &Bytes| key.slice(NAME_AT.min(key.len())..);
    match fetch {
        Fetch::Dentries { dir, after, .. } => {
            let entries = records.into_iter().map(|(key, value)| (tail(&key), value)).collect();
            Fetched::Dentries { dir: *dir, after: after.clone(), entries, end }
        }
        Fetch::BackLinks { ino, after, .. } => {
            let links = records.iter().map(|(key, _)| tail(key)).collect();
            Fetched::BackLinks { ino: *ino, after: after.clone(), links, end }
        }
        Fetch::Record(key) => Fetched::Record(key.clone(), None),
    }
}

pub(super) fn lost_fence(epoch: u64) -> Error {
    Error::new(Reason::NotOwner, "another rank has taken this subtree over").with_epoch(epoch)
}
