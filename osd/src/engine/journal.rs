//! fjall's journals, looked at before fjall opens them.
//!
//! fjall cuts a journal at the first batch that makes no sense, without an error. For the batch that was being written
//! when the process died that is right. Anywhere else the disk lost what was acknowledged, and the three keyspaces,
//! which are written into tables each at its own time, may be left at different points: that copy is of no use (I1, I10).
//!
//! Layout, of fjall 3 (`journal/entry.rs`), little endian: a batch is a start (`01`, items u32, number u64), items (`02`,
//! type u8, compression u8, keyspace u64, key length u16, length u32, stored length u32, key, value; or `04`, keyspace
//! u64), and an end (`03`, checksum u64, `FJL 03`). Files are made long and full of zeros. Each batch is synced before the
//! next one is begun. Checksums are left to fjall, which refuses to open what does not match them.

use std::io;
use std::path::{Path, PathBuf};

use super::DirectoryError;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const MAGIC: [u8; 4] = *b"FJL\x03";
const START_BYTES: usize = 1 + 4 + 8;
/// Of an item, before its key.
const ITEM_BYTES: usize = 1 + 1 + 1 + 8 + 2 + 4 + 4;
const CLEAR_BYTES: usize = 1 + 8;
const END_BYTES: usize = 1 + 8 + 4;
/// Zeros are skipped in steps of this.
const STEP: usize = 4096;

/// Refuses a database that would lose more than the batch that was being written.
///
/// # Errors
/// [`DirectoryError::DamagedJournal`], or what the operating system says.
pub(super) fn check(dir: &Path) -> Result<(), DirectoryError> {
    let io = |error: io::Error| DirectoryError::from_io(dir, &error);
    let journals = journals(dir).map_err(io)?;
    for (number, journal) in journals.iter().enumerate() {
        let bytes = std::fs::read(journal).map_err(io)?;
        let sealed = number + 1 < journals.len();
        if let Some(at) = damaged_at(&bytes, sealed) {
            return Err(DirectoryError::DamagedJournal { dir: dir.to_owned(), file: journal.clone(), at });
        }
    }
    Ok(())
}

/// Oldest first. fjall itself complains about other names.
fn journals(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        if let Some(number) = number
            && path.extension().is_some_and(|extension| extension == "jnl")
        {
            found.push((number, path));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Where the damage begins, if more is lost by it than what was being written. Nothing was in a sealed journal.
fn damaged_at(bytes: &[u8], sealed: bool) -> Option<usize> {
    let (mut good, mut last) = (0, None);
    while let Some(batch) = batch(&bytes[good..]) {
        good += batch.length;
        last = Some(batch.number);
    }
    let rest = without_zeros(&bytes[good..]);
    if rest.is_empty() {
        return None;
    }
    let later = |at: usize| batch(&rest[at..]).is_some_and(|batch| last.is_none_or(|last| batch.number > last));
    // The batch that the damage is in begins at 0.
    let starts = (1..rest.len()).filter(|at| rest[*at] == START);
    (sealed || starts.into_iter().any(later)).then_some(good)
}

fn without_zeros(bytes: &[u8]) -> &[u8] {
    let used = bytes.chunks(STEP).rposition(|step| *step != [0; STEP][..step.len()]);
    &bytes[..used.map_or(0, |last| ((last + 1) * STEP).min(bytes.len()))]
}

struct Batch {
    number: u64,
    length: usize,
}

/// The batch that begins here, if it is whole.
fn batch(bytes: &[u8]) -> Option<Batch> {
    if *bytes.first()? != START {
        return None;
    }
    let items = u32::from_le_bytes(field(bytes, 1)?);
    let number = u64::from_le_bytes(field(bytes, 5)?);
    let mut at = START_BYTES;
    for _ in 0..items {
        at += match *bytes.get(at)? {
            ITEM => {
                let key = usize::from(u16::from_le_bytes(field(bytes, at + 11)?));
                let value = u32::from_le_bytes(field(bytes, at + 17)?) as usize;
                ITEM_BYTES + key + value
            }
            CLEAR => CLEAR_BYTES,
            _ => return None,
        };
    }
    let ends = *bytes.get(at)? == END && field(bytes, at + 9)? == MAGIC;
    ends.then_some(Batch { number, length: at + END_BYTES })
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests;
