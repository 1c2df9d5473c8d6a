//! Configurations of PGs (R25, R26).

use pando_proto::ids::METADATA_POOL;
use pando_proto::{OsdId, PgId, PoolId};

use super::{Applied, CHANGED, UNCHANGED};
use crate::command::{CommandError, ConfirmMember};
use crate::map::{ClusterMap, Osd, Pg};
use crate::placement;

fn is_up(osds: &std::collections::BTreeMap<OsdId, Osd>, id: OsdId) -> bool {
    osds.get(&id).is_some_and(|osd| osd.up)
}

/// A new process of an OSD: nothing that was under way with the old one may count. For a joiner too: a
/// confirmation of what its old process held may be on its way.
pub(super) fn restarted(map: &mut ClusterMap, osd: OsdId) {
    for pg in map.pgs.values_mut() {
        if pg.members.contains(&osd) || pg.joining.contains(&osd) {
            pg.config += 1;
        }
    }
}

/// An OSD is up: it takes the places kept for it and, if there are such, others.
pub(super) fn returned(map: &mut ClusterMap, osd: OsdId) {
    for pg in map.pgs.values_mut() {
        if let Some(at) = pg.absent.iter().position(|absent| *absent == osd) {
            pg.absent.remove(at);
            pg.joining.push(osd);
        }
    }
    placement::place_first(map);
    placement::fill(map);
    placement::rebalance(map);
}

/// An OSD is down: where another member lives it leaves the configuration, and its place is kept. The last
/// member stays: only it is known to hold everything (R26).
pub(super) fn went_down(map: &mut ClusterMap, osd: OsdId) {
    let osds = &map.osds;
    for pg in map.pgs.values_mut() {
        if let Some(at) = pg.joining.iter().position(|joiner| *joiner == osd) {
            pg.joining.remove(at);
            // A confirmation that is on its way must not count after the joiner's return.
            pg.config += 1;
            // Who replaces a member stands first, for only a PG at rest is moved: then the move is given up, and there
            // is no place that could be kept.
            if at < pg.leaving.len() {
                pg.leaving.remove(at);
            } else {
                pg.absent.push(osd);
            }
        }
        if pg.members.contains(&osd) {
            drop_dead(pg, |id| is_up(osds, id));
        }
    }
}

/// Removes members that are down, if one lives.
fn drop_dead(pg: &mut Pg, is_up: impl Fn(OsdId) -> bool) {
    if !pg.members.iter().any(|osd| is_up(*osd)) {
        return;
    }
    let dead: Vec<OsdId> = pg.members.iter().copied().filter(|osd| !is_up(*osd)).collect();
    for osd in dead {
        pg.members.retain(|member| *member != osd);
        match pg.leaving.iter().position(|leaving| *leaving == osd) {
            Some(at) => drop(pg.leaving.remove(at)),
            None => pg.absent.push(osd),
        }
        pg.config += 1;
    }
}

/// An OSD will not come back: the places kept for it are free.
pub(super) fn forgotten(map: &mut ClusterMap, osd: OsdId) {
    for pg in map.pgs.values_mut().filter(|pg| pg.absent.contains(&osd)) {
        pg.absent.retain(|absent| *absent != osd);
        // Who was to leave stays if nobody is left to take the place.
        pg.leaving.truncate(pg.joining.len() + pg.absent.len());
    }
}

/// Commands name the configuration on which they build.
fn check_config(id: PgId, pg: &Pg, given: u64) -> Result<(), CommandError> {
    if pg.config == given {
        return Ok(());
    }
    Err(CommandError::Stale { what: format!("the configuration of PG {id}"), have: pg.config, given })
}

pub(super) fn confirm_member(map: &mut ClusterMap, command: ConfirmMember) -> Applied {
    let id = PgId { pool: PoolId(command.pool), index: command.index };
    let osd = OsdId(command.osd_id);
    let osds = &map.osds;
    let size = map.pools.get(&id.pool).map_or(usize::MAX, |pool| pool.size as usize);
    let pg = map.pgs.get_mut(&id).ok_or_else(|| CommandError::Unknown(format!("PG {id}")))?;
    // The answer to the first of two equal calls may have got lost.
    if pg.members.contains(&osd) && pg.config == command.config + 1 {
        return Ok(UNCHANGED);
    }
    check_config(id, pg, command.config)?;
    let Some(at) = pg.joining.iter().position(|joiner| *joiner == osd) else {
        return Err(CommandError::Invalid(format!("{osd} is not joining PG {id}")));
    };
    pg.joining.remove(at);
    pg.members.push(osd);
    // Not before all places are taken: this joiner may be another than the one that replaces it.
    if pg.members.len() > size
        && let Some(leaving) = pg.leaving.pop()
    {
        pg.members.retain(|member| *member != leaving);
    }
    // Who was to leave stays if nobody is left to take the place.
    pg.leaving.truncate(pg.joining.len() + pg.absent.len());
    pg.config += 1;
    drop_dead(pg, |id| is_up(osds, id));
    Ok(CHANGED)
}

/// A member that lacks something, or is about to be overwritten, leaves the configuration and joins anew: it must not
/// become primary. The last member stays (R26).
pub(super) fn demote_member(map: &mut ClusterMap, command: ConfirmMember) -> Applied {
    let id = PgId { pool: PoolId(command.pool), index: command.index };
    let osd = OsdId(command.osd_id);
    let osds = &map.osds;
    let pg = map.pgs.get_mut(&id).ok_or_else(|| CommandError::Unknown(format!("PG {id}")))?;
    // The answer to the first of two equal calls may have got lost.
    if !pg.members.contains(&osd) && pg.config == command.config + 1 {
        return Ok(UNCHANGED);
    }
    check_config(id, pg, command.config)?;
    if !pg.members.contains(&osd) {
        return Err(CommandError::Invalid(format!("{osd} is no member of PG {id}")));
    }
    // Where one lives, all do.
    if pg.members.len() < 2 || !is_up(osds, osd) {
        return Err(CommandError::InUse(format!("PG {id} needs {osd}: no other member of it is up")));
    }
    pg.members.retain(|member| *member != osd);
    match pg.leaving.iter().position(|leaving| *leaving == osd) {
        // Another takes its place.
        Some(at) => drop(pg.leaving.remove(at)),
        None => pg.joining.push(osd),
    }
    pg.config += 1;
    Ok(CHANGED)
}

/// One copy counts from now on, whatever it lacks; all others are brought to its content (R26). Ranks know of records
/// that may be gone by it: every subtree is opened anew.
pub(super) fn override_pg(map: &mut ClusterMap, command: ConfirmMember) -> Applied {
    let id = PgId { pool: PoolId(command.pool), index: command.index };
    let osd = OsdId(command.osd_id);
    let osds = &map.osds;
    let others = map.pools.get(&id.pool).map_or(0, |pool| pool.size as usize).saturating_sub(1);
    let pg = map.pgs.get_mut(&id).ok_or_else(|| CommandError::Unknown(format!("PG {id}")))?;
    // The answer to the first of two equal calls may have got lost.
    if pg.forgiven == command.config + 1 && pg.forgiven == pg.config && pg.members == [osd] {
        return Ok(UNCHANGED);
    }
    check_config(id, pg, command.config)?;
    if !is_up(osds, osd) {
        return Err(CommandError::Invalid(format!("{osd} is down: start it first, or choose another copy of PG {id}")));
    }
    if !pg.members.contains(&osd) && !pg.joining.contains(&osd) {
        return Err(CommandError::Invalid(format!("{osd} holds no copy of PG {id}")));
    }
    let copies = pg.members.iter().chain(&pg.joining).copied().filter(|other| *other != osd);
    let (mut joining, dead): (Vec<_>, Vec<_>) = copies.partition(|other| is_up(osds, *other));
    // Who was to leave had a place beyond the size.
    joining.truncate(others);
    pg.absent.extend(dead);
    pg.absent.truncate(others - joining.len());
    pg.joining = joining;
    pg.members = vec![osd];
    pg.leaving.clear();
    pg.config += 1;
    pg.forgiven = pg.config;
    if id.pool == METADATA_POOL {
        let now = map.next_epoch();
        for subtree in map.subtrees.values_mut() {
            subtree.hand_to(subtree.owner, now);
        }
    }
    placement::fill(map);
    Ok(CHANGED)
}
