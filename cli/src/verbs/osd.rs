//! `pando osd ls`. JSON: `id`, `state` (`up`, `down`), `address`, `host`, `weight`, `incarnation`, `total_bytes`, `used_bytes`.

use pando_proto::mon::OsdState;
use serde_json::json;

use crate::failure::Failure;
use crate::output::{self, bytes_text};
use crate::session::Session;

pub async fn ls(session: &Session) -> Result<(), Failure> {
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
