//! `pando pg ls`. JSON: `pool`, `index`, `config`, `members` (OSD ids, the primary first), `joining`, `absent`, `down` (those
//! of them that are down), `forgiven`.
//! `pando pg override`. JSON: `pool`, `index`, `osd`, `map_epoch`.

use std::collections::BTreeSet;

use pando_proto::ids::{DATA_POOL, METADATA_POOL};
use pando_proto::mon::OsdState;
use pando_proto::{OsdId, PgId};
use serde_json::json;

use crate::args::PgCommand;
use crate::failure::Failure;
use crate::output;
use crate::session::Session;

pub async fn run(session: &Session, command: PgCommand) -> Result<(), Failure> {
    match command {
        PgCommand::Ls { pool } => ls(session, pool).await,
        PgCommand::Override { pg, osd, accept_data_loss } => {
            override_pg(session, pg, OsdId(osd), accept_data_loss).await
        }
    }
}

async fn override_pg(session: &Session, pg: PgId, osd: OsdId, accept_data_loss: bool) -> Result<(), Failure> {
    let admin = session.admin()?;
    let found = admin.list_pgs(Some(pg.pool)).await?.into_iter().find(|found| found.index == pg.index);
    let config = found.map_or(0, |found| found.config);
    let epoch = admin.override_pg(pg, config, osd, accept_data_loss).await?;
    let fields = json!({"pool": pg.pool.0, "index": pg.index, "osd": osd.0, "map_epoch": epoch.0});
    if session.json { output::line(fields.to_string()) } else { Ok(()) }
}

async fn ls(session: &Session, pool: Option<String>) -> Result<(), Failure> {
    let pool = match pool.as_deref() {
        None => None,
        Some("metadata") => Some(METADATA_POOL),
        Some("data") => Some(DATA_POOL),
        Some(other) => return Err(Failure::Usage(format!("`{other}` is no pool: there are `metadata` and `data`"))),
    };
    let pgs = session.admin()?.list_pgs(pool).await?;
    let osds = session.admin()?.list_osds().await?;
    let down: BTreeSet<u32> = osds.iter().filter(|osd| osd.state() != OsdState::Up).map(|osd| osd.id).collect();
    let mut rows = Vec::new();
    for pg in pgs {
        if session.json {
            let fields = json!({
                "pool": pg.pool,
                "index": pg.index,
                "config": pg.config,
                "members": pg.members,
                "joining": pg.joining,
                "absent": pg.absent,
                "down": pg.members.iter().chain(&pg.absent).filter(|osd| down.contains(osd)).collect::<Vec<_>>(),
                "forgiven": pg.forgiven,
            });
            output::line(fields.to_string())?;
            continue;
        }
        let named = |id: &u32| format!("osd.{id}{}", if down.contains(id) { " (down)" } else { "" });
        let osds = |ids: &[u32]| ids.iter().map(named).collect::<Vec<_>>().join(" ");
        rows.push(vec![
            format!("{}.{}", pg.pool, pg.index),
            pg.config.to_string(),
            osds(&pg.members),
            osds(&pg.joining),
            osds(&pg.absent),
        ]);
    }
    let head = ["PG", "CONFIG", "MEMBERS", "JOINING", "ABSENT"];
    if session.json { Ok(()) } else { output::table(&head, &rows) }
}
