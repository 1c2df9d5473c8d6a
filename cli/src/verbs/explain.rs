//! `pando subtree explain`. JSON: `given`, `ino`, `inside` (the way from the subtree's root), `subtree` (as in
//! `subtree ls`), `address` and `state` (`up`, `down`) of the owner, `map_epoch`, `since_ns` (of the decision that
//! brought it there, else null), `why`.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use pando_client::{Client, Location};
use pando_proto::mon::{self, RankState};
use pando_proto::{Epoch, Error, Rank, Reason, SubtreeId};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::output;
use crate::session::{Session, finish};
use crate::verbs::subtree;

/// Why a subtree is where it is.
#[derive(Debug, PartialEq, Eq)]
struct Why {
    /// Wall clock, nanoseconds since 1970.
    since: Option<i64>,
    text: String,
}

/// All there is to say.
struct Explained {
    at: Location,
    subtree: mon::Subtree,
    rank: mon::Rank,
    load: Option<mon::SubtreeLoad>,
    map_epoch: Epoch,
    why: Why,
}

pub async fn run(session: &Session, path: &Path) -> Result<(), Failure> {
    let client = session.client().await?;
    let explained = explain(session, &client, path).await;
    finish(client, Ok(())).await?;
    let explained = explained?;
    if session.json { json_line(path, &explained) } else { text(path, &explained) }
}

async fn explain(session: &Session, client: &Client, path: &Path) -> Result<Explained, Failure> {
    let at = client.locate(path).await.map_err(|error| Failure::from(error).at(path))?;
    let admin = session.admin()?;
    let subtrees = admin.list_subtrees().await?;
    let subtree = subtrees.iter().find(|subtree| subtree.id == at.subtree.0).cloned();
    let subtree = subtree.ok_or_else(|| {
        let text = format!("{} was merged away while this looked: try again", at.subtree);
        Failure::from(Error::new(Reason::StaleEpoch, text)).at(path)
    })?;
    let rank = admin.list_ranks().await?.into_iter().find(|rank| rank.rank == subtree.owner).unwrap_or_default();
    let load = subtree::by_subtree(&subtrees, &subtree::loads(session).await?).remove(&subtree.id);
    let decisions = match admin.list_decisions(0).await {
        // A mon that is too old has none.
        Err(Error { reason: Reason::InvalidRequest, .. }) => Vec::new(),
        decisions => decisions?,
    };
    let why = why(&subtree, &decisions);
    let map_epoch = Epoch(admin.status().await?.map_epoch);
    Ok(Explained { at, subtree, rank, load, map_epoch, why })
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

fn state(rank: &mon::Rank) -> &'static str {
    if rank.state() == RankState::Up { "up" } else { "down" }
}

fn json_line(path: &Path, explained: &Explained) -> Result<(), Failure> {
    let Explained { at, subtree, rank, load, map_epoch, why } = explained;
    let mut object = Map::new();
    output::put_name(&mut object, "given", path.as_os_str().as_bytes());
    output::put_name(&mut object, "inside", at.path.as_os_str().as_bytes());
    let rest = json!({
        "ino": at.ino.0,
        "subtree": subtree::fields(subtree, load.as_ref()),
        "address": rank.address,
        "state": state(rank),
        "map_epoch": map_epoch.0,
        "since_ns": why.since,
        "why": why.text,
    });
    if let Value::Object(rest) = rest {
        object.extend(rest);
    }
    output::object(object)
}

fn since(subtree: &mon::Subtree, why: &Why) -> String {
    match (why.since, subtree.since) {
        (Some(at), _) => output::time_text(at),
        // Splits and restarts of the rank begin a new epoch of it as well.
        (None, 0) => "not known".to_owned(),
        (None, since) => format!("map epoch {since} or before"),
    }
}

fn text(path: &Path, explained: &Explained) -> Result<(), Failure> {
    let Explained { at, subtree, rank, load, map_epoch, why } = explained;
    let shown = |path: &Path| output::shown(path.as_os_str().as_bytes());
    let inside = match at.path.as_os_str().is_empty() {
        true => "its root".to_owned(),
        false => format!("in it at {}", shown(&at.path)),
    };
    let hint = output::shown(&subtree.path_hint);
    let mut rows = vec![
        ("path", format!("{}, ino {}", shown(path), at.ino)),
        ("subtree", format!("{} ({hint}), {inside}", SubtreeId(subtree.id))),
        ("owner", format!("{} at {}, {}", Rank(subtree.owner), rank.address, state(rank))),
        ("epoch", format!("{}, route {}, in map epoch {map_epoch}", subtree.epoch, subtree.route)),
        ("since", since(subtree, why)),
        ("why", why.text.clone()),
    ];
    if subtree.parent != 0 {
        rows.push(("parent", SubtreeId(subtree.parent).to_string()));
    }
    if let Some(pin) = subtree.pin {
        rows.push(("pin", format!("to {}", Rank(pin))));
    }
    if subtree.spread {
        rows.push(("spread", "its child directories are dealt over the ranks".to_owned()));
    }
    if let Some(to) = subtree::moving_to(subtree) {
        rows.push(("moving", format!("to {}, move {}", Rank(to), subtree.move_id)));
    }
    if let Some(load) = load {
        let busy = output::share_text(load.busy_permille);
        rows.push(("load", format!("{:.0} operations/s, {busy} of its rank's time", load.ops_per_s)));
    }
    rows.iter().try_for_each(|(word, value)| output::line(format!("{word:<8} {value}")))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(since(&failed, &found), "map epoch 41 or before");
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
}
