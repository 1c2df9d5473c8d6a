//! Making a client.

use std::sync::Arc;
use std::time::Duration;

use pando_mon_client::MonClient;
use pando_proto::mds::Caller;
use pando_rpc::{Clock, Net, Shutdown, SystemClock, TcpNet};

use crate::session::Core;
use crate::{Client, Error, Result};

/// Deadline of a call unless another one is set.
pub(crate) const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// Settings of a [`Client`] before it connects.
///
/// ```no_run
/// # async fn example() -> Result<(), pando_client::Error> {
/// let client = pando_client::Client::builder("10.0.0.1:7100,10.0.0.2:7100")
///     .user(1000, 1000, [27])
///     .deadline(std::time::Duration::from_secs(5))
///     .description("nightly backup")
///     .connect()
///     .await?;
/// # drop(client); Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `connect`"]
pub struct ClientBuilder {
    mons: Vec<String>,
    net: Arc<dyn Net>,
    clock: Arc<dyn Clock>,
    caller: Caller,
    deadline: Duration,
    connect_limit: Option<Duration>,
    description: String,
}

impl ClientBuilder {
    pub(crate) fn new(mons: Vec<String>) -> Self {
        Self {
            mons,
            net: Arc::new(TcpNet),
            clock: Arc::new(SystemClock),
            caller: Caller::default(),
            deadline: DEFAULT_DEADLINE,
            connect_limit: None,
            description: format!("pando-client pid {}", std::process::id()),
        }
    }

    /// On whose behalf calls are made; root unless set. The cluster checks mode bits against it, and trusts what it is told.
    pub fn user(mut self, uid: u32, gid: u32, groups: impl IntoIterator<Item = u32>) -> Self {
        self.caller = Caller { uid, gid, groups: groups.into_iter().collect() };
        self
    }

    /// How long a call may take, retries included, before it fails with a timeout. 30 s unless set.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long to look for a mon that answers, when connecting and later; the deadline unless set.
    pub fn connect_limit(mut self, limit: Duration) -> Self {
        self.connect_limit = Some(limit);
        self
    }

    /// What the list of sessions shows for this client.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Another network than TCP, for simulations.
    pub fn net(mut self, net: Arc<dyn Net>) -> Self {
        self.net = net;
        self
    }

    /// Another clock than the machine's, for simulations.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Registers a session with the mons, and starts to follow the cluster map and to keep the session alive.
    ///
    /// Errors: no mon answers, or an address is no `host:port`.
    pub async fn connect(self) -> Result<Client> {
        if self.mons.is_empty() {
            let help = "no mon was named: give at least one address of the form host:port";
            return Err(Error::new(pando_proto::Reason::InvalidRequest, help));
        }
        let mon =
            MonClient::new(Arc::clone(&self.net), self.mons)?.with_limit(self.connect_limit.unwrap_or(self.deadline));
        let (client, map) = mon.register_client(&self.description).await?;
        let shutdown = Shutdown::default();
        let map = mon.watch(map, shutdown.clone());
        let core = Core::new(client, self.net, self.clock, map, Some(mon), shutdown);
        let client = Client::new(core, self.caller, self.deadline);
        client.core().stay();
        Ok(client)
    }
}

/// One address, a list separated by commas, or any list of addresses.
pub trait Mons {
    /// The addresses.
    fn into_addresses(self) -> Vec<String>;
}

fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|address| !address.is_empty()).map(str::to_owned).collect()
}

impl Mons for &str {
    fn into_addresses(self) -> Vec<String> {
        split(self)
    }
}
impl Mons for &String {
    fn into_addresses(self) -> Vec<String> {
        split(self)
    }
}
impl Mons for String {
    fn into_addresses(self) -> Vec<String> {
        split(&self)
    }
}
impl<S: AsRef<str>> Mons for &[S] {
    fn into_addresses(self) -> Vec<String> {
        self.iter().flat_map(|address| split(address.as_ref())).collect()
    }
}
impl<S: AsRef<str>> Mons for Vec<S> {
    fn into_addresses(self) -> Vec<String> {
        self.as_slice().into_addresses()
    }
}
impl<S: AsRef<str>> Mons for &Vec<S> {
    fn into_addresses(self) -> Vec<String> {
        self.as_slice().into_addresses()
    }
}
impl<S: AsRef<str>, const N: usize> Mons for [S; N] {
    fn into_addresses(self) -> Vec<String> {
        self.as_slice().into_addresses()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mons_come_as_text_or_list() {
        assert_eq!("a:1, b:2,".into_addresses(), ["a:1", "b:2"]);
        assert_eq!(vec!["a:1", "b:2"].into_addresses(), ["a:1", "b:2"]);
        assert_eq!(["a:1".to_owned()].into_addresses(), ["a:1"]);
    }
}
