//! `pando session`. JSON: `ls`: `id`, `description`, `since_epoch` (of the map in which it began), `of_rank`, `awaited_by`
//! (ranks that took subtrees over and wait to be told what it has open there); `evict`: `id`, `map_epoch`.

use pando_proto::mon::SessionInfo;
use pando_proto::{ClientId, Rank};
use serde_json::json;

use crate::args::SessionCommand;
use crate::failure::Failure;
use crate::output;
use crate::session::Session;

pub async fn run(session: &Session, command: SessionCommand) -> Result<(), Failure> {
    match command {
        SessionCommand::Ls => ls(session).await,
        SessionCommand::Evict { session: id } => {
            let epoch = session.admin()?.evict_session(ClientId(id)).await?;
            if session.json { output::line(json!({"id": id, "map_epoch": epoch.0}).to_string()) } else { Ok(()) }
        }
    }
}

async fn ls(session: &Session) -> Result<(), Failure> {
    let sessions = session.admin()?.list_sessions().await?;
    if session.json {
        return sessions.iter().try_for_each(|one| {
            let fields = json!({
                "id": one.client_id,
                "description": one.description,
                "since_epoch": one.since_epoch,
                "of_rank": one.of_rank,
                "awaited_by": one.awaited_by,
            });
            output::line(fields.to_string())
        });
    }
    output::table(&["SESSION", "SINCE", "AWAITED BY", "CLIENT"], &sessions.iter().map(row).collect::<Vec<_>>())
}

fn row(one: &SessionInfo) -> Vec<String> {
    let ranks: Vec<_> = one.awaited_by.iter().map(|rank| Rank(*rank).to_string()).collect();
    vec![
        ClientId(one.client_id).to_string(),
        format!("map {}", one.since_epoch),
        if ranks.is_empty() { "-".to_owned() } else { ranks.join(",") },
        output::shown(one.description.as_bytes()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_shown_with_those_who_wait_for_it() {
        let one = SessionInfo {
            client_id: 7,
            description: "tool, pid 3".into(),
            since_epoch: 12,
            awaited_by: vec![0, 2],
            ..SessionInfo::default()
        };
        assert_eq!(row(&one), ["client.7", "map 12", "mds.0,mds.2", "tool, pid 3"]);
        assert_eq!(row(&SessionInfo { awaited_by: vec![], ..one })[2], "-");
    }
}
