//! The signals that ask a program to stop: SIGINT, SIGTERM and SIGHUP.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Watches them from now on; they end nothing by themselves any more.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` where it was ignored from the start, as for programs under `nohup`: they are to outlive their terminal.
    hangup: Option<Signal>,
}

impl StopSignals {
    /// To be called within a runtime.
    ///
    /// Errors: the system lets nobody watch signals.
    pub fn watch() -> io::Result<Self> {
        let ignored =
            is_ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), SignalKind::hangup());
        let hangup = if ignored { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    /// Waits for the next one: its number.
    pub async fn next(&mut self) -> i32 {
        let Self { interrupt, terminate, hangup } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let kind = tokio::select! {
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = terminate.recv() => SignalKind::terminate(),
            _ = hung_up => SignalKind::hangup(),
        };
        kind.as_raw_value()
    }
}

/// By the text of `/proc/self/status`, see proc(5): `SigIgn` is a mask, the lowest bit is signal 1. Where there is no such
/// file nothing counts as ignored.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    let bit = u32::try_from(kind.as_raw_value() - 1).unwrap_or(u32::MAX);
    mask.checked_shr(bit).is_some_and(|rest| rest & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_mask() {
        let status = "Name:\tpando\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert!(is_ignored(status, SignalKind::hangup()) && is_ignored(status, SignalKind::pipe()));
        assert!(!is_ignored(status, SignalKind::interrupt()) && !is_ignored(status, SignalKind::terminate()));
        for nonsense in ["", "SigIgn:\n", "SigIgn:\tzz\n"] {
            assert!(!is_ignored(nonsense, SignalKind::hangup()), "{nonsense}");
        }
    }
}
