//! Runs clients on a few threads.

use std::future::Future;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

/// Runs `client(0..count)` on `threads` threads, each with a runtime of its own that
/// carries every `threads`-th client, and returns their results in order.
///
/// A client's future stays on its thread: no `Send`, no wakeups across threads.
pub fn run<F, Fut, T>(count: usize, threads: usize, client: F) -> anyhow::Result<Vec<T>>
where
    F: Fn(usize) -> Fut + Sync,
    Fut: Future<Output = T>,
    T: Send,
{
    let threads = threads.clamp(1, count.max(1));
    let client = &client;
    let carry = move |first: usize| -> anyhow::Result<Vec<(usize, T)>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(async {
            let mut running: FuturesUnordered<_> =
                (first..count).step_by(threads).map(|number| async move { (number, client(number).await) }).collect();
            let mut results = Vec::new();
            while let Some(result) = running.next().await {
                results.push(result);
            }
            results
        }))
    };
    let mut results = std::thread::scope(|scope| -> anyhow::Result<Vec<(usize, T)>> {
        let mut handles = Vec::new();
        for first in 0..threads {
            let builder = std::thread::Builder::new().name(format!("clients-{first}"));
            handles.push(builder.spawn_scoped(scope, move || carry(first)).context("cannot start a client thread")?);
        }
        let mut results = Vec::with_capacity(count);
        for handle in handles {
            results.extend(handle.join().map_err(|_| anyhow::anyhow!("a client thread panicked"))??);
        }
        Ok(results)
    })?;
    results.sort_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}
