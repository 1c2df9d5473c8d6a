//! One file with several names, in directories that may be different subtrees (R15): what is done through one name is
//! seen through all.

use pando_proto::Errno;
use rand::Rng as _;
use rand::seq::IndexedRandom as _;

use super::turn::{Fate, Turn};
use super::{DIRS, INLINE, content};
use crate::model::{Entry, Model};

/// Names that it may have in each directory.
const EACH: u32 = 2;

/// The names that are there are files without content in the model.
#[derive(Default)]
pub(super) struct Links {
    names: Model,
    /// What the file may hold.
    contents: Vec<Vec<u8>>,
    counter: u64,
}

fn present() -> Entry {
    Entry::File(Vec::new())
}

fn refused(what: &str, error: &dyn std::fmt::Display) -> String {
    format!("{what}: {error}; which cannot be")
}

impl Links {
    /// Names that are surely there.
    pub fn names(&self) -> Vec<String> {
        self.names.names().into_iter().filter(|name| self.names.is(name) == Some(present())).collect()
    }

    fn draw(turn: &mut Turn<'_>) -> String {
        let dir = DIRS[turn.dice.random_range(0..DIRS.len())];
        format!("{dir}/l{}", turn.dice.random_range(0..EACH))
    }

    /// One operation.
    ///
    /// Errors: what was wrong.
    pub async fn step(&mut self, turn: &mut Turn<'_>) -> Result<(), String> {
        if !self.look(turn).await? {
            return Ok(());
        }
        let new = Self::draw(turn);
        let Some(old) = self.names().choose(turn.dice).cloned() else { return self.make(turn, &new).await };
        match turn.dice.random_range(0..12) {
            0..=1 => self.write(turn, &old).await,
            2..=5 => self.link(turn, &old, &new).await,
            6..=7 => self.unlink(turn, &new).await,
            8..=9 => self.rename(turn, &old, &new).await,
            10 => self.exchange(turn, &old, &new).await,
            _ => self.check(turn).await,
        }
    }

    /// Finds out about names of which nobody knows. Whether that went well.
    async fn look(&mut self, turn: &mut Turn<'_>) -> Result<bool, String> {
        for name in self.names.names().into_iter().filter(|name| self.names.is(name).is_none()).collect::<Vec<_>>() {
            let seen = turn.client.symlink_metadata(turn.path(&name)).await;
            match turn.fate("look", seen) {
                Fate::Done => self.names.observe(&name, &present())?,
                Fate::Refused(error) if error.errno() == Errno::ENOENT => self.names.observe(&name, &Entry::Absent)?,
                Fate::Refused(error) => return Err(refused("look", &error)),
                Fate::Unknown | Fate::Never => return Ok(false),
            }
        }
        Ok(true)
    }

    fn is_there(&self, name: &str) -> bool {
        self.names.is(name) == Some(present())
    }

    async fn make(&mut self, turn: &mut Turn<'_>, name: &str) -> Result<(), String> {
        self.counter += 1;
        let data = content(&turn.place.dir, "links", self.counter, turn.dice);
        let made = turn.client.write(turn.path(name), &data).await;
        let is_large = data.len() > INLINE;
        self.contents = vec![data];
        match turn.fate("write", made) {
            Fate::Done => self.names.set(name, present()),
            Fate::Unknown if is_large => return Err(format!("large write {name}: nobody knows")),
            Fate::Unknown => {
                // Perhaps there is a name, and nothing in it yet.
                self.contents.push(Vec::new());
                self.names.set_maybe(name, present());
            }
            Fate::Never => {}
            Fate::Refused(error) => return Err(refused("write", &error)),
        }
        Ok(())
    }

    async fn write(&mut self, turn: &mut Turn<'_>, name: &str) -> Result<(), String> {
        self.counter += 1;
        let data = content(&turn.place.dir, "links", self.counter, turn.dice);
        let written = turn.client.write(turn.path(name), &data).await;
        match turn.fate("write of several names", written) {
            Fate::Done => self.contents = vec![data],
            // A large write is several steps.
            Fate::Unknown if data.len() > INLINE => return Err(format!("large write {name}: nobody knows")),
            Fate::Unknown => self.contents.extend([data, Vec::new()]),
            Fate::Never => {}
            Fate::Refused(error) => return Err(refused("write", &error)),
        }
        Ok(())
    }

    async fn link(&mut self, turn: &mut Turn<'_>, old: &str, new: &str) -> Result<(), String> {
        let was_there = self.is_there(new);
        let linked = turn.client.hard_link(turn.path(old), turn.path(new)).await;
        match turn.fate("link", linked) {
            Fate::Done if was_there => return Err(format!("link {old} {new} succeeded, but it was there")),
            Fate::Done => self.names.set(new, present()),
            Fate::Unknown if !was_there => self.names.set_maybe(new, present()),
            Fate::Refused(error) if error.errno() == Errno::EEXIST && was_there => {}
            Fate::Refused(error) => return Err(refused(&format!("link {old} {new}"), &error)),
            _ => {}
        }
        Ok(())
    }

    async fn unlink(&mut self, turn: &mut Turn<'_>, name: &str) -> Result<(), String> {
        let was_there = self.is_there(name);
        let removed = turn.client.remove_file(turn.path(name)).await;
        match turn.fate("unlink of one of several", removed) {
            Fate::Done if !was_there => return Err(format!("unlink {name} succeeded, but it was absent")),
            Fate::Done => self.names.set(name, Entry::Absent),
            Fate::Unknown if was_there => self.names.set_maybe(name, Entry::Absent),
            Fate::Refused(error) if error.errno() == Errno::ENOENT && !was_there => {}
            Fate::Refused(error) => return Err(refused(&format!("unlink {name}"), &error)),
            _ => {}
        }
        Ok(())
    }

    /// Between two names of one file this does nothing, says rename(2).
    async fn rename(&mut self, turn: &mut Turn<'_>, old: &str, new: &str) -> Result<(), String> {
        let was_there = self.is_there(new);
        let renamed = turn.client.rename(turn.path(old), turn.path(new)).await;
        match turn.fate("rename of one of several", renamed) {
            Fate::Done if !was_there => {
                self.names.set(new, present());
                self.names.set(old, Entry::Absent);
            }
            Fate::Unknown if !was_there => {
                self.names.set_maybe(new, present());
                self.names.set_maybe(old, Entry::Absent);
            }
            Fate::Refused(error) => return Err(refused(&format!("rename {old} {new}"), &error)),
            _ => {}
        }
        Ok(())
    }

    /// Changes nothing, as both are the same.
    async fn exchange(&mut self, turn: &mut Turn<'_>, old: &str, new: &str) -> Result<(), String> {
        let was_there = self.is_there(new);
        let exchanged = turn.client.exchange(turn.path(old), turn.path(new)).await;
        match turn.fate("exchange of one of several", exchanged) {
            Fate::Done if !was_there => Err(format!("exchange {old} {new} succeeded, but one was absent")),
            Fate::Refused(error) if error.errno() != Errno::ENOENT || was_there => {
                Err(refused(&format!("exchange {old} {new}"), &error))
            }
            _ => Ok(()),
        }
    }

    /// Looks at the file through all its names. What it holds, if it has names and all could be read.
    ///
    /// Errors: what was wrong.
    pub async fn check(&mut self, turn: &mut Turn<'_>) -> Result<(), String> {
        if !self.look(turn).await? {
            return Ok(());
        }
        let names = self.names();
        for name in &names {
            let path = turn.path(name);
            let data = match turn.client.read(&path).await {
                Ok(data) => data,
                Err(error) if error.outcome_is_unknown() || error.is_retryable() => return Ok(()),
                Err(error) => return Err(format!("read {path}: {error}")),
            };
            if !self.contents.iter().any(|one| *one == data) {
                return Err(format!("R15: {path} holds {} bytes that were not written through any name", data.len()));
            }
            self.contents = vec![data.to_vec()];
            match turn.client.symlink_metadata(&path).await {
                Ok(found) if found.nlink() as usize == names.len() => {}
                Ok(found) => return Err(format!("R15: {path} counts {} names of {names:?}", found.nlink())),
                Err(error) if error.outcome_is_unknown() || error.is_retryable() => return Ok(()),
                Err(error) => return Err(format!("stat {path}: {error}")),
            }
        }
        turn.tally.count("look at several names");
        Ok(())
    }

    /// What it holds, if that is known.
    pub fn content(&self) -> Option<Vec<u8>> {
        (self.contents.len() == 1).then(|| self.contents[0].clone())
    }
}
