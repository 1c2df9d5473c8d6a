//! Ranges of inos (R20).

use pando_proto::ids::{INO_NUMBER_BITS, SHARDS};
use pando_proto::{Ino, Rank, ShardId};

use super::{Applied, check_token};
use crate::command::{AllocateInos, CommandError, CommandValue};
use crate::map::{ClusterMap, InoGrant};

/// Numbers below are for Pando itself; 1 in shard 0 is the root.
const FIRST_NUMBER: u64 = 16;
const MAX_COUNT: u64 = 1 << 24;
/// Grants remembered for repeated calls. One that was forgotten gets a new range, which only wastes numbers.
const MAX_GRANTS: usize = 64;

pub(super) fn allocate(map: &mut ClusterMap, command: &AllocateInos) -> Applied {
    check_token("nonce", &command.nonce)?;
    if command.shard >= SHARDS || command.count == 0 {
        return Err(CommandError::Invalid(format!("shards are 0 to {}, and a range has at least one ino", SHARDS - 1)));
    }
    let rank = Rank(command.rank);
    let info = map.ranks.get(&rank).ok_or_else(|| CommandError::Unknown(rank.to_string()))?;
    if info.incarnation != command.incarnation {
        let what = format!("the incarnation of {rank}");
        return Err(CommandError::Stale { what, have: info.incarnation, given: command.incarnation });
    }
    let shard = ShardId(command.shard as u16);
    let repeated = |grant: &&InoGrant| {
        grant.nonce == command.nonce
            && (grant.rank, grant.incarnation, grant.first.shard()) == (rank, command.incarnation, shard)
    };
    if let Some(grant) = map.ino_grants.iter().find(repeated) {
        return Ok((false, CommandValue::Inos(grant.first, grant.count)));
    }
    let next = map.ino_cursors.get(&shard).copied().unwrap_or(FIRST_NUMBER);
    let count = command.count.min(MAX_COUNT).min((1 << INO_NUMBER_BITS) - next);
    let first = Ino::new(shard, next).filter(|_| count > 0).ok_or(CommandError::NoInosLeft(command.shard))?;
    map.ino_cursors.insert(shard, next + count);
    let grant = InoGrant { nonce: command.nonce.clone(), first, count, rank, incarnation: command.incarnation };
    map.ino_grants.push(grant);
    let surplus = map.ino_grants.len().saturating_sub(MAX_GRANTS);
    map.ino_grants.drain(..surplus);
    Ok((true, CommandValue::Inos(first, count)))
}
