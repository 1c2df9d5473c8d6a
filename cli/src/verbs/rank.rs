//! `pando rank ls`. JSON: `rank`, `state` (`up`, `down`), `address`, `incarnation`.
//! `pando rank rm`. JSON: `rank`, `map_epoch`.

use pando_proto::Rank;
use pando_proto::mon::RankState;
use serde_json::json;

use crate::args::RankCommand;
use crate::failure::Failure;
use crate::output;
use crate::session::Session;

pub async fn run(session: &Session, command: RankCommand) -> Result<(), Failure> {
    match command {
        RankCommand::Ls => ls(session).await,
        RankCommand::Rm { rank } => rm(session, rank).await,
    }
}

async fn rm(session: &Session, rank: u32) -> Result<(), Failure> {
    let epoch = session.admin()?.remove_rank(Rank(rank)).await?;
    if session.json { output::line(json!({"rank": rank, "map_epoch": epoch.0}).to_string()) } else { Ok(()) }
}

async fn ls(session: &Session) -> Result<(), Failure> {
    let ranks = session.admin()?.list_ranks().await?;
    let mut rows = Vec::new();
    for rank in ranks {
        let state = if rank.state() == RankState::Up { "up" } else { "down" };
        if session.json {
            let fields = json!({
                "rank": rank.rank,
                "state": state,
                "address": rank.address,
                "incarnation": rank.incarnation,
            });
            output::line(fields.to_string())?;
            continue;
        }
        rows.push(vec![format!("mds.{}", rank.rank), state.to_owned(), rank.incarnation.to_string(), rank.address]);
    }
    if session.json { Ok(()) } else { output::table(&["RANK", "STATE", "INCARNATION", "ADDRESS"], &rows) }
}
