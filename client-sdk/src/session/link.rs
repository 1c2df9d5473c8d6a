//! One stream to one rank, opened again whenever it breaks.

use std::sync::Arc;
use std::time::Duration;

use pando_proto::mds::session_service_client::SessionServiceClient;
use pando_proto::mds::{Hello, OperationResult, ServerFrame, Welcome, server_frame};
use pando_proto::{Error, MAX_MESSAGE_BYTES, Rank, Reason};
use pando_rpc::pipe::{self, Pipe, PipeReplies};
use tokio::sync::watch;
use tonic::Streaming;

use super::Core;
use super::outgoing::{Message, Outgoing};

/// From the first byte to the Welcome.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Requests in one frame.
const FRAME_REQUESTS: usize = 256;
/// Messages that may wait to be sent; above the largest window of requests.
const QUEUE: usize = 1 << 17;

/// What a rank sends back.
#[derive(Debug)]
pub(crate) enum Reply {
    Result(OperationResult),
    Echo(bytes::Bytes),
}

/// A stream that is open and welcomed.
#[derive(Clone)]
pub(crate) struct Live {
    pub pipe: Pipe<Message, Reply>,
    /// Of the rank's process.
    pub incarnation: u64,
}

/// A rank's stream, or the wait for it.
pub(crate) struct Link {
    live: watch::Sender<Option<Live>>,
    last_error: watch::Sender<Option<Error>>,
    over: watch::Sender<bool>,
}

impl Link {
    /// Starts connecting; ends with `core.shutdown`.
    pub fn start(core: Arc<Core>, rank: Rank) -> Arc<Self> {
        let link = Arc::new(Self {
            live: watch::Sender::new(None),
            last_error: watch::Sender::new(None),
            over: watch::Sender::new(false),
        });
        let keeper = Keeper { core, rank, link: Arc::clone(&link) };
        tokio::spawn(async move {
            let shutdown = keeper.core.shutdown.clone();
            let link = Arc::clone(&keeper.link);
            tokio::select! {
                () = keeper.run() => {}
                () = shutdown.stopped() => {}
            }
            // Whoever waits for a stream learns that there will be none.
            link.over.send_replace(true);
        });
        link
    }

    /// The open stream; waits for one.
    pub async fn live(&self) -> Result<Live, Error> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let (mut live, mut over) = (self.live.subscribe(), self.over.subscribe());
        let found = tokio::select! {
            found = live.wait_for(|live| live.as_ref().is_some_and(|live| !live.pipe.is_closed())) => {
                found.ok().and_then(|live| live.clone())
            }
            _ = over.wait_for(|over| *over) => None,
        };
        found.ok_or_else(|| Error::new(Reason::Unavailable, "the session is over"))
    }

    fn current(&self) -> Option<Live> {
        self.live.borrow().as_ref().filter(|live| !live.pipe.is_closed()).cloned()
    }

    /// Why there is no stream, if there is none.
    pub fn last_error(&self) -> Option<Error> {
        self.last_error.borrow().clone()
    }
}

struct Keeper {
    core: Arc<Core>,
    rank: Rank,
    link: Arc<Link>,
}

struct Opened {
    frames: Streaming<ServerFrame>,
    welcome: Welcome,
    pipe: Pipe<Message, Reply>,
    replies: PipeReplies<Message, Reply>,
}

impl Keeper {
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.open().await {
                Ok(opened) => {
                    pause = FIRST_PAUSE;
                    self.serve(opened).await
                }
                Err(error) => error,
            };
            self.link.live.send_replace(None);
            // A rank of another cluster only says that the address is somebody else's by now: a newer map tells where ours
            // is. That our cluster is gone is for the mons to say.
            if error.reason == Reason::StaleSession {
                self.core.end(error);
                return;
            }
            tracing::debug!(rank = %self.rank, %error, "the stream to the rank is down");
            self.link.last_error.send_replace(Some(error));
            // Clients spread a little, so that they do not all come back at the same moment.
            let spread = Duration::from_micros(self.core.client.0 % 64 * 100);
            self.core.map_changed_within(pause + spread).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn open(&self) -> Result<Opened, Error> {
        let map = self.core.map.current();
        let unavailable = |what: String| Error::new(Reason::Unavailable, what);
        let rank = map.ranks.get(&self.rank).filter(|rank| rank.up);
        let rank = rank.ok_or_else(|| unavailable(format!("{} is not up", self.rank)))?;
        let address = rank.address.clone();
        let opening = tokio::time::timeout(CONNECT_LIMIT, self.open_at(&address, map.cluster_id));
        opening.await.unwrap_or_else(|_| Err(unavailable(format!("{} at {address} does not answer", self.rank))))
    }

    async fn open_at(&self, address: &str, cluster_id: [u8; 16]) -> Result<Opened, Error> {
        let channel = pando_rpc::channel(&self.core.net, address)?;
        let mut service = SessionServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let hello = Hello {
            cluster_id: cluster_id.to_vec().into(),
            client_id: self.core.client.0,
            map_epoch: self.core.map.current().epoch.0,
        };
        let (pipe, messages, replies) = pipe::pipe(QUEUE, FRAME_REQUESTS);
        let outgoing = Outgoing::new(hello, messages, Arc::clone(&self.core.window), self.core.map.clone());
        let mut frames = service.stream(outgoing).await?.into_inner();
        let first = frames.message().await?.and_then(|frame| frame.frame);
        match first {
            Some(server_frame::Frame::Welcome(welcome)) if welcome.rank == self.rank.0 => {
                self.core.window.limit(welcome.window);
                Ok(Opened { frames, welcome, pipe, replies })
            }
            Some(server_frame::Frame::Welcome(welcome)) => {
                let message = format!("{address} is mds.{}, not {}", welcome.rank, self.rank);
                Err(Error::new(Reason::NotOwner, message))
            }
            _ => Err(Error::new(Reason::Internal, format!("{address} did not start with a Welcome"))),
        }
    }

    /// Hands in replies until the stream breaks; says why it did.
    async fn serve(&self, opened: Opened) -> Error {
        let Opened { mut frames, welcome, pipe, replies } = opened;
        let live = Live { pipe, incarnation: welcome.incarnation };
        let reading = async {
            loop {
                match frames.message().await {
                    Ok(Some(frame)) => {
                        if let Some(server_frame::Frame::KeepAlive(alive)) = &frame.frame {
                            self.core.awaited_by(&alive.awaiting);
                        }
                        if let Err(error) = hand_in(frame, &replies) {
                            return error;
                        }
                    }
                    Ok(None) => return Error::new(Reason::Unavailable, "the rank ended the stream"),
                    Err(status) => return Error::from_tonic(&status),
                }
            }
        };
        self.core.welcomed(self.rank, welcome.incarnation);
        self.link.last_error.send_replace(None);
        self.link.live.send_replace(Some(live));
        tokio::select! {
            broken = reading => broken,
            () = self.replaced(welcome.incarnation) => {
                Error::new(Reason::Unavailable, "another process serves the rank now")
            }
        }
    }

    /// Ends when the map says that a later process has the rank: a machine that died closes no stream.
    async fn replaced(&self, incarnation: u64) {
        let mut map = self.core.map.clone();
        loop {
            if map.current().ranks.get(&self.rank).is_some_and(|rank| rank.incarnation > incarnation) {
                return;
            }
            map.changed().await;
        }
    }
}

fn hand_in(frame: ServerFrame, replies: &PipeReplies<Message, Reply>) -> Result<(), Error> {
    match frame.frame {
        // Late replies, to calls that gave up, find nobody: that is fine.
        Some(server_frame::Frame::Replies(frame)) => {
            for reply in frame.replies {
                replies.complete(reply.id, Ok(Reply::Result(reply.result.unwrap_or_default())));
            }
        }
        Some(server_frame::Frame::Echo(echo)) => {
            for item in echo.items {
                replies.complete(item.id, Ok(Reply::Echo(item.payload)));
            }
        }
        Some(server_frame::Frame::KeepAlive(_)) | None => {}
        Some(server_frame::Frame::Welcome(_)) => {
            return Err(Error::new(Reason::Internal, "the rank sent a second Welcome"));
        }
    }
    Ok(())
}
