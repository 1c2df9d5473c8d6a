//! Owners of subtrees hear of this session's handles (R19).
//!
//! Every new owner, process or epoch of a subtree starts without handles, and keeps removed files until all sessions
//! have said what they have open, or that there is nothing. So each such change is answered in the background, also
//! where this session has nothing. Only operations by handle wait for it.

use std::sync::Arc;
use std::time::Duration;

use pando_proto::mds::{
    Operation, OperationResult, ReclaimRequest, ReclaimResponse, ReclaimedHandle, Request, operation::Op,
    operation_result::Result as Answer,
};
use pando_proto::{Errno, Error, Reason, SubtreeId};

use super::handles::{Readiness, Term, not_in_the_map};
use super::link::Reply;
use super::outgoing::Message;
use super::ticket::{Answered, To};
use super::{Core, Serving, lock};

/// For an owner to take handles back.
const RECLAIM_LIMIT: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Handles in one Reclaim.
const RECLAIM_CHUNK: usize = 4096;
/// Subtrees that a handle may be sent on to, one after the other.
const MOST_HOPS: usize = 16;

impl Core {
    /// Starts what a change of the map, or a Welcome, makes necessary.
    pub(super) fn reclaim_changed(self: &Arc<Self>) {
        let map = self.map.current();
        let due = lock(&self.handles).due(&map);
        for subtree in due {
            self.start_reclaim(subtree);
        }
    }

    fn start_reclaim(self: &Arc<Self>, subtree: SubtreeId) {
        let core = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                () = core.shutdown.stopped() => {}
                () = core.reclaim(subtree) => {}
            }
        });
    }

    /// Waits until the owner of a subtree knows our handles; how many reclaims have begun there.
    ///
    /// Errors: the map does not know the subtree; the session is over.
    pub(super) async fn reclaimed(self: &Arc<Self>, subtree: SubtreeId) -> Result<u64, Error> {
        loop {
            let map = self.map.current();
            let readiness = lock(&self.handles).readiness(&map, subtree);
            let mut ended = match readiness {
                Readiness::Ready(generation) => return Ok(generation),
                Readiness::Unknown => return Err(not_in_the_map(subtree)),
                Readiness::Wait { ended, start } => {
                    if start {
                        self.start_reclaim(subtree);
                    }
                    ended
                }
            };
            tokio::select! {
                _ = ended.changed() => {}
                () = self.shutdown.stopped() => return Err(self.over()),
            }
        }
    }

    /// Until the present owner knows all, or the subtree is gone.
    async fn reclaim(self: &Arc<Self>, subtree: SubtreeId) {
        let mut pause = FIRST_PAUSE;
        loop {
            let reached = self.try_reclaim(subtree).await;
            let reached =
                reached.inspect_err(|error| tracing::debug!(%subtree, %error, "handles are not reclaimed yet"));
            let map = self.map.current();
            if lock(&self.handles).end(&map, subtree, reached.ok()) {
                return;
            }
            self.map_changed_within(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Names all our handles, then sends an empty Reclaim: there are no more, this session is back.
    async fn try_reclaim(self: &Arc<Self>, subtree: SubtreeId) -> Result<Term, Error> {
        self.origin_reclaimed(subtree).await?;
        let serving = self.serving(subtree).await?;
        if serving.subtree != subtree {
            return Err(not_in_the_map(subtree));
        }
        let map = self.map.current();
        let handles = lock(&self.handles).begin(&map, subtree);
        for handles in handles.chunks(RECLAIM_CHUNK).chain([&[][..]]) {
            let reclaiming = self.reclaim_until_taken(&serving, handles);
            let answer = tokio::time::timeout(RECLAIM_LIMIT, reclaiming).await;
            let timeout = |_| Error::new(Reason::Timeout, "the rank did not take our handles back in time");
            self.learn_reclaimed(subtree, answer.map_err(timeout)??);
        }
        Ok(Term { rank: serving.rank, incarnation: serving.live.incarnation, epoch: serving.epoch })
    }

    /// A subtree is told after its parent, from which it was split off (one that has children is never merged away):
    /// handles come over from there, and must be named before this session says that there are no more.
    async fn origin_reclaimed(self: &Arc<Self>, subtree: SubtreeId) -> Result<(), Error> {
        let map = self.map.current();
        let Some(origin) = map.subtrees.get(&subtree).and_then(|subtree| subtree.parent) else { return Ok(()) };
        let needless = {
            let handles = lock(&self.handles);
            handles.was_told(subtree) || handles.is_empty()
        };
        if needless || !map.subtrees.contains_key(&origin) {
            return Ok(());
        }
        match Box::pin(self.reclaimed(origin)).await {
            // It was merged away meanwhile.
            Err(error) if error.reason == Reason::Unavailable => Ok(()),
            other => other.map(|_| ()),
        }
    }

    fn learn_reclaimed(self: &Arc<Self>, subtree: SubtreeId, answer: ReclaimResponse) {
        if answer.lost.is_empty() && answer.elsewhere.is_empty() {
            return;
        }
        {
            let mut handles = lock(&self.handles);
            for lost in answer.lost {
                tracing::warn!(handle = lost, "an open file is gone: its inode was lost with the rank");
                handles.lose(lost);
            }
            for moved in answer.elsewhere {
                if moved.subtree != subtree.0 {
                    handles.found_elsewhere(moved.handle, SubtreeId(moved.subtree));
                }
            }
        }
        self.reclaim_changed();
    }

    /// Asks again while the rank is not ready. Each time under a new number; see
    /// [`Window::take_beyond_limit`](super::window::Window::take_beyond_limit) for why not within the window.
    async fn reclaim_until_taken(
        &self,
        serving: &Serving,
        handles: &[ReclaimedHandle],
    ) -> Result<ReclaimResponse, Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.send_reclaim(serving, handles).await {
                Err(error) if error.is_retryable() && error.reason != Reason::NotOwner => error,
                other => return other,
            };
            let map = self.map.current();
            let now = map.subtrees.get(&serving.subtree).map(|subtree| (subtree.owner, subtree.epoch));
            if serving.live.pipe.is_closed() || now != Some((serving.rank, serving.epoch)) {
                return Err(error);
            }
            tokio::time::sleep(error.retry_after.unwrap_or(pause).min(LONGEST_PAUSE)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn send_reclaim(&self, serving: &Serving, handles: &[ReclaimedHandle]) -> Result<ReclaimResponse, Error> {
        let number = self.window.take_beyond_limit();
        let id = number.id();
        let operation = Some(Operation { op: Some(Op::Reclaim(ReclaimRequest { handles: handles.to_vec() })) });
        let request = Request {
            id,
            subtree: serving.subtree.0,
            subtree_epoch: serving.epoch.0,
            retry: false,
            operation,
            ..Default::default()
        };
        match serving.live.pipe.call(id, Message::Request(request)).await? {
            Reply::Result(OperationResult { result: Some(Answer::Reclaim(answer)) }) => Ok(answer),
            Reply::Result(OperationResult { result: Some(Answer::Error(status)) }) => {
                Err(Error::from_rpc_status(status))
            }
            Reply::Result(OperationResult { result: Some(Answer::Redirect(_)) }) => {
                Err(Error::new(Reason::NotOwner, "the rank does not own the subtree"))
            }
            _ => Err(Error::new(Reason::Internal, "the rank's answer to Reclaim makes no sense")),
        }
    }

    /// Remembers an open handle. If its subtree was reclaimed since the open was first sent, the owner may know the
    /// open only from what was remembered of it, and not the handle: then it is told of this one.
    ///
    /// Errors: ESTALE if the file was lost meanwhile.
    pub async fn keep_handle(
        self: &Arc<Self>,
        handle: ReclaimedHandle,
        answered: &Answered,
        limit: Duration,
    ) -> crate::Result<()> {
        let mut subtree = answered.subtree;
        let generation = lock(&self.handles).keep(handle, subtree);
        if answered.first == (subtree, generation) {
            return Ok(());
        }
        for _ in 0..MOST_HOPS {
            let operation = Operation { op: Some(Op::Reclaim(ReclaimRequest { handles: vec![handle] })) };
            let answered = self.run(operation, To::Subtree(subtree), limit).await?;
            let Answer::Reclaim(answer) = answered.result else {
                return Err(crate::Error::protocol("the result of another operation"));
            };
            if answer.lost.contains(&handle.handle) {
                break;
            }
            let elsewhere = answer.elsewhere.iter().find(|moved| moved.handle == handle.handle);
            let Some(moved) = elsewhere else { return Ok(()) };
            subtree = SubtreeId(moved.subtree);
            lock(&self.handles).transfer(handle.handle, subtree);
        }
        self.forget_handle(handle.handle);
        Err(crate::Error::posix(Errno::ESTALE))
    }
}
