//! Reads and writes of an open file, wherever its bytes live.
//!
//! The server decides whether a file is inline or in objects; what the client
//! remembers of it is a guess that every answer corrects (R24). As clients hold
//! no leases on data, another may cut the file at any moment, and its objects
//! follow only later. So bytes of objects count only together with an answer of
//! the server, within the same call, that says the same generation: for a read it
//! is asked at the same time, a write is reported afterwards.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pando_proto::mds::{
    Attr, CloseRequest, DataHome, GrantSizeRequest, OpenResponse, Operation, Placement, ReadRequest, ReportSizeRequest,
    SetAttrRequest, SizeReport, StatRequest, WriteRequest, operation::Op,
};
use pando_proto::{Errno, Reason};

use super::objects::{check_placement, read_objects, write_objects};
use crate::client::call;
use crate::path::by_ino;
use crate::session::To;
use crate::{Client, Error, Metadata, Result};

/// Attempts of a call whose file keeps moving between inline and objects, or keeps being cut.
const ATTEMPTS: usize = 32;
/// Larger files are never inline, whatever the directory says.
const NEVER_INLINE: u64 = 256 << 10;
/// Data in one request to the MDS.
const MDS_CHUNK: usize = 4 << 20;
/// A grant beyond the end of a write, so that the next one needs none (R23).
const GRANT_AHEAD: u64 = 256 << 20;
/// Largest file: what off_t can say.
const MAX_FILE: u64 = i64::MAX as u64;

struct State {
    attr: Attr,
    placement: Placement,
    closed: bool,
}

/// An open handle. All calls take `&self` and may overlap.
pub(crate) struct OpenFile {
    client: Client,
    handle: u64,
    path: Bytes,
    /// The size that the file is expected to get, if the caller said so.
    size_hint: u64,
    state: Mutex<State>,
}

impl OpenFile {
    pub fn new(client: Client, handle: u64, path: Bytes, size_hint: u64, opened: &OpenResponse) -> Result<Self> {
        let attr = opened.attr.ok_or_else(|| Error::protocol("no attributes"))?;
        // A directory has no data, so its placement means nothing.
        let is_file = Metadata::from_proto(opened.attr)?.is_file();
        let placement = if is_file { check_placement(opened.placement)? } else { Placement::default() };
        let state = State { attr, placement, closed: false };
        Ok(Self { client, handle, path, size_hint, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn ino(&self) -> u64 {
        self.lock().attr.ino
    }

    fn snapshot(&self) -> (Placement, u64) {
        let state = self.lock();
        (state.placement, state.attr.size)
    }

    fn learn(&self, attr: Option<Attr>, placement: Option<Placement>) -> Result<()> {
        let placement = check_placement(placement)?;
        let attr = attr.ok_or_else(|| Error::protocol("no attributes"))?;
        let mut state = self.lock();
        // Answers may overtake each other; versions tell which is newer.
        if attr.ino == state.attr.ino && attr.version >= state.attr.version {
            state.attr = attr;
            state.placement = placement;
        }
        Ok(())
    }

    /// Gives a call that consists of several requests the deadline of one.
    async fn within<T>(&self, changes: bool, call: impl Future<Output = Result<T>>) -> Result<T> {
        let deadline = self.client.deadline();
        let outcome = tokio::time::timeout(deadline, call).await;
        outcome.unwrap_or_else(|_| Err(Error::timeout(deadline, changes, None))).map_err(|error| error.at(&self.path))
    }

    /// Up to `length` bytes from `offset`; fewer only at the end of the file.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes> {
        self.within(false, async {
            for _ in 0..ATTEMPTS {
                match self.try_read(offset, length as u64).await {
                    Ok(Some(data)) => return Ok(data),
                    Ok(None) => {}
                    Err(error) if error.reason() == Reason::StaleGeneration => self.refresh().await?,
                    Err(error) => return Err(error),
                }
            }
            Err(restless())
        })
        .await
    }

    /// `None`: the bytes are elsewhere than thought, and now it is known where.
    async fn try_read(&self, offset: u64, length: u64) -> Result<Option<Bytes>> {
        let (placement, size) = self.snapshot();
        let guess = placement.home() == DataHome::Objects;
        let asked = length.min(MDS_CHUNK as u64);
        let request = ReadRequest { handle: self.handle, offset, length: asked, ino: self.ino() };
        let asking = self.ask_read(request);
        let (data, objects) = if guess {
            let length = length.min(size.saturating_sub(offset));
            let reading = read_objects(self.client.core(), self.ino(), &placement, offset, length);
            let (asked, read) = tokio::join!(asking, reading);
            (asked?, Some(read))
        } else {
            (asking.await?, None)
        };
        if let Some(data) = data {
            let fits = data.len() as u64 <= asked;
            return if fits { Ok(Some(data)) } else { Err(Error::protocol("more bytes than asked for")) };
        }
        let (fresh, fresh_size) = self.snapshot();
        let wanted = length.min(fresh_size.saturating_sub(offset));
        if fresh.home() != DataHome::Objects {
            return Ok(None);
        }
        match objects {
            Some(Ok(data)) if fresh.generation == placement.generation && data.len() as u64 == wanted => Ok(Some(data)),
            // The answer is of this call: what it says is fresh enough to read by.
            _ => read_objects(self.client.core(), self.ino(), &fresh, offset, wanted).await.map(Some),
        }
    }

    async fn ask_read(&self, request: ReadRequest) -> Result<Option<Bytes>> {
        let answer = call!(by self.handle, self.client, &self.path, Read, request)?;
        self.learn(answer.attr, answer.placement)?;
        Ok(answer.data)
    }

    /// Writes all of `data` at `offset`; durable when it returns.
    pub async fn write_at(&self, offset: u64, data: Bytes) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_FILE);
        let end = end.ok_or_else(|| Error::posix(Errno::EFBIG).at(&self.path))?;
        self.within(true, async {
            for _ in 0..ATTEMPTS {
                if self.snapshot().0.home() == DataHome::Inline {
                    if self.write_inline(offset, &data, end).await? {
                        return Ok(());
                    }
                    continue;
                }
                match self.write_to_objects(offset, &data, end).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(error) if error.reason() == Reason::StaleGeneration => self.refresh().await?,
                    Err(error) => return Err(error),
                }
            }
            Err(restless())
        })
        .await
    }

    /// False: the file lives in objects by now.
    async fn write_inline(&self, offset: u64, data: &Bytes, end: u64) -> Result<bool> {
        // A write that cannot stay inline sends its last byte only, to have the server move the file.
        if end > NEVER_INLINE && !self.send_write(end - 1, data.slice(data.len() - 1..)).await? {
            return Ok(false);
        }
        let mut at = 0;
        while at < data.len() {
            let to = data.len().min(at + MDS_CHUNK);
            if !self.send_write(offset + at as u64, data.slice(at..to)).await? {
                return Ok(false);
            }
            at = to;
        }
        Ok(true)
    }

    async fn send_write(&self, offset: u64, data: Bytes) -> Result<bool> {
        let request = WriteRequest { handle: self.handle, offset, data, append: false, ino: self.ino() };
        let answer = call!(by self.handle, self.client, &self.path, Write, request)?;
        self.learn(answer.attr, answer.placement)?;
        Ok(answer.written)
    }

    /// False: the file is not where it was thought to be, or was cut meanwhile.
    async fn write_to_objects(&self, offset: u64, data: &Bytes, end: u64) -> Result<bool> {
        let Some(placement) = self.granted(end).await? else { return Ok(false) };
        self.write_under(&placement, offset, data, end).await
    }

    /// False: the file was cut since the placement was given.
    async fn write_under(&self, placement: &Placement, offset: u64, data: &Bytes, end: u64) -> Result<bool> {
        write_objects(self.client.core(), self.ino(), placement, offset, data).await?;
        let report = SizeReport {
            size: end,
            truncate_seq: placement.truncate_seq,
            mtime: self.client.core().clock.wall_nanos(),
        };
        // Void if the file was cut since (R23): what was written may be gone, so write again.
        self.report(report).await
    }

    /// The placement, with `max_size` of at least `end` (R23).
    async fn granted(&self, end: u64) -> Result<Option<Placement>> {
        let (placement, _) = self.snapshot();
        if end <= placement.max_size {
            return Ok(Some(placement));
        }
        let ahead = if end <= self.size_hint { self.size_hint } else { end.saturating_add(end.min(GRANT_AHEAD)) };
        let placement = match self.ask_grant(ahead.min(MAX_FILE)).await {
            // Ahead is more than a file may have; perhaps what is needed is not.
            Err(error) if error.errno() == Errno::EFBIG && ahead > end => self.ask_grant(end).await?,
            other => other?,
        };
        {
            let mut state = self.lock();
            if age(&placement) < age(&state.placement) {
                // A later answer has overtaken it: the file was cut or moved since.
                return Ok(None);
            }
            state.placement = placement;
        }
        if placement.home() != DataHome::Objects {
            return Ok(None);
        }
        if placement.max_size < end {
            return Err(Error::protocol("a grant below what was asked for"));
        }
        Ok(Some(placement))
    }

    async fn ask_grant(&self, size: u64) -> Result<Placement> {
        let request = GrantSizeRequest { handle: self.handle, size, ino: self.ino() };
        check_placement(call!(by self.handle, self.client, &self.path, GrantSize, request)?.placement)
    }

    /// False if the report was void: the file was cut since the write.
    async fn report(&self, report: SizeReport) -> Result<bool> {
        let request = ReportSizeRequest { handle: self.handle, report: Some(report), ino: self.ino() };
        let answer = call!(by self.handle, self.client, &self.path, ReportSize, request)?;
        self.learn(answer.attr, answer.placement)?;
        let placement = check_placement(answer.placement)?;
        Ok(placement.home() == DataHome::Objects && placement.truncate_seq == report.truncate_seq)
    }

    /// Adds `data` at the end, wherever that is by then; returns where it went. Durable when it returns.
    pub async fn append_at_end(&self, data: Bytes) -> Result<u64> {
        if data.is_empty() {
            return Ok(self.metadata().await?.len());
        }
        self.within(true, async {
            let mut start = None;
            let mut at = 0;
            while at < data.len() {
                let to = data.len().min(at + MDS_CHUNK);
                let offset = self.append_part(data.slice(at..to)).await?;
                start.get_or_insert(offset);
                at = to;
            }
            start.ok_or_else(restless)
        })
        .await
    }

    async fn append_part(&self, part: Bytes) -> Result<u64> {
        for _ in 0..ATTEMPTS {
            let request =
                WriteRequest { handle: self.handle, offset: 0, data: part.clone(), append: true, ino: self.ino() };
            let answer = call!(by self.handle, self.client, &self.path, Write, request)?;
            self.learn(answer.attr, answer.placement)?;
            if answer.written {
                return Ok(answer.offset);
            }
            let end = answer.offset.checked_add(part.len() as u64).filter(|end| *end <= MAX_FILE);
            let end = end.ok_or_else(|| Error::protocol("an impossible end of the file"))?;
            let placement = check_placement(answer.placement)?;
            if placement.home() != DataHome::Objects || placement.max_size < end {
                return Err(Error::protocol("an append to where nothing may be written"));
            }
            // R23: the owner has reserved the range, nobody else writes there; but only until the file is cut. Under what
            // is known by now of a later time, the bytes would stay at an offset that is not the end any more (R22).
            match self.write_under(&placement, answer.offset, &part, end).await {
                Ok(true) => return Ok(answer.offset),
                Ok(false) => {}
                Err(error) if error.reason() == Reason::StaleGeneration => {}
                Err(error) => return Err(error),
            }
        }
        Err(restless())
    }

    /// Asks where the bytes are.
    async fn refresh(&self) -> Result<()> {
        let request = StatRequest { caller: self.client.caller(), target: Some(by_ino(self.ino())), follow: false };
        let answer = call!(by self.handle, self.client, &self.path, Stat, request)?;
        self.learn(answer.attr, answer.placement)
    }

    /// Attributes.
    pub async fn metadata(&self) -> Result<Metadata> {
        let request = StatRequest { caller: self.client.caller(), target: Some(by_ino(self.ino())), follow: false };
        let answer = call!(by self.handle, self.client, &self.path, Stat, request)?;
        let metadata = Metadata::from_proto(answer.attr)?;
        if metadata.is_file() {
            self.learn(answer.attr, answer.placement)?;
        }
        Ok(metadata)
    }

    /// Changes attributes of this very inode.
    pub async fn set_attr(&self, changes: SetAttrRequest) -> Result<Metadata> {
        let request = SetAttrRequest {
            caller: self.client.caller(),
            target: Some(by_ino(self.ino())),
            handle: self.handle,
            handle_ino: self.ino(),
            ..changes
        };
        let answer = call!(by self.handle, self.client, &self.path, SetAttr, request)?;
        let metadata = Metadata::from_proto(answer.attr)?;
        if metadata.is_file() {
            self.learn(answer.attr, answer.placement)?;
        }
        Ok(metadata)
    }

    /// Closes the handle.
    pub async fn close(&self) -> Result<()> {
        let Some(close) = self.start_close() else { return Ok(()) };
        let closed = call!(by self.handle, self.client, &self.path, Close, close);
        self.client.core().forget_handle(self.handle);
        match closed {
            // Its owner was opened anew and never heard of it, or it was lost: it is closed (R19).
            Err(error)
                if matches!(error.errno(), Errno::EBADF)
                    || error.reason() == Reason::Posix && error.errno() == Errno::ESTALE =>
            {
                Ok(())
            }
            other => other.map(|_| ()),
        }
    }

    fn start_close(&self) -> Option<CloseRequest> {
        let mut state = self.lock();
        if std::mem::replace(&mut state.closed, true) {
            return None;
        }
        self.client.core().start_closing(self.handle);
        Some(CloseRequest { handle: self.handle, report: None, ino: state.attr.ino })
    }
}

impl Drop for OpenFile {
    /// Closes in the background, as well as can be; [`File::close`](crate::File::close) tells about errors.
    fn drop(&mut self) {
        let Some(close) = self.start_close() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let client = self.client.clone();
        runtime.spawn(async move {
            let handle = close.handle;
            let operation = Operation { op: Some(Op::Close(close)) };
            let _ = client.core().run(operation, To::Handle(handle), client.deadline()).await;
            client.core().forget_handle(handle);
        });
    }
}

/// Rises whenever a file is cut or moves (R22, R24).
fn age(placement: &Placement) -> (u64, u64, u64) {
    (placement.inline_version, placement.generation, placement.truncate_seq)
}

fn restless() -> Error {
    Error::new(Reason::Unavailable, "others keep cutting or moving the file: try again later")
}
