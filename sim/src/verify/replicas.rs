//! What the members of a placement group hold: all of them the same.

use std::sync::Arc;

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_osd::engine::Engine;
use pando_proto::{OsdId, PgId};

use crate::board::Board;

/// First byte of the first key that is the same on all members.
const REPLICATED: u8 = 1;
const PAGE: usize = 1000;

pub(super) fn engine_of<'a>(board: &'a Board, map: &ClusterMap, osd: OsdId) -> Option<&'a Arc<dyn Engine>> {
    let uuid = map.osds.get(&osd)?.uuid;
    board.engines.get(usize::from(uuid[0]).checked_sub(1)?)
}

/// All records from a key on.
pub(super) fn records(engine: &dyn Engine, pg: PgId, from: &[u8]) -> Result<Vec<(Bytes, Bytes)>, String> {
    let (mut found, mut start) = (Vec::new(), from.to_vec());
    loop {
        let page = engine.scan(pg, &start, &[], PAGE, usize::MAX).map_err(|error| error.to_string())?;
        found.extend(page.records);
        match page.next {
            Some(next) => start = next.to_vec(),
            None => return Ok(found),
        }
    }
}

/// Records, objects and what is in them.
///
/// Errors: the first difference.
pub(super) fn compare(board: &Board, map: &ClusterMap) -> Result<(), String> {
    for (id, pg) in &map.pgs {
        let mut members = pg.members.iter().filter_map(|osd| Some((osd, engine_of(board, map, *osd)?)));
        let Some((first, primary)) = members.next() else { return Err(format!("{id} has no members")) };
        for (other, member) in members {
            let differ = differ(&**primary, &**member, *id)?;
            if let Some(what) = differ {
                return Err(format!("R25: in {id} {first} and {other} differ: {what}"));
            }
        }
    }
    Ok(())
}

fn differ(one: &dyn Engine, other: &dyn Engine, pg: PgId) -> Result<Option<String>, String> {
    let [mine, theirs] = [one, other].map(|engine| records(engine, pg, &[REPLICATED]));
    let (mine, theirs) = (mine?, theirs?);
    if mine != theirs {
        let found = mine.iter().find(|record| !theirs.contains(record));
        let found = found.or_else(|| theirs.iter().find(|record| !mine.contains(record)));
        return Ok(Some(format!("{found:?} of {} and {} records", mine.len(), theirs.len())));
    }
    let failed = |error: pando_osd::engine::EngineError| error.to_string();
    let [mine, theirs] = [one, other].map(|engine| engine.list_objects(pg, None, usize::MAX).map_err(failed));
    let (mine, theirs) = (mine?, theirs?);
    if mine != theirs {
        return Ok(Some(format!("objects {mine:?} and {theirs:?}")));
    }
    for (object, header) in mine {
        let [mine, theirs] = [one, other].map(|engine| engine.read(pg, object, 0, header.size).map_err(failed));
        if mine? != theirs? {
            return Ok(Some(format!("what is in {object:?}")));
        }
    }
    Ok(None)
}
