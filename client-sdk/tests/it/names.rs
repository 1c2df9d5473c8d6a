use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use pando_client::{Errno, Metadata, OpenOptions, SetTime, XattrMode};

use crate::{end, pattern, small};

fn errno<T>(result: pando_client::Result<T>) -> Errno {
    result.err().expect("an error").errno()
}

#[tokio::test]
async fn names_move_link_and_vanish() {
    let (cluster, client) = small().await;
    client.write("/a", "a").await.unwrap();
    client.write("/b", "b").await.unwrap();
    assert_eq!(errno(client.rename_no_replace("/a", "/b").await), Errno::EEXIST);
    client.exchange("/a", "/b").await.unwrap();
    assert_eq!(client.read("/a").await.unwrap(), "b");
    client.rename("/a", "/b").await.unwrap();
    assert_eq!(client.read("/b").await.unwrap(), "b");
    assert_eq!(errno(client.rename("/a", "/c").await), Errno::ENOENT);
    client.hard_link("/b", "/c").await.unwrap();
    assert_eq!(client.metadata("/c").await.unwrap().nlink(), 2);
    assert_eq!(errno(client.hard_link("/b", "/c").await), Errno::EEXIST);
    client.remove_file("/b").await.unwrap();
    assert_eq!(client.read("/c").await.unwrap(), "b");
    client.create_dir("/d").await.unwrap();
    assert_eq!(errno(client.rename("/d", "/d/e").await), Errno::EINVAL);
    assert_eq!(errno(client.remove_file("/d").await), Errno::EISDIR);
    client.rename("/d/", "/e/").await.unwrap();
    client.remove_dir("/e/").await.unwrap();
    end(cluster, client).await;
}

#[tokio::test]
async fn symlinks_lead_where_they_say() {
    let (cluster, client) = small().await;
    client.create_dir("/d").await.unwrap();
    client.write("/d/f", "f").await.unwrap();
    client.symlink("d/f", "/l").await.unwrap();
    assert_eq!(client.read("/l").await.unwrap(), "f");
    assert_eq!(client.read_link("/l").await.unwrap(), Path::new("d/f"));
    assert!(client.symlink_metadata("/l").await.unwrap().is_symlink());
    assert!(client.metadata("/l").await.unwrap().is_file());
    assert_eq!(errno(client.read_link("/d/f").await), Errno::EINVAL);
    let nofollow = OpenOptions::new().read(true).no_follow(true).open(&client, "/l").await;
    assert_eq!(errno(nofollow), Errno::ELOOP);
    client.symlink("/loop", "/loop").await.unwrap();
    assert_eq!(errno(client.read("/loop").await), Errno::ELOOP);
    let directory = OpenOptions::new().read(true).directory(true).open(&client, "/d").await.unwrap();
    assert!(directory.metadata().await.unwrap().is_dir());
    directory.close().await.unwrap();
    assert_eq!(errno(OpenOptions::new().read(true).directory(true).open(&client, "/d/f").await), Errno::ENOTDIR);
    end(cluster, client).await;
}

#[tokio::test]
async fn attributes_and_permissions_hold() {
    let (cluster, client) = small().await;
    client.write("/f", "x").await.unwrap();
    client.set_permissions("/f", 0o600).await.unwrap();
    client.chown("/f", Some(1000), Some(1000)).await.unwrap();
    let time = UNIX_EPOCH + Duration::new(1_000_000, 5);
    client.set_times("/f", SetTime::Keep, SetTime::At(time)).await.unwrap();
    let found = client.metadata("/f").await.unwrap();
    assert_eq!((found.mode(), found.uid(), found.gid(), found.modified()), (0o600, 1000, 1000, time));
    let owner = client.as_user(1000, 1000, []);
    let other = client.as_user(1001, 1001, [7]);
    assert_eq!(owner.read("/f").await.unwrap(), "x");
    assert_eq!(errno(other.read("/f").await), Errno::EACCES);
    assert_eq!(errno(other.access("/f", 4).await), Errno::EACCES);
    other.access("/f", 0).await.unwrap();
    assert_eq!(errno(other.set_permissions("/f", 0o777).await), Errno::EPERM);
    client.chown("/f", None, Some(7)).await.unwrap();
    client.set_permissions("/f", 0o640).await.unwrap();
    assert_eq!(other.read("/f").await.unwrap(), "x", "by one of its groups");

    let file = OpenOptions::new().write(true).open(&owner, "/f").await.unwrap();
    file.set_permissions(0o644).await.unwrap();
    file.set_times(SetTime::Now, SetTime::At(UNIX_EPOCH)).await.unwrap();
    assert_eq!(file.metadata().await.unwrap().modified(), UNIX_EPOCH);
    assert_eq!(errno(file.read_at(0, 1).await), Errno::EBADF);
    file.close().await.unwrap();
    client.truncate("/f", 100).await.unwrap();
    assert_eq!(client.read("/f").await.unwrap()[..2], *b"x\0");
    client.truncate("/f", 10_000).await.unwrap();
    assert_eq!(client.read("/f").await.unwrap().len(), 10_000, "moved to objects on the way");
    end(cluster, client).await;
}

#[tokio::test]
async fn odd_names_survive_and_impossible_ones_are_refused() {
    let (cluster, client) = small().await;
    let odd = Path::new(OsStr::from_bytes(b"/\xff\n\x01"));
    client.write(odd, "odd").await.unwrap();
    assert_eq!(client.read(odd).await.unwrap(), "odd");
    let mut listing = client.read_dir("/").await.unwrap();
    assert_eq!(listing.next_entry().await.unwrap().unwrap().name(), b"\xff\n\x01");
    let longest = format!("/{}", "x".repeat(255));
    client.write(&longest, "x").await.unwrap();
    assert_eq!(errno(client.write(format!("{longest}x"), "x").await), Errno::ENAMETOOLONG);
    assert_eq!(errno(client.write("/a\0", "x").await), Errno::EINVAL);
    assert_eq!(errno(client.write("", "x").await), Errno::ENOENT);
    assert!(matches!(errno(client.create_dir("/.").await), Errno::EEXIST | Errno::EINVAL));
    assert!(matches!(errno(client.remove_dir("/").await), Errno::EBUSY | Errno::EINVAL | Errno::EPERM));
    end(cluster, client).await;
}

#[tokio::test]
async fn extended_attributes_and_space() {
    let (cluster, client) = small().await;
    client.write("/f", "x").await.unwrap();
    client.set_xattr("/f", "user.one", b"1", XattrMode::Set).await.unwrap();
    assert_eq!(errno(client.set_xattr("/f", "user.one", b"2", XattrMode::Create).await), Errno::EEXIST);
    assert_eq!(errno(client.set_xattr("/f", "user.two", b"2", XattrMode::Replace).await), Errno::ENODATA);
    assert_eq!(client.get_xattr("/f", "user.one").await.unwrap(), "1");
    assert_eq!(client.list_xattr("/f").await.unwrap(), ["user.one"]);
    client.remove_xattr("/f", "user.one").await.unwrap();
    assert_eq!(errno(client.get_xattr("/f", "user.one").await), Errno::ENODATA);
    let stats = client.statfs().await.unwrap();
    assert_eq!((stats.max_name_bytes, stats.inline_limit), (255, 4096));
    end(cluster, client).await;
}

#[tokio::test]
async fn times_move_with_writes() {
    let (cluster, client) = small().await;
    let modified = |found: Metadata| found.modified();
    for length in [10, 50_000] {
        client.write("/f", pattern(1, length)).await.unwrap();
        client.set_times("/f", SetTime::Keep, SetTime::At(UNIX_EPOCH)).await.unwrap();
        let file = OpenOptions::new().write(true).open(&client, "/f").await.unwrap();
        file.write_at(0, b"y").await.unwrap();
        file.close().await.unwrap();
        assert!(modified(client.metadata("/f").await.unwrap()) > UNIX_EPOCH, "{length}");
    }
    end(cluster, client).await;
}
