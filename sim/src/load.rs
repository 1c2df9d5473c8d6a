//! One simulated client: random operations in its own tree, each checked against the [`Model`].

use std::collections::BTreeMap;

use pando_client::Client;
use pando_proto::Errno;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::model::{Entry, Model};

/// Names that the operations choose from: few, so that they meet.
const NAMES: u32 = 12;
/// One write in this many is larger than any inline limit.
const LARGE_ONE_IN: u32 = 8;

/// Longest pause between two operations: a run has to last as long as its faults.
const MOST_PAUSE_MILLIS: u64 = 250;

/// What a load has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Acknowledged operations by name.
    pub done: BTreeMap<&'static str, u64>,
    /// Operations that failed without a known outcome.
    pub unknown: u64,
}

/// A client's load, its tree and its oracle.
pub struct Load {
    client: Client,
    dir: String,
    model: Model,
    dice: ChaCha8Rng,
    counter: u64,
    /// What it did.
    pub tally: Tally,
}

impl Load {
    /// A load in `/load-<number>`, decided by `seed`.
    pub fn new(client: Client, number: u64, seed: u64) -> Self {
        let dice = ChaCha8Rng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9));
        let dir = format!("/load-{number}");
        Self { client, dir, model: Model::default(), dice, counter: 0, tally: Tally::default() }
    }

    /// Makes the tree, then runs `steps` operations, then looks at everything once more.
    ///
    /// Errors: a sentence that says what was wrong.
    pub async fn run(&mut self, steps: u64) -> Result<(), String> {
        self.client.create_dir_all(&self.dir).await.map_err(|error| format!("mkdir {}: {error}", self.dir))?;
        for _ in 0..steps {
            let pause = std::time::Duration::from_millis(self.dice.random_range(0..MOST_PAUSE_MILLIS));
            tokio::time::sleep(pause).await;
            self.step().await?;
        }
        self.look_at_all().await
    }

    /// Compares the whole tree with the model.
    ///
    /// Errors: as [`run`](Self::run).
    pub async fn look_at_all(&mut self) -> Result<(), String> {
        for name in self.model.names() {
            self.read(&name).await?;
        }
        let mut seen = Vec::new();
        let mut listing = self.client.read_dir(&self.dir).await.map_err(|error| format!("list: {error}"))?;
        while let Some(entry) = listing.next_entry().await.map_err(|error| format!("list: {error}"))? {
            seen.push(String::from_utf8_lossy(entry.name()).into_owned());
        }
        let want: Vec<String> =
            self.model.names().into_iter().filter(|name| self.model.is(name) != Some(Entry::Absent)).collect();
        if seen == want { Ok(()) } else { Err(format!("{}: listed {seen:?}, expected {want:?}", self.dir)) }
    }

    async fn step(&mut self) -> Result<(), String> {
        let (name, other) = (self.name(), self.name());
        match self.dice.random_range(0..10) {
            0..=3 => self.write(&name).await,
            4..=5 => self.unlink(&name).await,
            6..=7 if name != other => self.rename(&name, &other).await,
            _ => self.read(&name).await,
        }
    }

    fn name(&mut self) -> String {
        format!("f{:02}", self.dice.random_range(0..NAMES))
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    fn content(&mut self) -> Vec<u8> {
        self.counter += 1;
        let length = match self.dice.random_range(0..LARGE_ONE_IN) {
            0 => self.dice.random_range(5_000..20_000),
            _ => self.dice.random_range(0..1_000),
        };
        let stamp = format!("{}#{}|", self.dir, self.counter).into_bytes();
        stamp.iter().copied().cycle().take(length).collect()
    }

    async fn write(&mut self, name: &str) -> Result<(), String> {
        let (path, data) = (self.path(name), self.content());
        match self.client.write(&path, &data).await {
            Ok(()) => {
                self.count("write");
                self.model.set(name, Entry::File(data));
                Ok(())
            }
            // A large write is several steps (truncate, objects, size): after a failure the content is anyone's guess.
            Err(error) if error.outcome_is_unknown() && data.len() <= 4096 => {
                self.tally.unknown += 1;
                self.model.set_maybe(name, Entry::File(data));
                Ok(())
            }
            Err(error) => Err(format!("write {path}: {error}")),
        }
    }

    async fn unlink(&mut self, name: &str) -> Result<(), String> {
        let result = self.client.remove_file(self.path(name)).await;
        let there = self.model.may_be(name);
        match result {
            Ok(()) if there.iter().all(|entry| *entry == Entry::Absent) => {
                Err(format!("unlink {name} succeeded, but it was absent"))
            }
            Ok(()) => {
                self.count("unlink");
                self.model.set(name, Entry::Absent);
                Ok(())
            }
            Err(error) if error.errno() == Errno::ENOENT => {
                self.count("unlink absent");
                self.model.observe(name, &Entry::Absent)
            }
            Err(error) if error.outcome_is_unknown() => {
                self.tally.unknown += 1;
                self.model.set_maybe(name, Entry::Absent);
                Ok(())
            }
            Err(error) => Err(format!("unlink {name}: {error}")),
        }
    }

    async fn rename(&mut self, from: &str, to: &str) -> Result<(), String> {
        // Both ends known first: an unknown outcome of a rename ties two names together.
        self.read(from).await?;
        self.read(to).await?;
        let moved = self.model.is(from).unwrap_or(Entry::Absent);
        match self.client.rename(self.path(from), self.path(to)).await {
            Ok(()) if moved == Entry::Absent => Err(format!("rename {from} succeeded, but it was absent")),
            Ok(()) => {
                self.count("rename");
                self.model.set(to, moved);
                self.model.set(from, Entry::Absent);
                Ok(())
            }
            Err(error) if error.errno() == Errno::ENOENT => self.model.observe(from, &Entry::Absent),
            Err(error) if error.outcome_is_unknown() => {
                self.tally.unknown += 1;
                self.model.set_maybe(to, moved);
                self.model.set_maybe(from, Entry::Absent);
                Ok(())
            }
            Err(error) => Err(format!("rename {from} {to}: {error}")),
        }
    }

    async fn read(&mut self, name: &str) -> Result<(), String> {
        let seen = match self.client.read(self.path(name)).await {
            Ok(data) => Entry::File(data.to_vec()),
            Err(error) if error.errno() == Errno::ENOENT => Entry::Absent,
            Err(error) if error.outcome_is_unknown() => {
                self.tally.unknown += 1;
                return Ok(());
            }
            Err(error) => return Err(format!("read {name}: {error}")),
        };
        self.count("read");
        self.model.observe(name, &seen)
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.done.entry(what).or_default() += 1;
    }
}
