//! `pando.osd.v1.ObjectService`.

use std::sync::Arc;

use pando_proto::osd::object_service_server::ObjectService;
use pando_proto::osd::{
    ListRequest, ListResponse, ReadRequest, ReadResponse, StatRequest, StatResponse, TrimRequest, TrimResponse,
    WriteRequest, WriteResponse,
};
use tonic::{Request, Response, Status};

use super::{check, mismatch, unary};
use crate::pg::Answer;
use crate::pgs::Osd;

pub(crate) struct Objects(pub Arc<Osd>);

#[tonic::async_trait]
impl ObjectService for Objects {
    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let call = check::write(&self.0.view().map, request.into_inner());
        match unary(&self.0, call).await? {
            Answer::Write(response) => Ok(Response::new(response)),
            _ => Err(mismatch()),
        }
    }

    async fn trim(&self, request: Request<TrimRequest>) -> Result<Response<TrimResponse>, Status> {
        let call = check::trim(&self.0.view().map, request.get_ref());
        match unary(&self.0, call).await? {
            Answer::Trim(response) => Ok(Response::new(response)),
            _ => Err(mismatch()),
        }
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        let call = check::read(&self.0.view().map, request.get_ref());
        match unary(&self.0, call).await? {
            Answer::Read(response) => Ok(Response::new(response)),
            _ => Err(mismatch()),
        }
    }

    async fn stat(&self, request: Request<StatRequest>) -> Result<Response<StatResponse>, Status> {
        let call = check::stat(&self.0.view().map, request.get_ref());
        match unary(&self.0, call).await? {
            Answer::Stat(response) => Ok(Response::new(response)),
            _ => Err(mismatch()),
        }
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let call = check::list(&self.0.view().map, request.get_ref());
        match unary(&self.0, call).await? {
            Answer::List(response) => Ok(Response::new(response)),
            _ => Err(mismatch()),
        }
    }
}
