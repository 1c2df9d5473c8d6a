//! What the rank wants of its own subtrees without a person asking: what the balancer hints at, one after the other.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pando_proto::mds::Target;
use pando_proto::mon::SplitRequest;
use pando_proto::{Epoch, Error, Reason, SubtreeId};
use pando_rpc::Shutdown;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::owner::{Control, Reply};
use crate::rank::Shared;

/// Before a subtree that is busy, or is just being opened, is asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// So long a split of the balancer is asked for again.
const PATIENCE: Duration = Duration::from_secs(5);
/// Hints that wait.
const MAX_WAITING: usize = 256;

/// What is wanted, and of which subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hint {
    Split(SubtreeId, u64),
    Merge(SubtreeId),
}

/// Asks whoever looks after a subtree of this rank, again while that is at something else: it does one thing at a
/// time, and after each the subtree is opened anew.
///
/// Errors: what it was refused with; what it was refused with last, when the patience ends.
pub(crate) async fn ask(
    shared: &Shared,
    subtree: SubtreeId,
    patience: Duration,
    control: impl Fn(Reply) -> Control,
) -> Result<(SubtreeId, Epoch), Error> {
    let deadline = Instant::now() + patience;
    loop {
        let error = match ask_once(shared, subtree, &control).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let passing = matches!(error.reason, Reason::InUse | Reason::Unavailable | Reason::Overloaded);
        if !passing || Instant::now() + PAUSE >= deadline || shared.shutdown.is_stopping() {
            return Err(error);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn ask_once(
    shared: &Shared,
    subtree: SubtreeId,
    control: impl Fn(Reply) -> Control,
) -> Result<(SubtreeId, Epoch), Error> {
    let gone = || Error::new(Reason::Unavailable, format!("{subtree} is not served here at the moment"));
    // What it was merged into is not meant.
    if !shared.map.current().subtrees.contains_key(&subtree) {
        return Err(Error::new(Reason::UnknownId, format!("there is no {subtree} any more")));
    }
    let served = shared.served(subtree).ok_or_else(gone)?;
    let (reply, done) = oneshot::channel();
    served.control.send(control(reply)).await.map_err(|_| gone())?;
    done.await.map_err(|_| gone())?
}

/// Does what the balancer asks for, as far as it makes sense here.
pub(crate) async fn follow_hints(shared: Arc<Shared>, hints: mpsc::UnboundedReceiver<(Vec<SplitRequest>, Vec<u64>)>) {
    let shutdown: Shutdown = shared.shutdown.clone();
    tokio::select! {
        () = follow(&shared, hints) => {}
        () = shutdown.stopped() => {}
    }
}

async fn follow(shared: &Shared, mut hints: mpsc::UnboundedReceiver<(Vec<SplitRequest>, Vec<u64>)>) {
    let (mut queue, mut queued) = (VecDeque::new(), BTreeSet::new());
    loop {
        // A hint comes again while it is not followed: it is not to be done twice.
        let next = if queue.is_empty() { hints.recv().await } else { hints.try_recv().ok() };
        if let Some((splits, merges)) = next {
            let splits = splits.into_iter().map(|split| Hint::Split(SubtreeId(split.subtree), split.dir));
            let merges = merges.into_iter().map(|id| Hint::Merge(SubtreeId(id)));
            for hint in splits.chain(merges) {
                if queue.len() < MAX_WAITING && queued.insert(hint) {
                    queue.push_back(hint);
                }
            }
            continue;
        }
        let Some(hint) = queue.pop_front() else { return };
        queued.remove(&hint);
        follow_one(shared, hint).await;
    }
}

async fn follow_one(shared: &Shared, hint: Hint) {
    let outcome = match hint {
        Hint::Split(subtree, dir) => {
            let target = Target { base: dir, ..Target::default() };
            let split = |reply| Control::Split { target: target.clone(), automatic: true, reply };
            ask(shared, subtree, PATIENCE, split).await
        }
        // If it is still wanted it is hinted at again.
        Hint::Merge(subtree) => ask(shared, subtree, Duration::ZERO, Control::Merge).await,
    };
    if let Err(error) = outcome {
        tracing::info!(?hint, %error, "what the balancer asked for was not done");
    }
}
