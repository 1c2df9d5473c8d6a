//! Any commands about subtrees and ranks, one after the other.

use super::*;

/// Commands about the subtrees of a small cluster. Epochs and moves of 0 stand for the true ones.
pub(in crate::apply::tests) fn any_subtree_command() -> impl Strategy<Value = Command> {
    let (id, rank) = (1..7u64, 0..3u32);
    let adopted = prop::collection::vec(1..7u64, 0..2);
    let mostly_true = || prop_oneof![5 => Just(0), 1 => 1..40u64];
    prop_oneof![
        4 => (id.clone(), mostly_true(), 20..32u64, adopted)
            .prop_map(|(parent, epoch, root, adopted)| split(parent, epoch, root, &adopted)),
        3 => (id.clone(), mostly_true(), mostly_true()).prop_map(|(child, epoch, parent)| merge(child, epoch, parent)),
        6 => (id.clone(), rank.clone()).prop_map(|(subtree, to)| start(subtree, to)),
        6 => (id.clone(), rank.clone(), mostly_true(), mostly_true())
            .prop_map(|(subtree, from, epoch, move_id)| commit(subtree, from, epoch, move_id)),
        1 => (id.clone(), mostly_true()).prop_map(|(subtree, move_id)| cancel(subtree, move_id)),
        2 => (id.clone(), mostly_true()).prop_map(|(subtree, epoch)| renew(subtree, epoch)),
        2 => prop::collection::vec(id.clone(), 0..3).prop_map(|subtrees| {
            Command::RaiseRoutes(RaiseRoutes { subtrees })
        }),
        1 => (id.clone(), prop::option::of(rank.clone())).prop_map(|(subtree, rank)| {
            Command::PinSubtree(PinSubtree { subtree, rank })
        }),
        1 => (id.clone(), any::<bool>()).prop_map(|(subtree, spread)| {
            Command::SpreadSubtree(SpreadSubtree { subtree, spread })
        }),
        1 => (rank.clone(), any::<bool>()).prop_map(|(rank, draining)| drain(rank, draining)),
        2 => (rank.clone(), 1..4u64, prop::collection::vec((id, rank), 0..3)).prop_map(|(id, incarnation, named)| {
            let assignments = named.into_iter().map(|(subtree, rank)| Assignment { subtree, rank }).collect();
            Command::RankDown(RankDown { id, incarnation, assignments })
        }),
    ]
}

/// Puts the true epochs and moves where a command has 0, and takes most ids for places among those that exist.
pub(in crate::apply::tests) fn aim(map: &ClusterMap, command: Command) -> Command {
    let ids: Vec<u64> = map.subtrees.keys().map(|id| id.0).collect();
    let pick = |id: u64| if id >= 6 || ids.is_empty() { id } else { ids[id as usize % ids.len()] };
    let subtree = |id: u64| map.subtrees.get(&SubtreeId(id)).cloned().unwrap_or_default();
    let or = |given: u64, true_one: u64| if given == 0 { true_one } else { given };
    match command {
        Command::SplitSubtree(split) => {
            let parent = pick(split.parent);
            let parent_epoch = or(split.parent_epoch, subtree(parent).epoch.0);
            let fits = |id: &u64| *id >= 6 || subtree(*id).parent == Some(SubtreeId(parent));
            let adopted = split.adopted.into_iter().map(pick).filter(fits).collect();
            Command::SplitSubtree(SplitSubtree { parent, parent_epoch, adopted, ..split })
        }
        Command::StartMove(start) => Command::StartMove(StartMove { subtree: pick(start.subtree), ..start }),
        Command::MergeSubtree(merge) => {
            let merge = MergeSubtree { child: pick(merge.child), ..merge };
            let child = subtree(merge.child);
            let parent = child.parent.map(|parent| subtree(parent.0)).unwrap_or_default();
            let (child_epoch, parent_epoch) =
                (or(merge.child_epoch, child.epoch.0), or(merge.parent_epoch, parent.epoch.0));
            Command::MergeSubtree(MergeSubtree { child_epoch, parent_epoch, ..merge })
        }
        Command::CommitMove(commit) => {
            let commit = CommitMove { subtree: pick(commit.subtree), ..commit };
            let known = subtree(commit.subtree);
            let from = if commit.epoch == 0 { known.owner.0 } else { commit.from };
            let (epoch, move_id) = (or(commit.epoch, known.epoch.0), or(commit.move_id, known.move_id));
            Command::CommitMove(CommitMove { from, epoch, move_id, ..commit })
        }
        Command::CancelMove(cancel) => {
            let cancel = CancelMove { subtree: pick(cancel.subtree), ..cancel };
            let move_id = or(cancel.move_id, subtree(cancel.subtree).move_id);
            Command::CancelMove(CancelMove { move_id, ..cancel })
        }
        Command::RenewSubtree(renewed) => {
            let id = pick(renewed.subtree);
            renew(id, or(renewed.epoch, subtree(id).epoch.0))
        }
        other => other,
    }
}

fn any_rank_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        12 => any_subtree_command(),
        2 => (0..3u32, 1..4u8).prop_map(|(rank, boot)| register_rank(rank, boot)),
        1 => (0..3u32, 1..4u64).prop_map(|(id, incarnation)| up(id, incarnation)),
        1 => (0..3u32).prop_map(|id| Command::RemoveRank(RemoveDaemon { id })),
        1 => (0..9u8).prop_map(client),
        1 => (1..9u64).prop_map(|client_id| Command::EndSession(EndSession { client_id })),
    ]
}

/// What became of handovers: the map alone knows, and a source must be able to rely on what it is told (R12).
#[derive(Default)]
struct Handovers(std::collections::BTreeMap<(u64, u64), bool>);

impl Handovers {
    fn note(&mut self, command: &Command, result: &Result<CommandResult, CommandError>, map: &ClusterMap) {
        let known = |id: u64| map.subtrees.contains_key(&SubtreeId(id));
        let (subtree, move_id, committed) = match command {
            Command::CommitMove(commit) if result.is_ok() => (commit.subtree, commit.move_id, true),
            // An error may be about the epoch or the owner only, as long as the move goes on.
            Command::CommitMove(commit)
                if known(commit.subtree) && tree(map, commit.subtree).move_id != commit.move_id =>
            {
                (commit.subtree, commit.move_id, false)
            }
            Command::CancelMove(cancel) if result.is_ok() => (cancel.subtree, cancel.move_id, false),
            _ => return,
        };
        // Ids that no move had yet say nothing.
        if move_id != 0 && move_id <= map.epoch.0 {
            let before = *self.0.entry((subtree, move_id)).or_insert(committed);
            assert!(!committed || before, "R12: a move that was said to be void was committed: {command:?}");
        }
    }
}

/// Epochs of subtrees that are over, as the map has said: an owner must be able to rely on that (R11).
#[derive(Default)]
struct Over(std::collections::BTreeMap<u64, u64>);

impl Over {
    /// Before the command is applied.
    fn check(&self, command: &Command, map: &ClusterMap) {
        let (id, epoch) = match command {
            Command::SplitSubtree(split) => (split.parent, split.parent_epoch),
            Command::MergeSubtree(merge) => (merge.child, merge.child_epoch),
            Command::CommitMove(commit) => (commit.subtree, commit.epoch),
            _ => return,
        };
        let mut copy = map.clone();
        let changes = copy.apply(command).is_ok() && copy != *map;
        assert!(!changes || self.0.get(&id).is_none_or(|over| *over < epoch), "R11: {command:?} came late");
    }

    fn note(&mut self, command: &Command, result: &Result<CommandResult, CommandError>) {
        if let (Command::RenewSubtree(renewed), Ok(_)) = (command, result) {
            let over = self.0.entry(renewed.subtree).or_default();
            *over = renewed.epoch.max(*over);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_commands_keep_the_tree(commands in prop::collection::vec(any_rank_command(), 0..120)) {
        let mut map = with_ranks(3);
        step(&mut map, &client(200)).unwrap();
        let (mut handovers, mut over) = (Handovers::default(), Over::default());
        for command in commands {
            let command = aim(&map, command);
            let reread = Command::from_bytes(&command.to_bytes()).unwrap();
            over.check(&command, &map);
            let mut twin = map.clone();
            let result = step(&mut map, &command);
            prop_assert_eq!(twin.apply(&reread), result.clone(), "deterministic");
            prop_assert_eq!(&twin, &map);
            handovers.note(&command, &result, &map);
            over.note(&command, &result);
        }
        prop_assert_eq!(ClusterMap::from_proto(&map.to_proto()), Ok(map));
    }
}
