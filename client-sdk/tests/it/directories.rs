use bytes::Bytes;
use futures_util::StreamExt as _;
use pando_client::{Errno, FileKind, OpenOptions, ReadDirOptions};

use crate::{end, small, within};

#[tokio::test]
async fn a_listing_has_every_entry_once_in_order() {
    let (cluster, client) = small().await;
    client.create_dir("/d").await.unwrap();
    let mut names: Vec<_> = (0..1500).map(|number| format!("n{number}")).collect();
    let files = names.iter().map(|name| (format!("/d/{name}"), Bytes::copy_from_slice(name.as_bytes())));
    assert!(within(client.write_many(files)).await.iter().all(Result::is_ok));
    names.sort();

    let options = ReadDirOptions { bodies: true, page: 100, ..ReadDirOptions::default() };
    let listing = within(client.read_dir_with("/d", options)).await.unwrap();
    let entries: Vec<_> = within(listing.map(Result::unwrap).collect()).await;
    assert_eq!(entries.iter().map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>(), names);
    for entry in &entries {
        assert_eq!(entry.body().unwrap(), entry.name());
        assert_eq!(entry.metadata().unwrap().len(), entry.name().len() as u64);
        assert_eq!(entry.kind(), FileKind::File);
    }
    assert_eq!(client.metadata("/d").await.unwrap().entries(), 1500);

    let mut plain = client.read_dir("/d").await.unwrap();
    assert!(plain.next_entry().await.unwrap().unwrap().metadata().is_none());
    let mut empty = client.read_dir_with("/", ReadDirOptions { metadata: true, ..options }).await.unwrap();
    assert_eq!(empty.next_entry().await.unwrap().unwrap().name(), b"d");
    assert!(empty.next_entry().await.unwrap().is_none());
    assert_eq!(client.read_dir("/d/n1").await.err().unwrap().errno(), Errno::ENOTDIR);
    assert_eq!(client.read_dir("/none").await.err().unwrap().errno(), Errno::ENOENT);
    end(cluster, client).await;
}

#[tokio::test]
async fn trees_are_made_and_removed() {
    let (cluster, client) = small().await;
    client.create_dir_all("/a/b/c").await.unwrap();
    client.create_dir_all("/a/b/c/").await.unwrap();
    client.create_dir_all("/").await.unwrap();
    client.write("/a/f", "x").await.unwrap();
    assert_eq!(client.create_dir_all("/a/f/g").await.unwrap_err().errno(), Errno::ENOTDIR);
    assert_eq!(client.create_dir_all("/a/f").await.unwrap_err().errno(), Errno::EEXIST);
    assert_eq!(client.create_dir("/x/y").await.unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(client.create_dir("/a").await.unwrap_err().errno(), Errno::EEXIST);

    client.write("/kept", "kept").await.unwrap();
    client.symlink("/kept", "/a/b/link").await.unwrap();
    client.symlink("/", "/a/root").await.unwrap();
    for number in 0..300 {
        client.write(format!("/a/b/{number}"), "x").await.unwrap();
    }
    assert_eq!(client.remove_dir("/a").await.unwrap_err().errno(), Errno::ENOTEMPTY);
    assert_eq!(client.remove_dir_all("/kept").await.unwrap_err().errno(), Errno::ENOTDIR);
    within(client.remove_dir_all("/a")).await.unwrap();
    assert!(!client.try_exists("/a").await.unwrap());
    assert_eq!(client.read("/kept").await.unwrap(), "kept");
    end(cluster, client).await;
}

#[tokio::test]
async fn a_directory_stays_the_same_whatever_takes_its_place() {
    let (cluster, client) = small().await;
    client.create_dir_all("/tree/sub/deep").await.unwrap();
    client.create_dir("/kept").await.unwrap();
    for (path, text) in [("/tree/sub/file", "inside"), ("/kept/file", "outside"), ("/kept/more", "outside")] {
        client.write(path, text).await.unwrap();
    }
    let tree = client.open_dir("/tree").await.unwrap();
    let sub = tree.open_dir("sub").await.unwrap();
    client.rename("/tree/sub", "/moved").await.unwrap();
    client.symlink("/kept", "/tree/sub").await.unwrap();
    client.symlink("/kept/file", "/moved/link").await.unwrap();

    assert_eq!(tree.open_dir("sub").await.unwrap_err().errno(), Errno::ENOTDIR);
    assert_eq!(tree.read_link("sub").await.unwrap().to_str(), Some("/kept"));
    let listing = sub.read_dir_with(ReadDirOptions { metadata: true, ..ReadDirOptions::default() }).await.unwrap();
    let names: Vec<_> = within(listing.map(|entry| entry.unwrap().file_name()).collect()).await;
    assert_eq!(names, ["deep", "file", "link"]);
    let mut reading = OpenOptions::new();
    reading.read(true).no_follow(true);
    assert_eq!(reading.open_in(&sub, "link").await.unwrap_err().errno(), Errno::ELOOP);
    let file = reading.open_in(&sub, "file").await.unwrap();
    assert_eq!(file.read_at(0, 100).await.unwrap(), "inside");
    file.close().await.unwrap();
    assert_eq!(sub.remove_file("more").await.unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(sub.remove_file("deep").await.unwrap_err().errno(), Errno::EISDIR);
    assert_eq!(tree.remove_dir("sub").await.unwrap_err().errno(), Errno::ENOTDIR);
    for name in ["file", "link"] {
        sub.remove_file(name).await.unwrap();
    }
    sub.remove_dir("deep").await.unwrap();
    client.remove_dir("/moved").await.unwrap();
    let error = sub.remove_file("file").await.unwrap_err();
    assert!(matches!(error.errno(), Errno::ENOENT | Errno::ESTALE), "{error}");
    assert_eq!(error.path(), Some(&b"/tree/sub/file"[..]), "as it was found");
    within(client.remove_dir_all("/tree")).await.unwrap();
    assert_eq!(client.metadata("/kept").await.unwrap().entries(), 2);
    assert_eq!(client.remove_dir_all("/").await.unwrap_err().errno(), Errno::EBUSY);
    end(cluster, client).await;
}
