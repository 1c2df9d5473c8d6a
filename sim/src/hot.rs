//! Clients that meet on a few names, and write down what they saw for [`history`](crate::history).

use std::sync::Arc;
use std::time::Duration;

use pando_client::{Client, Error};
use pando_proto::Errno;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::board::{Board, lock};
use crate::history::{Answer, Call, Event, NAMES};
use crate::load::Tally;

/// The directories; files live in the even ones, symbolic links in the odd ones.
pub(crate) const HOT: [&str; 2] = ["/hot-files", "/hot-links"];
const NAME: [&str; NAMES] = ["a", "b", "c"];
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

fn name_of(at: usize) -> &'static str {
    NAME[at]
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
            let links = self.dice.random_bool(0.5);
            let call = self.draw(links);
            self.step(links, call).await?;
        }
        Ok(())
    }

    fn draw(&mut self, links: bool) -> Call {
        let one = self.dice.random_range(0..NAMES);
        let other = (one + self.dice.random_range(1..NAMES)) % NAMES;
        self.counter += 1;
        let value = self.number << 32 | self.counter;
        match self.dice.random_range(0..14) {
            0..=3 if links => Call::Create(one, value),
            0..=3 => Call::Put(one, value),
            4..=5 => Call::Remove(one),
            6..=7 => Call::Rename(one, other),
            8..=9 => Call::Exchange(one, other),
            10 => Call::List,
            _ => Call::Read(one),
        }
    }

    /// Does it and writes it down.
    pub async fn step(&mut self, links: bool, call: Call) -> Result<(), String> {
        let dir = HOT[usize::from(links)];
        let begun = self.board.moment();
        let answer = self.call(dir, links, call).await;
        let ended = match answer {
            Ok(Ok(answer)) => Some((self.board.moment(), answer)),
            Ok(Err(error)) if error.outcome_is_unknown() => {
                self.tally.unknown += 1;
                if matches!(call, Call::Read(_) | Call::List) {
                    return Ok(());
                }
                None
            }
            // It was never sent.
            Ok(Err(error)) if error.is_retryable() => return Ok(()),
            Ok(Err(error)) => return Err(format!("{call:?} in {dir}: {error}")),
            Err(nonsense) => return Err(format!("{call:?} in {dir}: {nonsense}")),
        };
        self.tally.count("hot");
        let event = Event { client: self.number, call, begun, ended };
        lock(&self.board.histories).entry(dir.to_owned()).or_default().push(event);
        Ok(())
    }

    async fn call(&self, dir: &str, links: bool, call: Call) -> Result<Result<Answer, Error>, String> {
        let path = |at: usize| format!("{dir}/{}", name_of(at));
        let client = &self.client;
        let done = match call {
            Call::Create(at, value) => client.symlink(value.to_string(), path(at)).await,
            Call::Put(at, value) => client.write(path(at), value.to_string()).await,
            Call::Remove(at) => client.remove_file(path(at)).await,
            Call::Rename(from, to) => client.rename(path(from), path(to)).await,
            Call::Exchange(one, other) => client.exchange(path(one), path(other)).await,
            Call::Read(at) if links => match client.read_link(path(at)).await {
                Ok(target) => return value_of(target.as_os_str().as_encoded_bytes()).map(|v| Ok(Answer::Value(v))),
                Err(error) => Err(error),
            },
            Call::Read(at) => match client.read(path(at)).await {
                Ok(data) => return value_of(&data).map(|value| Ok(Answer::Value(value))),
                Err(error) => Err(error),
            },
            Call::List => match self.list(dir).await {
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

    async fn list(&self, dir: &str) -> Result<u8, Error> {
        let (mut listing, mut names) = (self.client.read_dir(dir).await?, 0);
        while let Some(entry) = listing.next_entry().await? {
            names |= (0..NAMES).filter(|at| name_of(*at).as_bytes() == entry.name()).fold(0, |bits, at| bits | 1 << at);
        }
        Ok(names)
    }

    /// What is there in the end belongs to the history as well.
    pub async fn look_at_all(&mut self) -> Result<(), String> {
        for links in [false, true] {
            for at in 0..NAMES {
                self.step(links, Call::Read(at)).await?;
            }
            self.step(links, Call::List).await?;
        }
        Ok(())
    }
}
