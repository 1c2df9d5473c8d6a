//! One request, from its number to its definite outcome.

use std::sync::Arc;
use std::time::Duration;

use pando_proto::mds::{
    CloseRequest, Operation, OperationResult, Request, operation::Op, operation_result::Result as Answer,
};
use pando_proto::{Epoch, Error, Rank, Reason};

use super::Core;
use super::link::Reply;
use super::outgoing::Message;
use super::window::Number;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long an open that nobody waits for any more is followed, so that its handle gets closed.
const CLEANUP_LIMIT: Duration = Duration::from_secs(30);

/// A result and who gave it.
#[derive(Debug)]
pub(crate) struct Answered {
    pub result: Answer,
    pub rank: Rank,
    /// Of the process that answered.
    pub incarnation: u64,
    /// Of the process to which the request first went.
    pub first_incarnation: Option<u64>,
}

/// An operation on its way. Sent again under the same number until the outcome is known (R9).
pub(crate) struct Ticket {
    core: Arc<Core>,
    operation: Option<Operation>,
    /// Given up when the ticket is dropped.
    number: Option<Number>,
    /// Subtree and epoch of the first send (R10).
    first: Option<(u64, u64)>,
    first_incarnation: Option<u64>,
    last_error: Option<Error>,
    /// Runs only to close what nobody waits for.
    cleaning: bool,
}

enum Attempt {
    Done(Result<Answered, Error>),
    Again(Error),
}

impl Ticket {
    pub fn new(core: Arc<Core>, operation: Operation) -> Self {
        Self {
            core,
            operation: Some(operation),
            number: None,
            first: None,
            first_incarnation: None,
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
                Attempt::Again(error) => {
                    let wait = error.retry_after.unwrap_or(pause).min(LONGEST_PAUSE);
                    self.last_error = Some(error);
                    tokio::time::sleep(wait).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// The error of a call whose time is up.
    pub fn timed_out(&self, limit: Duration) -> crate::Error {
        let trouble = self.core.trouble().or_else(|| self.last_error.clone());
        crate::Error::timeout(limit, self.first.is_some(), trouble.as_ref())
    }

    async fn attempt(&mut self) -> Attempt {
        let id = match &self.number {
            Some(number) => number.id(),
            None => self.number.insert(self.core.window.take().await).id(),
        };
        let (rank, live) = match self.core.live_of_root().await {
            Ok(found) => found,
            Err(error) if error.reason == Reason::StaleSession => return Attempt::Done(Err(error)),
            Err(error) => return Attempt::Again(error),
        };
        let (subtree, subtree_epoch) = self.first.unwrap_or_else(|| self.core.root_subtree());
        let retry = self.first.is_some();
        let operation = self.operation.clone();
        let request = Request { id, subtree, subtree_epoch, retry, operation, ..Default::default() };
        let waiting = match live.pipe.start(id, Message::Request(request)) {
            Ok(waiting) => waiting,
            Err(error) => return Attempt::Again(error),
        };
        self.first = Some((subtree, subtree_epoch));
        self.first_incarnation.get_or_insert(live.incarnation);
        match waiting.await {
            Ok(Ok(Reply::Result(result))) => self.judge(result, rank, live.incarnation).await,
            Ok(Ok(Reply::Echo(_))) => Attempt::Done(Err(crate::Error::protocol("an echo for a request").into())),
            Ok(Err(error)) => Attempt::Again(error),
            Err(_) => Attempt::Again(Error::new(Reason::Unavailable, "the connection broke before the answer came")),
        }
    }

    async fn judge(&self, result: OperationResult, rank: Rank, incarnation: u64) -> Attempt {
        match result.result {
            None => Attempt::Done(Err(crate::Error::protocol("an empty result").into())),
            Some(Answer::Redirect(redirect)) => {
                // R14: first the map that the redirect speaks of, then the owner it names.
                if let Err(error) = self.core.map.wait_for(Epoch(redirect.map_epoch), LONGEST_PAUSE).await {
                    return Attempt::Again(error);
                }
                Attempt::Again(Error::new(Reason::NotOwner, format!("{rank} does not own the subtree any more")))
            }
            Some(Answer::Error(status)) => {
                let error = Error::from_rpc_status(status);
                if error.is_retryable() { Attempt::Again(error) } else { Attempt::Done(Err(error)) }
            }
            Some(result) => {
                Attempt::Done(Ok(Answered { result, rank, incarnation, first_incarnation: self.first_incarnation }))
            }
        }
    }

    /// Follows an open to its end, then closes what it opened.
    async fn clean_up(mut self, handle: u64) {
        self.cleaning = true;
        let opened = tokio::time::timeout(CLEANUP_LIMIT, self.drive()).await;
        if matches!(opened, Ok(Ok(_))) {
            let close = Operation { op: Some(Op::Close(CloseRequest { handle, report: None, ..Default::default() })) };
            let _ = self.core.run(close, CLEANUP_LIMIT).await;
        }
    }
}

impl Drop for Ticket {
    /// A call that was dropped or timed out. Its number is given up: a copy
    /// that still arrives may run or be refused, either is fine for nobody
    /// waits. Only an open leaves something behind.
    fn drop(&mut self) {
        let Some(number) = self.number.take() else { return };
        let operation = self.operation.take();
        let handle = match operation.as_ref().and_then(|operation| operation.op.as_ref()) {
            Some(Op::Open(open)) if self.first.is_some() && !self.cleaning => Some(open.handle),
            _ => None,
        };
        let runtime = tokio::runtime::Handle::try_current().ok();
        let (Some(handle), Some(runtime)) = (handle, runtime) else { return };
        let ticket = Self {
            core: Arc::clone(&self.core),
            operation,
            number: Some(number),
            first: self.first,
            first_incarnation: self.first_incarnation,
            last_error: None,
            cleaning: true,
        };
        runtime.spawn(ticket.clean_up(handle));
    }
}
