//! Pando through its client library. Each client is a session with a connection of its own.

use std::time::Duration;

use bytes::Bytes;
use pando_client::{Client, File, FileKind, Metadata, OpenOptions, SetTime};
use pando_proto::Errno;

use super::{Body, Failure, Outcome, Session, Target};
use crate::trace::{Attributes, Kind, OpenFlags};

/// Larger files are made piece by piece, to bound the memory of many clients.
const PIECE: u64 = 4 << 20;
/// Longer than a server takes to come back.
const DEADLINE: Duration = Duration::from_secs(60);

/// A cluster, by its mons.
pub struct Pando {
    mons: String,
    label: String,
    deadline: Duration,
}

impl Pando {
    /// The cluster of these mons, `HOST:PORT` separated by commas.
    pub fn new(mons: impl Into<String>) -> Self {
        let mons = mons.into();
        Self { label: format!("pando:{mons}"), mons, deadline: DEADLINE }
    }

    /// Another name in reports.
    pub fn called(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// Another limit for each call, retries included, than 60 s.
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// A session with the cluster.
    pub async fn connect(&self, client: usize) -> Outcome<Client> {
        let description = format!("loadgen client {client}");
        Ok(Client::builder(&self.mons).description(description).deadline(self.deadline).connect().await?)
    }
}

impl Target for Pando {
    type Session = PandoSession;

    async fn session(&self, client: usize) -> Outcome<PandoSession> {
        let root = format!("/client-{client}");
        Ok(PandoSession { client: self.connect(client).await?, root, last: Bytes::new() })
    }

    fn describe(&self) -> String {
        self.label.clone()
    }

    fn blocks(&self) -> bool {
        false
    }
}

/// One client of a cluster.
pub struct PandoSession {
    client: Client,
    root: String,
    /// What the last read brought.
    last: Bytes,
}

/// An open file or directory.
pub struct PandoHandle {
    file: File,
    /// Listings go by path.
    path: String,
    listed: bool,
}

impl From<pando_client::Error> for Failure {
    fn from(error: pando_client::Error) -> Self {
        Self { errno: error.errno(), message: error.to_string() }
    }
}

impl PandoSession {
    fn path(&self, path: &str) -> Outcome<String> {
        match path {
            // As path_resolution(7) says; joined to the root it would name that.
            "" => Err(Failure::new(Errno::ENOENT)),
            "." => Ok(self.root.clone()),
            path => Ok(format!("{}/{path}", self.root)),
        }
    }

    async fn names(&self, path: &str) -> Outcome<Vec<String>> {
        let mut listing = self.client.read_dir(path).await?;
        let mut names = Vec::new();
        while let Some(entry) = listing.next_entry().await? {
            names.push(String::from_utf8_lossy(entry.name()).into_owned());
        }
        Ok(names)
    }
}

fn attributes(metadata: &Metadata) -> Attributes {
    match metadata.kind() {
        FileKind::File => Attributes { kind: Kind::File, size: metadata.len() },
        FileKind::Directory => Attributes { kind: Kind::Dir, size: 0 },
        FileKind::Symlink => Attributes { kind: Kind::Symlink, size: 0 },
    }
}

fn open_options(flags: OpenFlags, mode: u32) -> OpenOptions {
    let (append, exclusive) = (flags.has(OpenFlags::APPEND), flags.has(OpenFlags::EXCLUSIVE));
    let mut options = OpenOptions::new();
    options
        .read(flags.has(OpenFlags::READ))
        .write(flags.has(OpenFlags::WRITE))
        .append(append)
        .truncate(flags.has(OpenFlags::TRUNCATE))
        .create(flags.has(OpenFlags::CREATE) && !exclusive)
        .create_new(flags.has(OpenFlags::CREATE) && exclusive)
        .directory(flags.has(OpenFlags::DIRECTORY))
        .no_follow(flags.has(OpenFlags::NO_FOLLOW))
        .mode(mode);
    options
}

impl Session for PandoSession {
    type Handle = PandoHandle;

    async fn make_root(&mut self) -> Outcome<()> {
        Ok(self.client.create_dir(&self.root).await?)
    }

    async fn remove_root(&mut self) -> Outcome<()> {
        Ok(self.client.remove_dir(&self.root).await?)
    }

    async fn end(self) -> Outcome<()> {
        Ok(self.client.close().await?)
    }

    async fn list(&mut self, path: &str) -> Outcome<Vec<String>> {
        self.names(&self.path(path)?).await
    }

    async fn create_many(&mut self, files: &[(String, Body)], _mode: u32) -> Vec<Outcome<()>> {
        let files = files.iter().map(|(path, body)| {
            let path = self.path(path).unwrap_or_default();
            (path, Bytes::from(body.piece(0, body.size)))
        });
        self.client.write_many(files).await.into_iter().map(|outcome| Ok(outcome?)).collect()
    }

    async fn read_many(&mut self, paths: &[String]) -> Vec<Outcome<Vec<u8>>> {
        let paths = paths.iter().map(|path| self.path(path).unwrap_or_default());
        self.client.read_many(paths).await.into_iter().map(|outcome| Ok(outcome?.to_vec())).collect()
    }

    async fn stat_many(&mut self, paths: &[String]) -> Vec<Outcome<Attributes>> {
        let paths = paths.iter().map(|path| self.path(path).unwrap_or_default());
        self.client.stat_many(paths).await.into_iter().map(|outcome| Ok(attributes(&outcome?))).collect()
    }

    async fn mkdir(&mut self, path: &str, mode: u32) -> Outcome<()> {
        self.client.create_dir_with_mode(self.path(path)?, mode).await?;
        Ok(())
    }

    async fn create(&mut self, path: &str, mode: u32, body: Body) -> Outcome<()> {
        let path = self.path(path)?;
        if body.size <= PIECE {
            self.client.write_with(path, body.piece(0, PIECE).into(), mode, false).await?;
            return Ok(());
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(mode).size_hint(body.size);
        let file = options.open(&self.client, path).await?;
        let mut offset = 0;
        while offset < body.size {
            let piece = body.piece(offset, PIECE);
            let length = piece.len() as u64;
            file.write_bytes_at(offset, piece.into()).await?;
            offset += length;
        }
        Ok(file.close().await?)
    }

    async fn read_file(&mut self, path: &str) -> Outcome<&[u8]> {
        self.last = self.client.read(self.path(path)?).await?;
        Ok(&self.last)
    }

    async fn open(&mut self, path: &str, flags: OpenFlags, mode: u32) -> Outcome<PandoHandle> {
        let path = self.path(path)?;
        let file = open_options(flags, mode).open(&self.client, &path).await?;
        Ok(PandoHandle { file, path, listed: false })
    }

    async fn close(&mut self, handle: PandoHandle) -> Outcome<()> {
        Ok(handle.file.close().await?)
    }

    async fn read_at(&mut self, handle: &mut PandoHandle, offset: u64, count: u64) -> Outcome<&[u8]> {
        self.last = handle.file.read_at(offset, count as usize).await?;
        Ok(&self.last)
    }

    async fn write_at(&mut self, handle: &mut PandoHandle, offset: u64, data: &[u8]) -> Outcome<u64> {
        handle.file.write_at(offset, data).await?;
        Ok(data.len() as u64)
    }

    async fn append(&mut self, handle: &mut PandoHandle, data: &[u8]) -> Outcome<u64> {
        handle.file.append_at_end(data).await?;
        Ok(data.len() as u64)
    }

    async fn truncate_handle(&mut self, handle: &mut PandoHandle, size: u64) -> Outcome<()> {
        Ok(handle.file.set_len(size).await?)
    }

    async fn truncate(&mut self, path: &str, size: u64) -> Outcome<()> {
        Ok(self.client.truncate(self.path(path)?, size).await?)
    }

    async fn sync(&mut self, handle: &mut PandoHandle) -> Outcome<()> {
        Ok(handle.file.sync_all().await?)
    }

    async fn entries(&mut self, handle: &mut PandoHandle) -> Outcome<Vec<String>> {
        if handle.listed {
            return Ok(Vec::new());
        }
        let mut names = self.names(&handle.path).await?;
        names.extend([".".to_owned(), "..".to_owned()]);
        handle.listed = true;
        Ok(names)
    }

    async fn stat(&mut self, path: &str, follow: bool) -> Outcome<Attributes> {
        let path = self.path(path)?;
        let metadata =
            if follow { self.client.metadata(path).await? } else { self.client.symlink_metadata(path).await? };
        Ok(attributes(&metadata))
    }

    async fn stat_handle(&mut self, handle: &mut PandoHandle) -> Outcome<Attributes> {
        Ok(attributes(&handle.file.metadata().await?))
    }

    async fn access(&mut self, path: &str, mask: u8) -> Outcome<()> {
        Ok(self.client.access(self.path(path)?, mask.into()).await?)
    }

    async fn readlink(&mut self, path: &str) -> Outcome<String> {
        let target = self.client.read_link(self.path(path)?).await?;
        Ok(target.to_string_lossy().into_owned())
    }

    async fn rmdir(&mut self, path: &str) -> Outcome<()> {
        Ok(self.client.remove_dir(self.path(path)?).await?)
    }

    async fn unlink(&mut self, path: &str) -> Outcome<()> {
        Ok(self.client.remove_file(self.path(path)?).await?)
    }

    async fn rename(&mut self, old: &str, new: &str, no_replace: bool) -> Outcome<()> {
        let (old, new) = (self.path(old)?, self.path(new)?);
        if no_replace {
            return Ok(self.client.rename_no_replace(old, new).await?);
        }
        Ok(self.client.rename(old, new).await?)
    }

    async fn link(&mut self, old: &str, new: &str) -> Outcome<()> {
        Ok(self.client.hard_link(self.path(old)?, self.path(new)?).await?)
    }

    async fn symlink(&mut self, target: &str, path: &str) -> Outcome<()> {
        Ok(self.client.symlink(target, self.path(path)?).await?)
    }

    async fn chmod(&mut self, path: &str, mode: u32) -> Outcome<()> {
        Ok(self.client.set_permissions(self.path(path)?, mode).await?)
    }

    async fn chmod_handle(&mut self, handle: &mut PandoHandle, mode: u32) -> Outcome<()> {
        Ok(handle.file.set_permissions(mode).await?)
    }

    async fn chown_handle(&mut self, handle: &mut PandoHandle) -> Outcome<()> {
        let metadata = handle.file.metadata().await?;
        Ok(handle.file.set_owner(Some(metadata.uid()), Some(metadata.gid())).await?)
    }

    async fn touch(&mut self, path: &str) -> Outcome<()> {
        Ok(self.client.set_times(self.path(path)?, SetTime::Now, SetTime::Now).await?)
    }

    async fn touch_handle(&mut self, handle: &mut PandoHandle) -> Outcome<()> {
        Ok(handle.file.set_times(SetTime::Now, SetTime::Now).await?)
    }
}
