//! The Raft library logs by slog; we log by tracing.

use slog::{Drain, Level, OwnedKVList, Record};

struct ToTracing;

impl Drain for ToTracing {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &Record<'_>, _: &OwnedKVList) -> Result<(), slog::Never> {
        let message = record.msg();
        match record.level() {
            Level::Critical | Level::Error => tracing::error!(target: "raft", "{message}"),
            Level::Warning => tracing::warn!(target: "raft", "{message}"),
            Level::Info => tracing::debug!(target: "raft", "{message}"),
            Level::Debug | Level::Trace => tracing::trace!(target: "raft", "{message}"),
        }
        Ok(())
    }
}

pub(crate) fn logger() -> slog::Logger {
    slog::Logger::root(ToTracing, slog::o!())
}
