//! What ranks report of their load. It comes from outside: nonsense counts as nothing.

use std::collections::BTreeMap;

use pando_proto::{Ino, Rank, SubtreeId, mon};

use crate::map::ClusterMap;

/// Subtrees in one report.
const MAX_SUBTREES: usize = 4096;
/// Hot directories of one subtree.
const MAX_HOT: usize = 64;

/// How busy a rank is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// Share of time with work, in thousandths.
    pub busy: u32,
    /// Operations per second.
    pub ops: f64,
    /// Of its subtrees.
    pub subtrees: BTreeMap<SubtreeId, SubtreeLoad>,
}

/// How busy a subtree is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SubtreeLoad {
    /// Share of the rank's time, in thousandths.
    pub busy: u32,
    /// Operations per second.
    pub ops: f64,
    /// Child directories of the root, hottest first.
    pub hot: Vec<HotDirectory>,
}

/// A child directory that carries load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotDirectory {
    /// Which.
    pub dir: Ino,
    /// Operations per second below it.
    pub ops: f64,
}

fn rate(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, 1e12) } else { 0.0 }
}

impl Load {
    /// Reads a report.
    pub fn from_proto(proto: &mon::RankLoad) -> Self {
        let subtree = |load: &mon::SubtreeLoad| (SubtreeId(load.subtree), SubtreeLoad::from_proto(load));
        Self {
            busy: proto.busy_permille.min(1000),
            ops: rate(proto.ops_per_s),
            subtrees: proto.subtrees.iter().take(MAX_SUBTREES).map(subtree).collect(),
        }
    }
}

impl SubtreeLoad {
    fn from_proto(proto: &mon::SubtreeLoad) -> Self {
        let hot =
            proto.hot.iter().take(MAX_HOT).map(|hot| HotDirectory { dir: Ino(hot.ino), ops: rate(hot.ops_per_s) });
        let mut hot: Vec<_> = hot.filter(|hot| hot.dir.is_valid() && hot.ops > 0.0).collect();
        hot.sort_by(|a, b| b.ops.total_cmp(&a.ops).then(a.dir.cmp(&b.dir)));
        hot.dedup_by_key(|hot| hot.dir);
        Self { busy: proto.busy_permille.min(1000), ops: rate(proto.ops_per_s), hot }
    }
}

/// What each subtree takes of its rank's time, in thousandths: the rank's own time, its connections for example, is
/// divided like that of its subtrees.
pub(super) fn weights(map: &ClusterMap, loads: &BTreeMap<Rank, Load>) -> BTreeMap<SubtreeId, f64> {
    let mut weights = BTreeMap::new();
    for (rank, load) in loads {
        let owns = |id: &SubtreeId| map.subtrees.get(id).is_some_and(|subtree| subtree.owner == *rank);
        let own: Vec<_> = load.subtrees.iter().filter(|(id, _)| owns(id)).collect();
        let busy: f64 = own.iter().map(|(_, subtree)| f64::from(subtree.busy)).sum();
        let ops: f64 = own.iter().map(|(_, subtree)| subtree.ops).sum();
        for (id, subtree) in own {
            let share = if busy > 0.0 {
                f64::from(subtree.busy) / busy
            } else if ops > 0.0 {
                subtree.ops / ops
            } else {
                0.0
            };
            weights.insert(*id, share * f64::from(load.busy));
        }
    }
    weights
}
