//! A subtree becomes part of its parent (R11).

use std::rc::Rc;
use std::sync::Arc;

use actix::Addr;
use pando_cluster_map::ClusterMap;
use pando_proto::mon::MergeSubtreeRequest;
use pando_proto::{Epoch, Error, Reason, SubtreeId};
use tokio::sync::oneshot;

use super::{Ice, Left, NotDone, SPLIT_SLICE, Task, gone};
use crate::owner::{Outcome, Reply, Warm};
use crate::subtree::{MapChanged, Release, Released, Subtree};

/// Merges into the parent.
pub(crate) async fn merge(task: Task, reply: Reply) -> Outcome {
    let result = task.merge().await;
    if let Err(error) = &result {
        tracing::info!(subtree = %task.own.subtree, %error, "a merge was refused");
    }
    let _ = reply.send(result);
    Outcome::default()
}

/// The cache of a frozen subtree, which ends.
async fn release(address: &Addr<Subtree>) -> Option<Released> {
    let (reply, released) = oneshot::channel();
    address.send(Release(reply)).await.ok()?;
    released.await.ok()
}

impl Task {
    /// Merges the subtree into its parent, which is opened anew with what both had in memory.
    async fn merge(&self) -> Result<(SubtreeId, Epoch), Error> {
        let map = self.common.parts.map.current();
        let refused = |message: String| Error::new(Reason::InvalidRequest, message);
        let subtree = map.subtrees.get(&self.own.subtree).ok_or_else(gone)?;
        let parent =
            subtree.parent.ok_or_else(|| refused("the root subtree has no parent to merge into".to_owned()))?;
        if let Some((child, _)) = map.subtrees.iter().find(|(_, other)| other.parent == Some(self.own.subtree)) {
            let message = format!("{} has subtrees below it ({child}): merge them first", self.own.subtree);
            return Err(Error::new(Reason::InUse, message));
        }
        let Some(upper) = self.common.shared.served(parent) else {
            let message = format!("the parent {parent} is not served by {}: move one of both", self.common.shared.rank);
            return Err(Error::new(Reason::InUse, message));
        };
        let parent_epoch = map.subtrees.get(&parent).map_or(Epoch(0), |parent| parent.epoch);
        // R15: the inode of the root gets its name of this map before the subtree stands still.
        let _ = self.address.send(MapChanged(Arc::clone(&map))).await;
        let ice = Ice::new(&self.address, true).await?;
        let upper_ice = Ice::new(&upper.address, true).await?;
        let name = |map: &ClusterMap| {
            let found = map.subtrees.get(&self.own.subtree);
            found.map(|found| (found.parent, found.parent_dir, found.name.clone()))
        };
        if name(&map) != name(&self.common.parts.map.current()) {
            return Err(Error::new(Reason::Unavailable, "the subtree has another name by now: try again"));
        }
        let request = MergeSubtreeRequest {
            child: self.own.subtree.0,
            child_epoch: self.own.epoch.0,
            parent_epoch: parent_epoch.0,
        };
        let mons = Rc::clone(&self.common.parts.outside.mons);
        // The parent's owner may see the outcome in the map before we do: it leaves the cache to us.
        let claim = self.common.nursery.claim(parent);
        self.committing.set(true);
        ice.keep();
        upper_ice.keep();
        match self.settle(|| mons.merge(request)).await {
            Ok(epoch) => {
                self.await_map(epoch).await;
                if let Some(warm) = self.join(&upper.address, parent_epoch).await {
                    claim.leave(warm);
                }
                Ok((parent, epoch))
            }
            Err(NotDone { error, left }) => {
                self.committing.set(false);
                if left == Left::AsItWas {
                    ice.melt();
                }
                // What was merged away has raised the epoch of its parent.
                if left != Left::Gone {
                    upper_ice.melt();
                }
                Err(error)
            }
        }
    }

    /// The map has it: both caches become one. `None` if that of the parent is gone, or is not of the epoch that the
    /// merge was built on.
    async fn join(&self, upper: &Addr<Subtree>, parent_epoch: Epoch) -> Option<Warm> {
        let Released { own, namespace: mut whole } = release(upper).await?;
        let child = release(&self.address).await.filter(|child| child.own == self.own);
        if own.epoch != parent_epoch {
            return None;
        }
        let mut joining = whole.begin_join(child?.namespace);
        while whole.join_slice(&mut joining, SPLIT_SLICE) {
            tokio::task::yield_now().await;
        }
        whole.end_join(joining);
        whole.begin_epoch();
        // R11: the merge has raised the epoch by one. If more has happened since, the cache is of no use.
        Some(Warm { epoch: Epoch(parent_epoch.0 + 1), namespace: whole })
    }
}
