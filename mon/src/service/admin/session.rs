//! Sessions, for administrators.

use std::collections::BTreeMap;

use pando_cluster_map::{ClusterMap, Session};
use pando_proto::{ClientId, Error, Rank, Reason, mon};

/// All sessions of the map. `loads` is what the ranks said last.
pub(super) fn list(map: &ClusterMap, loads: &[mon::RankLoadOf]) -> Vec<mon::SessionInfo> {
    let mut awaited: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    let told = loads.iter().filter_map(|of| of.load.as_ref().map(|load| (of.rank, load)));
    for (rank, load) in told.filter(|(rank, _)| map.ranks.get(&Rank(*rank)).is_some_and(|info| info.up)) {
        load.awaited.iter().for_each(|client| awaited.entry(*client).or_default().push(rank));
    }
    let info = |(id, session): (&ClientId, &Session)| mon::SessionInfo {
        client_id: id.0,
        description: session.description.clone(),
        since_epoch: session.since.0,
        of_rank: session.is_of_rank(),
        awaited_by: awaited.get(&id.0).cloned().unwrap_or_default(),
    };
    map.sessions.iter().map(info).collect()
}

/// A rank whose session ends can write no objects any more, and would not know why.
pub(super) fn check_eviction(map: &ClusterMap, id: ClientId) -> Result<(), Error> {
    let rank = map.sessions.get(&id).and_then(|session| session.rank);
    match rank.filter(|rank| map.ranks.get(rank).is_some_and(|info| info.up)) {
        Some(rank) => {
            let message = format!("{id} is the session of {rank}, which is up: it ends with that process");
            Err(Error::new(Reason::InUse, message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use pando_cluster_map::RankInfo;

    use super::*;

    #[test]
    fn sessions_are_listed_with_who_waits_for_them_and_those_of_ranks_stay() {
        let mut map = ClusterMap::default();
        for (id, rank) in [(1, Some(Rank(0))), (2, None), (3, Some(Rank(7)))] {
            map.sessions.insert(ClientId(id), Session { rank, ..Session::default() });
        }
        for rank in 0..2 {
            map.ranks.insert(Rank(rank), RankInfo { up: true, ..RankInfo::default() });
        }
        let load = |rank, awaited: &[u64]| mon::RankLoadOf {
            rank,
            load: Some(mon::RankLoad { awaited: awaited.to_vec(), ..mon::RankLoad::default() }),
            ..mon::RankLoadOf::default()
        };
        let listed = list(&map, &[load(0, &[2, 9]), load(1, &[2]), load(5, &[2])]);
        let found: Vec<_> = listed.iter().map(|one| (one.client_id, one.of_rank, one.awaited_by.clone())).collect();
        assert_eq!(found, [(1, true, vec![]), (2, false, vec![0, 1]), (3, true, vec![])]);
        let refused = check_eviction(&map, ClientId(1)).unwrap_err();
        assert_eq!(refused.reason, Reason::InUse);
        for id in [2, 3, 4] {
            assert!(check_eviction(&map, ClientId(id)).is_ok(), "{id}");
        }
    }
}
