//! SIGINT and SIGTERM, for verbs that have something to put in order before they end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Watches them from now on; they end nothing by themselves any more.
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub fn watch() -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::local("signals", &error);
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        Ok(Self { interrupt, terminate })
    }

    /// Waits for the next one: the failure to end with.
    pub async fn next(&mut self) -> Failure {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        };
        // As shells have it; signals have small numbers.
        Failure::Interrupted(128 + kind.as_raw_value() as u8)
    }
}
