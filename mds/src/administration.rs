//! What administrators and other ranks ask of this one: splits, merges, copies of caches, maps.

use std::sync::Arc;
use std::time::Duration;

use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::subtree_service_server::{SubtreeService, SubtreeServiceServer};
use pando_proto::mds::{
    AwaitMapRequest, AwaitMapResponse, ImportFrame, ImportResponse, MergeRequest, MergeResponse, PrepareRequest,
    PrepareResponse, SplitRequest, SplitResponse, Target, prepare_response,
};
use pando_proto::{Epoch, Error, MAX_MESSAGE_BYTES, Reason, SubtreeId};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, Streaming};

use crate::owner::Control;
use crate::rank::{Served, Shared};
use crate::subtree::{Find, Found, MapChanged, Prepare};

/// For a map that the caller has and this rank has not.
const MAP_WAIT: Duration = Duration::from_secs(5);
/// Subtrees that a path may cross.
pub(crate) const MAX_CROSSINGS: usize = 64;

pub(crate) struct Subtrees(Arc<Shared>);

pub(crate) fn service(shared: &Arc<Shared>) -> SubtreeServiceServer<Subtrees> {
    SubtreeServiceServer::new(Subtrees(Arc::clone(shared)))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

fn gone() -> Error {
    Error::new(Reason::Unavailable, "the subtree was given up meanwhile: try again")
}

/// Where a target without a session begins: at the root of a subtree of the map, or at the root of all.
pub(crate) fn subtree_of(shared: &Shared, target: &Target) -> SubtreeId {
    let map = shared.map.current();
    let at = |base: u64| map.subtrees.iter().find(|(_, subtree)| subtree.root.0 == base).map(|(id, _)| *id);
    let only = || {
        // An inode in the middle: the only subtree here, or the root, which knows the way.
        let served = shared.all_served();
        if served.len() == 1 { served.first().map(|(id, _)| *id) } else { None }
    };
    match target.base {
        0 => ROOT_SUBTREE,
        base => at(base).or_else(only).unwrap_or(ROOT_SUBTREE),
    }
}

/// Who serves a subtree, for somebody who asked here.
pub(crate) fn not_here(shared: &Shared, subtree: SubtreeId, target: &Target) -> Error {
    let map = shared.map.current();
    let place = match map.owner(subtree) {
        Some((rank, address)) => format!("{subtree} is served by {rank} at {address}"),
        None => format!("{subtree} is served by nobody at the moment"),
    };
    let path = String::from_utf8_lossy(&target.path);
    let message = format!("{place}: ask there, with base {} and path `{}`", target.base, path.escape_debug());
    Error::new(Reason::NotOwner, message)
}

impl Subtrees {
    async fn split_off(&self, mut target: Target) -> Result<(SubtreeId, Epoch), Error> {
        let mut subtree = subtree_of(&self.0, &target);
        for _ in 0..MAX_CROSSINGS {
            let served = self.0.served(subtree).ok_or_else(|| not_here(&self.0, subtree, &target))?;
            let (reply, found) = oneshot::channel();
            served.address.send(Find { target: target.clone(), reply }).await.map_err(|_| gone())?;
            match found.await.map_err(|_| gone())?? {
                Found::Elsewhere(crossing) => {
                    subtree = SubtreeId(crossing.subtree);
                    target = Target { base: crossing.base, path: crossing.path };
                }
                Found::Here(_) => {
                    let (reply, done) = oneshot::channel();
                    served
                        .control
                        .send(Control::Split { target, automatic: false, reply })
                        .await
                        .map_err(|_| gone())?;
                    return done.await.map_err(|_| gone())?;
                }
            }
        }
        Err(Error::posix(pando_proto::Errno::ELOOP))
    }

    async fn merge_back(&self, subtree: SubtreeId) -> Result<(SubtreeId, Epoch), Error> {
        if !self.0.map.current().subtrees.contains_key(&subtree) {
            return Err(Error::new(Reason::UnknownId, format!("there is no {subtree}")));
        }
        let here = Target::default();
        let served = self.0.served(subtree).ok_or_else(|| not_here(&self.0, subtree, &here))?;
        let (reply, done) = oneshot::channel();
        served.control.send(Control::Merge(reply)).await.map_err(|_| gone())?;
        done.await.map_err(|_| gone())?
    }

    async fn take_import(&self, mut frames: Streaming<ImportFrame>) -> Result<u64, Error> {
        let (mut items, mut source) = (0, None);
        let taken = async {
            while let Some(frame) = frames.message().await.map_err(|status| Error::from_tonic(&status))? {
                let subtree = SubtreeId(frame.subtree);
                source = Some((subtree, frame.move_id));
                let map = self.map_with_move(subtree, frame.move_id).await;
                items += frame.items.len() as u64;
                let last = self.0.imports.take_frame(frame, &map, self.0.rank, self.0.cache_bytes)?;
                if last {
                    return Ok(true);
                }
                // The other tasks of this thread go first (R27).
                tokio::task::yield_now().await;
            }
            Ok(false)
        };
        let taken = taken.await;
        if taken.is_err()
            && let Some((subtree, move_id)) = source
        {
            self.0.imports.abandon(subtree, move_id);
        }
        taken.map(|_| items)
    }

    /// A map that knows of the move, if one comes.
    async fn map_with_move(&self, subtree: SubtreeId, move_id: u64) -> Arc<pando_cluster_map::ClusterMap> {
        let map = self.0.map.current();
        if map.subtrees.get(&subtree).is_some_and(|found| found.move_id == move_id) {
            return map;
        }
        // A move is named by the epoch of the map in which it began.
        self.0.map.wait_for(Epoch(move_id), MAP_WAIT).await.unwrap_or(map)
    }
}

#[tonic::async_trait]
impl SubtreeService for Subtrees {
    async fn split(&self, request: Request<SplitRequest>) -> Result<Response<SplitResponse>, Status> {
        let target = request.into_inner().target;
        let target = target.ok_or_else(|| Error::new(Reason::InvalidRequest, "the request names no directory"))?;
        let (subtree, epoch) = self.split_off(target).await?;
        Ok(Response::new(SplitResponse { subtree: subtree.0, map_epoch: epoch.0 }))
    }

    async fn merge(&self, request: Request<MergeRequest>) -> Result<Response<MergeResponse>, Status> {
        let (_, epoch) = self.merge_back(SubtreeId(request.into_inner().subtree)).await?;
        Ok(Response::new(MergeResponse { map_epoch: epoch.0 }))
    }

    async fn import(&self, request: Request<Streaming<ImportFrame>>) -> Result<Response<ImportResponse>, Status> {
        let items = self.take_import(request.into_inner()).await?;
        Ok(Response::new(ImportResponse { items }))
    }

    async fn prepare(&self, request: Request<PrepareRequest>) -> Result<Response<PrepareResponse>, Status> {
        let request = request.into_inner();
        let subtree = SubtreeId(request.subtree);
        if request.subtree == 0 {
            return Err(Error::new(Reason::InvalidRequest, "the request names no subtree").into());
        }
        // R14: whoever asks has found the subtree here by that map.
        let map = self.0.map.wait_for(Epoch(request.map_epoch), MAP_WAIT).await?;
        let served = self.0.served(subtree).ok_or_else(|| not_here(&self.0, subtree, &Target::default()))?;
        let _ = served.address.send(MapChanged(map)).await;
        let (reply, answer) = oneshot::channel();
        served.address.send(Prepare { request, reply }).await.map_err(|_| gone())?;
        match answer.await.map_err(|_| gone())? {
            Ok(response) => Ok(Response::new(response)),
            Err(error) if error.is_retryable() => Err(error.into()),
            Err(error) => {
                let refused = prepare_response::Answer::Refused(error.to_rpc_status());
                Ok(Response::new(PrepareResponse { answer: Some(refused), ..Default::default() }))
            }
        }
    }

    async fn await_map(&self, request: Request<AwaitMapRequest>) -> Result<Response<AwaitMapResponse>, Status> {
        let map = self.0.map.wait_for(Epoch(request.into_inner().map_epoch), MAP_WAIT).await?;
        // R16: not the rank has to know it, but those who answer.
        let tell = |served: Served| served.address.send(MapChanged(Arc::clone(&map)));
        // All at once: each answer takes a round of the scheduler, which is long when all have much to do.
        let told: Vec<_> = self.0.all_served().into_iter().map(|(_, served)| tell(served)).collect();
        for one in told {
            let _ = one.await;
        }
        Ok(Response::new(AwaitMapResponse {}))
    }
}
