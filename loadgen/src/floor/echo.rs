//! The echo over the stream of metadata operations, without the client library.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::StreamExt as _;
use pando_mon_client::MonClient;
use pando_proto::mds::session_service_client::SessionServiceClient;
use pando_proto::mds::{ClientFrame, Echo, EchoItem, Hello, client_frame, server_frame};
use pando_proto::{MAX_MESSAGE_BYTES, Rank};
use pando_rpc::pipe::{self, Pipe};
use pando_rpc::{Net, TcpNet};

use super::{Figure, Options, SIZE, Turn};
use crate::content::generated;
use crate::measure::Recorder;

/// Bounds of a stream with one request in flight.
const QUEUE: usize = 64;

pub(super) fn measure(
    mons: &str,
    options: &Options,
    figure: &mut Figure,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let turn = Turn::new(options);
    let one = &turn;
    turn.run(figure, recorder, |client| async move {
        let stream = Stream::open(mons).await?;
        let payload = Bytes::from(generated(client as u64, 0, SIZE));
        one.barrier.wait().await;
        let mut recorder = Recorder::default();
        let start = Instant::now();
        for id in 1_u64.. {
            let began = Instant::now();
            let reply = stream.pipe.call(id, payload.clone()).await?;
            recorder.ended("echo", began);
            anyhow::ensure!(reply == payload, "the echo brought other bytes");
            if start.elapsed() >= one.limit {
                break;
            }
        }
        let took = start.elapsed();
        stream.close().await?;
        Ok((recorder, took))
    })
}

struct Stream {
    pipe: Pipe<Bytes, Bytes>,
    mon: MonClient,
    client: pando_proto::ClientId,
}

impl Stream {
    async fn open(mons: &str) -> anyhow::Result<Self> {
        let net: Arc<dyn Net> = Arc::new(TcpNet);
        let mon = MonClient::new(Arc::clone(&net), mons.split(',').map(str::to_owned).collect())?;
        let (client, map) = mon.register_client("loadgen floor").await?;
        let rank = map.ranks.get(&Rank(0)).context("the cluster has no rank 0")?;
        let channel = pando_rpc::channel(&net, &rank.address)?;
        let mut service = SessionServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let hello = Hello { cluster_id: map.cluster_id.to_vec().into(), client_id: client.0, map_epoch: map.epoch.0 };
        let (pipe, outgoing, replies) = pipe::pipe::<Bytes, Bytes>(QUEUE, QUEUE);
        let hello = ClientFrame { frame: Some(client_frame::Frame::Hello(hello)) };
        let echoes = outgoing.map(|items| {
            let items = items.into_iter().map(|(id, payload)| EchoItem { id, payload }).collect();
            ClientFrame { frame: Some(client_frame::Frame::Echo(Echo { items })) }
        });
        let requests = futures_util::stream::once(std::future::ready(hello)).chain(echoes);
        let mut frames = service.stream(requests).await?.into_inner();
        let welcome = frames.message().await?.and_then(|frame| frame.frame);
        anyhow::ensure!(matches!(welcome, Some(server_frame::Frame::Welcome(_))), "the rank did not welcome us");
        tokio::spawn(async move {
            // Dropping `replies` at the end fails the calls that wait.
            while let Ok(Some(frame)) = frames.message().await {
                if let Some(server_frame::Frame::Echo(echo)) = frame.frame {
                    for item in echo.items {
                        replies.complete(item.id, Ok(item.payload));
                    }
                }
            }
        });
        Ok(Self { pipe, mon, client })
    }

    async fn close(self) -> anyhow::Result<()> {
        self.mon.end_session(self.client, false).await?;
        Ok(())
    }
}
