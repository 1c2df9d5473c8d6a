//! The cluster at a glance, and what a person should look at.

use bytes::Bytes;
use pando_cluster_map::{ClusterMap, PgState, settings};
use pando_proto::{PgId, mon};

use crate::node::{Leadership, Status};

/// From here on an OSD is worth a warning, in percent.
const NEARLY_FULL_PERCENT: u64 = 85;

pub(super) fn status(map: &ClusterMap, known: &Status, leadership: Leadership) -> mon::GetStatusResponse {
    let count = |state| map.pgs.keys().filter(|id| map.pg_state(**id) == state).count() as u32;
    let usage = |id| known.usage.get(id).copied();
    let (total_bytes, used_bytes) = map.osds.iter().fold((0u64, 0u64), |(total, used), (id, osd)| {
        let (osd_total, osd_used) = usage(id).unwrap_or((osd.total_bytes, osd.used_bytes));
        (total.saturating_add(osd_total), used.saturating_add(osd_used))
    });
    mon::GetStatusResponse {
        cluster_id: Bytes::copy_from_slice(&map.cluster_id),
        map_epoch: map.epoch.0,
        leader_id: leadership.leader,
        raft_term: leadership.term,
        mons: map.mons.iter().map(|(id, address)| mon::Mon { id: *id, address: address.clone() }).collect(),
        osds_up: map.osds.values().filter(|osd| osd.up).count() as u32,
        osds_total: map.osds.len() as u32,
        ranks_up: map.ranks.values().filter(|rank| rank.up).count() as u32,
        ranks_total: map.ranks.len() as u32,
        pgs_healthy: count(PgState::Healthy),
        pgs_degraded: count(PgState::Degraded),
        pgs_down: count(PgState::Down),
        total_bytes,
        used_bytes,
        sessions: map.sessions.len() as u32,
        warnings: warnings(map, known),
    }
}

fn warnings(map: &ClusterMap, known: &Status) -> Vec<String> {
    let mut warnings = Vec::new();
    if !map.exists() {
        warnings.push("the cluster was not created yet: start the mon with the lowest id".to_owned());
        return warnings;
    }
    for id in &known.unreachable_mons {
        let address = map.mons.get(id).map_or("?", String::as_str);
        warnings.push(format!("mon {id} at {address} does not answer: start it, or look at the network"));
    }
    osd_warnings(map, known, &mut warnings);
    pg_warnings(map, &mut warnings);
    for (rank, info) in map.ranks.iter().filter(|(_, info)| !info.up) {
        let owns = map.subtrees.values().any(|subtree| subtree.owner == *rank);
        let rest = if owns {
            "start its pando-mds; its files wait".to_owned()
        } else {
            format!("it owns nothing: start its pando-mds, or `pando rank rm {}` if it was a mistake", rank.0)
        };
        warnings.push(format!("{rank} (last at {}) is down: {rest}", info.address));
    }
    if map.ranks.is_empty() {
        warnings.push("no metadata server has registered: start a pando-mds".to_owned());
    }
    warnings
}

fn osd_warnings(map: &ClusterMap, known: &Status, warnings: &mut Vec<String>) {
    let minutes = map.setting_u64(settings::DOWN_OUT_MILLIS).div_ceil(60_000);
    for (id, osd) in &map.osds {
        if !osd.up {
            let (address, host) = (&osd.address, &osd.host);
            let places = map.pgs.values().any(|pg| pg.members.contains(id) || pg.absent.contains(id));
            let rest = if places {
                format!("start it; after {minutes} minutes other OSDs take its places")
            } else {
                format!("it holds nothing that is needed: start it, or `pando osd rm {}` if it is gone for good", id.0)
            };
            warnings.push(format!("{id} ({address} on {host}) is down: {rest}"));
        }
        if let Some((total, used)) = known.usage.get(id)
            && *total > 0
            && used.saturating_mul(100) / total >= NEARLY_FULL_PERCENT
        {
            let percent = used.saturating_mul(100) / total;
            warnings.push(format!("{id} is {percent} % full: add OSDs, or delete something"));
        }
    }
}

fn pg_warnings(map: &ClusterMap, warnings: &mut Vec<String>) {
    let waiting = map.pgs.values().filter(|pg| pg.members.is_empty()).count();
    if waiting > 0 {
        let (up, expected) = (map.osds.values().filter(|osd| osd.up).count(), map.expected_osds);
        warnings.push(format!(
            "no data can be stored yet: {up} of {expected} OSDs are up, placement groups get their members when all are"
        ));
        return;
    }
    let down: Vec<PgId> = map.pgs.keys().copied().filter(|id| map.pg_state(*id) == PgState::Down).collect();
    if !down.is_empty() {
        let mut missing: Vec<String> = (down.iter())
            .flat_map(|id| map.pgs[id].members.iter().chain(&map.pgs[id].absent))
            .filter(|osd| !map.osds[osd].up)
            .map(ToString::to_string)
            .collect();
        missing.sort_unstable();
        missing.dedup();
        let needed =
            if missing.is_empty() { "wait for recovery".to_owned() } else { format!("start {}", missing.join(", ")) };
        warnings.push(format!("{} placement groups take no writes: {needed}", down.len()));
    }
    let degraded = map.pgs.keys().filter(|id| map.pg_state(**id) == PgState::Degraded).count();
    if degraded > 0 {
        warnings.push(format!("{degraded} placement groups have fewer copies than wanted until their OSDs are back"));
    }
}
