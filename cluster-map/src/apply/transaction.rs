//! Transactions between subtrees: one command decides, and is remembered until all participants have done what was
//! decided (R17, R18).

use std::collections::BTreeSet;

use pando_proto::{Epoch, Ino, SubtreeId, is_file_name};

use super::{Applied, CHANGED, UNCHANGED};
use crate::command::{CommandError, CommandValue, DecideTransaction, FinishTransactions, Reparent};
use crate::map::{ClusterMap, Decision, Transaction, TransactionId};

/// Decisions that are remembered at once; beyond, nothing more is committed.
const MAX_TRANSACTIONS: usize = 4096;
/// What was aborted has to be remembered as well: there is room for as many again.
const MOST_TRANSACTIONS: usize = 2 * MAX_TRANSACTIONS;
/// Subtrees that one transaction changes.
const MAX_PARTICIPANTS: usize = 4;
/// Roots that one transaction gives other names: two, when they are exchanged.
const MAX_REPARENTS: usize = 2;

/// The first decision stands; a later one is told what it is.
pub(super) fn decide(map: &mut ClusterMap, command: &DecideTransaction) -> Applied {
    let id = check(command)?;
    if let Some(known) = map.transactions.get(&id) {
        let decision = known.decision;
        let changed = decision != Decision::Committed && bar(map, id, command);
        return Ok((changed, CommandValue::Decided(decision)));
    }
    let limit = if command.commit { MAX_TRANSACTIONS } else { MOST_TRANSACTIONS };
    if map.transactions.len() >= limit {
        return Err(CommandError::TooMany("as many transactions between subtrees as it can remember"));
    }
    let decision = judge(map, command);
    follow(map, command, decision == Decision::Committed);
    let participants = command.participants.iter().map(|one| SubtreeId(one.subtree)).collect();
    map.transactions.insert(id, Transaction { decision, participants, finished: BTreeSet::new() });
    Ok((true, CommandValue::Decided(decision)))
}

/// R18: a proposal comes after it was decided that nothing happens - by a participant, which knows neither all others
/// nor what the map was to do. All that this one names have to hear it before it is forgotten, and the routes that this
/// one builds on go: a copy of it that comes when all have forgotten finds others.
fn bar(map: &mut ClusterMap, id: TransactionId, command: &DecideTransaction) -> bool {
    let mut changed = false;
    for reparent in command.reparents() {
        let child = map.subtrees.get_mut(&SubtreeId(reparent.child));
        if let Some(child) = child.filter(|child| child.route == reparent.route) {
            child.route += 1;
            changed = true;
        }
    }
    let named = command.participants.iter().map(|one| SubtreeId(one.subtree));
    // Others have nothing to do.
    let named = named.filter(|one| map.subtrees.contains_key(one));
    if let Some(known) = map.transactions.get_mut(&id) {
        let before = known.participants.len();
        known.participants.extend(named);
        changed |= known.participants.len() != before;
    }
    changed
}

/// Participants have done it. When all have, it is forgotten. Late copies of proposals may still come: such a one
/// changes nothing in the map, for it finds other routes, and nothing elsewhere, for there it is over.
pub(super) fn finish(map: &mut ClusterMap, command: &FinishTransactions) -> Applied {
    let subtree = SubtreeId(command.subtree);
    let superseded = |epoch: Epoch| command.epoch != 0 && epoch > Epoch(command.epoch);
    if map.subtrees.get(&subtree).is_some_and(|found| superseded(found.epoch)) {
        // R18: what was done under an earlier epoch the present owner knows, or finds.
        return Ok(UNCHANGED);
    }
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
    let children: BTreeSet<u64> = command.reparents().map(|reparent| reparent.child).collect();
    let count = command.reparents().count();
    if count > MAX_REPARENTS || children.len() != count {
        return invalid("a transaction gives two different subtrees other names at most");
    }
    for reparent in command.reparents() {
        let sound = is_file_name(&reparent.name) && Ino(reparent.parent_dir).is_valid();
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
    judge_reparents(map, command)
}

/// R17. The route rises with every decision by a proposal that names a subtree, whichever way it goes: a late copy of
/// one that is over finds another.
fn judge_reparents(map: &ClusterMap, command: &DecideTransaction) -> Decision {
    let expected = command.reparents().all(|reparent| {
        let found = map.subtrees.get(&SubtreeId(reparent.child));
        found.is_some_and(|found| found.route == reparent.route && found.parent == Some(SubtreeId(reparent.from)))
    });
    if !expected {
        return Decision::Aborted;
    }
    let ends_at_the_root = |reparent: &Reparent| ends_at_the_root(map, command, SubtreeId(reparent.child));
    if command.reparents().all(ends_at_the_root) { Decision::Committed } else { Decision::Cycle }
}

/// Whether the way up from a subtree ends, when all of the command is done.
fn ends_at_the_root(map: &ClusterMap, command: &DecideTransaction, child: SubtreeId) -> bool {
    let mut at = child;
    for _ in 0..=map.subtrees.len() {
        let moved = command.reparents().find(|reparent| SubtreeId(reparent.child) == at);
        let parent = match moved {
            Some(reparent) => Some(SubtreeId(reparent.parent)),
            None => map.subtrees.get(&at).and_then(|found| found.parent),
        };
        match parent {
            Some(parent) => at = parent,
            None => return true,
        }
    }
    false
}

/// The map does what was decided about subtrees.
fn follow(map: &mut ClusterMap, command: &DecideTransaction, committed: bool) {
    let children = command.reparents().map(|reparent| SubtreeId(reparent.child));
    let raised = if committed { map.with_descendants(children) } else { children.collect() };
    for id in raised {
        if let Some(subtree) = map.subtrees.get_mut(&id) {
            subtree.route += 1;
        }
    }
    for reparent in command.reparents().filter(|_| committed) {
        if let Some(subtree) = map.subtrees.get_mut(&SubtreeId(reparent.child)) {
            subtree.parent = Some(SubtreeId(reparent.parent));
            subtree.parent_dir = Some(Ino(reparent.parent_dir));
            subtree.name.clone_from(&reparent.name);
        }
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
