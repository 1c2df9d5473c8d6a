//! Paths as callers give them, checked before anything is sent.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bytes::Bytes;
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::Target;
use pando_proto::{Errno, MAX_NAME_BYTES, MAX_PATH_BYTES, SubtreeId};

use crate::{Error, Result};

/// A checked path: names separated by single `/`, none at the start; empty for where it begins.
/// One at the end stays, for the server to decide: only a directory will do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    names: Bytes,
    /// As given, for messages.
    given: Bytes,
    /// Where it begins if not at the root of the file system.
    base: Option<Base>,
}

/// A directory that is known by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub ino: u64,
    /// Who was its owner when it was last heard of.
    pub subtree: SubtreeId,
}

/// Checks what any server would refuse. A path without a leading `/` starts at the root as well.
///
/// Errors: ENOENT for the empty path, EINVAL for a NUL, ENAMETOOLONG.
pub(crate) fn check(path: &Path) -> Result<Checked> {
    let given = path.as_os_str().as_bytes();
    let fail = |errno, message: String| Err(Error::with_message(errno, message).at(&given[..given.len().min(256)]));
    if given.is_empty() {
        return Err(Error::with_message(Errno::ENOENT, "the path is empty"));
    }
    if given.contains(&0) {
        return fail(Errno::EINVAL, "a path cannot hold a NUL byte".into());
    }
    let mut names = Vec::with_capacity(given.len());
    for name in given.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        if name.len() > MAX_NAME_BYTES {
            return fail(Errno::ENAMETOOLONG, format!("a name has {} bytes, at most {MAX_NAME_BYTES} fit", name.len()));
        }
        if !names.is_empty() {
            names.push(b'/');
        }
        names.extend_from_slice(name);
    }
    if given.ends_with(b"/") && !names.is_empty() {
        names.push(b'/');
    }
    if names.len() > MAX_PATH_BYTES {
        return fail(Errno::ENAMETOOLONG, format!("the path has {} bytes, at most {MAX_PATH_BYTES} fit", names.len()));
    }
    Ok(Checked { names: names.into(), given: Bytes::copy_from_slice(given), base: None })
}

/// Checks a name in a directory.
///
/// Errors: EINVAL for what is no name of an entry, ENAMETOOLONG.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::with_message(Errno::EINVAL, "a name in a directory holds neither `/` nor NUL"));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::posix(Errno::ENAMETOOLONG));
    }
    Ok(())
}

impl Checked {
    /// The path as the caller wrote it.
    pub fn given(&self) -> &Bytes {
        &self.given
    }

    /// An entry of this directory; the name is one that a server sent and that was checked.
    pub fn join(&self, name: &[u8]) -> Self {
        let join = |dir: &[u8]| {
            let slash: &[u8] = if dir.is_empty() || dir.ends_with(b"/") { b"" } else { b"/" };
            [dir, slash, name].concat().into()
        };
        Self { names: join(&self.names), given: join(&self.given), base: self.base }
    }

    /// The same directory by number, so that it stays the same whatever becomes of the names that led to it.
    pub fn fixed_at(&self, base: Base) -> Self {
        Self { names: Bytes::new(), given: self.given.clone(), base: Some(base) }
    }

    /// The directory that holds the last name, and that name.
    ///
    /// Errors: those of rmdir(2) for what ends in no name: EBUSY for the root, EINVAL for `.`, ENOTEMPTY for `..`.
    pub fn split(&self) -> Result<(Self, Bytes)> {
        let without_slash = |path: &[u8]| path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let names = &self.names[..without_slash(&self.names)];
        let start = names.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let errno = match &names[start..] {
            b"" => Errno::EBUSY,
            b"." => Errno::EINVAL,
            b".." => Errno::ENOTEMPTY,
            _ => {
                let name = self.names.slice(start..names.len());
                let given = self.given.slice(..without_slash(&self.given) - name.len());
                return Ok((Self { names: self.names.slice(..start), given, base: self.base }, name));
            }
        };
        Err(Error::posix(errno).at(&self.given))
    }

    /// As the server takes it.
    pub fn target(&self) -> Target {
        Target { base: self.base.map_or(0, |base| base.ino), path: self.names.clone() }
    }

    /// Who is to be asked first.
    pub fn start(&self) -> SubtreeId {
        self.base.map_or(ROOT_SUBTREE, |base| base.subtree)
    }

    /// Has an error name the path as it was given.
    pub fn named_in(&self, error: Error) -> Error {
        // What a server calls it begins at the base, which says nothing to the caller.
        if self.base.is_some() { error.only_at(&self.given) } else { error.at(&self.given) }
    }
}

impl AsRef<[u8]> for Checked {
    fn as_ref(&self) -> &[u8] {
        &self.given
    }
}

/// The whole of an inode known by number.
pub(crate) fn by_ino(ino: u64) -> Target {
    Target { base: ino, path: Bytes::new() }
}

/// Checks a name of an extended attribute.
pub(crate) fn check_xattr_name(name: &[u8]) -> Result<Bytes> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(&0) {
        let message = format!("a name of an extended attribute has 1 to {MAX_NAME_BYTES} bytes and no NUL");
        return Err(Error::with_message(Errno::ERANGE, message));
    }
    Ok(Bytes::copy_from_slice(name))
}

#[cfg(test)]
mod tests;
