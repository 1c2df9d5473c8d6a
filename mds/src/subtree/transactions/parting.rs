//! The side of a transaction from which a name goes: the coordinator.

use std::rc::Rc;
use std::time::Duration;

use pando_cluster_map::TransactionId;
use pando_mds_core::api::{BatchId, Fetch, Reads};
use pando_mds_core::transaction::{Across, Checked, Directory, Holders, Refusal};
use pando_proto::mds::operation::Op;
use pando_proto::mds::{
    HandOver, NameComes, PrepareRequest, RenameMode, RenameRequest, Reparenting, Target, TransactionRecord,
    TransactionState,
};
use pando_proto::{Errno, Error, Ino, Reason};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::asking::{Answer, Asking};
use super::{MAX_OPEN, MAX_TRIES, Open, Role, Step, completed_of, id_of};
use crate::owner::Control;
use crate::subtree::commit::Then;
use crate::subtree::job::{Job, Work};
use crate::subtree::turn::overloaded;
use crate::subtree::{Event, Subtree};

/// Before a client repeats what met a split.
const SPLIT_PAUSE: Duration = Duration::from_millis(20);

impl Subtree {
    /// An operation is to become a transaction.
    pub(in crate::subtree) fn across(&mut self, mut job: Job, mut across: Box<Across>, reads: Reads) {
        self.track(&mut job);
        if self.transactions.waiting() >= MAX_OPEN {
            let error = overloaded("too many renames between subtrees are under way");
            return self.refuse_rename(job, error, Reads::new());
        }
        match self.leads_below_itself(&across) {
            Ok(true) if across.refusal.is_none() => {
                across.refusal = Some(Refusal { errno: Errno::EINVAL, after: Checked::Permission });
            }
            Ok(_) => {}
            Err(fetches) => {
                job.rounds += 1;
                return self.fetch(job, fetches);
            }
        }
        if across.refusal.is_some() || across.directory == Directory::Plain {
            return self.probe(job, &across, reads);
        }
        self.begin_transaction(job, across, reads);
    }

    /// Whether the new name is in what gets it, as far as this map knows (R17).
    fn leads_below_itself(&mut self, across: &Across) -> Result<bool, SmallVec<[Fetch; 2]>> {
        let map = &self.map;
        match across.directory {
            Directory::None => Ok(false),
            Directory::Root(root) => Ok(map.with_descendants([root]).contains(&across.to)),
            Directory::Plain => {
                // By which child of this subtree one gets there.
                let mut at = across.to;
                for _ in 0..=map.subtrees.len() {
                    match map.subtrees.get(&at).and_then(|subtree| subtree.parent) {
                        Some(parent) if parent == self.own.subtree => break,
                        Some(parent) => at = parent,
                        None => return Ok(false),
                    }
                }
                Ok(self.namespace.children_below(Ino(across.goes.ino))?.contains(&at))
            }
        }
    }

    /// Looks whether the other subtree would refuse it. Then a directory becomes a subtree, and the operation starts
    /// anew from the client.
    fn probe(&mut self, job: Job, across: &Across, reads: Reads) {
        let record = self.new_record(&job, across);
        let request = PrepareRequest { probe: true, ..self.request(&job, across, &record, &Holders::default()) };
        let asking = Asking {
            mons: Rc::clone(&self.outside.mons),
            peers: Rc::clone(&self.outside.peers),
            maps: self.maps.clone(),
            root: None,
            request: (across.to != self.own.subtree).then_some(request),
        };
        let (refusal, ino, control) = (across.refusal, across.goes.ino, self.control.clone());
        let id = job.id;
        self.transactions.waiting.insert(id, job);
        self.spawn(async move {
            let parted = match (asking.ask().await, refusal) {
                (Answer::Refused(error) | Answer::Lost(error), _) => Err(error),
                (Answer::Busy, _) => Ok(()),
                (Answer::Prepared { .. }, Some(refusal)) => Err(Error::posix(refusal.errno)),
                (Answer::Prepared { .. }, None) => {
                    let (reply, split) = oneshot::channel();
                    let target = Target { base: ino, ..Target::default() };
                    // When it is done, this actor is no more.
                    match control.send(Control::Split { target, automatic: true, reply }).await {
                        Ok(()) => split.await.unwrap_or_else(|_| Err(gone())).map(|_| ()).map_err(split_refused),
                        Err(_) => Err(gone()),
                    }
                }
            };
            Event::Parted(id, parted, reads)
        });
    }

    pub(in crate::subtree) fn parted(&mut self, job: u64, parted: Result<(), Error>, reads: Reads) {
        let Some(job) = self.transactions.waiting.remove(&job) else { return };
        match parted {
            Ok(()) => self.again(job),
            Err(error) => self.refuse_rename(job, error, reads),
        }
    }

    fn new_record(&self, job: &Job, across: &Across) -> TransactionRecord {
        let number = self.numbers.get() + 1;
        self.numbers.set(number);
        let here = across.to == self.own.subtree;
        let mut participants = vec![self.own.subtree.0];
        if !here {
            participants.push(across.to.0);
        }
        TransactionRecord {
            coordinator: self.own.subtree.0,
            epoch: self.own.epoch.0,
            number,
            participants,
            state: TransactionState::Prepared.into(),
            goes: Some(across.goes.clone()),
            comes: here.then(|| comes(across)),
            completed: completed_of(job),
            reparenting: self.reparenting(across),
            now: self.now,
            ..TransactionRecord::default()
        }
    }

    fn reparenting(&self, across: &Across) -> Option<Reparenting> {
        let Directory::Root(child) = across.directory else { return None };
        Some(Reparenting {
            child: child.0,
            // Known when it was raised.
            route: 0,
            from: self.own.subtree.0,
            parent: across.to.0,
            parent_dir: across.dir.0,
            name: across.name.clone(),
        })
    }

    fn request(&self, job: &Job, across: &Across, record: &TransactionRecord, holders: &Holders) -> PrepareRequest {
        let rename = match &job.work {
            Work::Operation(operation) => match &operation.op {
                Some(Op::Rename(rename)) => rename.clone(),
                _ => RenameRequest::default(),
            },
            _ => RenameRequest::default(),
        };
        let handles = holders.handles.iter().map(|one| HandOver {
            client_id: one.client.0,
            handle: one.handle,
            flags: one.flags,
            granted: one.granted,
            privileged: one.privileged,
        });
        // What goes here is none of the other's business.
        let record = TransactionRecord { goes: None, comes: Some(comes(across)), completed: None, ..record.clone() };
        PrepareRequest {
            subtree: across.to.0,
            map_epoch: 0,
            record: Some(record),
            no_replace: rename.mode == RenameMode::NoReplace as i32,
            caller: rename.caller,
            slash: across.slash,
            probe: false,
            refused_errno: across.refusal.map_or(0, |refusal| refusal.errno.0),
            refused_after: across.refusal.map_or(0, |refusal| refusal.after as u32),
            handles: handles.collect(),
            append_end: holders.append.0,
            appends_known: holders.append.1,
        }
    }

    fn begin_transaction(&mut self, job: Job, across: Box<Across>, reads: Reads) {
        let record = self.new_record(&job, &across);
        let id = id_of(&record);
        self.namespace.lock(&record);
        let settled = across.unsettled.is_empty();
        let role = Role::Coordinator { job: Some(job), across, epoch: None };
        let open = Open { record, holders: Holders::default(), role, reads, decision: None };
        self.transactions.open.insert(id, open);
        if settled {
            self.ask(id);
        }
    }

    /// The other subtree reads an inode from the pool: all that was done to it has to be there.
    pub(super) fn look_if_settled(&mut self, batch: BatchId) {
        let mut ready = Vec::new();
        for (id, open) in &mut self.transactions.open {
            if let Role::Coordinator { across, .. } = &mut open.role
                && across.unsettled.contains(&batch)
            {
                across.unsettled.retain(|one| *one != batch);
                if across.unsettled.is_empty() {
                    ready.push(*id);
                }
            }
        }
        for id in ready {
            self.ask(id);
        }
    }

    fn ask(&mut self, id: TransactionId) {
        let Some(open) = self.transactions.open.get(&id) else { return };
        let Role::Coordinator { job: Some(job), across, .. } = &open.role else { return };
        let holders = self.namespace.holders(Ino(across.goes.ino));
        let root = match across.directory {
            Directory::Root(root) => Some(root),
            Directory::None | Directory::Plain => None,
        };
        let other = across.to != self.own.subtree;
        let asking = Asking {
            mons: Rc::clone(&self.outside.mons),
            peers: Rc::clone(&self.outside.peers),
            maps: self.maps.clone(),
            root,
            request: other.then(|| self.request(job, across, &open.record, &holders)),
        };
        self.spawn(async move { Event::Transaction(id, Step::Asked(asking.ask().await)) });
    }

    pub(super) fn answered(&mut self, id: TransactionId, answer: Answer) {
        match answer {
            Answer::Prepared { epoch, route } => {
                let Some(open) = self.transactions.open.get_mut(&id) else { return };
                if let Some(reparenting) = &mut open.record.reparenting {
                    reparenting.route = route;
                }
                if let Role::Coordinator { epoch: known, .. } = &mut open.role {
                    *known = Some(epoch);
                }
                let change = self.namespace.remember(&open.record);
                let reads = open.reads.clone();
                let batch = self.admit(change, &reads, None);
                self.after_durable(batch, Then::Decide(id));
            }
            // Nobody else is prepared, and nothing is decided.
            Answer::Busy => {
                if let Some((job, _)) = self.give_up(id) {
                    self.again(job);
                }
            }
            Answer::Refused(error) => {
                if let Some((job, reads)) = self.give_up(id) {
                    self.refuse_rename(job, error, reads);
                }
            }
            // The other subtree may hold its locks: it hears from the map. Then the client is to try again.
            Answer::Lost(error) => {
                tracing::info!(subtree = %self.own.subtree, ?id, %error, "a rename between subtrees is given up");
                if let Some(Open { role: Role::Coordinator { job: Some(job), .. }, .. }) =
                    self.transactions.open.get(&id)
                {
                    self.transactions.tries.insert(job.id, MAX_TRIES);
                }
                self.decide(id, false);
            }
        }
    }

    fn give_up(&mut self, id: TransactionId) -> Option<(Job, Reads)> {
        let open = self.transactions.open.remove(&id)?;
        for ino in self.namespace.unlock(&open.record) {
            self.wake(ino);
        }
        match open.role {
            Role::Coordinator { job: Some(job), .. } => Some((job, open.reads)),
            _ => None,
        }
    }
}

fn comes(across: &Across) -> NameComes {
    NameComes {
        dir: across.dir.0,
        name: across.name.clone(),
        ino: across.goes.ino,
        kind: across.goes.kind,
        inode: across.inode.clone(),
        replaces: across.replaces.0,
    }
}

fn gone() -> Error {
    Error::new(Reason::Unavailable, "the subtree was given up meanwhile").retry_after(SPLIT_PAUSE)
}

/// Why the directory did not become a subtree.
fn split_refused(error: Error) -> Error {
    match error.reason {
        Reason::Overloaded | Reason::TooLarge => Error {
            message: format!("the directory cannot become a subtree, and so cannot move to another: {error}"),
            ..Error::posix(Errno::EXDEV)
        },
        _ => Error::new(Reason::Unavailable, error.message).retry_after(SPLIT_PAUSE),
    }
}
