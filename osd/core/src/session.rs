//! Which mutations of a session were done in this PG (R22).

use std::collections::BTreeSet;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

const FORMAT: u8 = 1;
/// Done mutations above the low-water mark that are remembered; a client with more in flight has to wait.
pub(crate) const MAX_WINDOW: usize = 4096;

/// Done mutations of one session, down to its low-water mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// All below have been answered.
    pub low_water: u64,
    /// Done ones at or above it.
    pub done: BTreeSet<u64>,
}

/// What becomes of a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Apply,
    /// Done before, or given up by its sender: either way not to be applied.
    Done,
    /// Too many above the low-water mark.
    Full,
}

impl Window {
    pub(crate) fn admit(&self, sequence: u64) -> Entry {
        if sequence < self.low_water || self.done.contains(&sequence) {
            Entry::Done
        } else if self.done.len() >= MAX_WINDOW && self.done.last().is_some_and(|last| sequence > *last) {
            // One that is open below others has to come to its end, or the mark never moves on.
            Entry::Full
        } else {
            Entry::Apply
        }
    }

    /// Notes a mutation and its sender's low-water mark.
    pub(crate) fn note(&mut self, sequence: u64, low_water: u64) {
        // A mark above the mutation itself would make it look answered before it is.
        self.low_water = self.low_water.max(low_water.min(sequence));
        self.done.insert(sequence);
        let low = self.low_water;
        while self.done.first().is_some_and(|first| *first < low) {
            self.done.pop_first();
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut value = BytesMut::with_capacity(9 + self.done.len() * 8);
        value.put_u8(FORMAT);
        value.put_u64(self.low_water);
        for sequence in &self.done {
            value.put_u64(*sequence);
        }
        value.freeze()
    }

    pub(crate) fn decode(mut value: Bytes) -> Option<Self> {
        if value.len() < 9 || !(value.len() - 1).is_multiple_of(8) || value.get_u8() != FORMAT {
            return None;
        }
        let low_water = value.get_u64();
        let mut done = BTreeSet::new();
        while value.has_remaining() {
            done.insert(value.get_u64());
        }
        Some(Self { low_water, done })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r22_a_mutation_is_applied_once() {
        let mut window = Window::default();
        assert_eq!(window.admit(5), Entry::Apply);
        window.note(5, 3);
        assert_eq!(window.admit(5), Entry::Done);
        assert_eq!(window.admit(4), Entry::Apply, "still open at its sender");
        assert_eq!(window.admit(2), Entry::Done, "its sender has given it up");
        window.note(9, 9);
        assert_eq!(window, Window { low_water: 9, done: [9].into() });
        assert_eq!(Window::decode(window.encode()), Some(window));
    }

    #[test]
    fn a_senseless_low_water_mark_does_no_harm() {
        let mut window = Window::default();
        window.note(5, u64::MAX);
        assert_eq!(window, Window { low_water: 5, done: [5].into() });
    }

    #[test]
    fn the_window_is_bounded() {
        let mut window = Window::default();
        (0..MAX_WINDOW as u64).for_each(|sequence| window.note(sequence, 0));
        assert_eq!(window.admit(MAX_WINDOW as u64), Entry::Full);
        let mut gap = Window::default();
        (1..=MAX_WINDOW as u64).for_each(|sequence| gap.note(sequence, 0));
        assert_eq!(gap.admit(0), Entry::Apply, "all others wait for it");
        assert_eq!(gap.admit(MAX_WINDOW as u64 + 1), Entry::Full);
        assert_eq!(window.admit(0), Entry::Done);
    }
}
