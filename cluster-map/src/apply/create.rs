//! Making the cluster.

use pando_proto::PgId;
use pando_proto::PoolId;
use pando_proto::ids::{DATA_POOL, METADATA_POOL};

use super::{Applied, CHANGED, UNCHANGED, check_address};
use crate::command::{CommandError, CreateCluster, PoolSpec};
use crate::map::{ClusterMap, Pg, Pool};

const MAX_MONS: usize = 7;
const MAX_PGS: u32 = 4096;
const MAX_EXPECTED_OSDS: u32 = 1024;

pub(super) fn create_cluster(map: &mut ClusterMap, command: &CreateCluster) -> Applied {
    let invalid = |message: &str| Err(CommandError::Invalid(message.to_owned()));
    let Ok(cluster_id) = <[u8; 16]>::try_from(command.cluster_id.as_slice()) else {
        return invalid("the cluster id has to have 16 bytes");
    };
    if cluster_id == [0; 16] {
        return invalid("the cluster id must not be zero");
    }
    if map.exists() {
        return if map.cluster_id == cluster_id { Ok(UNCHANGED) } else { Err(CommandError::ClusterExists) };
    }
    if command.mons.is_empty() || command.mons.len() > MAX_MONS {
        return invalid("a cluster has 1, 3 or 5 mons");
    }
    if !(1..=MAX_EXPECTED_OSDS).contains(&command.expected_osds) {
        return Err(CommandError::Invalid(format!("expected_osds has to be 1 to {MAX_EXPECTED_OSDS}")));
    }
    let metadata = pool("metadata", command.metadata, command.expected_osds)?;
    let data = pool("data", command.data, command.expected_osds)?;
    for mon in &command.mons {
        check_address(&mon.address)?;
    }
    map.cluster_id = cluster_id;
    map.expected_osds = command.expected_osds;
    map.mons = command.mons.iter().map(|mon| (mon.id, mon.address.clone())).collect();
    map.next_client_id = 1;
    map.next_osd_id = 1;
    // 1 is the root subtree.
    map.next_subtree_id = 2;
    add_pool(map, METADATA_POOL, metadata);
    add_pool(map, DATA_POOL, data);
    Ok(CHANGED)
}

fn add_pool(map: &mut ClusterMap, id: PoolId, pool: Pool) {
    map.pgs.extend((0..pool.pg_count).map(|index| (PgId { pool: id, index }, Pg::default())));
    map.pools.insert(id, pool);
}

fn pool(name: &str, spec: Option<PoolSpec>, expected_osds: u32) -> Result<Pool, CommandError> {
    let invalid = |message: String| Err(CommandError::Invalid(format!("pool {name}: {message}")));
    let Some(spec) = spec else { return invalid("not described".to_owned()) };
    if !(1..=3).contains(&spec.size) {
        return invalid(format!("size is {}, has to be 1 to 3", spec.size));
    }
    if spec.size > expected_osds {
        return invalid(format!("size {0} needs {0} OSDs: expected_osds is {expected_osds}", spec.size));
    }
    if !(1..=MAX_PGS).contains(&spec.pg_count) {
        return invalid(format!("has {} PGs, can have 1 to {MAX_PGS}", spec.pg_count));
    }
    let min_size = if spec.min_size == 0 { spec.size.min(2) } else { spec.min_size };
    if min_size > spec.size {
        return invalid(format!("min_size {min_size} is above size {}", spec.size));
    }
    Ok(Pool { name: name.to_owned(), size: spec.size, min_size, pg_count: spec.pg_count })
}
