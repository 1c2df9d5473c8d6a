//! Runs one operation, compares its result with the recording and its bytes with the model.

use std::time::Instant;

use super::client::{Client, Wrong};
use crate::content;
use crate::model::Node;
use crate::state::Listing;
use crate::target::{Body, Failure, Outcome, Session, Target};
use crate::trace::{Attributes, Call, HandleId, Kind, MAX_CALL_BYTES, OpenFlags, Operation, PathId};

/// Calls that one recorded read may take if the target answers in small pieces.
const MAX_PIECES: u32 = 4096;

type Judged = Result<(), Wrong>;

/// Runs a call of the session and takes its time.
macro_rules! timed {
    ($client:expr, $operation:expr, $call:expr) => {{
        let start = Instant::now();
        let result = $call.await;
        $client.tally.recorder.ended($operation.call.name(), start);
        result
    }};
}

impl<T: Target> Client<'_, T> {
    /// Runs `operation`; wrong is what differs from the recording or the model.
    pub(super) async fn perform(&mut self, operation: &Operation) -> Judged {
        let path = |id: PathId| self.shared.trace.path(id);
        let session = &mut self.session;
        match operation.call {
            Call::Mkdir { path: dir, mode } => {
                let result = timed!(self, operation, session.mkdir(path(dir), mode));
                self.settle(operation, result)
            }
            Call::Symlink { target, path: link } => {
                let result = timed!(self, operation, session.symlink(path(target), path(link)));
                self.settle(operation, result)
            }
            Call::Create { path: file, mode, size } => {
                let body = Body { seed: self.state.model.seed_of_create(path(file)), size };
                let result = timed!(self, operation, session.create(path(file), mode, body));
                self.tally.bytes_written += if result.is_ok() { size } else { 0 };
                self.settle(operation, result)
            }
            Call::Truncate { path: file, size } => {
                let result = timed!(self, operation, session.truncate(path(file), size));
                self.settle(operation, result)
            }
            Call::Access { path: file, mask } => {
                let result = timed!(self, operation, session.access(path(file), mask));
                self.settle(operation, result)
            }
            Call::Rmdir { path: dir } => {
                let result = timed!(self, operation, session.rmdir(path(dir)));
                self.settle(operation, result)
            }
            Call::Unlink { path: file } => {
                let result = timed!(self, operation, session.unlink(path(file)));
                self.settle(operation, result)
            }
            Call::Rename { old, new, no_replace } => {
                let result = timed!(self, operation, session.rename(path(old), path(new), no_replace));
                self.settle(operation, result)
            }
            Call::Link { old, new } => {
                let result = timed!(self, operation, session.link(path(old), path(new)));
                self.settle(operation, result)
            }
            Call::Chmod { path: file, mode } => {
                let result = timed!(self, operation, session.chmod(path(file), mode));
                self.settle(operation, result)
            }
            Call::Utimens { path: file } => {
                let result = timed!(self, operation, session.touch(path(file)));
                self.settle(operation, result)
            }
            Call::Stat { path: file, follow, found } => {
                let result = timed!(self, operation, session.stat(path(file), follow));
                judge_attributes(operation, found, result)
            }
            Call::Readlink { path: link } => {
                let result = timed!(self, operation, session.readlink(path(link)));
                self.judge_link(operation, path(link), result)
            }
            Call::Open { path: file, flags, mode } => self.open(operation, path(file), flags, mode).await,
            Call::Seek { .. } => {
                // No call of any file system: the driver keeps the offsets.
                self.settle(operation, Ok(()))
            }
            Call::Close { handle } => {
                let Some(handle) = self.state.closed(handle) else { return Err(no_handle(operation)) };
                let result = timed!(self, operation, session.close(handle));
                self.settle(operation, result)
            }
            Call::Read { handle, count } => self.read(operation, handle, count, None).await,
            Call::Pread { handle, count, offset } => self.read(operation, handle, count, Some(offset)).await,
            Call::Write { handle } => self.write(operation, handle, None).await,
            Call::Pwrite { handle, offset } => self.write(operation, handle, Some(offset)).await,
            Call::Getdents { handle } => self.getdents(operation, handle).await,
            Call::Ftruncate { handle, .. }
            | Call::Fsync { handle }
            | Call::Fchmod { handle, .. }
            | Call::Fchown { handle }
            | Call::Futimens { handle }
            | Call::Fstat { handle, .. } => self.by_handle(operation, handle).await,
        }
    }

    /// Compares a result without a number, and tells the model of a success.
    fn settle(&mut self, operation: &Operation, result: Outcome<()>) -> Judged {
        if result.is_ok() {
            self.state.succeeded(self.shared.trace, &operation.call, operation.expected.unwrap_or(0));
        }
        judge(operation, result.map(|()| operation.expected.unwrap_or(0)))
    }

    async fn open(&mut self, operation: &Operation, path: &str, flags: OpenFlags, mode: u32) -> Judged {
        match timed!(self, operation, self.session.open(path, flags, mode)) {
            Ok(handle) => match operation.expected {
                Ok(number) => {
                    self.state.opened(number as HandleId, path, flags, handle);
                    Ok(())
                }
                Err(errno) => {
                    let _ = self.session.close(handle).await;
                    Err(Wrong::new(errno.name(), "a handle"))
                }
            },
            Err(failure) => judge(operation, Err(failure)),
        }
    }

    async fn by_handle(&mut self, operation: &Operation, handle: HandleId) -> Judged {
        let Some(open) = self.state.handles.get_mut(&handle) else { return Err(no_handle(operation)) };
        let (session, handle) = (&mut self.session, &mut open.session);
        let result = match operation.call {
            Call::Ftruncate { size, .. } => timed!(self, operation, session.truncate_handle(handle, size)),
            Call::Fsync { .. } => timed!(self, operation, session.sync(handle)),
            Call::Fchmod { mode, .. } => timed!(self, operation, session.chmod_handle(handle, mode)),
            Call::Fchown { .. } => timed!(self, operation, session.chown_handle(handle)),
            Call::Fstat { found, .. } => {
                let result = timed!(self, operation, session.stat_handle(handle));
                return judge_attributes(operation, found, result);
            }
            _ => timed!(self, operation, session.touch_handle(handle)),
        };
        self.settle(operation, result)
    }

    /// Reads until the recorded number is reached, or all that was asked for, or the end.
    async fn read(&mut self, operation: &Operation, handle: HandleId, count: u64, at: Option<u64>) -> Judged {
        let Some(open) = self.state.handles.get_mut(&handle) else { return Err(no_handle(operation)) };
        let (offset, wanted) = (at.unwrap_or(open.offset), operation.expected.unwrap_or(count));
        let file = open.node.and_then(|node| self.state.model.file(node));
        let mut got = 0;
        let mut divergence = None;
        let mut unknown = false;
        let start = Instant::now();
        let mut result = Ok(());
        for _ in 0..MAX_PIECES {
            match self.session.read_at(&mut open.session, offset + got, (count - got).min(MAX_CALL_BYTES)).await {
                Ok([]) => break,
                Ok(bytes) => {
                    match file {
                        Some(file) if divergence.is_none() => divergence = file.content.check(offset + got, bytes),
                        Some(_) => {}
                        None => unknown = true,
                    }
                    got += bytes.len() as u64;
                    // Less than was recorded may be a short read: ask again. As much or more: no need.
                    if got >= wanted.min(count) {
                        break;
                    }
                }
                Err(failure) => {
                    result = Err(failure);
                    break;
                }
            }
        }
        self.tally.recorder.ended(operation.call.name(), start);
        if result.is_ok() {
            self.tally.bytes_verified += got;
            self.state.succeeded(self.shared.trace, &operation.call, got);
        }
        judge(operation, result.map(|()| got))?;
        match divergence {
            Some(wrong) => Err(Wrong::new(
                format!("byte {:#04x} at offset {}", wrong.expected, wrong.offset),
                format!("byte {:#04x}", wrong.got),
            )),
            None if unknown => Err(Wrong::new("a file that the replay made", "bytes of some other file")),
            None => Ok(()),
        }
    }

    async fn write(&mut self, operation: &Operation, handle: HandleId, at: Option<u64>) -> Judged {
        let length = operation.expected.unwrap_or(0);
        let Some(plan) = self.state.plan_write(handle, at) else { return Err(no_handle(operation)) };
        let Some(open) = self.state.handles.get_mut(&handle) else { return Err(no_handle(operation)) };
        let data = content::generated(plan.seed, plan.offset, length as usize);
        let mut done = 0;
        let mut result = Ok(());
        let start = Instant::now();
        for _ in 0..MAX_PIECES {
            let rest = &data[done as usize..];
            let wrote = if plan.append {
                self.session.append(&mut open.session, rest).await
            } else {
                self.session.write_at(&mut open.session, plan.offset + done, rest).await
            };
            match wrote {
                Ok(0) => break,
                Ok(count) => done = (done + count).min(length),
                Err(failure) => {
                    result = Err(failure);
                    break;
                }
            }
            if done == length {
                break;
            }
        }
        self.tally.recorder.ended(operation.call.name(), start);
        self.tally.bytes_written += done;
        if done > 0 || result.is_ok() {
            self.state.succeeded(self.shared.trace, &operation.call, done);
        }
        judge(operation, result.map(|()| done))
    }

    /// Only the sum up to the recorded 0 is meant; there the names are compared as well.
    async fn getdents(&mut self, operation: &Operation, handle: HandleId) -> Judged {
        let Some(open) = self.state.handles.get_mut(&handle) else { return Err(no_handle(operation)) };
        let dir = open.node.and_then(|node| self.state.model.dir(node));
        if open.listing.recorded == 0
            && open.listing.got == 0
            && let Some((_, version)) = dir
        {
            open.listing.version = version;
        }
        let last = operation.expected == Ok(0);
        let mut result = Ok(());
        let start = Instant::now();
        while !open.listing.ended {
            match self.session.entries(&mut open.session).await {
                Ok(names) => {
                    open.listing.ended = names.is_empty();
                    open.listing.got += names.len() as u64;
                    open.listing.names.extend(names.into_iter().map(String::into_boxed_str));
                }
                Err(failure) => {
                    result = Err(failure);
                    break;
                }
            }
            if !last {
                break;
            }
        }
        self.tally.recorder.ended(operation.call.name(), start);
        let (Ok(recorded), Ok(())) = (operation.expected, &result) else {
            return judge(operation, result.map(|()| 0));
        };
        open.listing.recorded += recorded;
        if !last {
            return Ok(());
        }
        let listing = std::mem::take(&mut open.listing);
        let names = dir.filter(|(_, version)| *version == listing.version).map(|(entries, _)| entries.keys());
        judge_listing(listing, names)
    }

    fn judge_link(&self, operation: &Operation, path: &str, result: Outcome<String>) -> Judged {
        if let (Ok(target), Ok(_)) = (&result, operation.expected) {
            let node = self.state.model.find(path, false).and_then(|node| self.state.model.node(node));
            match node {
                Some(Node::Symlink(expected)) if **expected == **target => {}
                Some(Node::Symlink(expected)) => return Err(Wrong::new(expected.to_string(), target.clone())),
                _ => return Err(Wrong::new("a symlink that the replay made", target.clone())),
            }
        }
        judge(operation, result.map(|target| target.len() as u64))
    }
}

fn no_handle(operation: &Operation) -> Wrong {
    Wrong::new(expectation(operation), "nothing: its handle is not open")
}

fn expectation(operation: &Operation) -> String {
    match operation.expected {
        Ok(number) => format!("success ({number})"),
        Err(errno) => errno.name().to_owned(),
    }
}

/// Compares a result with the recorded one.
fn judge(operation: &Operation, result: Result<u64, Failure>) -> Judged {
    match (operation.expected, result) {
        (Ok(expected), Ok(number)) if expected == number => Ok(()),
        (Err(expected), Err(failure)) if expected == failure.errno => Ok(()),
        (_, Ok(number)) => Err(Wrong::new(expectation(operation), format!("success ({number})"))),
        (_, Err(failure)) => {
            Err(Wrong { fatal: failure.is_unreachable(), ..Wrong::new(expectation(operation), failure.to_string()) })
        }
    }
}

fn judge_attributes(operation: &Operation, found: Option<Attributes>, result: Outcome<Attributes>) -> Judged {
    match (found, result) {
        (Some(expected), Ok(got)) if expected == got => Ok(()),
        (Some(expected), Ok(got)) => Err(Wrong::new(describe(expected), describe(got))),
        (None, Ok(got)) => Err(Wrong::new(expectation(operation), describe(got))),
        (_, Err(failure)) => judge(operation, Err(failure)),
    }
}

fn describe(attributes: Attributes) -> String {
    match attributes.kind {
        Kind::File => format!("a file of {} bytes", attributes.size),
        Kind::Dir => "a directory".to_owned(),
        Kind::Symlink => "a symlink".to_owned(),
    }
}

/// `names`: what must be there, if the directory did not change meanwhile.
fn judge_listing<'a>(listing: Listing, names: Option<impl Iterator<Item = &'a Box<str>>>) -> Judged {
    if listing.got != listing.recorded {
        return Err(Wrong::new(format!("{} entries", listing.recorded), format!("{} entries", listing.got)));
    }
    let Some(names) = names else { return Ok(()) };
    let mut got: Vec<&str> =
        listing.names.iter().map(|name| &**name).filter(|name| !matches!(*name, "." | "..")).collect();
    got.sort_unstable();
    let expected: Vec<&str> = names.map(|name| &**name).collect();
    if got == expected {
        return Ok(());
    }
    let missing = expected.iter().find(|name| got.binary_search(name).is_err());
    let strange = got.iter().find(|name| expected.binary_search(name).is_err());
    Err(Wrong::new(
        missing.map_or_else(|| "no further name".to_owned(), |name| format!("the name {name}")),
        strange.map_or_else(|| "a listing without it".to_owned(), |name| format!("the name {name}")),
    ))
}
