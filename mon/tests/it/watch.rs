use pando_proto::mon::WatchMapRequest;
use pando_proto::mon::cluster_service_client::ClusterServiceClient;
use pando_proto::{Epoch, MAX_MESSAGE_BYTES, Reason};
use tokio_stream::StreamExt as _;

use crate::support::*;

#[tokio::test]
async fn a_slow_watcher_is_told_what_it_missed() {
    let dir = tempfile::tempdir().unwrap();
    let mon = TestMon::start(single(dir.path())).await;
    let client = mon.client();
    let first = client.get_map(Epoch(1)).await.unwrap();
    let channel = pando_rpc::channel(&mon.env.net, &mon.address()).unwrap();
    let mut service = ClusterServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let request = WatchMapRequest { have_epoch: first.epoch.0 };
    let mut stream = service.watch_map(request).await.unwrap().into_inner();
    let mut newest = first.epoch;
    for _ in 0..40 {
        newest = client.register_client("change").await.unwrap().1.epoch;
    }
    let mut have = first.epoch.0;
    while have < newest.0 {
        let response = within(stream.next()).await.unwrap().unwrap();
        let epoch = response.map.unwrap().epoch;
        assert_eq!(have + response.skipped_epochs + 1, epoch, "every epoch is sent or counted");
        have = epoch;
    }
    // Who has nothing gets the current map at once.
    let mut stream = service.watch_map(WatchMapRequest { have_epoch: 0 }).await.unwrap().into_inner();
    let response = within(stream.next()).await.unwrap().unwrap();
    assert_eq!((response.map.unwrap().epoch, response.skipped_epochs), (have, 0));
    mon.stop().await;
    let end = within(stream.next()).await;
    assert!(matches!(end, Some(Err(_)) | None), "a stop ends the stream");
}

#[tokio::test]
async fn a_watch_goes_on_when_its_mon_stops() {
    let mut group = Group::start(1000).await;
    let client = group.client();
    let (mut watch, _stop) = watch(&client).await;
    for id in [1, 2, 3] {
        group.stop_mon(id).await;
        let (_, map) = within(client.register_client("change")).await.unwrap();
        map_when(&mut watch, |seen| seen.epoch >= map.epoch).await;
        group.start_mon(id).await;
    }
    let late = watch.wait_for(Epoch(10_000), std::time::Duration::from_millis(10)).await.unwrap_err();
    assert_eq!(late.reason, Reason::Timeout);
    group.stop().await;
}
