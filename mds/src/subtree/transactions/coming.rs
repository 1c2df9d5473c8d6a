//! The side of a transaction to which a name comes: a participant.

use std::rc::Rc;

use pando_cluster_map::TransactionId;
use pando_mds_core::api::{Outcome, Reads};
use pando_mds_core::transaction::{Checked, Coming, HandOver, Holders, Refusal, Welcome};
use pando_proto::mds::{
    NameComes, PrepareRequest, PrepareResponse, TransactionRecord, TransactionState, prepare_response,
};
use pando_proto::{ClientId, Errno, Error, Ino, MAX_NAME_BYTES, Reason, SubtreeId};
use tokio::sync::oneshot;

use super::{MAX_OPEN, Open, Role, Step, asking, id_of};
use crate::subtree::commit::Then;
use crate::subtree::job::{Job, To, Work};
use crate::subtree::turn::overloaded;
use crate::subtree::{Event, Subtree};

/// Handles that come with one inode.
const MAX_HANDLES: usize = 16 * 1024;

/// The answer to the coordinator.
pub(crate) type Reply = oneshot::Sender<Result<PrepareResponse, Error>>;

/// Another subtree wants a name to come here.
pub(crate) struct Prepare {
    pub request: PrepareRequest,
    pub reply: Reply,
}

/// The same, checked.
#[derive(Debug)]
pub(crate) struct Asked {
    record: TransactionRecord,
    coming: Coming,
    holders: Holders,
    probe: bool,
}

impl Asked {
    fn read(request: PrepareRequest, own: SubtreeId) -> Result<Self, Error> {
        let invalid = |what: &str| Error::new(Reason::InvalidRequest, format!("a rename between subtrees {what}"));
        let record = request.record.ok_or_else(|| invalid("names its transaction"))?;
        let comes = record.comes.clone().ok_or_else(|| invalid("brings a name"))?;
        let name = &comes.name;
        let plain = !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(&b'/') && !name.contains(&0);
        if !plain || matches!(&name[..], b"." | b"..") {
            return Err(invalid("brings a file name"));
        }
        let two = record.participants.len() == 2 && record.participants.contains(&own.0);
        if record.coordinator == own.0 || !two || !record.participants.contains(&record.coordinator) {
            return Err(invalid("is between two subtrees"));
        }
        if !Ino(comes.ino).is_valid() || !Ino(comes.dir).is_valid() || request.handles.len() > MAX_HANDLES {
            return Err(invalid("is about inodes, with their handles"));
        }
        let handles = request.handles.iter().map(|one| HandOver {
            client: ClientId(one.client_id),
            handle: one.handle,
            flags: one.flags,
            granted: one.granted,
            privileged: one.privileged,
        });
        let holders = Holders { handles: handles.collect(), append: (request.append_end, request.appends_known) };
        let after = Checked::ALL.into_iter().find(|after| *after as u32 == request.refused_after);
        let after = after.ok_or_else(|| invalid("is refused after a check that is not known"))?;
        let refusal = (request.refused_errno != 0).then_some(Refusal { errno: Errno(request.refused_errno), after });
        let coming = Coming {
            comes: NameComes { replaces: 0, ..comes },
            caller: request.caller,
            no_replace: request.no_replace,
            slash: request.slash,
            refusal,
        };
        let state = TransactionState::Prepared.into();
        let record = TransactionRecord { goes: None, completed: None, state, ..record };
        Ok(Self { record, coming, holders, probe: request.probe })
    }
}

fn answer(answer: prepare_response::Answer) -> PrepareResponse {
    PrepareResponse { answer: Some(answer) }
}

impl Subtree {
    pub(in crate::subtree) fn prepare_asked(&mut self, Prepare { request, reply }: Prepare) {
        let asked = match Asked::read(request, self.own.subtree) {
            Ok(asked) => asked,
            Err(error) => return drop(reply.send(Err(self.signed(error)))),
        };
        let id = id_of(&asked.record);
        if let Some(open) = self.transactions.open.get_mut(&id) {
            match &mut open.role {
                Role::Participant { replies, prepared: false } => replies.push(reply),
                Role::Participant { prepared: true, .. } if open.decision.is_none() => {
                    let prepared = prepare_response::Answer::PreparedEpoch(self.own.epoch.0);
                    let _ = reply.send(Ok(answer(prepared)));
                }
                _ => drop(reply.send(Err(not_now()))),
            }
            return;
        }
        let refused = self.ending.is_some() || !self.is_running() || self.transactions.is_recovering();
        if refused || self.map.transactions.contains_key(&id) {
            return drop(reply.send(Err(not_now())));
        }
        if self.transactions.waiting() >= MAX_OPEN {
            return drop(reply.send(Err(overloaded("too many renames between subtrees are under way"))));
        }
        let job = self.new_job(Work::Welcome(Box::new(asked)), ClientId(0), 0, To::Preparer(reply));
        self.enqueue(job);
    }

    /// `None` if it was answered.
    pub(in crate::subtree) fn run_welcome(&mut self, job: Job) -> Option<(Job, Outcome)> {
        let Work::Welcome(asked) = &job.work else { return None };
        let context = self.context_of_shell();
        match self.namespace.welcome(&asked.coming, &context) {
            Welcome::Missing(fetches) => return Some((job, Outcome::Missing(fetches))),
            Welcome::Busy => self.tell_asker(job, prepare_response::Answer::Busy(true)),
            Welcome::Cross(crossings) => {
                let subtree = crossings.first().map_or(0, |crossing| crossing.subtree.0);
                self.tell_asker(job, prepare_response::Answer::Elsewhere(subtree));
            }
            Welcome::Refused(error, reads) => self.refuse_rename(job, error, reads),
            Welcome::Ready(..) if asked.probe => {
                let epoch = self.own.epoch.0;
                self.tell_asker(job, prepare_response::Answer::PreparedEpoch(epoch));
            }
            Welcome::Ready(replaces, reads) => self.prepare_to_come(job, replaces, &reads),
        }
        None
    }

    fn tell_asker(&mut self, job: Job, told: prepare_response::Answer) {
        self.over(&job);
        self.job_bytes -= job.bytes;
        if let To::Preparer(reply) = job.to {
            let _ = reply.send(Ok(answer(told)));
        }
    }

    /// Locked from now on, until the map has decided.
    fn prepare_to_come(&mut self, job: Job, replaces: Ino, reads: &Reads) {
        self.over(&job);
        self.job_bytes -= job.bytes;
        let (Work::Welcome(asked), To::Preparer(reply)) = (job.work, job.to) else { return };
        let Asked { mut record, coming, holders, .. } = *asked;
        let id = id_of(&record);
        if self.transactions.open.contains_key(&id) {
            // Asked twice before the first one ran; the next one meets that.
            return drop(reply.send(Err(not_now())));
        }
        record.comes = Some(NameComes { replaces: replaces.0, ..coming.comes });
        self.namespace.lock(&record);
        let change = self.namespace.remember(&record);
        let role = Role::Participant { replies: vec![reply], prepared: false };
        self.transactions.open.insert(id, Open { record, holders, role, reads: Reads::new(), decision: None });
        let batch = self.admit(change, reads, None);
        self.after_durable(batch, Then::Prepared(id));
    }

    /// What is to happen stands durably: the coordinator may have the map decide.
    pub(in crate::subtree) fn is_prepared(&mut self, id: TransactionId) {
        let epoch = self.own.epoch.0;
        let Some(open) = self.transactions.open.get_mut(&id) else { return };
        let Role::Participant { replies, prepared } = &mut open.role else { return };
        *prepared = true;
        for reply in std::mem::take(replies) {
            let _ = reply.send(Ok(answer(prepare_response::Answer::PreparedEpoch(epoch))));
        }
        let abort = asking::proposal(&open.record, false, |_| 0);
        let (mons, maps) = (Rc::clone(&self.outside.mons), self.maps.clone());
        self.spawn(async move {
            let decision = asking::await_decision(mons, maps, id, abort).await;
            Event::Transaction(id, Step::Decided(decision))
        });
    }
}

fn not_now() -> Error {
    Error::new(Reason::Unavailable, "the subtree is being opened, split, merged or moved: ask again")
}
