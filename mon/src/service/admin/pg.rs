//! Giving up what no living copy of a placement group holds (R26).

use pando_cluster_map::{ClusterMap, Command, ConfirmMember};
use pando_proto::{Error, OsdId, PgId, PoolId, Reason, mon};

pub(super) fn override_command(request: mon::OverridePlacementGroupRequest) -> Command {
    let mon::OverridePlacementGroupRequest { pool, index, config, osd_id, .. } = request;
    Command::OverridePg(ConfirmMember { pool, index, config, osd_id })
}

/// Refuses what was not said to be meant, and tells what it would mean.
pub(super) fn check_override(map: &ClusterMap, request: mon::OverridePlacementGroupRequest) -> Result<(), Error> {
    let id = PgId { pool: PoolId(request.pool), index: request.index };
    let pg = map.pgs.get(&id).ok_or_else(|| Error::new(Reason::UnknownId, format!("there is no PG {id}")))?;
    if request.accept_data_loss {
        return Ok(());
    }
    let chosen = OsdId(request.osd_id);
    let is_up = |osd: &OsdId| map.osds.get(osd).is_some_and(|osd| osd.up);
    let named = |osd: &OsdId| format!("{osd} ({})", if is_up(osd) { "up" } else { "down" });
    let list = |osds: &mut dyn Iterator<Item = &OsdId>| match osds.map(named).collect::<Vec<_>>() {
        names if names.is_empty() => "none".to_owned(),
        names => names.join(", "),
    };
    let members = list(&mut pg.members.iter());
    let others = list(&mut pg.joining.iter().chain(&pg.absent));
    let lost = if pg.members.contains(&chosen) {
        format!("{chosen} is a member: what is lost is what it lost itself, as its log says")
    } else {
        format!("{chosen} is no member: all that was acknowledged since it left the group is lost")
    };
    let what = if id.pool == pando_proto::ids::METADATA_POOL {
        "names, attributes and small files; all subtrees are opened anew"
    } else {
        "contents of files"
    };
    let message = format!(
        "PG {id} ({what}), configuration {}: members {members}; other copies {others}. {lost}, and every other copy is \
         overwritten with that of {chosen}. Nothing was changed: say that you accept the loss to go on",
        pg.config
    );
    Err(Error::new(Reason::InvalidRequest, message))
}
