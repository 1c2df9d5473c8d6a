//! Two directories, each with a file in it, that wander between directories that may be different subtrees, and into
//! each other (R17).

use pando_client::{File, OpenOptions};
use pando_proto::Errno;
use rand::Rng as _;

use super::turn::{Fate, Turn};
use super::{DIRS, INLINE, content};

/// Where they are at the start.
const START: [(usize, &str); 2] = [(0, "v"), (DIRS.len() - 1, "w")];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parent {
    Dir(usize),
    /// The other one.
    Other,
}

/// Where one of them is; the other one has another name, always.
#[derive(Clone, Copy)]
struct Spot {
    parent: Parent,
    name: &'static str,
}

pub(super) struct Wander {
    spots: [Spot; 2],
    /// What the file in each may hold.
    contents: [Vec<Vec<u8>>; 2],
    /// Files that stay open while they wander (R19).
    open: [Option<File>; 2],
    counter: u64,
}

impl Default for Wander {
    fn default() -> Self {
        let spots = START.map(|(dir, name)| Spot { parent: Parent::Dir(dir), name });
        Self { spots, contents: [vec![Vec::new()], vec![Vec::new()]], open: [None, None], counter: 0 }
    }
}

impl Wander {
    fn name(&self, which: usize) -> String {
        let Spot { parent, name } = self.spots[which];
        match parent {
            Parent::Dir(dir) => format!("{}/{name}", DIRS[dir]),
            Parent::Other => format!("{}/{name}", self.name(1 - which)),
        }
    }

    fn is_in_the_other(&self, which: usize) -> bool {
        self.spots[which].parent == Parent::Other
    }

    /// Their names in a directory.
    pub fn names_in(&self, dir: &str) -> Vec<String> {
        let here = self.spots.iter().filter(|spot| matches!(spot.parent, Parent::Dir(at) if DIRS[at] == dir));
        here.map(|spot| spot.name.to_owned()).collect()
    }

    /// The files in them, as far as it is known what they hold.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let known = (0..2).filter(|which| self.contents[*which].len() == 1);
        known.map(|which| (self.file(which), self.contents[which][0].clone())).collect()
    }

    fn file(&self, which: usize) -> String {
        format!("{}/f", self.name(which))
    }

    /// Makes both.
    ///
    /// Errors: what was wrong.
    pub async fn begin(&mut self, turn: &mut Turn<'_>) -> Result<(), String> {
        for which in 0..2 {
            let path = turn.path(&self.name(which));
            turn.client.create_dir_all(&path).await.map_err(|error| format!("mkdir {path}: {error}"))?;
            let path = turn.path(&self.file(which));
            turn.client.write(&path, b"").await.map_err(|error| format!("write {path}: {error}"))?;
        }
        Ok(())
    }

    /// One operation.
    ///
    /// Errors: what was wrong.
    pub async fn step(&mut self, turn: &mut Turn<'_>) -> Result<(), String> {
        let which = turn.dice.random_range(0..2);
        match turn.dice.random_range(0..15) {
            0..=4 => {
                let to = Parent::Dir(turn.dice.random_range(0..DIRS.len()));
                self.go(turn, which, to).await
            }
            5..=6 => self.go(turn, which, Parent::Other).await,
            7 => self.exchange(turn).await,
            8 => self.swallow(turn, which).await,
            9 => self.replace(turn, which).await,
            10 => self.write(turn, which).await,
            11..=13 => self.write_through(turn, which).await,
            _ => self.check(turn).await,
        }
    }

    /// What is known of where they are is exact: an outcome has to become known.
    fn known(what: &str, fate: Fate, legal: &[Errno]) -> Result<bool, String> {
        match fate {
            Fate::Done => Ok(true),
            Fate::Never => Ok(false),
            Fate::Refused(error) if legal.contains(&error.errno()) => Ok(false),
            Fate::Refused(error) => Err(format!("{what}: {error}")),
            Fate::Unknown => Err(format!("{what}: its outcome never came to be known")),
        }
    }

    async fn go(&mut self, turn: &mut Turn<'_>, which: usize, to: Parent) -> Result<(), String> {
        let mut after = Self { spots: self.spots, ..Self::default() };
        after.spots[which].parent = to;
        let is_cycle = to == Parent::Other && self.is_in_the_other(1 - which);
        let from = turn.path(&self.name(which));
        let to = match is_cycle {
            // Into what is in it.
            true => turn.path(&format!("{}/{}", self.name(1 - which), self.spots[which].name)),
            false => turn.path(&after.name(which)),
        };
        let what = format!("rename {from} to {to}");
        let renamed = turn.client.rename(&from, &to).await;
        let legal: &[Errno] = if is_cycle { &[Errno::EINVAL] } else { &[] };
        let is_done = Self::known(&what, turn.fate("rename of a directory elsewhere", renamed), legal)?;
        if is_done && is_cycle {
            return Err(format!("R17: {what} succeeded, into itself"));
        }
        if is_done {
            self.spots = after.spots;
        }
        Ok(())
    }

    async fn exchange(&mut self, turn: &mut Turn<'_>) -> Result<(), String> {
        let (one, other) = (turn.path(&self.name(0)), turn.path(&self.name(1)));
        let is_cycle = self.is_in_the_other(0) || self.is_in_the_other(1);
        let what = format!("exchange {one} and {other}");
        let exchanged = turn.client.exchange(&one, &other).await;
        let legal: &[Errno] = if is_cycle { &[Errno::EINVAL] } else { &[] };
        let is_done = Self::known(&what, turn.fate("exchange of directories", exchanged), legal)?;
        if is_done && is_cycle {
            return Err(format!("R17: {what} succeeded, one in the other"));
        }
        if is_done {
            self.spots.swap(0, 1);
        }
        Ok(())
    }

    /// A directory goes into itself: never.
    async fn swallow(&mut self, turn: &mut Turn<'_>, which: usize) -> Result<(), String> {
        let path = turn.path(&self.name(which));
        let renamed = turn.client.rename(&path, format!("{path}/x")).await;
        match Self::known("into itself", turn.fate("rename of a directory into itself", renamed), &[Errno::EINVAL])? {
            true => Err(format!("R17: {path} went into itself")),
            false => Ok(()),
        }
    }

    /// One takes the place of the other, which is not empty: never.
    async fn replace(&mut self, turn: &mut Turn<'_>, which: usize) -> Result<(), String> {
        let (from, to) = (turn.path(&self.name(which)), turn.path(&self.name(1 - which)));
        let renamed = turn.client.rename(&from, &to).await;
        let fate = turn.fate("rename onto a full directory", renamed);
        let legal: &[Errno] = match self.is_in_the_other(1 - which) {
            true => &[Errno::EINVAL, Errno::ENOTEMPTY, Errno::EBUSY],
            false => &[Errno::ENOTEMPTY, Errno::EBUSY],
        };
        match Self::known(&format!("rename {from} onto {to}"), fate, legal)? {
            true => Err(format!("R21: {from} took the place of {to}, which was not empty")),
            false => Ok(()),
        }
    }

    async fn write(&mut self, turn: &mut Turn<'_>, which: usize) -> Result<(), String> {
        self.counter += 1;
        let data = content(&turn.place.dir, "wander", self.counter, turn.dice);
        let path = turn.path(&self.file(which));
        let written = turn.client.write(&path, &data).await;
        match turn.fate("write", written) {
            Fate::Done => self.contents[which] = vec![data],
            // A large write is several steps.
            Fate::Unknown if data.len() > INLINE => return Err(format!("large write {path}: nobody knows")),
            Fate::Unknown => self.contents[which].extend([data, Vec::new()]),
            Fate::Never => {}
            Fate::Refused(error) => return Err(format!("write {path}: {error}")),
        }
        Ok(())
    }

    /// Opens the file, or writes the beginning of it through the handle, whoever owns it by now.
    async fn write_through(&mut self, turn: &mut Turn<'_>, which: usize) -> Result<(), String> {
        let path = turn.path(&self.file(which));
        let [old] = self.contents[which].as_slice() else { return Ok(()) };
        let Some(mut file) = self.open[which].take() else {
            let opened = OpenOptions::new().read(true).write(true).open(turn.client, &path).await;
            return match opened {
                Ok(file) => {
                    self.open[which] = Some(file);
                    Ok(())
                }
                Err(error) if error.outcome_is_unknown() || error.is_retryable() => Ok(()),
                Err(error) => Err(format!("open {path}: {error}")),
            };
        };
        self.counter += 1;
        let mut data = content(&turn.place.dir, "handle", self.counter, turn.dice);
        data.truncate(INLINE / 4);
        let mut after = data.clone();
        after.extend(old.get(data.len()..).unwrap_or_default());
        let written = match file.write_at(0, &data).await {
            Ok(()) => file.sync_all().await,
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {
                self.contents[which] = vec![after];
                if turn.dice.random_bool(0.8) {
                    self.open[which] = Some(file);
                }
                turn.tally.count("write through a handle");
                Ok(())
            }
            Err(error) if error.outcome_is_unknown() || error.is_retryable() => {
                self.contents[which].push(after);
                Ok(())
            }
            Err(error) => Err(format!("R19: write through a handle of {path}: {error}")),
        }
    }

    /// Looks at both files, and has none open any more.
    ///
    /// Errors: what was wrong.
    pub async fn end(&mut self, turn: &mut Turn<'_>) -> Result<(), String> {
        for file in self.open.iter_mut().filter_map(Option::take) {
            file.close().await.map_err(|error| format!("close: {error}"))?;
        }
        self.check(turn).await
    }

    /// Looks at both files.
    async fn check(&mut self, turn: &mut Turn<'_>) -> Result<(), String> {
        for which in 0..2 {
            let path = turn.path(&self.file(which));
            match turn.client.read(&path).await {
                Ok(data) if self.contents[which].iter().any(|one| *one == data) => {
                    self.contents[which] = vec![data.to_vec()];
                }
                Ok(data) => return Err(format!("R17: {path} holds {} bytes that nobody wrote", data.len())),
                Err(error) if error.outcome_is_unknown() || error.is_retryable() => return Ok(()),
                Err(error) => return Err(format!("R17: read {path}: {error}")),
            }
        }
        turn.tally.count("look into directories that wander");
        Ok(())
    }
}
