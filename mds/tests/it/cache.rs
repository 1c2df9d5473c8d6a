//! The cache keeps its budget whatever clients do (I8).

use pando_proto::Reason;

use crate::harness::*;

#[test]
fn the_cache_keeps_its_budget_and_what_was_dropped_comes_back() {
    const BUDGET: u64 = 256 << 10;
    run(async {
        let world = World::default();
        let rank = TestRank::start(&world, 1, BUDGET).await;
        let mut client = rank.connect(1).await;
        client.call(mkdir("dir")).await.unwrap();
        let body = |n: usize| format!("{n}").repeat(200);
        for round in 0..20 {
            let operations = (0..50).map(|n| write_file(&format!("dir/{round}-{n}"), body(n).as_bytes())).collect();
            for id in client.send(operations).await {
                result(client.reply(id).await).unwrap();
            }
            client.lowest += 50;
        }
        let used = || {
            let used = rank.handle.cache_usage();
            used.meta_bytes + used.body_bytes
        };
        while used() > BUDGET {
            client.call(stat("dir")).await.unwrap();
        }
        for round in (0..20).step_by(7) {
            let read = client.call(read_file(&format!("dir/{round}-{}", round + 1))).await.unwrap();
            assert_eq!(body_of(read).as_deref(), Some(body(round + 1).as_bytes()));
        }
        while used() > BUDGET {
            client.call(stat("dir")).await.unwrap();
        }
        rank.stop().await;
    });
}

#[test]
fn a_client_that_does_not_read_its_replies_is_refused_and_loses_nothing() {
    run(async {
        let world = World { inline_limit: Some(64 << 10), ..World::default() };
        let rank = TestRank::start(&world, 1, 64 << 20).await;
        let mut client = rank.connect(1).await;
        let body = vec![7; 60 << 10];
        client.call(write_file("file", &body)).await.unwrap();
        // 900 reads of 60 KiB: far more than may wait.
        let mut reads = Vec::new();
        for _ in 0..9 {
            reads.extend(client.send(vec![read_file("file"); 100]).await);
        }
        let (mut read, mut refused) = (0, 0);
        for id in reads {
            match result(client.reply(id).await) {
                Ok(reply) => {
                    assert_eq!(body_of(reply).as_deref(), Some(&body[..]));
                    read += 1;
                }
                Err(error) => {
                    assert_eq!(error.reason, Reason::Overloaded, "{error}");
                    refused += 1;
                }
            }
        }
        assert!(read > 20 && refused > 0, "{read} read, {refused} refused (I8)");
        assert_eq!(body_of(client.call(read_file("file")).await.unwrap()).as_deref(), Some(&body[..]));
        rank.stop().await;
    });
}
