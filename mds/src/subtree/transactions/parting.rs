//! The side of a transaction where the operation began: the coordinator.

use std::rc::Rc;
use std::time::Duration;

use pando_cluster_map::TransactionId;
use pando_mds_core::api::{self, BatchId, Fetch, Reads};
use pando_mds_core::transaction::{Across, Checked, Directory, Holders, How, Refusal};
use pando_mon_client::MapWatch;
use pando_proto::mds::{
    Coming, Crossing, FileKind, Gift, HandOver, NameComes, OperationResult, PrepareRequest, Reparenting, Target,
    TransactionRecord, TransactionState,
};
use pando_proto::{Errno, Error, Ino, Reason, SubtreeId};
use smallvec::{SmallVec, smallvec};
use tokio::sync::{mpsc, oneshot};

use super::asking::{Answer, Asked, Asking, Prepared};
use super::{MAX_OPEN, MAX_TRIES, Open, Role, Step, completed_of, holders_of, id_of};
use crate::owner::Control;
use crate::subtree::commit::Then;
use crate::subtree::job::Job;
use crate::subtree::turn::overloaded;
use crate::subtree::{Event, Subtree};

/// Before a client repeats what met a split.
const SPLIT_PAUSE: Duration = Duration::from_millis(20);

/// Why a directory did not become a subtree.
pub(crate) enum Unparted {
    /// The operation is refused.
    Refused(Error),
    /// The new name goes on in another subtree.
    Elsewhere(Box<Crossing>),
}

impl Subtree {
    /// An operation is to become a transaction.
    pub(in crate::subtree) fn across(&mut self, mut job: Job, mut across: Box<Across>, reads: Reads) {
        self.track(&mut job);
        if self.transactions.waiting() >= MAX_OPEN {
            let error = overloaded("too many operations between subtrees are under way");
            return self.refuse_across(job, error, Reads::new());
        }
        let to = across.there.as_ref().map_or(self.own.subtree, |there| there.subtree);
        match self.leads_below(across.directory, to) {
            Ok(true) if across.refusal.is_none() => {
                across.refusal = Some(Refusal { errno: Errno::EINVAL, after: Checked::Permission });
            }
            Ok(_) => {}
            Err(fetches) => {
                job.rounds += 1;
                return self.fetch(job, fetches);
            }
        }
        if across.refusal.is_some() || matches!(across.directory, Directory::Plain(_)) {
            return self.probe(job, &across, reads);
        }
        self.begin_transaction(Some(job), across, reads);
    }

    /// Whether a subtree is in a directory of this one that is to go there, as far as this map knows (R17).
    pub(super) fn leads_below(&mut self, directory: Directory, to: SubtreeId) -> Result<bool, SmallVec<[Fetch; 2]>> {
        let map = &self.map;
        match directory {
            Directory::None => Ok(false),
            Directory::Root(root) => Ok(map.with_descendants([root]).contains(&to)),
            Directory::Plain(ino) => {
                // By which child of this subtree one gets there.
                let mut at = to;
                for _ in 0..=map.subtrees.len() {
                    match map.subtrees.get(&at).and_then(|subtree| subtree.parent) {
                        Some(parent) if parent == self.own.subtree => break,
                        Some(parent) => at = parent,
                        None => return Ok(false),
                    }
                }
                Ok(self.namespace.children_below(ino)?.contains(&at))
            }
        }
    }

    /// Looks whether the other subtree would refuse it. Then a directory becomes a subtree, and the operation starts
    /// anew from the client.
    fn probe(&mut self, job: Job, across: &Across, reads: Reads) {
        let record = self.new_record(Some(&job), across);
        let mut asking = self.asking(Some(&job), across, &record, &Holders::default());
        asking.roots.clear();
        asking.wanted.clear();
        if let Some(request) = &mut asking.request {
            request.probe = true;
        }
        let (refusal, directory) = (across.refusal, across.directory);
        let (control, maps) = (self.control.clone(), self.maps.clone());
        let id = job.id;
        self.transactions.waiting.insert(id, job);
        self.spawn(async move {
            let parted = match (asking.ask().await, refusal) {
                (Answer::Refused(error, _) | Answer::Lost(error, _), _) => Err(Unparted::Refused(error)),
                (Answer::Elsewhere(crossing, _), _) => Err(Unparted::Elsewhere(crossing)),
                // Whatever it meets there now is met again.
                (Answer::Busy(_) | Answer::Unchanged(_), _) => Ok(()),
                (Answer::Prepared(_), Some(refusal)) => Err(Unparted::Refused(Error::posix(refusal.errno))),
                (Answer::Prepared(_), None) => match directory {
                    Directory::Plain(ino) => part(control, &maps, ino).await.map_err(Unparted::Refused),
                    Directory::None | Directory::Root(_) => Ok(()),
                },
            };
            Event::Parted(id, parted, reads)
        });
    }

    pub(in crate::subtree) fn parted(&mut self, job: u64, parted: Result<(), Unparted>, reads: Reads) {
        let Some(job) = self.transactions.waiting.remove(&job) else { return };
        match parted {
            Ok(()) => self.again(job),
            Err(Unparted::Refused(error)) => self.refuse_across(job, error, reads),
            Err(Unparted::Elsewhere(crossing)) => self.go_on(job, &crossing, reads),
        }
    }

    fn new_record(&self, job: Option<&Job>, across: &Across) -> TransactionRecord {
        let number = self.numbers.get() + 1;
        self.numbers.set(number);
        let mut participants = vec![self.own.subtree.0];
        let wanted = across.wanted.iter().map(|wanted| wanted.subtree);
        for subtree in across.there.iter().map(|there| there.subtree).chain(wanted) {
            if !participants.contains(&subtree.0) {
                participants.push(subtree.0);
            }
        }
        let (mut goes, mut comes) = (across.goes.iter().cloned(), across.comes.iter().cloned());
        let mut roots = across.roots.iter().cloned();
        TransactionRecord {
            coordinator: self.own.subtree.0,
            epoch: self.own.epoch.0,
            number,
            participants,
            state: TransactionState::Prepared.into(),
            goes: goes.next(),
            more_goes: goes.collect(),
            comes: comes.next(),
            more_comes: comes.collect(),
            links: across.links.to_vec(),
            completed: job.zip(across.reply.as_ref()).and_then(|(job, reply)| completed_of(job, reply)),
            reparenting: roots.next(),
            more_reparenting: roots.collect(),
            now: self.now,
            ..TransactionRecord::default()
        }
    }

    /// Whom to ask what. What happens here is none of the others' business.
    fn asking(&self, job: Option<&Job>, across: &Across, record: &TransactionRecord, holders: &Holders) -> Asking {
        let bare = TransactionRecord {
            coordinator: record.coordinator,
            participants: record.participants.clone(),
            state: record.state,
            epoch: record.epoch,
            number: record.number,
            now: record.now,
            ..TransactionRecord::default()
        };
        let bare = PrepareRequest { record: Some(bare), ..PrepareRequest::default() };
        Asking {
            mons: Rc::clone(&self.outside.mons),
            peers: Rc::clone(&self.outside.peers),
            maps: self.maps.clone(),
            roots: across.roots.iter().map(|root| SubtreeId(root.child)).collect(),
            request: request(across, &bare, holders).map(|request| by_the_way_of(job, across, request)),
            wanted: across.wanted.iter().map(|wanted| (wanted.subtree, wanted.change.clone())).collect(),
            bare,
        }
    }

    /// Without a job it is a step that others wait for.
    pub(super) fn begin_transaction(&mut self, job: Option<Job>, across: Box<Across>, reads: Reads) {
        let record = self.new_record(job.as_ref(), &across);
        let id = id_of(&record);
        self.namespace.lock(&record);
        let unsettled = across.unsettled.clone();
        let settled = unsettled.is_empty();
        let role = Role::Coordinator { job, across, epochs: SmallVec::new() };
        self.transactions.open.insert(id, Open { reads, unsettled, ..Open::new(record, role) });
        if settled {
            self.ask(id);
        }
    }

    /// The other subtree reads an inode from the pool: all that was done to it has to be there.
    pub(super) fn look_if_settled(&mut self, batch: BatchId) {
        let mut ready = Vec::new();
        for (id, open) in &mut self.transactions.open {
            if open.unsettled.contains(&batch) {
                open.unsettled.retain(|one| *one != batch);
                if open.unsettled.is_empty() {
                    ready.push((*id, matches!(open.role, Role::Coordinator { .. })));
                }
            }
        }
        for (id, coordinates) in ready {
            if coordinates { self.ask(id) } else { self.answer_prepared(id) }
        }
    }

    fn ask(&mut self, id: TransactionId) {
        let Some(open) = self.transactions.open.get(&id) else { return };
        let Role::Coordinator { job, across, .. } = &open.role else { return };
        let given = across.goes.iter().find(|goes| goes.gives);
        let holders = given.map(|goes| self.namespace.holders(Ino(goes.ino))).unwrap_or_default();
        let asking = self.asking(job.as_ref(), across, &open.record, &holders);
        self.spawn(async move { Event::Transaction(id, Step::Asked(Box::new(asking.ask().await))) });
    }

    pub(super) fn answered(&mut self, id: TransactionId, answer: Answer) {
        match answer {
            Answer::Prepared(prepared) => self.all_are_prepared(id, prepared),
            Answer::Unchanged(asked) if asked.is_empty() => {
                if let Some((job, across, reads)) = self.give_up(id) {
                    self.over(&job);
                    self.hold(job, OperationResult { result: across.reply }, reads, None);
                }
            }
            Answer::Busy(asked) if asked.is_empty() => {
                if let Some((job, ..)) = self.give_up(id) {
                    self.again(job);
                }
            }
            Answer::Refused(error, asked) if asked.is_empty() => {
                if let Some((job, _, reads)) = self.give_up(id) {
                    self.refuse_across(job, error, reads);
                }
            }
            Answer::Elsewhere(crossing, asked) if asked.is_empty() => {
                if let Some((job, _, reads)) = self.give_up(id) {
                    self.go_on(job, &crossing, reads);
                }
            }
            // Others may hold their locks, or take them when a late copy comes: they hear from the map. Then it is tried
            // anew, and has the same answer with no doubt left.
            Answer::Busy(asked) | Answer::Unchanged(asked) | Answer::Elsewhere(_, asked) => {
                self.abort(id, asked, None);
            }
            Answer::Refused(error, asked) => self.abort(id, asked, Some(error)),
            Answer::Lost(error, asked) => {
                tracing::info!(subtree = %self.own.subtree, ?id, %error, "an operation between subtrees is given up");
                // Then the client is to try again.
                if let Some(Open { role: Role::Coordinator { job: Some(job), .. }, .. }) =
                    self.transactions.open.get(&id)
                {
                    self.transactions.tries.insert(job.id, MAX_TRIES);
                }
                self.abort(id, asked, None);
            }
        }
    }

    /// The way to the new name leads on from the other subtree, by a symlink before a slash, or it has got another
    /// owner: the client goes that way.
    fn go_on(&mut self, job: Job, crossing: &Crossing, reads: Reads) {
        let crossing = api::Crossing {
            target: 1,
            subtree: SubtreeId(crossing.subtree),
            base: Ino(crossing.base),
            path: crossing.path.clone(),
            consumed: 0,
        };
        self.cross(job, smallvec![crossing], reads);
    }

    fn abort(&mut self, id: TransactionId, asked: Asked, refusal: Option<Error>) {
        let Some(open) = self.transactions.open.get_mut(&id) else { return };
        join(&mut open.record.participants, asked.into_iter());
        open.refusal = refusal;
        self.decide(id, false);
    }

    /// All others are: the decision may be made when this subtree is, too.
    fn all_are_prepared(&mut self, id: TransactionId, prepared: Prepared) {
        let Prepared { epochs, routes, gift, .. } = prepared;
        let own = self.own.subtree;
        let asked: Asked = epochs.iter().map(|(subtree, _)| *subtree).collect();
        let Some(open) = self.transactions.open.get_mut(&id) else { return };
        join(&mut open.record.participants, asked.iter().copied());
        if let Some(gift) = gift {
            let from = asked.first().copied().unwrap_or(own);
            match accept(&mut open.record, from, gift) {
                Ok(holders) => open.holders = holders,
                Err(error) => return self.abort(id, asked, Some(error)),
            }
        }
        let record = &mut open.record;
        for reparenting in record.reparenting.iter_mut().chain(&mut record.more_reparenting) {
            let route = routes.iter().find(|(child, _)| child.0 == reparenting.child);
            reparenting.route = route.map_or(0, |(_, route)| *route);
        }
        if let Role::Coordinator { epochs: known, .. } = &mut open.role {
            *known = epochs;
        }
        // It grew.
        self.namespace.lock(&open.record);
        let change = self.namespace.remember(&open.record);
        let reads = open.reads.clone();
        let batch = self.admit(change, &reads, None);
        self.after_durable(batch, Then::Decide(id));
    }

    fn give_up(&mut self, id: TransactionId) -> Option<(Job, Box<Across>, Reads)> {
        let open = self.transactions.open.remove(&id)?;
        for ino in self.namespace.unlock(&open.record, false) {
            self.wake(ino);
        }
        match open.role {
            Role::Coordinator { job: Some(job), across, .. } => Some((job, across, open.reads)),
            _ => None,
        }
    }
}

fn join(participants: &mut Vec<u64>, more: impl Iterator<Item = SubtreeId>) {
    for subtree in more {
        if !participants.contains(&subtree.0) {
            participants.push(subtree.0);
        }
    }
}

/// R16: the way by which the client came to the other name is judged there. What is not of the client's own choosing
/// comes by no way.
fn by_the_way_of(job: Option<&Job>, across: &Across, request: PrepareRequest) -> PrepareRequest {
    let chosen = across.there.as_ref().is_some_and(|there| there.how != How::Adopt);
    let (route, subtree) = job.filter(|_| chosen).map_or((0, 0), |job| (job.ways[1], job.second.0));
    PrepareRequest { route, route_subtree: subtree, ..request }
}

/// What the subtree of the other name is asked.
fn request(across: &Across, bare: &PrepareRequest, holders: &Holders) -> Option<PrepareRequest> {
    let there = across.there.as_ref()?;
    let handles = holders.handles.iter().map(hand_over);
    let how = match there.how {
        How::Exchange => Coming::Exchange,
        How::Link => Coming::Link,
        How::Replace | How::NoReplace | How::Adopt => Coming::Replace,
    };
    let mut record = bare.record.clone().unwrap_or_default();
    record.comes = Some(there.comes.clone());
    record.links = there.links.to_vec();
    let from = across.goes.first();
    Some(PrepareRequest {
        subtree: there.subtree.0,
        record: Some(record),
        no_replace: there.how == How::NoReplace,
        caller: across.caller.clone(),
        slash: there.slash,
        refused_errno: across.refusal.map_or(0, |refusal| refusal.errno.0),
        refused_after: across.refusal.map_or(0, |refusal| refusal.after as u32),
        handles: handles.collect(),
        append_end: holders.append.0,
        appends_known: holders.append.1,
        how: how.into(),
        from_dir: from.map_or(0, |goes| goes.dir),
        from_name: from.map(|goes| goes.name.clone()).unwrap_or_default(),
        ..PrepareRequest::default()
    })
}

pub(super) fn hand_over(one: &pando_mds_core::transaction::HandOver) -> HandOver {
    HandOver {
        client_id: one.client.0,
        handle: one.handle,
        flags: one.flags,
        granted: one.granted,
        privileged: one.privileged,
    }
}

/// What comes in exchange gets the name of what goes. Its handles.
fn accept(record: &mut TransactionRecord, from: SubtreeId, gift: Gift) -> Result<Holders, Error> {
    let invalid = || Error::new(Reason::Internal, "an exchange brings nothing that can have a name");
    let (Some(goes), Some(comes)) = (&record.goes, gift.comes) else { return Err(invalid()) };
    let kind = FileKind::try_from(comes.kind).unwrap_or(FileKind::Unspecified);
    if !Ino(comes.ino).is_valid() || kind == FileKind::Unspecified {
        return Err(invalid());
    }
    let (dir, name) = (goes.dir, goes.name.clone());
    if gift.root != 0 {
        record.more_reparenting.push(Reparenting {
            child: gift.root,
            // Known as it was raised.
            route: 0,
            from: from.0,
            parent: record.coordinator,
            parent_dir: dir,
            name: name.clone(),
        });
    }
    let NameComes { ino, kind, inode, .. } = comes;
    record.more_comes.push(NameComes { dir, name, ino, kind, inode, ..NameComes::default() });
    Ok(holders_of(gift.handles, (gift.append_end, gift.appends_known)))
}

/// A directory becomes a subtree. When that is done, this actor is no more.
pub(super) async fn part(control: mpsc::Sender<Control>, maps: &MapWatch, ino: Ino) -> Result<(), Error> {
    // Asked first: a split that the map refuses has frozen the subtree for nothing, and would do so again and again.
    if maps.current().is_full() {
        let message = "the directory cannot move to another subtree: it would have to become one itself, and the cluster \
                       has as many as it may; merge some (pando subtree merge)";
        return Err(Error { message: message.to_owned(), ..Error::posix(Errno::EXDEV) });
    }
    let (reply, split) = oneshot::channel();
    let target = Target { base: ino.0, ..Target::default() };
    match control.send(Control::Split { target, automatic: true, reply }).await {
        Ok(()) => split.await.unwrap_or_else(|_| Err(gone())).map(|_| ()).map_err(split_refused),
        Err(_) => Err(gone()),
    }
}

fn gone() -> Error {
    Error::new(Reason::Unavailable, "the subtree was given up meanwhile").retry_after(SPLIT_PAUSE)
}

/// The directory did not become a subtree this time. What may be in the way has gone, or is met, next time.
fn split_refused(error: Error) -> Error {
    Error::new(Reason::Unavailable, error.message).retry_after(SPLIT_PAUSE)
}
