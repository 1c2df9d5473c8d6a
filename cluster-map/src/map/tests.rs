use super::*;

fn below(parent: u64, root: u64, parent_dir: u64, name: &str, path_hint: &str) -> Subtree {
    Subtree {
        root: Ino(root),
        parent: Some(SubtreeId(parent)),
        parent_dir: Some(Ino(parent_dir)),
        name: name.into(),
        path_hint: path_hint.into(),
        ..Subtree::default()
    }
}

#[test]
fn a_path_is_what_the_map_can_tell() {
    let mut map = ClusterMap::default();
    let root = Subtree { root: Ino::ROOT, path_hint: b"/".to_vec(), ..Subtree::default() };
    map.subtrees.insert(ROOT_SUBTREE, root);
    for (id, subtree) in [
        (2, below(1, 20, 1, "src", "/was/elsewhere")),
        // As it was split off, and nothing above it was renamed since.
        (3, below(2, 30, 25, "linux", "/src/git/linux")),
        // Split off without a path; renamed since; its parent was renamed since.
        (4, below(2, 40, 25, "gcc", "/src//")),
        (5, below(2, 50, 25, "new", "/src/git/old")),
        (6, below(3, 60, 35, "kernel", "/old/linux/a/kernel")),
        (7, below(3, 70, 30, "fs", "")),
    ] {
        map.subtrees.insert(SubtreeId(id), subtree);
    }
    let paths: Vec<_> = (1..=8).map(|id| String::from_utf8(map.path_of(SubtreeId(id))).unwrap()).collect();
    let expected = ["/", "/src", "/src/git/linux", "/src/.../gcc", "/src/.../new", "/src/git/linux/.../kernel"];
    assert_eq!(paths[..6], expected);
    assert_eq!(paths[6..], ["/src/git/linux/fs", "/"]);
    // Hostile bytes may hold a cycle.
    map.subtrees.get_mut(&SubtreeId(2)).unwrap().parent = Some(SubtreeId(7));
    assert!(map.path_of(SubtreeId(3)).len() < 1000);
}

#[test]
fn r1_each_shard_is_in_one_pg_and_a_binding_takes_one_shard_only() {
    let mut map = ClusterMap::default();
    map.pools.insert(METADATA_POOL, Pool { pg_count: 12, ..Pool::default() });
    let shards = || (0..1 << 15).map(ShardId);
    let before: Vec<PgId> = shards().map(|shard| map.pg_of_shard(shard)).collect();
    let used: BTreeSet<u32> = before.iter().map(|pg| pg.index).collect();
    assert_eq!(used, (0..12).collect(), "every PG has some, and there are no others");
    map.shard_bindings.insert(ShardId(5), 11);
    let after: Vec<PgId> = shards().map(|shard| map.pg_of_shard(shard)).collect();
    let moved: Vec<usize> = (0..before.len()).filter(|at| before[*at] != after[*at]).collect();
    assert_eq!((moved, after[5].index), (vec![5], 11));
}
