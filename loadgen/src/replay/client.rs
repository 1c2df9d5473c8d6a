//! One client of a replay: goes through the phases and judges each result.

use std::sync::atomic::Ordering;
use std::time::Instant;

use pando_proto::Errno;

use super::think::Thinking;
use super::{Shared, Tally, client_seed};
use crate::progress::Ticker;
use crate::report::Mismatch;
use crate::state::State;
use crate::target::{Session, Target};
use crate::trace::{Operation, Phase, PhaseName};

/// A result that is not as it must be.
pub(super) struct Wrong {
    pub(super) expected: String,
    pub(super) got: String,
    /// The target seems to be gone.
    pub(super) fatal: bool,
}

impl Wrong {
    pub(super) fn new(expected: impl Into<String>, got: impl Into<String>) -> Self {
        Self { expected: expected.into(), got: got.into(), fatal: false }
    }
}

/// A client at work.
pub(super) struct Client<'a, T: Target> {
    pub(super) shared: &'a Shared<'a, T>,
    pub(super) session: T::Session,
    pub(super) state: State<<T::Session as Session>::Handle>,
    pub(super) tally: Tally,
    number: usize,
}

/// Replays all phases.
///
/// Errors: what keeps the client from starting.
pub(super) async fn run<T: Target>(shared: &Shared<'_, T>, number: usize) -> anyhow::Result<Tally> {
    let mut started = start(shared, number).await;
    // All clients meet at each barrier, also those that could not start: none waits for ever.
    shared.barrier.wait().await;
    for (index, name) in shared.options.phases.iter().enumerate() {
        shared.barrier.wait().await;
        let phase = shared.trace.phases.iter().find(|phase| phase.name == *name);
        if let (Ok(client), Some(phase)) = (&mut started, phase) {
            client.phase(index, phase).await;
        }
    }
    shared.barrier.wait().await;
    match started {
        Ok(client) => client.finish().await,
        Err(error) => Err(error),
    }
}

/// Opens the session, makes the root, and tells the model what earlier runs have left.
async fn start<'a, T: Target>(shared: &'a Shared<'a, T>, number: usize) -> anyhow::Result<Client<'a, T>> {
    let session = shared.target.session(number).await?;
    let state = State::new(client_seed(shared.options.seed, number));
    let mut client = Client { shared, session, state, tally: Tally::default(), number };
    let first = shared.options.phases.first().copied().unwrap_or(PhaseName::Unpack);
    if first == PhaseName::Unpack {
        let made = client.session.make_root().await;
        if !made.as_ref().is_err_and(|failure| failure.errno == Errno::EEXIST) {
            made?;
        }
        let left = client.session.list(".").await?;
        anyhow::ensure!(
            left.is_empty(),
            "the directory client-{number} holds {} entries of an earlier run: remove it, or replay the later phases only",
            left.len()
        );
        if let Some(acks) = &shared.acks {
            acks.root(number)?;
        }
    } else {
        client.skip_before(first);
    }
    Ok(client)
}

impl<T: Target> Client<'_, T> {
    fn skip_before(&mut self, first: PhaseName) {
        let mut state: State<()> = State { model: self.state.model.clone(), handles: Default::default() };
        for phase in self.shared.trace.phases.iter().filter(|phase| phase.name < first) {
            for operation in &phase.operations {
                state.replay(self.shared.trace, operation);
            }
            state.end_phase();
        }
        self.state.model = state.model;
    }

    async fn phase(&mut self, index: usize, phase: &Phase) {
        let shared = self.shared;
        let mut ticker = Ticker::new(&shared.bar);
        let mut thinking = Thinking::new(shared.options.think);
        let start = Instant::now();
        for operation in &phase.operations {
            if self.tally.interrupted {
                break;
            }
            let outcome = self.perform(operation).await;
            shared.operations[index].fetch_add(1, Ordering::Relaxed);
            ticker.tick();
            match outcome {
                Ok(()) => self.acknowledge(operation),
                Err(wrong) => self.mismatch(operation, wrong),
            }
            thinking.after_one().await;
        }
        self.tally.thought += thinking.slept;
        let open: Vec<_> = self.state.handles.keys().copied().collect();
        for handle in open {
            if let Some(handle) = self.state.closed(handle) {
                // Handles do not cross phases; a trace that leaves one open says nothing of its end.
                let _ = self.session.close(handle).await;
            }
        }
        shared.spans[index].add(start);
    }

    fn acknowledge(&mut self, operation: &Operation) {
        let Some(acks) = &self.shared.acks else { return };
        if operation.mutated()
            && let Err(error) = acks.acknowledged(self.number, self.shared.trace, operation)
        {
            self.tally.interrupted = true;
            tracing::error!(%error, "cannot write the list of acknowledged operations");
        }
    }

    fn mismatch(&mut self, operation: &Operation, wrong: Wrong) {
        self.tally.interrupted |= wrong.fatal;
        if let Some(acks) = &self.shared.acks
            && !wrong.fatal
            && let Err(error) = acks.mismatch(self.number, operation.line)
        {
            tracing::error!(%error, "cannot write the list of acknowledged operations");
        }
        // Without the target nothing can match: the reason to stop is no mismatch.
        if !wrong.fatal {
            self.shared.mismatches.add(Mismatch {
                client: self.number,
                line: operation.line,
                operation: self.shared.trace.describe(&operation.call),
                expected: wrong.expected,
                got: wrong.got,
            });
        } else {
            tracing::warn!(client = self.number, line = operation.line, got = wrong.got, "the target is gone");
        }
    }

    /// If the tree is empty again takes its root away, except where a later check wants to see it.
    async fn finish(mut self) -> anyhow::Result<Tally> {
        if self.tally.interrupted {
            return Ok(self.tally);
        }
        let options = self.shared.options;
        let ended = options.phases.last() == Some(&PhaseName::Remove) && !options.keep_roots;
        if ended && self.shared.acks.is_none() && self.shared.mismatches.count() == 0 {
            let removed = self.session.remove_root().await;
            // The root of a subtree stays until somebody merges it away.
            if !removed.as_ref().is_err_and(|failure| failure.errno == Errno::EBUSY) {
                removed?;
            }
        }
        self.session.end().await?;
        Ok(self.tally)
    }
}
