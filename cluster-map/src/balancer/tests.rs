//! Single decisions, and closed loops with a model of directories that carry load.

use pando_proto::ids::ROOT_SUBTREE;
use proptest::prelude::*;

use super::*;
use crate::command::*;
use crate::invariants;

mod assign;
mod load;
mod wishes;

/// A directory tree with load, ranks that can do so much, and a map. Splits, moves and merges are done as decided.
struct World {
    map: ClusterMap,
    policy: Policy,
    history: History,
    parents: BTreeMap<Ino, Ino>,
    /// What the clients of a directory ask for, in thousandths of what a rank can do.
    demands: BTreeMap<Ino, f64>,
    /// Thousandths by which reports err, by rank, subtree and round.
    noise: f64,
    /// Whether the first report after a split says nothing of the new subtree.
    lags: bool,
    split_at: BTreeMap<SubtreeId, u64>,
    round: u64,
}

fn policy() -> Policy {
    Policy { idle: 5, ..Policy::of(&ClusterMap::default()) }
}

impl World {
    fn new(ranks: u32) -> Self {
        let mut map = ClusterMap::default();
        let spec = PoolSpec::new(1, 1);
        let create = CreateCluster {
            cluster_id: vec![1; 16],
            expected_osds: 1,
            metadata: Some(spec),
            data: Some(spec),
            mons: vec![SetMon { id: 1, address: "mon:1".into() }],
        };
        map.apply(&Command::CreateCluster(create)).unwrap();
        for rank in 0..ranks {
            let register = RegisterRank { rank, boot_id: vec![1], address: "mds:1".into() };
            map.apply(&Command::RegisterRank(register)).unwrap();
        }
        let (parents, demands, split_at) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (policy, history) = (policy(), History::default());
        Self { map, policy, history, parents, demands, noise: 0.0, lags: false, split_at, round: 0 }
    }

    fn apply(&mut self, command: Command) -> CommandResult {
        let before = self.map.clone();
        let result = self.map.apply(&command).unwrap();
        invariants::check(&self.map).unwrap();
        invariants::check_step(&before, &self.map).unwrap();
        result
    }

    /// A directory with load below another.
    fn dir(&mut self, number: u64, parent: Ino, demand: f64) -> Ino {
        let dir = Ino(1000 + number);
        self.parents.insert(dir, parent);
        self.demands.insert(dir, demand);
        dir
    }

    /// The subtree that holds a directory.
    fn subtree_of(&self, dir: Ino) -> SubtreeId {
        let mut at = dir;
        loop {
            if let Some((id, _)) = self.map.subtrees.iter().find(|(_, subtree)| subtree.root == at) {
                return *id;
            }
            at = self.parents[&at];
        }
    }

    fn demand_of(&self, id: SubtreeId) -> f64 {
        self.demands.iter().filter(|(dir, _)| self.subtree_of(**dir) == id).map(|(_, demand)| demand).sum()
    }

    fn demand_on(&self, rank: u32) -> f64 {
        let own = self.map.subtrees.iter().filter(|(_, subtree)| subtree.owner == Rank(rank));
        own.map(|(id, _)| self.demand_of(*id)).sum()
    }

    /// Child directories of a subtree's root with what is asked of the subtree below them.
    fn hot(&self, id: SubtreeId, scale: f64) -> Vec<mon::HotDirectory> {
        let root = self.map.subtrees[&id].root;
        let mut hot: BTreeMap<Ino, f64> = BTreeMap::new();
        for (dir, demand) in self.demands.iter().filter(|(dir, _)| self.subtree_of(**dir) == id && **dir != root) {
            let mut at = *dir;
            while self.parents[&at] != root {
                at = self.parents[&at];
            }
            *hot.entry(at).or_default() += demand * scale;
        }
        hot.into_iter()
            .map(|(dir, ops)| mon::HotDirectory { ino: dir.0, name: bytes::Bytes::new(), ops_per_s: ops })
            .collect()
    }

    fn jitter(&self, seed: u64) -> f64 {
        let mixed = crate::map::mix(seed ^ crate::map::mix(self.round)) % 2001;
        1.0 + self.noise * (mixed as f64 / 1000.0 - 1.0)
    }

    fn loads(&self) -> BTreeMap<Rank, Load> {
        let mut loads = BTreeMap::new();
        for (rank, _) in self.map.ranks.iter().filter(|(_, info)| info.up) {
            let wanted = self.demand_on(rank.0) * self.jitter(u64::from(rank.0));
            let scale = if wanted > 1000.0 { 1000.0 / wanted } else { 1.0 };
            let own = self.map.subtrees.iter().filter(|(_, subtree)| subtree.owner == *rank);
            let is_told = |id: &SubtreeId| !self.lags || self.split_at.get(id).is_none_or(|at| at + 1 < self.round);
            let subtrees = own.filter(|(id, _)| is_told(id)).map(|(id, _)| {
                let share = self.demand_of(*id) * scale * self.jitter(100 + id.0);
                mon::SubtreeLoad {
                    subtree: id.0,
                    ops_per_s: share,
                    busy_permille: (share * 0.8) as u32,
                    cached_inodes: 0,
                    hot: self.hot(*id, scale),
                }
            });
            let load = mon::RankLoad {
                busy_permille: wanted.min(1000.0) as u32,
                ops_per_s: wanted * scale,
                subtrees: subtrees.collect(),
                ..Default::default()
            };
            loads.insert(*rank, Load::from_proto(&load));
        }
        loads
    }

    fn plan(&mut self) -> Decision {
        self.round += 1;
        let loads = self.loads();
        plan(&self.map, &loads, &self.policy, &mut self.history)
    }

    fn relocate(&mut self, subtree: SubtreeId, to: Rank) {
        let (from, epoch) = (self.map.subtrees[&subtree].owner.0, self.map.subtrees[&subtree].epoch.0);
        let started = self.apply(Command::StartMove(StartMove { subtree: subtree.0, to: to.0, to_merge: false }));
        let CommandValue::Move(move_id) = started.value else { panic!("{started:?}") };
        self.apply(Command::CommitMove(CommitMove { subtree: subtree.0, from, epoch, move_id }));
    }

    fn split(&mut self, subtree: SubtreeId, dir: Ino, automatic: bool) -> SubtreeId {
        let result = self.apply(Command::SplitSubtree(SplitSubtree {
            parent: subtree.0,
            parent_epoch: self.map.subtrees[&subtree].epoch.0,
            root: dir.0,
            parent_dir: self.parents[&dir].0,
            name: dir.0.to_string().into_bytes(),
            path_hint: vec![],
            adopted: vec![],
            automatic,
        }));
        let CommandValue::Subtree(id) = result.value else { panic!("{result:?}") };
        self.split_at.insert(id, self.round);
        id
    }

    /// One round: decides, and does what was decided.
    fn step(&mut self) -> Decision {
        let decision = self.plan();
        let mode = self.policy.mode;
        for one in decision.moves.iter().filter(|one| one.cause.is_allowed(mode)) {
            assert_eq!(self.map.subtrees[&one.subtree].owner, one.from);
            self.relocate(one.subtree, one.to);
        }
        for split in decision.splits.iter().filter(|split| split.cause.is_allowed(mode)) {
            self.split(split.subtree, split.dir, true);
        }
        for id in decision.merges.iter().filter(|_| mode == Mode::Auto) {
            let child = self.map.subtrees[id].clone();
            let parent_epoch = self.map.subtrees[&child.parent.unwrap()].epoch.0;
            self.apply(Command::MergeSubtree(MergeSubtree { child: id.0, child_epoch: child.epoch.0, parent_epoch }));
        }
        decision
    }

    fn busy(&self) -> Vec<u32> {
        self.loads().values().map(|load| load.busy).collect()
    }

    fn rest(&mut self, rounds: u32) {
        for _ in 0..rounds {
            let decision = self.step();
            assert!(decision.moves.is_empty() && decision.splits.is_empty(), "{decision:?}\n{:?}", self.busy());
        }
    }
}

/// Directories below the root subtree, on rank 0.
fn with_dirs(ranks: u32, demands: &[f64]) -> World {
    let mut world = World::new(ranks);
    for (number, demand) in demands.iter().enumerate() {
        world.dir(number as u64, Ino::ROOT, *demand);
    }
    world
}

/// Each directory a subtree; owners in turn.
fn with_subtrees(ranks: u32, demands: &[f64], owner: impl Fn(usize) -> u32) -> World {
    let mut world = with_dirs(ranks, demands);
    for number in 0..demands.len() {
        let id = world.split(ROOT_SUBTREE, Ino(1000 + number as u64), true);
        if owner(number) != 0 {
            world.relocate(id, Rank(owner(number)));
        }
    }
    world
}

#[test]
fn reports_that_make_no_sense_count_as_nothing() {
    let hot = |ino, ops_per_s| mon::HotDirectory { ino, name: bytes::Bytes::new(), ops_per_s };
    let report = mon::RankLoad {
        busy_permille: u32::MAX,
        ops_per_s: f64::NAN,
        subtrees: vec![
            mon::SubtreeLoad {
                subtree: 1,
                ops_per_s: f64::INFINITY,
                busy_permille: u32::MAX,
                cached_inodes: u64::MAX,
                hot: vec![hot(0, 1.0), hot(1 << 63, 1.0), hot(77, f64::NAN), hot(78, -1.0), hot(79, 5.0), hot(80, 9.0)],
            },
            mon::SubtreeLoad { subtree: 999, busy_permille: 1000, ops_per_s: -5.0, ..Default::default() },
        ],
        ..Default::default()
    };
    let load = Load::from_proto(&report);
    assert_eq!((load.busy, load.ops), (1000, 0.0));
    let dirs: Vec<u64> = load.subtrees[&SubtreeId(1)].hot.iter().map(|hot| hot.dir.0).collect();
    assert_eq!((load.subtrees[&SubtreeId(1)].ops, dirs), (0.0, vec![80, 79]));
    let mut world = with_dirs(2, &[1.0]);
    // Also of a rank that does not exist.
    let loads = BTreeMap::from([(Rank(0), load.clone()), (Rank(77), load)]);
    for _ in 0..5 {
        let decision = plan(&world.map, &loads, &world.policy, &mut world.history);
        assert!(decision.moves.is_empty(), "{decision:?}");
    }
    assert_eq!(plan(&world.map, &BTreeMap::new(), &policy(), &mut History::default()).moves, []);
    assert_eq!(plan(&ClusterMap::default(), &BTreeMap::new(), &policy(), &mut History::default()).moves, []);
}
