//! The cache keeps its budget whatever clients do (I8).

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
