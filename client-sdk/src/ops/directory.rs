//! Listing a directory, page by page.

use std::collections::VecDeque;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use pando_proto::Errno;
use pando_proto::mds::{ReaddirRequest, ReaddirResponse};

use crate::client::call;
use crate::path::{self, Checked};
use crate::running::Running;
use crate::{Client, DirEntry, Error, Result};

/// Attributes of subtrees' roots that are asked for at once.
const PARALLEL: usize = 32;

/// What a listing brings along.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadDirOptions {
    /// Attributes of each entry. Who may read the directory but not search it learns names, kinds and inodes only, as
    /// with readdir(3) and stat(2).
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
    fetching: Option<Running<Page>>,
}

/// Entries as they are handed out, and where the next ones begin.
struct Page {
    entries: Vec<DirEntry>,
    after: Bytes,
    end: bool,
}

impl Client {
    /// Lists a directory. The first page is fetched before this returns.
    ///
    /// Errors: ENOENT, ENOTDIR, EACCES.
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        self.read_dir_with(path, ReadDirOptions::default()).await
    }

    /// Lists a directory with attributes or contents. Each page is asked for by the path: [`Dir::read_dir_with`](crate::Dir)
    /// stays with one directory, whatever takes its name meanwhile.
    ///
    /// Errors: as [`read_dir`](Self::read_dir).
    pub async fn read_dir_with(&self, path: impl AsRef<Path>, options: ReadDirOptions) -> Result<ReadDir> {
        self.list(path::check(path.as_ref())?, options).await
    }

    pub(crate) async fn list(&self, path: Checked, options: ReadDirOptions) -> Result<ReadDir> {
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
        listing.accept(page);
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

    fn fetch(&self) -> Running<Page> {
        let (client, path, options, after) = (self.client.clone(), self.path.clone(), self.options, self.after.clone());
        Running::new(async move {
            let request = ReaddirRequest {
                caller: client.caller(),
                target: Some(path.target()),
                handle: 0,
                after: after.clone(),
                limit: options.page,
                want_attrs: options.metadata,
                want_bodies: options.bodies,
                ..Default::default()
            };
            let answer = call!(client, &path, Readdir, request)?;
            let page = check(answer, after).map_err(|error| error.at(path.given()))?;
            if options.metadata || options.bodies { complete(&client, &path, page).await } else { Ok(page) }
        })
    }

    fn accept(&mut self, page: Page) {
        self.end = page.end;
        self.after = page.after;
        self.ready = page.entries.into();
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
                Poll::Ready(page) => page.map(|page| self.accept(page)),
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

/// Refuses listings that no server sends: also one that repeats itself, which would keep us here for ever.
fn check(answer: ReaddirResponse, mut after: Bytes) -> Result<Page> {
    if answer.entries.is_empty() && !answer.end {
        return Err(Error::protocol("an empty page that is not the last"));
    }
    let mut entries = Vec::with_capacity(answer.entries.len());
    for entry in answer.entries {
        let entry = DirEntry::from_proto(entry)?;
        if entry.name_bytes() <= &after {
            return Err(Error::protocol("a listing out of order"));
        }
        after = entry.name_bytes().clone();
        entries.push(entry);
    }
    Ok(Page { entries, after, end: answer.end })
}

/// Asks for attributes that the listing could not tell: roots of other subtrees belong to other owners (R15). Where the
/// caller may not search the directory there are none, of what is in other subtrees as of all else.
async fn complete(client: &Client, dir: &Checked, page: Page) -> Result<Page> {
    if page.entries.iter().all(|entry| entry.metadata().is_some()) {
        return Ok(page);
    }
    let closed = &AtomicBool::new(false);
    let asking = page.entries.into_iter().map(|entry| async move {
        if entry.metadata().is_some() || closed.load(Ordering::Relaxed) {
            return Ok(Some(entry));
        }
        match client.stat(&dir.join(entry.name()), false).await {
            Ok(metadata) => Ok(Some(entry.with_metadata(metadata))),
            // It vanished since the listing.
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            // The directory may not be searched: the rest need not be asked for.
            Err(error) if error.errno() == Errno::EACCES => {
                closed.store(true, Ordering::Relaxed);
                Ok(Some(entry))
            }
            Err(error) => Err(error),
        }
    });
    let answers: Vec<_> = futures_util::stream::iter(asking).buffered(PARALLEL).try_collect().await?;
    Ok(Page { entries: answers.into_iter().flatten().collect(), ..page })
}

impl Stream for ReadDir {
    type Item = Result<DirEntry>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_entry(cx)
    }
}
