//! What an answer means, when and how long to try again.

use std::fmt::Debug;
use std::time::Duration;

use pando_mon_client::MapWatch;
use pando_proto::{Epoch, Error, MAX_MESSAGE_BYTES, Reason};
use pando_rpc::Shutdown;
use tonic::Status;

use crate::connections::FRAME_BYTES;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long to wait for the map that an OSD told of, before asking again anyway.
const MAP_WAIT: Duration = Duration::from_secs(1);
/// What was repeated for so long, in pauses, is told of in the log; and again after as long.
const WARN_EVERY: Duration = Duration::from_secs(30);
/// Largest request: the rest of its frame has room beside it.
const MAX_REQUEST_BYTES: usize = MAX_MESSAGE_BYTES - FRAME_BYTES;

/// Whether an error says for certain that nothing was, or will be, done by the copy of the call that it answers (R7).
/// All others leave the outcome open, so the same call is repeated: an OSD of another cluster, too, only says that the
/// address is no longer that of ours, whatever ours has done before.
pub(crate) fn is_definite(error: &Error) -> bool {
    bars_all_copies(error)
        || matches!(error.reason, Reason::InvalidRequest | Reason::TooLarge | Reason::NoSpace | Reason::Corrupt)
}

/// Whether an error that answers one copy of a mutation meets every other one, too: it is about the session or the
/// generation, which all of them name (R22). Any other may have been answered to this copy only, by this OSD, now.
pub(crate) fn bars_all_copies(error: &Error) -> bool {
    matches!(error.reason, Reason::StaleGeneration | Reason::StaleSession)
}

/// What an OSD answered. What does not come from the OSD itself says nothing about the outcome.
pub(crate) fn answered(status: &Status) -> Error {
    let error = Error::from_tonic(status);
    if Error::is_from_peer(status) || error.reason == Reason::Timeout {
        return error;
    }
    Error { retry_after: error.retry_after, ..Error::new(Reason::Unavailable, error.message) }
}

/// Refuses what would be refused everywhere, before it is sent: the answer of a transport to it would not be definite.
pub(crate) fn check_size(bytes: usize) -> Result<(), Error> {
    if bytes <= MAX_REQUEST_BYTES {
        return Ok(());
    }
    let message = format!("a request to an OSD has at most {MAX_REQUEST_BYTES} bytes, not {bytes}");
    Err(Error::new(Reason::TooLarge, message))
}

/// Nothing is repeated any more.
pub(crate) struct Stopped;

impl From<Stopped> for Error {
    fn from(_: Stopped) -> Self {
        Self::new(Reason::StaleSession, "the session is over, or this process is stopping")
    }
}

/// Growing pauses between attempts of one call.
pub(crate) struct Backoff {
    pause: Duration,
    /// Since the log was told.
    paused: Duration,
    map: MapWatch,
    shutdown: Shutdown,
}

impl Backoff {
    pub(crate) fn new(map: MapWatch, shutdown: Shutdown) -> Self {
        Self { pause: FIRST_PAUSE, paused: Duration::ZERO, map, shutdown }
    }

    /// Waits until another attempt makes sense: for the map that `error` tells of, else a while or any newer map.
    ///
    /// Errors: there will be no other attempt. The cluster may be gone for good, and another one be in its place.
    pub(crate) async fn wait(&mut self, what: &impl Debug, error: &Error) -> Result<(), Stopped> {
        let shutdown = self.shutdown.clone();
        if self.paused >= WARN_EVERY {
            self.paused = Duration::ZERO;
            tracing::warn!(?what, %error, "a call to an OSD has been repeated for long");
        } else {
            tracing::debug!(?what, %error, "repeating a call to an OSD");
        }
        tokio::select! {
            biased;
            () = shutdown.stopped() => Err(Stopped),
            () = self.sleep(error) => Ok(()),
        }
    }

    async fn sleep(&mut self, error: &Error) {
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
        self.paused += self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}
