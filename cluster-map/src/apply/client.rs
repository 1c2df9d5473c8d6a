//! Sessions of clients (R9).

use pando_proto::{ClientId, Rank};

use super::{Applied, CHANGED, UNCHANGED, check_token, rank, subtree};
use crate::command::{CommandError, CommandValue, EndSession, RegisterClient};
use crate::map::{ClusterMap, Session, rank_described};

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
    let description = tidy(&command.description);
    let rank = whose(map, command, &description)?;
    let id = ClientId(map.next_client_id);
    map.next_client_id += 1;
    let session = Session { description, since: map.next_epoch(), nonce: command.nonce.clone(), rank };
    map.sessions.insert(id, session);
    Ok((true, CommandValue::Client(id)))
}

/// The rank that asks, if it is one. What a client says of itself does not make it one: ranks are never swept, nobody
/// waits for their handles (R19), and the next process of a rank ends the sessions of those before.
fn whose(map: &mut ClusterMap, command: &RegisterClient, description: &str) -> Result<Option<Rank>, CommandError> {
    if let Some(process) = command.of_rank {
        return rank::find(map, process.id, process.incarnation).map(|(rank, _)| Some(rank));
    }
    match rank_described(description) {
        Some(rank) if command.is_client => Err(CommandError::Invalid(format!(
            "only a rank is called `{rank}`: describe the client otherwise (or, if it is a pando-mds, update it)"
        ))),
        rank => Ok(rank),
    }
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
