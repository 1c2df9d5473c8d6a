//! What a verb has at hand: the cluster it talks to and how to print.

use std::sync::Arc;
use std::time::Duration;

use pando_client::Client;
use pando_mon_client::{AdminClient, MonClient, check_mons};
use pando_rpc::TcpNet;

use crate::args::Args;
use crate::failure::Failure;

/// The cluster that `pando up` starts.
const DEFAULT_MONS: &str = "127.0.0.1:7100";
/// For the first answer of a mon, unless `--timeout` says otherwise: a person waits.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// For a look at why a command failed.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// For a call, unless `--timeout` says otherwise.
const CALL_LIMIT: Duration = Duration::from_secs(30);

pub struct Session {
    mons: Vec<String>,
    pub json: bool,
    timeout: Option<Duration>,
    uid: u32,
    gid: u32,
}

impl Session {
    /// Errors: mons that are no addresses.
    pub fn new(args: &Args) -> Result<Self, Failure> {
        let of_environment = || std::env::var("PANDO_MONS").ok().filter(|mons| !mons.is_empty());
        let mons = match &args.mons {
            Some(mons) => addresses("--mons", mons)?,
            None => {
                of_environment().map_or_else(|| addresses("", DEFAULT_MONS), |mons| addresses("$PANDO_MONS", &mons))?
            }
        };
        let timeout = args.timeout.map(Duration::from_secs);
        Ok(Self { mons, json: args.json, timeout, uid: args.uid, gid: args.gid })
    }

    fn connect_limit(&self) -> Duration {
        self.timeout.unwrap_or(CONNECT_LIMIT)
    }

    /// For a call, its repetitions included.
    pub fn call_limit(&self) -> Duration {
        self.timeout.unwrap_or(CALL_LIMIT)
    }

    /// A client session. To be closed with [`finish`].
    pub async fn client(&self) -> Result<Client, Failure> {
        let client = Client::builder(self.mons.as_slice())
            .user(self.uid, self.gid, [])
            .deadline(self.call_limit())
            .connect_limit(self.connect_limit())
            .description(format!("pando command, pid {}", std::process::id()))
            .connect();
        client.await.map_err(|error| self.unreachable(error.into()))
    }

    /// The mons alone, without a session.
    pub fn admin(&self) -> Result<AdminClient, Failure> {
        let mon = MonClient::new(Arc::new(TcpNet), self.mons.clone())?;
        Ok(mon.with_limit(self.connect_limit()).admin())
    }

    /// How many ranks are up, and how many there are, if a mon says so at once.
    pub async fn ranks_up(&self) -> Option<(u32, u32)> {
        let mon = MonClient::new(Arc::new(TcpNet), self.mons.clone()).ok()?;
        let status = mon.with_limit(LOOK_LIMIT).admin().status().await.ok()?;
        Some((status.ranks_up, status.ranks_total))
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

/// The addresses of a list; `source` is where it stood.
fn addresses(source: &str, list: &str) -> Result<Vec<String>, Failure> {
    let mons: Vec<String> = list.split(',').map(|mon| mon.trim().to_owned()).filter(|mon| !mon.is_empty()).collect();
    check_mons(source, &mons).map_err(|error| Failure::Usage(error.message))?;
    Ok(mons)
}

/// Ends the session; what a verb did stands anyway, so an error here is none of the user's.
pub async fn finish(client: Client, outcome: Result<(), Failure>) -> Result<(), Failure> {
    let _ = tokio::time::timeout(CONNECT_LIMIT, client.close()).await;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn the_timeout_covers_connecting_and_calls() {
        let session =
            |line: &[&str]| Session::new(&Args::parse_from([&["pando", "--mons", "a:1"], line].concat())).unwrap();
        assert_eq!(session(&["df"]).connect_limit(), CONNECT_LIMIT);
        for (seconds, limit) in [("2", 2), ("90", 90)] {
            assert_eq!(session(&["--timeout", seconds, "df"]).connect_limit(), Duration::from_secs(limit));
        }
    }

    #[test]
    fn mons_are_addresses() {
        for good in ["127.0.0.1:7100", "a-b.example:1, c:2,", "[::1]:7100"] {
            assert!(addresses("--mons", good).is_ok(), "{good}");
        }
        for bad in ["x y", "a", "http://a:1", "", ",", "a:1,b", "2"] {
            let failure = addresses("--mons", bad).unwrap_err();
            assert_eq!(failure.exit_code(), 2, "{bad}");
        }
    }
}
