//! Becoming the owner of a subtree (R3, R5, R19).
//!
//! There is no journal to replay: raise the fences, bring batches over several
//! shards to their end, load who was answered what, serve. A restart takes the
//! same way.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::future::try_join_all;
use pando_cluster_map::{ClusterMap, Lineage};
use pando_mds_core::api::BatchId;
use pando_mds_core::pipeline::CompletedRef;
use pando_mds_core::pipeline::redo::{self, Position, Redo, Repair};
use pando_mds_core::records::{FORMAT, Key};
use pando_proto::ids::ROOT_SUBTREE;
use pando_proto::mds::{
    CompletedRecord, FileKind, InodeRecord, OrphanRecord, PurgeRecord, ShardListRecord, TransactionRecord,
};
use pando_proto::osd::{CommitOutcome, CommitRequest, RaiseFenceResponse, Record};
use pando_proto::{ClientId, Epoch, Error, Ino, Reason, ShardId, SubtreeId};
use prost::Message as _;

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
#[derive(Default)]
pub(crate) struct Opened {
    pub listed: BTreeSet<ShardId>,
    /// Fenced as well, though not listed.
    pub fenced: BTreeSet<ShardId>,
    /// Above every batch number used in this epoch.
    pub next_batch: u64,
    /// Redo records whose parts are all in their shards.
    pub resolved: Vec<(ShardId, Position)>,
    /// Records of completed requests, and how many of these may still be repeated.
    pub completed: Vec<(ShardId, CompletedRef, u32)>,
    /// Those requests.
    pub dedup: Dedup,
    pub orphans: Vec<Ino>,
    pub purges: Vec<(Ino, PurgeRecord)>,
    /// Transactions between subtrees that did not come to their end (R18).
    pub transactions: Vec<TransactionRecord>,
}

struct TakeOver {
    records: Rc<dyn Records>,
    own: Ownership,
    home: ShardId,
    /// Fences of other subtrees, to be raised wherever ours is (R11).
    fences: Vec<(SubtreeId, Epoch)>,
    positions: BTreeMap<ShardId, Position>,
    opened: Opened,
    steps: Cell<u32>,
}

/// Takes a subtree over. `now` is for the times of a root directory that is made; no batch gets a number below
/// `next_batch`, so that a process uses none twice in an epoch.
///
/// Errors: [`Reason::NotOwner`] when another owner came later; those of the pool.
pub(crate) async fn take_over(
    records: Rc<dyn Records>,
    own: Ownership,
    map: &ClusterMap,
    now: i64,
    next_batch: u64,
) -> Result<Opened, Error> {
    let home = own.root.shard();
    let opened = Opened { next_batch, ..Opened::default() };
    let fences = also_fenced(map, own);
    let merged = merged_into(map, own.subtree);
    let mut this = TakeOver { records, own, home, fences, positions: BTreeMap::new(), opened, steps: Cell::new(0) };
    this.raise_fences().await?;
    this.resolve().await?;
    this.load_completed(own.subtree, map).await?;
    this.load_completed_of_merged(&merged, map).await?;
    this.load(map, &merged).await?;
    this.load_transactions().await?;
    this.make_root(now).await?;
    Ok(this.opened)
}

impl TakeOver {
    /// Home first: after that no earlier owner can list another shard (R3). Then the listed ones together.
    async fn raise_fences(&mut self) -> Result<(), Error> {
        let fence = self.raise_fence(self.home).await?;
        self.note(self.home, fence)?;
        let key = Key::ShardList(self.home, self.own.subtree).encode();
        let list = self.records.get(self.home, vec![key]).await?.into_iter().next().flatten();
        let list: ShardListRecord = list.as_ref().map(redo::decode_record).transpose()?.unwrap_or_default();
        self.opened.listed = list.shards.iter().map(|shard| ShardId(*shard as u16)).collect();
        self.opened.listed.insert(self.home);
        let others = self.opened.listed.iter().copied().filter(|shard| *shard != self.home);
        let raised = try_join_all(others.map(|shard| {
            let raising = self.raise_fence(shard);
            async move { raising.await.map(|fence| (shard, fence)) }
        }));
        for (shard, fence) in raised.await? {
            self.note(shard, fence)?;
        }
        Ok(())
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
            self.opened.next_batch = self.opened.next_batch.max(position.1 + 1);
        }
        self.opened.next_batch = self.opened.next_batch.max(1);
        Ok(())
    }

    /// Applies the redo parts that their shards lack (R5); see [`redo::plan`].
    async fn resolve(&mut self) -> Result<(), Error> {
        let (from, to) = self.own_range(|subtree| Key::Redo(self.home, subtree, Epoch(0), 0));
        let mut redos = Vec::new();
        for (shard, key, value) in self.scan_all(&self.opened.listed, from, to).await? {
            if let Some(Key::Redo(_, _, epoch, batch)) = Key::decode(shard, &key) {
                redos.push(Redo { shard, position: (epoch, batch), parts: redo::decode(&value)? });
            }
        }
        let ours = redos.iter().filter(|redo| redo.position.0 == self.own.epoch);
        if let Some(highest) = ours.map(|redo| redo.position.1).max() {
            self.opened.next_batch = self.opened.next_batch.max(highest + 1);
        }
        self.opened.resolved = redos.iter().map(|redo| (redo.shard, redo.position)).collect();
        let batch = self.opened.next_batch;
        let repairs = redo::plan(&self.positions, redos);
        if repairs.is_empty() {
            return Ok(());
        }
        self.opened.next_batch += 1;
        try_join_all(repairs.into_iter().map(|(shard, repair)| self.commit(shard, batch, repair))).await?;
        Ok(())
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
        });
        Box::pin(async move {
            let response = committing.await?;
            match response.outcome() {
                CommitOutcome::Done => Ok(()),
                _ => Err(not_owner(response.fence_epoch)),
            }
        })
    }

    /// Who was answered what (R9), in slices (R27). Sessions that have ended repeat nothing.
    async fn load_completed(&mut self, subtree: SubtreeId, map: &ClusterMap) -> Result<(), Error> {
        let (from, to) = range_of(subtree, |subtree| Key::Completed(self.home, subtree, Epoch(0), 0));
        let found = self.scan_all(&self.opened.listed, from, to).await?;
        self.adopt_completed(found, map).await
    }

    /// The same of subtrees that were merged into this one (R10). Each was drained, and listed all shards that it ever
    /// used: its fence goes up there, and nowhere else (R11).
    async fn load_completed_of_merged(&mut self, merged: &[Lineage], map: &ClusterMap) -> Result<(), Error> {
        let used = try_join_all(merged.iter().map(|child| self.shards_of(child))).await?;
        let all: BTreeSet<ShardId> = used.iter().flatten().copied().collect();
        let unfenced = all.iter().filter(|shard| !self.opened.listed.contains(shard));
        try_join_all(unfenced.map(|shard| self.raise_fence(*shard))).await?;
        let of_children = merged.iter().zip(&used).flat_map(|(child, shards)| {
            shards.iter().map(|shard| self.records.raise_fence(*shard, child.child, child.child_fence))
        });
        try_join_all(of_children).await?;
        self.opened.fenced.extend(all);
        for (child, shards) in merged.iter().zip(&used) {
            let (from, to) = range_of(child.child, |subtree| Key::Completed(self.home, subtree, Epoch(0), 0));
            let found = self.scan_all(shards, from, to).await?;
            self.adopt_completed(found, map).await?;
        }
        Ok(())
    }

    /// The shards that a merged subtree used.
    async fn shards_of(&self, child: &Lineage) -> Result<BTreeSet<ShardId>, Error> {
        let home = child.child_root.shard();
        let key = Key::ShardList(home, child.child).encode();
        let list = self.records.get(home, vec![key]).await?.into_iter().next().flatten();
        let list: ShardListRecord = list.as_ref().map(redo::decode_record).transpose()?.unwrap_or_default();
        Ok(list.shards.iter().map(|shard| ShardId(*shard as u16)).chain([home]).collect())
    }

    async fn adopt_completed(&mut self, found: Vec<(ShardId, Bytes, Bytes)>, map: &ClusterMap) -> Result<(), Error> {
        for (shard, key, value) in found {
            if let Some(Key::Completed(_, subtree, epoch, batch)) = Key::decode(shard, &key) {
                let record: CompletedRecord = redo::decode_record(&value)?;
                let reference = CompletedRef { subtree, epoch, batch: BatchId(batch) };
                let live = self.adopt(record, reference, map);
                self.opened.completed.push((shard, reference, live));
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    fn adopt(&mut self, record: CompletedRecord, reference: CompletedRef, map: &ClusterMap) -> u32 {
        let mut live = 0;
        for completed in record.completed {
            let client = ClientId(completed.client_id);
            if map.session_is_live(client) {
                live += 1;
                self.opened.dedup.adopt(client, completed.request, completed.result, reference);
            }
        }
        live
    }

    /// What is unlinked but open, and what is to be purged. Subtrees share shards: the records say whose they are.
    async fn load(&mut self, map: &ClusterMap, merged: &[Lineage]) -> Result<(), Error> {
        let shards: BTreeSet<ShardId> = self.opened.listed.union(&self.opened.fenced).copied().collect();
        let ours = |tag: u64| {
            let tag = if tag == 0 { ROOT_SUBTREE } else { SubtreeId(tag) };
            // What a subtree left that is no more, and that nobody may have open, anyone may clear away.
            let left = !map.subtrees.contains_key(&tag) && !map.lineage.iter().any(|lineage| lineage.child == tag);
            tag == self.own.subtree || left || merged.iter().any(|lineage| lineage.child == tag)
        };
        let (mut orphans, mut purges) = (Vec::new(), Vec::new());
        for (shard, key, value) in self.scan_all(&shards, Bytes::from_static(b"o"), Bytes::from_static(b"p")).await? {
            let record: OrphanRecord = redo::decode_record(&value)?;
            self.breathe().await;
            if let Some(Key::Orphan(ino)) = Key::decode(shard, &key).filter(|_| ours(record.subtree)) {
                orphans.push(ino);
            }
        }
        for (shard, key, value) in self.scan_all(&shards, Bytes::from_static(b"p"), Bytes::from_static(b"q")).await? {
            let record: PurgeRecord = redo::decode_record(&value)?;
            self.breathe().await;
            if let Some(Key::Purge(ino)) = Key::decode(shard, &key).filter(|_| ours(record.subtree)) {
                purges.push((ino, record));
            }
        }
        (self.opened.orphans, self.opened.purges) = (orphans, purges);
        Ok(())
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

    async fn load_transactions(&mut self) -> Result<(), Error> {
        let (home, none) = (self.home, SubtreeId(0));
        let (from, to) = self.own_range(|subtree| Key::Transaction(home, subtree, none, Epoch(0), 0));
        for (_, _, value) in self.scan_all(&BTreeSet::from([home]), from, to).await? {
            self.opened.transactions.push(redo::decode_record(&value)?);
        }
        Ok(())
    }

    fn own_range(&self, key: impl Fn(SubtreeId) -> Key) -> (Bytes, Bytes) {
        range_of(self.own.subtree, key)
    }

    /// All records of a range in these shards, shards in parallel.
    async fn scan_all(
        &self,
        shards: &BTreeSet<ShardId>,
        from: Bytes,
        to: Bytes,
    ) -> Result<Vec<(ShardId, Bytes, Bytes)>, Error> {
        let scans = shards.iter().map(|shard| scan(&self.records, *shard, from.clone(), to.clone()));
        Ok(try_join_all(scans).await?.into_iter().flatten().collect())
    }

    async fn make_root(&mut self, now: i64) -> Result<(), Error> {
        let key = Key::Inode(self.own.root).encode();
        let found = self.records.get(self.home, vec![key.clone()]).await?;
        if self.own.root != Ino::ROOT || found.first().is_some_and(Option::is_some) {
            return Ok(());
        }
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
        let batch = self.opened.next_batch;
        self.opened.next_batch += 1;
        let put = Record { key, value: value.freeze() };
        self.commit(self.home, batch, Repair { puts: vec![put], deletes: Vec::new() }).await
    }
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

async fn scan(
    records: &Rc<dyn Records>,
    shard: ShardId,
    from: Bytes,
    to: Bytes,
) -> Result<Vec<(ShardId, Bytes, Bytes)>, Error> {
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
