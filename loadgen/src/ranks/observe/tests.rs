use super::*;
use pando_cluster_map::{RankInfo, Subtree};

fn map(epoch: u64, owners: &[(u64, u32)], ranks: &[(u32, bool, u64)]) -> Arc<ClusterMap> {
    let subtree = |owner: u32| Subtree { owner: Rank(owner), path_hint: b"/a".to_vec(), ..Subtree::default() };
    let rank = |up, incarnation| RankInfo { up, incarnation, ..RankInfo::default() };
    Arc::new(ClusterMap {
        epoch: Epoch(epoch),
        subtrees: owners.iter().map(|(id, owner)| (SubtreeId(*id), subtree(*owner))).collect(),
        ranks: ranks.iter().map(|(number, up, incarnation)| (Rank(*number), rank(*up, *incarnation))).collect(),
        ..ClusterMap::default()
    })
}

fn seen(map: Arc<ClusterMap>) -> Seen {
    Seen { start: Instant::now(), map, told: BTreeMap::new(), all: Observed::default() }
}

const UP: [(u32, bool, u64); 2] = [(0, true, 1), (1, true, 2)];

#[test]
fn changes_of_the_map_are_told_apart() {
    let mut seen = seen(map(1, &[(1, 0), (2, 0)], &UP));
    seen.changed(map(2, &[(1, 0), (2, 1), (3, 1)], &UP));
    seen.changed(map(3, &[(1, 0), (2, 1)], &UP));
    seen.changed(map(4, &[(1, 0), (2, 0)], &[(0, true, 1), (1, false, 2)]));
    let moved: Vec<_> = seen.all.migrations.iter().map(|m| (m.subtree, m.from, m.to, m.reason.as_deref())).collect();
    assert_eq!(moved, [(2, 0, 1, None), (2, 1, 0, Some("mds.1 went down"))]);
    assert_eq!((seen.all.splits, seen.all.merges), (1, 1));
}

#[test]
fn a_migration_gets_the_newest_reason_before_it() {
    let mut seen = seen(map(1, &[(2, 0)], &UP));
    seen.changed(map(10, &[(2, 1)], &UP));
    let decision = |map_epoch, to, reason: &str| mon::Decision {
        map_epoch,
        moves: vec![mon::PlannedMove { subtree: 2, from: 0, to, reason: reason.to_owned(), move_id: 0 }],
        ..mon::Decision::default()
    };
    let decisions =
        [decision(11, 1, "later"), decision(9, 2, "elsewhere"), decision(8, 1, "this"), decision(3, 1, "old")];
    explain(&mut seen.all.migrations, &decisions);
    assert_eq!(seen.all.migrations[0].reason.as_deref(), Some("this"));
}

#[test]
fn what_ranks_tell_becomes_rates_also_across_a_restart() {
    let mut seen = seen(map(1, &[], &UP));
    let told = |operations, cpu_millis| mon::RankLoadOf {
        rank: 1,
        age_millis: 0,
        load: Some(mon::RankLoad { operations, cpu_millis, busy_permille: 300, ..mon::RankLoad::default() }),
    };
    let later = |seen: &mut Seen| seen.start -= Duration::from_secs(2);
    seen.told(told(1000, 500));
    later(&mut seen);
    seen.told(told(1200, 900));
    later(&mut seen);
    seen.told(told(50, 20));
    let series = &seen.all.ranks[0];
    assert_eq!((series.rank, series.operations, series.series.len()), (1, 250, 2));
    assert!((series.cpu_seconds - 0.42).abs() < 1e-9);
    let sample = series.series[0];
    assert!((95.0..=100.0).contains(&sample.ops_per_s) && (19.0..=20.0).contains(&sample.cpu_percent), "{sample:?}");
    seen.told(told(50, 20));
    assert_eq!(seen.all.ranks[0].series.len(), 2, "the same report again is no sample");
}
