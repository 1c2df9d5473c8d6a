//! Clients that meet on a few names, and write down what they saw for [`history`](crate::history).

use std::sync::Arc;
use std::time::Duration;

use pando_client::{Client, Error};
use pando_cluster_map::ClusterMap;
use pando_proto::Errno;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::board::{Board, lock};
use crate::history::{Answer, Call, Event};
use crate::load::Tally;

/// Directories in which they meet. Those of [`APART`] are mostly different subtrees.
pub(crate) const HOT: [&str; 4] = ["/hot-files", "/hot-links", APART[0], APART[1]];
/// Names in them change places, as one (R18).
pub(crate) const APART: [&str; 2] = ["/hot-here", "/hot-there"];

/// Names of which one history is written.
struct Space {
    title: &'static str,
    /// They stand for symbolic links, or for files.
    links: bool,
    names: &'static [&'static str],
}

const SPACES: [Space; 4] = [
    Space { title: "files in one directory", links: false, names: &["/hot-files/a", "/hot-files/b", "/hot-files/c"] },
    Space { title: "links in one directory", links: true, names: &["/hot-links/a", "/hot-links/b", "/hot-links/c"] },
    Space {
        title: "files in two directories",
        links: false,
        names: &["/hot-here/a", "/hot-here/b", "/hot-there/a", "/hot-there/c"],
    },
    Space { title: "links in two directories", links: true, names: &["/hot-here/l", "/hot-there/l", "/hot-there/m"] },
];

/// Which of them an operation is about: mostly one of the latter.
const OFTEN: [usize; 8] = [0, 1, 2, 2, 2, 3, 3, 3];

/// What is tallied of operations on names in two subtrees.
pub(crate) const ACROSS: &str = "hot: across subtrees";
/// For the directories at the start, whatever breaks then.
const PATIENCE: Duration = Duration::from_secs(90);
/// Longest pause between two operations.
const MOST_PAUSE_MILLIS: u64 = 250;

/// A client's part in it.
pub(crate) struct Hot {
    client: Client,
    number: u64,
    dice: ChaCha8Rng,
    counter: u64,
    board: Arc<Board>,
    pub tally: Tally,
}

impl Space {
    fn dir(&self, at: usize) -> &'static str {
        self.names[at].rsplit_once('/').map_or("", |(dir, _)| dir)
    }

    fn is_one_directory(&self) -> bool {
        (1..self.names.len()).all(|at| self.dir(at) == self.dir(0))
    }

    /// Bits of those that are in a directory.
    fn names_in(&self, dir: &str) -> u8 {
        (0..self.names.len()).filter(|at| self.dir(*at) == dir).fold(0, |bits, at| bits | 1 << at)
    }
}

/// Whether the map shows the two directories in different subtrees.
fn are_apart(map: &ClusterMap) -> bool {
    let [one, other] = APART.map(|path| {
        let name = path.trim_start_matches('/').as_bytes();
        map.subtrees.iter().find(|(_, subtree)| subtree.name == name).map(|(id, _)| *id)
    });
    one != other
}

fn value_of(text: &[u8]) -> Result<u64, String> {
    let text = String::from_utf8_lossy(text);
    text.parse().map_err(|_| format!("I1: a name holds {text:?}, which nobody wrote"))
}

impl Hot {
    pub fn new(client: Client, number: u64, seed: u64, board: Arc<Board>) -> Self {
        let dice = ChaCha8Rng::seed_from_u64(seed.rotate_left(17) ^ number.wrapping_mul(0x85eb_ca6b));
        Self { client, number, dice, counter: 0, board, tally: Tally::default() }
    }

    /// Errors: an answer that makes no sense whatever the others do.
    pub async fn run(&mut self, steps: u64) -> Result<(), String> {
        for dir in HOT {
            let made = self.client.with_deadline(PATIENCE).create_dir_all(dir).await;
            made.map_err(|error| format!("mkdir {dir}: {error}"))?;
        }
        for _ in 0..steps {
            let pause = Duration::from_millis(self.dice.random_range(0..MOST_PAUSE_MILLIS));
            tokio::time::sleep(pause).await;
            let space = &SPACES[OFTEN[self.dice.random_range(0..OFTEN.len())]];
            let call = self.draw(space);
            self.step(space, call).await?;
        }
        Ok(())
    }

    fn draw(&mut self, space: &Space) -> Call {
        let count = space.names.len();
        let one = self.dice.random_range(0..count);
        let other = (one + self.dice.random_range(1..count)) % count;
        self.counter += 1;
        let value = self.number << 32 | self.counter;
        match self.dice.random_range(0..17) {
            0..=3 if space.links => Call::Create(one, value),
            0..=3 => Call::Put(one, value),
            4..=5 => Call::Remove(one),
            6..=7 => Call::Rename(one, other),
            8..=9 => Call::Exchange(one, other),
            10 => Call::List(space.names_in(space.dir(one))),
            // link(2) looks its first path up before it makes the second name, as in any file system: where they are of
            // two subtrees it sees a rename that comes in between. What it does by itself is checked in trees of one
            // client each.
            11..=12 if space.is_one_directory() => Call::Link(one, other),
            11..=12 => Call::Exchange(one, other),
            13 => Call::Count(one),
            _ => Call::Read(one),
        }
    }

    /// Does it and writes it down.
    async fn step(&mut self, space: &Space, call: Call) -> Result<(), String> {
        let were_apart = are_apart(&self.client.map());
        let begun = self.board.moment();
        let answer = self.call(space, call).await;
        let ended = match answer {
            Ok(Ok(answer)) => Some((self.board.moment(), answer)),
            Ok(Err(error)) if error.outcome_is_unknown() => {
                self.tally.unknown += 1;
                if matches!(call, Call::Read(_) | Call::Count(_) | Call::List(_)) {
                    return Ok(());
                }
                None
            }
            // It was never sent.
            Ok(Err(error)) if error.is_retryable() => return Ok(()),
            Ok(Err(error)) => return Err(format!("{call:?} of {}: {error}", space.title)),
            Err(nonsense) => return Err(format!("{call:?} of {}: {nonsense}", space.title)),
        };
        self.tally.count("hot");
        if let (Call::Rename(one, other) | Call::Exchange(one, other) | Call::Link(one, other), Some((_, Answer::Done))) =
            (call, ended)
            && space.dir(one) != space.dir(other)
            && were_apart
            && are_apart(&self.client.map())
        {
            self.tally.count(ACROSS);
        }
        let event = Event { client: self.number, call, begun, ended };
        lock(&self.board.histories).entry(space.title.to_owned()).or_default().push(event);
        Ok(())
    }

    async fn call(&self, space: &Space, call: Call) -> Result<Result<Answer, Error>, String> {
        let (path, client) = (|at: usize| space.names[at], &self.client);
        let done = match call {
            Call::Create(at, value) => client.symlink(value.to_string(), path(at)).await,
            Call::Put(at, value) => client.write(path(at), value.to_string()).await,
            Call::Remove(at) => client.remove_file(path(at)).await,
            Call::Rename(from, to) => client.rename(path(from), path(to)).await,
            Call::Exchange(one, other) => client.exchange(path(one), path(other)).await,
            Call::Link(old, new) => client.hard_link(path(old), path(new)).await,
            Call::Read(at) if space.links => match client.read_link(path(at)).await {
                Ok(target) => return value_of(target.as_os_str().as_encoded_bytes()).map(|v| Ok(Answer::Value(v))),
                Err(error) => Err(error),
            },
            Call::Read(at) => match client.read(path(at)).await {
                Ok(data) => return value_of(&data).map(|value| Ok(Answer::Value(value))),
                Err(error) => Err(error),
            },
            Call::Count(at) => match client.symlink_metadata(path(at)).await {
                Ok(found) => return Ok(Ok(Answer::Count(found.nlink()))),
                Err(error) => Err(error),
            },
            Call::List(of) => match self.list(space, of).await {
                Ok(names) => return Ok(Ok(Answer::Names(names))),
                Err(error) => Err(error),
            },
        };
        Ok(match done {
            Ok(()) => Ok(Answer::Done),
            Err(error) if error.errno() == Errno::ENOENT => Ok(Answer::Absent),
            Err(error) if error.errno() == Errno::EEXIST => Ok(Answer::Exists),
            Err(error) => Err(error),
        })
    }

    async fn list(&self, space: &Space, of: u8) -> Result<u8, Error> {
        let dir = space.dir(of.trailing_zeros() as usize);
        let (mut listing, mut found) = (self.client.read_dir(dir).await?, 0);
        while let Some(entry) = listing.next_entry().await? {
            let path = format!("{dir}/{}", String::from_utf8_lossy(entry.name()));
            found |= space.names.iter().position(|name| *name == path).map_or(0, |at| 1 << at);
        }
        Ok(found)
    }

    /// What is there in the end belongs to the history as well.
    pub async fn look_at_all(&mut self) -> Result<(), String> {
        for space in &SPACES {
            for at in 0..space.names.len() {
                self.step(space, Call::Read(at)).await?;
                self.step(space, Call::Count(at)).await?;
                self.step(space, Call::List(space.names_in(space.dir(at)))).await?;
            }
        }
        Ok(())
    }
}
