//! Sockets behind a small trait, so that the whole cluster also runs on a simulated network.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Anything that is a byte stream in both directions.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// A connection of either side.
pub struct BoxIo(Box<dyn Io>);

impl BoxIo {
    /// Wraps a connection.
    pub fn new(io: impl Io) -> Self {
        Self(Box::new(io))
    }
}

impl Connected for BoxIo {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for BoxIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for BoxIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

/// A listening socket.
pub struct Listener {
    /// Address it got; the port is real even if 0 was asked for.
    pub local: SocketAddr,
    /// Accepted connections. An error of one `accept` does not end the stream.
    pub incoming: Pin<Box<dyn Stream<Item = io::Result<BoxIo>> + Send>>,
}

/// Makes listeners and connections.
pub trait Net: Send + Sync + 'static {
    /// Listens on `address`.
    fn bind(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>>;
    /// Connects to `host:port`.
    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<BoxIo>>;
}

/// TCP of the machine, with TCP_NODELAY on every socket of either side
/// (without it a unary call takes 44 ms: delayed ACK meets Nagle).
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpNet;

impl Net for TcpNet {
    fn bind(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>> {
        Box::pin(async move {
            let listener = tokio::net::TcpListener::bind(address)
                .await
                .map_err(|error| io::Error::new(error.kind(), bind_help(address, &error)))?;
            let local = listener.local_addr()?;
            let incoming = futures_util::stream::unfold(listener, |listener| async move {
                let accepted = listener.accept().await.and_then(|(stream, _)| {
                    stream.set_nodelay(true)?;
                    Ok(BoxIo::new(stream))
                });
                if accepted.is_err() {
                    // Out of file descriptors, mostly: do not spin.
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                Some((accepted, listener))
            });
            Ok(Listener { local, incoming: Box::pin(incoming) })
        })
    }

    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<BoxIo>> {
        Box::pin(async move {
            let stream = tokio::net::TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(BoxIo::new(stream))
        })
    }
}

fn bind_help(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "{address} is in use by another process: stop it or choose another address (port 0 takes a free one)"
            )
        }
        io::ErrorKind::PermissionDenied => format!("no right to listen on {address}: choose a port above 1023"),
        _ => format!("cannot listen on {address}: {error}"),
    }
}
