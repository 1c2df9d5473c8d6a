//! The client itself; its calls are in `ops/`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_mon_client::MonClient;
use pando_proto::ClientId;
use pando_proto::mds::{Caller, Operation, operation::Op, operation_result::Result as Answer};

use crate::builder::{ClientBuilder, Mons};
use crate::path::Checked;
use crate::session::{Answered, Core, Found, To};
use crate::{Error, Result};

/// A session with a Pando cluster. Clones share it.
///
/// When the last clone and the last open [`File`](crate::File) are dropped the
/// session ends in the background; [`close`](Self::close) waits for it.
#[derive(Clone)]
pub struct Client {
    session: Arc<Session>,
    caller: Arc<Caller>,
    deadline: Duration,
}

/// Ends the background tasks with the last clone.
struct Session {
    core: Arc<Core>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.core.shutdown.is_stopping() {
            return;
        }
        self.core.shutdown.stop();
        let (Some(mon), Ok(runtime)) = (self.core.mon.clone(), tokio::runtime::Handle::try_current()) else { return };
        let client = self.core.client;
        runtime.spawn(async move { mon.end_session(client, false).await });
    }
}

impl Client {
    /// Connects to the cluster of these mons: `"host:port"`, several separated by commas, or a list.
    ///
    /// Errors: no mon answers.
    pub async fn connect(mons: impl Mons) -> Result<Self> {
        Self::builder(mons).connect().await
    }

    /// For more settings than [`connect`](Self::connect) takes.
    pub fn builder(mons: impl Mons) -> ClientBuilder {
        ClientBuilder::new(mons.into_addresses())
    }

    pub(crate) fn new(core: Core, caller: Caller, deadline: Duration) -> Self {
        Self { session: Arc::new(Session { core: Arc::new(core) }), caller: Arc::new(caller), deadline }
    }

    /// The same session on behalf of another user.
    pub fn as_user(&self, uid: u32, gid: u32, groups: impl IntoIterator<Item = u32>) -> Self {
        let caller = Caller { uid, gid, groups: groups.into_iter().collect() };
        Self { caller: Arc::new(caller), ..self.clone() }
    }

    /// The same session with another deadline for each call.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// This session's id.
    pub fn id(&self) -> ClientId {
        self.session.core.client
    }

    /// The cluster map as last heard of.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.session.core.map.current()
    }

    /// The mons, for administration. `None` only in tests without a mon.
    pub fn mon(&self) -> Option<&MonClient> {
        self.session.core.mon.as_ref()
    }

    /// Ends the session at the cluster. Other clones, and open files, fail with ESTALE from then on.
    ///
    /// Errors: the mons cannot be reached; the session then ends by its timeout.
    pub async fn close(self) -> Result<()> {
        self.session.core.shutdown.stop();
        if let Some(mon) = &self.session.core.mon {
            mon.end_session(self.session.core.client, false).await?;
        }
        Ok(())
    }

    /// Has a rank send `payload` back over the session's stream, without any
    /// work: what the transport alone costs.
    pub async fn echo(&self, payload: Bytes) -> Result<Bytes> {
        self.session.core.echo(payload, self.deadline).await
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.session.core
    }

    pub(crate) fn caller(&self) -> Option<Caller> {
        Some(Caller::clone(&self.caller))
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Runs an operation on paths; errors name `path`, which is where it begins.
    pub(crate) async fn run(&self, op: Op, path: &Checked) -> Result<Answer> {
        Ok(self.run_at(op, path).await?.result)
    }

    pub(crate) async fn run_at(&self, op: Op, path: &Checked) -> Result<Answered> {
        self.run_to(op, To::Path(path.start())).await.map_err(|error| path.named_in(error))
    }

    /// Runs an operation on what `handle` has open.
    pub(crate) async fn run_by(&self, op: Op, handle: u64, path: &[u8]) -> Result<Answer> {
        Ok(self.run_to(op, To::Handle(handle)).await.map_err(|error| error.at(path))?.result)
    }

    async fn run_to(&self, op: Op, to: To) -> Result<Answered> {
        self.session.core.run(Operation { op: Some(op) }, to, self.deadline).await
    }

    pub(crate) async fn run_and_find(&self, op: Op, path: &[u8]) -> Result<Found> {
        let operation = Operation { op: Some(op) };
        self.session.core.run_and_find(operation, self.deadline).await.map_err(|error| error.at(path))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// Runs an operation and unpacks the answer of the same name.
macro_rules! call {
    ($client:expr, $path:expr, $name:ident, $request:expr) => {
        $crate::client::call!(@ $path, $crate::path::Checked, $name, |op, path| $client.run(op, path), $request)
    };
    (by $handle:expr, $client:expr, $path:expr, $name:ident, $request:expr) => {
        $crate::client::call!(@ $path, [u8], $name, |op, path| $client.run_by(op, $handle, path), $request)
    };
    (@ $path:expr, $kind:ty, $name:ident, |$op:ident, $at:ident| $call:expr, $request:expr) => {{
        let $at: &$kind = $path;
        let $op = pando_proto::mds::operation::Op::$name($request);
        match $call.await {
            Ok(pando_proto::mds::operation_result::Result::$name(answer)) => Ok(answer),
            Ok(_) => Err($crate::client::wrong_answer($at.as_ref())),
            Err(error) => Err(error),
        }
    }};
}
pub(crate) use call;

pub(crate) fn wrong_answer(path: &[u8]) -> Error {
    Error::protocol("the result of another operation").at(path)
}
