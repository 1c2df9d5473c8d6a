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
    let at = client.locate(path).await?;
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

/// As far as pins, the map and the balancer's log (newest first) tell.
fn why(subtree: &mon::Subtree, decisions: &[mon::Decision]) -> Why {
    let owner = Rank(subtree.owner);
    let moved = |decision: &mon::Decision| {
        let to_owner = |planned: &&mon::PlannedMove| planned.subtree == subtree.id && planned.to == subtree.owner;
        let planned = decision.moves.iter().find(to_owner)?;
        let text = format!("the balancer moved it here from {}: {}", Rank(planned.from), planned.reason);
        Some(Why { since: Some(decision.at), text })
    };
    let split = |decision: &mon::Decision| {
        let it = |split: &&mon::SplitRequest| (split.subtree, split.dir) == (subtree.split_from, subtree.root_ino);
        let found = decision.splits.iter().find(it)?;
        let text = format!("the balancer had it split off from {}: {}", SubtreeId(found.subtree), decision.reason);
        Some(Why { since: Some(decision.at), text })
    };
    // A move that was decided for another owner has been overtaken by what came after.
    if let Some(why) = decisions.iter().find_map(moved) {
        return why;
    }
    if subtree.last_move == 0
        && let Some(why) = decisions.iter().find_map(split)
    {
        return why;
    }
    let text = match subtree {
        mon::Subtree { pin: Some(pin), .. } if *pin == subtree.owner => format!("it is pinned to {owner}"),
        mon::Subtree { last_move: 0, split_from: 0, .. } => {
            "nobody moved it: it was given to the first rank there was, or to this one when another failed".to_owned()
        }
        mon::Subtree { last_move: 0, split_from, .. } => format!(
            "it was split off from {} and never moved: it stays with that one's rank until that fails",
            SubtreeId(*split_from)
        ),
        mon::Subtree { last_move, .. } => {
            format!(
                "it was last moved by hand or for a drain, from map epoch {last_move} on; a failure may have followed"
            )
        }
    };
    Why { since: None, text }
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
        ("since", why.since.map_or_else(|| "not in the balancer's log".to_owned(), output::time_text)),
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

    fn decision(at: i64, subtree: u64, to: u32) -> mon::Decision {
        let planned = mon::PlannedMove { subtree, from: 0, to, reason: "mds.0 is saturated".to_owned() };
        mon::Decision { at, moves: vec![planned], ..mon::Decision::default() }
    }

    #[test]
    fn the_newest_decision_for_the_owner_says_why() {
        let subtree = mon::Subtree { id: 7, owner: 2, last_move: 40, ..mon::Subtree::default() };
        let decisions = [decision(9, 8, 2), decision(8, 7, 2), decision(7, 7, 2), decision(6, 7, 1)];
        let found = why(&subtree, &decisions);
        assert_eq!((found.since, found.text.contains("mds.0 is saturated")), (Some(8), true));
    }

    #[test]
    fn without_a_decision_the_map_says_what_it_knows() {
        let text = |subtree: &mon::Subtree| why(subtree, &[decision(1, 9, 9)]).text;
        let subtree = mon::Subtree { id: 7, owner: 2, split_from: 3, root_ino: 55, ..mon::Subtree::default() };
        assert!(text(&subtree).contains("split off from subtree.3"));
        let split = mon::SplitRequest { subtree: 3, dir: 55 };
        let decided = mon::Decision { at: 5, splits: vec![split], reason: "hot".into(), ..mon::Decision::default() };
        assert_eq!(why(&subtree, &[decided]).since, Some(5));
        assert!(text(&mon::Subtree { pin: Some(2), ..subtree.clone() }).contains("pinned to mds.2"));
        assert!(text(&mon::Subtree { last_move: 40, ..subtree }).contains("map epoch 40"));
    }
}
