//! A simulated disk for redb: what was not synced when the power went may be
//! there, or not, block by block (a torn disk).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Unit in which an unsynced write survives or not.
const SECTOR: usize = 512;

struct State {
    synced: Vec<u8>,
    current: Vec<u8>,
    /// Sectors written since the last sync, by number.
    dirty: BTreeMap<usize, ()>,
    /// Backends of an older power cycle write into the void.
    generation: u64,
    dice: ChaCha8Rng,
}

/// The disk of one host; it outlives the host's crashes.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

impl SimDisk {
    /// An empty disk; `seed` decides what survives a power cut.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            synced: Vec::new(),
            current: Vec::new(),
            dirty: BTreeMap::new(),
            generation: 0,
            dice: ChaCha8Rng::seed_from_u64(seed),
        })))
    }

    /// Cuts the power: each unsynced sector survives with one half; open backends are dead.
    pub fn power_cut(&self) {
        let mut state = self.lock();
        let State { synced, current, dirty, dice, generation } = &mut *state;
        synced.resize(current.len(), 0);
        for sector in dirty.keys() {
            if dice.random_bool(0.5) {
                let range = sector * SECTOR..((sector + 1) * SECTOR).min(current.len());
                if range.start < range.end {
                    synced[range.clone()].copy_from_slice(&current[range]);
                }
            }
        }
        dirty.clear();
        current.clone_from(synced);
        *generation += 1;
    }

    /// A backend for the present power cycle.
    pub fn backend(&self) -> SimBackend {
        SimBackend { disk: self.clone(), generation: self.lock().generation }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimDisk")
    }
}

/// What redb sees of a [`SimDisk`].
#[derive(Debug)]
pub struct SimBackend {
    disk: SimDisk,
    generation: u64,
}

impl SimBackend {
    fn state(&self) -> std::io::Result<MutexGuard<'_, State>> {
        let state = self.disk.lock();
        if state.generation == self.generation { Ok(state) } else { Err(std::io::Error::other("the power was cut")) }
    }
}

impl redb::StorageBackend for SimBackend {
    fn len(&self) -> Result<u64, std::io::Error> {
        Ok(self.state()?.current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        let state = self.state()?;
        let start = offset as usize;
        let source = state.current.get(start..start + out.len());
        let source = source.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::UnexpectedEof))?;
        out.copy_from_slice(source);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        let mut state = self.state()?;
        let old = state.current.len();
        state.current.resize(len as usize, 0);
        for sector in old / SECTOR..(len as usize).div_ceil(SECTOR) {
            state.dirty.insert(sector, ());
        }
        Ok(())
    }

    fn sync_data(&self) -> Result<(), std::io::Error> {
        let mut state = self.state()?;
        let State { synced, current, dirty, .. } = &mut *state;
        synced.resize(current.len(), 0);
        for sector in std::mem::take(dirty).into_keys() {
            let range = sector * SECTOR..((sector + 1) * SECTOR).min(current.len());
            if range.start < range.end {
                synced[range.clone()].copy_from_slice(&current[range]);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        let mut state = self.state()?;
        let start = offset as usize;
        if state.current.len() < start + data.len() {
            state.current.resize(start + data.len(), 0);
        }
        state.current[start..start + data.len()].copy_from_slice(data);
        for sector in start / SECTOR..(start + data.len()).div_ceil(SECTOR) {
            state.dirty.insert(sector, ());
        }
        Ok(())
    }
}
