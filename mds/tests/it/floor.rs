//! Echo, the floor of the transport, travels as requests do.

use bytes::Bytes;
use pando_proto::mds::client_frame::Frame as Up;
use pando_proto::mds::server_frame::Frame as Down;
use pando_proto::mds::{Echo, EchoItem};

use crate::harness::*;

#[test]
fn an_echo_brings_back_every_item() {
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, 1 << 20).await;
        let mut client = rank.connect(1).await;
        let items: Vec<_> = (0..64).map(|id| EchoItem { id, payload: Bytes::from(vec![id as u8; 200]) }).collect();
        client.raw(Up::Echo(Echo { items: items.clone() })).await;
        let mut back = Vec::new();
        while back.len() < items.len() {
            let Ok(Some(Down::Echo(echo))) = client.next_frame().await else { panic!("an echo") };
            back.extend(echo.items);
        }
        assert_eq!(back, items);
        rank.stop().await;
    });
}
