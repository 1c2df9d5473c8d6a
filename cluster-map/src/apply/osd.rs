//! OSDs come, go and come back.

use pando_proto::OsdId;

use super::{Applied, CHANGED, MAX_TEXT, UNCHANGED, check_address, check_text, check_token, pg};
use crate::command::{CommandError, CommandValue, DaemonState, RegisterOsd, RemoveDaemon};
use crate::map::{ClusterMap, Osd};
use crate::placement;

const MAX_OSDS: usize = 4096;
const USUAL_WEIGHT: u32 = 1000;
const MAX_WEIGHT: u32 = 1_000_000;

pub(super) fn register(map: &mut ClusterMap, command: &RegisterOsd) -> Applied {
    let Ok(uuid) = <[u8; 16]>::try_from(command.uuid.as_slice()) else {
        return Err(CommandError::Invalid("the OSD's uuid has to have 16 bytes".to_owned()));
    };
    check_token("boot id", &command.boot_id)?;
    check_address(&command.address)?;
    check_text("host", &command.host, MAX_TEXT)?;
    if command.weight > MAX_WEIGHT {
        return Err(CommandError::Invalid(format!("the weight is above {MAX_WEIGHT}")));
    }
    let known = map.osds.iter().find(|(_, osd)| osd.uuid == uuid).map(|(id, osd)| (*id, osd.clone()));
    let Some((id, before)) = known else { return register_new(map, uuid, command) };
    let restarted = before.boot_id != command.boot_id;
    let osd = describe(before.clone(), command, before.incarnation + u64::from(restarted));
    let value = CommandValue::Osd(id, osd.incarnation);
    if osd == before {
        return Ok((false, value));
    }
    let returned = !before.up;
    map.osds.insert(id, osd);
    if restarted {
        // R25: a restarted member must not go on in the same configuration.
        pg::restarted(map, id);
    }
    if returned || restarted {
        pg::returned(map, id);
    }
    Ok((true, value))
}

fn register_new(map: &mut ClusterMap, uuid: [u8; 16], command: &RegisterOsd) -> Applied {
    if map.osds.len() >= MAX_OSDS {
        return Err(CommandError::TooMany("4096 OSDs"));
    }
    let id = OsdId(map.next_osd_id);
    map.next_osd_id += 1;
    map.osds.insert(id, describe(Osd { uuid, ..Osd::default() }, command, 1));
    pg::returned(map, id);
    Ok((true, CommandValue::Osd(id, 1)))
}

fn describe(osd: Osd, command: &RegisterOsd, incarnation: u64) -> Osd {
    let weight = if command.weight == 0 { USUAL_WEIGHT } else { command.weight };
    Osd {
        address: command.address.clone(),
        host: command.host.clone(),
        weight,
        up: true,
        incarnation,
        boot_id: command.boot_id.clone(),
        total_bytes: command.total_bytes,
        ..osd
    }
}

/// The OSD of this very process.
fn find(map: &mut ClusterMap, command: DaemonState) -> Result<(OsdId, &mut Osd), CommandError> {
    let id = OsdId(command.id);
    let osd = map.osds.get_mut(&id).ok_or_else(|| CommandError::Unknown(id.to_string()))?;
    if osd.incarnation != command.incarnation {
        let what = format!("the incarnation of {id}");
        return Err(CommandError::Stale { what, have: osd.incarnation, given: command.incarnation });
    }
    Ok((id, osd))
}

pub(super) fn down(map: &mut ClusterMap, command: DaemonState) -> Applied {
    let (id, osd) = find(map, command)?;
    if !osd.up {
        return Ok(UNCHANGED);
    }
    osd.up = false;
    pg::went_down(map, id);
    Ok(CHANGED)
}

pub(super) fn up(map: &mut ClusterMap, command: DaemonState) -> Applied {
    let (id, osd) = find(map, command)?;
    if osd.up {
        return Ok(UNCHANGED);
    }
    osd.up = true;
    pg::returned(map, id);
    Ok(CHANGED)
}

pub(super) fn out(map: &mut ClusterMap, command: DaemonState) -> Applied {
    let (id, osd) = find(map, command)?;
    if osd.up {
        return Ok(UNCHANGED);
    }
    Ok((placement::replace_absent(map, id), CommandValue::Done))
}

/// Takes an OSD off the map. Its id is never given out again, so that one that comes back is a new one (R26).
pub(super) fn remove(map: &mut ClusterMap, command: RemoveDaemon) -> Applied {
    let id = OsdId(command.id);
    if id.0 == 0 || id.0 >= map.next_osd_id {
        return Err(CommandError::Unknown(id.to_string()));
    }
    let Some(osd) = map.osds.get(&id) else { return Ok(UNCHANGED) };
    if osd.up {
        let message = format!("{id} (at {}) holds a lease: stop its pando-osd first", osd.address);
        return Err(CommandError::InUse(message));
    }
    let holding = map.pgs_of_osd(id);
    if let Some(first) = holding.first() {
        // R26: a member that is down is the last one.
        let message = format!(
            "{id} is the last member of {} placement groups (PG {first} is one): what they hold would be lost; start it",
            holding.len()
        );
        return Err(CommandError::InUse(message));
    }
    pg::forgotten(map, id);
    map.osds.remove(&id);
    placement::fill(map);
    Ok(CHANGED)
}
