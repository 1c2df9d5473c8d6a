//! One request, from its number to its definite outcome.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::{
    CloseRequest, Operation, OperationResult, ReclaimedHandle, Redirect, Request, operation::Op,
    operation_result::Result as Answer,
};
use pando_proto::{Epoch, Errno, Error, Rank, Reason, SubtreeId};

use super::link::Reply;
use super::outgoing::Message;
use super::place::{Places, first_target};
use super::window::Number;
use super::{Core, Serving, lock, not_in_the_map, not_its_owner};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Crossings on the way to one target; more make no tree.
const MOST_CROSSINGS: u32 = 64;
/// Times that a request goes on at once, before it pauses.
const AT_ONCE: u32 = 8;
/// How long an open that nobody waits for any more is followed, so that its handle gets closed.
const CLEANUP_LIMIT: Duration = Duration::from_secs(30);

/// How a request finds its subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// By its targets' paths. What begins at an inode that is known by number does so in this subtree, as was last heard.
    Path(SubtreeId),
    /// Where this handle belongs.
    Handle(u64),
    /// It is told.
    Subtree(SubtreeId),
}

/// A result and who gave it.
#[derive(Debug)]
pub(crate) struct Answered {
    pub result: Answer,
    pub rank: Rank,
    /// That of the first send, or what it was merged into.
    pub subtree: SubtreeId,
    pub epoch: Epoch,
    /// Of an open: where it first went, and how many reclaims had begun there.
    pub first: (SubtreeId, u64),
}

/// An answer, and where the path ended.
pub(crate) struct Found {
    pub answered: Answered,
    /// What is left of the path in the subtree.
    pub path: Bytes,
}

/// A send that may still take effect (R10): until it is known not to, all others repeat it.
#[derive(Clone, Copy)]
struct Sent {
    subtree: SubtreeId,
    epoch: Epoch,
    first: (SubtreeId, u64),
}

/// An operation on its way. Sent again under the same number until the outcome is known (R9).
pub(crate) struct Ticket {
    core: Arc<Core>,
    operation: Operation,
    to: To,
    /// Given up when the ticket is dropped.
    number: Option<Number>,
    /// Where its targets stand; `None`: it has to set out (anew).
    places: Option<Places>,
    sent: Option<Sent>,
    /// Who was asked last.
    asked: Option<(SubtreeId, Rank)>,
    crossings: u32,
    at_once: u32,
    last_error: Option<Error>,
    /// Runs only to close what nobody waits for.
    cleaning: bool,
}

enum Attempt {
    Done(Result<Answered, Error>),
    /// After a pause.
    Again(Error),
    Onward,
}

impl From<Error> for Attempt {
    fn from(error: Error) -> Self {
        if error.is_retryable() { Self::Again(error) } else { Self::Done(Err(error)) }
    }
}

impl Ticket {
    pub fn new(core: Arc<Core>, operation: Operation, to: To) -> Self {
        Self {
            core,
            operation,
            to,
            number: None,
            places: None,
            sent: None,
            asked: None,
            crossings: 0,
            at_once: 0,
            last_error: None,
            cleaning: false,
        }
    }

    /// Sends until there is a definite answer. The caller bounds the time.
    pub async fn drive(&mut self) -> crate::Result<Answered> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.attempt().await {
                Attempt::Done(answer) => {
                    self.number = None;
                    return Ok(answer?);
                }
                Attempt::Onward => {}
                Attempt::Again(error) => {
                    let wait = error.retry_after.unwrap_or(pause).min(LONGEST_PAUSE);
                    self.last_error = Some(error);
                    self.pause(wait).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Waits, but not for a rank that has lost the subtree meanwhile.
    async fn pause(&mut self, wait: Duration) {
        let Some((subtree, rank)) = self.asked.take() else { return tokio::time::sleep(wait).await };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.core.moved_from(subtree, rank) => {}
        }
    }

    /// Goes on at once, but not for ever.
    fn onward(&mut self, why: Error) -> Attempt {
        self.at_once += 1;
        if self.at_once.is_multiple_of(AT_ONCE) {
            return Attempt::Again(why);
        }
        self.last_error = Some(why);
        Attempt::Onward
    }

    /// The error of a call whose time is up.
    pub fn timed_out(&self, limit: Duration) -> crate::Error {
        let subtree = self.target().unwrap_or(ROOT_SUBTREE);
        let trouble = self.core.trouble(subtree).or_else(|| self.last_error.clone());
        crate::Error::timeout(limit, self.sent.is_some(), trouble.as_ref())
    }

    /// Where the path ended.
    pub fn found(&mut self, answered: Answered) -> Found {
        let target = self.operation.op.as_mut().and_then(first_target).unwrap_or_default();
        Found { answered, path: target.path }
    }

    /// The subtree to ask, as far as it is settled.
    fn target(&self) -> Option<SubtreeId> {
        let sent = self.sent.map(|sent| sent.subtree);
        sent.or_else(|| match self.to {
            To::Path(_) => self.places.as_ref().map(Places::subtree),
            To::Handle(handle) => lock(&self.core.handles).subtree_of(handle).ok(),
            To::Subtree(subtree) => Some(subtree),
        })
    }

    fn place(&mut self) -> Result<SubtreeId, Error> {
        if let Some(sent) = self.sent {
            return Ok(sent.subtree);
        }
        match self.to {
            To::Subtree(subtree) => Ok(subtree),
            To::Handle(handle) => lock(&self.core.handles).subtree_of(handle),
            To::Path(start) => {
                let (core, operation) = (&self.core, &mut self.operation);
                let places = self.places.get_or_insert_with(|| match &mut operation.op {
                    Some(op) => Places::begin(op, start, &core.routes, &core.map.current()),
                    None => Places::default(),
                });
                Ok(places.subtree())
            }
        }
    }

    /// Forgets how far the paths have come. Only for what will not take effect any more.
    fn set_out_anew(&mut self) {
        self.sent = None;
        self.crossings = 0;
        if let To::Path(start) = &mut self.to {
            *start = ROOT_SUBTREE;
        }
        if let (Some(mut places), Some(op)) = (self.places.take(), self.operation.op.as_mut()) {
            places.go_back(op, &self.core.routes);
        }
    }

    async fn attempt(&mut self) -> Attempt {
        let id = match &self.number {
            Some(number) => number.id(),
            None => self.number.insert(self.core.window.take().await).id(),
        };
        let serving = match self.serving().await {
            Ok(serving) => serving,
            Err(error) => return error.into(),
        };
        let request = self.request(id, &serving);
        // Before it is sent: a reclaim that begins after this one is seen.
        let generation = if self.is_of_a_handle() { self.core.generation(serving.subtree) } else { 0 };
        let waiting = match serving.live.pipe.start(id, Message::Request(request)) {
            Ok(waiting) => waiting,
            Err(error) => return Attempt::Again(error),
        };
        self.asked = Some((serving.subtree, serving.rank));
        let first = (serving.subtree, generation);
        self.sent.get_or_insert(Sent { subtree: serving.subtree, epoch: serving.epoch, first });
        match waiting.await {
            Ok(Ok(Reply::Result(result))) => self.judge(result, &serving, generation).await,
            Ok(Ok(Reply::Echo(_))) => Attempt::Done(Err(crate::Error::protocol("an echo for a request").into())),
            Ok(Err(error)) => Attempt::Again(error),
            Err(_) => Attempt::Again(Error::new(Reason::Unavailable, "the connection broke before the answer came")),
        }
    }

    /// Whom to ask. What goes by handle waits until that owner was told of our handles (R19), nothing else does.
    async fn serving(&mut self) -> Result<Serving, Error> {
        let mut subtree = self.place()?;
        if self.sent.is_none() && matches!(self.to, To::Path(_)) && subtree != ROOT_SUBTREE {
            let map = self.core.map.current();
            if !map.subtrees.contains_key(&subtree) {
                // It was merged away, or the map is behind: in both cases the root knows the way.
                self.set_out_anew();
                return Err(not_in_the_map(subtree));
            }
        }
        while let (To::Handle(_), Some(present)) = (self.to, self.core.map.current().successor(subtree)) {
            self.core.reclaimed(present).await?;
            if matches!(self.operation.op, Some(Op::Close(_))) {
                self.core.lists_are_taken(present).await;
            }
            // It may have turned out meanwhile that the handle belongs elsewhere, or is lost.
            let before = std::mem::replace(&mut subtree, self.place()?);
            if before == subtree {
                break;
            }
        }
        self.core.serving(subtree).await
    }

    fn request(&self, id: u64, serving: &Serving) -> Request {
        let (route, (second_route, second_subtree)) = self.places.as_ref().map(Places::routes).unwrap_or_default();
        let (subtree, epoch) = self.sent.map_or((serving.subtree, serving.epoch), |sent| (sent.subtree, sent.epoch));
        Request {
            id,
            subtree: subtree.0,
            subtree_epoch: epoch.0,
            retry: self.sent.is_some(),
            operation: Some(self.operation.clone()),
            route,
            second_route,
            second_subtree: second_subtree.0,
            to_subtree: serving.subtree.0,
            to_epoch: serving.epoch.0,
        }
    }

    /// Whether reclaims that begin from now on matter to it.
    fn is_of_a_handle(&self) -> bool {
        matches!(self.to, To::Handle(_)) || matches!(self.operation.op, Some(Op::Open(_)))
    }

    async fn judge(&mut self, result: OperationResult, serving: &Serving, generation: u64) -> Attempt {
        match result.result {
            None => Attempt::Done(Err(crate::Error::protocol("an empty result").into())),
            Some(Answer::Redirect(redirect)) => self.redirected(redirect, serving).await,
            Some(Answer::Error(status)) => self.refused(Error::from_rpc_status(status), serving, generation),
            Some(result) => {
                let first = self.sent.map_or((serving.subtree, generation), |sent| sent.first);
                let (rank, subtree, epoch) = (serving.rank, serving.subtree, serving.epoch);
                Attempt::Done(Ok(Answered { result, rank, subtree, epoch, first }))
            }
        }
    }

    fn refused(&mut self, error: Error, serving: &Serving, generation: u64) -> Attempt {
        match (error.reason, self.to) {
            // R16: not done, and it will not be.
            (Reason::StaleRoute, To::Path(_)) => {
                self.set_out_anew();
                self.onward(error)
            }
            // R19: the subtree was opened anew, of which our map may not tell yet.
            (Reason::ReclaimFirst, To::Handle(_)) => {
                lock(&self.core.handles).distrust(serving.subtree, generation);
                self.onward(error)
            }
            _ => self.as_given(error).into(),
        }
    }

    fn as_given(&mut self, mut error: Error) -> Error {
        if let (Some(places), Some(op)) = (&self.places, self.operation.op.as_mut()) {
            places.name_as_given(op, &mut error);
        }
        error
    }

    async fn redirected(&mut self, redirect: Redirect, serving: &Serving) -> Attempt {
        if redirect.crossings.is_empty() {
            // R14: first the map that the redirect speaks of, then the owner it names.
            return match self.core.map.wait_for(Epoch(redirect.map_epoch), LONGEST_PAUSE).await {
                Err(error) => Attempt::Again(error),
                Ok(_) => self.onward(not_its_owner(serving.rank)),
            };
        }
        if let Err(error) = self.cross(&redirect) {
            return Attempt::Done(Err(error));
        }
        let map = self.core.map.current();
        let behind = redirect.crossings.iter().any(|crossing| {
            let known = map.subtrees.get(&SubtreeId(crossing.subtree));
            known.is_none_or(|known| known.epoch.0 < crossing.subtree_epoch || known.route < crossing.route)
        });
        drop(map);
        if behind && let Err(error) = self.core.map.wait_for(Epoch(redirect.map_epoch), LONGEST_PAUSE).await {
            return Attempt::Again(error);
        }
        self.crossings += 1;
        match self.crossings {
            MOST_CROSSINGS => Attempt::Done(Err(Error::posix(Errno::ELOOP))),
            count if count.is_multiple_of(AT_ONCE) => {
                Attempt::Again(Error::new(Reason::NotOwner, "the path leads from subtree to subtree"))
            }
            _ => Attempt::Onward,
        }
    }

    /// R10: the request was not done, and that send will not take effect any more; it goes on elsewhere.
    fn cross(&mut self, redirect: &Redirect) -> Result<(), Error> {
        self.sent = None;
        let nonsense = || Error::from(crate::Error::protocol("a crossing for a request without a path"));
        match self.to {
            To::Path(_) => {
                let (Some(places), Some(op)) = (self.places.as_mut(), self.operation.op.as_mut()) else {
                    return Err(nonsense());
                };
                places.cross(op, &redirect.crossings, &self.core.routes)?;
            }
            To::Handle(handle) => {
                let crossing = redirect.crossings.first().filter(|crossing| crossing.subtree != 0);
                let subtree = SubtreeId(crossing.ok_or_else(nonsense)?.subtree);
                lock(&self.core.handles).found_elsewhere(handle, subtree);
            }
            To::Subtree(_) => {
                let crossing = redirect.crossings.first().filter(|crossing| crossing.subtree != 0);
                self.to = To::Subtree(SubtreeId(crossing.ok_or_else(nonsense)?.subtree));
            }
        }
        Ok(())
    }

    /// Follows an open to its end, then closes what it opened.
    async fn clean_up(mut self, handle: u64) {
        self.cleaning = true;
        let opened = tokio::time::timeout(CLEANUP_LIMIT, self.drive()).await;
        let Ok(Ok(Answered { result: Answer::Open(open), subtree, .. })) = opened else { return };
        let ino = open.attr.map_or(0, |attr| attr.ino);
        let core = Arc::clone(&self.core);
        lock(&core.handles).keep(ReclaimedHandle { handle, ino, flags: 0 }, subtree);
        core.start_closing(handle);
        let close = Operation { op: Some(Op::Close(CloseRequest { handle, report: None, ino })) };
        let _ = core.run(close, To::Handle(handle), CLEANUP_LIMIT).await;
        core.forget_handle(handle);
    }
}

impl Drop for Ticket {
    /// A call that was dropped or timed out. Its number is given up: a copy
    /// that still arrives may run or be refused, either is fine for nobody
    /// waits. Only an open leaves something behind.
    fn drop(&mut self) {
        let Some(number) = self.number.take() else { return };
        let handle = match &self.operation.op {
            Some(Op::Open(open)) if self.sent.is_some() && !self.cleaning => open.handle,
            _ => return,
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut ticket = Self::new(Arc::clone(&self.core), std::mem::take(&mut self.operation), self.to);
        ticket.number = Some(number);
        ticket.places = self.places.take();
        ticket.sent = self.sent;
        ticket.cleaning = true;
        runtime.spawn(ticket.clean_up(handle));
    }
}
