//! The simulated network: turmoil's sockets behind [`Net`].

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use pando_rpc::net::{BoxIo, Listener, Net};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream};

use crate::gate::{Gate, Place};

/// Sockets of the host that a future runs on. Port 0 takes the next free one of `first_port`..
#[derive(Clone, Debug)]
pub struct SimNet {
    next_port: Arc<AtomicU16>,
    gate: Gate,
}

impl SimNet {
    /// A network whose listeners without a port start at `first_port`; nothing passes while the gate is shut.
    pub fn new(first_port: u16, gate: Gate) -> Self {
        Self { next_port: Arc::new(AtomicU16::new(first_port)), gate }
    }
}

impl Net for SimNet {
    fn bind(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>> {
        let port = match address.port() {
            0 => self.next_port.fetch_add(1, Ordering::Relaxed),
            port => port,
        };
        let gate = self.gate.clone();
        Box::pin(async move {
            let listener = TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, port)).await?;
            let local = SocketAddr::new(address.ip(), port);
            let incoming = futures_util::stream::unfold((listener, gate), |(listener, gate)| async move {
                let accepted = listener.accept().await.map(|(stream, _)| BoxIo::new(SimIo::new(stream, &gate)));
                Some((accepted, (listener, gate)))
            });
            Ok(Listener { local, incoming: Box::pin(incoming) })
        })
    }

    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<BoxIo>> {
        let gate = self.gate.clone();
        Box::pin(async move { Ok(BoxIo::new(SimIo::new(TcpStream::connect(address).await?, &gate))) })
    }
}

struct SimIo {
    stream: TcpStream,
    gate: Gate,
    place: Arc<Place>,
}

const READING: usize = 0;
const WRITING: usize = 1;

impl SimIo {
    fn new(stream: TcpStream, gate: &Gate) -> Self {
        Self { stream, gate: gate.clone(), place: gate.connection() }
    }

    fn poll_open(&self, direction: usize, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let broken = self.place.poll_broken(direction, cx);
        let waits = self.gate.is_frozen() || direction == READING && self.place.is_kept();
        match (waits, broken) {
            (true, _) => Poll::Pending,
            (_, true) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncRead for SimIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(READING, cx))?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for SimIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(WRITING, cx))?;
        if !self.gate.may_write() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(WRITING, cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
