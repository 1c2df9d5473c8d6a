//! Ranks: processes for slots, and what becomes of their subtrees.

use std::collections::BTreeMap;

use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::{Epoch, Ino, Rank};

use super::{Applied, CHANGED, UNCHANGED, check_address, check_token};
use crate::command::{CommandError, CommandValue, DaemonState, DrainRank, RankDown, RegisterRank, RemoveDaemon};
use crate::map::{ClusterMap, RankInfo, Subtree};

/// Ranks are small numbers.
const MAX_RANK: u32 = 1023;

pub(super) fn register(map: &mut ClusterMap, command: &RegisterRank) -> Applied {
    check_token("boot id", &command.boot_id)?;
    check_address(&command.address)?;
    if command.rank > MAX_RANK {
        return Err(CommandError::Invalid(format!("ranks are numbered 0 to {MAX_RANK}")));
    }
    let rank = Rank(command.rank);
    let new = RankInfo { incarnation: map.rank_incarnation_floor, ..RankInfo::default() };
    let before = map.ranks.get(&rank).cloned().unwrap_or(new);
    let restarted = before.boot_id != command.boot_id;
    let info = RankInfo {
        address: command.address.clone(),
        up: true,
        incarnation: before.incarnation + u64::from(restarted),
        boot_id: command.boot_id.clone(),
        draining: before.draining,
    };
    let value = CommandValue::Rank(info.incarnation);
    if info == before {
        return Ok((false, value));
    }
    map.ranks.insert(rank, info);
    if restarted {
        let now = map.next_epoch();
        // Fences the old process (R2, R3). What was on its way to it has lost its copy there.
        for subtree in map.subtrees.values_mut() {
            if subtree.owner == rank {
                subtree.hand_to(rank, now);
            } else if subtree.move_id != 0 && subtree.moving_to == rank {
                subtree.stay();
            }
        }
    }
    let since = map.next_epoch();
    map.subtrees.entry(ROOT_SUBTREE).or_insert_with(|| root(rank, since));
    take_orphans(map, rank);
    Ok((true, value))
}

fn root(owner: Rank, since: Epoch) -> Subtree {
    let path_hint = b"/".to_vec();
    Subtree { root: Ino::ROOT, owner, epoch: Epoch(1), path_hint, route: 1, since, ..Subtree::default() }
}

/// Subtrees whose owner went down when no other rank was up.
fn take_orphans(map: &mut ClusterMap, rank: Rank) {
    let now = map.next_epoch();
    let ranks = &map.ranks;
    let is_up = |rank: &Rank| ranks.get(rank).is_some_and(|info| info.up);
    for subtree in map.subtrees.values_mut().filter(|subtree| !is_up(&subtree.owner)) {
        let before = subtree.owner;
        subtree.take_over(rank, now, before);
    }
}

/// The state of this very process.
pub(super) fn find(map: &mut ClusterMap, id: u32, incarnation: u64) -> Result<(Rank, &mut RankInfo), CommandError> {
    let rank = Rank(id);
    let info = map.ranks.get_mut(&rank).ok_or_else(|| CommandError::Unknown(rank.to_string()))?;
    if info.incarnation != incarnation {
        let what = format!("the incarnation of {rank}");
        return Err(CommandError::Stale { what, have: info.incarnation, given: incarnation });
    }
    Ok((rank, info))
}

/// The same process of a rank is back. It does not get back what others own by now.
pub(super) fn up(map: &mut ClusterMap, command: DaemonState) -> Applied {
    let (rank, info) = find(map, command.id, command.incarnation)?;
    if info.up {
        return Ok(UNCHANGED);
    }
    info.up = true;
    take_orphans(map, rank);
    Ok(CHANGED)
}

/// A rank's lease has ended: its subtrees go to others, if there are any (R13).
pub(super) fn down(map: &mut ClusterMap, command: &RankDown) -> Applied {
    let (rank, info) = find(map, command.id, command.incarnation)?;
    if !info.up {
        return Ok(UNCHANGED);
    }
    info.up = false;
    for subtree in map.subtrees.values_mut() {
        if subtree.move_id != 0 && (subtree.owner == rank || subtree.moving_to == rank) {
            subtree.stay();
        }
    }
    give_away(map, rank, command);
    Ok(CHANGED)
}

fn give_away(map: &mut ClusterMap, from: Rank, command: &RankDown) {
    let mut counts: BTreeMap<Rank, usize> = up_ranks(map).map(|rank| (rank, 0)).collect();
    for subtree in map.subtrees.values() {
        if let Some(count) = counts.get_mut(&subtree.owner) {
            *count += 1;
        }
    }
    let now = map.next_epoch();
    let named: BTreeMap<u64, Rank> = command.assignments.iter().map(|one| (one.subtree, Rank(one.rank))).collect();
    let ranks = &map.ranks;
    let drains = |rank: &Rank| ranks.get(rank).is_none_or(|info| info.draining);
    for (id, subtree) in map.subtrees.iter_mut().filter(|(_, subtree)| subtree.owner == from) {
        let fewest =
            || counts.iter().min_by_key(|(rank, count)| (drains(rank), **count, **rank)).map(|(rank, _)| *rank);
        let named = named.get(&id.0).copied().filter(|rank| counts.contains_key(rank));
        let Some(to) = named.or_else(fewest) else { return };
        subtree.take_over(to, now, from);
        *counts.entry(to).or_default() += 1;
    }
}

fn up_ranks(map: &ClusterMap) -> impl Iterator<Item = Rank> {
    map.ranks.iter().filter(|(_, info)| info.up).map(|(rank, _)| *rank)
}

/// Says that a rank is to be emptied, or no longer.
pub(super) fn drain(map: &mut ClusterMap, command: DrainRank) -> Applied {
    let rank = Rank(command.rank);
    let info = map.ranks.get_mut(&rank).ok_or_else(|| CommandError::Unknown(rank.to_string()))?;
    if info.draining == command.draining {
        return Ok(UNCHANGED);
    }
    info.draining = command.draining;
    for subtree in map.subtrees.values_mut() {
        if command.draining && subtree.move_id != 0 && subtree.moving_to == rank {
            subtree.stay();
        }
    }
    Ok(CHANGED)
}

/// Takes a rank off the map. Its number may be used again: by a process of a higher incarnation (R13).
pub(super) fn remove(map: &mut ClusterMap, command: RemoveDaemon) -> Applied {
    let rank = Rank(command.id);
    if command.id > MAX_RANK {
        return Err(CommandError::Unknown(rank.to_string()));
    }
    let Some(info) = map.ranks.get(&rank) else { return Ok(UNCHANGED) };
    if info.up {
        let message = format!("{rank} (at {}) holds a lease: stop its pando-mds first", info.address);
        return Err(CommandError::InUse(message));
    }
    if let Some((id, subtree)) = map.subtrees.iter().find(|(_, subtree)| subtree.owner == rank) {
        let hint = String::from_utf8_lossy(&subtree.path_hint);
        let message = format!("{rank} owns {id} (`{}`): move it to another rank first", hint.escape_debug());
        return Err(CommandError::InUse(message));
    }
    map.rank_incarnation_floor = map.rank_incarnation_floor.max(info.incarnation);
    map.ranks.remove(&rank);
    for subtree in map.subtrees.values_mut().filter(|subtree| subtree.pin == Some(rank)) {
        subtree.pin = None;
    }
    Ok(CHANGED)
}
