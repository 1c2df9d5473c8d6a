//! Which OSDs hold a PG.
//!
//! The members stand in the map, so that nothing moves unless a command moves it. Each choice takes the OSD with
//! the least load for its weight, on a host that the PG does not use yet while there is one. Load counts PGs of
//! the pool first (the PGs of a pool are about equally large), then those of all pools.
//!
//! The places of a PG are: members that stay, joiners, and places kept for members that are down for a while.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use pando_proto::{OsdId, PgId, PoolId};

use crate::map::{ClusterMap, Osd, Pg, mix};

/// What an OSD has to carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// PGs of one pool.
    pub pool: u64,
    /// PGs of all pools.
    pub all: u64,
    /// PGs of one pool where it is, or is to be, the primary.
    pub primaries: u64,
}

/// The OSDs that will hold a PG when all that is under way is done, and those that are waited for.
pub fn places(pg: &Pg) -> impl Iterator<Item = OsdId> {
    let staying = pg.members.iter().filter(|osd| !pg.leaving.contains(osd));
    staying.chain(&pg.joining).chain(&pg.absent).copied()
}

/// The load of each OSD, as far as `pool` is concerned.
pub fn loads(map: &ClusterMap, pool: PoolId) -> BTreeMap<OsdId, Load> {
    let mut loads: BTreeMap<OsdId, Load> = map.osds.keys().map(|osd| (*osd, Load::default())).collect();
    for (id, pg) in &map.pgs {
        for osd in places(pg) {
            let load = loads.entry(osd).or_default();
            load.all += 1;
            load.pool += u64::from(id.pool == pool);
        }
        if let Some(primary) = pg.primary().filter(|_| id.pool == pool) {
            loads.entry(primary).or_default().primaries += 1;
        }
    }
    loads
}

/// `left / left_weight` against `right / right_weight`, exactly.
fn compare_ratio(left: u64, left_weight: u32, right: u64, right_weight: u32) -> Ordering {
    let product = |load: u64, weight: u32| u128::from(load) * u128::from(weight);
    product(left, right_weight).cmp(&product(right, left_weight))
}

fn tie_break(pg: PgId, osd: OsdId) -> u64 {
    mix(mix(u64::from(pg.pool.0) << 32 | u64::from(pg.index)) ^ u64::from(osd.0))
}

/// The best OSD for one more place of a PG, of those that are up.
fn best(map: &ClusterMap, loads: &BTreeMap<OsdId, Load>, id: PgId, taken: &[OsdId]) -> Option<OsdId> {
    let hosts: Vec<&str> = taken.iter().filter_map(|osd| map.osds.get(osd)).map(|osd| osd.host.as_str()).collect();
    let candidates = map.osds.iter().filter(|(osd, info)| info.up && info.weight > 0 && !taken.contains(osd));
    let order = |(left, a): &(&OsdId, &Osd), (right, b): &(&OsdId, &Osd)| {
        let (x, y) = (loads[*left], loads[*right]);
        (hosts.contains(&a.host.as_str()).cmp(&hosts.contains(&b.host.as_str())))
            .then_with(|| compare_ratio(x.pool + 1, a.weight, y.pool + 1, b.weight))
            .then_with(|| compare_ratio(x.all + 1, a.weight, y.all + 1, b.weight))
            .then_with(|| tie_break(id, **left).cmp(&tie_break(id, **right)))
    };
    candidates.min_by(order).map(|(osd, _)| *osd)
}

fn add(loads: &mut BTreeMap<OsdId, Load>, osd: OsdId) {
    let load = loads.entry(osd).or_default();
    load.pool += 1;
    load.all += 1;
}

/// Gives all PGs their first members, once as many OSDs are up as the cluster was made for.
pub(crate) fn place_first(map: &mut ClusterMap) {
    let up = map.osds.values().filter(|osd| osd.up).count();
    if up < map.expected_osds as usize {
        return;
    }
    for pool in map.pools.keys().copied().collect::<Vec<_>>() {
        let size = map.pools[&pool].size as usize;
        let mut loads = loads(map, pool);
        for id in ids_of(map, pool) {
            if !map.pgs[&id].members.is_empty() {
                continue;
            }
            let mut members = Vec::with_capacity(size);
            while members.len() < size {
                let Some(osd) = best(map, &loads, id, &members) else { break };
                add(&mut loads, osd);
                members.push(osd);
            }
            choose_primary(map, &mut loads, &mut members);
            if !members.is_empty() {
                map.pgs.insert(id, Pg { config: 1, members, ..Pg::default() });
            }
        }
    }
}

/// Puts the member with the fewest primaries for its weight first.
fn choose_primary(map: &ClusterMap, loads: &mut BTreeMap<OsdId, Load>, members: &mut [OsdId]) {
    let order = |a: &&OsdId, b: &&OsdId| {
        let weight = |osd: &OsdId| map.osds[osd].weight;
        compare_ratio(loads[*a].primaries + 1, weight(a), loads[*b].primaries + 1, weight(b))
    };
    let Some(first) = members.iter().min_by(order).copied() else { return };
    if let Some(at) = members.iter().position(|member| *member == first) {
        members[..=at].rotate_right(1);
        loads.entry(first).or_default().primaries += 1;
    }
}

fn ids_of(map: &ClusterMap, pool: PoolId) -> Vec<PgId> {
    map.pgs.keys().copied().filter(|id| id.pool == pool).collect()
}

/// Gives free places (not those that are kept for someone) to OSDs that are up. True if any was given.
pub(crate) fn fill(map: &mut ClusterMap) -> bool {
    let mut changed = false;
    for pool in map.pools.keys().copied().collect::<Vec<_>>() {
        let size = map.pools[&pool].size as usize;
        let mut loads = loads(map, pool);
        for id in ids_of(map, pool) {
            while !map.pgs[&id].members.is_empty() && places(&map.pgs[&id]).count() < size {
                let taken = involved(&map.pgs[&id]);
                let Some(osd) = best(map, &loads, id, &taken) else { break };
                add(&mut loads, osd);
                if let Some(pg) = map.pgs.get_mut(&id) {
                    pg.joining.push(osd);
                }
                changed = true;
            }
        }
    }
    changed
}

/// Those that hold or will hold it, the leaving ones included.
fn involved(pg: &Pg) -> Vec<OsdId> {
    pg.members.iter().chain(&pg.joining).chain(&pg.absent).copied().collect()
}

/// Whether a place kept for this OSD could be given to another.
pub fn can_replace(map: &ClusterMap, osd: OsdId) -> bool {
    let waiting = map.pgs.values().filter(|pg| pg.absent.contains(&osd));
    waiting.into_iter().any(|pg| {
        let taken = involved(pg);
        map.osds.iter().any(|(id, info)| info.up && info.weight > 0 && !taken.contains(id))
    })
}

/// Gives up the places kept for an OSD that stays away, where another can take them. True if any was.
pub(crate) fn replace_absent(map: &mut ClusterMap, osd: OsdId) -> bool {
    let mut changed = false;
    for id in map.pgs.keys().copied().collect::<Vec<_>>() {
        if !map.pgs[&id].absent.contains(&osd)
            || best(map, &loads(map, id.pool), id, &involved(&map.pgs[&id])).is_none()
        {
            continue;
        }
        if let Some(pg) = map.pgs.get_mut(&id) {
            pg.absent.retain(|absent| *absent != osd);
            changed = true;
        }
    }
    if changed {
        fill(map);
    }
    changed
}

/// Starts moves from the fullest OSD to others as long as each makes the pool more even. Only PGs at rest take
/// part, so that a PG is moved one member at a time.
pub(crate) fn rebalance(map: &mut ClusterMap) {
    for pool in map.pools.keys().copied().collect::<Vec<_>>() {
        let mut loads = loads(map, pool);
        while let Some((id, from, to)) = next_move(map, &loads, pool) {
            add(&mut loads, to);
            let load = loads.entry(from).or_default();
            load.pool -= 1;
            load.all -= 1;
            let Some(pg) = map.pgs.get_mut(&id) else { return };
            pg.joining.push(to);
            pg.leaving.push(from);
        }
    }
}

fn at_rest(map: &ClusterMap, pg: &Pg, size: usize) -> bool {
    let quiet = pg.joining.is_empty() && pg.absent.is_empty() && pg.leaving.is_empty();
    quiet && pg.members.len() == size && pg.members.iter().all(|osd| map.osds[osd].up)
}

/// The move that helps most: from the highest load for its weight to the lowest, if both come nearer by it.
fn next_move(map: &ClusterMap, loads: &BTreeMap<OsdId, Load>, pool: PoolId) -> Option<(PgId, OsdId, OsdId)> {
    let size = map.pools[&pool].size as usize;
    let weight = |osd: OsdId| map.osds[&osd].weight;
    let mut osds: Vec<OsdId> = map.osds.iter().filter(|(_, osd)| osd.up && osd.weight > 0).map(|(id, _)| *id).collect();
    osds.sort_by(|a, b| compare_ratio(loads[a].pool, weight(*a), loads[b].pool, weight(*b)).then(a.cmp(b)));
    let pgs: Vec<(PgId, &Pg)> = (map.pgs.iter())
        .filter(|(id, pg)| id.pool == pool && at_rest(map, pg, size))
        .map(|(id, pg)| (*id, pg))
        .collect();
    for from in osds.iter().rev().copied() {
        for to in osds.iter().copied() {
            // After the move the receiver must still be below where the giver was: else it would swing back.
            let helps = compare_ratio(loads[&to].pool + 1, weight(to), loads[&from].pool, weight(from)).is_lt();
            if !helps {
                break;
            }
            let fits =
                |pg: &Pg| pg.members.contains(&from) && !pg.members.contains(&to) && keeps_hosts(map, pg, from, to);
            let best = pgs.iter().filter(|(_, pg)| fits(pg)).min_by_key(|(id, pg)| (pg.primary() == Some(from), *id));
            if let Some((id, _)) = best {
                return Some((*id, from, to));
            }
        }
    }
    None
}

/// Whether the PG would not stand on fewer hosts than now.
fn keeps_hosts(map: &ClusterMap, pg: &Pg, from: OsdId, to: OsdId) -> bool {
    let hosts = |osds: &mut dyn Iterator<Item = OsdId>| {
        let mut hosts: Vec<&str> = osds.map(|osd| map.osds[&osd].host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts.len()
    };
    let before = hosts(&mut pg.members.iter().copied());
    let after = hosts(&mut pg.members.iter().copied().map(|osd| if osd == from { to } else { osd }));
    after >= before
}

#[cfg(test)]
mod tests;
