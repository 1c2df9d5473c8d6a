//! Ways into subtrees that this client was told of: it skips the components that lead there (R16).
//!
//! No lease stands behind them. What is sent along such a way carries its `route`, and the owner of the subtree
//! refuses any other than the present one: before something above a subtree changes, the route of it does.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use pando_cluster_map::ClusterMap;
use pando_proto::SubtreeId;
use pando_proto::mds::Caller;

use super::lock;

/// Ways that are remembered; beyond it those that were not used for longest are forgotten.
const LIMIT: usize = 4096;
/// How many go at once then, so that making room is rare.
const FORGOTTEN_AT_ONCE: usize = LIMIT / 4;
/// Ways of more components are not remembered.
const DEEPEST: u32 = 63;

/// Where a path goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub subtree: SubtreeId,
    /// Root of the subtree.
    pub base: u64,
    /// Version of the way, as the crossing said.
    pub route: u64,
}

impl Way {
    /// Whether the map still has this way. A map that is behind says nothing against it.
    fn holds(&self, map: &ClusterMap) -> bool {
        map.subtrees.get(&self.subtree).is_some_and(|subtree| subtree.route <= self.route)
    }
}

struct Entry {
    way: Way,
    used: u64,
}

/// What one user has found: permissions on the way are his.
#[derive(Default)]
struct Ways {
    by_prefix: HashMap<Bytes, Entry>,
    /// Bit n: there may be a prefix of n components.
    depths: u64,
}

#[derive(Default)]
struct Table {
    callers: HashMap<Caller, Ways>,
    clock: u64,
}

/// The cache. Prefixes are whole components, without a `/` at either end.
#[derive(Default)]
pub(super) struct Routes {
    table: Mutex<Table>,
    /// How many there are, to be read without the lock: most clusters need none.
    count: AtomicUsize,
}

impl Routes {
    /// The longest known prefix of `path`: where it leads, and its length. With `keep_last` the last name is left.
    pub fn find(&self, map: &ClusterMap, caller: &Caller, path: &[u8], keep_last: bool) -> Option<(Way, usize)> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut table = lock(&self.table);
        let Table { callers, clock } = &mut *table;
        *clock += 1;
        let ways = callers.get_mut(caller)?;
        let mut best = None;
        for (depth, end) in (1..=DEEPEST).zip(ends(path)) {
            if keep_last && without_slash(&path[end..]).is_empty() {
                break;
            }
            if ways.depths & (1 << depth) == 0 {
                continue;
            }
            match ways.by_prefix.get_mut(&path[..end]) {
                Some(entry) if entry.way.holds(map) => {
                    entry.used = *clock;
                    best = Some((entry.way, end));
                }
                Some(_) => {
                    ways.by_prefix.remove(&path[..end]);
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                None => {}
            }
        }
        best
    }

    /// `prefix` leads this way by directories alone.
    pub fn remember(&self, caller: &Caller, prefix: &[u8], way: Way) {
        let depth = ends(prefix).count() as u32;
        if !(1..=DEEPEST).contains(&depth) {
            return;
        }
        let mut table = lock(&self.table);
        if self.count.load(Ordering::Relaxed) >= LIMIT {
            self.make_room(&mut table);
        }
        table.clock += 1;
        let entry = Entry { way, used: table.clock };
        let ways = match table.callers.get_mut(caller) {
            Some(ways) => ways,
            None => table.callers.entry(caller.clone()).or_default(),
        };
        ways.depths |= 1 << depth;
        // A copy: the path it is a part of may be far longer.
        if ways.by_prefix.insert(Bytes::copy_from_slice(prefix), entry).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The way to this subtree is no longer what it was.
    pub fn forget(&self, subtree: SubtreeId) {
        self.retain(&mut lock(&self.table), |entry| entry.way.subtree != subtree);
    }

    fn make_room(&self, table: &mut Table) {
        let entries = table.callers.values().flat_map(|ways| ways.by_prefix.values());
        let mut used: Vec<u64> = entries.map(|entry| entry.used).collect();
        if used.len() > FORGOTTEN_AT_ONCE {
            let (_, newest, _) = used.select_nth_unstable(FORGOTTEN_AT_ONCE);
            let newest = *newest;
            self.retain(table, |entry| entry.used > newest);
        }
    }

    fn retain(&self, table: &mut Table, keep: impl Fn(&Entry) -> bool) {
        let mut count = 0;
        table.callers.retain(|_, ways| {
            ways.by_prefix.retain(|_, entry| keep(entry));
            count += ways.by_prefix.len();
            !ways.by_prefix.is_empty()
        });
        self.count.store(count, Ordering::Relaxed);
    }
}

/// Where the components of a path end.
fn ends(path: &[u8]) -> impl Iterator<Item = usize> {
    let inner = (1..path.len()).filter(|at| path[*at] == b'/' && path[*at - 1] != b'/');
    let last = (!path.is_empty() && !path.ends_with(b"/")).then_some(path.len());
    inner.chain(last)
}

/// What follows a component, as a path.
pub(super) fn without_slash(rest: &[u8]) -> &[u8] {
    let start = rest.iter().position(|byte| *byte != b'/').unwrap_or(rest.len());
    &rest[start..]
}

#[cfg(test)]
mod tests {
    use pando_cluster_map::Subtree;

    use super::*;

    fn map(routes: &[(u64, u64)]) -> ClusterMap {
        let mut map = ClusterMap::default();
        for (subtree, route) in routes {
            map.subtrees.insert(SubtreeId(*subtree), Subtree { route: *route, ..Subtree::default() });
        }
        map
    }

    fn way(subtree: u64, route: u64) -> Way {
        Way { subtree: SubtreeId(subtree), base: subtree * 100, route }
    }

    fn user(uid: u32) -> Caller {
        Caller { uid, gid: 7, groups: vec![1, 2] }
    }

    #[test]
    fn the_longest_prefix_of_whole_components_wins() {
        let (routes, map) = (Routes::default(), map(&[(2, 1), (3, 1)]));
        routes.remember(&user(1), b"a", way(2, 1));
        routes.remember(&user(1), b"a/b/c", way(3, 1));
        let find = |path: &[u8], keep_last| {
            routes.find(&map, &user(1), path, keep_last).map(|(way, end)| (way.subtree.0, end))
        };
        assert_eq!(find(b"a/b/c/d", false), Some((3, 5)));
        assert_eq!(find(b"a/b/c", false), Some((3, 5)));
        assert_eq!(find(b"a/b/c", true), Some((2, 1)), "the name of a subtree's root belongs to its parent");
        assert_eq!(find(b"a/b/c/", true), Some((2, 1)));
        assert_eq!(find(b"a/b/cc", false), Some((2, 1)));
        assert_eq!(find(b"a", true), None);
        assert_eq!(find(b"ab", false), None);
        assert_eq!(find(b"", false), None);
        assert_eq!(routes.find(&map, &user(2), b"a/x", false), None, "permissions are another user's");
    }

    #[test]
    fn r16_a_route_that_the_map_has_left_is_not_taken() {
        let routes = Routes::default();
        routes.remember(&user(1), b"a", way(2, 5));
        assert!(routes.find(&map(&[(2, 4)]), &user(1), b"a/x", false).is_some(), "the map is behind");
        assert!(routes.find(&map(&[(2, 6)]), &user(1), b"a/x", false).is_none());
        assert!(routes.find(&map(&[(2, 5)]), &user(1), b"a/x", false).is_none(), "and it is forgotten");
        routes.remember(&user(1), b"a", way(2, 5));
        assert!(routes.find(&map(&[]), &user(1), b"a/x", false).is_none(), "merged away");
        routes.remember(&user(1), b"a", way(2, 5));
        routes.remember(&user(2), b"b", way(3, 5));
        routes.forget(SubtreeId(2));
        assert!(routes.find(&map(&[(2, 5)]), &user(1), b"a/x", false).is_none());
        assert_eq!(routes.count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn i8_the_cache_is_bounded_and_keeps_what_is_used() {
        let (routes, map) = (Routes::default(), map(&[(2, 1)]));
        routes.remember(&user(1), b"used", way(2, 1));
        for number in 0..3 * LIMIT as u32 {
            routes.remember(&user(number % 5), format!("d/{number}").as_bytes(), way(2, 1));
            assert!(routes.find(&map, &user(1), b"used/x", false).is_some());
        }
        let count = routes.count.load(Ordering::Relaxed);
        assert!(count <= LIMIT && count > LIMIT / 2, "{count}");
        let held: usize = lock(&routes.table).callers.values().map(|ways| ways.by_prefix.len()).sum();
        assert_eq!(held, count);
    }
}
