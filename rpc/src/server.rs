//! Serving: one set of limits and windows for every daemon, with reflection and health.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::net::{Listener, Net};

const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const FRAME_BYTES: u32 = 1 << 20;
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls that a peer gave up before they were looked at. HTTP/2 servers end a connection that has more of them, with all
/// its other calls: a client that drops many calls at once, at their deadline, is no attacker.
const GIVEN_UP: usize = 16 << 10;
/// How long calls in flight may take to end after a stop was asked for.
const DRAIN: Duration = Duration::from_millis(500);

/// Tells the parts of a daemon to stop. Clones share one state.
#[derive(Clone)]
pub struct Shutdown(Arc<watch::Sender<bool>>);

impl Default for Shutdown {
    fn default() -> Self {
        Self(Arc::new(watch::channel(false).0))
    }
}

impl Shutdown {
    /// Asks all parts to stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether a stop was asked for.
    pub fn is_stopping(&self) -> bool {
        *self.0.borrow()
    }

    /// Ends when a stop was asked for.
    pub async fn stopped(&self) {
        let mut receiver = self.0.subscribe();
        // The sender lives in `self`.
        let _ = receiver.wait_for(|stopping| *stopping).await;
    }
}

/// Routes with what every daemon offers: reflection (v1 and v1alpha) of the services of `package`, which are the
/// daemon's own (`pando.mds.v1`), and health.
pub async fn standard_routes(package: &str) -> Routes {
    let descriptors = descriptors(package);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_file_descriptor_set(descriptors.clone())
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let v1 = reflection().build_v1().expect("our own descriptors are valid");
    let v1alpha = reflection().build_v1alpha().expect("our own descriptors are valid");
    Routes::new(health).add_service(v1).add_service(v1alpha)
}

/// The descriptors of all messages, for packages use each other's, but of the services of one package only.
fn descriptors(package: &str) -> FileDescriptorSet {
    let mut all = FileDescriptorSet::decode(pando_proto::FILE_DESCRIPTOR_SET).expect("our own descriptors are valid");
    for file in all.file.iter_mut().filter(|file| file.package() != package) {
        file.service.clear();
    }
    all
}

/// Serves until `shutdown`, then lets calls in flight end for a moment.
///
/// Errors: only those of the listener; a broken connection ends alone.
pub async fn serve(listener: Listener, routes: Routes, shutdown: Shutdown) -> io::Result<()> {
    let incoming = listener.incoming.filter_map(|accepted| async move {
        accepted.inspect_err(|error| tracing::warn!(%error, "accept failed")).ok().map(Ok::<_, io::Error>)
    });
    let signal = shutdown.clone();
    let serving = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .http2_max_pending_accept_reset_streams(Some(GIVEN_UP))
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, async move { signal.stopped().await });
    let deadline = async {
        shutdown.stopped().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        served = serving => served.map_err(io::Error::other),
        () = deadline => Ok(()),
    }
}

/// Binds and reports the address before serving starts.
pub async fn bind(net: &Arc<dyn Net>, address: std::net::SocketAddr) -> io::Result<Listener> {
    net.bind(address).await
}

#[cfg(test)]
mod tests;
