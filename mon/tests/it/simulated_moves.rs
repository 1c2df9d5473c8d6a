//! Handovers of a subtree under crashes and partitions, from a seed: what a source is told must be so for ever (R12).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pando_cluster_map::ClusterMap;
use pando_mon_client::{MonClient, MoveOutcome};
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mon::RankLoad;
use pando_proto::{Epoch, Rank, Reason};
use pando_rpc::Lease;

use crate::simulated::*;
use crate::support::rank;

/// A rank that lives on, heard of as far as the network lets it.
async fn live(number: u32) -> turmoil::Result {
    let env = env();
    let mut request = rank(number as u8 + 1);
    request.rank = number;
    let registered = loop {
        match client().register_rank(request.clone()).await {
            Ok(registered) => break registered,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let lease = Arc::new(Lease::new(Arc::clone(&env.clock)));
    let hints = Arc::new(|_, _| ());
    client().heartbeat_rank(Rank(number), registered.incarnation, lease, &env, Arc::new(RankLoad::default), hints);
    std::future::pending().await
}

/// What became of the moves, as their sources were told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    done: BTreeSet<u64>,
    void: BTreeSet<u64>,
    /// Of these, such as were open at first.
    asked_twice: u32,
}

impl Told {
    fn check(&self, map: &ClusterMap) {
        let last = map.root_subtree().map_or(0, |root| root.last_move);
        assert!(!self.void.contains(&last), "R12: move {last} was void, and then it was done");
    }
}

/// Hands the root subtree to and fro, and gives up the answers at different times.
async fn hand_over(told: Arc<Mutex<Told>>, length: Duration) -> turmoil::Result {
    let client = client().with_limit(Duration::from_secs(20));
    let mut limit = 0;
    while turmoil::sim_elapsed().unwrap() < length {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let Ok(map) = client.get_map(Epoch(0)).await else { continue };
        told.lock().unwrap().check(&map);
        let Some(root) = map.root_subtree().cloned() else { continue };
        let to = Rank(1 - root.owner.0);
        let Ok((move_id, _)) = client.admin().move_subtree(ROOT_SUBTREE, to, false).await else { continue };
        if move_id == 0 {
            continue;
        }
        limit = (limit * 7 + 13) % 400;
        let hasty = self::client().with_limit(Duration::from_millis(5 + limit));
        let outcome = hasty.commit_move(ROOT_SUBTREE, root.owner, root.epoch, move_id).await;
        let (done, twice) = match outcome {
            MoveOutcome::Done(_) => (true, 0),
            MoveOutcome::Refused(_) => (false, 0),
            MoveOutcome::Unknown(_) => (settle(&client, move_id).await, 1),
        };
        let map = client.get_map(Epoch(0)).await?;
        let mut told = told.lock().unwrap();
        told.asked_twice += twice;
        if done {
            told.done.insert(move_id)
        } else {
            told.void.insert(move_id)
        };
        told.check(&map);
        let epoch = map.root_subtree().unwrap().epoch;
        assert!(!done || epoch > root.epoch, "I3: {move_id} was done under epoch {}", root.epoch);
    }
    Ok(())
}

/// What a source does when nobody answered: gives the move up, and so learns whether it is done.
async fn settle(client: &MonClient, move_id: u64) -> bool {
    loop {
        match client.cancel_move(ROOT_SUBTREE, move_id).await {
            Ok(_) => return false,
            Err(error) if error.reason == Reason::StaleEpoch => return true,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn simulate(seed: u64, length: Duration) -> Told {
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .epoch(std::time::UNIX_EPOCH)
        .simulation_duration(Duration::from_secs(120))
        .tick_duration(Duration::from_millis(TICK))
        .max_message_latency(Duration::from_millis(20))
        .build();
    let disks: Vec<Disk> = MONS.iter().map(|_| Disk::default()).collect();
    for (index, mon) in MONS.iter().enumerate() {
        let disk = disks[index].clone();
        sim.host(*mon, move || run_mon(index as u64 + 1, disk.clone(), seed));
    }
    for (host, number) in [("mds1", 0), ("mds2", 1)] {
        sim.host(host, move || live(number));
    }
    let told = Arc::default();
    sim.client("source", hand_over(Arc::clone(&told), length));
    run_with_faults(&mut sim, seed, length);
    std::mem::take(&mut *told.lock().unwrap())
}

#[test]
fn what_the_source_of_a_move_is_told_stays_true() {
    // More by hand: `PANDO_SEEDS=100`.
    let seeds: u64 = std::env::var("PANDO_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2);
    let (mut done, mut void, mut asked_twice) = (0, 0, 0);
    for seed in 1..=seeds {
        let told = simulate(seed, Duration::from_secs(20));
        println!("seed {seed}: {} done, {} void, {} asked twice", told.done.len(), told.void.len(), told.asked_twice);
        done += told.done.len();
        assert!(told.done.is_disjoint(&told.void));
        void += told.void.len();
        asked_twice += told.asked_twice;
    }
    assert!(done > 10 * seeds as usize, "only {done} moves were done");
    assert!(void > 0 && asked_twice > 0, "the faults hit nothing: {void} {asked_twice}");
}
