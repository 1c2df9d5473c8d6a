//! When and how long to try again.

use std::time::Duration;

use pando_mon_client::MapWatch;
use pando_proto::{Epoch, Error, Reason};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long to wait for the map that an OSD told of, before asking again anyway.
const MAP_WAIT: Duration = Duration::from_secs(1);

/// Whether an error says for certain that nothing was, or will be, done (R7).
/// All others leave the outcome open, so the same call is repeated.
pub(crate) fn is_definite(error: &Error) -> bool {
    matches!(
        error.reason,
        Reason::InvalidRequest
            | Reason::TooLarge
            | Reason::NoSpace
            | Reason::StaleGeneration
            | Reason::StaleSession
            | Reason::Corrupt
            | Reason::WrongCluster
    )
}

/// Growing pauses between attempts of one call.
pub(crate) struct Backoff {
    pause: Duration,
    map: MapWatch,
}

impl Backoff {
    pub(crate) fn new(map: MapWatch) -> Self {
        Self { pause: FIRST_PAUSE, map }
    }

    /// Waits until another attempt makes sense: for the map that `error` tells of, else a while or any newer map.
    pub(crate) async fn wait(&mut self, error: &Error) {
        let here = self.map.current().epoch;
        match error.epoch {
            Some(epoch) if error.reason == Reason::NotOwner && Epoch(epoch) > here => {
                // Not in time is no error: the next attempt tells.
                let _ = self.map.wait_for(Epoch(epoch), MAP_WAIT).await;
            }
            _ => {
                tokio::select! {
                    () = tokio::time::sleep(self.pause) => {}
                    _ = self.map.changed() => {}
                }
            }
        }
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}
