//! What comes into a placement group's task, and where the answers go.

use std::sync::Arc;

use pando_cluster_map::ClusterMap;
use pando_osd_core::{Configuration, Message, Request, Sessions};
use pando_proto::osd::{
    CommitResponse, GetResponse, ListResponse, RaiseFenceResponse, ReadResponse, RecordReply, ScanResponse,
    StatResponse, TrimResponse, WriteResponse, record_reply,
};
use pando_proto::{Epoch, Error, OsdId, PgId};
use pando_rpc::queue;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::fetch::Fetch;

/// An input of a placement group.
pub(crate) enum Input {
    /// Clients' requests, in the order they came.
    Requests(Vec<Client>),
    /// A message of another OSD.
    Message(OsdId, Message),
    /// A stream to another OSD was opened, or broke.
    Peer(OsdId, bool),
    /// A newer map.
    Map(Arc<MapView>),
}

/// A map, with what the cores need of it.
pub(crate) struct MapView {
    pub map: Arc<ClusterMap>,
    pub sessions: Arc<Sessions>,
}

impl MapView {
    pub fn new(map: Arc<ClusterMap>) -> Arc<Self> {
        let live = map.sessions.keys().copied().collect();
        let sessions = Sessions { epoch: map.epoch, live, next_client_id: map.next_client_id };
        Arc::new(Self { map, sessions: Arc::new(sessions) })
    }

    pub fn configuration(&self, pg: PgId) -> Configuration {
        let min_size = self.map.pools.get(&pg.pool).map_or(1, |pool| pool.min_size.max(1)) as usize;
        match self.map.pgs.get(&pg) {
            Some(found) => Configuration {
                number: found.config,
                members: found.members.clone(),
                joining: found.joining.clone(),
                min_size,
                forgiven: found.forgiven,
            },
            None => Configuration { min_size, ..Configuration::default() },
        }
    }
}

/// A request with its sender.
pub(crate) struct Client {
    /// The sender's map epoch (R14).
    pub map_epoch: Epoch,
    pub call: Call,
    pub responder: Responder,
    /// What it takes of the memory for requests, until it is answered.
    pub room: Room,
}

/// A share of the memory for requests; many small ones have one together.
pub(crate) type Room = Arc<OwnedSemaphorePermit>;

/// A request, checked for form.
pub(crate) enum Call {
    /// To be ordered by the core.
    Write(Request),
    /// To be evaluated when the core says so.
    Read(Fetch),
}

/// The answer to any call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Commit(CommitResponse),
    RaiseFence(RaiseFenceResponse),
    Get(GetResponse),
    Scan(ScanResponse),
    Write(WriteResponse),
    Trim(TrimResponse),
    Read(ReadResponse),
    Stat(StatResponse),
    List(ListResponse),
}

/// Where an answer goes.
pub(crate) enum Responder {
    /// Into a stream of records, under this id.
    Stream(queue::Sender<RecordReply>, u64),
    /// To a unary call.
    Unary(oneshot::Sender<Result<Answer, Error>>),
}

impl Responder {
    pub fn answer(self, result: Result<Answer, Error>) {
        match self {
            Self::Stream(replies, id) => {
                let result = match result {
                    Ok(Answer::Commit(response)) => record_reply::Result::Commit(response),
                    Ok(Answer::RaiseFence(response)) => record_reply::Result::RaiseFence(response),
                    Ok(Answer::Get(response)) => record_reply::Result::Get(response),
                    Ok(Answer::Scan(response)) => record_reply::Result::Scan(response),
                    Ok(_) => return,
                    Err(error) => record_reply::Result::Error(error.to_rpc_status()),
                };
                // A reader that does not read, or is gone: it repeats the request.
                let _ = replies.push(RecordReply { id, result: Some(result) });
            }
            Self::Unary(sender) => {
                let _ = sender.send(result);
            }
        }
    }
}
