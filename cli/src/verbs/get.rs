//! `pando get`. A file appears under its name all at once: its bytes go to a temporary one beside it, which is then
//! renamed. What had the name before stays whole until then. A command that is interrupted removes the temporary file;
//! one that is killed leaves it, `.pando-get-PROCESS-NUMBER`. What is no regular file, as a pipe or a terminal, is written
//! as it is.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;
use pando_client::{Client, File, FileKind, ReadDirOptions};
use pando_proto::Errno;
use tokio::io::AsyncWriteExt as _;

use crate::args::GetArgs;
use crate::failure::{Failure, Failures};
use crate::interrupts::Interrupts;
use crate::local::{Place, Temporary};
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
        return file(client, &args.remote, &local, found.mode()).await;
    }
    if !args.recursive {
        let error = pando_proto::Error::posix(Errno::EISDIR).at(args.remote.as_os_str().as_encoded_bytes());
        return Err(Failure::from(error).hint(Errno::EISDIR, "use `get -r`"));
    }
    tree(client, &args.remote, &local).await
}

async fn tree(client: &Client, remote: &Path, local: &Path) -> Result<(), Failure> {
    let mut failures = Failures::default();
    let mut stack = vec![(remote.to_owned(), local.to_owned())];
    while let Some((from, to)) = stack.pop() {
        match fs::create_dir(&to) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(Failure::local(&to, &error)),
            _ => {}
        }
        let options = ReadDirOptions { metadata: true, ..ReadDirOptions::default() };
        let mut listing = client.read_dir_with(&from, options).await?;
        let mut others: Vec<(PathBuf, PathBuf, FileKind, u32)> = Vec::new();
        while let Some(entry) = listing.next_entry().await? {
            let (from, to) = (from.join(entry.file_name()), to.join(entry.file_name()));
            let mode = entry.metadata().map_or(0o644, pando_client::Metadata::mode);
            match entry.kind() {
                FileKind::Directory => stack.push((from, to)),
                kind => others.push((from, to, kind, mode)),
            }
        }
        let copying = others.iter().map(|(from, to, kind, mode)| one(client, from, to, *kind, *mode));
        let mut copying = futures_util::stream::iter(copying).buffer_unordered(PARALLEL);
        while let Some(outcome) = copying.next().await {
            failures.note(outcome)?;
        }
    }
    failures.finish()
}

async fn one(client: &Client, from: &Path, to: &Path, kind: FileKind, mode: u32) -> Result<(), Failure> {
    if kind == FileKind::Symlink {
        let target = client.read_link(from).await?;
        return symlink(target, to).map_err(|error| Failure::local(to, &error));
    }
    file(client, from, to, mode).await
}

/// A file that is made gets the mode of the one in the cluster. One that is there keeps its own, and its owner where that
/// may be, but not its other names: they stay with the old content.
async fn file(client: &Client, from: &Path, to: &Path, mode: u32) -> Result<(), Failure> {
    let local = |error| Failure::local(to, &error);
    let source = client.open(from).await?;
    match Place::of(to).map_err(local)? {
        Place::Other => {
            let mut target = tokio::fs::File::create(to).await.map_err(local)?;
            fill(&source, from, &mut target, to).await?;
        }
        Place::File { path, before } => {
            let (temporary, made) = Temporary::beside(&path).map_err(|error| {
                Failure::local(to, &std::io::Error::other(format!("no temporary file can be made beside it: {error}")))
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
