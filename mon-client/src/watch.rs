//! The newest map, always.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pando_cluster_map::ClusterMap;
use pando_proto::{Epoch, Error, Reason, mon};
use pando_rpc::Shutdown;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;

use crate::MonClient;
use crate::client::service;
use crate::targets::MonChannel;

/// Opening the stream takes no longer than this, or the next mon is tried.
const OPEN: Duration = Duration::from_secs(3);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A view of the newest map; clones see the same.
#[derive(Clone, Debug)]
pub struct MapWatch {
    receiver: watch::Receiver<Arc<ClusterMap>>,
    lost: Arc<OnceLock<Error>>,
}

impl MapWatch {
    /// The newest map so far.
    pub fn current(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.receiver.borrow())
    }

    /// The first map seen with at least this epoch (R14).
    ///
    /// Errors: `TIMEOUT` when none came within `limit`.
    pub async fn wait_for(&self, epoch: Epoch, limit: Duration) -> Result<Arc<ClusterMap>, Error> {
        let mut receiver = self.receiver.clone();
        let waited = tokio::time::timeout(limit, receiver.wait_for(|map| map.epoch >= epoch)).await;
        match waited {
            Ok(Ok(map)) => Ok(Arc::clone(&map)),
            Ok(Err(_)) => Err(Error::new(Reason::Unavailable, "this process is stopping")),
            Err(_) => {
                let have = self.current().epoch;
                Err(Error::new(Reason::Timeout, format!("no map of epoch {epoch} came in time (newest: {have})")))
            }
        }
    }

    /// The next newer map than the last one that this call returned (on this clone). Never returns once the
    /// watch has stopped.
    pub async fn changed(&mut self) -> Arc<ClusterMap> {
        if self.receiver.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        Arc::clone(&self.receiver.borrow_and_update())
    }

    /// Why there will be no newer map, if the cluster is gone: all its mons say that they are of another one.
    pub fn lost(&self) -> Option<Error> {
        self.lost.get().cloned()
    }

    /// A watch that the test itself feeds.
    pub fn fixed(map: Arc<ClusterMap>) -> (Self, watch::Sender<Arc<ClusterMap>>) {
        let (sender, receiver) = watch::channel(map);
        (Self { receiver, lost: Arc::default() }, sender)
    }
}

pub(crate) fn spawn(client: MonClient, initial: Arc<ClusterMap>, shutdown: Shutdown) -> MapWatch {
    client.saw(initial.epoch);
    client.targets().bind(&initial.cluster_id);
    let (sender, receiver) = watch::channel(initial);
    let lost = Arc::new(OnceLock::new());
    let watch = MapWatch { receiver, lost: Arc::clone(&lost) };
    tokio::spawn(async move {
        let gone = tokio::select! {
            () = shutdown.stopped() => None,
            gone = follow(client, sender) => gone,
        };
        if let Some(error) = gone {
            tracing::error!(%error, "stopping");
            let _ = lost.set(error);
            // Nothing of this process is to reach the cluster that is there now.
            shutdown.stop();
        }
    });
    watch
}

/// Opens stream after stream until nobody is left who reads the map, or until the cluster is gone; then says so.
async fn follow(client: MonClient, sender: watch::Sender<Arc<ClusterMap>>) -> Option<Error> {
    let mut backoff = BACKOFF_MIN;
    // Mons in a row that are of another cluster. One address may belong to somebody else by now, while the others are
    // only away.
    let mut foreign = BTreeSet::new();
    loop {
        let (address, channel) = client.targets().current();
        let before = sender.borrow().epoch;
        let ended = tokio::select! {
            ended = one_stream(&client, channel, &sender) => ended,
            () = sender.closed() => return None,
        };
        if sender.borrow().epoch > before {
            backoff = BACKOFF_MIN;
        }
        match ended.map_err(|status| Error::from_tonic(&status)) {
            Err(error) if error.reason == Reason::WrongCluster => {
                tracing::warn!(mon = address, %error, "this mon is of another cluster");
                client.targets().leave(&address);
                foreign.insert(address);
                if foreign.len() >= client.targets().count() {
                    return Some(error);
                }
            }
            Err(error) => {
                tracing::debug!(mon = address, %error, "the map watch broke");
                client.targets().leave(&address);
                foreign.clear();
            }
            Ok(()) => foreign.clear(),
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

async fn one_stream(
    client: &MonClient,
    channel: MonChannel,
    sender: &watch::Sender<Arc<ClusterMap>>,
) -> Result<(), tonic::Status> {
    let request = mon::WatchMapRequest { have_epoch: sender.borrow().epoch.0 };
    let mut service = service(channel);
    let opening = tokio::time::timeout(OPEN, service.watch_map(request));
    let mut stream = opening.await.map_err(|_| tonic::Status::deadline_exceeded("no answer"))??.into_inner();
    while let Some(response) = stream.next().await {
        let map = ClusterMap::from_proto_field(response?.map.as_ref()).map_err(Error::from)?;
        install(client, sender, map)?;
    }
    Ok(())
}

fn install(client: &MonClient, sender: &watch::Sender<Arc<ClusterMap>>, map: ClusterMap) -> Result<(), Error> {
    let mut foreign = false;
    let epoch = map.epoch;
    sender.send_if_modified(|current| {
        // A map without a cluster (in tests) may be followed by one of any.
        foreign = current.cluster_id != map.cluster_id && current.cluster_id != [0; 16];
        let newer = map.epoch > current.epoch && !foreign;
        if newer {
            *current = Arc::new(map);
        }
        newer
    });
    if foreign {
        return Err(Error::new(Reason::WrongCluster, "the mon belongs to another cluster: check the mon addresses"));
    }
    // After it is there for all to see: leases that were granted under it count from now on.
    client.saw(epoch);
    Ok(())
}
