//! What all parts of one OSD share: its engine, its lease, and the way to its placement groups.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dashmap::DashMap;
use pando_mon_client::{MapWatch, MonClient};
use pando_osd_core::Message;
use pando_proto::{Epoch, Error, OsdId, PgId, Reason};
use pando_rpc::{Lease, Shutdown};
use rustc_hash::FxBuildHasher;
use tokio::sync::{Semaphore, mpsc};

use crate::engine::{GroupCommit, ReadPool};
use crate::links::Links;
use crate::pg::{self, Client, Input, MapView, Room};
use crate::wire;

/// Memory for requests that are not answered yet, in units of 1 KiB.
pub(crate) const ROOM_KIB: usize = 256 << 10;

/// One OSD.
pub(crate) struct Osd {
    pub me: OsdId,
    pub commits: GroupCommit,
    pub reads: ReadPool,
    pub lease: Arc<Lease>,
    pub full: Arc<AtomicBool>,
    pub map: MapWatch,
    pub mon: MonClient,
    pub links: Links,
    pub shutdown: Shutdown,
    pub header_cache: usize,
    pub room: Arc<Semaphore>,
    pub failure: Arc<OnceLock<Error>>,
    /// The tasks of placement groups; every request and message looks here, from all threads.
    pub pgs: DashMap<PgId, mpsc::Sender<Input>, FxBuildHasher>,
    pub view: Mutex<Arc<MapView>>,
}

impl Osd {
    /// The disk or the engine is not to be trusted any more: stop serving at once.
    pub fn fail(&self, error: Error) {
        if self.shutdown.is_stopping() {
            return;
        }
        self.lease.give_up();
        tracing::error!(%error, osd = %self.me, "this OSD stops");
        let _ = self.failure.set(error);
        self.shutdown.stop();
    }

    /// Takes a share of the memory for requests.
    pub fn room(&self, bytes: usize) -> Result<Room, Error> {
        // Requests are smaller than 4 TiB.
        let units = u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX);
        Arc::clone(&self.room)
            .try_acquire_many_owned(units)
            .map(Arc::new)
            .map_err(|_| Error::new(Reason::Overloaded, "this OSD has too much to do: try again"))
    }

    /// The newest map, as the placement groups see it.
    pub fn view(&self) -> Arc<MapView> {
        Arc::clone(&self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn sender(&self, pg: PgId) -> Option<mpsc::Sender<Input>> {
        self.pgs.get(&pg).map(|sender| sender.clone())
    }

    pub fn senders(&self) -> Vec<mpsc::Sender<Input>> {
        let mut senders: Vec<_> = self.pgs.iter().map(|entry| (*entry.key(), entry.value().clone())).collect();
        // The same order on every run, for simulation.
        senders.sort_unstable_by_key(|(pg, _)| *pg);
        senders.into_iter().map(|(_, sender)| sender).collect()
    }

    /// The task of a placement group, made if need be; `None` if the map knows no such group.
    pub fn open(self: &Arc<Self>, pg: PgId) -> Option<mpsc::Sender<Input>> {
        if let Some(sender) = self.sender(pg) {
            return Some(sender);
        }
        let view = self.view();
        if !view.map.pgs.contains_key(&pg) {
            return None;
        }
        let sender = self.pgs.entry(pg).or_insert_with(|| pg::spawn(self, pg, view)).clone();
        Some(sender)
    }

    /// Acts on a newer map: placement groups that are here from now on, and all others.
    pub async fn map_changed(self: &Arc<Self>, view: Arc<MapView>) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&view);
        for pg in view.map.pgs_of_osd(self.me) {
            self.open(pg);
        }
        for sender in self.senders() {
            let _ = sender.send(Input::Map(Arc::clone(&view))).await;
        }
    }

    /// Hands clients' requests to their placement group.
    pub async fn dispatch(self: &Arc<Self>, pg: PgId, requests: Vec<Client>) {
        let Some(sender) = self.sender(pg) else {
            let newest = requests.iter().map(|request| request.map_epoch).max().unwrap_or_default();
            let view = self.view();
            if newest > view.map.epoch {
                // R14: perhaps it is on its way here.
                tokio::spawn(Arc::clone(self).dispatch_later(pg, requests, newest));
            } else {
                self.refuse(pg, requests);
            }
            return;
        };
        if let Err(mpsc::error::SendError(Input::Requests(requests))) = sender.send(Input::Requests(requests)).await {
            for request in requests {
                request.responder.answer(Err(Error::new(Reason::Unavailable, "this OSD is stopping")));
            }
        }
    }

    async fn dispatch_later(self: Arc<Self>, pg: PgId, requests: Vec<Client>, epoch: Epoch) {
        let limit = std::time::Duration::from_secs(3);
        let _ = self.map.wait_for(epoch, limit).await;
        match self.open_if_here(pg) {
            Some(sender) => {
                let _ = sender.send(Input::Requests(requests)).await;
            }
            None => self.refuse(pg, requests),
        }
    }

    fn open_if_here(self: &Arc<Self>, pg: PgId) -> Option<mpsc::Sender<Input>> {
        let map = self.map.current();
        let here = map.pgs.get(&pg).is_some_and(|found| found.members.contains(&self.me));
        if here { self.open(pg) } else { None }
    }

    fn refuse(&self, pg: PgId, requests: Vec<Client>) {
        let view = self.view();
        let error = if view.map.pgs.contains_key(&pg) {
            let message = format!("placement group {pg} is not on this OSD");
            Error::new(Reason::NotOwner, message).with_epoch(view.map.epoch.0)
        } else {
            Error::new(Reason::UnknownId, format!("the map knows no placement group {pg}"))
        };
        for request in requests {
            request.responder.answer(Err(error.clone()));
        }
    }

    /// Hands another OSD's message to its placement group.
    pub async fn deliver(self: &Arc<Self>, pg: PgId, from: OsdId, message: Message) {
        if let Some(sender) = self.open(pg) {
            let _ = sender.send(Input::Message(from, message)).await;
        }
    }

    /// Sends to another OSD: a primary's words over our own stream, answers over that of the other.
    pub fn send(self: &Arc<Self>, pg: PgId, to: OsdId, message: Message) {
        let forward = message.body.is_from_primary();
        let message = wire::to_proto(pg, self.me, to, message);
        if forward {
            self.links.send(self, to, message);
        } else {
            self.links.answer(to, message);
        }
    }
}
