//! Trees that cannot be dealt evenly take turns: of 16 trees on 3 ranks one rank has 6, and would decide how long
//! all takes. Now and then one tree moves on, so that each rank is the crowded one for as long as the others.

use std::collections::VecDeque;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use pando_proto::Rank;
use pando_rpc::Shutdown;

use super::tree::Tree;

/// For a move.
const LIMIT: Duration = Duration::from_secs(30);

/// Which trees are with which rank.
struct Wheel {
    places: Vec<VecDeque<usize>>,
    /// Where the next one that moves on is looked for first.
    next: usize,
}

impl Wheel {
    /// As [`Tree::spread`] deals them.
    fn new(clients: usize, ranks: usize) -> Self {
        let mut places = vec![VecDeque::new(); ranks];
        for client in 0..clients {
            if let Some(place) = places.get_mut(client % ranks.max(1)) {
                place.push_back(client);
            }
        }
        Self { places, next: 0 }
    }

    /// From a rank with more trees than the one after it, one goes there: which one, and where. `None`: all have the same.
    fn turn(&mut self) -> Option<(usize, usize)> {
        let count = self.places.len();
        let more = |from: &usize| self.places[*from].len() > self.places[(from + 1) % count].len();
        let from = (0..count).map(|step| (self.next + step) % count).find(more)?;
        let to = (from + 1) % count;
        let client = self.places[from].pop_front()?;
        self.places[to].push_back(client);
        self.next = to;
        Some((client, to))
    }
}

/// Under way until it is [finished](Self::finish).
pub(super) struct Rotation {
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl Rotation {
    /// Begins, unless `every` is `None`. The clients' trees have been [spread](Tree::spread).
    pub(super) fn start(every: Option<Duration>, clients: usize, mons: &str) -> anyhow::Result<Self> {
        let shutdown = Shutdown::default();
        let Some(every) = every else { return Ok(Self { shutdown, thread: None }) };
        let (mons, stop) = (mons.to_owned(), shutdown.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = move || runtime.block_on(rotate(&mons, clients, every, stop));
        let thread = std::thread::Builder::new().name("rotation".to_owned()).spawn(work);
        Ok(Self { shutdown, thread: Some(thread.context("cannot start a thread")?) })
    }

    /// No more moves begin.
    pub(super) fn finish(self) {
        self.shutdown.stop();
        if self.thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the thread that moves trees on panicked");
        }
    }
}

async fn rotate(mons: &str, clients: usize, every: Duration, stop: Shutdown) {
    let tree = match Tree::connect(mons, LIMIT).await {
        Ok(tree) => tree,
        Err(error) => return tracing::warn!(%error, "no tree moves on"),
    };
    let ranks = tree.ranks();
    let mut wheel = Wheel::new(clients, ranks.len());
    loop {
        tokio::select! {
            () = stop.stopped() => break,
            () = tokio::time::sleep(every) => {}
        }
        let Some((client, to)) = wheel.turn() else { break };
        if let Err(error) = move_on(&tree, client, ranks[to]).await {
            // It stays where it was: the load is a little less even.
            tracing::warn!(client, to = %ranks[to], %error, "a tree does not move on");
        }
    }
    tree.close().await;
}

async fn move_on(tree: &Tree, client: usize, to: Rank) -> Result<(), pando_proto::Error> {
    // It is one already: this only tells which.
    let subtree = tree.split(&format!("/client-{client}")).await?;
    tree.move_to(subtree, to).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long each rank was crowded, of so many turns; the trees stay complete.
    fn crowded(clients: usize, ranks: usize, turns: usize) -> Vec<usize> {
        let mut wheel = Wheel::new(clients, ranks);
        let mut times = vec![0; ranks];
        for _ in 0..turns {
            let (client, to) = wheel.turn().unwrap();
            assert_eq!(wheel.places[to].back(), Some(&client));
            let sizes: Vec<usize> = wheel.places.iter().map(VecDeque::len).collect();
            assert_eq!(sizes.iter().sum::<usize>(), clients);
            let most = *sizes.iter().max().unwrap();
            assert!(most - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
            times.iter_mut().zip(sizes).for_each(|(time, size)| *time += usize::from(size == most));
        }
        times
    }

    #[test]
    fn each_rank_is_crowded_as_long_as_the_others() {
        assert_eq!(crowded(16, 3, 30), [10, 10, 10]);
        assert_eq!(crowded(8, 3, 30), [20, 20, 20]);
        assert_eq!(crowded(5, 4, 40), [10; 4]);
    }

    #[test]
    fn what_is_dealt_evenly_stays() {
        for (clients, ranks) in [(16, 2), (16, 1), (9, 3), (0, 3), (4, 0)] {
            assert_eq!(Wheel::new(clients, ranks).turn(), None, "{clients} trees on {ranks} ranks");
        }
    }

    #[test]
    fn all_trees_of_a_rank_take_their_turn() {
        let mut wheel = Wheel::new(16, 3);
        let moved: std::collections::BTreeSet<usize> =
            (0..48).filter_map(|_| wheel.turn()).map(|turn| turn.0).collect();
        assert_eq!(moved.len(), 16);
    }
}
