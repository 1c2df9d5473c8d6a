//! Client connections with the same windows and limits as the servers.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::net::Net;

const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const FRAME_BYTES: u32 = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A lazily opened connection to `host:port` that opens itself again when it breaks.
///
/// Errors: an address that is no `host:port`.
pub fn channel(net: &Arc<dyn Net>, address: &str) -> Result<Channel, pando_proto::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| {
        pando_proto::Error::new(
            pando_proto::Reason::InvalidRequest,
            format!("`{address}` is no address of the form host:port: {error}"),
        )
    })?;
    let net = Arc::clone(net);
    let connector = tower::service_fn(move |uri: Uri| {
        let net = Arc::clone(&net);
        async move {
            let address = uri.authority().map(|authority| authority.to_string()).unwrap_or_default();
            net.connect(address).await.map(TokioIo::new)
        }
    });
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .http2_keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(connector))
}
