//! Transactions between subtrees: one command decides, and is remembered until all participants have done what was
//! decided (R17, R18).

use std::collections::BTreeSet;

use pando_proto::{Epoch, Ino, SubtreeId};

use super::{Applied, CHANGED, UNCHANGED};
use crate::command::{CommandError, CommandValue, DecideTransaction, FinishTransactions, Reparent};
use crate::map::{ClusterMap, Decision, Transaction, TransactionId};

/// Decisions that are remembered at once; beyond, nothing more is committed.
const MAX_TRANSACTIONS: usize = 4096;
/// What was aborted has to be remembered as well: there is room for as many again.
const MOST_TRANSACTIONS: usize = 2 * MAX_TRANSACTIONS;
/// Subtrees that one transaction changes.
const MAX_PARTICIPANTS: usize = 4;
/// Longest file name, in bytes.
const MAX_NAME: usize = 255;

/// The first decision stands; a later one is told what it is.
pub(super) fn decide(map: &mut ClusterMap, command: &DecideTransaction) -> Applied {
    let id = check(command)?;
    if let Some(known) = map.transactions.get(&id) {
        return Ok((false, CommandValue::Decided(known.decision)));
    }
    let limit = if command.commit { MAX_TRANSACTIONS } else { MOST_TRANSACTIONS };
    if map.transactions.len() >= limit {
        return Err(CommandError::TooMany("as many transactions between subtrees as it can remember"));
    }
    let decision = judge(map, command);
    if let Some(reparent) = &command.reparent {
        follow(map, reparent, decision == Decision::Committed);
    }
    let participants = command.participants.iter().map(|one| SubtreeId(one.subtree)).collect();
    map.transactions.insert(id, Transaction { decision, participants, finished: BTreeSet::new() });
    Ok((true, CommandValue::Decided(decision)))
}

/// Participants have done it. When all have, it is forgotten: nobody proposes it any more.
pub(super) fn finish(map: &mut ClusterMap, command: &FinishTransactions) -> Applied {
    let subtree = SubtreeId(command.subtree);
    let mut changed = false;
    for id in &command.transactions {
        let id = TransactionId::from(*id);
        if let Some(known) = map.transactions.get_mut(&id)
            && known.participants.contains(&subtree)
        {
            changed |= known.finished.insert(subtree);
        }
    }
    changed |= sweep(map);
    Ok(if changed { CHANGED } else { UNCHANGED })
}

/// What can be said without the map.
fn check(command: &DecideTransaction) -> Result<TransactionId, CommandError> {
    let invalid = |message: &str| Err(CommandError::Invalid(message.to_owned()));
    let Some(id) = command.id.map(TransactionId::from) else {
        return invalid("a decision names the transaction");
    };
    let distinct: BTreeSet<u64> = command.participants.iter().map(|one| one.subtree).collect();
    if distinct.len() != command.participants.len()
        || distinct.len() > MAX_PARTICIPANTS
        || !distinct.contains(&id.coordinator.0)
    {
        return invalid("the participants of a transaction are a few different subtrees, the coordinator among them");
    }
    if let Some(reparent) = &command.reparent {
        let name = reparent.name.as_slice();
        let plain = !name.is_empty() && name.len() <= MAX_NAME && !name.contains(&b'/') && !name.contains(&0);
        let sound = plain && name != b"." && name != b".." && Ino(reparent.parent_dir).is_valid();
        if !sound || !distinct.contains(&reparent.parent) || !distinct.contains(&reparent.from) {
            return invalid("a subtree gets a file name in a directory of a participant");
        }
    }
    Ok(id)
}

fn judge(map: &ClusterMap, command: &DecideTransaction) -> Decision {
    let holds = |subtree: u64, epoch: u64| {
        map.subtrees.get(&SubtreeId(subtree)).is_some_and(|found| found.epoch == Epoch(epoch))
    };
    if !command.commit || !command.participants.iter().all(|one| holds(one.subtree, one.epoch)) {
        return Decision::Aborted;
    }
    match &command.reparent {
        None => Decision::Committed,
        Some(reparent) => judge_reparent(map, reparent),
    }
}

/// R17. The route rises with every decision about the subtree: a late copy of one that is over finds another.
fn judge_reparent(map: &ClusterMap, reparent: &Reparent) -> Decision {
    let child = SubtreeId(reparent.child);
    let expected = map
        .subtrees
        .get(&child)
        .is_some_and(|found| found.route == reparent.route && found.parent == Some(SubtreeId(reparent.from)));
    if !expected {
        return Decision::Aborted;
    }
    let below = map.with_descendants([child]);
    if below.contains(&SubtreeId(reparent.parent)) { Decision::Cycle } else { Decision::Committed }
}

/// The map does what was decided about a subtree.
fn follow(map: &mut ClusterMap, reparent: &Reparent, committed: bool) {
    let child = SubtreeId(reparent.child);
    let raised = if committed { map.with_descendants([child]) } else { BTreeSet::from([child]) };
    for id in raised {
        if let Some(subtree) = map.subtrees.get_mut(&id) {
            subtree.route += 1;
        }
    }
    if let Some(subtree) = map.subtrees.get_mut(&child)
        && committed
    {
        subtree.parent = Some(SubtreeId(reparent.parent));
        subtree.parent_dir = Some(Ino(reparent.parent_dir));
        subtree.name.clone_from(&reparent.name);
    }
}

/// Forgets what nobody has to do any more. A subtree that was merged away was drained before.
pub(super) fn sweep(map: &mut ClusterMap) -> bool {
    let before = map.transactions.len();
    let subtrees = &map.subtrees;
    map.transactions.retain(|_, known| {
        known.participants.iter().any(|one| subtrees.contains_key(one) && !known.finished.contains(one))
    });
    map.transactions.len() != before
}
