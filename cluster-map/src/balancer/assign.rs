//! Who gets the subtrees of a rank that is gone: spread by load, the hottest first.

use std::collections::BTreeMap;

use pando_proto::{Rank, SubtreeId};

use super::load::{Load, weights};
use super::wishes::{Wish, wish};
use crate::map::ClusterMap;

/// Where each subtree of `dead` is to go; empty when no other rank is up. `loads` is what was heard last, of `dead` too.
pub fn assign(map: &ClusterMap, loads: &BTreeMap<Rank, Load>, dead: Rank) -> Vec<(SubtreeId, Rank)> {
    let up = map.ranks.iter().filter(|(rank, info)| info.up && **rank != dead);
    let survivors: Vec<(Rank, bool)> = up.map(|(rank, info)| (*rank, info.draining)).collect();
    let some_stay = survivors.iter().any(|(_, draining)| !draining);
    let takers: Vec<Rank> =
        survivors.iter().filter(|(_, drains)| !(some_stay && *drains)).map(|(rank, _)| *rank).collect();
    let known = known(map, loads);
    let mut busy: BTreeMap<Rank, f64> = takers.iter().map(|rank| (*rank, taken(map, loads, &known, *rank))).collect();
    let mut orphans = weighted(map, loads, &known, dead);
    orphans.sort_by(|(a, weight_a), (b, weight_b)| weight_b.total_cmp(weight_a).then(a.cmp(b)));
    let mut counts: BTreeMap<Rank, usize> = takers.iter().map(|rank| (*rank, 0)).collect();
    let mut assigned = Vec::new();
    for (id, weight) in orphans {
        let pinned = match wish(map, id) {
            Wish::Pinned(rank) => Some(rank).filter(|rank| busy.contains_key(rank)),
            _ => None,
        };
        let least = || {
            busy.iter().min_by(|(a, busy_a), (b, busy_b)| {
                busy_a.total_cmp(busy_b).then(counts.get(a).cmp(&counts.get(b))).then(a.cmp(b))
            })
        };
        let Some(to) = pinned.or_else(|| least().map(|(rank, _)| *rank)) else { break };
        *busy.entry(to).or_default() += weight;
        *counts.entry(to).or_default() += 1;
        assigned.push((id, to));
    }
    assigned
}

/// What subtrees take of the time of a rank. Of those that have just moved: as the rank told that had them before.
fn known(map: &ClusterMap, loads: &BTreeMap<Rank, Load>) -> BTreeMap<SubtreeId, f64> {
    let mut known = weights(map, loads);
    for (id, load) in loads.values().flat_map(|load| &load.subtrees) {
        known.entry(*id).or_insert_with(|| f64::from(load.busy));
    }
    known
}

/// What a subtree takes of which nobody has told, for it was split off or has moved since: as an average one.
fn average(known: &BTreeMap<SubtreeId, f64>) -> f64 {
    known.values().sum::<f64>() / known.len().max(1) as f64
}

/// What is taken of a rank's time: by what it has now, for its last word may be of a time before the last moves.
fn taken(map: &ClusterMap, loads: &BTreeMap<Rank, Load>, known: &BTreeMap<SubtreeId, f64>, rank: Rank) -> f64 {
    let own: Vec<SubtreeId> = owned(map, rank).collect();
    if own.iter().any(|id| known.contains_key(id)) {
        own.iter().map(|id| known.get(id).copied().unwrap_or(average(known))).sum()
    } else {
        loads.get(&rank).map_or(0.0, |load| f64::from(load.busy))
    }
}

fn owned(map: &ClusterMap, rank: Rank) -> impl Iterator<Item = SubtreeId> {
    map.subtrees.iter().filter(move |(_, subtree)| subtree.owner == rank).map(|(id, _)| *id)
}

/// The dead rank's subtrees with what they took of its time. Where nothing was heard of it, as after an election, it is
/// taken as saturated, and they as equal.
fn weighted(
    map: &ClusterMap,
    loads: &BTreeMap<Rank, Load>,
    known: &BTreeMap<SubtreeId, f64>,
    dead: Rank,
) -> Vec<(SubtreeId, f64)> {
    let orphans: Vec<SubtreeId> = owned(map, dead).collect();
    let heard = loads.contains_key(&dead);
    let saturated = 1000.0 / orphans.len().max(1) as f64;
    // Idle ones weigh a little too, so that they are dealt evenly.
    let told = |id: &SubtreeId| known.get(id).copied().unwrap_or(average(known)) + 1.0;
    orphans.iter().map(|id| (*id, if heard { told(id) } else { saturated })).collect()
}
