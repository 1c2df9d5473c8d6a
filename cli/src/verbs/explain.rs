//! `pando subtree explain`. A number means the root of that subtree. JSON: `given`, `ino`, `inside` (the way from the
//! subtree's root), `subtree` (as in `subtree ls`), `address` and `state` (`up`, `down`) of the owner, `map_epoch`,
//! `since_ns` (of the decision that brought it there, else null), `why`.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pando_proto::mon::{self, RankState};
use pando_proto::{Epoch, Ino, Rank, SubtreeId};
use serde_json::{Map, Value, json};

use crate::args::SubtreeName;
use crate::failure::Failure;
use crate::output;
use crate::session::{Session, finish};
use crate::verbs::subtree;

/// All there is to say.
struct Explained {
    /// As it was asked for.
    given: PathBuf,
    ino: Ino,
    /// From the root of the subtree.
    inside: PathBuf,
    subtree: mon::Subtree,
    rank: mon::Rank,
    load: Option<mon::SubtreeLoad>,
    map_epoch: Epoch,
    /// Of the decision that brought it there, in nanoseconds since 1970.
    since: Option<i64>,
    why: String,
}

pub async fn run(session: &Session, place: &SubtreeName) -> Result<(), Failure> {
    let explained = match place {
        SubtreeName::Path(path) => at_path(session, path).await?,
        SubtreeName::Id(id) => {
            let id = SubtreeId(*id);
            explain(session, id, id.to_string().into(), None).await?
        }
    };
    if session.json { json_line(&explained) } else { text(&explained) }
}

async fn at_path(session: &Session, path: &Path) -> Result<Explained, Failure> {
    let client = session.client().await?;
    let at = client.locate(path).await.map_err(|error| Failure::from(error).at(path));
    let explained = match at {
        Ok(at) => explain(session, at.subtree, path.into(), Some((at.ino, at.path))).await.map_err(|it| it.at(path)),
        Err(failure) => Err(failure),
    };
    finish(client, Ok(())).await?;
    explained
}

/// `inside` is the inode that is meant and the way to it; `None` for the root.
async fn explain(
    session: &Session,
    subtree: SubtreeId,
    given: PathBuf,
    inside: Option<(Ino, PathBuf)>,
) -> Result<Explained, Failure> {
    let told = session.admin()?.explain_subtree(subtree).await?;
    let (subtree, rank) = (told.subtree.unwrap_or_default(), told.rank.unwrap_or_default());
    let (ino, inside) = inside.unwrap_or_else(|| (Ino(subtree.root_ino), PathBuf::new()));
    let (since, map_epoch) = (Some(told.since).filter(|since| *since != 0), Epoch(told.map_epoch));
    Ok(Explained { given, ino, inside, subtree, rank, load: told.load, map_epoch, since, why: told.why })
}

fn state(rank: &mon::Rank) -> &'static str {
    if rank.state() == RankState::Up { "up" } else { "down" }
}

fn json_line(explained: &Explained) -> Result<(), Failure> {
    let Explained { given, ino, inside, subtree, rank, load, map_epoch, since, why } = explained;
    let mut object = Map::new();
    output::put_name(&mut object, "given", given.as_os_str().as_bytes());
    output::put_name(&mut object, "inside", inside.as_os_str().as_bytes());
    let rest = json!({
        "ino": ino.0,
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

fn text(explained: &Explained) -> Result<(), Failure> {
    let Explained { given, ino, inside, subtree, rank, load, map_epoch, since, why } = explained;
    let shown = |path: &Path| output::shown(path.as_os_str().as_bytes());
    let inside = match inside.as_os_str().is_empty() {
        true => "its root".to_owned(),
        false => format!("in it at {}", shown(inside)),
    };
    let hint = output::shown(&subtree.path_hint);
    let mut rows = vec![
        ("path", format!("{}, ino {ino}", shown(given))),
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
