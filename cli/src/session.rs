//! What a verb has at hand: the cluster it talks to and how to print.

use std::sync::Arc;
use std::time::Duration;

use pando_client::Client;
use pando_mon_client::{AdminClient, MonClient};
use pando_rpc::TcpNet;

use crate::args::Args;
use crate::failure::Failure;

/// The cluster that `pando up` starts.
const DEFAULT_MONS: &str = "127.0.0.1:7100";
/// For the first answer of a mon: a person waits.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

pub struct Session {
    mons: Vec<String>,
    pub json: bool,
    timeout: Duration,
    uid: u32,
    gid: u32,
}

impl Session {
    pub fn new(args: &Args) -> Self {
        let mons = args.mons.clone().or_else(|| std::env::var("PANDO_MONS").ok().filter(|mons| !mons.is_empty()));
        let mons = mons.unwrap_or_else(|| DEFAULT_MONS.to_owned());
        Self {
            mons: mons.split(',').map(|mon| mon.trim().to_owned()).filter(|mon| !mon.is_empty()).collect(),
            json: args.json,
            timeout: Duration::from_secs(args.timeout),
            uid: args.uid,
            gid: args.gid,
        }
    }

    /// A client session. To be closed with [`finish`].
    pub async fn client(&self) -> Result<Client, Failure> {
        let client = Client::builder(self.mons.as_slice())
            .user(self.uid, self.gid, [])
            .deadline(self.timeout)
            .connect_limit(CONNECT_LIMIT.min(self.timeout))
            .description(format!("pando command, pid {}", std::process::id()))
            .connect();
        client.await.map_err(|error| self.unreachable(error.into()))
    }

    /// The mons alone, without a session.
    pub fn admin(&self) -> Result<AdminClient, Failure> {
        let mon = MonClient::new(Arc::new(TcpNet), self.mons.clone())?;
        Ok(mon.with_limit(CONNECT_LIMIT.min(self.timeout)).admin())
    }

    /// Says who was asked.
    fn unreachable(&self, error: pando_proto::Error) -> Failure {
        if !error.is_retryable() {
            return error.into();
        }
        let message = format!("no mon answers at {}: {}", self.mons(), error.message);
        Failure::from(pando_proto::Error { message, ..error })
    }

    /// The addresses as given.
    pub fn mons(&self) -> String {
        self.mons.join(",")
    }
}

/// Ends the session; what a verb did stands anyway, so an error here is none of the user's.
pub async fn finish(client: Client, outcome: Result<(), Failure>) -> Result<(), Failure> {
    let _ = tokio::time::timeout(CONNECT_LIMIT, client.close()).await;
    outcome
}
