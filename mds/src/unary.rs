//! The same operations as unary methods, for grpcurl and simple tools. They
//! have no session: no handles, and nothing is remembered of them.

use std::sync::Arc;

use actix::dev::SendError;
use pando_proto::mds::namespace_service_server::{NamespaceService, NamespaceServiceServer};
use pando_proto::mds::operation::Op;
use pando_proto::mds::operation_result::Result as Outcome;
use pando_proto::mds::{self, Operation, OperationResult};
use pando_proto::{Error, MAX_MESSAGE_BYTES, Reason};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

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
        let (reply, result) = oneshot::channel();
        let Some(subtree) = self.0.subtree() else {
            let _ = reply.send(self.0.absent());
            return Ok(result);
        };
        match subtree.try_send(Call { operation, reply }) {
            Ok(()) => {}
            Err(SendError::Full(call)) => subtree.send(call).await.map_err(|_| gone())?,
            Err(SendError::Closed(_)) => return Err(gone()),
        }
        Ok(result)
    }

    async fn call(&self, op: Op) -> Result<Outcome, Status> {
        let result = self.begin(Operation { op: Some(op) }).await?;
        let result = result.await.map_err(|_| gone())?;
        match result.result {
            Some(Outcome::Error(status)) => Err(Error::from_rpc_status(status).to_tonic()),
            Some(Outcome::Redirect(to)) => {
                let message = format!("the namespace is served by rank {} at {}", to.rank, to.address);
                Err(Error::new(Reason::NotOwner, message).with_epoch(to.subtree_epoch).to_tonic())
            }
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
                together.push(self.begin(operation).await);
                if alone {
                    break;
                }
            }
            for begun in together {
                let result = match begun {
                    Ok(result) => result.await.map_err(|_| gone()),
                    Err(error) => Err(error),
                };
                results.push(result.unwrap_or_else(|error| error_result(&error)));
            }
        }
        results
    }
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
