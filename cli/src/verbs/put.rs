//! `pando put`. A file appears under its name all at once: its bytes go to a temporary one beside it, which is then
//! renamed. What had the name before stays whole until then. A command that is interrupted removes the temporary file;
//! one that is killed leaves it, `.pando-put-SESSION-NUMBER-CHECKSUM`, until somebody puts a file that needs one into
//! that directory after the session has ended (a minute, `session_timeout_millis`). A small file needs none, unless it
//! replaces one in a tree.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{Read as _, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt as _;
use pando_client::{Client, Metadata, OpenOptions, ReadDirOptions};
use pando_proto::{ClientId, Errno};
use rustix::fs::FileType;
use tokio::io::AsyncWriteExt as _;

use crate::args::PutArgs;
use crate::failure::{Failure, Failures};
use crate::interrupts::Interrupts;
use crate::session::{Session, finish};
use crate::verbs::into_directory;
use crate::walk::LocalDir;

/// Files under way at once.
const PARALLEL: usize = 32;
/// Bytes read at once.
const BUFFER: usize = 1 << 20;
/// Symlinks in a row, as the kernel's limit.
const MAX_LINKS: usize = 40;
/// For [`Client::access`].
const MAY_WRITE: u32 = 2;
/// How the names of files under way begin.
const TEMPORARY: &str = ".pando-put-";
/// Of a directory, for those that others left: names come in byte order, so that these are among the first.
const LOOKED_AT: usize = 512;
const PAGE: u32 = 64;
/// For putting things in order after a signal.
const LAST_MOMENTS: Duration = Duration::from_secs(5);

/// A command at work.
struct Put {
    client: Client,
    /// Temporary files that are there, or may be.
    under_way: RefCell<BTreeSet<PathBuf>>,
    made: Cell<u64>,
    /// Directories in which what others left is removed already.
    swept: RefCell<BTreeSet<PathBuf>>,
}

pub async fn run(session: &Session, args: PutArgs) -> Result<(), Failure> {
    let mut interrupts = Interrupts::watch()?;
    let client = tokio::select! {
        client = session.client() => client?,
        interrupted = interrupts.next() => return Err(interrupted),
    };
    let (under_way, made, swept) = Default::default();
    let put = Put { client, under_way, made, swept };
    let outcome = tokio::select! {
        outcome = all(&put, &args) => outcome,
        interrupted = interrupts.next() => Err(interrupted),
    };
    let ending = async {
        let _ = tokio::time::timeout(LAST_MOMENTS, put.clean_up()).await;
        finish(put.client, outcome).await
    };
    tokio::select! {
        ended = ending => ended,
        // Who asks twice does not want to wait.
        interrupted = interrupts.next() => Err(interrupted),
    }
}

impl Put {
    /// A name beside `path` that no other command uses: the session's id is in it.
    fn temporary(&self, path: &Path) -> PathBuf {
        let number = self.made.replace(self.made.get() + 1);
        let name = temporary_name(&self.client.map().cluster_id, self.client.id(), number);
        let temporary = directory_of(path).join(name);
        self.under_way.borrow_mut().insert(temporary.clone());
        temporary
    }

    /// As well as can be: what failed is told already.
    async fn remove(&self, temporary: &Path) {
        let _ = self.client.remove_file(temporary).await;
    }

    /// Leaves nothing behind.
    async fn clean_up(&self) {
        let left = self.under_way.take();
        futures_util::stream::iter(&left).for_each_concurrent(PARALLEL, |temporary| self.remove(temporary)).await;
    }

    /// Removes what killed commands have left in a directory, if it may.
    async fn sweep(&self, dir: &Path) {
        if !self.swept.borrow_mut().insert(dir.to_owned()) {
            return;
        }
        let options = ReadDirOptions { page: PAGE, ..ReadDirOptions::default() };
        let Ok(dir) = self.client.open_dir(dir).await else { return };
        let Ok(mut listing) = dir.read_dir_with(options).await else { return };
        for _ in 0..LOOKED_AT {
            let Ok(Some(entry)) = listing.next_entry().await else { return };
            let name = entry.file_name();
            if let Some(maker) = maker(&self.client.map().cluster_id, name.as_bytes()) {
                if self.has_ended(maker) {
                    let _ = dir.remove_file(name).await;
                }
            } else if name.as_bytes() > TEMPORARY.as_bytes() && !name.as_bytes().starts_with(TEMPORARY.as_bytes()) {
                return;
            }
        }
    }

    /// Ids of sessions only grow, and our map is at least as new as our session: an older one that is not in it is over.
    /// A newer one may not be in it yet.
    fn has_ended(&self, session: ClientId) -> bool {
        session < self.client.id() && !self.client.map().session_is_live(session)
    }
}

/// The checksum is there so that no file of a user is taken for one of these: no other program makes such names.
fn temporary_name(cluster: &[u8; 16], session: ClientId, number: u64) -> String {
    let name = format!("{TEMPORARY}{}-{number}", session.0);
    let sum = crc32c::crc32c_append(crc32c::crc32c(cluster), name.as_bytes());
    format!("{name}-{sum:08x}")
}

/// The session that has made a temporary file, by its name.
fn maker(cluster: &[u8; 16], name: &[u8]) -> Option<ClientId> {
    let name = std::str::from_utf8(name).ok()?;
    let mut parts = name.strip_prefix(TEMPORARY)?.split('-');
    let session = ClientId(parts.next()?.parse().ok()?);
    let number = parts.next()?.parse().ok()?;
    (name == temporary_name(cluster, session, number)).then_some(session)
}

fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

async fn all(put: &Put, args: &PutArgs) -> Result<(), Failure> {
    if args.local.as_os_str() == "-" {
        return stream(put, Source::Stdin, &target(&put.client, &args.remote).await?, 0o644, 0).await;
    }
    let client = &put.client;
    // As `cp` has it: a symlink stands for what it leads to, with `-r` for itself.
    let look = if args.recursive { std::fs::symlink_metadata } else { std::fs::metadata };
    let found = look(&args.local).map_err(|error| Failure::local(&args.local, &error))?;
    let remote = if has_name(&args.local) {
        into_directory(client, &args.remote, &args.local).await?
    } else {
        args.remote.clone()
    };
    if found.is_dir() {
        if !args.recursive {
            return Err(Failure::Usage(format!("{}: is a directory; use `put -r`", args.local.display())));
        }
        return tree(put, &args.local, &remote).await;
    }
    let local = |error| Failure::local(&args.local, &error);
    if found.is_symlink() {
        return link(client, &std::fs::read_link(&args.local).map_err(local)?, &remote).await;
    }
    let source = std::fs::File::open(&args.local).map_err(local)?;
    if found.is_file() {
        return file(put, source, &args.local, &remote, true).await;
    }
    // A pipe, as `<(command)` is one.
    stream(put, Source::File(args.local.clone(), source), &target(client, &remote).await?, 0o644, 0).await
}

/// `put -r dir/. /x` has no name of its own and means the content: [`Path::file_name`] leaves out a `.` at the end.
fn has_name(path: &Path) -> bool {
    let last = path.as_os_str().as_bytes().split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
    last.is_some_and(|name| name != b"." && name != b"..")
}

/// What a directory on this machine holds, and where it goes.
struct Entry {
    dir: Rc<LocalDir>,
    name: OsString,
    from: PathBuf,
    to: PathBuf,
}

async fn tree(put: &Put, local: &Path, remote: &Path) -> Result<(), Failure> {
    let mut failures = Failures::default();
    let unread = |error| Failure::local(local, &error);
    let top = LocalDir::open(local).map_err(unread)?;
    make_directory(&put.client, remote, top.mode().map_err(unread)?, true).await?;
    let mut stack = directory(put, top, local, remote, &mut failures).await?;
    while let Some(entry) = stack.pop() {
        match subdirectory(put, entry, &mut failures).await {
            Ok(below) => stack.extend(below),
            Err(failure) => failures.note(Err(failure))?,
        }
    }
    failures.finish()
}

async fn subdirectory(put: &Put, entry: Entry, failures: &mut Failures) -> Result<Vec<Entry>, Failure> {
    let Entry { dir, name, from, to } = entry;
    let unread = |error| Failure::local(&from, &error);
    let dir = dir.open_dir(&name).map_err(unread)?;
    make_directory(&put.client, &to, dir.mode().map_err(unread)?, false).await?;
    directory(put, dir, &from, &to, failures).await
}

/// Copies all in a directory that is none; returns the directories.
async fn directory(
    put: &Put,
    dir: LocalDir,
    from: &Path,
    to: &Path,
    failures: &mut Failures,
) -> Result<Vec<Entry>, Failure> {
    let local = |error| Failure::local(from, &error);
    let (entries, dir) = (dir.entries().map_err(local)?, Rc::new(dir));
    let (mut below, mut files) = (Vec::new(), Vec::new());
    for (name, is_directory) in entries {
        let entry = Entry { dir: Rc::clone(&dir), from: from.join(&name), to: to.join(&name), name };
        if is_directory { below.push(entry) } else { files.push(entry) }
    }
    let mut copying = futures_util::stream::iter(files.iter().map(|entry| one(put, entry))).buffer_unordered(PARALLEL);
    while let Some(outcome) = copying.next().await {
        failures.note(outcome)?;
    }
    Ok(below)
}

/// Makes a directory, or finds it. As `cp` has it, a symlink will do for the one that the user has named
/// (`follow`), but not for those below it: an earlier copy may have made it, and so it may lead anywhere.
async fn make_directory(client: &Client, to: &Path, mode: u32, follow: bool) -> Result<(), Failure> {
    let found = match client.create_dir_with_mode(to, mode).await {
        Err(error) if error.errno() == Errno::EEXIST && follow => client.metadata(to).await?,
        Err(error) if error.errno() == Errno::EEXIST => client.symlink_metadata(to).await?,
        other => other?,
    };
    if found.is_dir() { Ok(()) } else { Err(failure_at(Errno::ENOTDIR, to)) }
}

/// A file or a symlink.
async fn one(put: &Put, entry: &Entry) -> Result<(), Failure> {
    let Entry { dir, name, from, to } = entry;
    let local = |error| Failure::local(from, &error);
    match dir.kind(name).map_err(local)? {
        FileType::Symlink => link(&put.client, &dir.read_link(name).map_err(local)?, to).await,
        FileType::RegularFile => file(put, dir.open_file(name).map_err(local)?, from, to, false).await,
        _ => Err(left_out(from)),
    }
}

async fn link(client: &Client, target: &Path, to: &Path) -> Result<(), Failure> {
    Ok(client.symlink(target, to).await?)
}

fn left_out(from: &Path) -> Failure {
    Failure::Local(format!("{}: neither file, directory nor symlink, left out", from.display()))
}

/// A symlink is followed only where the user has named it (`follow`), as with [`make_directory`]; below that the file
/// takes its place.
async fn file(put: &Put, mut source: std::fs::File, from: &Path, to: &Path, follow: bool) -> Result<(), Failure> {
    let client = &put.client;
    let local = |error| Failure::local(from, &error);
    let found = source.metadata().map_err(local)?;
    if !found.is_file() {
        return Err(left_out(from));
    }
    let mode = found.permissions().mode() & 0o7777;
    if found.len() <= client.map().inline_limit() {
        let mut data = Vec::new();
        source.read_to_end(&mut data).map_err(local)?;
        // It may have grown meanwhile.
        if data.len() as u64 <= client.map().inline_limit() {
            // One request: all of it or nothing. One that makes the file follows no symlink.
            match client.write_with(to, data.into(), mode, !follow).await {
                // A rename follows none either, whatever takes the name meanwhile.
                Err(error) if error.errno() == Errno::EEXIST && !follow => {}
                other => return other.map(|_| ()).map_err(Failure::from),
            }
        }
        source.rewind().map_err(local)?;
    }
    let to = if follow { target(client, to).await? } else { to.to_owned() };
    stream(put, Source::File(from.to_owned(), source), &to, mode, found.len()).await
}

/// Where bytes come from; read on another thread, for the session's keep-alive must go on.
enum Source {
    Stdin,
    File(PathBuf, std::fs::File),
}

impl Source {
    /// The next bytes; none at the end.
    async fn next(&mut self) -> Result<Vec<u8>, Failure> {
        let file = match self {
            Self::Stdin => None,
            Self::File(_, file) => Some(file.try_clone().map_err(|error| self.failure(&error))?),
        };
        let reading = tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0; BUFFER];
            let count = match file {
                None => std::io::stdin().read(&mut buffer)?,
                Some(mut file) => file.read(&mut buffer)?,
            };
            buffer.truncate(count);
            Ok::<_, std::io::Error>(buffer)
        });
        let read = reading.await.map_err(std::io::Error::other).and_then(|read| read);
        read.map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        match self {
            Self::Stdin => Failure::local("standard input", error),
            Self::File(path, _) => Failure::local(path, error),
        }
    }
}

/// Fills a temporary file, then gives it the name. A file that has the name already keeps its mode and owner, but
/// not its other names: they stay with the old content. A symlink that has the name is replaced itself.
async fn stream(put: &Put, source: Source, to: &Path, mode: u32, size: u64) -> Result<(), Failure> {
    let client = &put.client;
    let before = match client.symlink_metadata(to).await {
        Ok(found) if found.is_file() => {
            client.access(to, MAY_WRITE).await?;
            Some(found)
        }
        Ok(found) if found.is_dir() => return Err(failure_at(Errno::EISDIR, to)),
        Ok(_) => None,
        Err(error) if error.errno() == Errno::ENOENT => None,
        Err(error) => return Err(error.into()),
    };
    put.sweep(directory_of(to)).await;
    let temporary = put.temporary(to);
    let mode = before.as_ref().map_or(mode, Metadata::mode);
    let filled = fill(client, source, &temporary, before.as_ref(), mode, size).await;
    let outcome = match filled {
        Ok(()) => client.rename(&temporary, to).await.map_err(Failure::from),
        Err(failure) => Err(failure),
    };
    if outcome.is_err() {
        put.remove(&temporary).await;
    }
    put.under_way.borrow_mut().remove(&temporary);
    outcome
}

/// Where the symlinks lead that `path` may end in: it is the file there that is replaced, never a link.
async fn target(client: &Client, path: &Path) -> Result<PathBuf, Failure> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match client.symlink_metadata(&path).await {
            Ok(found) if found.is_symlink() => {
                let to = client.read_link(&path).await?;
                // An absolute one replaces all.
                path = directory_of(&path).join(to);
            }
            Err(error) if error.errno() != Errno::ENOENT => return Err(error.into()),
            _ => return Ok(path),
        }
    }
    Err(failure_at(Errno::ELOOP, &path))
}

async fn fill(
    client: &Client,
    mut source: Source,
    temporary: &Path,
    like: Option<&Metadata>,
    mode: u32,
    size: u64,
) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode).size_hint(size);
    let mut file = options.open(client, temporary).await?;
    loop {
        let data = source.next().await?;
        if data.is_empty() {
            break;
        }
        file.write_all(&data).await.map_err(cluster_error)?;
    }
    if let Some(like) = like {
        let made = file.metadata().await?;
        if (made.uid(), made.gid()) != (like.uid(), like.gid()) {
            match file.set_owner(Some(like.uid()), Some(like.gid())).await {
                // Who may write a file of another may still not give files away.
                Err(error) if error.errno() == Errno::EPERM => {}
                // It may have cost set-id bits.
                other => other.map(|_| ()).and(file.set_permissions(mode).await)?,
            }
        }
    }
    Ok(file.close().await?)
}

fn failure_at(errno: Errno, path: &Path) -> Failure {
    let mut error = pando_proto::Error::posix(errno);
    error.path = Some(path.as_os_str().as_encoded_bytes().to_vec());
    error.into()
}

/// The cluster's error inside one of `std::io`.
fn cluster_error(error: std::io::Error) -> Failure {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<pando_client::Error>()).cloned();
    inner.map_or_else(|| Failure::Local(error.to_string()), Failure::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_this_command_made_are_its_own() {
        let (cluster, other) = ([7; 16], [8; 16]);
        let name = temporary_name(&cluster, ClientId(20), 3);
        assert_eq!(maker(&cluster, name.as_bytes()), Some(ClientId(20)));
        assert_eq!(maker(&other, name.as_bytes()), None);
        for theirs in [".pando-put-20-3", ".pando-put-20-3-", ".pando-put-20-3-00000000", ".pando-put-", "x"] {
            assert_eq!(maker(&cluster, theirs.as_bytes()), None, "{theirs}");
        }
        assert_eq!(maker(&cluster, format!("{name}0").as_bytes()), None);
        assert_eq!(maker(&cluster, name.replace("-20-", "-020-").as_bytes()), None);
    }
}
