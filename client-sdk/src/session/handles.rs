//! Open handles, and which owners of subtrees were told of them (R19).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pando_cluster_map::ClusterMap;
use pando_proto::mds::ReclaimedHandle;
use pando_proto::{ClientId, Epoch, Errno, Error, Rank, Reason, SubtreeId};
use tokio::sync::{Notify, watch};

/// Who was told, or is to be told: each such change makes the handles of a subtree unknown to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Term {
    pub rank: Rank,
    pub incarnation: u64,
    pub epoch: Epoch,
}

enum State {
    Open,
    /// Whoever does not know it need not hear of it any more.
    Closing,
    /// Its inode is gone.
    Lost,
}

struct Open {
    subtree: SubtreeId,
    known_as: ReclaimedHandle,
    state: State,
}

/// What was told of one subtree.
struct Told {
    /// Times that we began to name our handles.
    begun: u64,
    /// By which map that was begun last, and by which it was last brought to its end.
    naming: Epoch,
    named_by: Epoch,
    /// Who knows all that we believe to be there.
    named: Option<Term>,
    /// Who was told last that there is nothing more.
    done: Option<Term>,
    running: bool,
    /// A list of our handles is on its way.
    listing: bool,
    /// To be repeated although it may reach the same.
    again: bool,
    /// `begun` of the last one that ended.
    ended: watch::Sender<u64>,
}

impl Default for Told {
    fn default() -> Self {
        let (naming, named_by) = (Epoch(0), Epoch(0));
        let ended = watch::Sender::new(0);
        Self {
            begun: 0,
            naming,
            named_by,
            named: None,
            done: None,
            running: false,
            listing: false,
            again: false,
            ended,
        }
    }
}

/// What comes after all handles of a subtree were named.
pub(super) enum Next {
    /// To say that there is nothing more.
    End,
    /// Nothing: that was said before.
    Nothing,
    /// More has turned out to be there: it is named first.
    Name,
    /// What is believed to be elsewhere is asked for there; these reclaims the caller starts.
    Wait(Vec<SubtreeId>),
    /// Somebody else is to be told.
    Over,
}

/// Whether operations by handle may go to a subtree.
pub(super) enum Readiness {
    /// Yes; so many reclaims were begun there.
    Ready(u64),
    /// After a reclaim, which the caller starts if `start`.
    Wait { ended: watch::Receiver<u64>, start: bool },
    /// The map does not know the subtree.
    Unknown,
}

#[derive(Default)]
pub(super) struct Handles {
    open: BTreeMap<u64, Open>,
    by_subtree: BTreeSet<(SubtreeId, u64)>,
    told: BTreeMap<SubtreeId, Told>,
    /// What the ranks' last Welcomes said.
    welcomed: BTreeMap<Rank, u64>,
    /// Something of this has changed for which a reclaim may wait.
    pub changed: Arc<Notify>,
}

impl Handles {
    /// Remembers an open handle; how many reclaims have begun at its subtree.
    pub fn keep(&mut self, handle: ReclaimedHandle, subtree: SubtreeId) -> u64 {
        self.forget(handle.handle);
        self.by_subtree.insert((subtree, handle.handle));
        self.open.insert(handle.handle, Open { subtree, known_as: handle, state: State::Open });
        self.generation(subtree)
    }

    pub fn forget(&mut self, handle: u64) {
        if let Some(open) = self.open.remove(&handle) {
            self.by_subtree.remove(&(open.subtree, handle));
            self.changed.notify_waiters();
        }
    }

    /// From now on nobody is told of it: a reclaim that overtakes the close would open it again.
    pub fn start_closing(&mut self, handle: u64) {
        if let Some(open) = self.open.get_mut(&handle)
            && matches!(open.state, State::Open)
        {
            open.state = State::Closing;
            self.changed.notify_waiters();
        }
    }

    pub fn lose(&mut self, handle: u64) {
        if let Some(open) = self.open.get_mut(&handle) {
            open.state = State::Lost;
            self.changed.notify_waiters();
        }
    }

    /// The handle belongs to another subtree.
    pub fn transfer(&mut self, handle: u64, to: SubtreeId) {
        if let Some(open) = self.open.get_mut(&handle) {
            self.by_subtree.remove(&(open.subtree, handle));
            open.subtree = to;
            self.by_subtree.insert((to, handle));
        }
    }

    /// Where operations by this handle go.
    ///
    /// Errors: ESTALE if its inode was lost, EBADF if it is not open.
    pub fn subtree_of(&self, handle: u64) -> Result<SubtreeId, Error> {
        match self.open.get(&handle) {
            Some(Open { state: State::Lost, .. }) => {
                let message = "the open file was lost: it was removed, and its MDS rank failed for too long".to_owned();
                Err(Error { message, ..Error::posix(Errno::ESTALE) })
            }
            Some(open) => Ok(open.subtree),
            None => Err(Error::posix(Errno::EBADF)),
        }
    }

    /// How many reclaims have begun at a subtree.
    pub fn generation(&self, subtree: SubtreeId) -> u64 {
        self.told.get(&subtree).map_or(0, |told| told.begun)
    }

    /// A rank has welcomed this session; whether handles may have been lost with that.
    pub fn welcome(&mut self, rank: Rank, incarnation: u64) -> bool {
        self.welcomed.insert(rank, incarnation) != Some(incarnation)
    }

    fn wanted(&self, map: &ClusterMap, subtree: SubtreeId) -> Option<Term> {
        let found = map.subtrees.get(&subtree)?;
        let of_map = map.ranks.get(&found.owner).map_or(0, |rank| rank.incarnation);
        let incarnation = self.welcomed.get(&found.owner).copied().unwrap_or(0).max(of_map);
        Some(Term { rank: found.owner, incarnation, epoch: found.epoch })
    }

    /// Subtrees whose owners are to hear of our handles, or that there are none. They count as started.
    ///
    /// Not those that have been opened for the last time before this session was born: nobody waits for it there (R19),
    /// and where there are many subtrees the first words of a client would be most of what it says.
    pub fn due(&mut self, map: &ClusterMap, me: ClientId) -> Vec<SubtreeId> {
        self.follow_merges(map);
        self.told.retain(|subtree, told| told.running || map.subtrees.contains_key(subtree));
        let birth = map.sessions.get(&me).map_or(Epoch(0), |session| session.since);
        let mut due = Vec::new();
        for (subtree, found) in &map.subtrees {
            let wanted = self.wanted(map, *subtree);
            let is_younger = found.since != Epoch(0) && found.since <= birth;
            if is_younger && !self.told.contains_key(subtree) {
                self.told.insert(*subtree, Told { named: wanted, done: wanted, ..Told::default() });
                continue;
            }
            let told = self.told.entry(*subtree).or_default();
            if told.done != wanted && !told.running {
                told.running = true;
                due.push(*subtree);
            }
        }
        due
    }

    /// Handles of subtrees that were merged away belong to what these were merged into.
    fn follow_merges(&mut self, map: &ClusterMap) {
        let mut next = SubtreeId(0);
        while let Some((subtree, _)) = self.by_subtree.range((next, 0)..).next().copied() {
            next = SubtreeId(subtree.0.saturating_add(1));
            let Some(to) = map.successor(subtree).filter(|to| *to != subtree) else { continue };
            let moving: Vec<u64> = self.numbers(subtree).collect();
            moving.into_iter().for_each(|handle| self.transfer(handle, to));
        }
    }

    fn numbers(&self, subtree: SubtreeId) -> impl Iterator<Item = u64> {
        self.by_subtree.range((subtree, 0)..=(subtree, u64::MAX)).map(|(_, handle)| *handle)
    }

    /// Whether the present owner of a subtree was told of our handles.
    pub fn readiness(&mut self, map: &ClusterMap, subtree: SubtreeId) -> Readiness {
        let Some(wanted) = self.wanted(map, subtree) else { return Readiness::Unknown };
        let told = self.told.entry(subtree).or_default();
        if told.named == Some(wanted) {
            return Readiness::Ready(told.begun);
        }
        let start = !std::mem::replace(&mut told.running, true);
        Readiness::Wait { ended: told.ended.subscribe(), start }
    }

    /// The owner does not know a handle, although so many reclaims had begun when it was asked.
    pub fn distrust(&mut self, subtree: SubtreeId, generation: u64) {
        if let Some(told) = self.told.get_mut(&subtree)
            && told.begun <= generation
        {
            told.repeat();
            self.changed.notify_waiters();
        }
    }

    /// The owner says that it still waits for this session. True if it is to be told anew.
    pub fn is_awaited(&mut self, subtree: SubtreeId) -> bool {
        let Some(told) = self.told.get_mut(&subtree).filter(|told| !told.running) else { return false };
        told.repeat();
        true
    }

    /// Begins to name our handles: what is to be told. What is kept later sees that it has begun.
    ///
    /// With a map that is not older than what the owner will be told: that there are no more handles is said of an
    /// epoch, and what was merged into the subtree by then belongs to it.
    pub fn begin(&mut self, map: &ClusterMap, subtree: SubtreeId) -> Vec<ReclaimedHandle> {
        self.follow_merges(map);
        let told = self.told.entry(subtree).or_default();
        told.begun += 1;
        told.naming = map.epoch;
        (told.again, told.listing) = (false, true);
        let open = self.numbers(subtree).filter_map(|handle| self.open.get(&handle));
        open.filter(|open| matches!(open.state, State::Open)).map(|open| open.known_as).collect()
    }

    /// They were named to that owner, by the map of which they were begun. False if there are more by now.
    pub fn named(&mut self, subtree: SubtreeId, term: Term) -> bool {
        let Some(told) = self.told.get_mut(&subtree) else { return false };
        told.listing = false;
        self.changed.notify_waiters();
        if told.again {
            return false;
        }
        (told.named, told.named_by) = (Some(term), told.naming);
        // Also if nobody listens now.
        told.ended.send_replace(told.begun);
        true
    }

    /// Whether a list of our handles is on its way to the owner of a subtree.
    pub fn is_listing(&self, subtree: SubtreeId) -> bool {
        self.told.get(&subtree).is_some_and(|told| told.listing)
    }

    /// What comes next, after our handles were named to an owner by the map of `since`.
    ///
    /// A file may have come to a subtree without our knowing, by a rename; its owner is told that there is nothing more
    /// only when every owner of whom we believe a handle has been asked for it after that owner took over. Whoever has
    /// given a file away says so. What goes there later takes its handles along, for an owner that waits for sessions
    /// gives no file away.
    pub fn next(&mut self, map: &ClusterMap, subtree: SubtreeId, term: Term, since: Epoch) -> Next {
        self.follow_merges(map);
        if self.wanted(map, subtree) != Some(term) {
            return Next::Over;
        }
        let Some(told) = self.told.get(&subtree) else { return Next::Over };
        if told.again {
            return Next::Name;
        }
        if told.done == Some(term) {
            return Next::Nothing;
        }
        let (mut waits, mut start) = (false, Vec::new());
        for other in self.believed().into_iter().filter(|other| *other != subtree) {
            let told = self.told.entry(other).or_default();
            if told.named_by >= since {
                continue;
            }
            waits = true;
            if !told.running && map.subtrees.contains_key(&other) {
                told.running = true;
                start.push(other);
            } else if told.running && told.naming < since && !told.again {
                told.again = true;
                self.changed.notify_waiters();
            }
        }
        if waits { Next::Wait(start) } else { Next::End }
    }

    /// Subtrees of which we believe that they have open handles of ours.
    fn believed(&self) -> Vec<SubtreeId> {
        let (mut found, mut next) = (Vec::new(), SubtreeId(0));
        while let Some((subtree, _)) = self.by_subtree.range((next, 0)..).next().copied() {
            let mut open = self.numbers(subtree).filter_map(|handle| self.open.get(&handle));
            if open.any(|open| matches!(open.state, State::Open)) {
                found.push(subtree);
            }
            next = SubtreeId(subtree.0.saturating_add(1));
        }
        found
    }

    /// A handle turned out to belong to another subtree, whose owner is to be told.
    pub fn found_elsewhere(&mut self, handle: u64, subtree: SubtreeId) {
        self.transfer(handle, subtree);
        self.told.entry(subtree).or_default().repeat();
        self.changed.notify_waiters();
    }

    /// A reclaim has reached somebody, or has failed. True if it was the last for now.
    pub fn end(&mut self, map: &ClusterMap, subtree: SubtreeId, reached: Option<Term>) -> bool {
        let wanted = self.wanted(map, subtree);
        let Some(told) = self.told.get_mut(&subtree) else { return true };
        told.listing = false;
        self.changed.notify_waiters();
        let over = wanted.is_none() || (reached == wanted && !told.again);
        if over {
            told.done = reached;
            told.running = false;
            told.ended.send_replace(told.begun);
        }
        over
    }
}

impl Told {
    /// What was told is not all.
    fn repeat(&mut self) {
        (self.named, self.named_by) = (None, Epoch(0));
        if self.running {
            self.again = true;
        } else {
            self.done = None;
        }
    }
}

/// For a map that does not show a subtree which somebody spoke of.
pub(super) fn not_in_the_map(subtree: SubtreeId) -> Error {
    Error::new(Reason::Unavailable, format!("{subtree} is not in the cluster map yet"))
}
