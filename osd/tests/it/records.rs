//! Records through gRPC, on one OSD.

use std::sync::Arc;

use bytes::Bytes;
use pando_mds_records::fence_key;
use pando_proto::osd::CommitOutcome;
use pando_proto::{Epoch, Reason, ShardId, SubtreeId};

use crate::cluster::{Cluster, DEADLINE, batch, bytes, engines};

mod pando_mds_records {
    use bytes::{BufMut as _, Bytes, BytesMut};

    /// `f/<subtree>` as it stands within a shard.
    pub fn fence_key(subtree: u64) -> Bytes {
        let mut key = BytesMut::new();
        key.put_u8(b'f');
        key.put_u64(subtree);
        key.freeze()
    }
}

const SHARD: ShardId = ShardId(3);

#[tokio::test(flavor = "multi_thread")]
async fn r2_a_late_copy_of_a_batch_does_not_revive_a_deleted_name() {
    for (engine, _dir) in engines() {
        let cluster = Cluster::with_engines(vec![engine], 1).await;
        let records = cluster.records();
        let one = batch(3, 1, 1, &[("d/name", "one")]);
        let mut two = batch(3, 1, 2, &[]);
        two.deletes.push(bytes("d/name"));
        assert_eq!(records.commit(one.clone()).await.unwrap().outcome(), CommitOutcome::Done);
        assert_eq!(records.get(SHARD, vec![bytes("d/name")]).await.unwrap(), [Some(bytes("one"))]);
        assert_eq!(records.commit(two).await.unwrap().outcome(), CommitOutcome::Done);
        assert_eq!(records.commit(one).await.unwrap().outcome(), CommitOutcome::Done);
        assert_eq!(records.get(SHARD, vec![bytes("d/name")]).await.unwrap(), [None]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_a_raised_fence_refuses_the_old_owner_and_keeps_the_position() {
    let cluster = Cluster::new(1, 1).await;
    let records = cluster.records();
    records.commit(batch(3, 4, 7, &[("i", "a")])).await.unwrap();
    let raised = records.raise_fence(SHARD, SubtreeId(1), Epoch(6)).await.unwrap();
    assert_eq!((raised.fence_epoch, raised.applied_epoch, raised.applied_batch), (6, 4, 7));
    let refused = records.commit(batch(3, 5, 1, &[("i", "b")])).await.unwrap();
    assert_eq!((refused.outcome(), refused.fence_epoch), (CommitOutcome::Fenced, 6));
    let again = records.raise_fence(SHARD, SubtreeId(1), Epoch(5)).await.unwrap();
    assert_eq!(again.fence_epoch, 6, "a fence is never lowered");
    assert_eq!(records.get(SHARD, vec![bytes("i")]).await.unwrap(), [Some(bytes("a"))]);
    let value = records.get(SHARD, vec![fence_key(1)]).await.unwrap().remove(0).unwrap();
    let fence = <pando_proto::mds::FenceRecord as prost::Message>::decode(&value[1..]).unwrap();
    assert_eq!((value[0], fence.fence_epoch, fence.applied_epoch, fence.applied_batch), (1, 6, 4, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_page_through_one_shard_only() {
    for (engine, _dir) in engines() {
        let cluster = Cluster::with_engines(vec![engine], 1).await;
        let records = cluster.records();
        let names: Vec<String> = (0..25).map(|number| format!("d/{number:03}")).collect();
        for (shard, value) in [(3, "here"), (5, "there")] {
            let puts: Vec<_> = names.iter().map(|name| (name.as_str(), value)).collect();
            records.commit(batch(shard, 1, 1, &puts)).await.unwrap();
        }
        let (mut start, mut found) = (Bytes::new(), Vec::new());
        loop {
            let (page, next) = records.scan(SHARD, start, Bytes::new(), 10).await.unwrap();
            assert!(page.len() <= 10);
            found.extend(page);
            match next {
                Some(next) => start = next,
                None => break,
            }
        }
        found.retain(|(key, _)| key[0] == b'd');
        assert_eq!(found.len(), 25);
        assert!(found.iter().all(|(_, value)| value == "here"));
        let (page, next) = records.scan(SHARD, bytes("d/005"), bytes("d/007"), 0).await.unwrap();
        assert_eq!((page.len(), next), (2, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_commits_at_once_all_arrive() {
    let cluster = Cluster::new(1, 1).await;
    let records = Arc::new(cluster.records());
    let tasks: Vec<_> = (0..64u32)
        .map(|shard| {
            let records = Arc::clone(&records);
            tokio::spawn(async move {
                for number in 1..=20 {
                    let value = number.to_string();
                    records.commit(batch(shard, 1, number, &[("k", value.as_str())])).await.unwrap();
                }
                records.get(ShardId(shard as u16), vec![bytes("k")]).await.unwrap()
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), [Some(bytes("20"))]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_is_there_after_a_crash() {
    for (engine, _dir) in engines() {
        let mut cluster = Cluster::with_engines(vec![engine], 1).await;
        let records = cluster.records();
        records.commit(batch(3, 1, 1, &[("k", "v")])).await.unwrap();
        cluster.kill(0);
        cluster.start(0).await;
        assert_eq!(records.get(SHARD, vec![bytes("k")]).await.unwrap(), [Some(bytes("v"))]);
        let again = records.commit(batch(3, 1, 1, &[("k", "other")])).await.unwrap();
        assert_eq!(again.outcome(), CommitOutcome::Done);
        assert_eq!(records.get(SHARD, vec![bytes("k")]).await.unwrap(), [Some(bytes("v"))]);
    }
}

/// R7: else the stream breaks, all of them are repeated together, and so on for ever.
#[tokio::test]
async fn large_batches_that_wait_together_do_not_share_a_message_that_is_too_large() {
    let cluster = Cluster::new(1, 1).await;
    let records = cluster.records();
    // Opens the stream; what follows is queued before it is sent.
    records.get(SHARD, vec![bytes("k")]).await.unwrap();
    let large = "x".repeat(6 << 20);
    let commits = (3..6).map(|shard| records.commit(batch(shard, 1, 1, &[("k", &large)])));
    let committed = tokio::time::timeout(DEADLINE, futures_util::future::join_all(commits)).await.expect("in time");
    for response in committed {
        assert_eq!(response.unwrap().outcome(), CommitOutcome::Done);
    }
    let mut too_large = batch(3, 1, 2, &[("k", &large)]);
    too_large.puts = vec![too_large.puts[0].clone(); 3];
    assert_eq!(records.commit(too_large).await.unwrap_err().reason, Reason::TooLarge, "and is not repeated");
}
