//! The engine alone: as many submitters as clients, each with the records of one durable create in flight.

use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use pando_osd::engine::commit::Limits;
use pando_osd::engine::{self, Change, Engine, EngineOptions, GroupCommit, Transaction};
use pando_proto::PgId;
use pando_proto::ids::METADATA_POOL;

use super::{Figure, Options, SIZE, Turn};
use crate::content::generated;
use crate::leftovers::Scratch;
use crate::measure::Recorder;

/// Sizes of the other values of a create: inodes of file and directory, dentry, completed request, fence.
const INODE: usize = 120;
const DENTRY: usize = 14;
const COMPLETED: usize = 140;
const FENCE: usize = 16;

/// An engine in a temporary directory.
pub(super) struct Store {
    engine: Arc<dyn Engine>,
    directory: engine::Directory,
    _scratch: Scratch,
}

impl Store {
    pub(super) fn open(options: &Options) -> anyhow::Result<Self> {
        // Beside the cluster's data: the same disk.
        let scratch = Scratch::new(options.cluster.data.as_deref())?;
        let (engine, directory) =
            engine::open(options.cluster.engine, &scratch.path().join("engine"), &EngineOptions::default())?;
        Ok(Self { engine, directory, _scratch: scratch })
    }

    pub(super) fn close(self) {
        drop(self.engine);
        drop(self.directory);
    }

    /// One committer, `size` creates in each synced commit.
    pub(super) fn measure_batches(
        &self,
        options: &Options,
        turn: u32,
        size: u64,
        figure: &mut Figure,
        recorder: &mut Recorder,
    ) -> anyhow::Result<()> {
        let (limit, start) = (Turn::new(options).limit, Instant::now());
        let mut file = u64::from(turn) << 40 | 1 << 39;
        while start.elapsed() < limit {
            let batch: Vec<Transaction> = (file..file + size).map(|file| create(file % 16, file)).collect();
            file += size;
            let began = Instant::now();
            self.engine.commit(&batch)?;
            recorder.ended("synced_commit", began);
            figure.operations += size;
        }
        figure.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// As many submitters as clients, each with one create in flight.
    pub(super) fn measure_grouped(
        &self,
        options: &Options,
        turn: u32,
        figure: &mut Figure,
        recorder: &mut Recorder,
    ) -> anyhow::Result<()> {
        let limit = Turn::new(options).limit;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (one, seconds) = runtime.block_on(async {
            let commit = GroupCommit::threaded(Arc::clone(&self.engine), Limits::default())?;
            let start = Instant::now();
            let mut submitters: FuturesUnordered<_> =
                (0..options.clients).map(|client| submit(&commit, client as u64, turn, start, limit)).collect();
            let mut recorder = Recorder::default();
            while let Some(outcome) = submitters.next().await {
                recorder.merge(outcome?);
            }
            let seconds = start.elapsed().as_secs_f64();
            drop(submitters);
            commit.close().await;
            anyhow::Ok((recorder, seconds))
        })?;
        figure.operations += one.total();
        figure.seconds += seconds;
        recorder.merge(one);
        Ok(())
    }
}

async fn submit(
    commit: &GroupCommit,
    client: u64,
    turn: u32,
    start: Instant,
    limit: std::time::Duration,
) -> anyhow::Result<Recorder> {
    let mut recorder = Recorder::default();
    for file in 0_u64.. {
        let transaction = create(client, u64::from(turn) << 40 | file);
        let began = Instant::now();
        commit.submit(transaction).await?;
        recorder.ended("grouped_commit", began);
        if start.elapsed() >= limit {
            break;
        }
    }
    Ok(recorder)
}

/// What the creation of a file of 1 KiB writes.
fn create(client: u64, file: u64) -> Transaction {
    let ino = client << 44 | file;
    let put = |kind: u8, numbers: &[u64], name: &str, length: usize| Change::Put {
        key: key(kind, numbers, name),
        value: generated(ino, 0, length).into(),
    };
    let changes = vec![
        put(b'i', &[ino], "", INODE),
        put(b'i', &[client], "", INODE),
        put(b'd', &[client], &file.to_string(), DENTRY),
        put(b'b', &[ino], "", SIZE),
        put(b'q', &[1, 1, ino], "", COMPLETED),
        put(b'f', &[1], "", FENCE),
        // The group's position in its log.
        put(b'z', &[client], "", FENCE),
    ];
    Transaction { pg: PgId { pool: METADATA_POOL, index: (client % 16) as u32 }, changes }
}

fn key(kind: u8, numbers: &[u64], name: &str) -> Bytes {
    let mut key = BytesMut::with_capacity(1 + 8 * numbers.len() + name.len());
    key.put_u8(kind);
    for number in numbers {
        key.put_u64(*number);
    }
    key.put_slice(name.as_bytes());
    key.freeze()
}
