//! What holds for every map, and for every step from one map to the next. Named, and shared by tests, the
//! simulator and debug builds of the mon.

use std::collections::BTreeSet;

use pando_proto::PgId;
use pando_proto::ids::ROOT_SUBTREE;

use crate::map::{ClusterMap, Pg};
use crate::placement;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("map invariant `{name}` does not hold: {detail}")]
pub struct Violation {
    /// Which.
    pub name: &'static str,
    /// Where.
    pub detail: String,
}

type Check = Result<(), Violation>;

fn require(holds: bool, name: &'static str, detail: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(Violation { name, detail: detail() }) }
}

/// Checks one map.
pub fn check(map: &ClusterMap) -> Check {
    for (id, pg) in &map.pgs {
        check_pg(map, *id, pg)?;
    }
    check_ids(map)?;
    check_inos(map)?;
    for (id, subtree) in &map.subtrees {
        let parent_is_there = match subtree.parent {
            None => *id == ROOT_SUBTREE,
            Some(parent) => map.subtrees.contains_key(&parent),
        };
        require(parent_is_there, "subtrees form one tree", || id.to_string())?;
    }
    Ok(())
}

fn check_pg(map: &ClusterMap, id: PgId, pg: &Pg) -> Check {
    let detail = || format!("PG {id}: {pg:?}");
    let all: Vec<_> = pg.members.iter().chain(&pg.joining).chain(&pg.absent).collect();
    let distinct: BTreeSet<_> = all.iter().collect();
    require(distinct.len() == all.len(), "no OSD twice in a PG", detail)?;
    require(all.iter().all(|osd| map.osds.contains_key(osd)), "members are known OSDs", detail)?;
    require(pg.leaving.iter().all(|osd| pg.members.contains(osd)), "only members leave", detail)?;
    require(pg.leaving.len() <= pg.joining.len() + pg.absent.len(), "who leaves is replaced", detail)?;
    let size = map.pools.get(&id.pool).map_or(0, |pool| pool.size as usize);
    require(pg.members.len() <= size && placement::places(pg).count() <= size, "no more places than the size", detail)?;
    require((pg.config == 0) == pg.members.is_empty(), "a configuration has members", detail)?;
    let up = |osd: &_| map.osds.get(osd).is_some_and(|osd| osd.up);
    let living = pg.members.iter().filter(|osd| up(osd)).count();
    require(living == 0 || living == pg.members.len(), "a dead member is the last or none", detail)?;
    require(pg.joining.iter().all(up), "joiners are up", detail)?;
    require(!pg.absent.iter().any(up), "who is absent is down", detail)
}

fn check_ids(map: &ClusterMap) -> Check {
    let uuids: BTreeSet<_> = map.osds.values().map(|osd| osd.uuid).collect();
    require(uuids.len() == map.osds.len(), "OSD uuids are unique", || format!("{:?}", map.osds))?;
    let nonces: BTreeSet<_> = map.sessions.values().map(|session| &session.nonce).collect();
    require(nonces.len() == map.sessions.len(), "sessions are unique", || format!("{:?}", map.sessions))?;
    let below = map.sessions.keys().all(|id| id.0 < map.next_client_id)
        && map.osds.keys().all(|id| id.0 < map.next_osd_id)
        && map.subtrees.keys().all(|id| id.0 < map.next_subtree_id);
    require(below, "ids in use are below the next one", || {
        format!("{} {} {}", map.next_client_id, map.next_osd_id, map.next_subtree_id)
    })
}

fn check_inos(map: &ClusterMap) -> Check {
    let mut grants: Vec<_> = map.ino_grants.iter().map(|grant| (grant.first.0, grant.count)).collect();
    grants.sort_unstable();
    let disjoint = grants.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0);
    require(disjoint, "ino ranges are disjoint (R20)", || format!("{grants:?}"))?;
    let below = map.ino_grants.iter().all(|grant| {
        let cursor = map.ino_cursors.get(&grant.first.shard()).copied().unwrap_or(0);
        grant.first.number() + grant.count <= cursor
    });
    require(below, "granted inos are below the cursor (R20)", || format!("{grants:?}"))
}

/// Checks a step.
pub fn check_step(before: &ClusterMap, after: &ClusterMap) -> Check {
    let same = ClusterMap { epoch: after.epoch, ..before.clone() } == *after;
    let rise = after.epoch.0.wrapping_sub(before.epoch.0);
    require(rise == u64::from(!same), "the epoch rises with each change", || format!("{rise}"))?;
    let fixed = !before.exists() || before.cluster_id == after.cluster_id;
    require(fixed, "the cluster id is fixed", || format!("{:?}", after.cluster_id))?;
    for (id, pg) in &before.pgs {
        check_pg_step(*id, pg, after)?;
    }
    check_owner_step(before, after)?;
    check_removals(before, after)?;
    let reused = after.osds.keys().find(|id| !before.osds.contains_key(id) && id.0 < before.next_osd_id);
    require(reused.is_none(), "OSD ids are never reused (R26)", || format!("{reused:?}"))?;
    let newcomers = after.sessions.keys().filter(|id| !before.sessions.contains_key(id));
    let fresh = newcomers.into_iter().all(|id| id.0 >= before.next_client_id);
    require(fresh, "client ids are never reused (R9)", || format!("{}", before.next_client_id))?;
    let counters = before.next_client_id <= after.next_client_id
        && before.next_subtree_id <= after.next_subtree_id
        && before.next_osd_id <= after.next_osd_id;
    require(counters, "counters never fall", || "next ids".to_owned())?;
    let cursors = before.ino_cursors.iter().all(|(shard, next)| after.ino_cursors.get(shard) >= Some(next));
    require(cursors, "ino cursors never fall (R20)", || format!("{:?}", after.ino_cursors))
}

fn check_pg_step(id: PgId, before: &Pg, after: &ClusterMap) -> Check {
    let Some(pg) = after.pgs.get(&id) else {
        return require(false, "PGs stay", || id.to_string());
    };
    let detail = || format!("PG {id}: {before:?} -> {pg:?}");
    require(pg.config >= before.config, "configurations never fall (R25)", detail)?;
    let kept = pg.members == before.members || pg.config > before.config;
    require(kept, "other members are another configuration (R25)", detail)?;
    require(before.members.is_empty() || !pg.members.is_empty(), "a PG never loses its last member (R26)", detail)?;
    // R26: someone who was a member, or a confirmed joiner, goes on.
    let continued = before.members.is_empty()
        || pg.members.iter().any(|osd| before.members.contains(osd) || before.joining.contains(osd));
    require(continued, "a configuration continues the one before (R26)", detail)
}

/// Only what nobody needs leaves the map.
fn check_removals(before: &ClusterMap, after: &ClusterMap) -> Check {
    let mut osds = before.osds.iter().filter(|(id, _)| !after.osds.contains_key(id));
    let needed = osds.find(|(id, osd)| osd.up || !before.pgs_of_osd(**id).is_empty());
    require(needed.is_none(), "no OSD in use is removed (R26)", || format!("{needed:?}"))?;
    let owns = |rank| before.subtrees.values().any(|subtree| subtree.owner == rank);
    let mut ranks = before.ranks.iter().filter(|(rank, _)| !after.ranks.contains_key(rank));
    let needed = ranks.find(|(rank, info)| info.up || owns(**rank) || info.incarnation > after.rank_incarnation_floor);
    require(needed.is_none(), "no rank in use is removed (R13)", || format!("{needed:?}"))
}

fn check_owner_step(before: &ClusterMap, after: &ClusterMap) -> Check {
    for (id, subtree) in &before.subtrees {
        let Some(new) = after.subtrees.get(id) else { continue };
        let incarnation = |map: &ClusterMap, rank| map.ranks.get(&rank).map(|rank| rank.incarnation);
        let same = subtree.owner == new.owner && incarnation(before, subtree.owner) == incarnation(after, new.owner);
        let detail = || format!("{id}: {subtree:?} -> {new:?}");
        require(new.epoch >= subtree.epoch, "subtree epochs never fall (R11)", detail)?;
        require(same || new.epoch > subtree.epoch, "another owner is another epoch (I3)", detail)?;
    }
    let falls =
        before.ranks.iter().any(|(id, rank)| after.ranks.get(id).is_some_and(|new| new.incarnation < rank.incarnation));
    let floor = before.rank_incarnation_floor;
    let reused = after.ranks.iter().any(|(id, new)| !before.ranks.contains_key(id) && new.incarnation <= floor);
    let falls = falls || reused || after.rank_incarnation_floor < floor;
    let osd_falls =
        before.osds.iter().any(|(id, osd)| after.osds.get(id).is_some_and(|new| new.incarnation < osd.incarnation));
    require(!falls && !osd_falls, "incarnations never fall", || "a daemon".to_owned())
}
