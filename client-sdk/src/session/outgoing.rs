//! What goes out on a stream: the hello, then frames of requests, and a keep-alive now and then.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use pando_mon_client::MapWatch;
use pando_proto::mds::{
    ClientFrame, Echo, EchoItem, Hello, KeepAlive, Operation, Request, Requests, client_frame::Frame, operation::Op,
};
use pando_rpc::queue;
use tokio::time::Interval;

use super::window::Window;

/// Renews the session while nothing else is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// A frame takes requests until their data reach this; far below what servers accept.
const FRAME_BYTES: usize = 1 << 20;

/// One thing to send.
#[derive(Debug)]
// Nearly all are requests: a box would cost each an allocation.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Message {
    /// A numbered operation; `id` is the pipe's.
    Request(Request),
    /// Bytes to be sent back.
    Echo(Bytes),
}

/// The stream that tonic pulls frames from.
pub(crate) struct Outgoing {
    hello: Option<Hello>,
    messages: queue::Receiver<(u64, Message)>,
    /// Taken from the queue, not yet in a frame.
    ready: VecDeque<(u64, Message)>,
    keep_alive: Interval,
    window: Arc<Window>,
    map: MapWatch,
}

impl Outgoing {
    pub fn new(hello: Hello, messages: queue::Receiver<(u64, Message)>, window: Arc<Window>, map: MapWatch) -> Self {
        let mut keep_alive = tokio::time::interval(KEEP_ALIVE);
        keep_alive.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        keep_alive.reset();
        Self { hello: Some(hello), messages, ready: VecDeque::new(), keep_alive, window, map }
    }

    fn map_epoch(&self) -> u64 {
        self.map.current().epoch.0
    }

    /// A frame of the first messages of one kind.
    fn next_frame(&mut self) -> Option<Frame> {
        match self.ready.front()? {
            (_, Message::Request(_)) => Some(Frame::Requests(self.requests())),
            (_, Message::Echo(_)) => Some(Frame::Echo(self.echoes())),
        }
    }

    fn requests(&mut self) -> Requests {
        let mut requests = Vec::with_capacity(self.ready.len());
        let mut bytes = 0;
        while let Some((_, Message::Request(request))) = self.ready.front() {
            bytes += weight(request.operation.as_ref());
            if bytes > FRAME_BYTES && !requests.is_empty() {
                break;
            }
            if let Some((_, Message::Request(request))) = self.ready.pop_front() {
                requests.push(request);
            }
        }
        // After the requests were taken: their own numbers are open, so the lowest cannot pass them.
        Requests { lowest_unanswered: self.window.lowest(), map_epoch: self.map_epoch(), requests }
    }

    fn echoes(&mut self) -> Echo {
        let mut items = Vec::new();
        let mut bytes = 0;
        while let Some((_, Message::Echo(payload))) = self.ready.front() {
            bytes += payload.len();
            if bytes > FRAME_BYTES && !items.is_empty() {
                break;
            }
            if let Some((id, Message::Echo(payload))) = self.ready.pop_front() {
                items.push(EchoItem { id, payload });
            }
        }
        Echo { items }
    }
}

impl Stream for Outgoing {
    type Item = ClientFrame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ClientFrame>> {
        let this = &mut *self;
        let frame = |frame| Poll::Ready(Some(ClientFrame { frame: Some(frame) }));
        if let Some(hello) = this.hello.take() {
            return frame(Frame::Hello(hello));
        }
        if this.ready.is_empty() {
            match Pin::new(&mut this.messages).poll_next(cx) {
                Poll::Ready(Some(messages)) => this.ready = messages.into(),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {}
            }
        }
        if let Some(next) = this.next_frame() {
            return frame(next);
        }
        match this.keep_alive.poll_tick(cx) {
            Poll::Ready(_) => frame(Frame::KeepAlive(KeepAlive {
                lowest_unanswered: this.window.lowest(),
                map_epoch: this.map_epoch(),
                awaiting: Vec::new(),
            })),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// About how many bytes an operation takes in a frame.
fn weight(operation: Option<&Operation>) -> usize {
    let data = match operation.and_then(|operation| operation.op.as_ref()) {
        Some(Op::WriteFile(request)) => request.data.len(),
        Some(Op::Write(request)) => request.data.len(),
        Some(Op::SetXattr(request)) => request.value.len(),
        Some(Op::Reclaim(request)) => request.handles.len() * 24,
        _ => 0,
    };
    data + 128
}
