//! What the disk below an engine allows, for the `floor` of load generators.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pando_proto::PgId;

use super::{Change, Engine, EngineError, Transaction};

/// Durable commits per second of `records` records of `value_bytes` each, one commit after the other for `time`. Leaves
/// no more than `records` records behind.
///
/// # Errors
/// Those of [`Engine::commit`].
pub fn synced_commits(
    engine: &dyn Engine,
    pg: PgId,
    records: usize,
    value_bytes: usize,
    time: Duration,
) -> Result<f64, EngineError> {
    let value = Bytes::from(vec![0x5a; value_bytes]);
    let put = |number: usize| Change::Put { key: format!("bench/{number:08}").into(), value: value.clone() };
    let transaction = [Transaction { pg, changes: (0..records).map(put).collect() }];
    let (start, mut commits) = (Instant::now(), 0u32);
    while start.elapsed() < time {
        engine.commit(&transaction)?;
        commits += 1;
    }
    Ok(f64::from(commits) / start.elapsed().as_secs_f64())
}
