//! Whole files: read and write in one call.

use std::path::Path;

use bytes::Bytes;
use pando_proto::mds::{OpenFlag, ReadFileRequest, WriteFileRequest};
use pando_proto::{Errno, Reason};

use crate::client::call;
use crate::file::{FILE_MODE, OpenFile, OpenOptions, check_placement, read_objects};
use crate::path::{self, Checked};
use crate::{Client, Error, Metadata, Result};

/// Attempts of a read whose file is cut or moved meanwhile.
const ATTEMPTS: usize = 16;
/// A large file is read in runs of this, each with parallel requests.
const RUN: u64 = 32 << 20;

impl Client {
    /// The whole content of a file: one request if it is inline.
    ///
    /// Errors: ENOENT, EISDIR, EACCES, ENOMEM for a file that does not fit into memory.
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Bytes> {
        let path = path::check(path.as_ref())?;
        let mut attempt = 0;
        loop {
            let request = ReadFileRequest { caller: self.caller(), target: Some(path.target()) };
            let answer = call!(self, &path, ReadFile, request)?;
            if let Some(body) = answer.body {
                return Ok(body);
            }
            let attr = answer.attr.ok_or_else(|| Error::protocol("no attributes"))?;
            let placement = check_placement(answer.placement)?;
            let deadline = self.deadline();
            let reading = self.read_whole_objects(attr.ino, placement, attr.size);
            let timeout = |_| Error::timeout(deadline, false, None).at(path.given());
            match tokio::time::timeout(deadline, reading).await.map_err(timeout)? {
                // Cut, or removed and purged, since the answer: the next answer says which.
                Err(error) if error.reason() == Reason::StaleGeneration && attempt < ATTEMPTS => attempt += 1,
                other => return other.map_err(|error| error.at(path.given())),
            }
        }
    }

    async fn read_whole_objects(&self, ino: u64, placement: pando_proto::mds::Placement, size: u64) -> Result<Bytes> {
        let core = self.core();
        if size <= RUN {
            return read_objects(core, ino, &placement, 0, size).await;
        }
        let mut whole = Vec::new();
        let reserved = usize::try_from(size).ok().and_then(|size| whole.try_reserve_exact(size).ok());
        reserved
            .ok_or_else(|| Error::with_message(Errno::ENOMEM, "the file does not fit into memory: read it in parts"))?;
        let mut offset = 0;
        while offset < size {
            let run = RUN.min(size - offset);
            whole.extend_from_slice(&read_objects(core, ino, &placement, offset, run).await?);
            offset += run;
        }
        Ok(whole.into())
    }

    /// Writes a whole file, made with mode 0644 if it is not there: one request
    /// if the content fits inline, all of it or nothing then.
    ///
    /// Errors: ENOENT if the directory is missing, EISDIR, EACCES, ENOSPC.
    pub async fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        self.write_bytes(path, Bytes::copy_from_slice(contents.as_ref())).await.map(|_| ())
    }

    /// As [`write`](Self::write), without a copy.
    ///
    /// Errors: as [`write`](Self::write).
    pub async fn write_bytes(&self, path: impl AsRef<Path>, contents: Bytes) -> Result<()> {
        self.write_with(path, contents, FILE_MODE, false).await.map(|_| ())
    }

    /// As [`write_bytes`](Self::write_bytes) with the permission bits of a file that is
    /// made; with `create_new` EEXIST if it is there.
    ///
    /// Errors: as [`write`](Self::write).
    pub async fn write_with(
        &self,
        path: impl AsRef<Path>,
        contents: Bytes,
        mode: u32,
        create_new: bool,
    ) -> Result<Option<Metadata>> {
        let path = path::check(path.as_ref())?;
        if contents.len() as u64 <= self.map().inline_limit() || contents.is_empty() {
            match self.write_inline(&path, &contents, mode, create_new).await {
                // The directory's limit is lower than the cluster's.
                Err(error) if error.reason() == Reason::TooLargeForInline => {}
                other => return other.map(Some),
            }
        }
        let mut options = OpenOptions::new();
        options.write(true).truncate(true).mode(mode).size_hint(contents.len() as u64);
        if create_new {
            options.create_new(true)
        } else {
            options.create(true)
        };
        let file = OpenFile::open(self, &path, &options).await?;
        file.write_at(0, contents).await?;
        file.close().await?;
        Ok(None)
    }

    async fn write_inline(&self, path: &Checked, data: &Bytes, mode: u32, create_new: bool) -> Result<Metadata> {
        let exclusive = if create_new { OpenFlag::Exclusive as u32 } else { 0 };
        let request = WriteFileRequest {
            caller: self.caller(),
            target: Some(path.target()),
            flags: OpenFlag::Write as u32 | OpenFlag::Create as u32 | OpenFlag::Truncate as u32 | exclusive,
            mode,
            data: data.clone(),
        };
        let answer = call!(self, &path, WriteFile, request)?;
        Metadata::from_proto(answer.attr)
    }

    /// Adds to the end of a file, which is made if it is not there. Concurrent appends never overlap.
    ///
    /// Errors: as [`write`](Self::write).
    pub async fn append(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<u64> {
        let path = path::check(path.as_ref())?;
        let contents = Bytes::copy_from_slice(contents.as_ref());
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        let file = OpenFile::open(self, &path, &options).await?;
        let offset = file.append_at_end(contents).await?;
        file.close().await?;
        Ok(offset)
    }
}
