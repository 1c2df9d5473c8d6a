//! What clients and other OSDs call.

mod check;
pub(crate) mod objects;
pub(crate) mod records;
pub(crate) mod replication;

use std::pin::Pin;

use futures_util::Stream;
use pando_proto::Error;
use tokio::sync::oneshot;

use crate::pg::{Answer, Client, Responder};
use crate::pgs::Osd;

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, tonic::Status>> + Send + 'static>>;

/// One call, one answer.
async fn unary(osd: &std::sync::Arc<Osd>, call: Result<check::Checked, Error>) -> Result<Answer, Error> {
    let call = call?;
    let (sender, receiver) = oneshot::channel();
    let room = osd.room(call.bytes)?;
    let client = Client { map_epoch: call.map_epoch, call: call.call, responder: Responder::Unary(sender), room };
    osd.dispatch(call.pg, vec![client]).await;
    let stopping = || Error::new(pando_proto::Reason::Unavailable, "this OSD is stopping");
    receiver.await.unwrap_or_else(|_| Err(stopping()))
}

fn mismatch() -> tonic::Status {
    Error::new(pando_proto::Reason::Internal, "the answer does not belong to the call").into()
}
