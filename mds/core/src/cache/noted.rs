//! What changes while the cache is being copied (R12).

use std::collections::hash_set::IntoIter;

use bytes::Bytes;
use pando_proto::Ino;
use rustc_hash::FxHashSet;

/// Something that changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Note {
    Inode(Ino),
    Name(Ino, Bytes),
    Body(Ino),
}

/// Off unless a copy is under way. Notes are taken for the round after the one that is being sent.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    notes: Option<FxHashSet<Note>>,
    /// What is left of the round.
    round: Option<IntoIter<Note>>,
    /// Directories of whose names something was forgotten.
    cut: FxHashSet<Ino>,
    /// Of `notes` and `cut`.
    bytes: usize,
    /// Of the round, until it is over.
    round_bytes: usize,
}

const CUT_BYTES: usize = size_of::<Ino>() * 2;

fn cost(note: &Note) -> usize {
    let name = if let Note::Name(_, name) = note { name.len() } else { 0 };
    size_of::<Note>() * 2 + name
}

impl Noted {
    pub fn begin(&mut self) {
        *self = Self { notes: Some(FxHashSet::default()), ..Self::default() };
    }

    /// All notes that were not sent, in no order; none are taken any more.
    pub fn end(&mut self) -> IntoIter<Note> {
        self.begin_round();
        std::mem::take(self).round.unwrap_or_default()
    }

    /// All that was noted so far becomes the next round, in no order. Costs nothing, however much it is (R27).
    pub fn begin_round(&mut self) {
        let Some(notes) = &mut self.notes else { return };
        // What a round that was not sent to its end left comes again.
        notes.extend(self.round.take().into_iter().flatten());
        let cut = self.cut.len() * CUT_BYTES;
        self.round_bytes += std::mem::replace(&mut self.bytes, cut) - cut;
        self.round = Some(std::mem::take(notes).into_iter());
    }

    /// The round under way, to be given back with [`Self::go_on`].
    pub fn round(&mut self) -> Option<IntoIter<Note>> {
        self.round.take()
    }

    /// There is more of this round; or, with `None`, it is over.
    pub fn go_on(&mut self, round: Option<IntoIter<Note>>) {
        if round.is_none() {
            self.round_bytes = 0;
        }
        self.round = round;
    }

    pub fn note(&mut self, note: impl FnOnce() -> Note) {
        let Some(notes) = &mut self.notes else { return };
        let note = note();
        let bytes = cost(&note);
        if notes.insert(note) {
            self.bytes += bytes;
        }
    }

    /// Names of a directory are forgotten.
    pub fn cut(&mut self, dir: Ino) {
        if self.notes.is_some() && self.cut.insert(dir) {
            self.bytes += CUT_BYTES;
        }
    }

    /// Whether something was forgotten of a directory since the copy began.
    pub fn is_cut(&self, dir: Ino) -> bool {
        self.cut.contains(&dir)
    }

    /// Notes that no round has yet.
    pub fn len(&self) -> usize {
        self.notes.as_ref().map_or(0, FxHashSet::len)
    }

    /// Bytes in memory (I8).
    pub fn bytes(&self) -> usize {
        self.bytes + self.round_bytes
    }
}
