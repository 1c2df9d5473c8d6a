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
use pando_proto::{Epoch, Errno, Error, Reason, SubtreeId};

use super::handles::{Next, Readiness, Term, not_in_the_map};
use super::link::Reply;
use super::outgoing::Message;
use super::ticket::{Answered, To};
use super::{Core, Serving, lock, not_its_owner};

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
        let due = lock(&self.handles).due(&map, self.client);
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
        let serving = self.serving(subtree).await?;
        if serving.subtree != subtree {
            return Err(not_in_the_map(subtree));
        }
        let term = Term { rank: serving.rank, incarnation: serving.live.incarnation, epoch: serving.epoch };
        // It does not rise any more: two subtrees that wait for each other come to an end also while maps change.
        let since = self.map.current().epoch;
        loop {
            let handles = lock(&self.handles).begin(&self.map.current(), subtree);
            for handles in handles.chunks(RECLAIM_CHUNK) {
                self.tell(&serving, handles).await?;
            }
            if !lock(&self.handles).named(subtree, term) {
                continue;
            }
            match self.others_asked(subtree, term, since).await {
                Next::Name => {}
                Next::End => {
                    self.tell(&serving, &[]).await?;
                    return Ok(term);
                }
                Next::Nothing => return Ok(term),
                Next::Wait(_) | Next::Over => return Err(not_its_owner(serving.rank)),
            }
        }
    }

    /// Waits until the owners of whom we believe handles were asked for them since the map of `since`; see
    /// [`Handles::next`](super::handles::Handles::next).
    async fn others_asked(self: &Arc<Self>, subtree: SubtreeId, term: Term, since: Epoch) -> Next {
        let mut map = self.map.clone();
        loop {
            let change = Arc::clone(&lock(&self.handles).changed);
            let changed = change.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match lock(&self.handles).next(&map.current(), subtree, term, since) {
                Next::Wait(start) => start.into_iter().for_each(|other| self.start_reclaim(other)),
                next => return next,
            }
            tokio::select! {
                () = changed => {}
                _ = map.changed() => {}
                () = tokio::time::sleep(LONGEST_PAUSE) => {}
            }
        }
    }

    /// Waits while a list of our handles is on its way: a close that overtakes it would be undone by it.
    pub(super) async fn lists_are_taken(&self, subtree: SubtreeId) {
        let change = Arc::clone(&lock(&self.handles).changed);
        loop {
            let changed = change.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !lock(&self.handles).is_listing(subtree) {
                return;
            }
            changed.await;
        }
    }

    async fn tell(self: &Arc<Self>, serving: &Serving, handles: &[ReclaimedHandle]) -> Result<(), Error> {
        let answer = tokio::time::timeout(RECLAIM_LIMIT, self.reclaim_until_taken(serving, handles)).await;
        let timeout = |_| Error::new(Reason::Timeout, "the rank did not take our handles back in time");
        self.learn_reclaimed(serving.subtree, answer.map_err(timeout)??);
        Ok(())
    }

    /// A rank says that it still waits for this session: it has opened these anew, and we may not know yet.
    pub(super) fn awaited_by(self: &Arc<Self>, subtrees: &[u64]) {
        let mut news = false;
        for subtree in subtrees {
            news |= lock(&self.handles).is_awaited(SubtreeId(*subtree));
        }
        if news {
            self.news.notify_one();
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
            to_subtree: serving.subtree.0,
            to_epoch: serving.epoch.0,
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
