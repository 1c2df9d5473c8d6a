//! Reads on threads and in place.

use std::sync::Arc;
use std::time::Duration;

use pando_osd::engine::memory::MemoryEngine;
use pando_osd::engine::{Engine, EngineError, ReadPool};
use tokio::time::timeout;

use crate::store::{PG, put, transaction};

const DEADLINE: Duration = Duration::from_secs(20);

fn engine() -> Arc<dyn Engine> {
    let engine = MemoryEngine::new(1 << 20);
    engine.commit(&[transaction(vec![put(b"k", b"v")])]).unwrap();
    Arc::new(engine)
}

#[tokio::test]
async fn a_read_runs_on_a_thread_of_the_pool() {
    let engine = engine();
    let pool = ReadPool::threaded(&engine, 2).unwrap();
    let read = pool.run(|engine| {
        assert!(std::thread::current().name().unwrap().starts_with("pando-read-"));
        engine.get(PG, b"k")
    });
    assert_eq!(timeout(DEADLINE, read).await.unwrap().unwrap().unwrap(), "v");
    let many: Vec<_> = (0..5000).map(|number| pool.run(move |_| Ok(number))).collect();
    let sum: u32 = timeout(DEADLINE, futures_util::future::join_all(many)).await.unwrap().iter().flatten().sum();
    assert_eq!(sum, 4999 * 5000 / 2);
    timeout(DEADLINE, pool.close()).await.unwrap();
    assert_eq!(Arc::strong_count(&engine), 1, "the threads are gone");
    assert!(timeout(DEADLINE, pool.run(|_| Ok(()))).await.unwrap().is_err());
}

#[tokio::test]
async fn a_read_that_panics_is_an_error_and_the_thread_goes_on() {
    let pool = ReadPool::threaded(&engine(), 1).unwrap();
    let panicked = timeout(DEADLINE, pool.run::<(), _>(|_| panic!("on purpose"))).await.unwrap();
    assert!(matches!(panicked, Err(EngineError::Io(_))));
    assert_eq!(timeout(DEADLINE, pool.run(|_| Ok(1))).await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn an_inline_read_runs_where_it_is_asked_for() {
    let pool = ReadPool::inline(engine());
    let here = std::thread::current().id();
    let value = pool.run(move |engine| {
        assert_eq!(std::thread::current().id(), here);
        engine.get(PG, b"k")
    });
    assert_eq!(value.await.unwrap().unwrap(), "v");
    pool.close().await;
}
