//! Linearizable reads: Raft confirms that this mon's leader still leads (ReadIndex), for many reads at once.
//!
//! A confirmation can vanish (an election, a lost message); it is asked for again until the reader has gone.

use std::collections::BTreeMap;

use crate::node::Waiter;

/// Reads that may wait at once.
const MAX_WAITING: usize = 8192;
/// Ticks after which a confirmation is taken as lost.
const LOST_TICKS: u64 = 3;

struct Asked {
    at_tick: u64,
    waiters: Vec<Waiter>,
}

pub(crate) struct Reads {
    /// Makes the contexts of this process start differ from all others.
    prefix: Vec<u8>,
    next: u64,
    tick: u64,
    fresh: Vec<Waiter>,
    asked: BTreeMap<u64, Asked>,
    /// Confirmed, by the index that has to be applied first.
    confirmed: BTreeMap<u64, Vec<Waiter>>,
}

impl Reads {
    pub(crate) fn new(id: u64, boot: u64) -> Self {
        let prefix = [id.to_be_bytes(), boot.to_be_bytes()].concat();
        Self { prefix, next: 0, tick: 0, fresh: Vec::new(), asked: BTreeMap::new(), confirmed: BTreeMap::new() }
    }

    fn len(&self) -> usize {
        let asked: usize = self.asked.values().map(|asked| asked.waiters.len()).sum();
        asked + self.fresh.len() + self.confirmed.values().map(Vec::len).sum::<usize>()
    }

    /// Takes a read, or gives it back when too many wait.
    pub(crate) fn push(&mut self, waiter: Waiter) -> Result<(), Waiter> {
        if self.fresh.len() + self.asked.len() >= MAX_WAITING || self.len() >= MAX_WAITING {
            return Err(waiter);
        }
        self.fresh.push(waiter);
        Ok(())
    }

    /// The context to ask with for all that came since the last call; `None` if nothing did.
    pub(crate) fn ask(&mut self) -> Option<Vec<u8>> {
        self.fresh.retain(|waiter| !waiter.is_gone());
        if self.fresh.is_empty() {
            return None;
        }
        self.next += 1;
        let waiters = std::mem::take(&mut self.fresh);
        self.asked.insert(self.next, Asked { at_tick: self.tick, waiters });
        Some([self.prefix.as_slice(), &self.next.to_be_bytes()].concat())
    }

    /// Time passes: what was asked long ago is asked again.
    pub(crate) fn tick(&mut self) {
        self.tick += 1;
        let lost: Vec<u64> = (self.asked.iter())
            .filter(|(_, asked)| self.tick - asked.at_tick > LOST_TICKS)
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            if let Some(asked) = self.asked.remove(&number) {
                self.fresh.extend(asked.waiters);
            }
        }
    }

    /// Raft confirmed a context at an index.
    pub(crate) fn confirm(&mut self, context: &[u8], index: u64) {
        let number = context.strip_prefix(self.prefix.as_slice()).and_then(|rest| rest.try_into().ok());
        let asked = number.and_then(|number| self.asked.remove(&u64::from_be_bytes(number)));
        if let Some(asked) = asked {
            self.confirmed.entry(index).or_default().extend(asked.waiters);
        }
    }

    /// Those that may be answered from the state at `applied`.
    pub(crate) fn ready(&mut self, applied: u64) -> Vec<Waiter> {
        let later = self.confirmed.split_off(&(applied + 1));
        std::mem::replace(&mut self.confirmed, later).into_values().flatten().collect()
    }
}
