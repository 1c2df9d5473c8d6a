//! `pando rank ls`. JSON: `rank`, `state` (`up`, `down`), `address`, `incarnation`.

use pando_proto::mon::RankState;
use serde_json::json;

use crate::failure::Failure;
use crate::output;
use crate::session::Session;

pub async fn ls(session: &Session) -> Result<(), Failure> {
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
