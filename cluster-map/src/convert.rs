//! The map on the wire: `pando.mon.v1.ClusterMap`. What comes in is checked once, here.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pando_proto::ids::{METADATA_POOL, SHARDS};
use pando_proto::{ClientId, Epoch, Error, Ino, OsdId, PgId, PoolId, Rank, Reason, ShardId, SubtreeId, mon};

use crate::map::{
    ClusterMap, Decision, InoGrant, Lineage, LongerLease, Osd, Pg, Pool, RankInfo, Session, Subtree, Transaction,
    TransactionId, rank_described,
};

/// A map that cannot be what a mon sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// An id of a fixed length has another.
    #[error("the {what} in the cluster map has {got} bytes instead of 16")]
    BadId {
        /// Which.
        what: &'static str,
        /// Its length.
        got: usize,
    },
    /// A field outside its range.
    #[error("the cluster map has a {what} out of range: {value}")]
    OutOfRange {
        /// Which.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// Two entries under one key.
    #[error("the cluster map lists {what} {id} twice")]
    Duplicate {
        /// Of what.
        what: &'static str,
        /// The key.
        id: String,
    },
    /// An entry names another that is not there.
    #[error("the cluster map names {what} {id}, which it does not list")]
    Dangling {
        /// Of what.
        what: &'static str,
        /// The key.
        id: String,
    },
    /// Subtrees that lie in each other.
    #[error("the cluster map has subtrees that lie in each other")]
    Cycle,
    /// No map at all.
    #[error("the answer holds no cluster map")]
    Missing,
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Self {
        Self::new(Reason::InvalidRequest, error.to_string())
    }
}

/// 16 bytes of an id.
pub(crate) fn id16(what: &'static str, bytes: &[u8]) -> Result<[u8; 16], MapError> {
    bytes.try_into().map_err(|_| MapError::BadId { what, got: bytes.len() })
}

fn narrow<T: TryFrom<u64>>(what: &'static str, value: u64) -> Result<T, MapError> {
    T::try_from(value).map_err(|_| MapError::OutOfRange { what, value })
}

fn shard(value: u32) -> Result<ShardId, MapError> {
    if value >= SHARDS {
        return Err(MapError::OutOfRange { what: "shard", value: u64::from(value) });
    }
    narrow("shard", u64::from(value)).map(ShardId)
}

fn ino(value: u64) -> Result<Ino, MapError> {
    let ino = Ino(value);
    ino.is_valid().then_some(ino).ok_or(MapError::OutOfRange { what: "ino", value })
}

fn insert<K: Ord + std::fmt::Debug, V>(
    into: &mut BTreeMap<K, V>,
    what: &'static str,
    key: K,
    value: V,
) -> Result<(), MapError> {
    let id = format!("{key:?}");
    match into.insert(key, value) {
        None => Ok(()),
        Some(_) => Err(MapError::Duplicate { what, id }),
    }
}

impl ClusterMap {
    /// The wire form.
    pub fn to_proto(&self) -> mon::ClusterMap {
        mon::ClusterMap {
            cluster_id: Bytes::copy_from_slice(&self.cluster_id),
            epoch: self.epoch.0,
            osds: self.osds.iter().map(|(id, osd)| osd.to_proto(*id)).collect(),
            pools: self.pools.iter().map(|(id, pool)| pool.to_proto(*id)).collect(),
            pgs: self.pgs.iter().map(|(id, pg)| pg.to_proto(*id)).collect(),
            ranks: self.ranks.iter().map(|(id, rank)| rank.to_proto(*id)).collect(),
            subtrees: self.subtrees.iter().map(|(id, subtree)| subtree.to_proto(*id)).collect(),
            sessions: self.sessions.iter().map(|(id, session)| session.to_proto(*id)).collect(),
            next_client_id: self.next_client_id,
            next_subtree_id: self.next_subtree_id,
            settings: settings_to_proto(&self.settings),
            mons: self.mons.iter().map(|(id, address)| mon::Mon { id: *id, address: address.clone() }).collect(),
            ino_cursors: (self.ino_cursors.iter())
                .map(|(shard, next)| mon::InoCursor { shard: u32::from(shard.0), next: *next })
                .collect(),
            shard_bindings: (self.shard_bindings.iter())
                .map(|(shard, index)| mon::ShardBinding { shard: u32::from(shard.0), pg_index: *index })
                .collect(),
            lineage: self.lineage.iter().map(Lineage::to_proto).collect(),
            next_osd_id: self.next_osd_id,
            ino_grants: self.ino_grants.iter().map(InoGrant::to_proto).collect(),
            expected_osds: self.expected_osds,
            rank_incarnation_floor: self.rank_incarnation_floor,
            transactions: self.transactions.iter().map(|(id, known)| known.to_proto(*id)).collect(),
            longer_lease: self.longer_lease.map(LongerLease::to_proto),
        }
    }

    /// Reads the wire form.
    ///
    /// Errors: ids of a wrong length, values out of range, duplicates, references to what is not there.
    pub fn from_proto(proto: &mon::ClusterMap) -> Result<Self, MapError> {
        let mut map = Self {
            cluster_id: id16("cluster id", &proto.cluster_id)?,
            epoch: Epoch(proto.epoch),
            next_client_id: proto.next_client_id,
            next_subtree_id: proto.next_subtree_id,
            next_osd_id: proto.next_osd_id,
            expected_osds: proto.expected_osds,
            rank_incarnation_floor: proto.rank_incarnation_floor,
            longer_lease: proto.longer_lease.as_ref().map(LongerLease::from_proto),
            lineage: proto.lineage.iter().map(Lineage::from_proto).collect(),
            ino_grants: proto.ino_grants.iter().map(InoGrant::from_proto).collect::<Result<_, _>>()?,
            ..Self::default()
        };
        map.read_data_tier(proto)?;
        map.read_metadata_tier(proto)?;
        for session in &proto.sessions {
            insert(&mut map.sessions, "client", ClientId(session.client_id), Session::from_proto(session)?)?;
        }
        for transaction in &proto.transactions {
            let (id, known) = Transaction::from_proto(transaction)?;
            insert(&mut map.transactions, "transaction", id, known)?;
        }
        for setting in &proto.settings {
            insert(&mut map.settings, "setting", setting.name.clone(), setting.value.clone())?;
        }
        for mon in &proto.mons {
            insert(&mut map.mons, "mon", mon.id, mon.address.clone())?;
        }
        map.check_references()?;
        Ok(map)
    }

    /// Reads an optional message field.
    pub fn from_proto_field(proto: Option<&mon::ClusterMap>) -> Result<Self, MapError> {
        Self::from_proto(proto.ok_or(MapError::Missing)?)
    }

    fn read_data_tier(&mut self, proto: &mon::ClusterMap) -> Result<(), MapError> {
        for osd in &proto.osds {
            insert(&mut self.osds, "OSD", OsdId(osd.id), Osd::from_proto(osd)?)?;
        }
        for pool in &proto.pools {
            insert(&mut self.pools, "pool", PoolId(pool.id), Pool::from_proto(pool)?)?;
        }
        for pg in &proto.pgs {
            let id = PgId { pool: PoolId(pg.pool), index: pg.index };
            insert(&mut self.pgs, "PG", id, Pg::from_proto(pg))?;
        }
        Ok(())
    }

    fn read_metadata_tier(&mut self, proto: &mon::ClusterMap) -> Result<(), MapError> {
        for rank in &proto.ranks {
            insert(&mut self.ranks, "rank", Rank(rank.rank), RankInfo::from_proto(rank)?)?;
        }
        for subtree in &proto.subtrees {
            insert(&mut self.subtrees, "subtree", SubtreeId(subtree.id), Subtree::from_proto(subtree)?)?;
        }
        for cursor in &proto.ino_cursors {
            insert(&mut self.ino_cursors, "ino cursor", shard(cursor.shard)?, cursor.next)?;
        }
        for binding in &proto.shard_bindings {
            insert(&mut self.shard_bindings, "shard binding", shard(binding.shard)?, binding.pg_index)?;
        }
        Ok(())
    }

    fn check_references(&self) -> Result<(), MapError> {
        for (id, pg) in &self.pgs {
            let pool = self.pools.get(&id.pool);
            if pool.is_none_or(|pool| id.index >= pool.pg_count) {
                return Err(MapError::Dangling { what: "the pool of PG", id: id.to_string() });
            }
            let named = pg.members.iter().chain(&pg.joining).chain(&pg.absent).chain(&pg.leaving);
            if let Some(osd) = named.into_iter().find(|osd| !self.osds.contains_key(osd)) {
                return Err(MapError::Dangling { what: "OSD", id: osd.to_string() });
            }
        }
        let pgs = self.pools.get(&METADATA_POOL).map_or(0, |pool| pool.pg_count);
        if let Some(index) = self.shard_bindings.values().find(|index| **index >= pgs) {
            return Err(MapError::Dangling { what: "metadata PG", id: index.to_string() });
        }
        let parents = self.subtrees.values().filter_map(|subtree| subtree.parent);
        if let Some(parent) = parents.into_iter().find(|parent| !self.subtrees.contains_key(parent)) {
            return Err(MapError::Dangling { what: "subtree", id: parent.to_string() });
        }
        if !self.subtrees_are_a_forest() {
            return Err(MapError::Cycle);
        }
        Ok(())
    }
}

/// Settings as messages.
fn settings_to_proto(settings: &BTreeMap<String, String>) -> Vec<mon::Setting> {
    settings.iter().map(|(name, value)| mon::Setting { name: name.clone(), value: value.clone() }).collect()
}

fn raw(osds: &[OsdId]) -> Vec<u32> {
    osds.iter().map(|osd| osd.0).collect()
}

fn typed(osds: &[u32]) -> Vec<OsdId> {
    osds.iter().copied().map(OsdId).collect()
}

impl Osd {
    /// The wire form.
    pub fn to_proto(&self, id: OsdId) -> mon::Osd {
        let state = if self.up { mon::OsdState::Up } else { mon::OsdState::Down };
        mon::Osd {
            id: id.0,
            uuid: Bytes::copy_from_slice(&self.uuid),
            address: self.address.clone(),
            host: self.host.clone(),
            weight: self.weight,
            state: state.into(),
            incarnation: self.incarnation,
            boot_id: self.boot_id.clone().into(),
            total_bytes: self.total_bytes,
            used_bytes: self.used_bytes,
        }
    }

    fn from_proto(proto: &mon::Osd) -> Result<Self, MapError> {
        Ok(Self {
            uuid: id16("OSD uuid", &proto.uuid)?,
            address: proto.address.clone(),
            host: proto.host.clone(),
            weight: proto.weight,
            up: match proto.state() {
                mon::OsdState::Up => true,
                mon::OsdState::Down => false,
                mon::OsdState::Unspecified => return Err(bad_state("OSD state", proto.state)),
            },
            incarnation: proto.incarnation,
            boot_id: proto.boot_id.to_vec(),
            total_bytes: proto.total_bytes,
            used_bytes: proto.used_bytes,
        })
    }
}

fn bad_state(what: &'static str, value: i32) -> MapError {
    MapError::OutOfRange { what, value: u64::from(value.unsigned_abs()) }
}

impl Pool {
    fn to_proto(&self, id: PoolId) -> mon::Pool {
        let kind = if id == METADATA_POOL { mon::PoolKind::Metadata } else { mon::PoolKind::Data };
        mon::Pool {
            id: id.0,
            name: self.name.clone(),
            kind: kind.into(),
            size: self.size,
            min_size: self.min_size,
            pg_count: self.pg_count,
        }
    }

    fn from_proto(proto: &mon::Pool) -> Result<Self, MapError> {
        if proto.pg_count == 0 {
            return Err(MapError::OutOfRange { what: "PG count", value: 0 });
        }
        Ok(Self { name: proto.name.clone(), size: proto.size, min_size: proto.min_size, pg_count: proto.pg_count })
    }
}

impl Pg {
    /// The wire form.
    pub fn to_proto(&self, id: PgId) -> mon::PlacementGroup {
        mon::PlacementGroup {
            pool: id.pool.0,
            index: id.index,
            config: self.config,
            members: raw(&self.members),
            joining: raw(&self.joining),
            absent: raw(&self.absent),
            leaving: raw(&self.leaving),
            forgiven: self.forgiven,
        }
    }

    fn from_proto(proto: &mon::PlacementGroup) -> Self {
        Self {
            config: proto.config,
            members: typed(&proto.members),
            joining: typed(&proto.joining),
            absent: typed(&proto.absent),
            leaving: typed(&proto.leaving),
            forgiven: proto.forgiven,
        }
    }
}

impl RankInfo {
    /// The wire form.
    pub fn to_proto(&self, rank: Rank) -> mon::Rank {
        let state = if self.up { mon::RankState::Up } else { mon::RankState::Down };
        mon::Rank {
            rank: rank.0,
            address: self.address.clone(),
            state: state.into(),
            incarnation: self.incarnation,
            boot_id: self.boot_id.clone().into(),
            draining: self.draining,
        }
    }

    fn from_proto(proto: &mon::Rank) -> Result<Self, MapError> {
        Ok(Self {
            address: proto.address.clone(),
            up: match proto.state() {
                mon::RankState::Up => true,
                mon::RankState::Down => false,
                mon::RankState::Unspecified => return Err(bad_state("rank state", proto.state)),
            },
            incarnation: proto.incarnation,
            boot_id: proto.boot_id.to_vec(),
            draining: proto.draining,
        })
    }
}

impl Subtree {
    /// The wire form.
    pub fn to_proto(&self, id: SubtreeId) -> mon::Subtree {
        mon::Subtree {
            id: id.0,
            root_ino: self.root.0,
            parent: self.parent.map_or(0, |parent| parent.0),
            owner: self.owner.0,
            epoch: self.epoch.0,
            path_hint: self.path_hint.clone().into(),
            move_id: self.move_id,
            parent_dir: self.parent_dir.map_or(0, |dir| dir.0),
            name: self.name.clone().into(),
            route: self.route,
            moving_to: self.moving_to.0,
            pin: self.pin.map(|rank| rank.0),
            split_from: self.split_from.map_or(0, |(subtree, _)| subtree.0),
            split_epoch: self.split_from.map_or(0, |(_, epoch)| epoch.0),
            spread: self.spread,
            last_move: self.last_move,
            automatic: self.automatic,
            since: self.since.0,
            taken_from: self.taken_from.map(|rank| rank.0),
        }
    }

    fn from_proto(proto: &mon::Subtree) -> Result<Self, MapError> {
        Ok(Self {
            root: ino(proto.root_ino)?,
            parent: (proto.parent != 0).then_some(SubtreeId(proto.parent)),
            owner: Rank(proto.owner),
            epoch: Epoch(proto.epoch),
            path_hint: proto.path_hint.to_vec(),
            move_id: proto.move_id,
            moving_to: Rank(proto.moving_to),
            parent_dir: (proto.parent_dir != 0).then(|| ino(proto.parent_dir)).transpose()?,
            name: proto.name.to_vec(),
            route: proto.route,
            pin: proto.pin.map(Rank),
            split_from: (proto.split_from != 0).then_some((SubtreeId(proto.split_from), Epoch(proto.split_epoch))),
            spread: proto.spread,
            last_move: proto.last_move,
            automatic: proto.automatic,
            since: Epoch(proto.since),
            taken_from: proto.taken_from.map(Rank),
        })
    }
}

impl Session {
    fn to_proto(&self, id: ClientId) -> mon::Session {
        mon::Session {
            client_id: id.0,
            description: self.description.clone(),
            since_epoch: self.since.0,
            nonce: self.nonce.clone().into(),
            kind: if self.is_of_rank() { mon::SessionKind::Rank } else { mon::SessionKind::Client }.into(),
            rank: self.rank.map_or(0, |rank| rank.0),
        }
    }

    fn from_proto(proto: &mon::Session) -> Result<Self, MapError> {
        Ok(Self {
            description: proto.description.clone(),
            since: Epoch(proto.since_epoch),
            nonce: proto.nonce.to_vec(),
            rank: match mon::SessionKind::try_from(proto.kind) {
                Ok(mon::SessionKind::Rank) => Some(Rank(proto.rank)),
                Ok(mon::SessionKind::Client) => None,
                Ok(mon::SessionKind::Unspecified) => rank_described(&proto.description),
                Err(_) => return Err(bad_state("session kind", proto.kind)),
            },
        })
    }
}

impl Transaction {
    fn to_proto(&self, id: TransactionId) -> mon::Transaction {
        mon::Transaction {
            id: Some(id.to_proto()),
            decision: self.decision.to_proto().into(),
            participants: self.participants.iter().map(|subtree| subtree.0).collect(),
            finished: self.finished.iter().map(|subtree| subtree.0).collect(),
        }
    }

    fn from_proto(proto: &mon::Transaction) -> Result<(TransactionId, Self), MapError> {
        let id = proto.id.as_ref().ok_or(MapError::OutOfRange { what: "transaction id", value: 0 })?;
        let decision = Decision::from_proto(proto.decision());
        let decision = decision.ok_or_else(|| bad_state("decision", proto.decision))?;
        let subtrees = |ids: &[u64]| -> BTreeSet<SubtreeId> { ids.iter().copied().map(SubtreeId).collect() };
        let known = Self { decision, participants: subtrees(&proto.participants), finished: subtrees(&proto.finished) };
        Ok((TransactionId::from_proto(id), known))
    }
}

impl TransactionId {
    /// The wire form.
    pub fn to_proto(self) -> mon::TransactionId {
        mon::TransactionId { coordinator: self.coordinator.0, epoch: self.epoch.0, number: self.number }
    }

    /// Reads the wire form.
    pub fn from_proto(proto: &mon::TransactionId) -> Self {
        Self { coordinator: SubtreeId(proto.coordinator), epoch: Epoch(proto.epoch), number: proto.number }
    }
}

impl Decision {
    /// The wire form.
    pub fn to_proto(self) -> mon::Decided {
        match self {
            Self::Aborted => mon::Decided::Aborted,
            Self::Committed => mon::Decided::Committed,
            Self::Cycle => mon::Decided::Cycle,
        }
    }

    /// Reads the wire form; `None` for one that a newer peer may have made up.
    pub fn from_proto(proto: mon::Decided) -> Option<Self> {
        Some(match proto {
            mon::Decided::Aborted => Self::Aborted,
            mon::Decided::Committed => Self::Committed,
            mon::Decided::Cycle => Self::Cycle,
            mon::Decided::Unspecified => return None,
        })
    }
}

impl Lineage {
    fn to_proto(&self) -> mon::Lineage {
        mon::Lineage {
            child: self.child.0,
            parent: self.parent.0,
            map_epoch: self.epoch.0,
            merged: self.merged,
            child_fence: self.child_fence.0,
            child_root: self.child_root.0,
        }
    }

    fn from_proto(proto: &mon::Lineage) -> Self {
        Self {
            child: SubtreeId(proto.child),
            parent: SubtreeId(proto.parent),
            epoch: Epoch(proto.map_epoch),
            merged: proto.merged,
            child_fence: Epoch(proto.child_fence),
            child_root: Ino(proto.child_root),
        }
    }
}

impl LongerLease {
    fn to_proto(self) -> mon::LongerLease {
        mon::LongerLease { millis: self.millis, since_epoch: self.since.0 }
    }

    fn from_proto(proto: &mon::LongerLease) -> Self {
        Self { millis: proto.millis, since: Epoch(proto.since_epoch) }
    }
}

impl InoGrant {
    fn to_proto(&self) -> mon::InoGrant {
        mon::InoGrant {
            nonce: self.nonce.clone().into(),
            first_ino: self.first.0,
            count: self.count,
            rank: self.rank.0,
            incarnation: self.incarnation,
        }
    }

    fn from_proto(proto: &mon::InoGrant) -> Result<Self, MapError> {
        Ok(Self {
            nonce: proto.nonce.to_vec(),
            first: ino(proto.first_ino)?,
            count: proto.count,
            rank: Rank(proto.rank),
            incarnation: proto.incarnation,
        })
    }
}

#[cfg(test)]
mod tests;
