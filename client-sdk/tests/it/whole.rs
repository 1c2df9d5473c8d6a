use bytes::Bytes;
use pando_client::{Errno, OpenOptions};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

use crate::{end, pattern, small, within};

#[tokio::test]
async fn a_file_reads_as_written_whatever_its_size() {
    let (cluster, client) = small().await;
    for length in [0, 1, 4095, 4096, 4097, 100_000, 4 << 20, (9 << 20) + 17] {
        let data = pattern(length as u64, length);
        within(client.write("/f", &data)).await.unwrap();
        assert_eq!(within(client.read("/f")).await.unwrap(), data, "{length} bytes");
        assert_eq!(client.metadata("/f").await.unwrap().len(), length as u64);
    }
    for length in [5000, 10, 70_000, 0, 4097] {
        let data = pattern(length as u64 + 1, length);
        within(client.write("/f", &data)).await.unwrap();
        assert_eq!(within(client.read("/f")).await.unwrap(), data, "rewritten with {length} bytes");
    }
    end(cluster, client).await;
}

#[tokio::test]
async fn batches_give_each_path_its_result() {
    let (cluster, client) = small().await;
    let files = (0..300).map(|number| (format!("/{number}"), Bytes::from(pattern(number, number as usize * 20))));
    let written = within(client.write_many(files)).await;
    assert!(written.iter().all(Result::is_ok));
    let paths: Vec<_> = (0..301).map(|number| format!("/{number}")).collect();
    let read = within(client.read_many(&paths)).await;
    for (number, body) in read.iter().take(300).enumerate() {
        assert_eq!(body.as_ref().unwrap(), &pattern(number as u64, number * 20));
    }
    assert_eq!(read[300].as_ref().unwrap_err().errno(), Errno::ENOENT);
    let found = within(client.stat_many(&paths)).await;
    assert_eq!(found[7].as_ref().unwrap().len(), 140);
    assert_eq!(found[300].as_ref().unwrap_err().errno(), Errno::ENOENT);
    end(cluster, client).await;
}

#[tokio::test]
async fn the_traits_of_tokio_copy_a_large_file() {
    let (cluster, client) = small().await;
    let data = pattern(3, (13 << 20) + 5);
    let mut file = client.create("/f").await.unwrap();
    for part in data.chunks(1_000_003) {
        within(file.write_all(part)).await.unwrap();
    }
    within(file.flush()).await.unwrap();
    assert_eq!(client.metadata("/f").await.unwrap().len(), data.len() as u64);
    within(file.close()).await.unwrap();

    let mut file = client.open("/f").await.unwrap();
    let mut read = Vec::new();
    within(file.read_to_end(&mut read)).await.unwrap();
    assert!(read == data);
    assert_eq!(within(file.seek(std::io::SeekFrom::End(-5))).await.unwrap(), data.len() as u64 - 5);
    let mut tail = [0; 5];
    within(file.read_exact(&mut tail)).await.unwrap();
    assert_eq!(tail, data[data.len() - 5..]);
    assert_eq!(within(file.read(&mut tail)).await.unwrap(), 0, "the end");
    file.seek(std::io::SeekFrom::Start(1 << 20)).await.unwrap();
    file.seek(std::io::SeekFrom::Current(-3)).await.unwrap();
    within(file.read_exact(&mut tail)).await.unwrap();
    assert_eq!(tail, data[(1 << 20) - 3..(1 << 20) + 2]);
    assert!(file.seek(std::io::SeekFrom::Current(-(2 << 20))).await.is_err());
    within(file.close()).await.unwrap();
    end(cluster, client).await;
}

#[tokio::test]
async fn reading_sees_what_the_same_file_wrote_before() {
    let (cluster, client) = small().await;
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&client, "/f").await.unwrap();
    file.write_all(b"hello world").await.unwrap();
    file.seek(std::io::SeekFrom::Start(6)).await.unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "world");
    file.set_len(5).await.unwrap();
    file.rewind().await.unwrap();
    text.clear();
    file.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");
    file.close().await.unwrap();
    end(cluster, client).await;
}

#[tokio::test]
async fn a_dropped_file_still_writes_what_it_collected() {
    let (cluster, client) = small().await;
    let mut file = client.create("/f").await.unwrap();
    file.write_all(b"late").await.unwrap();
    drop(file);
    within(async {
        while client.read("/f").await.unwrap() != "late" {
            tokio::task::yield_now().await;
        }
    })
    .await;
    end(cluster, client).await;
}

#[tokio::test]
async fn an_unlinked_file_lives_until_it_is_closed() {
    let (cluster, client) = small().await;
    for length in [100, 100_000] {
        let data = pattern(1, length);
        client.write("/f", &data).await.unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&client, "/f").await.unwrap();
        client.remove_file("/f").await.unwrap();
        assert!(!client.try_exists("/f").await.unwrap());
        assert_eq!(within(file.read_at(0, length + 10)).await.unwrap(), data);
        within(file.write_at(3, b"xyz")).await.unwrap();
        assert_eq!(within(file.read_at(3, 3)).await.unwrap(), "xyz");
        assert_eq!(within(file.metadata()).await.unwrap().nlink(), 0);
        within(file.close()).await.unwrap();
    }
    end(cluster, client).await;
}

#[tokio::test]
async fn create_new_and_modes_are_kept() {
    let (cluster, client) = small().await;
    client.write_with("/f", Bytes::from_static(b"x"), 0o640, true).await.unwrap();
    let again = client.write_with("/f", Bytes::from_static(b"y"), 0o640, true).await.unwrap_err();
    assert_eq!(again.errno(), Errno::EEXIST);
    assert_eq!(client.metadata("/f").await.unwrap().mode(), 0o640);
    let large = Bytes::from(pattern(1, 50_000));
    client.write_with("/g", large.clone(), 0o600, true).await.unwrap();
    assert_eq!(client.write_with("/g", large, 0o600, true).await.unwrap_err().errno(), Errno::EEXIST);
    assert_eq!(client.metadata("/g").await.unwrap().mode(), 0o600);
    assert_eq!(client.read("/none").await.unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(client.read("/").await.unwrap_err().errno(), Errno::EISDIR);
    assert_eq!(client.write("/", "x").await.unwrap_err().errno(), Errno::EISDIR);
    assert_eq!(client.write("/f/", "x").await.unwrap_err().errno(), Errno::ENOTDIR);
    assert_eq!(client.write("/new/", "x").await.unwrap_err().errno(), Errno::EISDIR);
    end(cluster, client).await;
}
