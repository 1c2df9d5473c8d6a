//! SIGINT, SIGTERM and SIGHUP, for verbs that have something to put in order before they end.

use pando_rpc::StopSignals;

use crate::failure::Failure;

/// Watches them from now on; they end nothing by themselves any more.
pub struct Interrupts(StopSignals);

impl Interrupts {
    pub fn watch() -> Result<Self, Failure> {
        StopSignals::watch().map(Self).map_err(|error| Failure::local("signals", &error))
    }

    /// Waits for the next one: the failure to end with.
    pub async fn next(&mut self) -> Failure {
        // As shells have it; signals have small numbers.
        Failure::Interrupted(128 + self.0.next().await as u8)
    }
}
