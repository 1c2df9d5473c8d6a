//! The namespace of one subtree, and the shell's calls into it.

use std::collections::BTreeSet;
use std::sync::Arc;

use pando_proto::mds::{DataHome, FileKind, Operation, PurgeRecord};
use pando_proto::{ClientId, Error, Ino, ShardId};
use rustc_hash::FxHashMap;

use crate::Config;
use crate::api::{BatchId, CacheUsage, Change, Context, Fetch, FetchToken, Fetched, Outcome};
use crate::busy::Busy;
use crate::cache::{Cache, Run};
use crate::handles::{HandleChange, Handles};
use crate::heat::Heat;
use crate::inode::Inode;
use crate::inos::Inos;
use crate::locks::Locks;
use crate::ops;
use crate::records::Key;
use crate::view::View;

/// Waiters with this bit are spills; an ino never has it.
const SPILL_PIN: u64 = 1 << 63;

/// The namespace of one subtree: cache, open handles, ino numbers and what is blocked. Plain data: see
/// [`api`](crate::api) for how it is driven.
#[derive(Debug)]
pub struct Namespace {
    pub(crate) config: Config,
    pub(crate) cache: Cache,
    pub(crate) handles: Handles,
    pub(crate) inos: Inos,
    pub(crate) busy: FxHashMap<Ino, Busy>,
    /// Files whose blocking has ended by a batch that is not durable yet: their `p/` record may still be found.
    unblocked: FxHashMap<Ino, BatchId>,
    /// Sessions known at the takeover have not all come back yet: nothing unlinked is purged (R19).
    pub(crate) grace: bool,
    /// Sessions that were awaited when this was last said; for people.
    pub(crate) awaited: usize,
    /// Nameless inodes that lost their last handle during grace.
    deferred: BTreeSet<Ino>,
    /// Total and used bytes of the data pool, for statfs.
    pub(crate) space: (u64, u64),
    pub(crate) tree: crate::Tree,
    pub(crate) heat: Heat,
    /// Of open transactions.
    pub(crate) locks: Locks,
}

impl Namespace {
    /// An empty, cold namespace.
    pub fn new(config: Config) -> Self {
        Self {
            cache: Cache::new(config.budget_bytes),
            handles: Handles::default(),
            inos: Inos::default(),
            busy: FxHashMap::default(),
            unblocked: FxHashMap::default(),
            grace: false,
            awaited: 0,
            deferred: BTreeSet::new(),
            space: (0, 0),
            tree: crate::Tree::default(),
            heat: Heat::default(),
            locks: Locks::default(),
            config,
        }
    }

    /// What it was told.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Shards for new directories near the root from now on.
    pub fn set_spread_shards(&mut self, shards: u32) {
        self.config.spread_shards = shards;
    }

    /// Largest inline body from now on, in bytes. Files that are inline and larger stay so until they are written.
    pub fn set_inline_limit(&mut self, bytes: u64) {
        self.config.inline_limit = bytes;
    }

    /// Object size of files that move to objects from now on, in bytes. 0 is ignored.
    pub fn set_object_size(&mut self, bytes: u64) {
        if bytes > 0 {
            self.config.object_size = bytes;
        }
    }

    /// Memory from now on, in bytes; [`evict`](Self::evict) brings a lower budget about.
    pub fn set_budget(&mut self, bytes: u64) {
        self.config.budget_bytes = bytes;
        self.cache.set_budget(bytes);
    }

    /// What statfs says: bytes of the data pool.
    pub fn set_space(&mut self, total: u64, used: u64) {
        self.space = (total, used);
    }

    /// Decides an operation. Changes nothing but the order of the LRU lists.
    pub fn apply(&mut self, op: &Operation, ctx: &Context) -> Outcome {
        let outcome = ops::run(View::new(self, ctx), op);
        if let Outcome::Done(_) = &outcome {
            self.count_heat();
        }
        outcome
    }

    /// Makes a change visible, as part of `batch`.
    pub fn commit(&mut self, change: Change, batch: BatchId) {
        let memory = change.memory;
        for staged in memory.inodes {
            self.cache.set_inode(staged.ino, staged.inode, staged.born_empty, batch);
        }
        for (dir, name, value) in memory.names {
            self.cache.set_name(dir, &name, value, batch);
        }
        for (ino, link, value) in memory.links {
            self.cache.set_link(ino, &link, value, batch);
        }
        for (ino, data) in memory.bodies {
            self.cache.set_body(ino, data, batch);
        }
        if let Some(taken) = memory.taken {
            self.inos.take(&taken);
            if let Some((dir, run)) = taken.run {
                self.cache.set_run(dir, run);
            }
        }
        for change in memory.handles {
            self.handles.apply(change);
        }
        for (ino, busy) in memory.busy {
            self.set_busy(ino, busy);
            if busy.is_none() {
                self.unblocked.insert(ino, batch);
            }
        }
        self.deferred.extend(memory.deferred);
        for ino in memory.given {
            self.cache.give(ino);
        }
    }

    /// The inode belongs to another subtree from now on, with its handles.
    pub(crate) fn give(&mut self, ino: Ino) {
        self.handles.apply(HandleChange::Given(ino));
        self.cache.give(ino);
    }

    /// Ranges above the size may have been handed out to appends that this incarnation does not know of.
    pub(crate) fn appends_are_unknown(&self, ino: Ino) -> bool {
        self.handles.appends_are_unknown(ino, self.grace)
    }

    fn set_busy(&mut self, ino: Ino, busy: Option<Busy>) {
        let before = match busy {
            Some(busy) => self.busy.insert(ino, busy),
            None => self.busy.remove(&ino),
        };
        // The end of a spill starts from the inode of its intent: it stays in memory.
        let holder = SPILL_PIN | ino.0;
        if before == Some(Busy::Spill) {
            self.cache.unpin(holder);
        }
        if busy == Some(Busy::Spill) {
            self.cache.pin(holder, &Fetch::Record(Key::Inode(ino)));
        }
    }

    /// Makes a change without record writes visible: opened and closed handles.
    pub fn commit_memory(&mut self, change: Change) {
        debug_assert!(change.writes.is_empty(), "I2: records are committed with a batch");
        self.commit(change, BatchId(0));
    }

    /// The batch is durable: what it touched last may be evicted from now on (R8).
    pub fn durable(&mut self, batch: BatchId) {
        self.cache.durable(batch);
        self.unblocked.retain(|_, by| *by != batch);
    }

    /// The batch that ends the blocking of a file, while it is not durable.
    pub(crate) fn unblocked_by(&self, ino: Ino) -> Option<BatchId> {
        self.unblocked.get(&ino).copied()
    }

    /// A fetch is about to be sent. The token goes back by `install` or `abandon_fetch`.
    pub fn begin_fetch(&mut self, _fetch: &Fetch) -> FetchToken {
        self.cache.begin_fetch()
    }

    /// Brings in what was fetched, as far as memory does not know better (R8).
    ///
    /// # Errors
    /// `Corrupt` or `NewerFormat` for a record that does not decode; nothing is installed then.
    pub fn install(&mut self, token: FetchToken, fetched: Fetched) -> Result<(), Error> {
        self.cache.install(token, fetched)
    }

    /// A fetch that brought nothing.
    pub fn abandon_fetch(&mut self, token: FetchToken) {
        self.cache.abandon_fetch(token);
    }

    /// What a parked operation fetched stays until it ran (R8). May be called before the fetch is installed.
    pub fn pin(&mut self, waiter: u64, fetch: &Fetch) {
        self.cache.pin(waiter, fetch);
    }

    /// The operation ran, or was dropped.
    pub fn unpin(&mut self, waiter: u64) {
        self.cache.unpin(waiter);
    }

    /// Evicts until the budget holds or `max_steps` items were looked at (R27). True: there is more to do.
    pub fn evict(&mut self, max_steps: usize) -> bool {
        let mut leftover: Vec<(Ino, Run)> = Vec::new();
        let more = self.cache.evict(self.handles.bytes(), max_steps, &mut leftover);
        for (_, run) in leftover {
            self.inos.give_back(run);
        }
        more
    }

    /// Bytes in memory (I8). Handles, pins and lists of open batches count as pinned metadata.
    pub fn usage(&self) -> CacheUsage {
        self.cache.usage(self.handles.bytes())
    }

    /// Inos to give out, from the mon (R20): `count` numbers from `first` on, all in its shard.
    pub fn add_inos(&mut self, first: Ino, count: u64) {
        self.inos.add(first, count);
    }

    /// Inos left in a shard that no directory has taken yet.
    pub fn inos_left(&self, shard: ShardId) -> u64 {
        self.inos.left(shard)
    }

    /// The record of the root directory, for a cluster that has none yet. Commit it before the first operation.
    pub fn make_root(&mut self, ctx: &Context) -> Option<Change> {
        let root = self.config.root;
        let inode = Inode {
            kind: FileKind::Directory as i32,
            mode: 0o755,
            nlink: 2,
            atime: ctx.now,
            mtime: ctx.now,
            ctime: ctx.now,
            birth_time: ctx.now,
            version: 1,
            parent: root.0,
            home: DataHome::Unspecified as i32,
            ..Inode::default()
        };
        let mut view = View::new(self, ctx);
        view.put_new_dir(root, Arc::new(inode));
        view.take_change()
    }

    /// Blocked by a spill, a cut or a purge; `Wait` names only such inos.
    pub fn is_blocked(&self, ino: Ino) -> bool {
        self.busy.contains_key(&ino)
    }

    /// Ends the blocking without a further change.
    pub fn unblock(&mut self, ino: Ino) {
        self.set_busy(ino, None);
    }

    /// Nothing is blocked: no spill, cut or purge of a living file is under way.
    pub fn is_quiet(&self) -> bool {
        self.busy.is_empty()
    }

    /// The same, but for purges of whole files: whoever has the `p/` records goes on with those, and repeats what was
    /// done without harm.
    pub fn is_quiet_but_for_purges(&self) -> bool {
        // A question to all of them: their order does not show.
        #[allow(clippy::disallowed_methods)]
        self.busy.values().all(|busy| *busy == Busy::Purge)
    }

    /// The namespace, whose batches are all durable, goes on under a new epoch of its subtree: without handles, which
    /// their sessions reclaim (R19), and without what waited. Fetches that are under way install nothing any more.
    pub fn begin_epoch(&mut self) {
        debug_assert!(self.cache.is_clean(), "R11: drained before the epoch changes");
        debug_assert!(self.locks.is_empty(), "R18: transactions ended before the epoch changes");
        self.handles = Handles::default();
        self.grace = false;
        self.deferred.clear();
        // Purges that go on are found by their records.
        self.busy.clear();
        // Numbers of batches begin anew: one of before would be taken for one that is to come.
        self.unblocked.clear();
        self.cache.begin_epoch();
    }

    /// The deletes of a purge are durable: removes `p/<ino>`. Commit it, then wake who waits for the ino.
    pub fn purge_done(&mut self, ino: Ino) -> Change {
        let mut change = Change { writes: Vec::new(), memory: crate::Memory::default(), follow_up: Default::default() };
        change.writes.push(crate::api::Write { key: Key::Purge(ino), value: None });
        change.memory.busy.push((ino, None));
        change
    }

    /// A `p/` record found after a restart: its ino is blocked as it was, and the purge is to be done
    /// again. Also the way an interrupted spill is undone (R24): its intent wrote such a record, and the intent in
    /// `i/` counts as ended by it. Call it for each record before the first operation.
    pub fn recover(&mut self, ino: Ino, record: &PurgeRecord) -> crate::api::FollowUp {
        self.busy.insert(ino, if record.from > 0 { Busy::Cut } else { Busy::Purge });
        crate::api::FollowUp::Purge(ino, *record)
    }

    /// Gives a `p/` record that a subtree left which was merged into this one the name of this one; `None` if it has it.
    /// Else another subtree that shares the shard would take it for left behind once the map has forgotten the merge, and
    /// delete what this one may have written under the same key since (R22).
    pub fn claim(&self, ino: Ino, record: &PurgeRecord) -> Option<Change> {
        let subtree = self.config.tag();
        if record.subtree == subtree {
            return None;
        }
        let value = Some(crate::inode::encode(&PurgeRecord { subtree, ..*record }));
        let writes = vec![crate::api::Write { key: Key::Purge(ino), value }];
        Some(Change { writes, memory: crate::Memory::default(), follow_up: Default::default() })
    }

    /// A session ended or was evicted: closes its handles. Yields the inos whose last handle went,
    /// each to be handed to [`reap_orphan`](Self::reap_orphan).
    pub fn session_gone(&mut self, client: ClientId) -> Vec<Ino> {
        self.handles.session_gone(client)
    }

    /// From a takeover until all sessions known then have come back or are gone, nothing unlinked is purged (R19).
    pub fn begin_grace(&mut self) {
        self.grace = true;
    }

    /// How many sessions have not come back yet: those who are refused something for it are told.
    pub fn note_awaited(&mut self, sessions: usize) {
        self.awaited = sessions;
    }

    /// Ends that. Yields the nameless inos that came up meanwhile, each to be handed to
    /// [`reap_orphan`](Self::reap_orphan), beside those of the `o/` records found at the start.
    pub fn end_grace(&mut self) -> Vec<Ino> {
        self.grace = false;
        std::mem::take(&mut self.deferred).into_iter().collect()
    }

    /// Removes a nameless inode that nobody has open; anything else is left alone. The result of `Done` is an empty
    /// close reply. Repeat it on `Missing` and `Wait` as an operation.
    pub fn reap_orphan(&mut self, ino: Ino, ctx: &Context) -> Outcome {
        ops::close::reap(View::new(self, ctx), ino)
    }
}
