//! What has to hold when all is quiet again (I1 to I7): read by a client that knows nothing, and from the OSDs' own
//! records.

mod pool;
mod replicas;

use std::sync::atomic::Ordering;
use std::time::Duration;

use pando_client::Client;
use pando_cluster_map::ClusterMap;

use self::pool::Pool;
use crate::board::{Board, lock};
use crate::history::{self, Verdict};
use crate::mortal;

/// What is cleared away in the background is gone after this long.
const GRACE: Duration = Duration::from_secs(90);
const AGAIN: Duration = Duration::from_secs(1);

/// All checks.
///
/// Errors: the first that failed.
pub(crate) async fn verify(client: &Client, board: &Board) -> Result<(), String> {
    let files = lock(&board.files).clone();
    for (path, want) in files {
        match client.read(&path).await {
            Ok(data) if data == want => {}
            Ok(data) => return Err(format!("I1: a cold client reads {} other bytes in {path}", data.len())),
            Err(error) => return Err(format!("I1: a cold client cannot read: {error}")),
        }
    }
    for (dir, events) in &*lock(&board.histories) {
        match history::check(events) {
            Verdict::Linearizable => {}
            Verdict::Not(why) => return Err(format!("I5: {dir}: {why}")),
            Verdict::Undecided => {
                println!("I5: {dir}: too many orders of {} events to look at", events.len());
                board.undecided.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    until_evicted(client).await?;
    verify_records(client, board).await
}

/// The client that has died is forgotten (R9).
async fn until_evicted(client: &Client) -> Result<(), String> {
    let begun = tokio::time::Instant::now();
    let lives = || client.map().sessions.values().any(|session| session.description == mortal::DESCRIPTION);
    while lives() {
        if begun.elapsed() > GRACE {
            return Err("R9: the session of a client that died was not evicted".to_owned());
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}

/// What the OSDs hold is one tree, and nothing else.
///
/// Errors: the first that is wrong, still after a grace for what is cleared away in the background.
pub(crate) async fn verify_records(client: &Client, board: &Board) -> Result<(), String> {
    let begun = tokio::time::Instant::now();
    loop {
        match look(board, &client.map()) {
            Ok(()) => return Ok(()),
            Err(error) if begun.elapsed() > GRACE => return Err(error),
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Everything at one moment.
fn look(board: &Board, map: &ClusterMap) -> Result<(), String> {
    at_rest(map)?;
    replicas::compare(board, map)?;
    Pool::load(board, map)?.check(map)
}

/// Nothing is under way between subtrees (R12, R18).
fn at_rest(map: &ClusterMap) -> Result<(), String> {
    if let Some((id, known)) = map.transactions.first_key_value() {
        return Err(format!("R18: {id:?} is still known: {known:?}"));
    }
    match map.subtrees.iter().find(|(_, subtree)| subtree.move_id != 0) {
        Some((id, subtree)) => Err(format!("R12: {id} is still moving: {subtree:?}")),
        None => Ok(()),
    }
}
