//! Settings, and where the mons are.

use super::{Applied, CHANGED, UNCHANGED, check_address};
use crate::command::{CommandError, SetMon, SetSetting};
use crate::map::ClusterMap;
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
    let value = value.to_string();
    if map.settings.get(&command.name) == Some(&value) {
        return Ok(UNCHANGED);
    }
    map.settings.insert(command.name.clone(), value);
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
