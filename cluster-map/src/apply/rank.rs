//! Ranks: processes for slots, and the root subtree.

use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::{Epoch, Ino, Rank};

use super::{Applied, CHANGED, UNCHANGED, check_address, check_token};
use crate::command::{CommandError, CommandValue, DaemonState, RegisterRank, RemoveDaemon};
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
        // Fences the old process (R2, R3).
        for subtree in map.subtrees.values_mut().filter(|subtree| subtree.owner == rank) {
            subtree.epoch = Epoch(subtree.epoch.0 + 1);
        }
    }
    map.subtrees.entry(ROOT_SUBTREE).or_insert_with(root);
    Ok((true, value))
}

fn root() -> Subtree {
    Subtree { root: Ino::ROOT, epoch: Epoch(1), path_hint: b"/".to_vec(), route: 1, ..Subtree::default() }
}

pub(super) fn set_state(map: &mut ClusterMap, command: DaemonState, up: bool) -> Applied {
    let rank = Rank(command.id);
    let info = map.ranks.get_mut(&rank).ok_or_else(|| CommandError::Unknown(rank.to_string()))?;
    if info.incarnation != command.incarnation {
        let what = format!("the incarnation of {rank}");
        return Err(CommandError::Stale { what, have: info.incarnation, given: command.incarnation });
    }
    if info.up == up {
        return Ok(UNCHANGED);
    }
    info.up = up;
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
    Ok(CHANGED)
}
