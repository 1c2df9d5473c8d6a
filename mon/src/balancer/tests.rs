use pando_cluster_map::{
    CommandValue, CommitMove, CreateCluster, DrainRank, PinSubtree, PoolSpec, RegisterRank, SetMon, SetSetting,
    SplitSubtree,
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Ranks 0 to 2; the root subtree and `children` others are on rank 0.
fn map(children: u64) -> ClusterMap {
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
    for rank in 0..3 {
        let register = RegisterRank { rank, boot_id: vec![1], address: "mds:1".into() };
        map.apply(&Command::RegisterRank(register)).unwrap();
    }
    for child in 0..children {
        let split = SplitSubtree {
            parent: 1,
            parent_epoch: 1 + child,
            root: 50 + child,
            parent_dir: 1,
            name: vec![b'a'],
            automatic: true,
            ..SplitSubtree::default()
        };
        map.apply(&Command::SplitSubtree(split)).unwrap();
    }
    map
}

/// Each rank's time is divided equally among its subtrees.
fn report_all(balancer: &mut Balancer, map: &ClusterMap, busy: [u32; 3], now: Duration) {
    for (rank, busy) in busy.into_iter().enumerate() {
        let rank = Rank(rank as u32);
        let own: Vec<u64> =
            map.subtrees.iter().filter(|(_, subtree)| subtree.owner == rank).map(|(id, _)| id.0).collect();
        let share = 1000.0 / own.len().max(1) as f64;
        let subtree = |id: &u64| mon::SubtreeLoad {
            subtree: *id,
            ops_per_s: share,
            busy_permille: share as u32,
            cached_inodes: 1,
            hot: vec![mon::HotDirectory { ino: 7000 + id, name: "hot".into(), ops_per_s: share }],
        };
        let load = mon::RankLoad {
            busy_permille: busy,
            ops_per_s: 1000.0,
            subtrees: own.iter().map(subtree).collect(),
            ..mon::RankLoad::default()
        };
        balancer.report(rank, load, now);
    }
}

/// Ticks and reports until something is to be done.
fn until_due(balancer: &mut Balancer, map: &ClusterMap, busy: [u32; 3], now: &mut Duration) -> Vec<Command> {
    for _ in 0..1500 {
        *now += SECOND / 10;
        report_all(balancer, map, busy, *now);
        let due = balancer.due(*now, 1, map);
        if !due.is_empty() {
            return due;
        }
    }
    panic!("nothing is due: {:?}", balancer.decisions(3));
}

fn set(map: &mut ClusterMap, name: &str, value: u64) {
    map.apply(&Command::SetSetting(SetSetting { name: name.into(), value: value.to_string() })).unwrap();
}

/// Starts a move in the map, and returns what would commit it.
fn start(map: &mut ClusterMap, command: &Command) -> Command {
    let Command::StartMove(start) = command else { panic!("{command:?}") };
    let CommandValue::Move(move_id) = map.apply(command).unwrap().value else { panic!("no move") };
    let subtree = &map.subtrees[&SubtreeId(start.subtree)];
    let (from, epoch) = (subtree.owner.0, subtree.epoch.0);
    Command::CommitMove(CommitMove { subtree: start.subtree, from, epoch, move_id })
}

#[test]
fn a_few_moves_are_under_way_at_once_and_the_others_follow() {
    let (mut map, mut balancer, mut now) = (map(15), Balancer::default(), SECOND);
    let mut commits: VecDeque<Command> = VecDeque::new();
    let first = until_due(&mut balancer, &map, [1000, 0, 0], &mut now);
    assert!(now >= 10 * SECOND, "two rounds of 5 s have to agree");
    assert_eq!(first.len(), MAX_IN_FLIGHT);
    assert_eq!(balancer.due(now, 1, &map), [], "asked for, but not in the map yet");
    commits.extend(first.iter().map(|command| start(&mut map, command)));
    assert_eq!(balancer.due(now, 1, &map), []);
    let mut started = first.len();
    while let Some(commit) = commits.pop_front() {
        map.apply(&commit).unwrap();
        // A round in which the planner waits for the moves to show does not end them.
        now += 5 * SECOND;
        report_all(&mut balancer, &map, [1000, 0, 0], now);
        let next = balancer.due(now, 1, &map);
        assert!(next.len() <= 1, "one ended");
        started += next.len();
        commits.extend(next.iter().map(|command| start(&mut map, command)));
    }
    assert_eq!(started, 10, "16 are spread over 3");
    let decisions = balancer.decisions(0);
    let decided: Vec<usize> = decisions.iter().map(|one| one.moves.len()).filter(|moves| *moves > 0).collect();
    assert_eq!((decided, decisions[0].ranks.len()), (vec![10], 3), "{decisions:?}");
}

#[test]
fn a_move_that_does_not_get_on_is_given_up() {
    let (mut map, mut balancer, mut now) = (map(1), Balancer::default(), SECOND);
    let due = until_due(&mut balancer, &map, [1000, 0, 0], &mut now);
    start(&mut map, &due[0]);
    let move_id = map.subtrees.values().find(|subtree| subtree.move_id != 0).unwrap().move_id;
    let since = now;
    let due = loop {
        let due = until_due(&mut balancer, &map, [500, 0, 0], &mut now);
        if !matches!(due[0], Command::StartMove(_)) {
            break due;
        }
    };
    assert!(now - since >= MOVE_LIMIT);
    assert!(
        matches!(due[0], Command::CancelMove(CancelMove { move_id: given_up, .. }) if given_up == move_id),
        "{due:?}"
    );
}

#[test]
fn modes_decide_what_is_done() {
    for (mode, starts) in [(settings::BALANCER_OFF, 0), (settings::BALANCER_MANUAL, 0), (settings::BALANCER_AUTO, 4)] {
        let (mut map, mut balancer) = (map(15), Balancer::default());
        set(&mut map, settings::BALANCER_MODE, mode);
        let mut count = 0;
        for tick in 1..150u32 {
            report_all(&mut balancer, &map, [1000, 0, 0], tick * SECOND / 10);
            count += balancer.due(tick * SECOND / 10, 1, &map).len();
        }
        assert!(count >= starts && (starts > 0 || count == 0), "mode {mode}: {count}");
        let said = &balancer.decisions(0)[0];
        assert_eq!(said.moves.is_empty(), mode == settings::BALANCER_OFF, "{said:?}");
    }
}

#[test]
fn people_need_not_wait_for_the_next_round() {
    let (mut map, mut balancer) = (map(2), Balancer::default());
    assert_eq!(balancer.due(SECOND, 1, &map), []);
    map.apply(&Command::PinSubtree(PinSubtree { subtree: 2, rank: Some(1) })).unwrap();
    balancer.hurry();
    let due = balancer.due(SECOND, 1, &map);
    assert_eq!(due, [Command::StartMove(StartMove { subtree: 2, to: 1, to_merge: false })]);
    assert_eq!(balancer.decisions(0)[0].moves[0].reason, "pinned to mds.1");
    map.apply(&due[0]).unwrap();
    set(&mut map, settings::BALANCER_MODE, settings::BALANCER_OFF);
    map.apply(&Command::DrainRank(DrainRank { rank: 0, draining: true })).unwrap();
    balancer.hurry();
    let due = balancer.due(SECOND, 1, &map);
    assert_eq!(due.len(), 2, "the root and subtree 3: {due:?}");
}

#[test]
fn what_is_not_wanted_any_more_does_not_wait_for_its_turn() {
    let (mut map, mut balancer) = (map(15), Balancer::default());
    let drain = |draining| Command::DrainRank(DrainRank { rank: 0, draining });
    map.apply(&drain(true)).unwrap();
    balancer.hurry();
    let first = balancer.due(SECOND, 1, &map);
    assert!(first.len() < map.subtrees.len(), "some have to wait: {first:?}");
    for start in &first {
        let Command::StartMove(started) = start else { panic!("{start:?}") };
        let CommandValue::Move(move_id) = map.apply(start).unwrap().value else { panic!("{start:?}") };
        let epoch = map.subtrees[&SubtreeId(started.subtree)].epoch.0;
        let commit = CommitMove { subtree: started.subtree, from: 0, epoch, move_id };
        map.apply(&Command::CommitMove(commit)).unwrap();
    }
    map.apply(&drain(false)).unwrap();
    balancer.hurry();
    assert_eq!(balancer.due(SECOND + SECOND / 10, 2, &map), []);
}

#[test]
fn hints_go_to_the_owner_once() {
    let (map, mut balancer) = (map(0), Balancer::default());
    for tick in 1..110u32 {
        report_all(&mut balancer, &map, [1000, 0, 0], tick * SECOND / 10);
        assert_eq!(balancer.due(tick * SECOND / 10, 1, &map), []);
    }
    assert_eq!(balancer.take_hints(Rank(1)), Hints::default());
    let expected = Hints { splits: vec![mon::SplitRequest { subtree: 1, dir: 7001 }], merges: vec![] };
    assert_eq!(balancer.take_hints(Rank(0)), expected);
    assert_eq!(balancer.take_hints(Rank(0)), Hints::default());
    assert_eq!(balancer.decisions(1)[0].splits, expected.splits);
}

#[test]
fn equal_decisions_are_counted_and_old_ones_forgotten() {
    let (mut map, mut balancer, mut now) = (map(0), Balancer::default(), SECOND);
    set(&mut map, settings::BALANCER_INTERVAL_MILLIS, 100);
    for round in 0..50 {
        now += SECOND / 10;
        report_all(&mut balancer, &map, [10, 20, 30 + round], now);
        balancer.due(now, 77 + i64::from(round), &map);
    }
    let known = balancer.decisions(0);
    assert_eq!(known.len(), 1, "{known:?}");
    assert_eq!((known[0].times, known[0].at, known[0].map_epoch), (49, 78, map.epoch.0));
    assert_eq!((known[0].last_at, known[0].ranks[2].busy_permille), (77 + 49, 79), "with the figures of the last time");
    assert_eq!(known[0].reason, "no rank is near saturation");
    // Alternating ones are each kept, up to a limit.
    for round in 0..700u32 {
        now += SECOND / 10;
        set(&mut map, settings::BALANCER_MODE, u64::from(round % 2));
        balancer.due(now, i64::from(round), &map);
    }
    assert_eq!(balancer.decisions(0).len(), MAX_DECISIONS);
    assert_eq!(balancer.decisions(2).len(), 2);
    assert_eq!(balancer.decisions(0)[0].at, 699, "newest first");
    balancer.elected();
    assert_eq!((balancer.decisions(0).len(), balancer.loads(now).len()), (MAX_DECISIONS, 0));
}

#[test]
fn reports_are_bounded_and_those_of_removed_ranks_forgotten() {
    let (map, mut balancer) = (map(0), Balancer::default());
    let hot = mon::HotDirectory { ino: 5, name: vec![b'x'; 1000].into(), ops_per_s: 1.0 };
    let subtree = mon::SubtreeLoad { subtree: 1, hot: vec![hot; 100], ..Default::default() };
    let load = mon::RankLoad { subtrees: vec![subtree; 5000], busy_permille: 7, ..Default::default() };
    balancer.report(Rank(1), load.clone(), SECOND);
    balancer.report(Rank(99), mon::RankLoad::default(), SECOND);
    balancer.due(SECOND, 1, &map);
    let known = balancer.loads(3 * SECOND);
    assert_eq!((known.len(), known[0].rank, known[0].age_millis), (1, 1, 2000));
    let kept = known[0].load.as_ref().unwrap();
    assert_eq!((kept.busy_permille, kept.subtrees.len()), (7, MAX_SUBTREES));
    assert_eq!((kept.subtrees[0].hot.len(), kept.subtrees[0].hot[0].name.len()), (MAX_HOT, MAX_NAME_BYTES));
}

/// R13: who gets what when a rank is gone.
#[test]
fn assignments_follow_the_reports() {
    let (map, mut balancer) = (map(5), Balancer::default());
    report_all(&mut balancer, &map, [900, 600, 100], SECOND);
    let assigned = balancer.assignments(&map, Rank(0));
    assert_eq!(assigned.len(), 6);
    let of = |rank| assigned.iter().filter(|one| one.rank == rank).count();
    // Each weighs 150: 600 and 100 become 800 and 800, or nearly.
    assert_eq!((of(1), of(2)), (1, 5));
}

#[test]
fn a_move_that_is_over_at_once_makes_way_for_the_next_and_its_decision_is_known() {
    let (mut map, mut balancer, mut now) = (map(15), Balancer::default(), SECOND);
    let first = until_due(&mut balancer, &map, [1000, 0, 0], &mut now);
    assert_eq!(first.len(), MAX_IN_FLIGHT);
    for command in &first {
        let commit = start(&mut map, command);
        let (Command::StartMove(begun), Command::CommitMove(ended)) = (command, &commit) else { panic!("{commit:?}") };
        balancer.began(SubtreeId(begun.subtree), Rank(begun.to), ended.move_id);
        map.apply(&commit).unwrap();
    }
    now += SECOND / 10;
    let next = balancer.due(now, 1, &map);
    assert_eq!(next.len(), MAX_IN_FLIGHT, "none is under way any more");
    let decisions = balancer.decisions(0);
    let Command::StartMove(one) = &first[0] else { panic!("{first:?}") };
    let planned: Vec<_> = decisions.iter().flat_map(|decision| &decision.moves).collect();
    let found = planned.iter().find(|planned| planned.subtree == one.subtree).unwrap();
    assert_eq!(found.move_id, map.subtrees[&SubtreeId(one.subtree)].last_move);
    // One that somebody else began is not its doing.
    let Command::StartMove(other) = &next[0] else { panic!("{next:?}") };
    balancer.began(SubtreeId(other.subtree), Rank(0), 999);
    let decisions = balancer.decisions(0);
    assert!(decisions.iter().flat_map(|decision| &decision.moves).all(|planned| planned.move_id != 999));
}
