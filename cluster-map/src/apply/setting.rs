//! Settings, and where the mons are.

use pando_proto::Epoch;

use super::{Applied, CHANGED, UNCHANGED, check_address};
use crate::command::{CommandError, ForgetLongerLease, SetMon, SetSetting};
use crate::map::{ClusterMap, LongerLease};
use crate::settings;

pub(super) fn set(map: &mut ClusterMap, command: &SetSetting) -> Applied {
    let definition = settings::find(&command.name).ok_or_else(|| {
        let names: Vec<&str> = settings::ALL.iter().map(|definition| definition.name).collect();
        let shown: String = command.name.chars().take(64).collect();
        CommandError::Unknown(format!("setting `{shown}`; there are {}", names.join(", ")))
    })?;
    let value = command.value.trim().parse::<u64>().ok();
    let Some(value) = value.filter(|value| (definition.min..=definition.max).contains(value)) else {
        let (name, min, max) = (definition.name, definition.min, definition.max);
        return Err(CommandError::Invalid(format!("{name} takes a number from {min} to {max}: {}", definition.help)));
    };
    if command.name == settings::LEASE_MILLIS {
        remember_longer_lease(map, value);
    }
    let value = value.to_string();
    if map.settings.get(&command.name) == Some(&value) {
        return Ok(UNCHANGED);
    }
    map.settings.insert(command.name.clone(), value);
    Ok(CHANGED)
}

/// R13: what was granted before is held on. In the map, for the next leader may be a mon that has just started, or that
/// got this change by a snapshot.
fn remember_longer_lease(map: &mut ClusterMap, lowered_to: u64) {
    let before = map.setting_u64(settings::LEASE_MILLIS);
    if lowered_to < before {
        let millis = map.longer_lease.map_or(before, |longer| longer.millis.max(before));
        map.longer_lease = Some(LongerLease { millis, since: map.next_epoch() });
    }
}

/// A late copy of the command must not forget what was remembered since.
pub(super) fn forget_longer_lease(map: &mut ClusterMap, command: ForgetLongerLease) -> Applied {
    if map.longer_lease.is_none_or(|longer| longer.since != Epoch(command.since)) {
        return Ok(UNCHANGED);
    }
    map.longer_lease = None;
    Ok(CHANGED)
}

pub(super) fn set_mon(map: &mut ClusterMap, command: &SetMon) -> Applied {
    check_address(&command.address)?;
    let address = map.mons.get_mut(&command.id).ok_or_else(|| CommandError::Unknown(format!("mon {}", command.id)))?;
    if *address == command.address {
        return Ok(UNCHANGED);
    }
    address.clone_from(&command.address);
    Ok(CHANGED)
}
