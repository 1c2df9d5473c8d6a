//! The cluster map as the rest of Pando reads it.

use std::collections::{BTreeMap, BTreeSet};

use pando_proto::ids::{DATA_POOL, METADATA_POOL, ROOT_SUBTREE};
use pando_proto::{ClientId, Epoch, Ino, OsdId, PgId, PoolId, Rank, ShardId, SubtreeId};

/// Membership, ownership and settings at one epoch. Changed only by
/// [`Command`](crate::Command)s; everyone else reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterMap {
    /// Fixed when the cluster was made.
    pub cluster_id: [u8; 16],
    /// Rises with each change.
    pub epoch: Epoch,
    /// Every OSD that registered and was not removed.
    pub osds: BTreeMap<OsdId, Osd>,
    /// `metadata` (1) and `data` (2).
    pub pools: BTreeMap<PoolId, Pool>,
    /// All PGs of all pools.
    pub pgs: BTreeMap<PgId, Pg>,
    /// Ranks that registered and were not removed.
    pub ranks: BTreeMap<Rank, RankInfo>,
    /// The tree of subtrees.
    pub subtrees: BTreeMap<SubtreeId, Subtree>,
    /// Sessions that live.
    pub sessions: BTreeMap<ClientId, Session>,
    /// Next client id to hand out.
    pub next_client_id: u64,
    /// Next subtree id to hand out; ids are never reused (R11).
    pub next_subtree_id: u64,
    /// Next OSD id to hand out.
    pub next_osd_id: u32,
    /// Settings that were set; others have their default.
    pub settings: BTreeMap<String, String>,
    /// Members of the Raft group: id and address.
    pub mons: BTreeMap<u64, String>,
    /// Next unallocated ino number of each shard (R20).
    pub ino_cursors: BTreeMap<ShardId, u64>,
    /// Shards bound elsewhere than by the rule (R1).
    pub shard_bindings: BTreeMap<ShardId, u32>,
    /// Splits and merges younger than the oldest session (R10).
    pub lineage: Vec<Lineage>,
    /// The latest ino grants, oldest first, so that a repeated call gets the same range (R20).
    pub ino_grants: Vec<InoGrant>,
    /// PGs get their members when this many OSDs are up.
    pub expected_osds: u32,
    /// Highest incarnation of a rank that was removed; those that register anew start above it (R13).
    pub rank_incarnation_floor: u64,
    /// Transactions between subtrees that were decided, and that not all participants have done yet (R18).
    pub transactions: BTreeMap<TransactionId, Transaction>,
    /// Set while daemons may hold leases of a length that was lowered since (R13).
    pub longer_lease: Option<LongerLease>,
}

/// The longest lease that was granted before `lease_millis` was lowered. Whoever leads the mons waits for its end
/// before it gives anything away, and has it forgotten then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongerLease {
    /// Its length, in milliseconds.
    pub millis: u64,
    /// The map's epoch since which no lease of that length is granted.
    pub since: Epoch,
}

/// Names a transaction between subtrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    /// The subtree that began it.
    pub coordinator: SubtreeId,
    /// Its epoch then.
    pub epoch: Epoch,
    /// Used once in that epoch.
    pub number: u64,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing of it happens.
    Aborted,
    /// All of it happens.
    Committed,
    /// Nothing of it happens: a subtree would have come to lie below itself (R17).
    Cycle,
}

impl Decision {
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Aborted => 0,
            Self::Committed => 1,
            Self::Cycle => 2,
        }
    }

    pub(crate) fn from_number(number: u64) -> Option<Self> {
        [Self::Aborted, Self::Committed, Self::Cycle].into_iter().find(|decision| decision.number() == number)
    }
}

/// A transaction between subtrees that was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// What.
    pub decision: Decision,
    /// Whom it changes.
    pub participants: BTreeSet<SubtreeId>,
    /// Those that have done it, durably.
    pub finished: BTreeSet<SubtreeId>,
}

/// A range of inos that was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InoGrant {
    /// Of the call.
    pub nonce: Vec<u8>,
    /// First of the range.
    pub first: Ino,
    /// Length of the range.
    pub count: u64,
    /// Who asked.
    pub rank: Rank,
    /// Which process of it.
    pub incarnation: u64,
}

/// An object storage daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Osd {
    /// Made with its data directory.
    pub uuid: [u8; 16],
    /// `host:port`.
    pub address: String,
    /// Failure domain.
    pub host: String,
    /// Relative share of data; 1000 is usual.
    pub weight: u32,
    /// Whether it holds, or may hold, a lease.
    pub up: bool,
    /// Rises with each process start.
    pub incarnation: u64,
    /// The process start that owns `incarnation`.
    pub boot_id: Vec<u8>,
    /// Capacity in bytes, as it last said.
    pub total_bytes: u64,
    /// Use in bytes, as it last said.
    pub used_bytes: u64,
}

/// A set of PGs with one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// `metadata` or `data`.
    pub name: String,
    /// Wanted replicas, 1 to 3.
    pub size: u32,
    /// Members a configuration needs for writes.
    pub min_size: u32,
    /// PGs in the pool.
    pub pg_count: u32,
}

/// A placement group's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pg {
    /// Rises with each change of members and each restart of one.
    pub config: u64,
    /// The first is the primary.
    pub members: Vec<OsdId>,
    /// Being brought up to date.
    pub joining: Vec<OsdId>,
    /// Went down; their place is kept for a while.
    pub absent: Vec<OsdId>,
    /// Members that give their place to a joiner once that is confirmed.
    pub leaving: Vec<OsdId>,
    /// What was acknowledged before this configuration was given up by an administrator, as far as its primary did not
    /// hold it (R26). 0 for never.
    pub forgiven: u64,
}

/// How well a PG is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PgState {
    /// All replicas are there.
    Healthy,
    /// Fewer replicas than wanted, but enough to write.
    Degraded,
    /// Not enough to write.
    Down,
}

impl Pg {
    /// The OSD that orders writes and answers reads.
    pub fn primary(&self) -> Option<OsdId> {
        self.members.first().copied()
    }
}

/// A slot for an MDS process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankInfo {
    /// `host:port`.
    pub address: String,
    /// Whether it holds, or may hold, a lease.
    pub up: bool,
    /// Rises with each process start.
    pub incarnation: u64,
    /// The process start that owns `incarnation`.
    pub boot_id: Vec<u8>,
    /// Gets no more subtrees, and its own move away.
    pub draining: bool,
}

/// The unit of authority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subtree {
    /// Its root directory.
    pub root: Ino,
    /// `None` for the root subtree.
    pub parent: Option<SubtreeId>,
    /// Rank that serves it.
    pub owner: Rank,
    /// Rises whenever the owner or its incarnation changes.
    pub epoch: Epoch,
    /// For people.
    pub path_hint: Vec<u8>,
    /// Migration under way (R12); 0 for none.
    pub move_id: u64,
    /// With `move_id`: the rank that is to become the owner.
    pub moving_to: Rank,
    /// Directory that holds the dentry of the root, in the parent; `None` for the root subtree.
    pub parent_dir: Option<Ino>,
    /// Name of the root there.
    pub name: Vec<u8>,
    /// Rises whenever the way from / to the root of the subtree changes (R16). Starts at 1.
    pub route: u64,
    /// The rank to which a person pinned it.
    pub pin: Option<Rank>,
    /// What it was split from, and that one's epoch right after: its earlier batches are fenced (R11).
    pub split_from: Option<(SubtreeId, Epoch)>,
    /// Its root's child directories are to be subtrees, dealt over the ranks.
    pub spread: bool,
    /// The migration that was committed last: a repetition of its handover is answered "done" (R12).
    pub last_move: u64,
    /// Split off by the balancer or for a rename: it may be merged back when it is idle.
    pub automatic: bool,
    /// The map's epoch in which `epoch` was reached; 0 if it is not known. Sessions that were born in it or later have
    /// nothing from an owner before (R19).
    pub since: Epoch,
    /// Its owner before, if it was taken over because that went down, and has not moved since. For people.
    pub taken_from: Option<Rank>,
}

/// A client incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Program, host, pid. For people.
    pub description: String,
    /// Map epoch of its birth.
    pub since: Epoch,
    /// Of the registration, so that a repeated one gets the same id.
    pub nonce: Vec<u8>,
    /// Of which rank it is, if it is not a client's.
    pub rank: Option<Rank>,
}

/// A split or merge that old sessions may still ask about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The subtree that was split off, or merged away.
    pub child: SubtreeId,
    /// What it was split from, or merged into.
    pub parent: SubtreeId,
    /// When.
    pub epoch: Epoch,
    /// Merge or split.
    pub merged: bool,
    /// Of a merge: above every epoch of the child, fences whatever it still has under way (R11).
    pub child_fence: Epoch,
    /// Of a merge: the child's root, whose shard is the home of what it remembered.
    pub child_root: Ino,
}

impl Session {
    /// Whether it is a rank's, which reads and writes objects but sends no operations.
    pub fn is_of_rank(&self) -> bool {
        self.rank.is_some()
    }
}

/// The rank that is described so. In old records and commands this says that a session is a rank's; no client may say
/// it of itself any more.
pub(crate) fn rank_described(description: &str) -> Option<Rank> {
    let number = description.rsplit_once('.').and_then(|(_, number)| number.parse().ok());
    number.map(Rank).filter(|rank| rank.to_string() == description)
}

impl ClusterMap {
    /// The PG that stores a shard's records (R1).
    pub fn pg_of_shard(&self, shard: ShardId) -> PgId {
        let count = self.pools.get(&METADATA_POOL).map_or(1, |pool| pool.pg_count.max(1));
        let index = self.shard_bindings.get(&shard).copied().unwrap_or(u32::from(shard.0) % count);
        PgId { pool: METADATA_POOL, index }
    }

    /// The PG that stores object `index` of a file. Objects of one file are spread.
    pub fn pg_of_object(&self, pool: PoolId, ino: Ino, index: u64) -> PgId {
        let count = self.pools.get(&pool).map_or(1, |pool| pool.pg_count.max(1));
        let mixed = mix(ino.0 ^ mix(index.wrapping_add(0x9e37_79b9_7f4a_7c15)));
        PgId { pool, index: (mixed % u64::from(count)) as u32 }
    }

    /// How well a PG is. One that the map does not know is down.
    pub fn pg_state(&self, id: PgId) -> PgState {
        let (Some(pg), Some(pool)) = (self.pgs.get(&id), self.pools.get(&id.pool)) else { return PgState::Down };
        let live = pg.members.iter().filter(|osd| self.osds.get(osd).is_some_and(|osd| osd.up)).count() as u64;
        match live {
            live if live >= u64::from(pool.size) => PgState::Healthy,
            live if live >= u64::from(pool.min_size.max(1)) => PgState::Degraded,
            _ => PgState::Down,
        }
    }

    /// A PG's primary and its address, if it has a live one.
    pub fn primary(&self, pg: PgId) -> Option<(OsdId, &str)> {
        let id = self.pgs.get(&pg)?.primary()?;
        let osd = self.osds.get(&id).filter(|osd| osd.up)?;
        Some((id, &osd.address))
    }

    /// The rank that serves a subtree, and its address, if it is up.
    pub fn owner(&self, subtree: SubtreeId) -> Option<(Rank, &str)> {
        let owner = self.subtrees.get(&subtree)?.owner;
        let rank = self.ranks.get(&owner).filter(|rank| rank.up)?;
        Some((owner, &rank.address))
    }

    /// The root subtree, once a rank has registered.
    pub fn root_subtree(&self) -> Option<&Subtree> {
        self.subtrees.get(&ROOT_SUBTREE)
    }

    /// Where a subtree's root is, for people: as far as the map can tell, and `...` for directories that it does not
    /// know, those between the root of the parent and the name.
    pub fn path_of(&self, id: SubtreeId) -> Vec<u8> {
        let mut line = Vec::new();
        let mut next = Some(id);
        // The parents form no cycle (R17); a map from outside may claim so.
        while let Some(subtree) = next.and_then(|id| self.subtrees.get(&id))
            && line.len() <= self.subtrees.len()
        {
            line.push(subtree);
            next = subtree.parent;
        }
        let mut path = Vec::new();
        let mut above: Option<&Subtree> = None;
        for subtree in line.into_iter().rev() {
            if let Some(above) = above {
                let named = [b"/", &subtree.name[..]].concat();
                let hint = subtree.path_hint.strip_prefix(&path[..]);
                // Of the time of the split: as good as its both ends are.
                let hint = hint.filter(|rest| rest.starts_with(b"/") && rest.ends_with(&named));
                match hint {
                    _ if subtree.parent_dir == Some(above.root) => path.extend(named),
                    Some(rest) => path.extend_from_slice(rest),
                    None => path.extend([b"/...", &named[..]].concat()),
                }
            }
            above = Some(subtree);
        }
        if path.is_empty() { b"/".to_vec() } else { path }
    }

    /// The subtrees that hang directly on another.
    pub fn children(&self, parent: SubtreeId) -> impl Iterator<Item = (SubtreeId, &Subtree)> {
        let children = self.subtrees.iter().filter(move |(_, subtree)| subtree.parent == Some(parent));
        children.map(|(id, subtree)| (*id, subtree))
    }

    /// It has as many subtrees as it may: no directory can become one.
    pub fn is_full(&self) -> bool {
        self.subtrees.len() as u64 >= self.setting_u64(crate::settings::MAX_SUBTREES)
    }

    /// The subtree that answers for this one by now: itself, or what it was merged into (R10).
    pub fn successor(&self, mut subtree: SubtreeId) -> Option<SubtreeId> {
        // Each step leads to a subtree that was there later; none is met twice.
        for _ in 0..=self.lineage.len() {
            if self.subtrees.contains_key(&subtree) {
                return Some(subtree);
            }
            subtree = self.lineage.iter().find(|lineage| lineage.merged && lineage.child == subtree)?.parent;
        }
        None
    }

    /// These subtrees and all below them. Those that the map does not list are left out.
    pub fn with_descendants(&self, of: impl IntoIterator<Item = SubtreeId>) -> BTreeSet<SubtreeId> {
        let mut children: BTreeMap<SubtreeId, Vec<SubtreeId>> = BTreeMap::new();
        for (id, subtree) in &self.subtrees {
            if let Some(parent) = subtree.parent {
                children.entry(parent).or_default().push(*id);
            }
        }
        let mut found = BTreeSet::new();
        let mut open: Vec<SubtreeId> = of.into_iter().filter(|id| self.subtrees.contains_key(id)).collect();
        while let Some(id) = open.pop() {
            if found.insert(id) {
                open.extend(children.get(&id).into_iter().flatten());
            }
        }
        found
    }

    /// Whether every chain of parents ends at a subtree without one.
    pub fn subtrees_are_a_forest(&self) -> bool {
        let roots = self.subtrees.iter().filter(|(_, subtree)| subtree.parent.is_none()).map(|(id, _)| *id);
        self.with_descendants(roots).len() == self.subtrees.len()
    }

    /// Whether a subtree still has to do what was decided.
    pub fn is_unfinished(&self, transaction: TransactionId, subtree: SubtreeId) -> bool {
        let known = self.transactions.get(&transaction);
        let open = known.is_some_and(|it| it.participants.contains(&subtree) && !it.finished.contains(&subtree));
        open && self.subtrees.contains_key(&subtree)
    }

    /// Whether requests of this client are to be served (R9).
    pub fn session_is_live(&self, client: ClientId) -> bool {
        self.sessions.contains_key(&client)
    }

    /// PGs in whose configuration or joining list an OSD stands.
    pub fn pgs_of_osd(&self, osd: OsdId) -> BTreeSet<PgId> {
        let holds = |pg: &Pg| pg.members.contains(&osd) || pg.joining.contains(&osd);
        self.pgs.iter().filter(|(_, pg)| holds(pg)).map(|(id, _)| *id).collect()
    }

    /// A setting as a number; its default if it is not set. `name` must be one of [`settings`](crate::settings).
    pub fn setting_u64(&self, name: &str) -> u64 {
        let value = self.settings.get(name).map(String::as_str);
        crate::settings::number(name, value)
    }

    /// Shards over which new directories near the root are spread: enough to keep every OSD busy, few enough that
    /// a shard's batches hold more than one operation.
    pub fn spread_shards(&self) -> u32 {
        const SHARDS_PER_OSD: u32 = 4;
        const MOST: u32 = 1024;
        (self.osds.len() as u32).saturating_mul(SHARDS_PER_OSD).clamp(SHARDS_PER_OSD, MOST)
    }

    /// Bytes of a file above which it lives in objects.
    pub fn inline_limit(&self) -> u64 {
        self.setting_u64(crate::settings::INLINE_LIMIT)
    }

    /// Bytes of one object of a new file.
    pub fn object_size(&self) -> u64 {
        self.setting_u64(crate::settings::OBJECT_SIZE)
    }

    /// The data pool's id, for new files.
    pub fn data_pool(&self) -> PoolId {
        DATA_POOL
    }
}

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014): a good 64-bit mix, and stable for ever.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests;
