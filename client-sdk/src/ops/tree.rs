//! Whole trees of directories.

use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;
use pando_proto::Errno;

use crate::{Client, Error, FileKind, Result, path};

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
    /// is no error. It goes by paths: in a tree where somebody else may rename, a directory that is replaced by a symlink
    /// after it was seen is not told from it.
    ///
    /// Errors: ENOENT, ENOTDIR, EACCES, ENOTEMPTY where others go on filling it; then a part is left.
    pub async fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let found = self.symlink_metadata(path).await?;
        if !found.is_dir() {
            return Err(Error::posix(Errno::ENOTDIR).at(path::check(path)?.given()));
        }
        // Depth first without recursion: a directory stays on the stack until it is empty.
        let mut stack = vec![(path.to_owned(), 0)];
        while let Some((dir, attempt)) = stack.pop() {
            let below = absent_is_fine(self.remove_entries(&dir).await)?.unwrap_or_default();
            if below.is_empty() {
                match absent_is_fine(self.remove_dir(&dir).await) {
                    Ok(_) => {}
                    Err(error) if error.errno() == Errno::ENOTEMPTY && attempt < ATTEMPTS => {
                        stack.push((dir, attempt + 1));
                    }
                    Err(error) => return Err(error),
                }
            } else if attempt >= ATTEMPTS {
                // Somebody goes on making directories.
                return Err(Error::posix(Errno::ENOTEMPTY).at(dir.as_os_str().as_encoded_bytes()));
            } else {
                stack.push((dir, attempt + 1));
                stack.extend(below.into_iter().map(|dir| (dir, 0)));
            }
        }
        Ok(())
    }

    /// Removes all that is no directory; returns the directories.
    async fn remove_entries(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        let mut listing = self.read_dir(dir).await?;
        let mut directories = Vec::new();
        let mut others = Vec::new();
        while let Some(entry) = listing.next_entry().await? {
            let path = dir.join(entry.file_name());
            if entry.kind() == FileKind::Directory { directories.push(path) } else { others.push(path) }
        }
        let mut removing =
            futures_util::stream::iter(others.iter().map(|path| self.remove_file(path))).buffer_unordered(PARALLEL);
        while let Some(removed) = removing.next().await {
            absent_is_fine(removed)?;
        }
        Ok(directories)
    }
}

fn absent_is_fine<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.errno() == Errno::ENOENT => Ok(None),
        Err(error) => Err(error),
    }
}
