//! Whole trees of directories.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use futures_util::StreamExt as _;
use pando_proto::Errno;

use crate::{Client, Dir, Error, FileKind, ReadDirOptions, Reason, Result, path};

/// Removals under way at once.
const PARALLEL: usize = 128;
/// Attempts to empty a directory in which others keep creating.
const ATTEMPTS: usize = 16;

impl Client {
    /// Makes a directory and all that are missing above it.
    ///
    /// Errors: ENOTDIR if something else is in the way, EACCES, ENOSPC.
    pub async fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        path::check(path)?;
        let mut missing: Vec<&Path> = Vec::new();
        let mut next = Some(path);
        // Upwards until one can be made or exists, then down again.
        while let Some(dir) = next.filter(|dir| dir.parent().is_some() && !dir.as_os_str().is_empty()) {
            match self.make_or_find(dir).await {
                Ok(()) => break,
                Err(error) if error.errno() == Errno::ENOENT => missing.push(dir),
                Err(error) => return Err(error),
            }
            next = dir.parent();
        }
        for dir in missing.into_iter().rev() {
            self.make_or_find(dir).await?;
        }
        Ok(())
    }

    async fn make_or_find(&self, dir: &Path) -> Result<()> {
        let error = match self.create_dir(dir).await {
            Err(error) if error.errno() == Errno::EEXIST => error,
            other => return other,
        };
        let found = self.metadata(dir).await?;
        if found.is_dir() { Ok(()) } else { Err(error) }
    }

    /// Removes a directory with all below it; symlinks that are found are removed, not followed. What vanishes meanwhile
    /// is no error. It goes from directory to directory by inode and name, never by path, so that whoever may rename in
    /// the tree cannot lead it out by a symlink in the place of a directory. What is moved out of the tree before its turn
    /// comes is left alone; a directory that is moved while it is just being emptied is emptied all the same.
    ///
    /// Errors: ENOENT, ENOTDIR also for a symlink, EACCES, ENOTEMPTY where others go on filling it; then a part is left.
    /// Before anything is removed: EBUSY for the root, EINVAL and ENOTEMPTY for a path that ends in `.` and `..`.
    pub async fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path::check(path.as_ref())?;
        let (parent, name) = path.split()?;
        let parent = Dir::find(self, &parent, true).await.map_err(|error| error.only_at(path.given()))?;
        // Depth first without recursion: a directory stays on the stack until it is removed.
        let mut stack = vec![Doomed { parent, name: OsString::from_vec(name.to_vec()), attempt: 0 }];
        while let Some(doomed) = stack.pop() {
            let named = stack.is_empty();
            // It was emptied before.
            if doomed.attempt > 0 && doomed.remove(named).await? {
                continue;
            }
            let first = named && doomed.attempt == 0;
            let below = match doomed.empty().await {
                Err(error) if !first && is_gone(&error, named) => continue,
                other => other?,
            };
            if below.is_empty() && doomed.remove(named).await? {
                continue;
            }
            if doomed.attempt >= ATTEMPTS {
                let path = doomed.parent.entry(&doomed.name)?;
                return Err(Error::posix(Errno::ENOTEMPTY).at(path.given()));
            }
            stack.push(Doomed { attempt: doomed.attempt + 1, ..doomed });
            stack.extend(below);
        }
        Ok(())
    }
}

/// A directory that is to be removed, by whatever name leads to one when its turn comes.
struct Doomed {
    parent: Dir,
    name: OsString,
    attempt: usize,
}

impl Doomed {
    /// Removes all in it that is no directory; returns the directories.
    async fn empty(&self) -> Result<Vec<Self>> {
        let dir = self.parent.open_dir(&self.name).await?;
        let mut listing = dir.read_dir_with(ReadDirOptions::default()).await?;
        let (mut below, mut others) = (Vec::new(), Vec::new());
        while let Some(entry) = listing.next_entry().await? {
            let name = entry.file_name();
            match entry.kind() {
                FileKind::Directory => below.push(Self { parent: dir.clone(), name, attempt: 0 }),
                FileKind::File | FileKind::Symlink => others.push(name),
            }
        }
        let mut removing =
            futures_util::stream::iter(others.iter().map(|name| dir.remove_file(name))).buffer_unordered(PARALLEL);
        while let Some(removed) = removing.next().await {
            match removed {
                // A directory has taken its place, which the next attempt finds.
                Err(error) if is_gone(&error, false) || error.errno() == Errno::EISDIR => {}
                other => other?,
            }
        }
        Ok(below)
    }

    /// False: it is not empty.
    async fn remove(&self, named: bool) -> Result<bool> {
        match self.parent.remove_dir(&self.name).await {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Errno::ENOTEMPTY => Ok(false),
            Err(error) if is_gone(&error, named) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// It has vanished since it was found. Or something that is no directory is in its place: the directory that held it is
/// looked through once more, but who has named it (`named`) is told.
fn is_gone(error: &Error, named: bool) -> bool {
    match error.errno() {
        Errno::ENOENT => true,
        // The directory that held it was removed itself; not that the session is over.
        Errno::ESTALE => error.reason() == Reason::Posix,
        Errno::ENOTDIR => !named,
        _ => false,
    }
}
