//! The subtree stands still, and its cache goes elsewhere (R11, R12).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pando_mds_core::Namespace;
use pando_mds_core::api::{Located, Outcome as Decided};
use pando_mds_core::{DeltaSlices, Export as Copying};
use pando_proto::mds::{CacheItem, Crossing, Target};
use pando_proto::{ClientId, Error, Ino, Reason, SubtreeId};
use tokio::sync::oneshot;

use super::job::{Job, To, Work};
use super::reply::crossings_to_proto;
use super::{Subtree, turn};
use crate::takeover::Ownership;

/// Runs nothing from now on; answered when all that ran is durable.
pub(crate) struct Freeze {
    pub reply: oneshot::Sender<Result<(), Error>>,
    pub token: Token,
    /// Whoever opens the subtree next goes on with them.
    pub purges_may_go_on: bool,
}

/// Runs again, if this token froze it.
pub(crate) struct Thaw(pub Token);

/// Who froze a subtree; whether it stays so.
#[derive(Clone, Default)]
pub(crate) struct Token(Arc<AtomicBool>);

impl Token {
    pub fn keep(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn let_go(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    pub fn is_kept(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The frozen subtree ends here; its cache is handed out.
pub(crate) struct Release(pub oneshot::Sender<Released>);

/// The cache of a subtree as it was at the end of an epoch.
pub(crate) struct Released {
    pub own: Ownership,
    pub namespace: Namespace,
}

/// Which directory is meant. Answered also while the subtree is frozen.
pub(crate) struct Find {
    pub target: Target,
    pub reply: oneshot::Sender<Result<Found, Error>>,
}

/// A directory that may become a subtree.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub ino: Ino,
    pub parent_dir: Ino,
    pub name: bytes::Bytes,
    pub path_hint: bytes::Bytes,
    /// Child subtrees that lie below it.
    pub adopted: Vec<SubtreeId>,
}

pub(crate) enum Found {
    Here(Place),
    Elsewhere(Crossing),
}

/// The next part of the cache; answered at once.
pub(crate) struct Export(pub ExportStep, pub oneshot::Sender<Part>);

/// See [`Export`].
pub(crate) struct Part {
    /// `None` at the end of the step.
    pub items: Option<Vec<CacheItem>>,
    /// Changes that wait for the next step.
    pub noted: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ExportStep {
    /// Of everything, about so many bytes. The first begins the copy.
    Slice(usize),
    /// Of what changed since the last round, or since the start.
    Round(usize),
    /// The same; the subtree is frozen.
    Delta(usize),
    /// Nothing yet: how much is there?
    Look,
    /// Nobody wants it any more.
    Cancel,
}

/// Look at what the cache may have.
pub(crate) struct Press;

/// Whether operations run.
#[derive(Default)]
pub(super) enum Frost {
    #[default]
    Running,
    /// Waits for what is under way.
    Draining(Freeze),
    Frozen(Token),
}

/// A copy of the cache under way.
#[derive(Default)]
pub(super) enum Copy {
    #[default]
    None,
    Whole(Copying),
    Delta(DeltaSlices),
}

impl Subtree {
    pub(super) fn freeze(&mut self, freeze: Freeze) {
        if self.ending.is_some() || !matches!(self.frost, Frost::Running) {
            let message = format!("{} is being split, merged or moved: try again afterwards", self.own.subtree);
            let _ = freeze.reply.send(Err(Error::new(Reason::InUse, message)));
        } else if !self.is_quiet(freeze.purges_may_go_on) {
            // Nobody waits for that while nothing is served.
            let message = format!("{} has files on their way to objects, or being cut", self.own.subtree);
            let _ = freeze.reply.send(Err(Error::new(Reason::Unavailable, message)));
        } else {
            self.frost = Frost::Draining(freeze);
            self.turn_askers_away();
        }
    }

    fn is_quiet(&self, purges_may_go_on: bool) -> bool {
        if purges_may_go_on { self.namespace.is_quiet_but_for_purges() } else { self.namespace.is_quiet() }
    }

    pub(super) fn thaw(&mut self, Thaw(token): Thaw) {
        let by_this = match &self.frost {
            Frost::Running => false,
            Frost::Draining(freeze) => freeze.token.is(&token),
            Frost::Frozen(by) => by.is(&token),
        };
        if by_this {
            self.frost = Frost::Running;
            self.rename_root_if_due();
        }
    }

    /// At the end of a turn: is all durable that ran?
    pub(super) fn look_if_drained(&mut self) {
        let Frost::Draining(freeze) = &self.frost else { return };
        let busy = self.ending.is_some()
            || self.commits_in_flight > 0
            || !self.events.is_empty()
            || !self.pipeline.is_idle()
            || !self.is_quiet(freeze.purges_may_go_on)
            || self.transactions.is_busy();
        if busy {
            return;
        }
        if let Frost::Draining(freeze) = std::mem::take(&mut self.frost)
            // If nobody waits any more it goes on.
            && freeze.reply.send(Ok(())).is_ok()
        {
            self.frost = Frost::Frozen(freeze.token);
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.frost, Frost::Running)
    }

    /// All that ran is durable, and nothing runs.
    pub(super) fn is_frozen(&self) -> bool {
        matches!(self.frost, Frost::Frozen(_))
    }

    pub(super) fn hand_out(&mut self, Release(reply): Release) {
        if !matches!(self.frost, Frost::Frozen(_)) || self.ending.is_some() {
            return;
        }
        let config = self.namespace.config().clone();
        let namespace = std::mem::replace(&mut self.namespace, Namespace::new(config));
        let _ = reply.send(Released { own: self.own, namespace });
        let message = "the subtree goes on under another epoch";
        self.lose(Error::new(Reason::Unavailable, message).retry_after(turn::AT_ONCE));
    }

    pub(super) fn find(&mut self, Find { target, reply }: Find) {
        let job = self.new_job(Work::Find(target), ClientId(0), 0, To::Finder(reply));
        self.finds.push_back(job);
    }

    /// `None` if it was answered.
    pub(super) fn run_find(&mut self, job: Job) -> Option<(Job, Decided)> {
        let Work::Find(target) = &job.work else { return None };
        let context = self.context(&job);
        let (found, job) = match self.namespace.locate(target, &context) {
            Located::Missing(fetches) => return Some((job, Decided::Missing(fetches))),
            Located::Refused(error) => (Err(error), job),
            Located::Cross(crossings) => match crossings_to_proto(&self.map, &crossings).into_iter().next() {
                Some(crossing) => (Ok(Found::Elsewhere(crossing)), job),
                None => (Err(Error::new(Reason::Internal, "a crossing that leads nowhere")), job),
            },
            Located::Directory { ino, parent_dir, name, path_hint, .. } => match self.namespace.children_below(ino) {
                Ok(adopted) => {
                    let above = self.map.subtrees.get(&self.own.subtree).map_or(&b""[..], |own| &own.path_hint);
                    let path_hint = [above.strip_suffix(b"/").unwrap_or(above), b"/", &path_hint[..]].concat();
                    let place = Place { ino, parent_dir, name, path_hint: path_hint.into(), adopted };
                    (Ok(Found::Here(place)), job)
                }
                Err(fetches) => return Some((job, Decided::Missing(fetches))),
            },
        };
        if job.rounds > 0 {
            self.namespace.unpin(job.id);
        }
        self.job_is_over(job.bytes);
        if let To::Finder(reply) = job.to {
            let _ = reply.send(found);
        }
        None
    }

    pub(super) fn export(&mut self, Export(step, reply): Export) {
        let items = match step {
            ExportStep::Slice(bytes) => {
                if matches!(self.copy, Copy::None) {
                    self.copy = Copy::Whole(self.namespace.begin_export());
                }
                match &mut self.copy {
                    Copy::Whole(copying) => self.namespace.export_slice(copying, bytes),
                    _ => None,
                }
            }
            ExportStep::Round(bytes) => match &mut self.copy {
                Copy::Whole(copying) => self.namespace.export_round(copying, bytes),
                _ => None,
            },
            ExportStep::Delta(bytes) => {
                self.copy = match std::mem::take(&mut self.copy) {
                    Copy::Whole(copying) => Copy::Delta(self.namespace.export_delta(copying)),
                    other => other,
                };
                match &mut self.copy {
                    Copy::Delta(slices) => slices.next(&mut self.namespace, bytes),
                    _ => None,
                }
            }
            ExportStep::Look => None,
            ExportStep::Cancel => {
                if let Copy::Whole(copying) = std::mem::take(&mut self.copy) {
                    self.namespace.cancel_export(copying);
                }
                None
            }
        };
        let _ = reply.send(Part { items, noted: self.namespace.noted() });
    }
}
