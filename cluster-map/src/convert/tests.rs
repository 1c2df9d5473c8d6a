use super::*;

fn map() -> ClusterMap {
    let mut map = ClusterMap { cluster_id: [7; 16], epoch: Epoch(3), ..ClusterMap::default() };
    map.osds.insert(OsdId(1), Osd { uuid: [1; 16], up: true, weight: 1000, ..Osd::default() });
    map.pools.insert(PoolId(1), Pool { name: "metadata".into(), size: 1, min_size: 1, pg_count: 1 });
    let id = PgId { pool: PoolId(1), index: 0 };
    map.pgs.insert(id, Pg { config: 1, members: vec![OsdId(1)], ..Pg::default() });
    let root = Subtree {
        root: Ino::ROOT,
        parent: None,
        owner: Rank(0),
        epoch: Epoch(1),
        path_hint: b"/".to_vec(),
        move_id: 0,
        ..Default::default()
    };
    map.subtrees.insert(SubtreeId(1), root);
    let id = TransactionId { coordinator: SubtreeId(1), epoch: Epoch(2), number: 3 };
    let participants = [1, 2].map(SubtreeId).into();
    let finished = [SubtreeId(2)].into();
    map.transactions.insert(id, Transaction { decision: Decision::Cycle, participants, finished });
    map.longer_lease = Some(LongerLease { millis: 60_000, since: Epoch(2) });
    map.sessions.insert(ClientId(9), Session { description: "test".into(), ..Session::default() });
    let of_rank = Session { description: "mds.3".into(), rank: Some(Rank(3)), ..Session::default() };
    map.sessions.insert(ClientId(10), of_rank);
    map
}

#[test]
fn a_map_survives_the_wire() {
    assert_eq!(ClusterMap::from_proto(&map().to_proto()), Ok(map()));
}

#[test]
fn what_a_session_says_of_itself_tells_only_in_old_records_whose_it_is() {
    let read = |kind: mon::SessionKind, rank, description: &str| {
        let kind = kind.into();
        let record = mon::Session { description: description.into(), kind, rank, ..mon::Session::default() };
        Session::from_proto(&record).unwrap().rank
    };
    assert_eq!(read(mon::SessionKind::Unspecified, 0, "mds.7"), Some(Rank(7)));
    for other in ["", "7", "mds.", "mds.+7", "mds.07", "mds.7 of mine", "mds.backup", "osd.7"] {
        assert_eq!(read(mon::SessionKind::Unspecified, 0, other), None, "{other}");
    }
    assert_eq!(read(mon::SessionKind::Client, 7, "mds.7"), None);
    assert_eq!(read(mon::SessionKind::Rank, 7, "anything"), Some(Rank(7)));
}

#[test]
fn hostile_maps_are_refused() {
    let good = map().to_proto();
    let refused = |change: &dyn Fn(&mut mon::ClusterMap)| {
        let mut bad = good.clone();
        change(&mut bad);
        ClusterMap::from_proto(&bad).unwrap_err()
    };
    let short = refused(&|map| map.cluster_id = Bytes::from_static(b"short"));
    assert_eq!(short, MapError::BadId { what: "cluster id", got: 5 });
    assert!(matches!(refused(&|map| map.osds.push(map.osds[0].clone())), MapError::Duplicate { .. }));
    assert!(matches!(refused(&|map| map.osds[0].state = 77), MapError::OutOfRange { .. }));
    assert!(matches!(refused(&|map| map.pgs[0].members.push(5)), MapError::Dangling { .. }));
    assert!(matches!(refused(&|map| map.pgs[0].index = 5), MapError::Dangling { .. }));
    assert!(matches!(refused(&|map| map.pools[0].pg_count = 0), MapError::OutOfRange { .. }));
    assert!(matches!(refused(&|map| map.subtrees[0].root_ino = 1 << 63), MapError::OutOfRange { .. }));
    assert!(matches!(refused(&|map| map.subtrees[0].parent = 8), MapError::Dangling { .. }));
    assert!(matches!(refused(&|map| map.sessions[0].kind = 9), MapError::OutOfRange { .. }));
    assert!(matches!(refused(&|map| map.transactions[0].decision = 9), MapError::OutOfRange { .. }));
    assert!(matches!(refused(&|map| map.transactions[0].id = None), MapError::OutOfRange { .. }));
    assert!(matches!(refused(&|map| map.transactions.push(map.transactions[0].clone())), MapError::Duplicate { .. }));
    let bad_shard = mon::InoCursor { shard: 1 << 15, next: 1 };
    assert!(matches!(refused(&|map| map.ino_cursors.push(bad_shard)), MapError::OutOfRange { .. }));
}
