//! `pando get`. A file appears under its name all at once: its bytes go to a temporary one beside it, which is then
//! renamed. What had the name before stays whole until then. A command that is interrupted removes the temporary file;
//! one that is killed leaves it, `.pando-get-PROCESS-NUMBER`. What is no regular file, as a pipe or a terminal, is written
//! as it is.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;
use pando_client::{Client, Dir, File, FileKind, OpenOptions, ReadDirOptions};
use pando_proto::Errno;
use tokio::io::AsyncWriteExt as _;

use crate::args::GetArgs;
use crate::failure::{Failure, Failures};
use crate::interrupts::Interrupts;
use crate::local::{Place, Temporary, no_follow};
use crate::session::{Session, finish};
use crate::verbs::cat;

/// Files under way at once.
const PARALLEL: usize = 16;
/// Bytes asked for at once.
const CHUNK: usize = 4 << 20;

pub async fn run(session: &Session, args: GetArgs) -> Result<(), Failure> {
    if args.local.as_os_str() == "-" {
        // Nothing is made, so a signal may just end it.
        let client = session.client().await?;
        let outcome = cat::to_stdout(&client, &args.remote).await;
        return finish(client, outcome).await;
    }
    let mut interrupts = Interrupts::watch()?;
    let client = tokio::select! {
        client = session.client() => client?,
        interrupted = interrupts.next() => return Err(interrupted),
    };
    // What is dropped here takes its temporary files along.
    let outcome = tokio::select! {
        outcome = get(&client, &args) => outcome,
        interrupted = interrupts.next() => Err(interrupted),
    };
    tokio::select! {
        ended = finish(client, outcome) => ended,
        // Who asks twice does not want to wait.
        interrupted = interrupts.next() => Err(interrupted),
    }
}

async fn get(client: &Client, args: &GetArgs) -> Result<(), Failure> {
    let found = client.metadata(&args.remote).await?;
    let local = match (args.local.is_dir(), args.remote.file_name()) {
        (true, Some(name)) => args.local.join(name),
        _ => args.local.clone(),
    };
    if !found.is_dir() {
        return file(client.open(&args.remote).await?, &args.remote, &local, found.mode(), true).await;
    }
    if !args.recursive {
        let error = pando_proto::Error::posix(Errno::EISDIR).at(args.remote.as_os_str().as_encoded_bytes());
        return Err(Failure::from(error).hint(Errno::EISDIR, "use `get -r`"));
    }
    tree(client, &args.remote, local).await
}

/// What a directory in the cluster holds, and where it goes. It is looked for when its turn comes, by its name in that
/// directory and never by a path: whoever may rename in the tree cannot lead the copy out of it by a symlink.
struct Entry {
    dir: Dir,
    name: OsString,
    from: PathBuf,
    to: PathBuf,
}

async fn tree(client: &Client, remote: &Path, local: PathBuf) -> Result<(), Failure> {
    let mut failures = Failures::default();
    let top = client.open_dir(remote).await?;
    make_directory(&local, fs::metadata)?;
    let mut stack = directory(&top, remote, &local, &mut failures).await?;
    while let Some(entry) = stack.pop() {
        match subdirectory(entry, &mut failures).await {
            Ok(below) => stack.extend(below),
            Err(failure) => failures.note(Err(failure))?,
        }
    }
    failures.finish()
}

async fn subdirectory(entry: Entry, failures: &mut Failures) -> Result<Vec<Entry>, Failure> {
    let Entry { dir, name, from, to } = entry;
    let dir = dir.open_dir(&name).await?;
    make_directory(&to, fs::symlink_metadata)?;
    directory(&dir, &from, &to, failures).await
}

/// Makes a directory, or finds it. As `cp` has it, a symlink will do for the one that the user has named, but not for
/// those below it: an earlier copy may have made it, and so it may lead wherever somebody in the cluster wants.
fn make_directory<'a>(to: &'a Path, look: impl FnOnce(&'a Path) -> io::Result<fs::Metadata>) -> Result<(), Failure> {
    match fs::create_dir(to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match look(to) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(io::Error::from_raw_os_error(Errno::ENOTDIR.0)),
            Err(error) => Err(error),
        },
        other => other,
    }
    .map_err(|error| Failure::local(to, &error))
}

/// Copies all in a directory that is none; returns the directories.
async fn directory(dir: &Dir, from: &Path, to: &Path, failures: &mut Failures) -> Result<Vec<Entry>, Failure> {
    let options = ReadDirOptions { metadata: true, ..ReadDirOptions::default() };
    let mut listing = dir.read_dir_with(options).await?;
    let (mut below, mut others) = (Vec::new(), Vec::new());
    while let Some(found) = listing.next_entry().await? {
        let name = found.file_name();
        let entry = Entry { dir: dir.clone(), from: from.join(&name), to: to.join(&name), name };
        let mode = found.metadata().map_or(0o644, pando_client::Metadata::mode);
        match found.kind() {
            FileKind::Directory => below.push(entry),
            kind => others.push((entry, kind, mode)),
        }
    }
    let copying = others.iter().map(|(entry, kind, mode)| one(entry, *kind, *mode));
    let mut copying = futures_util::stream::iter(copying).buffer_unordered(PARALLEL);
    while let Some(outcome) = copying.next().await {
        failures.note(outcome)?;
    }
    Ok(below)
}

async fn one(entry: &Entry, kind: FileKind, mode: u32) -> Result<(), Failure> {
    let Entry { dir, name, from, to } = entry;
    if kind == FileKind::Symlink {
        let target = dir.read_link(name).await?;
        return symlink(target, to).map_err(|error| Failure::local(to, &error));
    }
    let source = OpenOptions::new().read(true).no_follow(true).open_in(dir, name).await?;
    file(source, from, to, mode, false).await
}

/// A file that is made gets the mode of the one in the cluster. One that is there keeps its own, and its owner where that
/// may be, but not its other names: they stay with the old content. A symlink is followed only where the user has named
/// it (`follow`), as with [`make_directory`]; below that the file takes its place.
async fn file(source: File, from: &Path, to: &Path, mode: u32, follow: bool) -> Result<(), Failure> {
    let local = |error| Failure::local(to, &error);
    let place = if follow { Place::followed(to) } else { Place::itself(to) };
    match place.map_err(local)? {
        Place::Other => {
            let mut options = if follow { fs::OpenOptions::new() } else { no_follow() };
            options.write(true).create(true).truncate(true);
            let mut target = tokio::fs::OpenOptions::from(options).open(to).await.map_err(local)?;
            fill(&source, from, &mut target, to).await?;
        }
        Place::File { path, before } => {
            let (temporary, made) = Temporary::beside(&path).map_err(|error| {
                Failure::local(to, &io::Error::other(format!("no temporary file can be made beside it: {error}")))
            })?;
            let mut target = tokio::fs::File::from_std(made);
            fill(&source, from, &mut target, to).await?;
            // Without setuid and setgid: who owns the copy is another one.
            let mode = fs::Permissions::from_mode(mode & 0o777);
            temporary.take_place(&target.into_std().await, &path, before.as_ref(), mode).map_err(local)?;
        }
    }
    Ok(source.close().await?)
}

async fn fill(source: &File, from: &Path, target: &mut tokio::fs::File, to: &Path) -> Result<(), Failure> {
    let local = |error| Failure::local(to, &error);
    let mut offset = 0;
    loop {
        let data = source.read_at(offset, CHUNK).await.map_err(|error| Failure::from(error).at(from))?;
        if data.is_empty() {
            break;
        }
        offset += data.len() as u64;
        target.write_all(&data).await.map_err(local)?;
    }
    target.flush().await.map_err(local)
}
