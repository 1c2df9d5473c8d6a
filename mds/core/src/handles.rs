//! Open handles of sessions. In memory only: clients re-register them after a restart (R19).

use std::collections::BTreeMap;

use pando_proto::{ClientId, Ino};
use rustc_hash::FxHashMap;

use crate::transaction::{HandOver, Holders};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub ino: Ino,
    /// Sum of OpenFlag.
    pub flags: u32,
    /// Was allowed to write objects: what it wrote may not be reported yet (R23).
    pub granted: bool,
    /// Opened by root: its writes keep setuid and setgid bits.
    pub privileged: bool,
}

/// Handles of one inode.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: u32,
    granted: u32,
    /// It has no name any more; the last close removes it.
    orphan: bool,
    /// End of what was reserved for appends to objects.
    append_end: u64,
    /// That is all that is reserved: nothing of the time before a restart counts any more.
    appends_known: bool,
    /// A handle of the time before a restart came back.
    reclaimed: bool,
}

/// A change of the table, part of a [`Memory`](crate::Memory).
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandleChange {
    Open(ClientId, u64, Handle),
    Close(ClientId, u64),
    Granted(ClientId, u64),
    Orphan(Ino),
    Append(Ino, u64),
    /// The inode belongs to another subtree from now on.
    Given(Ino),
}

#[derive(Debug, Default)]
pub(crate) struct Handles {
    sessions: FxHashMap<ClientId, BTreeMap<u64, Handle>>,
    inodes: FxHashMap<Ino, Count>,
    total: usize,
}

/// A handle, its share of the tree node, and its inode's count.
pub(crate) const HANDLE_BYTES: usize = (8 + size_of::<Handle>()) * 2 + (size_of::<Count>() + 16) * 2;

impl Handles {
    pub fn get(&self, client: ClientId, handle: u64) -> Option<Handle> {
        self.sessions.get(&client)?.get(&handle).copied()
    }

    pub fn of_session(&self, client: ClientId) -> usize {
        self.sessions.get(&client).map_or(0, BTreeMap::len)
    }

    pub fn bytes(&self) -> usize {
        self.total * HANDLE_BYTES
    }

    pub fn is_open(&self, ino: Ino) -> bool {
        self.inodes.contains_key(&ino)
    }

    /// Closing `handle` would leave a nameless inode without handles.
    pub fn is_last_of_orphan(&self, handle: Handle) -> bool {
        self.inodes.get(&handle.ino).is_some_and(|count| count.all == 1 && count.orphan)
    }

    /// Handles that may have written objects beyond the size.
    pub fn granted(&self, ino: Ino) -> u32 {
        self.inodes.get(&ino).map_or(0, |count| count.granted)
    }

    pub fn append_end(&self, ino: Ino) -> u64 {
        self.inodes.get(&ino).map_or(0, |count| count.append_end)
    }

    /// Appends may have been told ranges before a restart, by holders that came back or still may (`grace`).
    pub fn appends_are_unknown(&self, ino: Ino, grace: bool) -> bool {
        let count = self.inodes.get(&ino).copied().unwrap_or_default();
        !count.appends_known && (count.reclaimed || grace)
    }

    pub fn apply(&mut self, change: HandleChange) {
        match change {
            HandleChange::Open(client, number, handle) => self.open(client, number, handle),
            HandleChange::Close(client, number) => {
                self.close(client, number);
            }
            HandleChange::Granted(client, number) => {
                let handle = self.sessions.get_mut(&client).and_then(|handles| handles.get_mut(&number));
                let Some(handle) = handle.filter(|handle| !handle.granted) else { return };
                handle.granted = true;
                self.inodes.entry(handle.ino).or_default().granted += 1;
            }
            HandleChange::Orphan(ino) => {
                if let Some(count) = self.inodes.get_mut(&ino) {
                    count.orphan = true;
                }
            }
            HandleChange::Append(ino, end) => {
                if let Some(count) = self.inodes.get_mut(&ino) {
                    count.append_end = end;
                    count.appends_known = true;
                }
            }
            HandleChange::Given(ino) => {
                for one in self.holders(ino).handles {
                    self.close(one.client, one.handle);
                }
            }
        }
    }

    /// Who has an inode open.
    pub fn holders(&self, ino: Ino) -> Holders {
        let Some(count) = self.inodes.get(&ino) else { return Holders::default() };
        let mut handles = Vec::with_capacity(count.all as usize);
        for (client, of_session) in &self.sessions {
            let here = of_session.iter().filter(|(_, handle)| handle.ino == ino);
            handles.extend(here.map(|(number, handle)| HandOver {
                client: *client,
                handle: *number,
                flags: handle.flags,
                granted: handle.granted,
                privileged: handle.privileged,
            }));
        }
        handles.sort_unstable_by_key(|one| (one.client, one.handle));
        Holders { handles, append: (count.append_end, count.appends_known) }
    }

    /// Sessions with handles, in order.
    pub fn sessions(&self) -> Vec<ClientId> {
        let mut sessions = Vec::with_capacity(self.sessions.len());
        for (client, handles) in &self.sessions {
            if !handles.is_empty() {
                sessions.push(*client);
            }
        }
        sessions.sort_unstable();
        sessions
    }

    fn open(&mut self, client: ClientId, number: u64, handle: Handle) {
        // A number names one handle; one that was handed over may have been reclaimed before.
        if self.get(client, number).is_some_and(|before| before.ino != handle.ino) {
            return;
        }
        let before = self.sessions.entry(client).or_default().insert(number, handle);
        let count = self.inodes.entry(handle.ino).or_default();
        if before.is_none() {
            self.total += 1;
            count.all += 1;
        }
        count.granted += u32::from(handle.granted);
        count.granted -= before.map_or(0, |before| u32::from(before.granted));
        // Only such a handle is granted from the start.
        count.reclaimed |= handle.granted;
    }

    /// Returns the inode if that was its last handle.
    fn close(&mut self, client: ClientId, number: u64) -> Option<Ino> {
        let handles = self.sessions.get_mut(&client)?;
        let handle = handles.remove(&number)?;
        if handles.is_empty() {
            self.sessions.remove(&client);
        }
        self.total -= 1;
        let count = self.inodes.get_mut(&handle.ino)?;
        count.all -= 1;
        count.granted -= u32::from(handle.granted);
        if count.all > 0 {
            return None;
        }
        self.inodes.remove(&handle.ino);
        Some(handle.ino)
    }

    /// Closes all handles of a session; yields the inodes whose last handle went.
    pub fn session_gone(&mut self, client: ClientId) -> Vec<Ino> {
        let numbers: Vec<u64> = self.sessions.get(&client).into_iter().flat_map(BTreeMap::keys).copied().collect();
        numbers.into_iter().filter_map(|number| self.close(client, number)).collect()
    }
}
