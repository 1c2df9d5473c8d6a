//! [`File`]: position, buffers, and the traits of tokio.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use pando_proto::Errno;
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use super::OpenFile;
use crate::ops::Changes;
use crate::running::Running;
use crate::{Error, Metadata, Result, SetTime};

/// [`AsyncWrite`] collects up to this before it sends.
const WRITE_BUFFER: usize = 4 << 20;
/// [`AsyncRead`] asks for at least this.
const READ_AHEAD: usize = 256 << 10;
const LONGEST_READ: usize = 4 << 20;

/// An open file.
///
/// The explicit calls ([`read_at`](Self::read_at), [`write_at`](Self::write_at),
/// [`append_at_end`](Self::append_at_end)) take `&self`, may overlap, and a write
/// is durable when it returns. The traits [`AsyncRead`], [`AsyncWrite`] and
/// [`AsyncSeek`] keep one position; what is written through them is collected
/// and is durable after `flush` or `shutdown`, as in [`tokio::fs::File`].
/// A reading or seeking of the same `File` flushes first; the explicit calls do not.
///
/// Dropping a `File` sends what is collected, and the close, in the background;
/// only [`close`](Self::close) and `flush` tell about errors.
pub struct File {
    open: Arc<OpenFile>,
    append: bool,
    /// Where the next byte is read or written, as the user sees it.
    position: u64,
    /// Read ahead, from `position` on.
    ahead: Bytes,
    reading: Option<Running<Bytes>>,
    /// Collected, ending at `position`.
    collected: BytesMut,
    writing: Option<Running<u64>>,
    seeking: Option<Seek>,
}

enum Seek {
    /// To be done once what was written is flushed.
    Asked(SeekFrom),
    /// Waits for the size.
    FromEnd(i64, Running<Metadata>),
}

impl File {
    pub(crate) fn new(open: OpenFile, append: bool) -> Self {
        Self {
            open: Arc::new(open),
            append,
            position: 0,
            ahead: Bytes::new(),
            reading: None,
            collected: BytesMut::new(),
            writing: None,
            seeking: None,
        }
    }

    /// Up to `length` bytes from `offset`; fewer only at the end of the file, none beyond it.
    ///
    /// Errors: EBADF if it is not open to read, EISDIR.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes> {
        let mut data = self.open.read_at(offset, length).await?;
        if data.len() < length && data.len() >= LONGEST_READ {
            // The server may cut a long inline read; that is not the end of the file.
            let mut whole = BytesMut::from(&data[..]);
            while whole.len() < length && !data.is_empty() {
                data = self.open.read_at(offset + whole.len() as u64, length - whole.len()).await?;
                whole.extend_from_slice(&data);
            }
            return Ok(whole.freeze());
        }
        Ok(data)
    }

    /// Writes all of `data` at `offset`; durable when it returns.
    ///
    /// Errors: EBADF if it is not open to write, EFBIG, ENOSPC.
    pub async fn write_at(&self, offset: u64, data: impl AsRef<[u8]>) -> Result<()> {
        self.write_bytes_at(offset, Bytes::copy_from_slice(data.as_ref())).await
    }

    /// As [`write_at`](Self::write_at), without a copy.
    ///
    /// Errors: as [`write_at`](Self::write_at).
    pub async fn write_bytes_at(&self, offset: u64, data: Bytes) -> Result<()> {
        self.open.write_at(offset, data).await
    }

    /// Adds `data` at the end, wherever that is by then; returns where it went. Durable when it returns.
    /// Concurrent appends do not overlap.
    ///
    /// Errors: as [`write_at`](Self::write_at).
    pub async fn append_at_end(&self, data: impl AsRef<[u8]>) -> Result<u64> {
        self.open.append_at_end(Bytes::copy_from_slice(data.as_ref())).await
    }

    /// Cuts the file, or extends it with zeros.
    ///
    /// Errors: EBADF if it is not open to write, EFBIG.
    pub async fn set_len(&mut self, size: u64) -> Result<()> {
        self.flush_collected().await?;
        self.ahead.clear();
        self.reading = None;
        self.change(Changes { size: Some(size), ..Changes::default() }).await
    }

    /// What was written before, through the traits as well, is durable when it returns.
    ///
    /// Errors: those of the writes.
    pub async fn sync_all(&mut self) -> Result<()> {
        self.flush_collected().await
    }

    /// Attributes of this very inode, be it renamed or removed meanwhile.
    ///
    /// Errors: the cluster cannot be reached.
    pub async fn metadata(&self) -> Result<Metadata> {
        self.open.metadata().await
    }

    /// Sets the permission bits (07777).
    ///
    /// Errors: EPERM.
    pub async fn set_permissions(&self, mode: u32) -> Result<()> {
        self.change(Changes { mode: Some(mode), ..Changes::default() }).await
    }

    /// Sets the times of access and modification.
    ///
    /// Errors: EPERM.
    pub async fn set_times(&self, accessed: SetTime, modified: SetTime) -> Result<()> {
        self.change(Changes::times(accessed, modified)).await
    }

    /// Sets owner and group; `None` leaves one as it is.
    ///
    /// Errors: EPERM.
    pub async fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.change(Changes { uid, gid, ..Changes::default() }).await
    }

    async fn change(&self, changes: Changes) -> Result<()> {
        self.open.set_attr(changes.into_request()).await.map(|_| ())
    }

    /// Sends what is collected and closes the file.
    ///
    /// Errors: those of the last writes; the file is closed all the same.
    pub async fn close(mut self) -> Result<()> {
        let flushed = self.flush_collected().await;
        let closed = self.open.close().await;
        flushed.and(closed)
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.open.ino()
    }

    async fn flush_collected(&mut self) -> Result<()> {
        std::future::poll_fn(|cx| self.poll_collected(cx)).await
    }

    fn start_writing(&mut self) {
        let data = self.collected.split().freeze();
        let open = Arc::clone(&self.open);
        let start = self.position - data.len() as u64;
        self.writing = Some(if self.append {
            Running::new(async move {
                let length = data.len() as u64;
                open.append_at_end(data).await.map(|offset| offset + length)
            })
        } else {
            Running::new(async move {
                let end = start + data.len() as u64;
                open.write_at(start, data).await.map(|()| end)
            })
        });
    }

    /// Waits for the write that is under way.
    fn poll_writing(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(writing) = self.writing.as_mut() else { return Poll::Ready(Ok(())) };
        let written = ready!(writing.poll(cx));
        self.writing = None;
        let end = written?;
        if self.append {
            // Only the server knows where the end was.
            self.position = end + self.collected.len() as u64;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_collected(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            ready!(self.poll_writing(cx))?;
            if self.collected.is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.start_writing();
        }
    }

    fn poll_ahead(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<Result<()>> {
        let (open, position) = (Arc::clone(&self.open), self.position);
        let length = wanted.clamp(READ_AHEAD, LONGEST_READ);
        let reading =
            self.reading.get_or_insert_with(|| Running::new(async move { open.read_at(position, length).await }));
        let data = ready!(reading.poll(cx));
        self.reading = None;
        self.ahead = data?;
        Poll::Ready(Ok(()))
    }

    fn forget_ahead(&mut self) {
        self.ahead.clear();
        self.reading = None;
    }

    fn seek_to(&mut self, base: u64, by: i64) -> io::Result<u64> {
        let position = base.checked_add_signed(by).ok_or_else(|| {
            io::Error::from(Error::with_message(Errno::EINVAL, "a position before the start of the file"))
        })?;
        if position != self.position {
            self.forget_ahead();
        }
        self.position = position;
        Ok(position)
    }
}

impl AsyncRead for File {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_collected(cx))?;
        if this.ahead.is_empty() && buf.remaining() > 0 {
            ready!(this.poll_ahead(cx, buf.remaining()))?;
        }
        let count = this.ahead.len().min(buf.remaining());
        buf.put_slice(&this.ahead[..count]);
        this.ahead.advance(count);
        this.position += count as u64;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for File {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.forget_ahead();
        // One buffer is on its way while the next one fills.
        if let Poll::Ready(Err(error)) = this.poll_writing(cx) {
            return Poll::Ready(Err(error.into()));
        }
        if this.collected.len() >= WRITE_BUFFER {
            ready!(this.poll_writing(cx))?;
            this.start_writing();
        }
        let count = buf.len().min(WRITE_BUFFER - this.collected.len());
        if this.position.checked_add(count as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Poll::Ready(Err(Error::posix(Errno::EFBIG).into()));
        }
        this.collected.extend_from_slice(&buf[..count]);
        this.position += count as u64;
        if this.collected.len() >= WRITE_BUFFER && this.writing.is_none() {
            this.start_writing();
            // Sends it off; the next call waits for it.
            if let Poll::Ready(Err(error)) = this.poll_writing(cx) {
                return Poll::Ready(Err(error.into()));
            }
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_collected(cx))?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

impl AsyncSeek for File {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        if self.seeking.is_some() {
            return Err(io::Error::other("another seek is under way: wait for it first"));
        }
        self.seeking = Some(Seek::Asked(position));
        Ok(())
    }

    fn poll_complete(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let this = &mut *self;
        let flushed = ready!(this.poll_collected(cx));
        loop {
            let result = match (this.seeking.take(), &flushed) {
                (None, _) => return Poll::Ready(Ok(this.position)),
                (Some(_), Err(error)) => Err(error.clone().into()),
                (Some(Seek::Asked(SeekFrom::Start(position))), _) => this.seek_to(position, 0),
                (Some(Seek::Asked(SeekFrom::Current(by))), _) => this.seek_to(this.position, by),
                (Some(Seek::Asked(SeekFrom::End(by))), _) => {
                    let open = Arc::clone(&this.open);
                    this.seeking = Some(Seek::FromEnd(by, Running::new(async move { open.metadata().await })));
                    continue;
                }
                (Some(Seek::FromEnd(by, mut size)), _) => match size.poll(cx) {
                    Poll::Pending => {
                        this.seeking = Some(Seek::FromEnd(by, size));
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(metadata)) => this.seek_to(metadata.len(), by),
                    Poll::Ready(Err(error)) => Err(error.into()),
                },
            };
            return Poll::Ready(result);
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.collected.is_empty() && self.writing.is_none() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let first = self.writing.take();
        let rest = if self.collected.is_empty() {
            None
        } else {
            self.start_writing();
            self.writing.take()
        };
        runtime.spawn(async move {
            for write in [first, rest].into_iter().flatten() {
                if let Err(error) = write.into_future().await {
                    tracing::warn!(%error, "a file was dropped before it was flushed, and its last bytes are lost");
                }
            }
        });
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("ino", &self.ino()).field("position", &self.position).finish_non_exhaustive()
    }
}
