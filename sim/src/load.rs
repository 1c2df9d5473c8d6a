//! One simulated client: random operations in directories of its own, each checked against the [`Model`].
//!
//! Many of them show it when they are done twice (I4): an exchange, an append, a creation that must be the first.

mod links;
mod turn;
mod wander;

use std::collections::BTreeMap;
use std::time::Duration;

use pando_client::{Client, Error, File, OpenOptions};
use pando_proto::Errno;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use self::links::Links;
use self::turn::{MOVING, Place, Turn, is_apart, never_happened};
use self::wander::Wander;
use crate::model::{Entry, Model};

/// Directories of a load; each may become a subtree.
pub(crate) const DIRS: [&str; 4] = ["d0", "d1", "d1/sub", "d2"];
/// A directory that comes and goes, and may be split off meanwhile.
pub(crate) const SCRATCH: &str = "scratch";
/// Where directories that wander are at times, for those who split directories off.
pub(crate) const WANDERING: [&str; 4] = ["d0/v", "d2/w", "d2/v", "d1/sub/w"];
/// Names that the operations choose from in each directory: few, so that they meet.
const NAMES: u32 = 4;
/// One write in this many is larger than any inline limit.
const LARGE_ONE_IN: u32 = 8;
/// Longest pause between two operations: a run has to last as long as its faults.
const MOST_PAUSE_MILLIS: u64 = 200;
/// What a write in one step holds at most.
const INLINE: usize = 4096;

/// What a load has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations by name and outcome.
    pub done: BTreeMap<String, u64>,
    /// Operations that failed without a known outcome.
    pub unknown: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, what: &str) {
        *self.done.entry(what.to_owned()).or_default() += 1;
    }
}

/// A file without a name, and what it holds.
struct Held {
    file: File,
    data: Vec<u8>,
}

/// A client's load, its tree and its oracle.
pub struct Load {
    client: Client,
    place: Place,
    model: Model,
    links: Links,
    wander: Wander,
    dice: ChaCha8Rng,
    counter: u64,
    held: Option<Held>,
    /// Whether there is a scratch directory; `None`: nobody knows.
    scratch: Option<bool>,
    /// What it did.
    pub tally: Tally,
}

/// Bytes that nothing else writes.
fn content(dir: &str, part: &str, counter: u64, dice: &mut ChaCha8Rng) -> Vec<u8> {
    let length = match dice.random_range(0..LARGE_ONE_IN) {
        0 => dice.random_range(5_000..20_000),
        _ => dice.random_range(0..1_000),
    };
    let stamp = format!("{dir}#{part}{counter}|").into_bytes();
    stamp.iter().copied().cycle().take(length).collect()
}

impl Load {
    /// A load in `/load-<number>`, decided by `seed`.
    pub fn new(client: Client, number: u64, seed: u64) -> Self {
        let dice = ChaCha8Rng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9));
        let dir = format!("/load-{number}");
        Self {
            client,
            place: Place { dir, moved: 0 },
            model: Model::default(),
            links: Links::default(),
            wander: Wander::default(),
            dice,
            counter: 0,
            held: None,
            scratch: Some(false),
            tally: Tally::default(),
        }
    }

    /// Makes the tree, then runs `steps` operations.
    ///
    /// Errors: a sentence that says what was wrong.
    pub async fn run(&mut self, steps: u64) -> Result<(), String> {
        for dir in DIRS {
            let path = self.path(dir);
            self.client.create_dir_all(&path).await.map_err(|error| format!("mkdir {path}: {error}"))?;
        }
        let (_, wander, mut turn) = self.parts();
        wander.begin(&mut turn).await?;
        for _ in 0..steps {
            let pause = Duration::from_millis(self.dice.random_range(0..MOST_PAUSE_MILLIS));
            tokio::time::sleep(pause).await;
            self.step().await?;
        }
        Ok(())
    }

    /// What has parts of its own, and one operation's view of the rest.
    fn parts(&mut self) -> (&mut Links, &mut Wander, Turn<'_>) {
        let Self { client, place, links, wander, dice, tally, .. } = self;
        (links, wander, Turn { client, place, dice, tally })
    }

    /// Compares the whole tree with the model. What has to be there, by path.
    ///
    /// Errors: as [`run`](Self::run).
    pub async fn look_at_all(&mut self) -> Result<BTreeMap<String, Vec<u8>>, String> {
        if let Some(held) = self.held.take() {
            self.read_held(&held).await?;
            held.file.close().await.map_err(|error| format!("close: {error}"))?;
        }
        for name in self.model.names() {
            self.read(&name).await?;
        }
        let (links, wander, mut turn) = self.parts();
        links.check(&mut turn).await?;
        wander.end(&mut turn).await?;
        for dir in DIRS {
            self.look_into(dir).await?;
        }
        Ok(self.files())
    }

    /// Compares the names in a directory with those that have to be there.
    async fn look_into(&self, dir: &str) -> Result<(), String> {
        let seen = self.list(dir).await?;
        let files = self.model.names().into_iter().filter(|name| self.model.is(name) != Some(Entry::Absent));
        let names = files.chain(self.links.names()).chain(DIRS.iter().map(|dir| (*dir).to_owned()));
        let mut want: Vec<String> = names
            .filter_map(|name| name.rsplit_once('/').filter(|(at, _)| *at == dir).map(|(_, name)| name.to_owned()))
            .chain(self.wander.names_in(dir))
            .collect();
        want.sort();
        match seen == want {
            true => Ok(()),
            false => Err(format!("{}: listed {seen:?}, expected {want:?}", self.path(dir))),
        }
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let names = self.model.names();
        let files = names.into_iter().filter_map(|name| match self.model.is(&name) {
            Some(Entry::File(data)) => Some((name, data)),
            _ => None,
        });
        let linked = self.links.content().into_iter();
        let linked = linked.flat_map(|data| self.links.names().into_iter().map(move |name| (name, data.clone())));
        files.chain(linked).chain(self.wander.files()).map(|(name, data)| (self.path(&name), data)).collect()
    }

    async fn list(&self, dir: &str) -> Result<Vec<String>, String> {
        let mut seen = Vec::new();
        let path = self.path(dir);
        let mut listing = self.client.read_dir(&path).await.map_err(|error| format!("list {path}: {error}"))?;
        while let Some(entry) = listing.next_entry().await.map_err(|error| format!("list {path}: {error}"))? {
            seen.push(String::from_utf8_lossy(entry.name()).into_owned());
        }
        Ok(seen)
    }

    async fn step(&mut self) -> Result<(), String> {
        let (name, other) = (self.name(), self.name());
        match self.dice.random_range(0..36) {
            0..=5 => self.write(&name).await,
            6..=7 => self.append(&name).await,
            8..=9 => self.create_new(&name).await,
            10..=12 => self.unlink(&name).await,
            13..=15 if name != other => self.rename(&name, &other).await,
            16..=18 if name != other => self.exchange(&name, &other).await,
            19 => self.move_directory().await,
            20..=21 => self.hold(&name).await,
            22..=23 => self.make_or_remove().await,
            24..=28 => {
                let (links, _, mut turn) = self.parts();
                links.step(&mut turn).await
            }
            29..=33 => {
                let (_, wander, mut turn) = self.parts();
                wander.step(&mut turn).await
            }
            _ => self.read(&name).await,
        }
    }

    fn name(&mut self) -> String {
        let dir = DIRS[self.dice.random_range(0..DIRS.len())];
        format!("{dir}/f{}", self.dice.random_range(0..NAMES))
    }

    fn path(&self, name: &str) -> String {
        self.place.path(name)
    }

    fn content(&mut self) -> Vec<u8> {
        self.counter += 1;
        content(&self.place.dir, "", self.counter, &mut self.dice)
    }

    /// What became of an operation that was to leave `after`: an error says what was wrong with that.
    fn settle(
        &mut self,
        what: &str,
        result: Result<(), Error>,
        after: &[(&str, Entry)],
        refused: impl FnOnce(&mut Model, &Error) -> Result<(), String>,
    ) -> Result<(), String> {
        match result {
            Ok(()) => {
                self.tally.count(what);
                for (name, entry) in after {
                    self.model.set(name, entry.clone());
                }
                Ok(())
            }
            Err(error) if error.outcome_is_unknown() => {
                self.tally.unknown += 1;
                for (name, entry) in after {
                    self.model.set_maybe(name, entry.clone());
                }
                Ok(())
            }
            Err(error) if never_happened(&error) => {
                self.tally.count(&format!("{what}: never sent"));
                Ok(())
            }
            Err(error) if is_apart(&error) => {
                self.tally.count(&format!("{what}: {}", error.errno()));
                Ok(())
            }
            Err(error) => {
                self.tally.count(&format!("{what}: {}", error.errno()));
                refused(&mut self.model, &error).map_err(|why| format!("{what}: {error}; {why}"))
            }
        }
    }

    async fn write(&mut self, name: &str) -> Result<(), String> {
        let (path, data) = (self.path(name), self.content());
        let result = self.client.write(&path, &data).await;
        // A large write is several steps (truncate, objects, size): after a failure the content is anyone's guess.
        if data.len() > INLINE
            && let Err(error) = &result
        {
            return Err(format!("large write {path}: {error}"));
        }
        self.settle("write", result, &[(name, Entry::File(data))], |_, _| Err(path))
    }

    async fn append(&mut self, name: &str) -> Result<(), String> {
        self.read(name).await?;
        let (path, more) = (self.path(name), self.content());
        let Some(before) = self.model.is(name) else { return Ok(()) };
        let (was_there, mut data) = match before {
            Entry::File(data) => (true, data),
            Entry::Absent => (false, Vec::new()),
        };
        let at = data.len() as u64;
        data.extend_from_slice(&more);
        let result = self.client.append(&path, &more).await;
        if let Ok(offset) = &result
            && *offset != at
        {
            return Err(format!("append {path}: went to {offset}, the end was at {at}"));
        }
        if let Err(error) = &result
            && (data.len() > INLINE || !error.outcome_is_unknown())
        {
            return Err(format!("append {path}: {error}"));
        }
        if result.is_err() && !was_there {
            self.model.set_maybe(name, Entry::File(Vec::new()));
        }
        self.settle("append", result.map(|_| ()), &[(name, Entry::File(data))], |_, _| Err(path))
    }

    async fn create_new(&mut self, name: &str) -> Result<(), String> {
        let (path, there) = (self.path(name), self.model.may_be(name));
        let opened = OpenOptions::new().write(true).create_new(true).open(&self.client, &path).await;
        let result = match opened {
            Ok(file) => {
                if !there.contains(&Entry::Absent) {
                    return Err(format!("create {path}: it was there already"));
                }
                // The file stays whatever becomes of the handle.
                let _ = file.close().await;
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.settle("create", result, &[(name, Entry::File(Vec::new()))], |_, error| {
            match error.errno() == Errno::EEXIST && there.iter().any(|entry| *entry != Entry::Absent) {
                true => Ok(()),
                false => Err(format!("I4: {path} was absent before")),
            }
        })
    }

    async fn unlink(&mut self, name: &str) -> Result<(), String> {
        let result = self.client.remove_file(self.path(name)).await;
        let there = self.model.may_be(name);
        if result.is_ok() && there.iter().all(|entry| *entry == Entry::Absent) {
            return Err(format!("unlink {name} succeeded, but it was absent"));
        }
        self.settle("unlink", result, &[(name, Entry::Absent)], |model, error| match error.errno() {
            Errno::ENOENT => model.observe(name, &Entry::Absent),
            _ => Err("unexpected".to_owned()),
        })
    }

    async fn rename(&mut self, from: &str, to: &str) -> Result<(), String> {
        // Both ends known first: an unknown outcome of a rename ties two names together.
        self.read(from).await?;
        self.read(to).await?;
        let (Some(moved), Some(_)) = (self.model.is(from), self.model.is(to)) else { return Ok(()) };
        let result = self.client.rename(self.path(from), self.path(to)).await;
        if result.is_ok() && moved == Entry::Absent {
            return Err(format!("rename {from} succeeded, but it was absent"));
        }
        self.settle("rename", result, &[(to, moved), (from, Entry::Absent)], |model, error| match error.errno() {
            Errno::ENOENT => model.observe(from, &Entry::Absent),
            _ => Err("unexpected".to_owned()),
        })
    }

    async fn exchange(&mut self, one: &str, other: &str) -> Result<(), String> {
        self.read(one).await?;
        self.read(other).await?;
        let (Some(first), Some(second)) = (self.model.is(one), self.model.is(other)) else { return Ok(()) };
        let both = first != Entry::Absent && second != Entry::Absent;
        let result = self.client.exchange(self.path(one), self.path(other)).await;
        if result.is_ok() && !both {
            return Err(format!("exchange {one} {other} succeeded, but one was absent"));
        }
        self.settle("exchange", result, &[(one, second), (other, first)], |_, error| match error.errno() {
            Errno::ENOENT if !both => Ok(()),
            _ => Err("unexpected".to_owned()),
        })
    }

    /// Renames a directory with all below it, subtrees or not (R16).
    async fn move_directory(&mut self) -> Result<(), String> {
        let from = self.path(MOVING[0]);
        let moved = 1 - self.place.moved;
        let to = format!("{}/{}", self.place.dir, MOVING[moved]);
        match self.client.rename(&from, &to).await {
            Ok(()) => self.place.moved = moved,
            Err(error) if never_happened(&error) || is_apart(&error) => return Ok(()),
            Err(error) => return Err(format!("rename {from} to {to}: {error}")),
        }
        self.tally.count("rename of a directory");
        Ok(())
    }

    /// Makes the scratch directory, or removes it.
    async fn make_or_remove(&mut self) -> Result<(), String> {
        let path = self.path(SCRATCH);
        let there = match self.scratch {
            Some(there) => there,
            None => match self.client.try_exists(&path).await {
                Ok(there) => there,
                Err(_) => return Ok(()),
            },
        };
        let (what, result) = match there {
            true => ("rmdir", self.client.remove_dir(&path).await),
            false => ("mkdir", self.client.create_dir(&path).await),
        };
        self.scratch = match result {
            Ok(()) => Some(!there),
            Err(error) if error.outcome_is_unknown() => None,
            // The root of a subtree may have to be merged first.
            Err(error) if never_happened(&error) || (there && error.errno() == Errno::EBUSY) => Some(there),
            Err(error) => return Err(format!("{what} {path}: {error}")),
        };
        self.tally.count(what);
        Ok(())
    }

    /// Opens a file and removes its name; later looks whether it still holds what it held (R19).
    async fn hold(&mut self, name: &str) -> Result<(), String> {
        if let Some(held) = self.held.take() {
            self.read_held(&held).await?;
            self.tally.count("read without a name");
            if self.dice.random_bool(0.3) {
                // It ends with the session if not now.
                let _ = held.file.close().await;
            } else {
                self.held = Some(held);
            }
            return Ok(());
        }
        self.read(name).await?;
        let Some(Entry::File(data)) = self.model.is(name) else { return Ok(()) };
        match OpenOptions::new().read(true).open(&self.client, self.path(name)).await {
            Ok(file) => {
                // Its name goes, by itself or because another file takes it.
                let other = self.name();
                match self.dice.random_bool(0.5) && other != name {
                    true => self.rename(&other, name).await?,
                    false => self.unlink(name).await?,
                }
                if self.model.may_be(name).contains(&Entry::File(data.clone())) {
                    let _ = file.close().await;
                } else {
                    self.held = Some(Held { file, data });
                }
                Ok(())
            }
            Err(error) if error.outcome_is_unknown() || never_happened(&error) => Ok(()),
            Err(error) => Err(format!("open {name}: {error}")),
        }
    }

    async fn read_held(&self, held: &Held) -> Result<(), String> {
        match held.file.read_at(0, held.data.len() + 1).await {
            Ok(data) if data == held.data => Ok(()),
            Ok(data) => Err(format!("R19: an open file held {} bytes, now {} others", held.data.len(), data.len())),
            Err(error) if error.is_retryable() => Ok(()),
            Err(error) => Err(format!("R19: an open file in {} can no longer be read: {error}", self.place.dir)),
        }
    }

    async fn read(&mut self, name: &str) -> Result<(), String> {
        let seen = match self.client.read(self.path(name)).await {
            Ok(data) => Entry::File(data.to_vec()),
            Err(error) if error.errno() == Errno::ENOENT => Entry::Absent,
            Err(error) if error.outcome_is_unknown() || never_happened(&error) => {
                self.tally.unknown += 1;
                return Ok(());
            }
            Err(error) => return Err(format!("read {name}: {error}")),
        };
        self.tally.count("read");
        self.model.observe(name, &seen)
    }
}
