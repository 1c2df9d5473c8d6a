//! `pando subtree`. JSON:
//! `ls`: `id`, `path` (a hint), `root_ino`, `parent` (0 for none), `owner` (a rank), `epoch`, `route`, `pin` (a rank or
//! null), `spread`, `moving_to` (a rank or null), `move_id`, `ops_per_s`, `busy_permille`, `cached_inodes` (null if the
//! owner has not told);
//! `split`, `merge`, `pin`, `unpin`, `spread`: `subtree`, `map_epoch`; `move`: also `rank` and `move_id` (0: it was there).

use std::collections::BTreeMap;

use pando_cluster_map::settings;
use pando_mon_client::AdminClient;
use pando_proto::{Epoch, Error, Rank, Reason, SubtreeId, mon};
use serde_json::{Map, Value, json};

use crate::args::{SubtreeArgs, SubtreeCommand};
use crate::failure::Failure;
use crate::output;
use crate::session::Session;
use crate::subtrees;
use crate::verbs::explain;

pub async fn run(session: &Session, command: SubtreeCommand) -> Result<(), Failure> {
    match command {
        SubtreeCommand::Ls => ls(session).await,
        SubtreeCommand::Split { path } => {
            let (subtree, epoch) = subtrees::split(session, &path).await?;
            if session.json { done(session, subtree, epoch) } else { output::line(subtree.to_string()) }
        }
        SubtreeCommand::Merge(SubtreeArgs { subtree }) => {
            let subtree = subtrees::resolve(session, &subtree).await?;
            let epoch = subtrees::merge(session, subtree).await?;
            done(session, subtree, epoch)
        }
        SubtreeCommand::Move { subtree, to, no_wait } => {
            let subtree = subtrees::resolve(session, &subtree.subtree).await?;
            move_to(session, subtree, Rank(to.rank), !no_wait).await
        }
        SubtreeCommand::Pin { subtree, to } => pin(session, subtree, Some(Rank(to.rank))).await,
        SubtreeCommand::Unpin(subtree) => pin(session, subtree, None).await,
        SubtreeCommand::Spread { subtree, off } => {
            let subtree = subtrees::resolve(session, &subtree.subtree).await?;
            spread(session, subtree, !off).await
        }
        SubtreeCommand::Explain { place } => explain::run(session, &place).await,
    }
}

async fn move_to(session: &Session, subtree: SubtreeId, rank: Rank, wait: bool) -> Result<(), Failure> {
    let (move_id, epoch) = session.admin()?.move_subtree(subtree, rank, wait).await?;
    if !session.json {
        return Ok(());
    }
    let fields = json!({"subtree": subtree.0, "rank": rank.0, "move_id": move_id, "map_epoch": epoch.0});
    output::line(fields.to_string())
}

async fn pin(session: &Session, subtree: SubtreeArgs, rank: Option<Rank>) -> Result<(), Failure> {
    let subtree = subtrees::resolve(session, &subtree.subtree).await?;
    let admin = session.admin()?;
    let before = admin.list_subtrees().await?;
    let epoch = admin.pin_subtree(subtree, rank).await?;
    let Some(rank) = rank else {
        if let Some(why) = unpinned_in_vain(&before, subtree) {
            warn(&why);
        }
        return done(session, subtree, epoch);
    };
    let known = admin.list_ranks().await?.into_iter().find(|known| known.rank == rank.0);
    let state = match known {
        Some(known) if known.state() != mon::RankState::Up => Some("down: it goes there when that is up again"),
        Some(known) if known.draining => Some("being drained: it goes there when that has ended"),
        _ => None,
    };
    if let Some(state) = state {
        warn(&format!("{subtree} is pinned, but {rank} is {state}"));
    } else if is_off(&admin).await? {
        warn(&format!("{subtree} is pinned, but {OFF} when that has ended: `pando balancer manual` or `auto`"));
    }
    done(session, subtree, epoch)
}

async fn spread(session: &Session, subtree: SubtreeId, spread: bool) -> Result<(), Failure> {
    let admin = session.admin()?;
    let before = admin.list_subtrees().await?;
    let epoch = admin.spread_subtree(subtree, spread).await?;
    let was = before.iter().any(|known| known.id == subtree.0 && known.spread);
    if !spread && !was {
        warn(&format!("{subtree} was not spread: nothing has changed"));
    } else if spread && is_off(&admin).await? {
        warn(&format!("{subtree} is to be spread, but {OFF} when that has ended: `pando balancer manual` or `auto`"));
    }
    done(session, subtree, epoch)
}

/// Why taking a pin away changes nothing; `None` where there is one.
fn unpinned_in_vain(subtrees: &[mon::Subtree], id: SubtreeId) -> Option<String> {
    let find = |id: u64| subtrees.iter().find(|subtree| subtree.id == id);
    let subtree = find(id.0).filter(|subtree| subtree.pin.is_none())?;
    if subtree.spread {
        return Some(format!(
            "{id} was not pinned, and is spread as before: `pando subtree spread {id} --off` ends that"
        ));
    }
    let mut above = find(subtree.parent);
    // As many as there are: what a mon says need be no tree.
    for _ in 0..subtrees.len() {
        let Some(at) = above else { break };
        if let Some(pin) = at.pin {
            let (at, rank) = (SubtreeId(at.id), Rank(pin));
            return Some(format!(
                "{id} was not pinned itself, but {at} above it is, to {rank}: it stays there with it"
            ));
        }
        if at.spread {
            let at = SubtreeId(at.id);
            return Some(format!(
                "{id} was not pinned, but {at} above it is spread as before: `pando subtree spread {at} --off` ends that"
            ));
        }
        above = find(at.parent);
    }
    Some(format!("{id} was not pinned: nothing has changed"))
}

/// What pins and spreads wait for.
const OFF: &str = "the balancer is off: it is done";

async fn is_off(admin: &AdminClient) -> Result<bool, Failure> {
    Ok(admin.get_setting(settings::BALANCER_MODE).await? == settings::BALANCER_OFF.to_string())
}

fn warn(text: &str) {
    eprintln!("pando: warning: {text}");
}

fn done(session: &Session, subtree: SubtreeId, epoch: Epoch) -> Result<(), Failure> {
    if !session.json {
        return Ok(());
    }
    output::line(json!({"subtree": subtree.0, "map_epoch": epoch.0}).to_string())
}

/// What the ranks said last; nothing from a mon that is too old to be asked.
pub async fn loads(session: &Session) -> Result<Vec<mon::RankLoadOf>, Failure> {
    match session.admin()?.list_loads().await {
        Ok(loads) => Ok(loads),
        Err(Error { reason: Reason::InvalidRequest, .. }) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// The load of subtrees as their owners told it.
pub fn by_subtree(subtrees: &[mon::Subtree], loads: &[mon::RankLoadOf]) -> BTreeMap<u64, mon::SubtreeLoad> {
    let owners: BTreeMap<u64, u32> = subtrees.iter().map(|subtree| (subtree.id, subtree.owner)).collect();
    let told = loads.iter().filter_map(|of| of.load.as_ref().map(|load| (of.rank, load)));
    let each = told.flat_map(|(rank, load)| load.subtrees.iter().map(move |subtree| (rank, subtree)));
    // A former owner's last word does not count.
    each.filter(|(rank, load)| owners.get(&load.subtree) == Some(rank))
        .map(|(_, load)| (load.subtree, load.clone()))
        .collect()
}

async fn ls(session: &Session) -> Result<(), Failure> {
    let subtrees = session.admin()?.list_subtrees().await?;
    let loads = by_subtree(&subtrees, &loads(session).await?);
    let mut rows = Vec::new();
    for (depth, subtree) in as_tree(&subtrees) {
        let load = loads.get(&subtree.id);
        if session.json {
            output::object(fields(subtree, load))?;
        } else {
            rows.push(row(depth, subtree, load));
        }
    }
    let head = ["SUBTREE", "OWNER", "EPOCH", "OPS/S", "BUSY", "PIN", "MOVING", "PATH"];
    if session.json { Ok(()) } else { output::table(&head, &rows) }
}

/// Each below its parent, siblings by path.
fn as_tree(subtrees: &[mon::Subtree]) -> Vec<(usize, &mon::Subtree)> {
    let mut children: BTreeMap<u64, Vec<&mon::Subtree>> = BTreeMap::new();
    let known = |id: u64| subtrees.iter().any(|subtree| subtree.id == id);
    for subtree in subtrees {
        let parent = if known(subtree.parent) { subtree.parent } else { 0 };
        children.entry(parent).or_default().push(subtree);
    }
    // Last first: it is a stack.
    children.values_mut().for_each(|all| all.sort_by(|a, b| b.path_hint.cmp(&a.path_hint)));
    let mut open: Vec<_> = children.remove(&0).unwrap_or_default().into_iter().map(|root| (0, root)).collect();
    let mut found = Vec::with_capacity(subtrees.len());
    while let Some((depth, subtree)) = open.pop() {
        found.push((depth, subtree));
        open.extend(children.remove(&subtree.id).unwrap_or_default().into_iter().map(|child| (depth + 1, child)));
    }
    found
}

pub fn moving_to(subtree: &mon::Subtree) -> Option<u32> {
    (subtree.move_id != 0).then_some(subtree.moving_to)
}

pub fn fields(subtree: &mon::Subtree, load: Option<&mon::SubtreeLoad>) -> Map<String, Value> {
    let mut object = Map::new();
    output::put_name(&mut object, "path", &subtree.path_hint);
    let rest = json!({
        "id": subtree.id,
        "root_ino": subtree.root_ino,
        "parent": subtree.parent,
        "owner": subtree.owner,
        "epoch": subtree.epoch,
        "route": subtree.route,
        "pin": subtree.pin,
        "spread": subtree.spread,
        "moving_to": moving_to(subtree),
        "move_id": subtree.move_id,
        "ops_per_s": load.map(|load| load.ops_per_s),
        "busy_permille": load.map(|load| load.busy_permille),
        "cached_inodes": load.map(|load| load.cached_inodes),
    });
    if let Value::Object(rest) = rest {
        object.extend(rest);
    }
    object
}

fn row(depth: usize, subtree: &mon::Subtree, load: Option<&mon::SubtreeLoad>) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rank = |rank: u32| Rank(rank).to_string();
    let pin = subtree.pin.map(rank).into_iter().chain(subtree.spread.then(|| "spread".to_owned()));
    let pin = pin.collect::<Vec<_>>().join(",");
    vec![
        SubtreeId(subtree.id).to_string(),
        rank(subtree.owner),
        subtree.epoch.to_string(),
        or_dash(load.map(|load| format!("{:.0}", load.ops_per_s))),
        or_dash(load.map(|load| output::share_text(load.busy_permille))),
        or_dash(Some(pin).filter(|pin| !pin.is_empty())),
        or_dash(moving_to(subtree).map(|to| format!("to {}", rank(to)))),
        format!("{}{}", "  ".repeat(depth), output::shown(&subtree.path_hint)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subtree(id: u64, parent: u64, path: &'static str) -> mon::Subtree {
        mon::Subtree { id, parent, path_hint: path.into(), owner: 1, ..mon::Subtree::default() }
    }

    #[test]
    fn subtrees_are_listed_below_their_parents() {
        let all =
            [subtree(4, 3, "/a/b"), subtree(5, 1, "/c"), subtree(3, 1, "/a"), subtree(1, 0, "/"), subtree(9, 8, "/x")];
        let order: Vec<_> = as_tree(&all).iter().map(|(depth, subtree)| (*depth, subtree.id)).collect();
        assert_eq!(order, [(0, 1), (1, 3), (2, 4), (1, 5), (0, 9)], "one whose parent is not listed is not lost");
    }

    #[test]
    fn no_pin_is_taken_away_in_silence_where_there_is_none() {
        let pinned = mon::Subtree { pin: Some(2), ..subtree(3, 1, "/a") };
        let spread = mon::Subtree { spread: true, ..subtree(5, 1, "/c") };
        let all =
            [subtree(1, 0, "/"), pinned, subtree(4, 3, "/a/b"), spread, subtree(6, 5, "/c/d"), subtree(7, 1, "/e")];
        let why = |id| unpinned_in_vain(&all, SubtreeId(id));
        assert_eq!(why(3), None);
        assert!(why(4).unwrap().contains("subtree.3 above it is, to mds.2"));
        assert!(why(5).unwrap().contains("`pando subtree spread subtree.5 --off`"));
        assert!(why(6).unwrap().contains("`pando subtree spread subtree.5 --off`"));
        assert_eq!(why(7).unwrap(), "subtree.7 was not pinned: nothing has changed");
        assert_eq!(why(99), None, "the mons refuse it");
    }

    #[test]
    fn only_the_owner_tells_of_a_subtree() {
        let load = |rank, ops_per_s| mon::RankLoadOf {
            rank,
            load: Some(mon::RankLoad {
                subtrees: vec![mon::SubtreeLoad { subtree: 3, ops_per_s, ..mon::SubtreeLoad::default() }],
                ..mon::RankLoad::default()
            }),
            ..mon::RankLoadOf::default()
        };
        let loads = by_subtree(&[subtree(3, 1, "/a")], &[load(0, 5.0), load(1, 7.0), load(2, 9.0)]);
        assert_eq!(loads.get(&3).map(|load| load.ops_per_s), Some(7.0));
    }
}
