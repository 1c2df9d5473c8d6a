//! Splits, merges and moves of subtrees, as an administrator makes them.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use pando_client::Client;
use pando_mon_client::AdminClient;
use pando_proto::mds::subtree_service_client::SubtreeServiceClient;
use pando_proto::mds::{MergeRequest, SplitRequest, Target};
use pando_proto::{Errno, Error, Rank, Reason, SubtreeId};
use pando_rpc::{Net, TcpNet};
use tokio::time::Instant;

const BACKOFF: Duration = Duration::from_millis(20);

/// A session for the tree of subtrees.
pub struct Tree {
    /// Its session as a client.
    pub client: Client,
    /// The mons.
    pub admin: AdminClient,
    net: Arc<dyn Net>,
    limit: Duration,
}

/// Whether somebody else only was quicker, or something is not there at the moment.
pub fn is_passing(error: &Error) -> bool {
    let busy = matches!(error.reason, Reason::InUse | Reason::Overloaded | Reason::StaleEpoch | Reason::StaleRoute);
    busy || matches!(error.reason, Reason::NotOwner | Reason::Unavailable | Reason::Timeout)
}

impl Tree {
    /// Connects. `limit` is for each call, its repetitions included.
    pub async fn connect(mons: &str, limit: Duration) -> anyhow::Result<Self> {
        let client = Client::builder(mons).description("loadgen, for subtrees").deadline(limit).connect().await?;
        let admin = client.mon().context("a client without mons")?.admin();
        Ok(Self { client, admin, net: Arc::new(TcpNet), limit })
    }

    fn owner(&self, address: &str) -> Result<SubtreeServiceClient<tonic::transport::Channel>, Error> {
        Ok(SubtreeServiceClient::new(pando_rpc::channel(&self.net, address)?))
    }

    /// Makes a directory, unless it is there.
    pub async fn make_dir(&self, path: &str) -> Result<(), Error> {
        match self.client.create_dir(path).await {
            Err(error) if error.errno() != Errno::EEXIST => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Makes a directory a subtree of its own, unless it is one. `path` has no symlinks and no `..`.
    pub async fn split(&self, path: &str) -> Result<SubtreeId, Error> {
        let deadline = Instant::now() + self.limit;
        loop {
            let at = self.client.locate(path).await.map_err(Error::from)?;
            let outcome = match self.client.map().subtrees.get(&at.subtree).map(|subtree| subtree.root) {
                Some(root) if root == at.ino => return Ok(at.subtree),
                Some(root) => {
                    let target = Target { base: root.0, path: at.path.as_os_str().as_bytes().to_vec().into() };
                    let mut owner = self.owner(&at.address)?;
                    within(deadline, owner.split(SplitRequest { target: Some(target) })).await
                }
                None => Err(Error::new(Reason::NotOwner, format!("no map with {} came", at.subtree))),
            };
            match outcome {
                Ok(done) => return Ok(SubtreeId(done.subtree)),
                Err(error) => retry(deadline, error).await?,
            }
        }
    }

    /// Merges a subtree into its parent. Both have to be with the same rank.
    pub async fn merge(&self, subtree: SubtreeId) -> Result<(), Error> {
        let deadline = Instant::now() + self.limit;
        loop {
            let map = self.client.map();
            let outcome = match map.owner(subtree) {
                Some((_, address)) => {
                    let mut owner = self.owner(address)?;
                    within(deadline, owner.merge(MergeRequest { subtree: subtree.0 })).await
                }
                None if !map.subtrees.contains_key(&subtree) => return Ok(()),
                None => Err(Error::new(Reason::Unavailable, format!("the rank of {subtree} is down"))),
            };
            match outcome {
                Ok(_) => return Ok(()),
                Err(error) if error.reason == Reason::UnknownId => return Ok(()),
                Err(error) => retry(deadline, error).await?,
            }
        }
    }

    /// Moves a subtree and waits for it.
    pub async fn move_to(&self, subtree: SubtreeId, rank: Rank) -> Result<(), Error> {
        let deadline = Instant::now() + self.limit;
        loop {
            match self.admin.move_subtree(subtree, rank, true).await {
                Ok(_) => return Ok(()),
                Err(error) => retry(deadline, error).await?,
            }
        }
    }

    /// Those that may get subtrees, in order.
    pub fn ranks(&self) -> Vec<Rank> {
        let map = self.client.map();
        map.ranks.iter().filter(|(_, rank)| rank.up && !rank.draining).map(|(rank, _)| *rank).collect()
    }

    /// Splits the clients' trees off before they come, and deals them over the ranks that are up.
    pub async fn spread(&self, clients: usize) -> Result<(), Error> {
        let ranks = self.ranks();
        for (client, rank) in (0..clients).zip(ranks.iter().cycle()) {
            let path = format!("/client-{client}");
            self.make_dir(&path).await?;
            let subtree = self.split(&path).await?;
            self.move_to(subtree, *rank).await?;
        }
        Ok(())
    }

    /// Ends the session.
    pub async fn close(self) {
        // What was done stands anyway.
        let _ = self.client.close().await;
    }
}

async fn within<T>(
    deadline: Instant,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout_at(deadline, answer).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Error::new(Reason::Timeout, "the owner of the subtree did not answer in time")),
    }
}

/// Waits a moment if it is worth another try.
async fn retry(deadline: Instant, error: Error) -> Result<(), Error> {
    if !is_passing(&error) || Instant::now() + BACKOFF >= deadline {
        return Err(error);
    }
    tokio::time::sleep(BACKOFF).await;
    Ok(())
}
