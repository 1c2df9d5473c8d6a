//! The simulated network: turmoil's sockets behind [`Net`].

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use pando_rpc::net::{BoxIo, Listener, Net};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream};

/// Sockets of the host that a future runs on. Port 0 takes the next free one of `first_port`..
#[derive(Clone, Debug)]
pub struct SimNet {
    next_port: Arc<AtomicU16>,
}

impl SimNet {
    /// A network whose listeners without a port start at `first_port`.
    pub fn new(first_port: u16) -> Self {
        Self { next_port: Arc::new(AtomicU16::new(first_port)) }
    }
}

impl Net for SimNet {
    fn bind(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>> {
        let port = match address.port() {
            0 => self.next_port.fetch_add(1, Ordering::Relaxed),
            port => port,
        };
        Box::pin(async move {
            let listener = TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, port)).await?;
            let local = SocketAddr::new(address.ip(), port);
            let incoming = futures_util::stream::unfold(listener, |listener| async move {
                let accepted = listener.accept().await.map(|(stream, _)| BoxIo::new(SimIo(stream)));
                Some((accepted, listener))
            });
            Ok(Listener { local, incoming: Box::pin(incoming) })
        })
    }

    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<BoxIo>> {
        Box::pin(async move { Ok(BoxIo::new(SimIo(TcpStream::connect(address).await?))) })
    }
}

struct SimIo(TcpStream);

impl AsyncRead for SimIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for SimIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
