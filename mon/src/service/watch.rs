//! The stream of maps.

use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use pando_cluster_map::ClusterMap;
use pando_proto::mon::WatchMapResponse;
use pando_proto::{Error, Reason};
use pando_rpc::Shutdown;
use tokio::sync::watch;
use tonic::Status;

use crate::node::Leadership;

/// A mon that knows no leader for this long may miss changes: its watchers go to another.
const LEADERLESS: Duration = Duration::from_secs(3);

struct Watcher {
    map: watch::Receiver<Arc<ClusterMap>>,
    leadership: watch::Receiver<Leadership>,
    shutdown: Shutdown,
    /// Epoch of the last map that the watcher has; 0 for none.
    have: u64,
    ended: bool,
}

/// Maps newer than `have`, always the newest, with the number of those left out.
pub(super) fn maps(
    map: watch::Receiver<Arc<ClusterMap>>,
    leadership: watch::Receiver<Leadership>,
    shutdown: Shutdown,
    have: u64,
) -> impl Stream<Item = Result<WatchMapResponse, Status>> + Send + 'static {
    let watcher = Watcher { map, leadership, shutdown, have, ended: false };
    futures_util::stream::unfold(watcher, |mut watcher| async move {
        if watcher.ended {
            return None;
        }
        let item = watcher.next().await;
        watcher.ended = item.is_err();
        Some((item.map_err(|error| error.to_tonic()), watcher))
    })
}

impl Watcher {
    async fn next(&mut self) -> Result<WatchMapResponse, Error> {
        let have = self.have;
        let newer = |map: &Arc<ClusterMap>| map.exists() && map.epoch.0 > have;
        let leaderless = leaderless(self.leadership.clone());
        let map = tokio::select! {
            biased;
            () = self.shutdown.stopped() => return Err(Error::new(Reason::Unavailable, "this mon is stopping")),
            map = self.map.wait_for(newer) => match map {
                Ok(map) => Arc::clone(&map),
                Err(_) => return Err(Error::new(Reason::Unavailable, "this mon is stopping")),
            },
            () = leaderless => {
                return Err(Error::new(Reason::Unavailable, "this mon has lost touch with the others"));
            }
        };
        let epoch = map.epoch.0;
        let skipped_epochs = if have == 0 { 0 } else { epoch - have - 1 };
        self.have = epoch;
        Ok(WatchMapResponse { map: Some(map.to_proto()), skipped_epochs })
    }
}

/// Ends when no leader was known for a while.
async fn leaderless(mut leadership: watch::Receiver<Leadership>) {
    loop {
        if leadership.wait_for(|known| known.leader == 0).await.is_err() {
            return;
        }
        let found = tokio::time::timeout(LEADERLESS, leadership.wait_for(|known| known.leader != 0)).await;
        if !matches!(found, Ok(Ok(_))) {
            return;
        }
    }
}
