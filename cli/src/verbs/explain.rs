//! `pando subtree explain`. JSON: `given`, `ino`, `inside` (the way from the subtree's root), `subtree` (as in
//! `subtree ls`), `address` and `state` (`up`, `down`) of the owner, `map_epoch`, `since_ns` (of the decision that
//! brought it there, else null), `why`.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use pando_client::{Client, Location};
use pando_proto::mon::{self, RankState};
use pando_proto::{Epoch, Rank, SubtreeId};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::output;
use crate::session::{Session, finish};
use crate::verbs::subtree;

/// All there is to say.
struct Explained {
    at: Location,
    subtree: mon::Subtree,
    rank: mon::Rank,
    load: Option<mon::SubtreeLoad>,
    map_epoch: Epoch,
    /// Of the decision that brought it there, in nanoseconds since 1970.
    since: Option<i64>,
    why: String,
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
    let told = session.admin()?.explain_subtree(at.subtree).await.map_err(|error| Failure::from(error).at(path))?;
    let (subtree, rank) = (told.subtree.unwrap_or_default(), told.rank.unwrap_or_default());
    let (since, map_epoch) = (Some(told.since).filter(|since| *since != 0), Epoch(told.map_epoch));
    Ok(Explained { at, subtree, rank, load: told.load, map_epoch, since, why: told.why })
}

fn state(rank: &mon::Rank) -> &'static str {
    if rank.state() == RankState::Up { "up" } else { "down" }
}

fn json_line(path: &Path, explained: &Explained) -> Result<(), Failure> {
    let Explained { at, subtree, rank, load, map_epoch, since, why } = explained;
    let mut object = Map::new();
    output::put_name(&mut object, "given", path.as_os_str().as_bytes());
    output::put_name(&mut object, "inside", at.path.as_os_str().as_bytes());
    let rest = json!({
        "ino": at.ino.0,
        "subtree": subtree::fields(subtree, load.as_ref()),
        "address": rank.address,
        "state": state(rank),
        "map_epoch": map_epoch.0,
        "since_ns": since,
        "why": why,
    });
    if let Value::Object(rest) = rest {
        object.extend(rest);
    }
    output::object(object)
}

fn since_text(subtree: &mon::Subtree, since: Option<i64>) -> String {
    match (since, subtree.since) {
        (Some(at), _) => output::time_text(at),
        // Splits and restarts of the rank begin a new epoch of it as well.
        (None, 0) => "not known".to_owned(),
        (None, since) => format!("map epoch {since} or before"),
    }
}

fn text(path: &Path, explained: &Explained) -> Result<(), Failure> {
    let Explained { at, subtree, rank, load, map_epoch, since, why } = explained;
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
        ("since", since_text(subtree, *since)),
        ("why", why.clone()),
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
