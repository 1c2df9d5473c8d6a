//! What a transaction asks of others: the other subtree, and the map.

use std::rc::Rc;
use std::time::Duration;

use pando_cluster_map::{Decision, TransactionId};
use pando_mon_client::MapWatch;
use pando_proto::mds::{PrepareRequest, PrepareResponse, TransactionRecord, prepare_response};
use pando_proto::mon::{DecideTransactionRequest, ReparentSubtree, TransactionParticipant};
use pando_proto::{Epoch, Error, Reason, SubtreeId};
use tokio::time::Instant;

use crate::io::{Mons, Peers};
use crate::subtree::routes::raise;

/// For the other subtree to prepare, with all repetitions.
const PATIENCE: Duration = Duration::from_secs(4);
/// For one call.
const CALL: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// A participant that is prepared and hears nothing for so long has the map abort.
const SILENCE: Duration = Duration::from_secs(6);

/// What the other subtree says.
pub(crate) enum Answer {
    /// It is prepared, under this epoch. With the route of the subtree whose root gets another name.
    Prepared { epoch: Epoch, route: u64 },
    /// No, and nothing is prepared.
    Refused(Error),
    /// It meets other locks there, or the directory is elsewhere by now. Nothing is prepared.
    Busy,
    /// It may be prepared.
    Lost(Error),
}

pub(super) struct Asking {
    pub mons: Rc<dyn Mons>,
    pub peers: Rc<dyn Peers>,
    pub maps: MapWatch,
    /// R16: the way to it changes.
    pub root: Option<SubtreeId>,
    /// `None` if all is in one subtree.
    pub request: Option<PrepareRequest>,
}

impl Asking {
    pub async fn ask(self) -> Answer {
        let Self { mons, peers, maps, root, request } = self;
        let mut route = 0;
        if let Some(root) = root {
            // Nobody is told a way in the meantime: the name is locked.
            let raising = raise(mons, Rc::clone(&peers), maps.clone(), [root].into_iter().collect());
            if let Err(error) = raising.await {
                return Answer::Refused(error);
            }
            route = maps.current().subtrees.get(&root).map_or(0, |subtree| subtree.route);
        }
        match request {
            None => Answer::Prepared { epoch: Epoch(0), route },
            Some(request) => prepare(&peers, &maps, request, route).await,
        }
    }
}

/// Asks until there is an answer.
async fn prepare(peers: &Rc<dyn Peers>, maps: &MapWatch, mut request: PrepareRequest, route: u64) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    let subtree = SubtreeId(request.subtree);
    loop {
        request.map_epoch = maps.current().epoch.0;
        let error = match ask_once(peers, maps, subtree, &request).await {
            Ok(response) => match response.answer {
                Some(prepare_response::Answer::PreparedEpoch(epoch)) => {
                    return Answer::Prepared { epoch: Epoch(epoch), route };
                }
                Some(prepare_response::Answer::Refused(status)) => {
                    return Answer::Refused(Error::from_rpc_status(status));
                }
                Some(prepare_response::Answer::Busy(_) | prepare_response::Answer::Elsewhere(_)) => {
                    return Answer::Busy;
                }
                None => Error::new(Reason::Unavailable, "the other rank gave an answer that is not known"),
            },
            Err(error) if !error.is_retryable() => return Answer::Refused(error),
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            let message = format!("{subtree}, into which this leads, is not ready: {}", error.message);
            return Answer::Lost(Error::new(Reason::Unavailable, message).retry_after(PAUSE));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn ask_once(
    peers: &Rc<dyn Peers>,
    maps: &MapWatch,
    subtree: SubtreeId,
    request: &PrepareRequest,
) -> Result<PrepareResponse, Error> {
    let map = maps.current();
    let Some((_, address)) = map.owner(subtree) else {
        return Err(Error::new(Reason::Unavailable, format!("{subtree} is served by nobody at the moment")));
    };
    let asking = peers.prepare(address.to_owned(), request.clone());
    let answer = tokio::time::timeout(CALL, asking).await;
    answer.unwrap_or_else(|_| Err(Error::new(Reason::Unavailable, "the other rank does not answer")))
}

/// The proposal about a transaction.
pub(super) fn proposal(
    record: &TransactionRecord,
    commit: bool,
    epoch: impl Fn(SubtreeId) -> u64,
) -> DecideTransactionRequest {
    let participant = |id: &u64| TransactionParticipant { subtree: *id, epoch: epoch(SubtreeId(*id)) };
    DecideTransactionRequest {
        id: Some(super::id_of(record).to_proto()),
        participants: record.participants.iter().map(participant).collect(),
        commit,
        reparent: record.reparenting.as_ref().map(|it| ReparentSubtree {
            child: it.child,
            route: it.route,
            from: it.from,
            parent: it.parent,
            parent_dir: it.parent_dir,
            name: it.name.clone(),
        }),
    }
}

/// Repeats a proposal until a decision stands.
pub(super) async fn decide(mons: &Rc<dyn Mons>, mut request: DecideTransactionRequest) -> (Decision, Epoch) {
    loop {
        match mons.decide(request.clone()).await {
            Ok(decided) => return decided,
            Err(error) => {
                // No room for another commit; there is for what is aborted.
                if error.reason == Reason::Overloaded {
                    request.commit = false;
                }
                tracing::debug!(%error, "a decision is proposed again");
                tokio::time::sleep(error.retry_after.unwrap_or(PAUSE)).await;
            }
        }
    }
}

/// Ends when these have done, durably, what a map of this epoch or an earlier one has decided.
pub(super) async fn await_finished(mut maps: MapWatch, id: TransactionId, who: &[SubtreeId], epoch: Epoch) {
    loop {
        let map = maps.current();
        if map.epoch >= epoch && !who.iter().any(|subtree| map.is_unfinished(id, *subtree)) {
            return;
        }
        maps.changed().await;
    }
}

/// The decision, for a participant that is prepared. If none comes it has the map abort.
pub(super) async fn await_decision(
    mons: Rc<dyn Mons>,
    mut maps: MapWatch,
    id: TransactionId,
    abort: DecideTransactionRequest,
) -> Decision {
    let silence = tokio::time::sleep(SILENCE);
    tokio::pin!(silence);
    loop {
        if let Some(known) = maps.current().transactions.get(&id) {
            return known.decision;
        }
        tokio::select! {
            _ = maps.changed() => {}
            () = &mut silence => return decide(&mons, abort).await.0,
        }
    }
}
