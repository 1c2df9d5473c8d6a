//! Directed plays: a few clients follow a script on a cluster of several ranks, and break things at the right moment.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use pando_client::Client;
use pando_proto::{Error, Rank, Reason, SubtreeId};
use pando_rpc::{Env, Shutdown};

use crate::admin;
use crate::board::Board;
use crate::cluster::{Cluster, MONS, OSDS, connect, host_names, on_a_fresh_thread};
use crate::faults::{self, Fault, Hosts};
use crate::verify::verify_records;

/// Virtual time of a play.
const LIMIT: Duration = Duration::from_secs(300);
/// How long each host runs before the next one does.
const TICK: Duration = Duration::from_millis(1);
/// Longest time that a message takes, so that a script can say what comes first.
const LATENCY: Duration = Duration::from_millis(3);
/// A call gives up after this long.
const DEADLINE: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// Ranks of every play.
const RANKS: u32 = 3;

/// What befalls a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// It loses its power.
    Crash,
    /// It stands still, and goes on as if nothing had been.
    Freeze,
}

/// One player's view of the stage: its own host.
#[derive(Clone)]
pub struct Stage {
    board: Arc<Board>,
    env: Env,
}

/// A player: the name of its host, and its script.
pub type Player = (&'static str, Box<dyn FnOnce(Stage) -> LocalBoxFuture<'static, Result<(), String>> + Send>);

/// Makes a player.
pub fn player<F>(host: &'static str, script: impl FnOnce(Stage) -> F + Send + 'static) -> Player
where
    F: Future<Output = Result<(), String>> + 'static,
{
    (host, Box::new(|stage| Box::pin(script(stage))))
}

/// Runs a play.
///
/// Errors: what a player found wrong.
pub fn play(seed: u64, players: Vec<Player>) -> Result<(), String> {
    play_within(LIMIT, seed, players)
}

/// The same, with more virtual time.
///
/// Errors: as [`play`].
pub fn play_within(limit: Duration, seed: u64, players: Vec<Player>) -> Result<(), String> {
    on_a_fresh_thread(format!("play-{seed}"), move || {
        let hosts = Hosts { mons: MONS, osds: OSDS, ranks: RANKS, clients: 0 };
        let others: Vec<&str> = players.iter().map(|(host, _)| *host).collect();
        let board = Board::new(seed, MONS, OSDS, &host_names(&hosts, &others), 1, 0);
        let mut cluster = Cluster::new(seed, limit, TICK, LATENCY, hosts, board);
        for (host, script) in players {
            let board = Arc::clone(&cluster.board);
            cluster.client(host, move |env| async move {
                let stage = Stage { board, env };
                script(stage).await.map_err(|error| format!("{host}: {error}"))?;
                Ok(())
            });
        }
        cluster.drive()
    })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Stage {
    /// A client on this player's host. The balancer rests, and all ranks are up.
    ///
    /// Errors: they do not come up.
    pub async fn connect(&self) -> Result<Client, String> {
        let client = connect(&self.env, DEADLINE).await?;
        self.until("all ranks are up", || client.map().ranks.values().filter(|rank| rank.up).count() == RANKS as usize)
            .await?;
        if let Some(mon) = client.mon() {
            mon.admin().set_setting("balancer_mode", "0").await.map_err(text)?;
        }
        Ok(client)
    }

    /// The network, clocks and so on of this player's host.
    pub fn env(&self) -> Env {
        Env { shutdown: Shutdown::default(), ..self.env.clone() }
    }

    /// Does this to the cluster, at once.
    pub async fn order(&self, fault: Fault) {
        self.board.order(Duration::ZERO, (fault, None));
        // The next step of the simulation begins with it.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }

    /// When a host is about to write for the `writes`th time from now on it stops, or dies, instead; it goes on after
    /// `length`.
    pub fn light_fuse(&self, host: &str, writes: u64, harm: Harm, length: Duration) {
        let window = match harm {
            Harm::Crash => faults::crash(host.to_owned(), length),
            Harm::Freeze => faults::freeze(host.to_owned(), length),
        };
        self.board.light_fuse(host, writes, window);
    }

    /// No longer. Whether it has come to that.
    pub fn put_out_fuse(&self) -> bool {
        self.board.put_out_fuse()
    }

    /// Waits until it is so.
    ///
    /// Errors: it is not, for long.
    pub async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
        for _ in 0..6000 {
            if is_so() {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(format!("it never came to pass that {what}"))
    }

    /// Looks whether what the OSDs hold is one tree, and nothing else (I6, I7).
    ///
    /// Errors: what is wrong.
    pub async fn verify(&self, client: &Client) -> Result<(), String> {
        verify_records(client, &self.board).await
    }

    /// Tells the other players.
    pub fn say(&self, word: &str) {
        self.board.say(word);
    }

    /// Whether a player has said so.
    pub fn was_said(&self, word: &str) -> bool {
        self.board.was_said(word)
    }

    /// Waits until a player has said so.
    pub async fn hear(&self, word: &str) {
        self.board.hear(word).await;
    }

    /// Splits a directory off and moves it to a rank.
    ///
    /// Errors: the cluster refuses for good.
    pub async fn split_to(&self, client: &Client, path: &str, to: u32) -> Result<SubtreeId, String> {
        let subtree = self.split(client, path).await?;
        self.move_to(client, subtree, to).await?;
        Ok(subtree)
    }

    /// Splits a directory off, if it is not the root of a subtree already.
    ///
    /// Errors: the cluster refuses for good.
    pub async fn split(&self, client: &Client, path: &str) -> Result<SubtreeId, String> {
        let begun = tokio::time::Instant::now();
        let subtree = loop {
            match admin::split(client, &self.env.net, path).await {
                Ok(subtree) => break subtree,
                Err(error) if may_come_again(&error) && begun.elapsed() < DEADLINE => tokio::time::sleep(LOOK).await,
                Err(error) => match self.subtree_of(client, path).await {
                    // It was done, and the answer was lost.
                    Some(subtree) => break subtree,
                    None => return Err(format!("split {path}: {error}")),
                },
            }
        };
        self.until("the client knows the new subtree", || client.map().subtrees.contains_key(&subtree)).await?;
        Ok(subtree)
    }

    /// The subtree whose root is at a path.
    pub async fn subtree_of(&self, client: &Client, path: &str) -> Option<SubtreeId> {
        let ino = client.metadata(path).await.ok()?.ino();
        client.map().subtrees.iter().find(|(_, subtree)| subtree.root.0 == ino).map(|(id, _)| *id)
    }

    /// Merges a subtree into its parent, on the parent's rank.
    ///
    /// Errors: the cluster refuses for good.
    pub async fn merge(&self, client: &Client, subtree: SubtreeId) -> Result<(), String> {
        let begun = tokio::time::Instant::now();
        loop {
            match admin::merge(client, &self.env.net, subtree).await {
                Ok(()) => return Ok(()),
                // It was done, and the answer was lost.
                Err(_) if !client.map().subtrees.contains_key(&subtree) => return Ok(()),
                Err(error) if may_come_again(&error) && begun.elapsed() < DEADLINE => {
                    // They may have come to different ranks meanwhile. Whether this is done the next try tells.
                    let parent = client.map().subtrees.get(&subtree).and_then(|found| found.parent);
                    let owner = parent.and_then(|parent| client.map().owner(parent).map(|(rank, _)| rank));
                    if let (Some(mon), Some(owner)) = (client.mon(), owner) {
                        let _ = mon.admin().move_subtree(subtree, owner, true).await;
                    }
                    tokio::time::sleep(LOOK).await;
                }
                Err(error) => return Err(format!("merge {subtree}: {error}")),
            }
        }
    }

    /// Moves a subtree, and waits until that is done.
    ///
    /// Errors: the cluster refuses for good.
    pub async fn move_to(&self, client: &Client, subtree: SubtreeId, to: u32) -> Result<(), String> {
        let begun = tokio::time::Instant::now();
        loop {
            if client.map().subtrees.get(&subtree).is_some_and(|found| found.owner == Rank(to)) {
                return Ok(());
            }
            let mon = client.mon().ok_or("no mon")?;
            match mon.admin().move_subtree(subtree, Rank(to), true).await {
                Ok(_) if begun.elapsed() < DEADLINE => {}
                Ok(_) => return Err(format!("move {subtree}: it never comes to {}", Rank(to))),
                // Whatever it is: also a rank that is down is so for a while only.
                Err(_) if begun.elapsed() < DEADLINE => {}
                Err(error) => return Err(format!("move {subtree}: {error}")),
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn may_come_again(error: &Error) -> bool {
    matches!(
        error.reason,
        Reason::InUse | Reason::NotOwner | Reason::Unavailable | Reason::StaleEpoch | Reason::Timeout
    )
}
