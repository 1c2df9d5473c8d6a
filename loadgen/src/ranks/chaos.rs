//! Moves, splits, merges and kills while something else runs, from a seed.
//!
//! What is refused because the cluster was busy with something else is only counted; what no cluster may answer is an error.

use std::collections::BTreeSet;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::ValueEnum;
use pando_client::FileKind;
use pando_cluster_map::ClusterMap;
use pando_proto::{Error, Rank, Reason, SubtreeId};
use pando_rpc::Shutdown;
use serde::{Deserialize, Serialize};

use super::cluster::Cluster;
use super::tree::{Tree, is_passing};
use crate::content::mix;

/// Between two moves.
const MOVES: (u64, u64) = (100, 600);
/// Between a rank's return and the next kill.
const KILLS: (u64, u64) = (800, 4000);
/// How long a killed rank stays away: shorter and longer than a lease, so that it finds its subtrees still its own, or
/// with the others.
const AWAY: (u64, u64) = (0, 4000);
/// For a call that changes the tree; with ranks down it may just not work.
const LIMIT: Duration = Duration::from_secs(10);
/// For a rank to come back at last.
const RETURN: Duration = Duration::from_secs(60);
/// More than that are merged rather than split further.
const MOST_SUBTREES: usize = 40;
/// Of the way down to a directory that is split off.
const DEPTH: u64 = 4;
const ERRORS_KEPT: usize = 20;

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Subtrees move to other ranks.
    #[value(name = "moves")]
    Moves,
    /// Ranks are killed and started again.
    #[value(name = "kill")]
    Kill,
    /// Directories are split off and merged back.
    #[value(name = "split")]
    Split,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deeds {
    /// Moves begun.
    pub moves: u64,
    /// Splits done.
    pub splits: u64,
    /// Merges done.
    pub merges: u64,
    /// Ranks killed, and started again.
    pub kills: u64,
    /// What the cluster was too busy for.
    pub refused: u64,
    /// What must not be; the first of them.
    pub errors: Vec<String>,
}

impl Deeds {
    fn wrong(&mut self, what: String) {
        if self.errors.len() < ERRORS_KEPT {
            self.errors.push(what);
        }
    }

    fn count(&mut self, outcome: Result<(), Error>, what: &str, counter: fn(&mut Self) -> &mut u64) {
        match outcome {
            Ok(()) => *counter(self) += 1,
            Err(error) if is_refusal(&error) => self.refused += 1,
            Err(error) => self.wrong(format!("{what}: {error}")),
        }
    }

    fn join(mut self, other: Self) -> Self {
        self.moves += other.moves;
        self.splits += other.splits;
        self.merges += other.merges;
        self.kills += other.kills;
        self.refused += other.refused;
        self.errors.extend(other.errors);
        self
    }
}

fn is_refusal(error: &Error) -> bool {
    is_passing(error) || matches!(error.reason, Reason::Posix | Reason::InvalidRequest | Reason::UnknownId)
}

/// Numbers that follow from a seed.
struct Dice {
    seed: u64,
    thrown: u64,
}

impl Dice {
    fn new(seed: u64, use_of_it: u64) -> Self {
        Self { seed: mix(seed, use_of_it), thrown: 0 }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.thrown += 1;
        mix(self.seed, self.thrown) % end.max(1)
    }

    fn millis(&mut self, (least, most): (u64, u64)) -> Duration {
        Duration::from_millis(least + self.below(most - least))
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len() as u64) as usize)
    }
}

/// Under way until it is [finished](Self::finish).
pub struct Chaos {
    shutdown: Shutdown,
    // Its end is the sign to stop.
    stop: mpsc::Sender<()>,
    threads: Vec<JoinHandle<Deeds>>,
}

impl Chaos {
    /// Begins. Kills need a cluster of this process.
    pub fn start(
        kinds: &[Kind],
        seed: u64,
        clients: usize,
        mons: &str,
        cluster: Option<&Arc<Mutex<Cluster>>>,
    ) -> anyhow::Result<Self> {
        let (shutdown, (stop, stopped)) = (Shutdown::default(), mpsc::channel());
        let mut threads = Vec::new();
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (moves, splits) = (kinds.contains(&Kind::Moves), kinds.contains(&Kind::Split));
        if moves || splits {
            let (mons, stop) = (mons.to_owned(), shutdown.clone());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let moving = Moving { dice: Dice::new(seed, 1), moves, splits, clients, deeds: Deeds::default() };
            threads.push(named("chaos-moves").spawn(move || runtime.block_on(moving.run(&mons, stop)))?);
        }
        if kinds.contains(&Kind::Kill) {
            let cluster = cluster.context("only ranks of a cluster that loadgen started can be killed")?;
            let (cluster, dice) = (Arc::clone(cluster), Dice::new(seed, 2));
            threads.push(named("chaos-kills").spawn(move || kill(&cluster, dice, &stopped))?);
        }
        Ok(Self { shutdown, stop, threads })
    }

    /// Stops; all ranks run again when this returns.
    pub fn finish(self) -> Deeds {
        let Self { shutdown, stop, threads } = self;
        shutdown.stop();
        drop(stop);
        let panicked = || Deeds { errors: vec!["a thread of the chaos panicked".to_owned()], ..Deeds::default() };
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| panicked()))
            .fold(Deeds::default(), Deeds::join)
    }
}

fn lock(cluster: &Mutex<Cluster>) -> MutexGuard<'_, Cluster> {
    cluster.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kill(cluster: &Mutex<Cluster>, mut dice: Dice, stop: &mpsc::Receiver<()>) -> Deeds {
    let mut deeds = Deeds::default();
    while stop.recv_timeout(dice.millis(KILLS)) == Err(RecvTimeoutError::Timeout) {
        let ranks = lock(cluster).ranks();
        let Some(rank) = dice.pick(&ranks).copied() else { continue };
        if let Err(error) = lock(cluster).kill_rank(rank) {
            deeds.wrong(format!("kill of rank {rank}: {error:#}"));
            continue;
        }
        deeds.kills += 1;
        // Also at the end it is started again.
        let _ = stop.recv_timeout(dice.millis(AWAY));
        let start = Instant::now();
        while let Err(error) = lock(cluster).start_rank(rank) {
            if start.elapsed() > RETURN {
                deeds.wrong(format!("start of rank {rank}: {error:#}"));
                return deeds;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    deeds
}

struct Moving {
    dice: Dice,
    moves: bool,
    splits: bool,
    clients: usize,
    deeds: Deeds,
}

impl Moving {
    async fn run(mut self, mons: &str, stop: Shutdown) -> Deeds {
        let tree = match Tree::connect(mons, LIMIT).await {
            Ok(tree) => tree,
            Err(error) => {
                self.deeds.wrong(format!("connecting: {error:#}"));
                return self.deeds;
            }
        };
        loop {
            let pause = self.dice.millis(MOVES);
            tokio::select! {
                () = stop.stopped() => break,
                () = tokio::time::sleep(pause) => {}
            }
            tokio::select! {
                () = stop.stopped() => break,
                () = self.step(&tree) => {}
            }
        }
        tree.close().await;
        self.deeds
    }

    async fn step(&mut self, tree: &Tree) {
        let map = tree.client.map();
        if self.splits && (!self.moves || self.dice.below(3) == 0) {
            if map.subtrees.len() >= MOST_SUBTREES || self.dice.below(2) == 0 {
                self.merge(tree, &map).await;
            } else {
                self.split(tree).await;
            }
        } else {
            self.move_one(tree, &map).await;
        }
    }

    async fn move_one(&mut self, tree: &Tree, map: &ClusterMap) {
        let subtrees: Vec<(SubtreeId, Rank)> = map.subtrees.iter().map(|(id, found)| (*id, found.owner)).collect();
        let Some((subtree, owner)) = self.dice.pick(&subtrees).copied() else { return };
        let ranks = map.ranks.iter().filter(|(rank, info)| info.up && **rank != owner).map(|(rank, _)| *rank);
        let Some(rank) = self.dice.pick(&ranks.collect::<Vec<_>>()).copied() else { return };
        // Without waiting the next move may meet this one.
        let wait = self.dice.below(2) == 0;
        let moved = match tokio::time::timeout(LIMIT, tree.admin.move_subtree(subtree, rank, wait)).await {
            Ok(moved) => moved.map(drop),
            // It may yet end; with its rank down it takes that long.
            Err(_) => Err(Error::new(Reason::Timeout, "the move takes long")),
        };
        self.deeds.count(moved, &format!("move of {subtree} to {rank}"), |deeds| &mut deeds.moves);
    }

    async fn split(&mut self, tree: &Tree) {
        let Some(path) = self.directory(tree).await else { return };
        let split = tree.split(&path).await.map(drop);
        self.deeds.count(split, &format!("split of {path}"), |deeds| &mut deeds.splits);
    }

    /// Some directory in the tree of some client.
    async fn directory(&mut self, tree: &Tree) -> Option<String> {
        let mut path = format!("/client-{}", self.dice.below(self.clients as u64));
        for _ in 0..1 + self.dice.below(DEPTH) {
            let mut listing = tree.client.read_dir(&path).await.ok()?;
            let mut names = Vec::new();
            while let Ok(Some(entry)) = listing.next_entry().await {
                if entry.kind() == FileKind::Directory {
                    names.push(String::from_utf8_lossy(entry.name()).into_owned());
                }
            }
            let Some(name) = self.dice.pick(&names) else { break };
            path = format!("{path}/{name}");
        }
        Some(path)
    }

    async fn merge(&mut self, tree: &Tree, map: &ClusterMap) {
        let parents: BTreeSet<SubtreeId> = map.subtrees.values().filter_map(|subtree| subtree.parent).collect();
        let leaves: Vec<(SubtreeId, SubtreeId)> = map
            .subtrees
            .iter()
            .filter(|(id, _)| !parents.contains(id))
            .filter_map(|(id, subtree)| Some((*id, subtree.parent?)))
            .collect();
        let Some((subtree, parent)) = self.dice.pick(&leaves).copied() else { return };
        let owner = |of| map.subtrees.get(&of).map(|subtree| subtree.owner);
        let (Some(own), Some(to)) = (owner(subtree), owner(parent)) else { return };
        let merged = async {
            if own != to {
                tree.move_to(subtree, to).await?;
            }
            tree.merge(subtree).await
        };
        let merged = merged.await;
        self.deeds.count(merged, &format!("merge of {subtree}"), |deeds| &mut deeds.merges);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same_dice() {
        let throw = |seed| {
            let mut dice = Dice::new(seed, 1);
            (0..20).map(|_| dice.below(100)).collect::<Vec<_>>()
        };
        assert_eq!(throw(7), throw(7));
        assert_ne!(throw(7), throw(8));
        assert!(throw(7).iter().collect::<BTreeSet<_>>().len() > 10, "they fall differently");
    }

    #[test]
    fn a_broken_cluster_is_no_refusal() {
        let mut deeds = Deeds::default();
        for reason in [Reason::InUse, Reason::StaleEpoch, Reason::Unavailable, Reason::Corrupt, Reason::Internal] {
            deeds.count(Err(Error::new(reason, "")), "move", |deeds| &mut deeds.moves);
        }
        deeds.count(Ok(()), "move", |deeds| &mut deeds.moves);
        assert_eq!((deeds.moves, deeds.refused, deeds.errors.len()), (1, 3, 2));
    }
}
