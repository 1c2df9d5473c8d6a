//! Requests about subtrees: the commands they stand for, and waiting for the end of a move.

use std::time::Duration;

use pando_cluster_map::{
    CancelMove, ClusterMap, Command, CommitMove, DecideTransaction, DrainRank, FinishTransactions, MergeSubtree,
    Participant, PinSubtree, RaiseRoutes, RenewSubtree, Reparent, SplitSubtree, SpreadSubtree, StartMove,
    TransactionName, balancer,
};
use pando_proto::{Epoch, Error, Rank, Reason, SubtreeId, mon};
use tonic::metadata::MetadataMap;

use crate::mon::Mon;

/// How long a call waits for the end of a move at most.
const MOVE_LIMIT: Duration = Duration::from_secs(60);
/// Subtrees named in one request.
const MAX_NAMED: usize = 4096;
/// Transactions named in one request.
const MAX_FINISHED: usize = 512;

fn check_count(named: &[u64]) -> Result<(), Error> {
    if named.len() > MAX_NAMED {
        let message = format!("the request names {} subtrees: at most {MAX_NAMED}", named.len());
        return Err(Error::new(Reason::InvalidRequest, message));
    }
    Ok(())
}

pub(super) fn split(request: mon::SplitSubtreeRequest) -> Result<Command, Error> {
    check_count(&request.adopted)?;
    Ok(Command::SplitSubtree(SplitSubtree {
        parent: request.parent,
        parent_epoch: request.parent_epoch,
        root: request.root_ino,
        parent_dir: request.parent_dir,
        name: request.name.to_vec(),
        path_hint: request.path_hint.to_vec(),
        adopted: request.adopted,
        automatic: request.automatic,
    }))
}

pub(super) fn merge(request: mon::MergeSubtreeRequest) -> Command {
    let mon::MergeSubtreeRequest { child, child_epoch, parent_epoch } = request;
    Command::MergeSubtree(MergeSubtree { child, child_epoch, parent_epoch })
}

pub(super) fn renew(request: mon::RenewSubtreeRequest) -> Command {
    Command::RenewSubtree(RenewSubtree { subtree: request.subtree, epoch: request.epoch })
}

pub(super) fn commit_move(request: mon::CommitMoveRequest) -> Command {
    let mon::CommitMoveRequest { subtree, from, epoch, move_id } = request;
    Command::CommitMove(CommitMove { subtree, from, epoch, move_id })
}

pub(super) fn cancel_move(request: mon::CancelMoveRequest) -> Command {
    Command::CancelMove(CancelMove { subtree: request.subtree, move_id: request.move_id })
}

pub(super) fn raise_routes(request: mon::RaiseRoutesRequest) -> Result<Command, Error> {
    check_count(&request.subtrees)?;
    Ok(Command::RaiseRoutes(RaiseRoutes { subtrees: request.subtrees }))
}

fn name_of(id: &mon::TransactionId) -> TransactionName {
    TransactionName { coordinator: id.coordinator, epoch: id.epoch, number: id.number }
}

pub(super) fn decide(request: mon::DecideTransactionRequest) -> Command {
    let participant = |one: &mon::TransactionParticipant| Participant { subtree: one.subtree, epoch: one.epoch };
    let reparent = |it: mon::ReparentSubtree| Reparent {
        child: it.child,
        route: it.route,
        from: it.from,
        parent: it.parent,
        parent_dir: it.parent_dir,
        name: it.name.to_vec(),
    };
    Command::DecideTransaction(DecideTransaction {
        id: request.id.as_ref().map(name_of),
        participants: request.participants.iter().map(participant).collect(),
        commit: request.commit,
        reparent: request.reparent.map(reparent),
        more: request.more.into_iter().map(reparent).collect(),
    })
}

pub(super) fn finish(request: &mon::FinishTransactionsRequest) -> Result<Command, Error> {
    if request.transactions.len() > MAX_FINISHED {
        let message = format!("the request names {} transactions: at most {MAX_FINISHED}", request.transactions.len());
        return Err(Error::new(Reason::InvalidRequest, message));
    }
    let transactions = request.transactions.iter().map(name_of).collect();
    let (subtree, epoch) = (request.subtree, request.subtree_epoch);
    Ok(Command::FinishTransactions(FinishTransactions { subtree, transactions, epoch }))
}

/// Refuses a move that the balancer would undo at once: the subtree is pinned to another rank that can have it.
pub(super) fn check_move(map: &ClusterMap, request: mon::MoveSubtreeRequest) -> Result<(), Error> {
    let (id, to) = (SubtreeId(request.subtree), Rank(request.to));
    let usable = |rank: &Rank| map.ranks.get(rank).is_some_and(|info| info.up && !info.draining);
    match balancer::pinned_to(map, id).filter(usable).filter(|_| !request.to_merge) {
        Some(pin) if pin != to && map.ranks.contains_key(&to) => {
            let message =
                format!("{id} is pinned to {pin}, itself or by a subtree above it: pin it to {to}, or unpin it first");
            Err(Error::new(Reason::InvalidRequest, message))
        }
        _ => Ok(()),
    }
}

pub(super) fn start_move(request: mon::MoveSubtreeRequest) -> Command {
    Command::StartMove(StartMove { subtree: request.subtree, to: request.to, to_merge: request.to_merge })
}

pub(super) fn pin(request: mon::PinSubtreeRequest) -> Command {
    Command::PinSubtree(PinSubtree { subtree: request.subtree, rank: request.rank })
}

pub(super) fn spread(request: mon::SpreadSubtreeRequest) -> Command {
    Command::SpreadSubtree(SpreadSubtree { subtree: request.subtree, spread: request.spread })
}

pub(super) fn drain(request: mon::DrainRankRequest) -> Command {
    Command::DrainRank(DrainRank { rank: request.rank, draining: request.draining })
}

/// A move whose end somebody waits for.
pub(super) struct Awaited {
    pub(super) subtree: SubtreeId,
    pub(super) to: Rank,
    pub(super) move_id: u64,
    /// Of the map in which it began.
    pub(super) since: Epoch,
}

impl Awaited {
    /// The end, as a map shows it; `None` while the move is under way.
    fn outcome(&self, map: &ClusterMap) -> Option<Result<Epoch, Error>> {
        let Some(subtree) = map.subtrees.get(&self.subtree) else {
            let message = format!("the move was given up, and {} is part of its parent by now", self.subtree);
            return Some(Err(Error::new(Reason::UnknownId, message)));
        };
        if subtree.last_move == self.move_id || subtree.owner == self.to {
            return Some(Ok(map.epoch));
        }
        if subtree.move_id == self.move_id {
            return None;
        }
        let message = format!("the move was given up: {} is at {}", self.subtree, subtree.owner);
        Some(Err(Error::new(Reason::StaleEpoch, message).with_epoch(subtree.epoch.0)))
    }

    /// Waits for the end, not longer than the caller does.
    pub(super) async fn end(&self, mon: &Mon, limit: Duration) -> Result<Epoch, Error> {
        let mut map = mon.map.clone();
        let waited = async {
            mon.map_at(self.since).await?;
            loop {
                if let Some(outcome) = self.outcome(&map.borrow_and_update()) {
                    return outcome;
                }
                map.changed().await.map_err(|_| Error::new(Reason::Unavailable, "this mon is stopping"))?;
            }
        };
        tokio::time::timeout(limit, waited).await.unwrap_or_else(|_| {
            let message = format!("{} is still on its way to {}", self.subtree, self.to);
            Err(Error::new(Reason::Timeout, message))
        })
    }
}

/// The caller's deadline, as gRPC says it, or the limit of this service. A tenth earlier, so that the answer says more
/// than that the time is over.
pub(super) fn limit(metadata: &MetadataMap) -> Duration {
    let text = metadata.get("grpc-timeout").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1)).unwrap_or_default();
    let number = digits.parse::<u64>().ok().filter(|_| digits.len() <= 8);
    let given = number.and_then(|number| match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    });
    given.map_or(MOVE_LIMIT, |given| given.min(MOVE_LIMIT) * 9 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_waits_less_is_answered_sooner() {
        let limit_of = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            limit(&metadata)
        };
        assert_eq!(limit_of("1500m"), Duration::from_millis(1350));
        assert_eq!(limit_of("2S"), Duration::from_millis(1800));
        assert_eq!(limit_of("99999999H"), MOVE_LIMIT * 9 / 10);
        for nonsense in ["123456789S", "", "S", "5", "-1S", "x"] {
            assert_eq!(limit_of(nonsense), MOVE_LIMIT, "{nonsense}");
        }
        assert_eq!(limit(&MetadataMap::new()), MOVE_LIMIT);
    }
}
