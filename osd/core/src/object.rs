//! What a mutation does to an object's header and bytes (R22).

use pando_proto::{Error, Reason};

use crate::request::{Mutation, MutationKind, Reply};
use crate::{Change, ObjectHeader};

/// Changes, header after them, and what to answer.
pub(crate) struct Plan {
    pub changes: Vec<Change>,
    pub header: Option<ObjectHeader>,
    pub reply: Reply,
}

/// Whether a reader or writer of `generation` may touch the object.
pub fn check_read_generation(header: Option<ObjectHeader>, generation: u64) -> Result<(), Error> {
    match header {
        Some(header) if generation < header.generation => Err(Error::new(
            Reason::StaleGeneration,
            format!(
                "the object is of data generation {}, the request of {generation}: fetch the file's placement anew",
                header.generation
            ),
        )),
        _ => Ok(()),
    }
}

/// Of the header of an object that does not live, and that of its file's floor, the one that counts (R22).
pub fn later(own: Option<ObjectHeader>, floor: Option<ObjectHeader>) -> Option<ObjectHeader> {
    match (own, floor) {
        (Some(own), Some(floor)) if own.generation < floor.generation => Some(floor),
        (own, floor) => own.or(floor),
    }
}

/// The answer to a copy of a mutation that was done before.
pub(crate) fn repeated(kind: &MutationKind, header: Option<ObjectHeader>) -> Reply {
    match kind {
        MutationKind::Write { .. } => Reply::Written { size: header.map_or(0, |header| header.size) },
        _ => Reply::Trimmed,
    }
}

/// What a mutation changes, given the header after all writes before it.
pub(crate) fn plan(mutation: Mutation, header: Option<ObjectHeader>, next_client_id: u64) -> Result<Plan, Error> {
    check_read_generation(header, mutation.generation)?;
    let Mutation { object, generation, .. } = mutation;
    let alive = header.filter(|header| !header.deleted);
    Ok(match mutation.kind {
        MutationKind::Write { offset, data } => {
            let mut changes = Vec::with_capacity(4);
            let mut after = alive.unwrap_or_default();
            if alive.is_none() && (header.is_some() || generation > 0) {
                // A new object, and a tombstone that comes to life, are of the generation of their writer: trims of
                // an earlier one that come late do not touch them. An object that lives keeps its own: its file
                // may be cut elsewhere while it is written, and that cut has to get through.
                after.generation = generation;
                changes.push(Change::SetHeader { object, generation, deleted: false, sessions_before: 0 });
            }
            after.size = after.size.max(offset.saturating_add(data.len() as u64));
            changes.push(Change::Write { object, offset, data });
            Plan { changes, header: Some(after), reply: Reply::Written { size: after.size } }
        }
        MutationKind::Zero { offset, length } => {
            let changes = match alive {
                Some(header) if offset < header.size && length > 0 => {
                    vec![Change::Zero { object, offset, length: length.min(header.size - offset) }]
                }
                _ => Vec::new(),
            };
            Plan { changes, header, reply: Reply::Trimmed }
        }
        MutationKind::Truncate { size } => match alive {
            // Nobody writes at the generation of a cut: this one was done before, maybe by a later owner of the file,
            // and what lies behind it by now was written since (a rank that lost the file may still repeat it).
            Some(header) if header.generation == generation && generation > 0 => {
                Plan { changes: Vec::new(), header: Some(header), reply: Reply::Trimmed }
            }
            Some(header) => {
                let mut changes = Vec::with_capacity(4);
                if size < header.size {
                    changes.push(Change::Truncate { object, size });
                }
                changes.push(Change::SetHeader { object, generation, deleted: false, sessions_before: 0 });
                let header = ObjectHeader { size: header.size.min(size), generation, ..header };
                Plan { changes, header: Some(header), reply: Reply::Trimmed }
            }
            None => tombstone(mutation.object, generation, next_client_id),
        },
        MutationKind::Delete => tombstone(object, generation, next_client_id),
    })
}

/// Remembers the generation of an object that is gone, as long as a session older than now may send late writes.
fn tombstone(object: crate::ObjectKey, generation: u64, next_client_id: u64) -> Plan {
    let header = ObjectHeader { size: 0, generation, deleted: true, sessions_before: next_client_id };
    let change = Change::SetHeader { object, generation, deleted: true, sessions_before: next_client_id };
    Plan { changes: vec![change], header: Some(header), reply: Reply::Trimmed }
}

#[cfg(test)]
mod tests;
