use std::collections::BTreeSet;

use pando_client::{Client, OpenOptions};

use crate::{end, small, within};

#[tokio::test]
async fn concurrent_appends_lose_and_overlap_nothing() {
    let (cluster, client) = small().await;
    let mons = cluster.mon_addresses();
    let appender = |writer: u32| {
        let mons = mons.clone();
        tokio::spawn(async move {
            let client = Client::connect(&mons).await.unwrap();
            let file = OpenOptions::new().append(true).create(true).open(&client, "/log").await.unwrap();
            for number in 0..100 {
                file.append_at_end(format!("writer {writer} line {number:04}\n")).await.unwrap();
            }
            file.close().await.unwrap();
            client.close().await.unwrap();
        })
    };
    let appenders: Vec<_> = (0..4).map(appender).collect();
    for appender in appenders {
        within(appender).await.unwrap();
    }
    let log = client.read("/log").await.unwrap();
    let text = std::str::from_utf8(&log).unwrap();
    let lines: BTreeSet<_> = text.lines().collect();
    let expected: Vec<_> =
        (0..4).flat_map(|writer| (0..100).map(move |number| format!("writer {writer} line {number:04}"))).collect();
    assert_eq!(text.lines().count(), 400, "beyond the inline limit on the way");
    assert_eq!(lines, expected.iter().map(String::as_str).collect());
    end(cluster, client).await;
}

#[tokio::test]
async fn after_a_cut_appends_go_to_the_new_end() {
    let (cluster, client) = small().await;
    let file = OpenOptions::new().read(true).append(true).create(true).open(&client, "/log").await.unwrap();
    let first = vec![b'a'; 20_000];
    assert_eq!(within(file.append_at_end(&first)).await.unwrap(), 0);
    client.truncate("/log", 100).await.unwrap();
    assert_eq!(within(file.append_at_end("b")).await.unwrap(), 100);
    assert_eq!(client.read("/log").await.unwrap().len(), 101);
    file.close().await.unwrap();
    assert_eq!(client.append("/log", "c").await.unwrap(), 101);
    end(cluster, client).await;
}
