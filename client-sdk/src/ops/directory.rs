//! Listing a directory, page by page.

use std::collections::VecDeque;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use pando_proto::mds::{ReaddirRequest, ReaddirResponse};

use crate::client::call;
use crate::path::{self, Checked};
use crate::running::Running;
use crate::{Client, DirEntry, Error, Result};

/// What a listing brings along.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadDirOptions {
    /// Attributes of each entry.
    pub metadata: bool,
    /// Content of inline files that the caller may read; implies attributes.
    pub bodies: bool,
    /// Entries asked for at once; 0 for the server's choice.
    pub page: u32,
}

/// Entries of a directory in the byte order of their names: a [`Stream`], and
/// [`next_entry`](Self::next_entry). What is created or removed meanwhile may
/// or may not be seen; all else is seen exactly once.
pub struct ReadDir {
    client: Client,
    path: Checked,
    options: ReadDirOptions,
    ready: VecDeque<DirEntry>,
    after: Bytes,
    end: bool,
    fetching: Option<Running<ReaddirResponse>>,
}

impl Client {
    /// Lists a directory. The first page is fetched before this returns.
    ///
    /// Errors: ENOENT, ENOTDIR, EACCES.
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        self.read_dir_with(path, ReadDirOptions::default()).await
    }

    /// Lists a directory with attributes or contents.
    ///
    /// Errors: as [`read_dir`](Self::read_dir).
    pub async fn read_dir_with(&self, path: impl AsRef<Path>, options: ReadDirOptions) -> Result<ReadDir> {
        let path = path::check(path.as_ref())?;
        let mut listing = ReadDir {
            client: self.clone(),
            path,
            options,
            ready: VecDeque::new(),
            after: Bytes::new(),
            end: false,
            fetching: None,
        };
        let page = listing.fetch().into_future().await?;
        listing.take(page)?;
        Ok(listing)
    }
}

impl ReadDir {
    /// The next entry, or `None` at the end.
    ///
    /// Errors: as [`Client::read_dir`]; the directory may vanish while it is listed.
    pub async fn next_entry(&mut self) -> Result<Option<DirEntry>> {
        std::future::poll_fn(|cx| self.poll_entry(cx)).await.transpose()
    }

    fn fetch(&self) -> Running<ReaddirResponse> {
        let request = ReaddirRequest {
            caller: self.client.caller(),
            target: Some(self.path.target()),
            handle: 0,
            after: self.after.clone(),
            limit: self.options.page,
            want_attrs: self.options.metadata,
            want_bodies: self.options.bodies,
            ..Default::default()
        };
        let (client, path) = (self.client.clone(), self.path.given().clone());
        Running::new(async move { call!(client, &path, Readdir, request) })
    }

    fn take(&mut self, page: ReaddirResponse) -> Result<()> {
        self.end = page.end;
        if page.entries.is_empty() && !page.end {
            return Err(Error::protocol("an empty page that is not the last").at(self.path.given()));
        }
        for entry in page.entries {
            let entry = DirEntry::from_proto(entry)?;
            // Else a server that repeats itself would keep us here for ever.
            if entry.name_bytes() <= &self.after {
                return Err(Error::protocol("a listing out of order").at(self.path.given()));
            }
            self.after = entry.name_bytes().clone();
            self.ready.push_back(entry);
        }
        Ok(())
    }

    fn poll_entry(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<DirEntry>>> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(entry)));
            }
            if self.end {
                return Poll::Ready(None);
            }
            let mut fetching = self.fetching.take().unwrap_or_else(|| self.fetch());
            let page = match fetching.poll(cx) {
                Poll::Ready(page) => page.and_then(|page| self.take(page)),
                Poll::Pending => {
                    self.fetching = Some(fetching);
                    return Poll::Pending;
                }
            };
            if let Err(error) = page {
                self.end = true;
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}

impl Stream for ReadDir {
    type Item = Result<DirEntry>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_entry(cx)
    }
}
