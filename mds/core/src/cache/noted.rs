//! What changes while the cache is being copied (R12).

use bytes::Bytes;
use pando_proto::Ino;
use rustc_hash::FxHashSet;

/// Something that changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Note {
    Inode(Ino),
    Name(Ino, Bytes),
    Body(Ino),
}

/// Off unless a copy is under way.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    notes: Option<FxHashSet<Note>>,
    /// Directories of whose names something was forgotten.
    cut: FxHashSet<Ino>,
    bytes: usize,
}

impl Noted {
    pub fn begin(&mut self) {
        *self = Self { notes: Some(FxHashSet::default()), ..Self::default() };
    }

    /// All notes, in order; none are taken any more.
    pub fn end(&mut self) -> Vec<Note> {
        let mut notes: Vec<Note> = std::mem::take(self).notes.into_iter().flatten().collect();
        notes.sort_unstable();
        notes
    }

    pub fn note(&mut self, note: impl FnOnce() -> Note) {
        let Some(notes) = &mut self.notes else { return };
        let note = note();
        let name = if let Note::Name(_, name) = &note { name.len() } else { 0 };
        if notes.insert(note) {
            self.bytes += size_of::<Note>() * 2 + name;
        }
    }

    /// Names of a directory are forgotten.
    pub fn cut(&mut self, dir: Ino) {
        if self.notes.is_some() && self.cut.insert(dir) {
            self.bytes += size_of::<Ino>() * 2;
        }
    }

    /// Whether something was forgotten of a directory since the copy began.
    pub fn is_cut(&self, dir: Ino) -> bool {
        self.cut.contains(&dir)
    }

    /// Bytes in memory (I8).
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
