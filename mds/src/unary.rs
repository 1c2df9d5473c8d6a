//! The same operations as unary methods, for grpcurl and simple tools. They
//! have no session: no handles, and nothing is remembered of them.

use std::sync::Arc;

use actix::dev::SendError;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::namespace_service_server::{NamespaceService, NamespaceServiceServer};
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Outcome;
use pando_proto::mds::{self, Operation, OperationResult, Target};
use pando_proto::{Error, MAX_MESSAGE_BYTES, Reason, SubtreeId};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use crate::administration::{MAX_CROSSINGS, not_here, subtree_of};
use crate::rank::Shared;
use crate::subtree::{Call, error_result, is_read};

/// Operations in one `Batch`.
const MAX_BATCH: usize = 4096;

/// The service of one rank.
pub(crate) struct Namespace(Arc<Shared>);

pub(crate) fn service(shared: &Arc<Shared>) -> NamespaceServiceServer<Namespace> {
    NamespaceServiceServer::new(Namespace(Arc::clone(shared)))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

impl Namespace {
    /// Hands an operation to the actor; the receiver gets its result.
    async fn begin(&self, operation: Operation) -> Result<oneshot::Receiver<OperationResult>, Error> {
        let subtree = first_target(&operation).map_or(ROOT_SUBTREE, |target| subtree_of(&self.0, target));
        self.begin_in(subtree, operation).await
    }

    async fn begin_in(
        &self,
        subtree: SubtreeId,
        operation: Operation,
    ) -> Result<oneshot::Receiver<OperationResult>, Error> {
        let (reply, result) = oneshot::channel();
        let Some(served) = self.0.served(subtree) else {
            let target = first_target(&operation).cloned().unwrap_or_default();
            let owned = self.0.map.current().owner(subtree).is_some_and(|(rank, _)| rank == self.0.rank);
            let absent =
                if owned { self.0.absent(subtree) } else { error_result(&not_here(&self.0, subtree, &target)) };
            let _ = reply.send(absent);
            return Ok(result);
        };
        match served.address.try_send(Call { operation, reply }) {
            Ok(()) => {}
            Err(SendError::Full(call)) => served.address.send(call).await.map_err(|_| gone())?,
            Err(SendError::Closed(_)) => return Err(gone()),
        }
        Ok(result)
    }

    /// Runs an operation to its result, through all subtrees of this rank.
    async fn run(&self, mut operation: Operation) -> Result<OperationResult, Error> {
        let mut running = self.begin(operation.clone()).await?;
        for _ in 0..MAX_CROSSINGS {
            let result = running.await.map_err(|_| gone())?;
            let Some(Outcome::Redirect(redirect)) = &result.result else { return Ok(result) };
            let Some(crossing) = redirect.crossings.first() else {
                let target = first_target(&operation).cloned().unwrap_or_default();
                return Err(not_here(&self.0, SubtreeId(redirect.subtree), &target));
            };
            let subtree = SubtreeId(crossing.subtree);
            for crossing in &redirect.crossings {
                if let Some(target) = target_mut(&mut operation, crossing.target) {
                    *target = Target { base: crossing.base, path: crossing.path.clone() };
                }
            }
            // The subtree of the first crossing goes on.
            running = self.begin_in(subtree, operation.clone()).await?;
        }
        Err(Error::posix(pando_proto::Errno::ELOOP))
    }

    async fn call(&self, op: Op) -> Result<Outcome, Status> {
        let result = self.run(Operation { op: Some(op) }).await?;
        match result.result {
            Some(Outcome::Error(status)) => Err(Error::from_rpc_status(status).to_tonic()),
            Some(outcome) => Ok(outcome),
            None => Err(mismatch().to_tonic()),
        }
    }

    async fn run_batch(&self, operations: Vec<Operation>) -> Vec<OperationResult> {
        let mut results = Vec::with_capacity(operations.len());
        let mut operations = operations.into_iter().peekable();
        while operations.peek().is_some() {
            // Reads in a row do not change each other's results: they run together.
            let mut together = Vec::new();
            while let Some(operation) = operations.next_if(|next| together.is_empty() || is_read(next)) {
                let alone = !is_read(&operation);
                together.push(self.run(operation));
                if alone {
                    break;
                }
            }
            let ended = futures_util::future::join_all(together).await;
            results.extend(ended.into_iter().map(|result| result.unwrap_or_else(|error| error_result(&error))));
        }
        results
    }
}

macro_rules! targets {
    ($operation:expr, $as:ident) => {
        match $operation {
            Op::Stat(r) => (r.target.$as(), None),
            Op::SetAttr(r) => (r.target.$as(), None),
            Op::Access(r) => (r.target.$as(), None),
            Op::Open(r) => (r.target.$as(), None),
            Op::ReadFile(r) => (r.target.$as(), None),
            Op::WriteFile(r) => (r.target.$as(), None),
            Op::Mkdir(r) => (r.target.$as(), None),
            Op::Unlink(r) => (r.target.$as(), None),
            Op::Rmdir(r) => (r.target.$as(), None),
            Op::Rename(r) => (r.from.$as(), r.to.$as()),
            Op::Link(r) => (r.existing.$as(), r.link.$as()),
            Op::Symlink(r) => (r.target.$as(), None),
            Op::Readlink(r) => (r.target.$as(), None),
            Op::Readdir(r) => (r.target.$as(), None),
            Op::GetXattr(r) => (r.target.$as(), None),
            Op::SetXattr(r) => (r.target.$as(), None),
            Op::ListXattr(r) => (r.target.$as(), None),
            Op::RemoveXattr(r) => (r.target.$as(), None),
            _ => (None, None),
        }
    };
}

fn first_target(operation: &Operation) -> Option<&Target> {
    let (first, _): (Option<&Target>, Option<&Target>) = targets!(operation.op.as_ref()?, as_ref);
    first
}

fn target_mut(operation: &mut Operation, index: u32) -> Option<&mut Target> {
    let (first, second): (Option<&mut Target>, Option<&mut Target>) = targets!(operation.op.as_mut()?, as_mut);
    if index == 0 { first } else { second }
}

fn gone() -> Error {
    Error::new(Reason::Unavailable, "the subtree was given up meanwhile; the operation may or may not have happened")
}

fn mismatch() -> Error {
    Error::new(Reason::Internal, "the reply does not belong to the request")
}

macro_rules! namespace_service {
    ($($method:ident, $op:ident, $request:ident, $response:ident;)*) => {
        #[tonic::async_trait]
        impl NamespaceService for Namespace {
            $(
                async fn $method(
                    &self,
                    request: Request<mds::$request>,
                ) -> Result<Response<mds::$response>, Status> {
                    match self.call(Op::$op(request.into_inner())).await? {
                        Outcome::$op(response) => Ok(Response::new(response)),
                        _ => Err(mismatch().to_tonic()),
                    }
                }
            )*

            async fn batch(
                &self,
                request: Request<mds::BatchRequest>,
            ) -> Result<Response<mds::BatchResponse>, Status> {
                let operations = request.into_inner().operations;
                if operations.len() > MAX_BATCH {
                    let message = format!("a batch has at most {MAX_BATCH} operations");
                    return Err(Error::new(Reason::TooLarge, message).to_tonic());
                }
                Ok(Response::new(mds::BatchResponse { results: self.run_batch(operations).await }))
            }
        }
    };
}

namespace_service! {
    stat, Stat, StatRequest, StatResponse;
    set_attr, SetAttr, SetAttrRequest, SetAttrResponse;
    access, Access, AccessRequest, AccessResponse;
    open, Open, OpenRequest, OpenResponse;
    close, Close, CloseRequest, CloseResponse;
    read_file, ReadFile, ReadFileRequest, ReadFileResponse;
    write_file, WriteFile, WriteFileRequest, WriteFileResponse;
    read, Read, ReadRequest, ReadResponse;
    write, Write, WriteRequest, WriteResponse;
    grant_size, GrantSize, GrantSizeRequest, GrantSizeResponse;
    report_size, ReportSize, ReportSizeRequest, ReportSizeResponse;
    mkdir, Mkdir, MkdirRequest, MkdirResponse;
    unlink, Unlink, UnlinkRequest, UnlinkResponse;
    rmdir, Rmdir, RmdirRequest, RmdirResponse;
    rename, Rename, RenameRequest, RenameResponse;
    link, Link, LinkRequest, LinkResponse;
    symlink, Symlink, SymlinkRequest, SymlinkResponse;
    readlink, Readlink, ReadlinkRequest, ReadlinkResponse;
    readdir, Readdir, ReaddirRequest, ReaddirResponse;
    get_xattr, GetXattr, GetXattrRequest, GetXattrResponse;
    set_xattr, SetXattr, SetXattrRequest, SetXattrResponse;
    list_xattr, ListXattr, ListXattrRequest, ListXattrResponse;
    remove_xattr, RemoveXattr, RemoveXattrRequest, RemoveXattrResponse;
    statfs, Statfs, StatfsRequest, StatfsResponse;
}
