//! `pando osd ls`. JSON: `id`, `state` (`up`, `down`), `address`, `host`, `weight`, `incarnation`, `total_bytes`, `used_bytes`.
//! `pando osd rm`. JSON: `id`, `map_epoch`.

use pando_proto::OsdId;
use pando_proto::mon::OsdState;
use serde_json::json;

use crate::args::OsdCommand;
use crate::failure::Failure;
use crate::output::{self, bytes_text};
use crate::session::Session;

pub async fn run(session: &Session, command: OsdCommand) -> Result<(), Failure> {
    match command {
        OsdCommand::Ls => ls(session).await,
        OsdCommand::Rm { osd } => rm(session, osd).await,
    }
}

async fn rm(session: &Session, osd: u32) -> Result<(), Failure> {
    let epoch = session.admin()?.remove_osd(OsdId(osd)).await?;
    if session.json { output::line(json!({"id": osd, "map_epoch": epoch.0}).to_string()) } else { Ok(()) }
}

async fn ls(session: &Session) -> Result<(), Failure> {
    let osds = session.admin()?.list_osds().await?;
    let mut rows = Vec::new();
    for osd in osds {
        let state = if osd.state() == OsdState::Up { "up" } else { "down" };
        if session.json {
            let fields = json!({
                "id": osd.id,
                "state": state,
                "address": osd.address,
                "host": osd.host,
                "weight": osd.weight,
                "incarnation": osd.incarnation,
                "total_bytes": osd.total_bytes,
                "used_bytes": osd.used_bytes,
            });
            output::line(fields.to_string())?;
            continue;
        }
        rows.push(vec![
            format!("osd.{}", osd.id),
            state.to_owned(),
            bytes_text(osd.used_bytes),
            bytes_text(osd.total_bytes),
            osd.weight.to_string(),
            osd.host,
            osd.address,
        ]);
    }
    let head = ["OSD", "STATE", "USED", "SIZE", "WEIGHT", "HOST", "ADDRESS"];
    if session.json { Ok(()) } else { output::table(&head, &rows) }
}
