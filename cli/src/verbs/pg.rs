//! `pando pg ls`. JSON: `pool`, `index`, `config`, `members` (OSD ids, the primary first), `joining`.

use pando_proto::ids::{DATA_POOL, METADATA_POOL};
use serde_json::json;

use crate::failure::Failure;
use crate::output;
use crate::session::Session;

pub async fn ls(session: &Session, pool: Option<String>) -> Result<(), Failure> {
    let pool = match pool.as_deref() {
        None => None,
        Some("metadata") => Some(METADATA_POOL),
        Some("data") => Some(DATA_POOL),
        Some(other) => return Err(Failure::Usage(format!("`{other}` is no pool: there are `metadata` and `data`"))),
    };
    let pgs = session.admin()?.list_pgs(pool).await?;
    let mut rows = Vec::new();
    for pg in pgs {
        if session.json {
            let fields = json!({
                "pool": pg.pool,
                "index": pg.index,
                "config": pg.config,
                "members": pg.members,
                "joining": pg.joining,
            });
            output::line(fields.to_string())?;
            continue;
        }
        let osds = |ids: &[u32]| ids.iter().map(|id| format!("osd.{id}")).collect::<Vec<_>>().join(" ");
        rows.push(vec![
            format!("{}.{}", pg.pool, pg.index),
            pg.config.to_string(),
            osds(&pg.members),
            osds(&pg.joining),
        ]);
    }
    let head = ["PG", "CONFIG", "MEMBERS", "JOINING"];
    if session.json { Ok(()) } else { output::table(&head, &rows) }
}
