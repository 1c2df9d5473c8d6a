//! The simulated network: turmoil's sockets behind [`Net`]. A process has one end of each connection, and its host the
//! other one, which is turmoil's; between them is what a kernel keeps for a process that does not look.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use pando_rpc::net::{BoxIo, Listener, Net};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, copy_bidirectional_with_sizes, duplex};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;
use turmoil::net::{TcpListener, TcpStream};

use crate::gate::{Gate, Place};

/// What a host keeps of a connection in each direction.
const BUFFER: usize = 1 << 16;

/// A socket that listens, and what comes by it.
type Listening = (SocketAddr, mpsc::UnboundedReceiver<io::Result<SimIo>>);

/// What a process asks of its host.
enum Call {
    Bind(SocketAddr, oneshot::Sender<io::Result<Listening>>),
    Connect(String, oneshot::Sender<io::Result<SimIo>>),
}

/// The end of a process. Nothing passes while the gate is shut.
pub(crate) struct SimNet(mpsc::UnboundedSender<Call>);

/// The end of its host.
pub(crate) struct Wires {
    calls: mpsc::UnboundedReceiver<Call>,
    gate: Gate,
}

/// A network for a process.
pub(crate) fn attach(gate: Gate) -> (SimNet, Wires) {
    let (sender, calls) = mpsc::unbounded_channel();
    (SimNet(sender), Wires { calls, gate })
}

impl SimNet {
    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(oneshot::Sender<io::Result<T>>) -> Call,
    ) -> BoxFuture<'static, io::Result<T>> {
        let (sender, answer) = oneshot::channel();
        let _ = self.0.send(call(sender));
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err(io::ErrorKind::NetworkDown.into())) })
    }
}

impl Net for SimNet {
    fn bind(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>> {
        let bound = self.call(|answer| Call::Bind(address, answer));
        Box::pin(async move {
            let (local, incoming) = bound.await?;
            let incoming = futures_util::stream::unfold(incoming, |mut incoming| async move {
                let accepted: io::Result<SimIo> = incoming.recv().await?;
                Some((accepted.map(BoxIo::new), incoming))
            });
            Ok(Listener { local, incoming: Box::pin(incoming) })
        })
    }

    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<BoxIo>> {
        let connected = self.call(|answer| Call::Connect(address, answer));
        Box::pin(async move { connected.await.map(BoxIo::new) })
    }
}

impl Wires {
    /// Does what the process asks. Ends with the host only.
    pub async fn carry(mut self) -> Infallible {
        while let Some(call) = self.calls.recv().await {
            match call {
                Call::Connect(address, answer) => {
                    let gate = self.gate.clone();
                    spawn_local(async move {
                        let connected = TcpStream::connect(address).await;
                        // Whoever asked may have given up.
                        let _ = answer.send(connected.map(|stream| plug(stream, &gate)));
                    });
                }
                Call::Bind(address, answer) => {
                    let _ = answer.send(listen(address, self.gate.clone()).await);
                }
            }
        }
        pending().await
    }
}

async fn listen(address: SocketAddr, gate: Gate) -> io::Result<Listening> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await?;
    let local = SocketAddr::new(address.ip(), listener.local_addr()?.port());
    let (sender, incoming) = mpsc::unbounded_channel();
    spawn_local(async move {
        loop {
            tokio::select! {
                biased;
                () = sender.closed() => return,
                accepted = listener.accept() => {
                    let _ = sender.send(accepted.map(|(stream, _)| plug(stream, &gate)));
                }
            }
        }
    });
    Ok((local, incoming))
}

/// The end of a process for a connection.
fn plug(mut stream: TcpStream, gate: &Gate) -> SimIo {
    let peer = stream.peer_addr().ok().and_then(|address| turmoil::reverse_lookup(address.ip())).unwrap_or_default();
    let (near, mut far) = duplex(BUFFER);
    spawn_local(async move {
        // When it breaks the process still reads what had arrived, and then that there is no more.
        let _ = copy_bidirectional_with_sizes(&mut far, &mut stream, BUFFER, BUFFER).await;
    });
    SimIo { stream: near, gate: gate.clone(), place: gate.connection(peer) }
}

struct SimIo {
    stream: DuplexStream,
    gate: Gate,
    place: Arc<Place>,
}

const READING: usize = 0;
const WRITING: usize = 1;

impl SimIo {
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
