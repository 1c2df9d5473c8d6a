//! A client that dies in the middle of its work, with files open that have no name any more, and with writes that
//! nobody was told of. Its session is evicted, and its space comes back (R9, R19, R22).

use std::time::Duration;

use pando_client::{Client, Error, File, OpenOptions};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::board::{Board, lock};
use crate::hot::APART;

/// Its directory, which may be a subtree at times.
pub(crate) const DIR: &str = "/mortal";
/// What it calls itself.
pub(crate) const DESCRIPTION: &str = "mortal";
/// Said once it has something open without a name.
pub(crate) const HOLDS: &str = "mortal: holds";
/// Files that it has open at once.
const MOST_OPEN: usize = 8;
/// Longest pause between two files.
const MOST_PAUSE_MILLIS: u64 = 150;
/// Size of a small file, which is kept inline, and of a large one.
const SIZES: [usize; 2] = [300, 20_000];

pub(crate) struct Mortal<'a> {
    client: Client,
    board: &'a Board,
    dice: ChaCha8Rng,
    open: Vec<File>,
}

impl<'a> Mortal<'a> {
    pub fn new(client: Client, seed: u64, board: &'a Board) -> Self {
        Self { client, board, dice: ChaCha8Rng::seed_from_u64(seed ^ 0x60d), open: Vec::new() }
    }

    /// Until it dies.
    pub async fn live(mut self) {
        let mut counter = 0u64;
        loop {
            // What fails did so on account of a fault, or finds what an earlier try has left.
            let _ = self.work(counter).await;
            counter += 1;
            let pause = Duration::from_millis(self.dice.random_range(1..MOST_PAUSE_MILLIS));
            tokio::time::sleep(pause).await;
        }
    }

    async fn work(&mut self, counter: u64) -> Result<(), Error> {
        self.client.create_dir_all(DIR).await?;
        let (path, data) = (format!("{DIR}/f{counter}"), self.content(counter));
        self.client.write(&path, &data).await?;
        if self.dice.random_bool(0.3) {
            // It stays, as it is.
            lock(&self.board.files).insert(path, data);
            return Ok(());
        }
        let file = OpenOptions::new().read(true).write(true).open(&self.client, &path).await?;
        let gone = self.lose_name(&path, counter).await;
        // Nobody is told how much there is of this.
        let more = self.content(counter);
        let written = file.write_at(data.len() as u64, &more).await;
        self.open.push(file);
        if self.open.len() > MOST_OPEN {
            let _ = self.open.remove(0).close().await;
        }
        gone?;
        self.board.say(HOLDS);
        written
    }

    fn content(&mut self, counter: u64) -> Vec<u8> {
        let size = SIZES[self.dice.random_range(0..SIZES.len())];
        format!("mortal{counter}|").into_bytes().into_iter().cycle().take(size).collect()
    }

    /// The file may go to another subtree before it goes.
    async fn lose_name(&mut self, path: &str, counter: u64) -> Result<(), Error> {
        if self.dice.random_bool(0.5) {
            return self.client.remove_file(path).await;
        }
        let elsewhere = format!("{}/mortal-{counter}", APART[self.dice.random_range(0..APART.len())]);
        self.client.rename(path, &elsewhere).await?;
        self.client.remove_file(&elsewhere).await
    }
}
