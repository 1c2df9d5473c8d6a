//! fjall's journals, looked at before fjall opens them.
//!
//! fjall cuts a journal at the first batch that makes no sense, without an error. For the batch that was being written
//! when the process died that is right. Anywhere else the disk lost what was acknowledged, and the three keyspaces,
//! which are written into tables each at its own time, may be left at different points: that copy is of no use (I1, I10).
//!
//! Layout, of fjall 3 (`journal/entry.rs`), little endian: a batch is a start (`01`, items u32, number u64), items (`02`,
//! type u8, compression u8, keyspace u64, key length u16, length u32, stored length u32, key, value; or `04`, keyspace
//! u64), and an end (`03`, checksum u64, `FJL 03`). Files are made long and full of zeros. Each batch is synced before the
//! next one is begun. The checksum, XXH3 of the items, is left to fjall, which refuses to open what does not match it, but
//! for the last batch: a power cut may have kept any of its sectors from the disk, and they read as zeros then. fjall cuts
//! such a batch off where its structure shows it, and takes it for damage where only the checksum does: so it is cut off
//! here.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

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
/// A disk writes no less at once.
const SECTOR: usize = 512;

/// Refuses a database that would lose more than the batch that was being written, and cuts that one off.
///
/// # Errors
/// [`DirectoryError::DamagedJournal`], or what the operating system says.
pub(super) fn check(dir: &Path) -> Result<(), DirectoryError> {
    let io = |error: io::Error| DirectoryError::from_io(dir, &error);
    let journals = journals(dir).map_err(io)?;
    for (number, journal) in journals.iter().enumerate() {
        let bytes = std::fs::read(journal).map_err(io)?;
        let sealed = number + 1 < journals.len();
        match look_at(&bytes, sealed) {
            Found::Whole | Found::Senseless => {}
            Found::Torn(at) => cut(journal, at).map_err(io)?,
            Found::Damaged(at) => {
                return Err(DirectoryError::DamagedJournal { dir: dir.to_owned(), file: journal.clone(), at });
            }
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

/// How a journal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// With a whole batch.
    Whole,
    /// With one that was being written: its end is not there, or sectors before that. It begins here.
    Torn(usize),
    /// With one that makes no sense although all of it is there: fjall refuses it, or cuts it off.
    Senseless,
    /// Damaged from here on, and more is lost by it than what was being written.
    Damaged(usize),
}

/// Nothing was being written in a sealed journal.
fn look_at(bytes: &[u8], sealed: bool) -> Found {
    let bytes = &bytes[..used(bytes)];
    let (mut good, mut last, mut before) = (0, None, (0, None));
    let mut stopped = loop {
        match batch(&bytes[good..]) {
            Ok(batch) => {
                before = (good, last);
                (good, last) = (good + batch.length, Some(batch.number));
            }
            Err(at) => break good + at,
        }
    };
    // That the last one looks whole may be for what was not torn of it.
    if !sealed && !is_intact(&bytes[before.0..good]) && lacks_sectors(&bytes[..good], before.0) {
        if good < bytes.len() {
            // Another one was begun behind it, so it had been synced: this is no tear.
            return Found::Damaged(before.0);
        }
        ((good, last), stopped) = (before, good);
    }
    let rest = &bytes[good..];
    if rest.is_empty() {
        return Found::Whole;
    }
    let later = |at: usize| batch(&rest[at..]).is_ok_and(|batch| last.is_none_or(|last| batch.number > last));
    // The batch that the damage is in begins at 0.
    let mut starts = (1..rest.len()).filter(|at| rest[*at] == START);
    if sealed || starts.any(later) {
        return Found::Damaged(good);
    }
    if stopped >= bytes.len() || lacks_sectors(bytes, good) { Found::Torn(good) } else { Found::Senseless }
}

/// Whether a sector of what begins here holds nothing, or the rest of the first one, which was not written alone.
fn lacks_sectors(bytes: &[u8], from: usize) -> bool {
    let first = from.next_multiple_of(SECTOR).min(bytes.len());
    let empty = |part: &[u8]| *part == [0; SECTOR][..part.len()];
    from < first && empty(&bytes[from..first]) || bytes[first..].chunks_exact(SECTOR).any(empty)
}

/// Whether a whole batch, or nothing, has the checksum that it ends with.
fn is_intact(batch: &[u8]) -> bool {
    let Some(end) = batch.len().checked_sub(END_BYTES) else { return batch.is_empty() };
    let items = batch.get(START_BYTES..end).unwrap_or_default();
    field(batch, end + 1).map(u64::from_le_bytes) == Some(xxh3_64(items))
}

/// Ends a journal where its last batch begins.
fn cut(journal: &Path, at: usize) -> io::Result<()> {
    tracing::warn!(journal = %journal.display(), at, "cutting off the batch that was being written at a power cut");
    let file = std::fs::File::options().write(true).open(journal)?;
    file.set_len(at as u64)?;
    file.sync_all()
}

/// Where the zeros at the end begin.
fn used(bytes: &[u8]) -> usize {
    let Some(last) = bytes.chunks(STEP).rposition(|step| *step != [0; STEP][..step.len()]) else { return 0 };
    let end = bytes.len().min((last + 1) * STEP);
    bytes[..end].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

struct Batch {
    number: u64,
    length: usize,
}

/// The batch that begins here, if it is whole, else how far it makes sense.
fn batch(bytes: &[u8]) -> Result<Batch, usize> {
    if bytes.first() != Some(&START) {
        return Err(0);
    }
    let ends = bytes.len();
    let items = u32::from_le_bytes(field(bytes, 1).ok_or(ends)?);
    let number = u64::from_le_bytes(field(bytes, 5).ok_or(ends)?);
    let mut at = START_BYTES;
    for _ in 0..items {
        at += match bytes.get(at) {
            Some(&ITEM) => {
                let key = usize::from(u16::from_le_bytes(field(bytes, at + 11).ok_or(ends)?));
                let value = u32::from_le_bytes(field(bytes, at + 17).ok_or(ends)?) as usize;
                ITEM_BYTES + key + value
            }
            Some(&CLEAR) => CLEAR_BYTES,
            _ => return Err(at),
        };
    }
    if bytes.get(at) != Some(&END) {
        return Err(at);
    }
    let length = at + END_BYTES;
    if field(bytes, at + 9) == Some(MAGIC) { Ok(Batch { number, length }) } else { Err(length) }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests;
