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
    Ok(session.admin()?.drain_rank(Rank(rank), draining).await?)
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
