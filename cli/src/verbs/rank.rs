//! `pando rank ls`. JSON: `rank`, `state` (`up`, `down`), `draining`, `address`, `incarnation`, `subtrees` (how many it
//! owns), `ops_per_s`, `busy_permille`, `load_age_ms` (null if it has not told).
//! `pando rank rm|drain|undrain`. JSON: `rank`, `map_epoch`.

use std::collections::BTreeMap;

use pando_proto::mon::{self, RankState};
use pando_proto::{Epoch, Error, Rank, Reason};
use serde_json::{Value, json};

use crate::args::{RankArgs, RankCommand};
use crate::failure::Failure;
use crate::output;
use crate::session::Session;
use crate::verbs::subtree;

pub async fn run(session: &Session, command: RankCommand) -> Result<(), Failure> {
    let (rank, epoch) = match command {
        RankCommand::Ls => return ls(session).await,
        RankCommand::Rm(RankArgs { rank }) => (rank, remove(session, Rank(rank)).await?),
        RankCommand::Drain(RankArgs { rank }) => (rank, drain(session, rank, true).await?),
        RankCommand::Undrain(RankArgs { rank }) => (rank, drain(session, rank, false).await?),
    };
    if session.json { output::line(json!({"rank": rank, "map_epoch": epoch.0}).to_string()) } else { Ok(()) }
}

/// The call itself is idempotent: who types the wrong number should hear of it.
async fn remove(session: &Session, rank: Rank) -> Result<Epoch, Failure> {
    let admin = session.admin()?;
    if !admin.list_ranks().await?.iter().any(|known| known.rank == rank.0) {
        return Err(Error::new(Reason::UnknownId, format!("there is no {rank}")).into());
    }
    Ok(admin.remove_rank(rank).await?)
}

async fn drain(session: &Session, rank: u32, draining: bool) -> Result<Epoch, Failure> {
    let admin = session.admin()?;
    let before = admin.list_ranks().await?;
    let epoch = admin.drain_rank(Rank(rank), draining).await?;
    let (ranks, subtrees) = (admin.list_ranks().await?, admin.list_subtrees().await?);
    let warning = match draining {
        true => nowhere_to_go(&ranks, &subtrees),
        false => before
            .iter()
            .any(|known| known.rank == rank && !known.draining)
            .then(|| format!("{} was not being drained: nothing has changed", Rank(rank))),
    };
    if let Some(warning) = warning {
        eprintln!("pando: warning: {warning}");
    }
    Ok(epoch)
}

/// Why ranks that are drained keep their subtrees.
fn nowhere_to_go(ranks: &[mon::Rank], subtrees: &[mon::Subtree]) -> Option<String> {
    if ranks.iter().any(|rank| rank.state() == RankState::Up && !rank.draining) {
        return None;
    }
    let owns = |rank: &&mon::Rank| rank.draining && subtrees.iter().any(|subtree| subtree.owner == rank.rank);
    let stuck: Vec<_> = ranks.iter().filter(owns).map(|rank| Rank(rank.rank).to_string()).collect();
    let text = format!(
        "the subtrees of {} stay where they are: no rank is up that may take them; start another pando-mds, or \
         `pando rank undrain` one",
        stuck.join(" and ")
    );
    Some(text).filter(|_| !stuck.is_empty())
}

async fn ls(session: &Session) -> Result<(), Failure> {
    let admin = session.admin()?;
    let ranks = admin.list_ranks().await?;
    let mut owned: BTreeMap<u32, u64> = BTreeMap::new();
    for subtree in admin.list_subtrees().await? {
        *owned.entry(subtree.owner).or_default() += 1;
    }
    let loads = subtree::loads(session).await?;
    let mut rows = Vec::new();
    for rank in ranks {
        let subtrees = owned.get(&rank.rank).copied().unwrap_or_default();
        let told = loads.iter().find(|of| of.rank == rank.rank && of.load.is_some());
        if session.json {
            output::line(fields(&rank, subtrees, told).to_string())?;
        } else {
            rows.push(row(rank, subtrees, told));
        }
    }
    let head = ["RANK", "STATE", "SUBTREES", "OPS/S", "BUSY", "INCARNATION", "ADDRESS"];
    if session.json { Ok(()) } else { output::table(&head, &rows) }
}

fn state(rank: &mon::Rank) -> &'static str {
    if rank.state() == RankState::Up { "up" } else { "down" }
}

fn fields(rank: &mon::Rank, subtrees: u64, told: Option<&mon::RankLoadOf>) -> Value {
    let load = told.and_then(|of| of.load.as_ref());
    json!({
        "rank": rank.rank,
        "state": state(rank),
        "draining": rank.draining,
        "address": rank.address,
        "incarnation": rank.incarnation,
        "subtrees": subtrees,
        "ops_per_s": load.map(|load| load.ops_per_s),
        "busy_permille": load.map(|load| load.busy_permille),
        "load_age_ms": told.map(|of| of.age_millis),
    })
}

fn row(rank: mon::Rank, subtrees: u64, told: Option<&mon::RankLoadOf>) -> Vec<String> {
    let load = told.and_then(|of| of.load.as_ref());
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let draining = if rank.draining { ", draining" } else { "" };
    vec![
        Rank(rank.rank).to_string(),
        format!("{}{draining}", state(&rank)),
        subtrees.to_string(),
        or_dash(load.map(|load| format!("{:.0}", load.ops_per_s))),
        or_dash(load.map(|load| output::share_text(load.busy_permille))),
        rank.incarnation.to_string(),
        rank.address,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_whose_subtrees_nobody_can_take_is_told_of() {
        let rank = |rank, up: bool, draining| {
            let state = if up { RankState::Up } else { RankState::Down };
            mon::Rank { rank, state: state.into(), draining, ..mon::Rank::default() }
        };
        let subtrees = [mon::Subtree { id: 1, owner: 0, ..mon::Subtree::default() }];
        let told = |others: &[mon::Rank]| nowhere_to_go(&[&[rank(0, true, true)], others].concat(), &subtrees);
        assert!(told(&[]).unwrap().contains("the subtrees of mds.0 stay"));
        assert!(told(&[rank(1, false, false), rank(2, true, true)]).unwrap().contains("of mds.0 stay"));
        assert_eq!(told(&[rank(1, false, false), rank(2, true, false)]), None);
        assert_eq!(nowhere_to_go(&[rank(1, true, true)], &subtrees), None, "it has none");
    }
}
