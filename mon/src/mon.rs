//! Proposals and reads as the services use them: done here, or by the leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::{ClusterMap, Command, CommandResult};
use pando_mon_client::LEADER_HINT;
use pando_proto::mon::ProposeRequest;
use pando_proto::mon::raft_service_client::RaftServiceClient;
use pando_proto::{Epoch, Error, Reason};
use pando_rpc::{Clock, Shutdown};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::node::{Input, Leadership};

/// How long a service tries before it says that it cannot now; clients repeat.
const LIMIT: Duration = Duration::from_secs(3);
/// Before the next try after a refusal by a mon that is no leader after all.
const PAUSE: Duration = Duration::from_millis(20);

/// What the services share.
pub(crate) struct Mon {
    pub(crate) id: u64,
    pub(crate) inputs: mpsc::Sender<Input>,
    pub(crate) map: watch::Receiver<Arc<ClusterMap>>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) cluster: watch::Receiver<[u8; 16]>,
    pub(crate) channels: Arc<BTreeMap<u64, Channel>>,
    pub(crate) addresses: BTreeMap<u64, String>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) shutdown: Shutdown,
}

fn stopping() -> Error {
    Error::new(Reason::Unavailable, "this mon is stopping")
}

fn no_answer() -> Error {
    Error::new(Reason::Timeout, "the mons did not agree in time; is a majority of them running?")
}

impl Mon {
    /// Puts something to the node and waits for its answer.
    pub(crate) async fn ask<T>(&self, input: impl FnOnce(oneshot::Sender<T>) -> Input) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let asking = async {
            self.inputs.send(input(reply)).await.map_err(|_| stopping())?;
            answer.await.map_err(|_| stopping())
        };
        tokio::time::timeout(LIMIT, asking).await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// Changes the map, through whoever leads.
    pub(crate) async fn propose(&self, command: Command) -> Result<CommandResult, Error> {
        command.check_size()?;
        let deadline = Instant::now() + LIMIT;
        loop {
            let leader = self.leader(deadline).await?;
            let result = match self.channels.get(&leader) {
                None => self.propose_here(command.clone()).await,
                Some(channel) => self.forward(channel.clone(), &command, deadline).await,
            };
            match result {
                Err(error) if error.reason == Reason::NotOwner && Instant::now() + PAUSE < deadline => {
                    tokio::time::sleep(PAUSE).await;
                }
                other => return other,
            }
        }
    }

    /// Changes the map, if this mon leads.
    pub(crate) async fn propose_here(&self, command: Command) -> Result<CommandResult, Error> {
        self.ask(|reply| Input::Propose { command, reply }).await?
    }

    async fn forward(&self, channel: Channel, command: &Command, deadline: Instant) -> Result<CommandResult, Error> {
        let request = ProposeRequest { cluster_id: self.cluster_id_bytes(), command: Bytes::from(command.to_bytes()) };
        let mut client = RaftServiceClient::new(channel);
        let called = tokio::time::timeout_at(deadline, client.propose(request)).await.map_err(|_| no_answer())?;
        let result = CommandResult::from_bytes(&called?.into_inner().result)?;
        Ok(result)
    }

    /// The id of the leader, once there is one.
    async fn leader(&self, deadline: Instant) -> Result<u64, Error> {
        let mut leadership = self.leadership.clone();
        let found = tokio::time::timeout_at(deadline, leadership.wait_for(|known| known.leader != 0)).await;
        match found {
            Ok(Ok(known)) => Ok(known.leader),
            Ok(Err(_)) => Err(stopping()),
            Err(_) => Err(Error::new(Reason::Unavailable, "the mons have no leader: is a majority of them running?")),
        }
    }

    /// The leader's connection, when this mon does not lead itself.
    pub(crate) fn leader_elsewhere(&self) -> Option<Channel> {
        self.channels.get(&self.leadership.borrow().leader).cloned()
    }

    /// One linearizable read.
    pub(crate) async fn read(&self) -> Result<Arc<ClusterMap>, Error> {
        self.ask(|reply| Input::Read { reply }).await?
    }

    /// This mon's map, once it has `epoch`.
    pub(crate) async fn map_at(&self, epoch: Epoch) -> Result<Arc<ClusterMap>, Error> {
        let mut map = self.map.clone();
        let waited = tokio::time::timeout(LIMIT, map.wait_for(|map| map.epoch >= epoch)).await;
        match waited {
            Ok(Ok(map)) => Ok(Arc::clone(&map)),
            Ok(Err(_)) => Err(stopping()),
            Err(_) => {
                let message = format!("no map of epoch {epoch} yet");
                Err(Error::new(Reason::Timeout, message).with_epoch(self.map.borrow().epoch.0))
            }
        }
    }

    pub(crate) fn cluster_id_bytes(&self) -> Bytes {
        let id = *self.cluster.borrow();
        if id == [0; 16] { Bytes::new() } else { Bytes::copy_from_slice(&id) }
    }

    /// Refuses what another cluster's daemon or mon sent. An empty id is none yet.
    pub(crate) fn check_cluster(&self, id: &[u8]) -> Result<(), Error> {
        let own = *self.cluster.borrow();
        if id.is_empty() || own == [0; 16] || id == own {
            return Ok(());
        }
        let shown = &id[..id.len().min(16)];
        let message = format!(
            "this mon belongs to cluster {}, the caller (or its data directory) to cluster {}: check the mon addresses \
             and data directories",
            crate::storage::hex(&own),
            crate::storage::hex(shown)
        );
        Err(Error::new(Reason::WrongCluster, message))
    }

    /// An error as a status, with the leader's address where that helps.
    pub(crate) fn refuse(&self, error: Error) -> tonic::Status {
        let mut status = error.to_tonic();
        let leader = self.leadership.borrow().leader;
        if error.reason == Reason::NotOwner
            && leader != self.id
            && let Some(address) = self.addresses.get(&leader).and_then(|address| address.parse().ok())
        {
            status.metadata_mut().insert(LEADER_HINT, address);
        }
        status
    }
}
