//! One operation on its way through the actor.

use std::sync::Arc;

use pando_cluster_map::TransactionId;
use pando_proto::mds::operation::Op;
use pando_proto::mds::{Operation, OperationResult, PrepareResponse, Target};
use pando_proto::{ClientId, Epoch, Error, Ino, SubtreeId};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::handover::Found;
use super::transactions::Asked;
use crate::session::Connection;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Work {
    Operation(Operation),
    /// Give up an unlinked inode that nobody has open any more.
    Reap(Ino),
    /// Which directory a person means.
    Find(Target),
    /// Whether a name may come from another subtree (R18).
    Welcome(Box<Asked>),
    /// What was decided of a transaction happens.
    Conclude(TransactionId),
    /// The inode of the root follows its name in the map.
    RenameRoot,
}

/// Who gets the reply.
pub(super) enum To {
    Stream(Arc<Connection>),
    Unary(oneshot::Sender<OperationResult>),
    Finder(oneshot::Sender<Result<Found, Error>>),
    Preparer(oneshot::Sender<Result<PrepareResponse, Error>>),
    Nobody,
}

/// An operation that waits to be run, or run again.
pub(super) struct Job {
    /// Names it among those that wait for fetches.
    pub id: u64,
    pub work: Work,
    pub client: ClientId,
    /// Number within the session; 0 without one.
    pub request: u64,
    pub to: To,
    /// Fetches it has waited for so far, and so pins to give back.
    pub rounds: u32,
    /// Stands in the dedup table as running.
    pub tracked: bool,
    /// A copy of it may have run since it was judged (I4).
    pub perhaps_copy: bool,
    /// The map in which its session was live (R9).
    pub seen: Epoch,
    /// Bytes of data that it carries.
    pub bytes: usize,
    /// Versions of the ways by which the client came to its targets (R16); 0: it did not come by one.
    pub ways: [u64; 2],
    /// Where the second one leads.
    pub second: SubtreeId,
    /// The subtree that was asked: another one if that was merged into this one.
    pub asked: u64,
    /// Subtrees whose routes were raised for it.
    pub routes: SmallVec<[SubtreeId; 2]>,
}

impl Job {
    /// It was decided: it has to be done, whatever else there is to do.
    pub fn is_due(&self) -> bool {
        matches!(self.work, Work::Conclude(_) | Work::RenameRoot)
    }
}

impl To {
    /// The client does not take its replies as fast as it asks.
    pub fn is_congested(&self) -> bool {
        matches!(self, Self::Stream(connection) if connection.is_congested())
    }
}

/// Bytes of data in an operation.
pub(super) fn data_bytes(operation: &Operation) -> usize {
    match &operation.op {
        Some(Op::WriteFile(request)) => request.data.len(),
        Some(Op::Write(request)) => request.data.len(),
        Some(Op::SetXattr(request)) => request.value.len(),
        _ => 0,
    }
}

/// Whether an operation changes nothing.
pub(crate) fn is_read(operation: &Operation) -> bool {
    matches!(
        operation.op,
        Some(
            Op::Stat(_)
                | Op::Access(_)
                | Op::ReadFile(_)
                | Op::Readlink(_)
                | Op::Readdir(_)
                | Op::GetXattr(_)
                | Op::ListXattr(_)
                | Op::Statfs(_)
        )
    )
}
