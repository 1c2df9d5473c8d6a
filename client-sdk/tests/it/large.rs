use pando_client::OpenOptions;

use crate::{end, pattern, small, within};

#[tokio::test]
async fn holes_read_as_zeros() {
    let (cluster, client) = small().await;
    let file = OpenOptions::new().read(true).write(true).create(true).open(&client, "/f").await.unwrap();
    within(file.write_at(10 << 20, b"end")).await.unwrap();
    within(file.write_at(5 << 20, b"middle")).await.unwrap();
    let mut expected = vec![0; (10 << 20) + 3];
    expected[10 << 20..].copy_from_slice(b"end");
    expected[5 << 20..(5 << 20) + 6].copy_from_slice(b"middle");
    assert!(within(file.read_at(0, 20 << 20)).await.unwrap() == expected);
    assert!(within(client.read("/f")).await.unwrap() == expected);
    assert_eq!(within(file.read_at(20 << 20, 5)).await.unwrap(), "");
    within(file.close()).await.unwrap();
    end(cluster, client).await;
}

#[tokio::test]
async fn another_client_sees_each_write_when_it_has_returned() {
    let (cluster, client) = small().await;
    let reader = pando_client::Client::connect(&cluster.mon_addresses()).await.unwrap();
    let file = OpenOptions::new().write(true).create(true).open(&client, "/f").await.unwrap();
    client.write("/f", "").await.unwrap();
    let other = reader.open("/f").await.unwrap();
    let mut offset = 0;
    for number in 0..40_u64 {
        let data = pattern(number, 1 + number as usize * 997);
        within(file.write_at(offset, &data)).await.unwrap();
        assert_eq!(within(other.read_at(offset, data.len() + 5)).await.unwrap(), data, "write {number}");
        offset += data.len() as u64;
    }
    within(reader.truncate("/f", 10)).await.unwrap();
    assert_eq!(within(other.read_at(0, 100)).await.unwrap().len(), 10);
    within(file.write_at(20, b"after")).await.unwrap();
    let body = within(other.read_at(0, 100)).await.unwrap();
    assert_eq!((body.len(), &body[10..20], &body[20..]), (25, &[0; 10][..], &b"after"[..]));
    within(reader.truncate("/f", 0)).await.unwrap();
    within(file.write_at(0, b"anew")).await.unwrap();
    assert_eq!(within(other.read_at(0, 100)).await.unwrap(), "anew");
    within(file.close()).await.unwrap();
    within(other.close()).await.unwrap();
    within(reader.close()).await.unwrap();
    end(cluster, client).await;
}

#[tokio::test]
async fn writes_overlap_without_loss() {
    let (cluster, client) = small().await;
    let file = OpenOptions::new().read(true).write(true).create(true).open(&client, "/f").await.unwrap();
    let part = 300_000;
    let writes = (0..40_u64).rev().map(|number| file.write_at(number * part, pattern(number, part as usize)));
    let written = within(futures_util::future::join_all(writes)).await;
    assert!(written.into_iter().all(|written| written.is_ok()));
    let whole = within(file.read_at(0, 40 * part as usize)).await.unwrap();
    for number in 0..40_u64 {
        let at = (number * part) as usize;
        assert!(whole[at..at + part as usize] == pattern(number, part as usize), "part {number}");
    }
    within(file.close()).await.unwrap();
    end(cluster, client).await;
}
