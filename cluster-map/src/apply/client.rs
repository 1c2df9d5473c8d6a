//! Sessions of clients (R9).

use pando_proto::{ClientId, Epoch};

use super::{Applied, CHANGED, UNCHANGED, check_token, subtree};
use crate::command::{CommandError, CommandValue, EndSession, RegisterClient};
use crate::map::{ClusterMap, Session};

/// The map travels whole to everyone, so that it has to stay small.
const MAX_SESSIONS: usize = 20_000;
/// Bytes of a description that are kept.
const MAX_DESCRIPTION: usize = 255;

pub(super) fn register(map: &mut ClusterMap, command: &RegisterClient) -> Applied {
    check_token("nonce", &command.nonce)?;
    if let Some((id, _)) = map.sessions.iter().find(|(_, session)| session.nonce == command.nonce) {
        return Ok((false, CommandValue::Client(*id)));
    }
    if map.sessions.len() >= MAX_SESSIONS {
        return Err(CommandError::TooMany("20000 sessions"));
    }
    let id = ClientId(map.next_client_id);
    map.next_client_id += 1;
    let session = Session {
        description: tidy(&command.description),
        since: Epoch(map.epoch.0 + 1),
        nonce: command.nonce.clone(),
    };
    map.sessions.insert(id, session);
    Ok((true, CommandValue::Client(id)))
}

/// The beginning of what a client says of itself, without anything that could disturb a terminal.
fn tidy(description: &str) -> String {
    let mut kept: String = description.chars().filter(|c| !c.is_control()).take(MAX_DESCRIPTION).collect();
    while kept.len() > MAX_DESCRIPTION {
        kept.pop();
    }
    kept
}

pub(super) fn end(map: &mut ClusterMap, command: EndSession) -> Applied {
    let id = ClientId(command.client_id);
    if id.0 == 0 || id.0 >= map.next_client_id {
        return Err(CommandError::Unknown(id.to_string()));
    }
    if map.sessions.remove(&id).is_none() {
        return Ok(UNCHANGED);
    }
    subtree::trim_lineage(map);
    Ok(CHANGED)
}
