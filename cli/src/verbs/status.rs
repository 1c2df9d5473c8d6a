//! `pando status`. JSON: `cluster_id` (hex), `map_epoch`, `leader`, `mons` (of `id`, `address`),
//! `osds_up`, `osds_total`, `ranks_up`, `ranks_total`, `pgs_healthy`, `pgs_degraded`, `pgs_down`,
//! `total_bytes`, `used_bytes`, `sessions`, `warnings`.

use pando_proto::mon::GetStatusResponse;
use serde_json::json;

use crate::failure::Failure;
use crate::output::{self, bytes_text};
use crate::session::Session;

pub async fn run(session: &Session) -> Result<(), Failure> {
    let status = session.admin()?.status().await?;
    if session.json { json_line(&status) } else { text(session, &status) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn json_line(status: &GetStatusResponse) -> Result<(), Failure> {
    let mons: Vec<_> = status.mons.iter().map(|mon| json!({"id": mon.id, "address": mon.address})).collect();
    let fields = json!({
        "cluster_id": hex(&status.cluster_id),
        "map_epoch": status.map_epoch,
        "leader": status.leader_id,
        "mons": mons,
        "osds_up": status.osds_up,
        "osds_total": status.osds_total,
        "ranks_up": status.ranks_up,
        "ranks_total": status.ranks_total,
        "pgs_healthy": status.pgs_healthy,
        "pgs_degraded": status.pgs_degraded,
        "pgs_down": status.pgs_down,
        "total_bytes": status.total_bytes,
        "used_bytes": status.used_bytes,
        "sessions": status.sessions,
        "warnings": status.warnings,
    });
    output::line(fields.to_string())
}

fn text(session: &Session, status: &GetStatusResponse) -> Result<(), Failure> {
    let mons: Vec<_> = status.mons.iter().map(|mon| mon.address.as_str()).collect();
    let asked = session.mons();
    let rows = [
        ("cluster", hex(&status.cluster_id)),
        ("asked", asked),
        ("mons", format!("{}, leader {}, map epoch {}", mons.join(", "), status.leader_id, status.map_epoch)),
        ("osds", format!("{} of {} up", status.osds_up, status.osds_total)),
        ("ranks", format!("{} of {} up", status.ranks_up, status.ranks_total)),
        ("pgs", format!("{} healthy, {} degraded, {} down", status.pgs_healthy, status.pgs_degraded, status.pgs_down)),
        ("space", format!("{} of {} used", bytes_text(status.used_bytes), bytes_text(status.total_bytes))),
        ("sessions", status.sessions.to_string()),
    ];
    rows.iter().try_for_each(|(word, value)| output::line(format!("{word:<9} {value}")))?;
    status.warnings.iter().try_for_each(|warning| output::line(format!("warning   {warning}")))
}
