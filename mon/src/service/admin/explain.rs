//! Why a subtree is where it is.

use pando_cluster_map::ClusterMap;
use pando_proto::{Error, Rank, Reason, SubtreeId, mon};

use super::shown;

/// What there is to say. `decisions` are the balancer's, newest first, `loads` what the ranks said last.
///
/// Errors: the map knows no such subtree.
pub(super) fn explain(
    map: &ClusterMap,
    id: SubtreeId,
    decisions: &[mon::Decision],
    loads: Vec<mon::RankLoadOf>,
) -> Result<mon::ExplainSubtreeResponse, Error> {
    let Some(found) = map.subtrees.get(&id) else {
        let message = match map.successor(id) {
            Some(now) => format!("{id} was merged into {now}: ask for that"),
            None => format!("there is no {id}: `pando subtree ls` shows what there is"),
        };
        return Err(Error::new(Reason::UnknownId, message));
    };
    let subtree = shown(map, id, found);
    let why = why(&subtree, decisions);
    // A former owner's last word does not count.
    let told = loads.into_iter().filter(|of| of.rank == subtree.owner).filter_map(|of| of.load);
    let load = told.flat_map(|load| load.subtrees).find(|load| load.subtree == id.0);
    Ok(mon::ExplainSubtreeResponse {
        rank: map.ranks.get(&found.owner).map(|rank| rank.to_proto(found.owner)),
        subtree: Some(subtree),
        since: why.since.unwrap_or_default(),
        why: why.text,
        load,
        map_epoch: map.epoch.0,
    })
}

/// In words.
#[derive(Debug, PartialEq, Eq)]
struct Why {
    /// Wall clock, nanoseconds since 1970.
    since: Option<i64>,
    text: String,
}

/// As far as the map and the balancer's log (newest first) tell. A decision counts only if the subtree's last move came
/// of it: whatever is older has been overtaken.
fn why(subtree: &mon::Subtree, decisions: &[mon::Decision]) -> Why {
    if let Some(from) = subtree.taken_from {
        let text = format!("{} took it over when {} went down", Rank(subtree.owner), Rank(from));
        return Why { since: None, text };
    }
    let split_from = SubtreeId(subtree.split_from);
    let found = if subtree.last_move == 0 { split_off(subtree, decisions) } else { moved(subtree, decisions) };
    let unknown = match subtree {
        _ if found.is_some() => String::new(),
        mon::Subtree { last_move: 0, split_from: 0, .. } => {
            "nobody moved it: it is with the first rank there was".into()
        }
        mon::Subtree { last_move: 0, .. } => format!("it was split off from {split_from} there, and never moved"),
        mon::Subtree { last_move, .. } => format!(
            "it was moved there by hand, or for a reason that is in the balancer's log no more (move {last_move}, from \
             map epoch {last_move} on)"
        ),
    };
    found.unwrap_or(Why { since: None, text: unknown })
}

fn moved(subtree: &mon::Subtree, decisions: &[mon::Decision]) -> Option<Why> {
    let last = |one: &&mon::PlannedMove| one.subtree == subtree.id && one.move_id == subtree.last_move;
    decisions.iter().find_map(|decision| {
        let planned = decision.moves.iter().find(last)?;
        let text = format!("the balancer moved it there from {}: {}", Rank(planned.from), planned.reason);
        Some(Why { since: Some(decision.at), text })
    })
}

fn split_off(subtree: &mon::Subtree, decisions: &[mon::Decision]) -> Option<Why> {
    let it = |split: &&mon::SplitRequest| (split.subtree, split.dir) == (subtree.split_from, subtree.root_ino);
    decisions.iter().find_map(|decision| {
        let split = decision.splits.iter().find(it)?;
        let text = format!("the balancer had it split off from {}: {}", SubtreeId(split.subtree), decision.reason);
        Some(Why { since: Some(decision.at), text })
    })
}

#[cfg(test)]
mod tests {
    use pando_cluster_map::{RankInfo, Subtree};

    use super::*;

    fn decision(at: i64, subtree: u64, move_id: u64) -> mon::Decision {
        let planned = mon::PlannedMove { subtree, from: 0, to: 2, reason: "mds.0 is saturated".to_owned(), move_id };
        mon::Decision { at, moves: vec![planned], ..mon::Decision::default() }
    }

    #[test]
    fn the_decision_of_its_last_move_says_why() {
        let subtree = mon::Subtree { id: 7, owner: 2, last_move: 40, since: 41, ..mon::Subtree::default() };
        let decisions = [decision(9, 8, 40), decision(8, 7, 0), decision(7, 7, 40), decision(6, 7, 30)];
        let found = why(&subtree, &decisions);
        assert_eq!((found.since, found.text.contains("mds.0 is saturated")), (Some(7), true));
        // It was moved by hand since, to the same rank.
        let found = why(&mon::Subtree { last_move: 50, ..subtree.clone() }, &decisions);
        assert_eq!(found.since, None);
        assert!(found.text.contains("by hand") && found.text.contains("50"), "{}", found.text);
        // Its owner failed since.
        let failed = mon::Subtree { owner: 0, taken_from: Some(2), ..subtree };
        let found = why(&failed, &decisions);
        assert_eq!((found.since, found.text.as_str()), (None, "mds.0 took it over when mds.2 went down"));
    }

    #[test]
    fn without_a_decision_the_map_says_what_it_knows() {
        let subtree = mon::Subtree { id: 7, owner: 2, split_from: 3, root_ino: 55, ..mon::Subtree::default() };
        assert!(why(&subtree, &[decision(1, 9, 9)]).text.contains("split off from subtree.3"));
        let split = mon::SplitRequest { subtree: 3, dir: 55 };
        let decided = mon::Decision { at: 5, splits: vec![split], reason: "hot".into(), ..mon::Decision::default() };
        assert_eq!(why(&subtree, std::slice::from_ref(&decided)).since, Some(5));
        assert_eq!(why(&mon::Subtree { last_move: 9, ..subtree }, &[decided]).since, None, "it moved since");
        assert!(why(&mon::Subtree::default(), &[]).text.contains("first rank"));
    }

    #[test]
    fn all_is_told_of_the_owner_of_now() {
        let mut map = ClusterMap::default();
        map.subtrees.insert(SubtreeId(7), Subtree { owner: Rank(2), last_move: 40, ..Subtree::default() });
        map.ranks.insert(Rank(2), RankInfo { address: "here:1".into(), up: true, ..RankInfo::default() });
        let load = |rank, ops_per_s| mon::RankLoadOf {
            rank,
            load: Some(mon::RankLoad {
                subtrees: vec![mon::SubtreeLoad { subtree: 7, ops_per_s, ..mon::SubtreeLoad::default() }],
                ..mon::RankLoad::default()
            }),
            ..mon::RankLoadOf::default()
        };
        let told = explain(&map, SubtreeId(7), &[decision(7, 7, 40)], vec![load(1, 9.0), load(2, 3.0)]).unwrap();
        assert_eq!((told.rank.unwrap().address, told.since, told.load.unwrap().ops_per_s), ("here:1".into(), 7, 3.0));
        assert_eq!(explain(&map, SubtreeId(8), &[], Vec::new()).unwrap_err().reason, Reason::UnknownId);
    }
}
