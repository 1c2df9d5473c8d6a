//! `pando setting`. JSON: `name`, `value`; in the list also `default`, `min`, `max`, `help`; after `set` also `map_epoch`.

use pando_cluster_map::settings;
use serde_json::json;

use crate::args::SettingCommand;
use crate::failure::Failure;
use crate::output;
use crate::session::Session;

pub async fn run(session: &Session, command: SettingCommand) -> Result<(), Failure> {
    match command {
        SettingCommand::Get { name } => get(session, &name).await,
        SettingCommand::Set { name, value } => set(session, &name, &value).await,
        SettingCommand::List => list(session).await,
    }
}

async fn get(session: &Session, name: &str) -> Result<(), Failure> {
    let value = session.admin()?.get_setting(name).await?;
    if session.json {
        return output::line(json!({"name": name, "value": value}).to_string());
    }
    output::line(value)
}

async fn set(session: &Session, name: &str, value: &str) -> Result<(), Failure> {
    let epoch = session.admin()?.set_setting(name, value).await?;
    if session.json {
        return output::line(json!({"name": name, "value": value, "map_epoch": epoch.0}).to_string());
    }
    Ok(())
}

async fn list(session: &Session) -> Result<(), Failure> {
    let all = session.admin()?.list_settings().await?;
    let mut rows = Vec::new();
    for setting in all {
        let known = settings::find(&setting.name);
        if session.json {
            let fields = json!({
                "name": setting.name,
                "value": setting.value,
                "default": known.map(|known| known.default.to_string()),
                "min": known.map(|known| known.min.to_string()),
                "max": known.map(|known| known.max.to_string()),
                "help": known.map(|known| known.help),
            });
            output::line(fields.to_string())?;
            continue;
        }
        let default = known.map(|known| known.default.to_string()).unwrap_or_default();
        rows.push(vec![setting.name, setting.value, default, known.map_or("", |known| known.help).to_owned()]);
    }
    if session.json { Ok(()) } else { output::table(&["NAME", "VALUE", "DEFAULT", "WHAT"], &rows) }
}
