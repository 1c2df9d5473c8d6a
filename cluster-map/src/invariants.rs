//! What holds for every map, and for every step from one map to the next. Named, and shared by tests, the
//! simulator and debug builds of the mon.

use std::collections::BTreeSet;

use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::{PgId, Rank};

use crate::map::{ClusterMap, Decision, LongerLease, Pg};
use crate::{placement, settings};

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
    let past = map.longer_lease.is_none_or(|longer| longer.since <= map.epoch);
    require(past, "a lease was lowered in the past (R13)", || format!("{:?}", map.longer_lease))?;
    check_subtrees(map)
}

fn check_subtrees(map: &ClusterMap) -> Check {
    require(map.subtrees_are_a_forest(), "subtrees lie in no circle (R17)", || format!("{:?}", map.subtrees))?;
    let roots: BTreeSet<_> = map.subtrees.values().map(|subtree| subtree.root).collect();
    require(roots.len() == map.subtrees.len(), "a directory is the root of one subtree", || format!("{roots:?}"))?;
    let is_up = |rank| map.ranks.get(&rank).is_some_and(|info| info.up);
    let some_up = map.ranks.values().any(|info| info.up);
    for (id, subtree) in &map.subtrees {
        let detail = || format!("{id}: {subtree:?}");
        let is_root = *id == ROOT_SUBTREE;
        let parent_is_there = match subtree.parent {
            None => is_root,
            Some(parent) => map.subtrees.contains_key(&parent),
        };
        require(parent_is_there, "subtrees form one tree", detail)?;
        require(subtree.parent_dir.is_some() != is_root, "all but the root have a name", detail)?;
        require(is_up(subtree.owner) || !some_up, "an owner is up, if any rank is", detail)?;
        let goes = is_up(subtree.moving_to) && is_up(subtree.owner) && subtree.moving_to != subtree.owner;
        let still = subtree.moving_to == Rank(0) && subtree.move_id == 0;
        require(if subtree.move_id == 0 { still } else { goes }, "a move is between ranks that are up", detail)?;
        let past = subtree.move_id.max(subtree.last_move) <= map.epoch.0;
        require(past, "a move's id is an epoch of the map", detail)?;
        require(subtree.since <= map.epoch, "what was reached is of the past (R19)", detail)?;
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
    require(pg.forgiven <= pg.config, "what is given up is of the past (R26)", detail)?;
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
    check_lease_step(before, after)?;
    check_transactions(before, after)?;
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

/// Longer leases of before are remembered until they are forgotten by a command of their own (R13).
fn check_lease_step(before: &ClusterMap, after: &ClusterMap) -> Check {
    let length = |map: &ClusterMap| map.setting_u64(settings::LEASE_MILLIS);
    let detail = || format!("{:?} -> {:?}", before.longer_lease, after.longer_lease);
    if length(after) >= length(before) {
        let kept = after.longer_lease.is_none() || after.longer_lease == before.longer_lease;
        return require(kept, "no lease gets longer by itself (R13)", detail);
    }
    let longest = length(before).max(before.longer_lease.map_or(0, |longer| longer.millis));
    let remembered = Some(LongerLease { millis: longest, since: after.epoch });
    require(after.longer_lease == remembered, "a longer lease is remembered (R13)", detail)
}

/// What was decided stays so, and is remembered until all have done it (R18). A subtree gets another parent by such a
/// decision only, or when its parent is split.
fn check_transactions(before: &ClusterMap, after: &ClusterMap) -> Check {
    for (id, known) in &before.transactions {
        let detail = || format!("{id:?}: {known:?}");
        let Some(new) = after.transactions.get(id) else {
            let open = known.participants.iter().filter(|subtree| after.subtrees.contains_key(*subtree)).count();
            let left = open.saturating_sub(known.finished.len());
            require(left <= 1, "a decision is remembered until all have done it (R18)", detail)?;
            continue;
        };
        // Who aborted it did not know all others.
        let same = new.participants == known.participants;
        let more = known.decision != Decision::Committed && new.participants.is_superset(&known.participants);
        let kept = new.decision == known.decision && (same || more);
        require(kept && new.finished.is_superset(&known.finished), "a decision stays (R18)", detail)?;
    }
    let decided = after.transactions.keys().any(|id| !before.transactions.contains_key(id));
    for (id, subtree) in &before.subtrees {
        let Some(new) = after.subtrees.get(id) else { continue };
        let split = new.parent.is_some_and(|parent| !before.subtrees.contains_key(&parent));
        let same = (new.parent, new.parent_dir, &new.name) == (subtree.parent, subtree.parent_dir, &subtree.name);
        let detail = || format!("{id}: {subtree:?} -> {new:?}");
        require(same || split || decided, "a transaction gives a subtree another name (R17)", detail)?;
        require(same || split || new.route > subtree.route, "another name is another route (R16)", detail)?;
    }
    Ok(())
}

fn check_pg_step(id: PgId, before: &Pg, after: &ClusterMap) -> Check {
    let Some(pg) = after.pgs.get(&id) else {
        return require(false, "PGs stay", || id.to_string());
    };
    let detail = || format!("PG {id}: {before:?} -> {pg:?}");
    require(pg.config >= before.config, "configurations never fall (R25)", detail)?;
    require(pg.forgiven >= before.forgiven, "what is given up is not taken back (R26)", detail)?;
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

/// Subtrees come by splits and go by merges, and the lineage says so (R10, R11).
fn check_lineage_step(before: &ClusterMap, after: &ClusterMap) -> Check {
    for (id, subtree) in after.subtrees.iter().filter(|(id, _)| !before.subtrees.contains_key(id)) {
        let detail = || format!("{id}: {subtree:?}");
        require(id.0 >= before.next_subtree_id || *id == ROOT_SUBTREE, "subtree ids are never reused (R11)", detail)?;
        let Some((parent, epoch)) = subtree.split_from else {
            require(*id == ROOT_SUBTREE, "a new subtree was split off", detail)?;
            continue;
        };
        let raised = before.subtrees.get(&parent).is_some_and(|old| old.epoch < epoch);
        let known = after.subtrees.get(&parent).is_some_and(|new| new.epoch == epoch && new.owner == subtree.owner);
        require(raised && known, "a split raises both epochs (R11)", detail)?;
        let listed = after.lineage.iter().any(|entry| entry.child == *id && entry.parent == parent && !entry.merged);
        require(listed, "a split is in the lineage (R10)", detail)?;
    }
    for (id, subtree) in before.subtrees.iter().filter(|(id, _)| !after.subtrees.contains_key(id)) {
        let detail = || format!("{id}: {subtree:?}");
        require(before.children(*id).next().is_none(), "only a subtree without children is merged", detail)?;
        let Some(entry) = after.lineage.iter().find(|entry| entry.merged && entry.child == *id) else {
            return require(false, "a merge is in the lineage (R10)", detail);
        };
        let fenced = entry.child_fence > subtree.epoch && entry.child_root == subtree.root;
        let epoch = |map: &ClusterMap| map.subtrees.get(&entry.parent).map(|parent| parent.epoch);
        require(fenced && epoch(after) > epoch(before), "a merge raises both epochs (R11)", detail)?;
    }
    Ok(())
}

fn check_owner_step(before: &ClusterMap, after: &ClusterMap) -> Check {
    for (id, subtree) in &before.subtrees {
        let Some(new) = after.subtrees.get(id) else { continue };
        let incarnation = |map: &ClusterMap, rank| map.ranks.get(&rank).map(|rank| rank.incarnation);
        let same = subtree.owner == new.owner && incarnation(before, subtree.owner) == incarnation(after, new.owner);
        let detail = || format!("{id}: {subtree:?} -> {new:?}");
        require(new.epoch >= subtree.epoch, "subtree epochs never fall (R11)", detail)?;
        require(same || new.epoch > subtree.epoch, "another owner is another epoch (I3)", detail)?;
        let since = if new.epoch == subtree.epoch { subtree.since } else { after.epoch };
        require(new.since == since, "it is known since when an epoch is (R19)", detail)?;
        require(new.route >= subtree.route, "routes never fall (R16)", detail)?;
        require(new.root == subtree.root, "a subtree keeps its root", detail)?;
        require(new.split_from == subtree.split_from, "a subtree keeps its origin (R10)", detail)?;
        let committed = new.last_move == subtree.last_move || new.last_move == subtree.move_id;
        require(committed, "only the move under way is committed (R12)", detail)?;
    }
    check_lineage_step(before, after)?;
    let falls =
        before.ranks.iter().any(|(id, rank)| after.ranks.get(id).is_some_and(|new| new.incarnation < rank.incarnation));
    let floor = before.rank_incarnation_floor;
    let reused = after.ranks.iter().any(|(id, new)| !before.ranks.contains_key(id) && new.incarnation <= floor);
    let falls = falls || reused || after.rank_incarnation_floor < floor;
    let osd_falls =
        before.osds.iter().any(|(id, osd)| after.osds.get(id).is_some_and(|new| new.incarnation < osd.incarnation));
    require(!falls && !osd_falls, "incarnations never fall", || "a daemon".to_owned())
}
