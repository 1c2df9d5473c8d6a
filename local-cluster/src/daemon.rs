//! One daemon on its own thread: a current-thread runtime with a LocalSet, as a
//! daemon process has (DESIGN.md §2).

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::thread::JoinHandle;

use pando_proto::{Error, Reason};
use pando_rpc::{Env, Shutdown};
use tokio::sync::oneshot;

/// What a daemon runs until it has stopped.
pub(crate) type Joined = Pin<Box<dyn Future<Output = ()>>>;
/// A daemon that serves: its address, and the future that ends with it.
pub(crate) type Started = Result<(SocketAddr, Joined), Error>;

/// A running daemon.
pub(crate) struct Daemon {
    pub(crate) address: SocketAddr,
    shutdown: Shutdown,
    kill: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts a thread called `name` and waits until its daemon serves.
    pub(crate) async fn start<F, Fut>(name: String, start: F) -> Result<Self, Error>
    where
        F: FnOnce(Env) -> Fut + Send + 'static,
        Fut: Future<Output = Started> + 'static,
    {
        let env = Env::system();
        let shutdown = env.shutdown.clone();
        let (ready, serving) = oneshot::channel();
        let (kill, killed) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || run(start(env), ready, killed))
            .map_err(|error| Error::new(Reason::Unavailable, format!("cannot start a thread for {name}: {error}")))?;
        let address =
            serving.await.unwrap_or_else(|_| Err(Error::new(Reason::Internal, format!("{name} died while starting"))));
        match address {
            Ok(address) => Ok(Self { address, shutdown, kill: Some(kill), thread: Some(thread) }),
            Err(error) => {
                // It has said why; its thread ends by itself.
                let _ = tokio::task::spawn_blocking(move || thread.join()).await;
                Err(error)
            }
        }
    }

    /// Asks for a clean stop; [`wait`](Self::wait) tells when it is done.
    pub(crate) fn stop(&self) {
        self.shutdown.stop();
    }

    /// Ends it as a crash would: nothing is given back, nothing is drained.
    pub(crate) fn kill(&mut self) {
        drop(self.kill.take());
    }

    /// Whether its thread is still there.
    pub(crate) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Waits for the end of its thread.
    pub(crate) async fn wait(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.shutdown.stop();
    }
}

fn run<Fut: Future<Output = Started>>(
    start: Fut,
    ready: oneshot::Sender<Result<SocketAddr, Error>>,
    killed: oneshot::Receiver<()>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(Error::new(Reason::Unavailable, format!("cannot make a runtime: {error}"))));
            return;
        }
    };
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        match start.await {
            Ok((address, joined)) => {
                if ready.send(Ok(address)).is_ok() {
                    tokio::select! {
                        () = joined => {}
                        _ = killed => {}
                    }
                }
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        }
    });
    drop(local);
    runtime.shutdown_background();
}
