//! Becoming the owner of a subtree (R3, R5, R19).
//!
//! There is no journal to replay: raise the fences, bring batches over several
//! shards to their end, load who was answered what, serve. A restart takes the
//! same way.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::future::try_join_all;
use pando_cluster_map::{ClusterMap, Lineage};
use pando_mds_core::api::BatchId;
use pando_mds_core::pipeline::redo::{self, Position, Redo, Repair};
use pando_mds_core::pipeline::{CompletedRef, Limits, Pipeline};
use pando_mds_core::records::{FORMAT, Key};
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::{
    CompletedRecord, FileKind, InodeRecord, OrphanRecord, PurgeRecord, ShardListRecord, TransactionRecord,
};
use pando_proto::osd::{CommitOutcome, CommitRequest, RaiseFenceResponse, Record};
use pando_proto::{ClientId, Epoch, Error, Ino, Reason, ShardId, SubtreeId};
use prost::Message as _;
use tokio::time::Instant;

use crate::io::Records;
use crate::subtree::dedup::Dedup;

/// Records in one page of a scan.
const PAGE: u32 = 512;

/// Which subtree, and under which epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ownership {
    pub subtree: SubtreeId,
    pub epoch: Epoch,
    pub root: Ino,
}

/// What the new owner knows when it starts to serve.
pub(crate) struct Opened {
    /// Knows the shards, redo records whose parts are all in place, and who was answered what.
    pub pipeline: Pipeline,
    /// Shards that are listed.
    pub shards: usize,
    /// Requests that are done.
    pub dedup: Dedup,
    pub orphans: BTreeSet<Ino>,
    pub purges: Vec<(Ino, PurgeRecord)>,
    /// Transactions between subtrees that did not come to their end (R18).
    pub transactions: Vec<TransactionRecord>,
    pub took: Took,
}

/// How long a takeover took, for who reads the log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Took {
    /// Until all fences were up (R3).
    pub fences: Duration,
    /// Until all records were read.
    pub reading: Duration,
    /// Until they were taken in.
    pub adopting: Duration,
}

/// Records of the subtree, as they came from the pool.
#[derive(Default)]
struct Found {
    redos: Vec<Scanned>,
    /// Of subtrees that were merged into it.
    redos_of_merged: Vec<Scanned>,
    /// Who was answered what; by the subtree itself, then by those that were merged into it.
    completed: Vec<Vec<Scanned>>,
    orphans: Vec<Scanned>,
    purges: Vec<Scanned>,
    transactions: Vec<Scanned>,
    has_root: bool,
}

type Scanned = (ShardId, Bytes, Bytes);

struct TakeOver {
    records: Rc<dyn Records>,
    own: Ownership,
    home: ShardId,
    /// Fences of other subtrees, to be raised wherever ours is (R11).
    fences: Vec<(SubtreeId, Epoch)>,
    positions: BTreeMap<ShardId, Position>,
    listed: BTreeSet<ShardId>,
    /// Fenced as well, though not listed.
    fenced: BTreeSet<ShardId>,
    /// Above every batch number used in this epoch.
    next_batch: u64,
    /// Redo records whose parts are all in their shards.
    resolved: Vec<(ShardId, Position)>,
    steps: Cell<u32>,
}

/// Takes a subtree over. `now` is for the times of a root directory that is made.
///
/// Errors: [`Reason::NotOwner`] when another owner came later; those of the pool.
pub(crate) async fn take_over(
    records: Rc<dyn Records>,
    own: Ownership,
    map: &ClusterMap,
    now: i64,
) -> Result<Opened, Error> {
    let began = Instant::now();
    let merged = merged_into(map, own.subtree);
    let mut this = TakeOver {
        records,
        own,
        home: own.root.shard(),
        fences: also_fenced(map, own),
        positions: BTreeMap::new(),
        listed: BTreeSet::new(),
        fenced: BTreeSet::new(),
        next_batch: 1,
        resolved: Vec::new(),
        steps: Cell::new(0),
    };
    this.raise_fences().await?;
    let used = this.raise_fences_of_merged(&merged).await?;
    let fences = began.elapsed();
    // Whoever listed a shard has done so before the fence at home went up (R3).
    let (list, found) = tokio::try_join!(this.shards_of(own.subtree, this.home), this.read(&merged, &used))?;
    let mut found = match this.fence_late(list).await? {
        true => this.read(&merged, &used).await?,
        false => found,
    };
    if this.resolve(std::mem::take(&mut found.redos)).await? {
        // R5: redo parts have changed what was read.
        found = this.read(&merged, &used).await?;
    }
    this.make_root(found.has_root, now).await?;
    let reading = began.elapsed().saturating_sub(fences);
    let mut opened = this.adopt(found, map, &merged).await?;
    opened.took = Took { fences, reading, adopting: began.elapsed().saturating_sub(fences + reading) };
    Ok(opened)
}

impl TakeOver {
    /// Once the fence at home is up no earlier owner can list another shard (R3), and what the list says is final. It
    /// is read before as well: the shards that it names by then are fenced together with home, which spares a round.
    async fn raise_fences(&mut self) -> Result<(), Error> {
        self.listed = self.shards_of(self.own.subtree, self.home).await?;
        self.raise(self.listed.clone()).await
    }

    /// The list as it stays. True if an earlier owner had listed shards since it was read first.
    async fn fence_late(&mut self, list: BTreeSet<ShardId>) -> Result<bool, Error> {
        let late: BTreeSet<_> = list.difference(&self.listed).copied().collect();
        self.fenced.extend(self.listed.difference(&list));
        self.listed = list;
        let any = !late.is_empty();
        self.raise(late).await?;
        Ok(any)
    }

    async fn raise(&mut self, shards: BTreeSet<ShardId>) -> Result<(), Error> {
        let raised = try_join_all(shards.into_iter().map(|shard| {
            let raising = self.raise_fence(shard);
            async move { raising.await.map(|fence| (shard, fence)) }
        }));
        for (shard, fence) in raised.await? {
            self.note(shard, fence)?;
        }
        Ok(())
    }

    /// The list of shards of a subtree, home included.
    async fn shards_of(&self, subtree: SubtreeId, home: ShardId) -> Result<BTreeSet<ShardId>, Error> {
        let key = Key::ShardList(home, subtree).encode();
        let list = self.records.get(home, vec![key]).await?.into_iter().next().flatten();
        let list: ShardListRecord = list.as_ref().map(redo::decode_record).transpose()?.unwrap_or_default();
        Ok(list.shards.iter().map(|shard| ShardId(*shard as u16)).chain([home]).collect())
    }

    /// Of subtrees that were merged into this one (R10). Each was drained, and listed all shards that it ever used:
    /// its fence goes up there, and nowhere else (R11). Which these are.
    async fn raise_fences_of_merged(&mut self, merged: &[Lineage]) -> Result<Vec<BTreeSet<ShardId>>, Error> {
        let used = merged.iter().map(|child| self.shards_of(child.child, child.child_root.shard()));
        let used = try_join_all(used).await?;
        let all: BTreeSet<ShardId> = used.iter().flatten().copied().collect();
        let unfenced = all.iter().filter(|shard| !self.listed.contains(shard));
        try_join_all(unfenced.map(|shard| self.raise_fence(*shard))).await?;
        let of_children = merged.iter().zip(&used).flat_map(|(child, shards)| {
            shards.iter().map(|shard| self.records.raise_fence(*shard, child.child, child.child_fence))
        });
        try_join_all(of_children).await?;
        self.fenced.extend(all);
        Ok(used)
    }

    fn raise_fence(&self, shard: ShardId) -> crate::io::Io<RaiseFenceResponse> {
        raise_all(&*self.records, shard, self.own, &self.fences)
    }

    fn note(&mut self, shard: ShardId, fence: RaiseFenceResponse) -> Result<(), Error> {
        if fence.fence_epoch > self.own.epoch.0 {
            return Err(not_owner(fence.fence_epoch));
        }
        let position = (Epoch(fence.applied_epoch), fence.applied_batch);
        self.positions.insert(shard, position);
        if position.0 == self.own.epoch {
            self.next_batch = self.next_batch.max(position.1 + 1);
        }
        Ok(())
    }

    /// Everything of the subtree that a new owner has to know, all at once.
    async fn read(&self, merged: &[Lineage], used: &[BTreeSet<ShardId>]) -> Result<Found, Error> {
        let (home, none, own) = (self.home, SubtreeId(0), self.own.subtree);
        let all: BTreeSet<ShardId> = self.listed.union(&self.fenced).copied().collect();
        let at_home = BTreeSet::from([home]);
        let completed = |of: SubtreeId| range_of(of, |of| Key::Completed(home, of, Epoch(0), 0));
        let redos = |of: SubtreeId| range_of(of, |of| Key::Redo(home, of, Epoch(0), 0));
        let merged = || merged.iter().map(|child| child.child).zip(used);
        let of_merged = merged().map(|(child, shards)| self.scan_all(shards, completed(child)));
        let redos_of_merged = merged().map(|(child, shards)| self.scan_all(shards, redos(child)));
        let of_letter = |from: &'static [u8], to: &'static [u8]| (Bytes::from_static(from), Bytes::from_static(to));
        let (redos, redos_of_merged, completed, of_merged, orphans, purges, transactions, root) = tokio::try_join!(
            self.scan_all(&self.listed, redos(own)),
            try_join_all(redos_of_merged),
            self.scan_all(&self.listed, completed(own)),
            try_join_all(of_merged),
            self.scan_all(&all, of_letter(b"o", b"p")),
            self.scan_all(&all, of_letter(b"p", b"q")),
            self.scan_all(&at_home, range_of(own, |own| Key::Transaction(home, own, none, Epoch(0), 0))),
            self.records.get(home, vec![Key::Inode(self.own.root).encode()]),
        )?;
        let completed = std::iter::once(completed).chain(of_merged).collect();
        let redos_of_merged = redos_of_merged.into_iter().flatten().collect();
        let has_root = root.first().is_some_and(Option::is_some);
        Ok(Found { redos, redos_of_merged, completed, orphans, purges, transactions, has_root })
    }

    /// Applies the redo parts that their shards lack (R5); see [`redo::plan`]. True if there were any.
    async fn resolve(&mut self, found: Vec<Scanned>) -> Result<bool, Error> {
        let mut redos = Vec::new();
        for (shard, key, value) in found {
            if let Some(Key::Redo(_, _, epoch, batch)) = Key::decode(shard, &key) {
                redos.push(Redo { shard, position: (epoch, batch), parts: redo::decode(&value)? });
            }
        }
        let ours = redos.iter().filter(|redo| redo.position.0 == self.own.epoch);
        if let Some(highest) = ours.map(|redo| redo.position.1).max() {
            self.next_batch = self.next_batch.max(highest + 1);
        }
        self.resolved = redos.iter().map(|redo| (redo.shard, redo.position)).collect();
        let batch = self.next_batch;
        let repairs = redo::plan(&self.positions, redos);
        if repairs.is_empty() {
            return Ok(false);
        }
        self.next_batch += 1;
        try_join_all(repairs.into_iter().map(|(shard, repair)| self.commit(shard, batch, repair))).await?;
        Ok(true)
    }

    fn commit(&self, shard: ShardId, batch: u64, repair: Repair) -> crate::io::Io<()> {
        let committing = self.records.commit(CommitRequest {
            shard: shard.0.into(),
            subtree: self.own.subtree.0,
            epoch: self.own.epoch.0,
            batch,
            puts: repair.puts,
            deletes: repair.deletes,
            map_epoch: 0,
            // R5: the parts were promised room when their batch began.
            uses_reserve: true,
        });
        Box::pin(async move {
            let response = committing.await?;
            match response.outcome() {
                CommitOutcome::Done => Ok(()),
                _ => Err(not_owner(response.fence_epoch)),
            }
        })
    }

    /// Takes in what was read, in slices (R27).
    async fn adopt(self, found: Found, map: &ClusterMap, merged: &[Lineage]) -> Result<Opened, Error> {
        let listed = self.listed.iter().copied();
        let own = self.own;
        let mut pipeline = Pipeline::new(own.subtree, own.epoch, self.home, listed, self.next_batch, Limits::default());
        self.fenced.iter().for_each(|shard| pipeline.fence_raised(*shard));
        for (shard, (epoch, batch)) in &self.resolved {
            pipeline.adopt_resolved(*shard, own.subtree, *epoch, *batch);
        }
        // R11: these were drained when they were merged, so that all parts are in place.
        for (shard, key, _) in found.redos_of_merged {
            self.breathe().await;
            if let Some(Key::Redo(_, child, epoch, batch)) = Key::decode(shard, &key) {
                pipeline.adopt_resolved(shard, child, epoch, batch);
            }
        }
        let mut dedup = Dedup::default();
        for (shard, key, value) in found.completed.into_iter().flatten() {
            self.breathe().await;
            if let Some(Key::Completed(_, subtree, epoch, batch)) = Key::decode(shard, &key) {
                let record: CompletedRecord = redo::decode_record(&value)?;
                let reference = CompletedRef { subtree, epoch, batch: BatchId(batch) };
                let live = adopt_completed(&mut dedup, record, reference, map);
                pipeline.adopt_completed(shard, reference, live);
            }
        }
        // Subtrees share shards: the records say whose they are.
        let ours = |tag: u64| {
            let tag = if tag == 0 { ROOT_SUBTREE } else { SubtreeId(tag) };
            // What a subtree left that is no more, and that nobody may have open, anyone may clear away: not what one
            // left of which this map does not know yet.
            let known = tag.0 < map.next_subtree_id;
            let left =
                known && !map.subtrees.contains_key(&tag) && !map.lineage.iter().any(|lineage| lineage.child == tag);
            tag == own.subtree || left || merged.iter().any(|lineage| lineage.child == tag)
        };
        let (mut orphans, mut purges) = (BTreeSet::new(), Vec::new());
        for (shard, key, value) in found.orphans {
            self.breathe().await;
            let record: OrphanRecord = redo::decode_record(&value)?;
            if let Some(Key::Orphan(ino)) = Key::decode(shard, &key).filter(|_| ours(record.subtree)) {
                orphans.insert(ino);
            }
        }
        for (shard, key, value) in found.purges {
            self.breathe().await;
            let record: PurgeRecord = redo::decode_record(&value)?;
            if let Some(Key::Purge(ino)) = Key::decode(shard, &key).filter(|_| ours(record.subtree)) {
                purges.push((ino, record));
            }
        }
        let transactions = found.transactions.iter().map(|(_, _, value)| redo::decode_record(value));
        let transactions = transactions.collect::<Result<_, Error>>()?;
        let (shards, took) = (self.listed.len(), Took::default());
        Ok(Opened { pipeline, shards, dedup, orphans, purges, transactions, took })
    }

    /// The other tasks of this thread go first, now and then (R27).
    async fn breathe(&self) {
        const EVERY: u32 = 64;
        let step = self.steps.get().wrapping_add(1);
        self.steps.set(step);
        if step.is_multiple_of(EVERY) {
            tokio::task::yield_now().await;
        }
    }

    /// All records of a range in these shards, shards in parallel.
    async fn scan_all(&self, shards: &BTreeSet<ShardId>, (from, to): (Bytes, Bytes)) -> Result<Vec<Scanned>, Error> {
        let scans = shards.iter().map(|shard| scan(&self.records, *shard, from.clone(), to.clone()));
        Ok(try_join_all(scans).await?.into_iter().flatten().collect())
    }

    async fn make_root(&mut self, exists: bool, now: i64) -> Result<(), Error> {
        if self.own.root != Ino::ROOT || exists {
            return Ok(());
        }
        let key = Key::Inode(self.own.root).encode();
        let root = InodeRecord {
            kind: FileKind::Directory.into(),
            mode: 0o755,
            nlink: 2,
            atime: now,
            mtime: now,
            ctime: now,
            birth_time: now,
            version: 1,
            // The root is its own parent.
            parent: Ino::ROOT.0,
            ..InodeRecord::default()
        };
        let mut value = BytesMut::with_capacity(1 + root.encoded_len());
        value.put_u8(FORMAT);
        value.put_slice(&root.encode_to_vec());
        let batch = self.next_batch;
        self.next_batch += 1;
        let put = Record { key, value: value.freeze() };
        self.commit(self.home, batch, Repair { puts: vec![put], deletes: Vec::new() }).await
    }
}

/// How many requests of a record may still be repeated. Sessions that have ended repeat nothing.
fn adopt_completed(dedup: &mut Dedup, record: CompletedRecord, reference: CompletedRef, map: &ClusterMap) -> u32 {
    let mut live = 0;
    for completed in record.completed {
        let client = ClientId(completed.client_id);
        if map.session_is_live(client) {
            live += 1;
            dedup.adopt(client, completed.request, completed.result, reference);
        }
    }
    live
}

fn range_of(subtree: SubtreeId, key: impl Fn(SubtreeId) -> Key) -> (Bytes, Bytes) {
    (key(subtree).encode(), key(SubtreeId(subtree.0 + 1)).encode())
}

/// Fences that are raised together with that of a subtree, in each shard before its first use (R11): of what it was
/// split from. Nothing that this still has under way enters a shard after that.
pub(crate) fn also_fenced(map: &ClusterMap, own: Ownership) -> Vec<(SubtreeId, Epoch)> {
    map.subtrees.get(&own.subtree).and_then(|subtree| subtree.split_from).into_iter().collect()
}

/// Subtrees that became part of this one, directly or by way of others.
fn merged_into(map: &ClusterMap, subtree: SubtreeId) -> Vec<Lineage> {
    let (mut found, mut parents): (Vec<Lineage>, _) = (Vec::new(), vec![subtree]);
    while let Some(parent) = parents.pop() {
        for lineage in map.lineage.iter().filter(|lineage| lineage.merged && lineage.parent == parent) {
            if found.iter().all(|known| known.child != lineage.child) {
                found.push(lineage.clone());
                parents.push(lineage.child);
            }
        }
    }
    found
}

/// Raises a subtree's fence in a shard, and the others that go with it.
pub(crate) fn raise_all(
    records: &dyn Records,
    shard: ShardId,
    own: Ownership,
    fences: &[(SubtreeId, Epoch)],
) -> crate::io::Io<RaiseFenceResponse> {
    let raising = records.raise_fence(shard, own.subtree, own.epoch);
    if fences.is_empty() {
        return raising;
    }
    // They may stand higher already: that is as good.
    let others: Vec<_> = fences.iter().map(|(subtree, epoch)| records.raise_fence(shard, *subtree, *epoch)).collect();
    Box::pin(async move {
        let (fence, others) = tokio::join!(raising, try_join_all(others));
        others?;
        fence
    })
}

async fn scan(records: &Rc<dyn Records>, shard: ShardId, from: Bytes, to: Bytes) -> Result<Vec<Scanned>, Error> {
    let (mut found, mut start) = (Vec::new(), from);
    loop {
        let (page, next) = records.scan(shard, start.clone(), to.clone(), PAGE).await?;
        found.extend(page.into_iter().map(|(key, value)| (shard, key, value)));
        match next {
            Some(next) if next > start => start = next,
            _ => return Ok(found),
        }
    }
}

fn not_owner(fence: u64) -> Error {
    Error::new(Reason::NotOwner, "another rank has taken this subtree over").with_epoch(fence)
}
