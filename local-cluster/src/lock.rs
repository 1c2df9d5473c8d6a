//! One cluster process for each data directory.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::Path;

use pando_proto::{Error, Reason};

use crate::layout::unusable;

/// In the data directory: locked while a process runs its cluster, and says which.
pub(crate) const FILE: &str = "up.lock";
/// More than any process id has.
const MAX_PID_DIGITS: u64 = 20;

/// Held as long as the cluster of a directory runs. The kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of a directory.
    ///
    /// Errors: another process has it; the message says which.
    pub(crate) fn take(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(FILE);
        let opened = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = opened.map_err(|error| unusable(&path, &error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(dir, &file)),
            Err(TryLockError::Error(error)) => return Err(unusable(&path, &error)),
        }
        let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(|error| unusable(&path, &error))?;
        Ok(Self { _file: file })
    }
}

fn in_use(dir: &Path, file: &File) -> Error {
    let mut text = String::new();
    let _ = file.take(MAX_PID_DIGITS).read_to_string(&mut text);
    // Empty while the other one is just about to write it.
    let pid = text.trim().parse::<u32>().map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    let text = format!(
        "{}: another `pando up` uses this directory{pid}: stop that one, or choose another directory with --data",
        dir.display()
    );
    Error::new(Reason::InUse, text)
}
