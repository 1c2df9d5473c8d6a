//! The side of a transaction that is asked by another subtree: a participant.

use std::rc::Rc;

use bytes::Bytes;
use pando_cluster_map::TransactionId;
use pando_mds_core::api::Outcome;
use pando_mds_core::transaction::{Checked, Coming, Directory, Holders, How, Ready, Refusal, Welcome};
use pando_proto::mds::{
    Coming as Comes, Gift, LinkChange, NameComes, PrepareRequest, PrepareResponse, TransactionRecord, TransactionState,
    WantedLinks, prepare_response,
};
use pando_proto::{ClientId, Errno, Error, Ino, Reason, SubtreeId, is_file_name};
use tokio::sync::oneshot;

use super::parting::{hand_over, part};
use super::{MAX_OPEN, Open, Role, Step, asking, holders_of, id_of};
use crate::subtree::clients::stale_route;
use crate::subtree::commit::Then;
use crate::subtree::job::{Job, To, Work};
use crate::subtree::reply::crossings_to_proto;
use crate::subtree::turn::overloaded;
use crate::subtree::{Event, Subtree};

/// Handles that come with one inode.
const MAX_HANDLES: usize = 16 * 1024;
/// Subtrees that one transaction changes.
const MAX_PARTICIPANTS: usize = 4;
/// Inodes of which names change: what goes, and what is replaced.
const MAX_LINKS: usize = 2;

/// The answer to the coordinator.
pub(crate) type Reply = oneshot::Sender<Result<PrepareResponse, Error>>;

/// Another subtree wants something to happen here.
pub(crate) struct Prepare {
    pub request: PrepareRequest,
    pub reply: Reply,
}

/// The same, checked.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Without what happens.
    record: TransactionRecord,
    coming: Coming,
    holders: Holders,
    probe: bool,
    /// The version of the way by which the client came, and where that leads (R16); 0: it did not come by one.
    route: (u64, SubtreeId),
    /// This subtree coordinates, and has been found to be the home of one of the inodes as well.
    own: bool,
}

impl Asked {
    fn read(request: PrepareRequest, own: SubtreeId) -> Result<Self, Error> {
        let record = request.record.ok_or_else(|| invalid("names its transaction"))?;
        let few = (1..=MAX_PARTICIPANTS).contains(&record.participants.len());
        let parties = [own.0, record.coordinator];
        if !few || !parties.iter().all(|party| record.participants.contains(party)) {
            return Err(invalid("is between a few subtrees"));
        }
        if request.handles.len() > MAX_HANDLES {
            return Err(invalid("brings the handles of one inode"));
        }
        let comes = record.comes.clone().map(|comes| NameComes { replaces: 0, leaves: false, ..comes });
        let coordinates = record.coordinator == own.0;
        match &comes {
            Some(comes) => check_comes(comes)?,
            None if record.links.is_empty() => return Err(invalid("changes something")),
            None => {}
        }
        if coordinates && comes.is_some() {
            return Err(invalid("brings a name to another subtree"));
        }
        check_links(&record.links)?;
        let adopts = comes.as_ref().is_some_and(|comes| comes.adopts);
        let how = match Comes::try_from(request.how) {
            _ if adopts => How::Adopt,
            Ok(Comes::Exchange) => How::Exchange,
            Ok(Comes::Link) => How::Link,
            Ok(Comes::Replace) if request.no_replace => How::NoReplace,
            Ok(Comes::Replace) => How::Replace,
            Err(_) => return Err(invalid("brings a name in a way that is known")),
        };
        if how == How::Exchange && !(is_file_name(&request.from_name) && Ino(request.from_dir).is_valid()) {
            return Err(invalid("gives what it takes another name"));
        }
        let after = Checked::ALL.into_iter().find(|after| *after as u32 == request.refused_after);
        let after = after.ok_or_else(|| invalid("is refused after a check that is not known"))?;
        let refusal = (request.refused_errno != 0).then_some(Refusal { errno: Errno(request.refused_errno), after });
        let coming = Coming {
            comes,
            how,
            from: (Ino(request.from_dir), request.from_name),
            links: record.links.clone(),
            caller: request.caller,
            slash: request.slash,
            refusal,
        };
        let record = TransactionRecord {
            coordinator: record.coordinator,
            participants: record.participants,
            state: TransactionState::Prepared.into(),
            epoch: record.epoch,
            number: record.number,
            now: record.now,
            ..TransactionRecord::default()
        };
        let holders = holders_of(request.handles, (request.append_end, request.appends_known));
        Ok(Self {
            record,
            coming,
            holders,
            probe: request.probe,
            route: (request.route, SubtreeId(request.route_subtree)),
            own: coordinates,
        })
    }

    /// It belongs to what is open here already, and is to be answered whatever else is to happen.
    pub fn is_own(&self) -> bool {
        self.own
    }
}

fn invalid(what: &str) -> Error {
    Error::new(Reason::InvalidRequest, format!("an operation between subtrees {what}"))
}

fn check_comes(comes: &NameComes) -> Result<(), Error> {
    if !is_file_name(&comes.name) {
        return Err(invalid("brings a file name"));
    }
    if !Ino(comes.ino).is_valid() || !Ino(comes.dir).is_valid() || comes.adopts && comes.inode.is_empty() {
        return Err(invalid("is about inodes"));
    }
    Ok(())
}

fn check_links(links: &[LinkChange]) -> Result<(), Error> {
    let named = |dir: u64, name: &Bytes| dir == 0 || Ino(dir).is_valid() && is_file_name(name);
    let sound = |change: &LinkChange| {
        let one = change.gone_dir != 0 || change.come_dir != 0;
        let names = named(change.gone_dir, &change.gone_name) && named(change.come_dir, &change.come_name);
        Ino(change.ino).is_valid() && one && names
    };
    if links.len() > MAX_LINKS || !links.iter().all(sound) {
        return Err(invalid("changes names of one or two inodes"));
    }
    Ok(())
}

fn answer(answer: prepare_response::Answer) -> PrepareResponse {
    PrepareResponse { answer: Some(answer), ..PrepareResponse::default() }
}

impl Open {
    /// By a copy of the request, or a repetition.
    fn asked_again(&mut self, reply: Reply) {
        let decided = self.decision.is_some();
        match &mut self.role {
            Role::Participant { replies, prepared, .. } if !*prepared || !self.unsettled.is_empty() => {
                replies.push(reply);
            }
            Role::Participant { response, .. } if !decided => drop(reply.send(Ok((**response).clone()))),
            _ => drop(reply.send(Err(not_now()))),
        }
    }
}

impl Subtree {
    pub(in crate::subtree) fn prepare_asked(&mut self, Prepare { request, reply }: Prepare) {
        let asked = match Asked::read(request, self.own.subtree) {
            Ok(asked) => asked,
            Err(error) => return drop(reply.send(Err(self.signed(error)))),
        };
        let id = id_of(&asked.record);
        match self.transactions.open.get_mut(&id) {
            Some(Open { role: Role::Coordinator { .. }, decision: None, .. }) if asked.own => {
                // Freezing waits for it: it does not wait for a thaw.
                let job = self.new_job(Work::Welcome(Box::new(asked)), ClientId(0), 0, To::Preparer(reply));
                return self.finds.push_back(job);
            }
            Some(open) => return open.asked_again(reply),
            None => {}
        }
        let refused = self.ending.is_some() || self.is_frozen() || self.transactions.is_recovering() || asked.own;
        if refused || self.map.transactions.contains_key(&id) {
            return drop(reply.send(Err(not_now())));
        }
        // Who drains waits for its own transactions: two that wait for each other would do so until both lose patience.
        if self.transactions.over.has(id) || !self.is_running() {
            return drop(reply.send(Ok(answer(prepare_response::Answer::Busy(true)))));
        }
        if self.transactions.waiting() >= MAX_OPEN {
            return drop(reply.send(Err(overloaded("too many operations between subtrees are under way"))));
        }
        let job = self.new_job(Work::Welcome(Box::new(asked)), ClientId(0), 0, To::Preparer(reply));
        self.enqueue(job);
    }

    /// The subtree is to stand still: what others ask that has not begun is not waited for.
    pub(in crate::subtree) fn turn_askers_away(&mut self) {
        let is_asked = |job: &Job| matches!(&job.work, Work::Welcome(asked) if !asked.own);
        let (asked, others): (Vec<Job>, _) = std::mem::take(&mut self.runnable).into_iter().partition(is_asked);
        self.runnable = others.into();
        asked.into_iter().for_each(|job| self.turn_away(job));
    }

    /// Not now: to be asked again.
    pub(in crate::subtree) fn turn_away(&mut self, job: Job) {
        self.tell_asker(job, answer(prepare_response::Answer::Busy(true)));
    }

    /// `None` if it was answered.
    pub(in crate::subtree) fn run_welcome(&mut self, job: Job) -> Option<(Job, Outcome)> {
        let Work::Welcome(asked) = &job.work else { return None };
        let id = id_of(&asked.record);
        if !asked.own && (self.transactions.open.contains_key(&id) || self.transactions.over.has(id)) {
            self.asked_twice(job, id);
            return None;
        }
        if self.came_by_an_old_way(asked) {
            // An answer: as an error it would be one that is asked again here.
            let status = self.signed(stale_route()).to_rpc_status();
            self.tell_asker(job, answer(prepare_response::Answer::Refused(status)));
            return None;
        }
        let context = self.context_of_shell();
        match self.namespace.welcome(&asked.coming, &context) {
            Welcome::Missing(fetches) => return Some((job, Outcome::Missing(fetches))),
            Welcome::Merge(child) => return Some((job, Outcome::NeedMerge(child))),
            Welcome::Busy => self.tell_asker(job, answer(prepare_response::Answer::Busy(true))),
            Welcome::Cross(crossings) => {
                let crossing = crossings_to_proto(&self.map, &crossings).into_iter().next();
                let elsewhere = crossing.as_ref().map_or(0, |crossing| crossing.subtree);
                // Whose an inode is the coordinator finds out by itself.
                let crossing = crossing.filter(|_| asked.coming.comes.is_some() && asked.coming.how != How::Adopt);
                let response = answer(prepare_response::Answer::Elsewhere(elsewhere));
                self.tell_asker(job, PrepareResponse { crossing, ..response });
            }
            Welcome::Refused(error, reads) => self.refuse_across(job, error, reads),
            Welcome::Unchanged(reads) => {
                let first = self.pipeline.first_undurable(&reads);
                match first {
                    // Soon it is.
                    Some(_) => self.tell_asker(job, answer(prepare_response::Answer::Busy(true))),
                    None => self.tell_asker(job, answer(prepare_response::Answer::Unchanged(true))),
                }
            }
            Welcome::First(across) => {
                if !asked.probe {
                    self.begin_transaction(None, across, Default::default());
                }
                self.tell_asker(job, answer(prepare_response::Answer::Busy(true)));
            }
            Welcome::Ready(ready) => return self.ready(job, *ready),
        }
        None
    }

    /// R16: the coordinator cannot tell. Its map may be older than the one in which the way here was changed, for which
    /// only those were waited for whose way it was. The way to what was merged into this subtree is no way to this one.
    fn came_by_an_old_way(&self, asked: &Asked) -> bool {
        let (way, to) = asked.route;
        let route = self.map.subtrees.get(&self.own.subtree).map_or(0, |subtree| subtree.route);
        way != 0 && (to, way) != (self.own.subtree, route)
    }

    /// Another copy of the request ran while this one waited. That one's locks are not those of others.
    fn asked_twice(&mut self, job: Job, id: TransactionId) {
        self.over(&job);
        self.job_is_over(job.bytes);
        let To::Preparer(reply) = job.to else { return };
        match self.transactions.open.get_mut(&id) {
            Some(open) => open.asked_again(reply),
            None => drop(reply.send(Ok(answer(prepare_response::Answer::Busy(true))))),
        }
    }

    fn ready(&mut self, job: Job, ready: Ready) -> Option<(Job, Outcome)> {
        let Work::Welcome(asked) = &job.work else { return None };
        let coordinator = SubtreeId(asked.record.coordinator);
        match self.leads_below(ready.directory, coordinator) {
            Ok(false) => {}
            Ok(true) => {
                self.refuse_across(job, Error::posix(Errno::EINVAL), ready.reads);
                return None;
            }
            Err(fetches) => return Some((job, Outcome::Missing(fetches))),
        }
        let Work::Welcome(asked) = &job.work else { return None };
        match ready.directory {
            _ if asked.probe => {
                let epoch = self.own.epoch.0;
                self.tell_asker(job, answer(prepare_response::Answer::PreparedEpoch(epoch)));
            }
            _ if asked.own => self.prepare_own(job, ready),
            Directory::Plain(ino) => self.part_for_asker(job, ino),
            Directory::None | Directory::Root(_) => self.prepare_to_come(job, ready),
        }
        None
    }

    /// What goes in exchange has to be a subtree. The coordinator asks again when it is.
    fn part_for_asker(&mut self, job: Job, ino: Ino) {
        self.over(&job);
        self.job_is_over(job.bytes);
        let To::Preparer(reply) = job.to else { return };
        let (control, maps) = (self.control.clone(), self.maps.clone());
        self.tasks.spawn_local(async move {
            if let Err(error) = part(control, &maps, ino).await {
                let _ = reply.send(Err(error));
            }
        });
    }

    fn tell_asker(&mut self, job: Job, response: PrepareResponse) {
        self.over(&job);
        self.job_is_over(job.bytes);
        if let To::Preparer(reply) = job.to {
            let _ = reply.send(Ok(response));
        }
    }

    /// The coordinator is the home of one more inode: it is part of what it does itself.
    fn prepare_own(&mut self, job: Job, ready: Ready) {
        let Work::Welcome(asked) = &job.work else { return };
        let id = id_of(&asked.record);
        let epoch = self.own.epoch.0;
        let Some(open) = self.transactions.open.get_mut(&id).filter(|open| open.decision.is_none()) else {
            return self.tell_asker(job, answer(prepare_response::Answer::Busy(true)));
        };
        open.record.links.extend(ready.links);
        open.reads.extend(ready.reads);
        self.namespace.lock(&open.record);
        self.tell_asker(job, answer(prepare_response::Answer::PreparedEpoch(epoch)));
    }

    /// Locked from now on, until the map has decided.
    fn prepare_to_come(&mut self, job: Job, ready: Ready) {
        self.over(&job);
        self.job_is_over(job.bytes);
        let (Work::Welcome(asked), To::Preparer(reply)) = (job.work, job.to) else { return };
        let Asked { record, holders, .. } = *asked;
        let id = id_of(&record);
        let response = self.response(&ready);
        let Ready { comes, goes, links, unsettled, reads, .. } = ready;
        let record = TransactionRecord { comes, goes, links, ..record };
        self.namespace.lock(&record);
        let change = self.namespace.remember(&record);
        let role = Role::Participant { replies: vec![reply], response: Box::new(response), prepared: false };
        self.transactions.open.insert(id, Open { holders, unsettled, ..Open::new(record, role) });
        let batch = self.admit(change, &reads, None);
        self.after_durable(batch, Then::Prepared(id));
    }

    /// What the coordinator is told.
    fn response(&self, ready: &Ready) -> PrepareResponse {
        let wanted = ready
            .wanted
            .iter()
            .map(|wanted| WantedLinks { subtree: wanted.subtree.0, change: Some(wanted.change.clone()) });
        let gift = ready.goes.as_ref().map(|goes| {
            let inode = ready.inode.clone();
            let given = !inode.is_empty();
            let holders = if given { self.namespace.holders(Ino(goes.ino)) } else { Holders::default() };
            let root = match ready.directory {
                Directory::Root(root) => root.0,
                Directory::None | Directory::Plain(_) => 0,
            };
            Gift {
                comes: Some(NameComes { ino: goes.ino, kind: goes.kind, inode, ..NameComes::default() }),
                root,
                handles: holders.handles.iter().map(hand_over).collect(),
                append_end: holders.append.0,
                appends_known: holders.append.1,
            }
        });
        let epoch = prepare_response::Answer::PreparedEpoch(self.own.epoch.0);
        PrepareResponse { wanted: wanted.collect(), gift, ..answer(epoch) }
    }

    /// What is to happen stands durably.
    pub(in crate::subtree) fn is_prepared(&mut self, id: TransactionId) {
        let Some(open) = self.transactions.open.get_mut(&id) else { return };
        let Role::Participant { prepared, .. } = &mut open.role else { return };
        *prepared = true;
        let settled = open.unsettled.is_empty();
        let abort = asking::proposal(&open.record, false, |_| 0);
        let (mons, maps) = (Rc::clone(&self.outside.mons), self.maps.clone());
        self.spawn(async move {
            let decision = asking::await_decision(mons, maps, id, abort).await;
            Event::Transaction(id, Step::Decided(decision))
        });
        if settled {
            self.answer_prepared(id);
        }
    }

    /// And what goes from here is in the pool: the coordinator may have the map decide.
    pub(super) fn answer_prepared(&mut self, id: TransactionId) {
        let Some(open) = self.transactions.open.get_mut(&id) else { return };
        if let Role::Participant { replies, response, prepared: true } = &mut open.role {
            for reply in std::mem::take(replies) {
                let _ = reply.send(Ok((**response).clone()));
            }
        }
    }
}

fn not_now() -> Error {
    Error::new(Reason::Unavailable, "the subtree is being opened, split, merged or moved: ask again")
}
