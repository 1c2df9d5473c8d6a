//! Paths as callers give them, checked before anything is sent.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bytes::Bytes;
use pando_proto::mds::Target;
use pando_proto::{Errno, MAX_NAME_BYTES, MAX_PATH_BYTES};

use crate::{Error, Result};

/// A checked path: names separated by single `/`, none at the start; empty for the root.
/// One at the end stays, for the server to decide: only a directory will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    names: Bytes,
    /// As given, for messages.
    given: Bytes,
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
    Ok(Checked { names: names.into(), given: Bytes::copy_from_slice(given) })
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
        Self { names: join(&self.names), given: join(&self.given) }
    }

    /// As the server takes it.
    pub fn target(&self) -> Target {
        Target { base: 0, path: self.names.clone() }
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
