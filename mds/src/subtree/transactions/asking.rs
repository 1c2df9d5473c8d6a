//! What a transaction asks of others: the other subtrees, and the map.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use pando_cluster_map::{Decision, TransactionId};
use pando_mds_core::transaction::all_reparenting;
use pando_mon_client::MapWatch;
use pando_proto::mds::{
    Crossing, Gift, LinkChange, PrepareRequest, PrepareResponse, TransactionRecord, prepare_response,
};
use pando_proto::mon::{DecideTransactionRequest, ReparentSubtree, TransactionParticipant};
use pando_proto::{Epoch, Error, Reason, SubtreeId};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::io::{Mons, Peers};
use crate::subtree::routes::raise;

/// For all others to prepare, with all repetitions.
const PATIENCE: Duration = Duration::from_secs(4);
/// For one call.
const CALL: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// A participant that is prepared and hears nothing for so long has the map abort.
const SILENCE: Duration = Duration::from_secs(6);

/// What the other subtrees say.
pub(crate) enum Answer {
    /// All are prepared.
    Prepared(Prepared),
    /// It is so already.
    Unchanged(Asked),
    /// No.
    Refused(Error, Asked),
    /// There are other locks there, or something is elsewhere by now.
    Busy(Asked),
    /// The new name goes on in another subtree.
    Elsewhere(Box<Crossing>, Asked),
    /// One does not answer, and may be prepared.
    Lost(Error, Asked),
}

/// Those that may be prepared.
pub(crate) type Asked = SmallVec<[SubtreeId; 2]>;

#[derive(Default)]
pub(crate) struct Prepared {
    /// Of those that are prepared.
    pub epochs: SmallVec<[(SubtreeId, Epoch); 2]>,
    /// Of the subtrees whose roots get other names.
    pub routes: SmallVec<[(SubtreeId, u64); 2]>,
    /// What comes in exchange.
    pub gift: Option<Gift>,
    /// Those that gave no answer to one of the tries, and may be prepared whatever they answered to others.
    pub doubtful: Asked,
}

pub(super) struct Asking {
    pub mons: Rc<dyn Mons>,
    pub peers: Rc<dyn Peers>,
    pub maps: MapWatch,
    /// R16: the ways to them change.
    pub roots: SmallVec<[SubtreeId; 2]>,
    /// To the subtree of the other name, if there is one.
    pub request: Option<PrepareRequest>,
    /// For the homes of inodes.
    pub wanted: Vec<(SubtreeId, LinkChange)>,
    /// What they are asked, without the change.
    pub bare: PrepareRequest,
}

/// Why not all are prepared.
enum Not {
    Refused(Error),
    Busy,
    Unchanged,
    Elsewhere(Box<Crossing>),
    Lost(Error),
}

impl Asking {
    pub async fn ask(mut self) -> Answer {
        let deadline = Instant::now() + PATIENCE;
        let mut prepared = Prepared::default();
        let not = match self.ask_all(deadline, &mut prepared).await {
            Ok(()) => return Answer::Prepared(prepared),
            Err(not) => not,
        };
        let mut asked: Asked = prepared.epochs.iter().map(|(subtree, _)| *subtree).collect();
        asked.extend(prepared.doubtful);
        match not {
            Not::Refused(error) => Answer::Refused(error, asked),
            Not::Busy => Answer::Busy(asked),
            Not::Unchanged => Answer::Unchanged(asked),
            Not::Elsewhere(crossing) => Answer::Elsewhere(crossing, asked),
            Not::Lost(error) => {
                asked.extend(self.request.map(|request| SubtreeId(request.subtree)));
                asked.extend(self.wanted.iter().map(|(subtree, _)| *subtree));
                Answer::Lost(error, asked)
            }
        }
    }

    async fn ask_all(&mut self, deadline: Instant, prepared: &mut Prepared) -> Result<(), Not> {
        // Nobody is told a way in the meantime: the names are locked.
        self.raise(&self.roots, prepared).await?;
        if let Some(request) = &mut self.request {
            let subtree = SubtreeId(request.subtree);
            let response = prepare(&self.peers, &self.maps, request, deadline, &mut prepared.doubtful).await?;
            prepared.epochs.push((subtree, response.epoch));
            self.wanted.extend(response.wanted);
            prepared.gift = response.gift;
            if let Some(root) = prepared.gift.as_ref().map(|gift| gift.root).filter(|root| *root != 0) {
                self.raise(&[SubtreeId(root)], prepared).await?;
            }
        }
        let mut homes: BTreeMap<SubtreeId, Vec<LinkChange>> = BTreeMap::new();
        for (subtree, change) in &self.wanted {
            homes.entry(*subtree).or_default().push(change.clone());
        }
        for (home, links) in homes {
            let mut request = PrepareRequest { subtree: home.0, ..self.bare.clone() };
            let record = request.record.get_or_insert_default();
            record.links = links;
            for also in self.wanted.iter().map(|(subtree, _)| subtree.0).chain(prepared.epochs.iter().map(|it| it.0.0))
            {
                if !record.participants.contains(&also) {
                    record.participants.push(also);
                }
            }
            let response = prepare(&self.peers, &self.maps, &mut request, deadline, &mut prepared.doubtful).await?;
            prepared.epochs.push((home, response.epoch));
        }
        Ok(())
    }

    async fn raise(&self, roots: &[SubtreeId], prepared: &mut Prepared) -> Result<(), Not> {
        if roots.is_empty() {
            return Ok(());
        }
        let raising =
            raise(Rc::clone(&self.mons), Rc::clone(&self.peers), self.maps.clone(), roots.iter().copied().collect());
        raising.await.map_err(Not::Refused)?;
        let map = self.maps.current();
        let route = |root: &SubtreeId| map.subtrees.get(root).map_or(0, |subtree| subtree.route);
        prepared.routes.extend(roots.iter().map(|root| (*root, route(root))));
        Ok(())
    }
}

/// One that is prepared.
struct Ready {
    epoch: Epoch,
    wanted: Vec<(SubtreeId, LinkChange)>,
    gift: Option<Gift>,
}

/// Asks until there is an answer.
async fn prepare(
    peers: &Rc<dyn Peers>,
    maps: &MapWatch,
    request: &mut PrepareRequest,
    deadline: Instant,
    doubtful: &mut Asked,
) -> Result<Ready, Not> {
    let subtree = SubtreeId(request.subtree);
    loop {
        let map = maps.current();
        if !map.subtrees.contains_key(&subtree) {
            // Merged away since the name was found, or not known here yet: whose the name is, is asked anew.
            return Err(Not::Busy);
        }
        request.map_epoch = map.epoch.0;
        let error = match ask_once(peers, maps, subtree, request).await {
            Ok(response) => match response.answer {
                Some(prepare_response::Answer::PreparedEpoch(epoch)) => {
                    let wanted = response.wanted.into_iter();
                    let wanted = wanted.filter_map(|it| Some((SubtreeId(it.subtree), it.change?))).collect();
                    return Ok(Ready { epoch: Epoch(epoch), wanted, gift: response.gift });
                }
                Some(prepare_response::Answer::Refused(status)) => {
                    return Err(Not::Refused(Error::from_rpc_status(status)));
                }
                Some(prepare_response::Answer::Busy(_)) => return Err(Not::Busy),
                Some(prepare_response::Answer::Elsewhere(_)) => {
                    let crossing = response.crossing.map(Box::new);
                    return Err(crossing.map_or(Not::Busy, Not::Elsewhere));
                }
                Some(prepare_response::Answer::Unchanged(_)) => return Err(Not::Unchanged),
                None => Error::new(Reason::Unavailable, "the other rank gave an answer that is not known"),
            },
            Err(error) if !error.is_retryable() => return Err(Not::Refused(error)),
            Err(error) => {
                if !doubtful.contains(&subtree) {
                    doubtful.push(subtree);
                }
                error
            }
        };
        if Instant::now() >= deadline {
            let message = format!("{subtree}, into which this leads, is not ready: {}", error.message);
            return Err(Not::Lost(Error::new(Reason::Unavailable, message).retry_after(PAUSE)));
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
    let mut reparents = all_reparenting(record).map(|it| ReparentSubtree {
        child: it.child,
        route: it.route,
        from: it.from,
        parent: it.parent,
        parent_dir: it.parent_dir,
        name: it.name.clone(),
    });
    DecideTransactionRequest {
        id: Some(super::id_of(record).to_proto()),
        participants: record.participants.iter().map(participant).collect(),
        commit,
        reparent: reparents.next(),
        more: reparents.collect(),
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

/// The decision, for a participant that is prepared. If none comes it has the map abort; at once if the coordinator
/// has another epoch by now, or is gone: it proposes nothing any more under that of the transaction.
pub(super) async fn await_decision(
    mons: Rc<dyn Mons>,
    mut maps: MapWatch,
    id: TransactionId,
    abort: DecideTransactionRequest,
) -> Decision {
    let silence = tokio::time::sleep(SILENCE);
    tokio::pin!(silence);
    let was_there = maps.current().subtrees.contains_key(&id.coordinator);
    loop {
        let map = maps.current();
        if let Some(known) = map.transactions.get(&id) {
            return known.decision;
        }
        if map.subtrees.get(&id.coordinator).map_or(was_there, |coordinator| coordinator.epoch > id.epoch) {
            break;
        }
        tokio::select! {
            _ = maps.changed() => {}
            () = &mut silence => break,
        }
    }
    let (decision, epoch) = decide(&mons, abort).await;
    await_finished(maps, id, &[], epoch).await;
    decision
}

#[cfg(test)]
mod tests;
